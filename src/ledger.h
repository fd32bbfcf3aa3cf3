/*-------------------------------------------------------------------------
 *
 * ledger.h
 *	  One action in the tables: find, insert, update, append to its history.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/ledger.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_LEDGER_H
#define IDEM_LEDGER_H

#include "idem_action.h"
#include "nodes/pg_list.h"

/* what a probe found */
typedef enum IdemFound
{
	IDEM_ABSENT,				/* nothing */
	IDEM_PRESENT,				/* a version that nobody is changing */
	IDEM_HELD,					/* a committed version that "holder" changes */
	IDEM_HELD_NEW				/* only a row that "holder" is inserting */
} IdemFound;

/* what became of a write */
typedef enum IdemWrite
{
	IDEM_WRITTEN,
	IDEM_CHANGED,				/* the row is not what the caller read: probe
								 * again */
	IDEM_BUSY					/* an open transaction holds the row or the
								 * key */
} IdemWrite;

/* a report that the history holds; facts as far as they are compared */
typedef struct IdemPast
{
	int64		id;
	TimestampTz at;
	TimestampTz claimed_at;		/* 0: it ended no attempt */
	char	   *event;
	char	   *role;
	char	   *actor;
	char	   *worker;
	char	   *source;
	char	   *event_id;
	pg_uuid_t	claim_id;
	int32		generation;
	int32		attempt;		/* the one it speaks of */
	int32		during;			/* the one the action had reached */
	Jsonb	   *detail;
} IdemPast;

/* a take could not send the action to its caller: it waits for another taker */
#define IDEM_PASSED_OVER "passed_over"

typedef struct IdemLedger IdemLedger;

extern IdemLedger *idem_ledger_open(bool for_writing);
extern void idem_ledger_close(IdemLedger *ledger);

extern IdemFound idem_ledger_probe(IdemLedger *ledger, const pg_uuid_t *id,
								   IdemAction *action, TransactionId *holder);
extern void idem_ledger_peek(IdemLedger *ledger, IdemFound found, IdemAction *action);
extern void idem_ledger_read(IdemLedger *ledger, IdemAction *action);
extern bool idem_ledger_surely_absent(IdemLedger *ledger, const pg_uuid_t *id);
extern bool idem_ledger_is_own(IdemLedger *ledger);
extern void idem_ledger_rely(IdemLedger *ledger);
extern void idem_ledger_rest(IdemLedger *ledger);
extern void idem_ledger_wait(TransactionId holder);
extern bool idem_ledger_wait_until(TransactionId holder, int64 until);

extern void idem_ledger_check_visible(IdemLedger *ledger);
extern IdemWrite idem_ledger_insert(IdemLedger *ledger, const IdemAction *action,
									bool wait);
extern IdemWrite idem_ledger_update(IdemLedger *ledger, const IdemAction *before,
									const IdemAction *after, bool wait);
extern IdemWrite idem_ledger_lock(IdemLedger *ledger, bool wait);
extern IdemWrite idem_ledger_delete(IdemLedger *ledger);
extern void idem_ledger_append(const IdemEvent *event);
extern List *idem_ledger_past(const pg_uuid_t *id);
extern int	idem_ledger_forget_past(const pg_uuid_t *id, int max);
extern int	idem_ledger_redact_past(const pg_uuid_t *id, bool texts, int max);
extern void idem_ledger_thin_past(const IdemAction *action);

extern text *idem_state_name(IdemState state);

#endif							/* IDEM_LEDGER_H */
