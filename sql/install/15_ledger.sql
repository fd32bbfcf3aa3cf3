/*
 * idem.violated_invariant(action idem.idem_actions) returns text
 *
 * The first invariant of a row that src/ledger.c finds violated, by the name
 * of the CHECK constraint that says the same; null where all hold.  Rows are
 * written without the executor, so a test compares both lists with this.
 * Errors: none.  Volatility: immutable.
 */
CREATE FUNCTION idem.violated_invariant(action idem.idem_actions)
RETURNS text
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_violated_invariant';

COMMENT ON FUNCTION idem.violated_invariant(idem.idem_actions) IS
'the first invariant that a row violates, as the library sees it; for tests';

/*
 * By this comment the library knows the constraints that it checks itself; one that
 * somebody puts in the place of another does not have it, and is refused.
 */
DO $constraints$
DECLARE
	name	text;
BEGIN
	FOR name IN
		SELECT conname FROM pg_constraint WHERE conrelid = 'idem.idem_actions'::regclass AND contype = 'c'
	LOOP
		EXECUTE format('COMMENT ON CONSTRAINT %I ON idem.idem_actions IS %L', name, 'checked by the library too');
	END LOOP;
END
$constraints$;
