#!/bin/sh
#
# Show what the ledger does: support events, delivered several times to
# workers that get killed on the way, first without the ledger and then with it.
#
# Installs what is missing (apt), builds the extension, and runs everything in
# a temporary folder with a private PostgreSQL that listens on a Unix socket
# only.  All of that is gone at the end.  Works as root and as any other user;
# only installing packages needs root or sudo.
#
#   PG_CONFIG   which PostgreSQL to use; default: the newest one found
#   TMPDIR      where the temporary folder goes; default: /tmp
#
set -eu

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)

say() {
	printf 'demo: %s\n' "$*"
}

die() {
	printf 'demo: %s\n' "$*" >&2
	exit 1
}

is_root() {
	[ "$(id -u)" = 0 ]
}

# PostgreSQL refuses to run as root.
as_owner() {
	if is_root; then
		runuser -u postgres -- "$@"
	else
		"$@"
	fi
}

# quietly NAME COMMAND...: the output goes to a log, shown only on failure.
quietly() {
	log=$work/$1.log
	shift
	"$@" > "$log" 2>&1 || {
		status=$?
		tail -n 40 "$log" >&2
		[ ! -s "$work/server.log" ] || tail -n 20 "$work/server.log" >&2
		die "failed ($status): $*"
	}
}

cleanup() {
	status=$?
	trap '' HUP INT TERM
	trap - EXIT
	if [ -f "$work/data/postmaster.pid" ]; then
		as_owner "$bindir/pg_ctl" -s -D "$work/data" -m immediate stop || :
	fi
	rm -rf "$work"
	exit "$status"
}

# Is this a PostgreSQL with both a server and the files to build with?
is_complete() {
	command -v "$1" > /dev/null &&
		[ -x "$("$1" --bindir)/initdb" ] && [ -f "$("$1" --pgxs)" ]
}

# The one asked for, else the newest.
find_pg_config() {
	if [ -n "${PG_CONFIG:-}" ]; then
		is_complete "$PG_CONFIG" || die "PG_CONFIG=$PG_CONFIG: no server or no development files"
		command -v "$PG_CONFIG"
		return
	fi
	for candidate in \
		$(printf '%s\n' /usr/lib/postgresql/*/bin/pg_config | sort -rV) pg_config; do
		if is_complete "$candidate"; then
			command -v "$candidate"
			return
		fi
	done
}

# The major version to install: that of a server at hand, else Debian's own.
wanted_major() {
	for server in $(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort -rV); do
		if [ -x "$server" ]; then
			basename "${server%/bin/postgres}"
			return
		fi
	done
	apt-cache depends postgresql 2> /dev/null |
		sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p'
}

find_python() {
	for candidate in /usr/bin/python3 python3; do
		if "$candidate" -c 'import aiosmtpd, psycopg, sqlite3' 2> /dev/null; then
			command -v "$candidate"
			return
		fi
	done
}

apt_get() {
	if is_root; then
		env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@"
	else
		sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@"
	fi
}

install_missing() {
	packages=
	command -v make > /dev/null || packages="$packages make"
	command -v cc > /dev/null || packages="$packages gcc libc6-dev"
	[ -n "$(find_python)" ] || packages="$packages python3 python3-psycopg python3-aiosmtpd"
	pg_config=$(find_pg_config)
	[ -n "$packages" ] || [ -z "$pg_config" ] || return 0

	command -v apt-get > /dev/null ||
		die "please install PostgreSQL with its development files, make, a C compiler, psycopg 3 and aiosmtpd"
	is_root || command -v sudo > /dev/null ||
		die "packages are missing and there is no sudo: run this once as root"
	say "looking for missing packages"
	apt_get update > /dev/null 2>&1 || :	# an old list may do as well
	if [ -z "$pg_config" ]; then
		major=$(wanted_major)
		[ -n "$major" ] || die "no PostgreSQL found, and apt knows none"
		packages="$packages postgresql-$major postgresql-server-dev-$major"
	fi
	say "installing$packages"
	# shellcheck disable=SC2086 # a list of words
	quietly apt-install apt_get install -y --no-install-recommends $packages
}

# Build a copy, so that the source tree stays as it is; without optimisation,
# which takes half the time.
build() {
	mkdir "$work/source"
	tar -C "$top" -cf - --exclude=./.git --exclude='./tmp_*' \
		--exclude='*.o' --exclude='*.so' --exclude='*.bc' . |
		tar -C "$work/source" -xf -
	if is_root; then
		chown -R postgres: "$work"
	fi
	quietly build as_owner make -s -C "$work/source" -j 2 with_llvm=no COPT=-O0 \
		PG_CONFIG="$pg_config" DESTDIR="$work/install" install
}

# The new server finds the extension in $work/install.
settings() {
	share=$("$pg_config" --sharedir) lib=$("$pg_config" --pkglibdir)
	cat <<-END
		listen_addresses = ''
		unix_socket_directories = '$work'
		dynamic_library_path = '$work/install$lib:\$libdir'
	END
	if "$bindir/postgres" --describe-config | grep -q '^extension_control_path'; then
		echo "extension_control_path = '$work/install$share:\$system'"
	else
		echo "extension_destdir = '$work/install'"
	fi
}

start_server() {
	quietly initdb as_owner "$bindir/initdb" -A trust -N -U postgres \
		-E UTF8 --locale=C -D "$work/data"
	settings | as_owner tee -a "$work/data/postgresql.conf" > /dev/null
	quietly start as_owner "$bindir/pg_ctl" -w -D "$work/data" \
		-l "$work/server.log" start
}

started=$(date +%s)
work=$(mktemp -d "${TMPDIR:-/tmp}/idem-demo.XXXXXX")
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Settings of the caller's own session are not meant for this one.
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR
unset PGDATA PGSERVICE PGPASSFILE PGPASSWORD PGOPTIONS PGHOSTADDR PGSSLMODE
export PGHOST="$work" PGPORT=5432 PGUSER=postgres PGDATABASE=postgres

install_missing
pg_config=$(find_pg_config)
[ -n "$pg_config" ] || die "still no PostgreSQL with its development files"
bindir=$("$pg_config" --bindir)
python=$(find_python)
[ -n "$python" ] || die "still no Python with psycopg 3 and aiosmtpd"

if is_root; then
	chown postgres: "$work"
fi
cd "$work"
as_owner test -w "$work" || die "postgres cannot write to $work: set TMPDIR to another folder"

say "building the extension for $("$pg_config" --version)"
build
say "starting a private server"
start_server
quietly rules "$bindir/psql" -qX -v ON_ERROR_STOP=1 -f "$here/rules.sql"
as_owner env TMPDIR="$work" "$python" -B "$work/source/examples/support-desk/run.py"
say "done in $(($(date +%s) - started)) s"
