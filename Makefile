EXTENSION  = idem_action
EXTVERSION = $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(EXTENSION).control)

MODULE_big = $(EXTENSION)
OBJS       = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c)))
PGFILEDESC = "idem_action - ledger of idempotent actions"
override PG_CPPFLAGS += -DIDEM_VERSION='"$(EXTVERSION)"'
override PG_CFLAGS += -Wextra -Wno-unused-parameter -Wshadow -Wstrict-prototypes -Wold-style-definition \
	-Wformat=2 -Wnull-dereference -Wwrite-strings -Wunused-macros -Wmissing-declarations

# The script of the current version is its fragments, one after the other; DATA
# are the frozen older versions and the steps between them.
INSTALL_SQL = sql/$(EXTENSION)--$(EXTVERSION).sql
DATA        = $(filter-out $(INSTALL_SQL),$(wildcard sql/$(EXTENSION)--*.sql))
DATA_built  = $(INSTALL_SQL)

REGRESS        = $(sort $(patsubst test/sql/%.sql,%,$(wildcard test/sql/*.sql)))
REGRESS_OPTS   = --inputdir=test --load-extension=$(EXTENSION)
ISOLATION      = $(sort $(patsubst test/specs/%.spec,%,$(wildcard test/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test --outputdir=. --load-extension=$(EXTENSION)
TAP_TESTS      = 1
PROVE_TESTS    = test/t/*.pl
EXTRA_CLEAN    = tmp_install

# demo and test install what they need themselves, PGXS included.
ifeq ($(filter demo test,$(MAKECMDGOALS)),)
PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifeq ($(wildcard $(PGXS)),)
$(error "$(PG_CONFIG) --pgxs" finds no PostgreSQL development files: install postgresql-server-dev-NN or set PG_CONFIG)
endif
include $(PGXS)

$(INSTALL_SQL): $(sort $(wildcard sql/install/*.sql)) $(EXTENSION).control
	cat $(filter %.sql,$^) > $@

$(OBJS) $(OBJS:.o=.bc): $(wildcard src/*.h)

# after the include: Makefile.global clears it
PROVE_FLAGS += -I test/lib
endif

.PHONY: demo test
demo:
	./examples/support-desk/demo.sh
test:
	.ci/test
