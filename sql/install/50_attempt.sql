/*
 * What the holder of a claim may say: src/attempt.c.
 */

/*
 * idem.begin_effect(action_id, claim_id, draft, lease) returns double precision
 *
 * The last look before acting.  Where the rule marks effects, a claim lost
 * before it did nothing, after it nobody knows.
 *
 *	action_id, claim_id	as the claim was answered
 *	draft				the draft about to be used, stored; null leaves it
 *	lease				renews the lease, at most to the end of the rule's
 *						provider_window; null leaves it as it is
 *
 * Result: seconds of lease left.
 * Errors: IA002, the claim is lost, or may only search, or its provider_window
 * is over: do not act; IA004, a
 * cancel was requested or the intent is paused: release it; IA008, the draft is
 * not the approved one; IA010, the draft is too large; IA016, no such action;
 * 25001, an open transaction; 25006; 40001; 22023.
 * Volatile.
 */
CREATE FUNCTION idem.begin_effect(
	action_id uuid,
	claim_id uuid,
	draft jsonb DEFAULT NULL,
	lease interval DEFAULT NULL
)
RETURNS double precision
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_begin_effect';

COMMENT ON FUNCTION idem.begin_effect(uuid, uuid, jsonb, interval) IS
'the last look before acting; returns the seconds of lease left, raises where the claim is lost';

/*
 * idem.extend_claim(action_id, claim_id, lease) returns double precision
 *
 * Heartbeat: the lease runs anew from this call, never shorter than before, and
 * under on_uncertain retry no longer than the first claim plus provider_window.
 *
 *	action_id, claim_id	as the claim was answered
 *	lease				null takes the rule's
 *
 * Result: seconds of lease left.
 * Errors: IA002, the claim is lost, or its provider_window is over; IA004, a
 * cancel was requested or the intent is paused; IA016, no such action; 25006; 40001; 22023.
 * Volatile.
 */
CREATE FUNCTION idem.extend_claim(
	action_id uuid,
	claim_id uuid,
	lease interval DEFAULT NULL
)
RETURNS double precision
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_extend_claim';

COMMENT ON FUNCTION idem.extend_claim(uuid, uuid, interval) IS
'renews a lease; returns the seconds left, raises where the claim is lost';

/*
 * idem.extend_claims(action_ids, claim_ids, lease)
 * returns setof (action_id, seconds_left, problem)
 *
 * The same for many claims, one row each in input order: seconds_left, or a
 * problem where the claim is lost, a cancel was requested or there is no such
 * action.
 *
 * Errors: 22023, a null; 2202E, arrays that differ in length.
 * Volatile.
 */
CREATE FUNCTION idem.extend_claims(
	action_ids uuid[],
	claim_ids uuid[],
	lease interval DEFAULT NULL,
	OUT action_id uuid,
	OUT seconds_left double precision,
	OUT problem text
)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'idem_extend_claims';

COMMENT ON FUNCTION idem.extend_claims(uuid[], uuid[], interval) IS
'renews many leases, one row per claim in input order';

/*
 * idem.complete_action(action_id, claim_id, external_ref, result)
 * returns idem.report
 *
 * The action took effect.  Never raises for the state it finds: a success that
 * comes too late is kept, and the note says what follows.
 *
 *	action_id, claim_id	as the claim was answered
 *	external_ref		the outside's id of what was done; over 2 kB it is not kept
 *	result				handed to every repeat; too large, it is not kept
 *
 * Result: accepted where the success counts as the action's outcome.
 * Errors: IA016, no such action; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.complete_action(
	action_id uuid,
	claim_id uuid,
	external_ref text DEFAULT NULL,
	result jsonb DEFAULT NULL
)
RETURNS idem.report
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_complete_action';

COMMENT ON FUNCTION idem.complete_action(uuid, uuid, text, jsonb) IS
'reports that the action took effect';

/*
 * idem.complete_actions(action_ids, claim_ids, external_refs, results)
 * returns setof idem.report
 *
 * The same for many, one row each in input order; an unknown action is a row
 * with accepted false and state null.
 *
 * Errors: 22023, a null id; 2202E, arrays that differ in length; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.complete_actions(
	action_ids uuid[],
	claim_ids uuid[],
	external_refs text[] DEFAULT NULL,
	results jsonb[] DEFAULT NULL
)
RETURNS SETOF idem.report
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'idem_complete_actions';

COMMENT ON FUNCTION idem.complete_actions(uuid[], uuid[], text[], jsonb[]) IS
'reports that many actions took effect, one row per action in input order';

/*
 * idem.fail_action(action_id, claim_id, error, effect, retry_after)
 * returns idem.report
 *
 * The attempt failed.
 *
 *	action_id, claim_id	as the claim was answered
 *	error				summary for people; cleaned, cut at 8 kB
 *	effect				unknown: timeout, reset, 5xx (the default);
 *						none: refused before anything was sent;
 *						refused: the outside said no for good, 4xx
 *	retry_after			when to try again; null takes the rule's growing delay
 *
 * Result: accepted where the failure counts.
 * Errors: IA016, no such action; 22023, an unknown effect; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.fail_action(
	action_id uuid,
	claim_id uuid,
	error text,
	effect text DEFAULT 'unknown',
	retry_after interval DEFAULT NULL
)
RETURNS idem.report
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_fail_action';

COMMENT ON FUNCTION idem.fail_action(uuid, uuid, text, text, interval) IS
'reports that an attempt failed; unless told otherwise nobody knows whether it took effect';

/*
 * idem.release_action(action_id, claim_id, reason) returns idem.report
 *
 * The attempt did nothing and counts nothing; the action is due at once.
 *
 *	action_id, claim_id	as the claim was answered
 *	reason				for the history; cut at 1 kB
 *
 * Result: accepted; not, after begin_effect where the rule marks effects.
 * Errors: IA016, no such action; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.release_action(
	action_id uuid,
	claim_id uuid,
	reason text DEFAULT NULL
)
RETURNS idem.report
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_release_action';

COMMENT ON FUNCTION idem.release_action(uuid, uuid, text) IS
'gives a claim back that did nothing';

/*
 * idem.verify_action(action_id, claim_id, found, external_ref, result, note)
 * returns idem.claim
 *
 * What a search outside has found, by the claim that was handed out to search
 * (outcome verify).
 *
 *	action_id, claim_id	as the claim was answered
 *	found				true: it took effect, the action is completed;
 *						false: it did not, and the same claim is granted;
 *						null: cannot tell, a person decides
 *	external_ref		the outside's id of what was found
 *	result				handed to every repeat
 *	note				how it was searched, for the history; cut at 1 kB
 *
 * Result: as of claim_action; granted after "not found".
 * Errors: IA016, no such action; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.verify_action(
	action_id uuid,
	claim_id uuid,
	found boolean,
	external_ref text DEFAULT NULL,
	result jsonb DEFAULT NULL,
	note text DEFAULT NULL
)
RETURNS idem.claim
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_verify_action';

COMMENT ON FUNCTION idem.verify_action(uuid, uuid, boolean, text, jsonb, text) IS
'what a search outside has found; not found turns the searching claim into a grant';
