/*-------------------------------------------------------------------------
 *
 * horizon.c
 *	  Up to when the history is whole, for those who copy it elsewhere.
 *
 * A line has the time of its call, but is seen when its transaction commits.
 * Who remembers the last line that was read, and goes on behind it, misses what
 * a slow transaction commits later with an earlier time.
 *
 * A call takes its lock on the table before it reads the clock, and what has
 * written keeps the lock to the end of the transaction.  So if the clock is read
 * here first and the locks are looked at afterwards, each line from before that
 * moment is either committed or of a transaction that holds a lock: whole is the
 * history up to the earliest start of those.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/horizon.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "access.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "pgstat.h"
#include "utils/timestamp.h"

/*
 * A holder that is idle or gone has ended its transaction since the locks were
 * looked at.  Another one without a start may be a session with track_activities
 * off, and one without a pid is a prepared transaction: of these nothing is known.
 */
#define SQL_HORIZON \
	"SELECT CASE WHEN pg_catalog.count(*) FILTER (WHERE l.pid IS NULL" \
	"   OR a.pid IS NOT NULL AND a.xact_start IS NULL AND a.state IS DISTINCT FROM 'idle') OPERATOR(pg_catalog.=) 0" \
	"  THEN LEAST($1, pg_catalog.min(a.xact_start)) END" \
	" FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid" \
	" WHERE l.locktype OPERATOR(pg_catalog.=) 'relation' AND l.granted" \
	" AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())" \
	" AND l.relation OPERATOR(pg_catalog.=) ANY (ARRAY['idem.idem_actions'::pg_catalog.regclass, 'idem.idem_events'::pg_catalog.regclass])" \
	" AND l.mode OPERATOR(pg_catalog.=) ANY (ARRAY['RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'])"

PG_FUNCTION_INFO_V1(idem_history_horizon);

Datum
idem_history_horizon(PG_FUNCTION_ARGS)
{
	Oid			type = TIMESTAMPTZOID;
	Datum		now = TimestampTzGetDatum(GetCurrentTimestamp());
	IdemOwner	caller;
	Datum		horizon;
	bool		isnull;

	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a standby does not know up to when the history is whole"),
				 errdetail("It does not see which transactions are open on the primary."),
				 errhint("Ask the primary.")));

	/* what this transaction has read of other sessions may be old */
	pgstat_clear_snapshot();
	SPI_connect();
	idem_owner_enter(&caller);
	idem_run(SQL_HORIZON, 1, &type, &now, NULL, SPI_OK_SELECT);
	horizon = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	idem_owner_leave(&caller);
	SPI_finish();
	if (isnull)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(horizon);
}
