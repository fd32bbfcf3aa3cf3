/*
 * May I act?  src/claim.c.
 */

/*
 * idem.claim_action(key, intent, ...) returns idem.claim
 *
 * Asks for the right to try an action once.  Exactly one caller is granted;
 * everyone else is told how the action stands.  granted is the one thing to
 * test before acting; the message is to be kept exactly where retry_after is
 * not null.
 *
 *	key				what makes the action unique within its intent, 1 byte to
 *					16 kB; never built from model output
 *	intent			the step; a rule belongs to it
 *	params			the binding facts; fingerprinted, other params under the same
 *					key are an error
 *	draft			the free content; the first one is kept
 *	scope			tenant, at most 256 bytes ('')
 *	lease			how long the claim is protected (the rule's)
 *	wait			how long to wait for another holder, at most 30 seconds (0)
 *	worker			who claims, as the application names it; cut at 1 kB
 *	source			where the event came from; cut at 1 kB
 *	event_id		id of the event; cut at 1 kB
 *	call_id			fresh and random for each call; the same again only if that
 *					call's reply was lost
 *	in_transaction	claim inside an open transaction (false)
 *
 * Result: see type idem.claim.  outcome is claimed, completed, in_progress,
 * contended, not_due, paused, awaiting_approval, needs_attention, failed or
 * cancelled.
 * Errors: 25001, an open transaction; 25006, read only or a standby; IA001,
 * other params; IA005, no rule; IA006, a bad key, intent, scope or call_id;
 * IA008, not one of its workers; IA010, contents too large; IA014, a secret is
 * missing; 22023, a bad lease or wait; 40001, the row is newer than the
 * transaction's snapshot and would have to change.
 * Volatile.
 */
CREATE FUNCTION idem.claim_action(
	key text,
	intent text,
	params jsonb DEFAULT NULL,
	draft jsonb DEFAULT NULL,
	scope text DEFAULT '',
	lease interval DEFAULT NULL,
	wait interval DEFAULT '0',
	worker text DEFAULT NULL,
	source text DEFAULT NULL,
	event_id text DEFAULT NULL,
	call_id uuid DEFAULT NULL,
	in_transaction boolean DEFAULT false
)
RETURNS idem.claim
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_claim_action';

COMMENT ON FUNCTION idem.claim_action(text, text, jsonb, jsonb, text, interval, interval, text, text, text, uuid, boolean) IS
'asks for the right to try an action once; act only where granted, keep the message only where retry_after is not null';

/*
 * idem.claim_actions(intent, keys, ...) returns setof idem.claim
 *
 * The same for many keys of one intent; one row per key, in input order.  What
 * is wrong with an argument is an error and claims nothing; facts of single
 * actions are outcomes (mismatch among them).  Never waits.  Of twins in one
 * batch the first may be granted.
 *
 *	intent			the step
 *	keys			the keys, none null
 *	params, drafts, event_ids	arrays as long as keys, or null
 *	the rest		as for claim_action, for all keys
 *
 * Errors: as claim_action but IA001; 2202E, arrays that differ in length.
 * Volatile.
 */
CREATE FUNCTION idem.claim_actions(
	intent text,
	keys text[],
	params jsonb[] DEFAULT NULL,
	drafts jsonb[] DEFAULT NULL,
	scope text DEFAULT '',
	lease interval DEFAULT NULL,
	worker text DEFAULT NULL,
	source text DEFAULT NULL,
	event_ids text[] DEFAULT NULL,
	call_id uuid DEFAULT NULL,
	in_transaction boolean DEFAULT false
)
RETURNS SETOF idem.claim
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'idem_claim_actions';

COMMENT ON FUNCTION idem.claim_actions(text, text[], jsonb[], jsonb[], text, interval, text, text, text[], uuid, boolean) IS
'claims many actions of one intent, one row per key in input order';

/*
 * idem.once(key, intent, params, scope) returns boolean
 *
 * For effects in this same database: true the first time, false where a
 * committed transaction did it.  Claim, effect and completion commit or vanish
 * together; a rival waits for the first transaction's end, as with a unique
 * index.
 *
 *	key, intent, params, scope	as for claim_action
 *
 * Errors: IA003, the action is known but not as done, or new while its intent is
 * paused or needs an approval; IA001, IA005, IA006,
 * IA008, IA010, IA014, 25006 as claim_action; 40001, done by a transaction that
 * the caller's snapshot does not see.
 * Volatile.
 */
CREATE FUNCTION idem.once(
	key text,
	intent text,
	params jsonb DEFAULT NULL,
	scope text DEFAULT ''
)
RETURNS boolean
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_once';

COMMENT ON FUNCTION idem.once(text, text, jsonb, text) IS
'true the first time, for an effect in this database that commits with it';

/*
 * idem.find_action(key, intent, scope) returns idem.claim
 *
 * How an action stands.  Reads only, grants nothing, works on a standby and in
 * a read-only transaction; outcome unknown where the ledger has never seen it,
 * or the caller is in neither role of its rule: then without an action_id where
 * keys are confidential.
 *
 *	key, intent, scope	as for claim_action
 *
 * Errors: IA005, no rule; IA006, a bad key, intent or scope; IA014, a secret is
 * missing.
 * Volatile, since it answers from the latest committed row.
 */
CREATE FUNCTION idem.find_action(
	key text,
	intent text,
	scope text DEFAULT ''
)
RETURNS idem.claim
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_find_action';

COMMENT ON FUNCTION idem.find_action(text, text, text) IS
'how an action stands; reads only';
