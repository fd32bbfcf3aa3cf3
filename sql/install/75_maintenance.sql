/*
 * What the ledger needs done from time to time: src/maintenance.c.
 */

/*
 * CALL idem.run_maintenance(batch int, max_batches int)
 *
 * One pass over the ledger: lease ends go by the doubt list, contents past
 * keep_content are purged, keys past keep_key forgotten.  Commits batch by batch
 * and can be cancelled at any time; what is done stays done.
 *
 *	batch		how many actions one transaction changes, 1 to 1000000
 *	max_batches	how many batches at most; null for a whole pass
 *
 * Errors: 25001, an open transaction; 22023, a bad argument; 25006.
 */
CREATE PROCEDURE idem.run_maintenance(batch int DEFAULT 1000, max_batches int DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'idem_run_maintenance';

COMMENT ON PROCEDURE idem.run_maintenance(int, int) IS
'one pass over the ledger: lease ends, contents purged, keys forgotten';

/*
 * idem.apply_retention(intent text) returns bigint
 *
 * Retention is computed when an action ends; this rewrites it for the finished
 * actions of an intent by the rule as it is now.
 *
 *	intent	the intent
 *
 * Result: how many changed.
 * Errors: IA005, no rule; 22023, no intent; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.apply_retention(intent text)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_apply_retention';

COMMENT ON FUNCTION idem.apply_retention(text) IS
'rewrites the retention of an intent''s finished actions by its rule as it is now';

/*
 * idem.after_restore(since timestamptz, note text) returns bigint
 *
 * After the database was restored to an older moment: whatever is pending or in
 * progress may have been handed out after it, so all of it goes to
 * needs_attention (ledger_restored).
 *
 *	since	the moment that was restored to
 *	note	what happened, for whoever looks at the actions
 *
 * Result: how many actions.
 * Errors: 22023, a null; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.after_restore(since timestamptz, note text)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_after_restore';

COMMENT ON FUNCTION idem.after_restore(timestamptz, text) IS
'after a restore to an older moment: everything open goes to a person';
