/*-------------------------------------------------------------------------
 *
 * idem_action.h
 *	  What the modules share: an action as a C struct, and the names of states
 *	  and outcomes.
 *
 * Direction of knowledge: claim, attempt -> state -> rule; claim, attempt ->
 * ledger -> tables.  key, canon, digest, guc and arg know nobody.
 *
 * Conventions of the structs below: a NULL pointer is an SQL NULL, a time of
 * IDEM_NEVER is an SQL NULL, an all-zero uuid is an SQL NULL (neither a
 * version 4 nor a version 8 uuid can be all zero).
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/idem_action.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_ACTION_H
#define IDEM_ACTION_H

#include "compat.h"
#include "fmgr.h"
#include "storage/itemptr.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#define IDEM_SCHEMA "idem"
#define IDEM_NEVER DT_NOBEGIN

/* bounds of what callers hand in, in bytes of the server encoding */
#define IDEM_MAX_EXTERNAL_REF 2048
#define IDEM_MAX_ERROR 8192
#define IDEM_MAX_LABEL 1024		/* source, event_id, worker, reason, note */

typedef enum IdemState
{
	IDEM_PENDING,
	IDEM_IN_PROGRESS,
	IDEM_COMPLETED,
	IDEM_FAILED,
	IDEM_NEEDS_ATTENTION,
	IDEM_CANCELLED
} IdemState;

#define IDEM_STATE_IS_FINAL(s) \
	((s) == IDEM_COMPLETED || (s) == IDEM_FAILED || (s) == IDEM_CANCELLED)

/* what a claim is answered with */
typedef enum IdemOutcome
{
	IDEM_UNKNOWN,				/* first: nothing is granted by omission */
	IDEM_CLAIMED,
	IDEM_VERIFY,
	IDEM_OUT_COMPLETED,
	IDEM_OUT_IN_PROGRESS,
	IDEM_CONTENDED,
	IDEM_NOT_DUE,
	IDEM_PAUSED,
	IDEM_OUT_PENDING,
	IDEM_AWAITING_APPROVAL,
	IDEM_OUT_NEEDS_ATTENTION,
	IDEM_OUT_FAILED,
	IDEM_OUT_CANCELLED,
	IDEM_MISMATCH
} IdemOutcome;

typedef struct IdemAction
{
	pg_uuid_t	action_id;
	TimestampTz created_at;
	int64		revision;
	int32		generation;
	int32		attempt;
	int32		lost;
	int32		failures;
	int32		priority;

	/* what is known of the effect */
	bool		uncertain;
	bool		uncertain_before;	/* as it was at the last hand-out */
	bool		marked;			/* handed out under a rule that marks effects */
	bool		begun;			/* the holder said that it acts now */
	bool		verifying;		/* handed out to be searched for */
	bool		approved;
	bool		cancel_requested;
	bool		purged;			/* the contents are gone */
	bool		ruled;			/* a rule made it, or changed it */
	IdemState	state;

	/* the last claim of the generation */
	pg_uuid_t	claim_id;
	pg_uuid_t	call_id;
	TimestampTz first_claimed_at;
	TimestampTz claimed_at;
	TimestampTz lease_until;
	TimestampTz due_at;
	TimestampTz doubt_until;	/* last moment a doubtful attempt could act */
	TimestampTz finished_at;
	TimestampTz purge_after;
	TimestampTz forget_after;

	text	   *scope;
	text	   *intent;
	text	   *key;
	text	   *reason;
	text	   *ended_by;		/* how the last claim ended, see state.c */
	text	   *worker;
	text	   *source;
	text	   *event_id;
	text	   *secret_id;
	Jsonb	   *params;
	bytea	   *params_digest;
	Jsonb	   *draft;
	text	   *external_ref;
	Jsonb	   *result;
	text	   *error;
} IdemAction;

/* one line of the history; the role is filled in by the ledger */
typedef struct IdemEvent
{
	const char *event;
	TimestampTz at;				/* 0: now */
	TimestampTz claimed_at;		/* of the attempt that it ended, or 0 */
	const IdemAction *action;	/* NULL: about a rule or an access grant */
	const char *intent;			/* where action is NULL */
	pg_uuid_t	claim_id;		/* of the attempt spoken of, or zero */
	int32		attempt;
	int32		generation;		/* 0: the action's */
	text	   *actor;
	text	   *worker;
	text	   *source;
	text	   *event_id;
	Jsonb	   *detail;
	Jsonb	   *content;		/* purged with the action's contents, in no
								 * view */
} IdemEvent;

static inline bool
idem_uuid_is_null(const pg_uuid_t *id)
{
	static const pg_uuid_t zero = {{0}};

	return memcmp(id, &zero, sizeof(zero)) == 0;
}

static inline bool
idem_uuid_equal(const pg_uuid_t *a, const pg_uuid_t *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

static inline bool
idem_text_is(text *value, const char *name)
{
	return value != NULL && VARSIZE_ANY_EXHDR(value) == strlen(name) &&
		memcmp(VARDATA_ANY(value), name, strlen(name)) == 0;
}

/* NULL equals NULL */
static inline bool
idem_text_equal(text *a, text *b)
{
	if (a == NULL || b == NULL)
		return a == b;
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/* guc.c */
extern bool idem_require_rule;
extern bool idem_start_paused;
extern int	idem_max_content;
extern bool idem_async_complete;
extern void idem_guc_init(void);

#endif							/* IDEM_ACTION_H */
