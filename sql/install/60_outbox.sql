/*
 * Deciding apart from delivering: src/outbox.c.
 */

/*
 * idem.enqueue_action(key, intent, ...) returns idem.claim
 *
 * Records a decision in the caller's transaction, for a taker to deliver.
 * What the ledger knows already stays as it is.  A key that somebody else
 * holds open is waited for.
 *
 *	key, intent, params, draft, scope	as for claim_action
 *	not_before		not handed out earlier than this (at once)
 *	priority		higher is handed out first (0)
 *	source, event_id	as for claim_action
 *
 * Result: outcome pending or awaiting_approval where new, otherwise that of
 * the state it is in.
 * Errors: IA001, other params; IA005, no rule; IA006, a bad key, intent or
 * scope; IA008, not one of its workers; IA010, contents too large; IA014, a
 * secret is missing; 22023, a bad not_before, or the intent keeps fields
 * confidential; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.enqueue_action(
	key text,
	intent text,
	params jsonb DEFAULT NULL,
	draft jsonb DEFAULT NULL,
	scope text DEFAULT '',
	not_before timestamptz DEFAULT NULL,
	priority int DEFAULT 0,
	source text DEFAULT NULL,
	event_id text DEFAULT NULL
)
RETURNS idem.claim
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_enqueue_action';

COMMENT ON FUNCTION idem.enqueue_action(text, text, jsonb, jsonb, text, timestamptz, int, text, text) IS
'records a decision in the caller''s transaction, for a taker to deliver';

/*
 * idem.enqueue_actions(intent, keys, ...) returns setof idem.claim
 *
 * The same for many keys of one intent, one row per key in input order; other
 * params are outcome mismatch.
 *
 *	intent			the step
 *	keys			the keys, none null
 *	params, drafts, event_ids	arrays as long as keys, or null
 *	the rest		as for enqueue_action, for all keys
 *
 * Errors: as enqueue_action but IA001; 2202E, arrays that differ in length.
 * Volatile.
 */
CREATE FUNCTION idem.enqueue_actions(
	intent text,
	keys text[],
	params jsonb[] DEFAULT NULL,
	drafts jsonb[] DEFAULT NULL,
	scope text DEFAULT '',
	not_before timestamptz DEFAULT NULL,
	priority int DEFAULT 0,
	source text DEFAULT NULL,
	event_ids text[] DEFAULT NULL
)
RETURNS SETOF idem.claim
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'idem_enqueue_actions';

COMMENT ON FUNCTION idem.enqueue_actions(text, text[], jsonb[], jsonb[], text, timestamptz, int, text, text[]) IS
'records many decisions of one intent, one row per key in input order';

/*
 * idem.take_actions(intents, max, ...) returns setof idem.claim
 *
 * Hands out what is due, granted: higher priority first, then what is due
 * longer.  Never one action to two takers, never more than max; what another
 * transaction holds is passed over.  Leases that earlier takers let lapse are
 * included, by the doubt list.
 *
 *	intents			the intents to take from
 *	max				how many at most, 1 to 10000 (1)
 *	lease			how long each is protected (its rule's)
 *	worker			who takes, as the application names it; cut at 1 kB
 *	scope			of this tenant only (any)
 *	wait			how long to wait for the first, at most 30 seconds (0)
 *	call_id			fresh and random for each call; the same again, its reply
 *					lost, answers the rows that the lost call still holds
 *	in_transaction	take inside an open transaction (false)
 *
 * Errors: 25001, an open transaction; 25006; 22023, a bad max, lease or wait;
 * IA005, none of the intents has a rule; IA008, none is the caller's to act on.
 * Volatile.
 */
CREATE FUNCTION idem.take_actions(
	intents text[],
	max int DEFAULT 1,
	lease interval DEFAULT NULL,
	worker text DEFAULT NULL,
	scope text DEFAULT NULL,
	wait interval DEFAULT '0',
	call_id uuid DEFAULT NULL,
	in_transaction boolean DEFAULT false
)
RETURNS SETOF idem.claim
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10
AS 'MODULE_PATHNAME', 'idem_take_actions';

COMMENT ON FUNCTION idem.take_actions(text[], int, interval, text, text, interval, uuid, boolean) IS
'hands out due actions to act on';

/*
 * idem.take_to_verify(intents, max, ...) returns setof idem.claim
 *
 * Hands out the doubtful actions that are to be searched for outside before
 * anybody acts: search by provider_key, then call verify_action.
 *
 *	intents			the intents to take from
 *	max				how many at most, 1 to 10000 (1)
 *	lease			how long each is protected (its rule's)
 *	worker			who takes, as the application names it; cut at 1 kB
 *	scope			of this tenant only (any)
 *	wait			how long to wait for the first, at most 30 seconds (0)
 *	call_id			fresh and random for each call; the same again, its reply
 *					lost, answers the rows that the lost call still holds
 *	in_transaction	take inside an open transaction (false)
 *
 * Errors: 25001, an open transaction; 25006; 22023, a bad max, lease or wait;
 * IA005, none of the intents has a rule; IA008, none is the caller's to act on.
 * Volatile.
 */
CREATE FUNCTION idem.take_to_verify(
	intents text[],
	max int DEFAULT 1,
	lease interval DEFAULT NULL,
	worker text DEFAULT NULL,
	scope text DEFAULT NULL,
	wait interval DEFAULT '0',
	call_id uuid DEFAULT NULL,
	in_transaction boolean DEFAULT false
)
RETURNS SETOF idem.claim
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10
AS 'MODULE_PATHNAME', 'idem_take_to_verify';

COMMENT ON FUNCTION idem.take_to_verify(text[], int, interval, text, text, interval, uuid, boolean) IS
'hands out doubtful actions to search for';
