/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  May what the clock says be believed?
 *
 * Keys are forgotten, contents purged and provider windows ended by the time of
 * day, and none of it can be taken back.  One wrong reading of the clock must not
 * do it, so such work asks idem_clock_believed() first.  Everything else goes by
 * idem_clock_now(), which is the clock's reading while that is believed.
 *
 * A reading is compared with
 *
 *	the baseline	the time of day as it would be had nobody set the clock since
 *					the server was started, by CLOCK_BOOTTIME, which counts the
 *					time of a suspended machine.  More than an hour apart is a
 *					jump.  Only where the library is preloaded.
 *	the known time	the last time recorded in the ledger: the row of kind "clock"
 *					in idem_state, which a pass writes when it is an hour old, and
 *					only while the clock is believed.  More than 30 days past it,
 *					or an hour before it, is implausible.  It goes along in dumps
 *					and to standbys.
 *
 * The known time is asked once for each ledger after the start of the server, a
 * promotion or a restore, and always without preload; from then on the baseline
 * decides, since a ledger whose worker is off knows no late time.  Where the
 * clock was wrong at the start, which the known time tells, the baseline is taken
 * anew when the clock is right.  confirm_time() makes the current reading both
 * baseline and known time.
 *
 * While the clock is not believed
 *	- a row past forget_after answers as known, nothing is forgotten or purged;
 *	- under "retry" and "verify" an action in doubt is not handed out, whether the
 *	  clock ran ahead or back: the provider's window and the time until a search
 *	  can find the effect can't be told.  The claim answers not_due and writes
 *	  nothing.  "repeat" goes on, as doing it twice harms nobody, and so does what
 *	  is not in doubt;
 *	- calls decide by the baseline, and write its time down: leases, due times and
 *	  provider windows are right when the clock is right again.  Judging leases
 *	  goes on by it;
 *	- where there is no baseline, that is without preload or where the clock was
 *	  wrong at the start, calls go by the clock as it is, but a lease taken before
 *	  it jumped ahead ends by the known time, or not at all: its holder may be
 *	  acting, and another would do it twice.
 *
 * The start's baseline is inherited from the postmaster and outlives a crash of
 * the server; that of a ledger is in databases.c and does not.
 *
 * What waits within a process goes by idem_clock_monotonic().
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/clock.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "compat.h"
#include "clock.h"
#include "access.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "arg.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "databases.h"
#include "detail.h"
#include "executor/spi.h"
#include "errors.h"
#include "ledger.h"
#include "miscadmin.h"
#include "request.h"
#include "settings.h"
#include "table.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#define LONGEST_DOWNTIME (30 * USECS_PER_DAY)
#define RECORD_EVERY USECS_PER_HOUR

#ifdef CLOCK_BOOTTIME
#define SINCE_BOOT CLOCK_BOOTTIME
#else
#define SINCE_BOOT CLOCK_MONOTONIC
#endif

PG_FUNCTION_INFO_V1(idem_confirm_time);
PG_FUNCTION_INFO_V1(idem_clock_problem);

/* the clock minus the time since boot, when the server was started */
static int64 start_offset;
static bool preloaded = false;

/* the baseline of this session's database, as it was last looked at, or 0 */
static int64 last_offset = 0;

static int64
read_clock(clockid_t id)
{
	struct timespec ts;

	if (clock_gettime(id, &ts) != 0)
		elog(ERROR, "could not read clock %d: %m", (int) id);
	return (int64) ts.tv_sec * USECS_PER_SEC + ts.tv_nsec / 1000;
}

/* only while shared_preload_libraries are loaded */
void
idem_clock_init(void)
{
	start_offset = GetCurrentTimestamp() - read_clock(SINCE_BOOT);
	preloaded = true;
}

/* microseconds that only ever grow */
int64
idem_clock_monotonic(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

/* when it will be then, if nobody sets the clock; 0 for 0 */
int64
idem_clock_monotonic_of(TimestampTz then)
{
	return then == 0 ? 0 : Max(idem_clock_monotonic() + (then - GetCurrentTimestamp()), 1);
}

/* a reading of the clock, compared with what else is known of the time */
typedef struct Reading
{
	bool		believed;
	TimestampTz estimate;		/* no later than the time it should be, or 0 */
	int64		reach;			/* that clock may have read so much more */
} Reading;

static bool
is_near(TimestampTz now, TimestampTz estimate)
{
	return now - estimate <= IDEM_CLOCK_TOLERANCE && estimate - now <= IDEM_CLOCK_TOLERANCE;
}

static bool
fits_known(TimestampTz known, TimestampTz now)
{
	return known == 0 ||
		(now >= known - IDEM_CLOCK_TOLERANCE && now <= known + LONGEST_DOWNTIME);
}

/* the baseline is noted in "clock" once the known time was asked */
static Reading
compare(TimestampTz now, IdemDatabaseClock *clock)
{
	TimestampTz known = idem_settings()->known_time;
	Reading		reading = {.estimate = known,.reach = LONGEST_DOWNTIME};
	Oid			ledger;
	int64		since_boot;
	int64		offset;
	bool		checked;

	if (!preloaded)
	{
		reading.believed = fits_known(known, now);
		return reading;
	}
	ledger = idem_relation_oid("idem_actions");
	since_boot = read_clock(SINCE_BOOT);
	checked = clock->ledger == ledger;
	offset = checked ? clock->offset : start_offset;
	if (checked || fits_known(known, since_boot + offset))
	{
		reading.estimate = since_boot + offset;
		reading.reach = IDEM_CLOCK_TOLERANCE;
		reading.believed = is_near(now, reading.estimate);
	}
	else
	{
		/* the clock was wrong at the start, or the server down for long */
		reading.believed = fits_known(known, now);
		offset = now - since_boot;
	}
	/* what a standby knows may be overtaken by what it receives */
	if (reading.believed && !RecoveryInProgress())
	{
		clock->ledger = ledger;
		clock->offset = offset;
	}
	return reading;
}

/* where it should read something, from which moment on, or "" */
static const char *
why_not(const Reading *reading)
{
	if (reading->reach == IDEM_CLOCK_TOLERANCE)
		return psprintf("by the time since the server's start it should be about %s",
						timestamptz_to_str(reading->estimate));
	return psprintf("the last time known to the ledger is %s",
					timestamptz_to_str(reading->estimate));
}

/* once when it begins and once when it is over */
static void
say(TimestampTz now, const Reading *reading)
{
	char	   *reads = pstrdup(timestamptz_to_str(now));
	char	   *database = get_database_name(MyDatabaseId);

	if (reading->believed)
		ereport(LOG,
				(errmsg("the clock can be believed again in database \"%s\": it reads %s",
						database, reads)));
	else
		ereport(LOG,
				(errmsg("the clock can not be believed in database \"%s\": it reads %s",
						database, reads),
				 errdetail("%s.  Nothing is forgotten or purged, and actions in doubt wait.", why_not(reading)),
				 errhint("Set the clock; if it is right, call idem.confirm_time().")));
}

static Reading
look(TimestampTz now)
{
	IdemDatabaseClock clock;
	Oid			ledger;
	Reading		reading;

	idem_database_get_clock(&clock);
	ledger = clock.ledger;
	reading = compare(now, &clock);
	if (clock.ledger != ledger)
		idem_database_set_clock(clock.ledger, clock.offset);
	last_offset = clock.ledger == idem_relation_oid("idem_actions") ? clock.offset : 0;
	if (clock.held == reading.believed && idem_database_hold_clock(!reading.believed))
		say(now, &reading);
	return reading;
}

/* whether what cannot be taken back may be done by the clock as it is */
bool
idem_clock_believed(void)
{
	return look(GetCurrentTimestamp()).believed;
}

/*
 * The time that calls decide by and write down: the clock's while it is believed,
 * else the baseline's, so that what is stored meanwhile still holds when the clock
 * has been put right.  Without a baseline it is the clock's in any case.  Most often
 * one look at the time since boot tells that the clock is right.
 */
TimestampTz
idem_clock_now(void)
{
	TimestampTz now = GetCurrentTimestamp();
	Reading		reading;

	if (!preloaded || RecoveryInProgress())
		return now;
	if (last_offset != 0 && is_near(now, read_clock(SINCE_BOOT) + last_offset))
		return now;
	reading = look(now);
	return reading.believed || reading.reach != IDEM_CLOCK_TOLERANCE ? now : reading.estimate;
}

/* whether a lease is over, for whoever would take the action from its holder */
bool
idem_clock_lease_over(TimestampTz claimed_at, TimestampTz lease_until, TimestampTz now)
{
	Reading		reading;

	if (lease_until > now)
		return false;
	reading = look(GetCurrentTimestamp());
	if (reading.believed || reading.estimate == 0 || now <= reading.estimate ||
		claimed_at > reading.estimate + reading.reach)
		return true;
	return lease_until <= reading.estimate;
}

/*
 * The time to keep a finished action from: the clock's, but a clock that was set
 * back must not let its key go before its time.
 */
TimestampTz
idem_clock_not_before_known(TimestampTz now)
{
	return Max(now, idem_settings()->known_time);
}

/*-------------------------------------------------------------------------
 * The known time
 *-------------------------------------------------------------------------
 */

#define SQL_RECORD \
	"UPDATE idem.idem_state SET since = $1, role = $2, actor = $3 WHERE kind OPERATOR(pg_catalog.=) 'clock'"
#define SQL_RECORD_FIRST \
	"INSERT INTO idem.idem_state (kind, name, since, role, actor)" \
	" VALUES ('clock', pg_catalog.gen_random_uuid()::pg_catalog.text, $1, $2, $3)"

static void
write_known_time(TimestampTz now, text *actor)
{
	Oid			types[3] = {TIMESTAMPTZOID, TEXTOID, TEXTOID};
	Datum		values[3];
	char		nulls[3] = {' ', ' ', actor == NULL ? 'n' : ' '};
	IdemOwner	caller;

	values[0] = TimestampTzGetDatum(now);
	values[1] = CStringGetTextDatum(GetUserNameFromId(GetUserId(), false));
	values[2] = PointerGetDatum(actor);
	SPI_connect();
	idem_owner_enter(&caller);
	idem_run(SQL_RECORD, 3, types, values, nulls, SPI_OK_UPDATE);
	if (SPI_processed == 0)
		idem_run(SQL_RECORD_FIRST, 3, types, values, nulls, SPI_OK_INSERT);
	idem_owner_leave(&caller);
	SPI_finish();
}

/* a reading that is believed becomes the known time, once an hour */
void
idem_clock_record(TimestampTz now)
{
	TimestampTz known = idem_settings()->known_time;

	if (known == 0 || now - known >= RECORD_EVERY)
		write_known_time(now, NULL);
}

/* the reading that the open transaction has confirmed, or 0 */
static TimestampTz confirmed = 0;
static int64 confirmed_offset;
static Oid	confirmed_ledger;

/* the baseline follows the ledger's row: not before it is committed */
static void
confirm_at_commit(XactEvent event, void *arg)
{
	if (confirmed == 0 || (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
						   event != XACT_EVENT_PREPARE))
		return;
	if (event == XACT_EVENT_COMMIT)
		idem_database_set_clock(confirmed_ledger, confirmed_offset);
	confirmed = 0;
}

Datum
idem_confirm_time(PG_FUNCTION_ARGS)
{
	static bool registered = false;
	text	   *actor = idem_arg_label(fcinfo, 0);
	TimestampTz now = GetCurrentTimestamp();
	Oid			ledger = idem_relation_oid("idem_actions");
	IdemEvent	event = {.event = "time_confirmed",.actor = actor};
	StringInfoData detail;

	PreventCommandIfReadOnly("confirm_time()");
	if (!idem_commits_by_itself())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("confirm_time cannot run in an open transaction"),
				 errdetail("The baseline in memory follows the row at its commit."),
				 errhint("Call it by itself.")));
	idem_database_note_use(ledger);
	idem_detail_start(&detail);
	idem_detail_add_time(&detail, "time", now);
	if (idem_settings()->known_time != 0)
		idem_detail_add_time(&detail, "known_before", idem_settings()->known_time);
	event.detail = idem_detail_end(&detail);
	write_known_time(now, actor);
	idem_ledger_append(&event);
	ForceSyncCommit();
	if (preloaded)
	{
		if (!registered)
			RegisterXactCallback(confirm_at_commit, NULL);
		registered = true;
		confirmed = now;
		confirmed_offset = now - read_clock(SINCE_BOOT);
		confirmed_ledger = ledger;
	}
	PG_RETURN_TIMESTAMPTZ(now);
}

/* for the view worker_status: NULL while the clock is believed */
Datum
idem_clock_problem(PG_FUNCTION_ARGS)
{
	IdemDatabaseClock clock;
	TimestampTz now = GetCurrentTimestamp();
	Reading		reading;
	char	   *reads;

	if (RecoveryInProgress())
		PG_RETURN_NULL();
	idem_database_get_clock(&clock);
	reading = compare(now, &clock);
	if (reading.believed)
		PG_RETURN_NULL();
	reads = pstrdup(timestamptz_to_str(now));
	PG_RETURN_TEXT_P(cstring_to_text(psprintf("the clock can not be believed: it reads %s, %s: nothing is forgotten or purged and actions in doubt wait, until it is set right or idem.confirm_time()",
											  reads, why_not(&reading))));
}
