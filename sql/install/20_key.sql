/*
 * Identities and the helpers that make good keys: src/key.c.
 */

/*
 * idem.action_key(VARIADIC parts text[]) returns text
 *
 * One readable key out of several identifiers, to be passed as "key":
 * action_key('request-17', 'stage-2') is request-17/stage-2.  No two lists of
 * parts share a key: a slash or tilde within a part has a tilde before it.
 *
 *	parts	what makes the outcome unique, in a fixed order; at least one part,
 *			none of them null, empty or blank
 *
 * Result: 1 byte to 16 kB, never null.
 * Errors: IA006, a part or the list is null or empty, the array has more than
 * one dimension, the key is too long; 22023, a part is blank.
 */
CREATE FUNCTION idem.action_key(VARIADIC parts text[])
RETURNS text
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_action_key';

COMMENT ON FUNCTION idem.action_key(text[]) IS
'one readable key out of several identifiers; no two lists of parts share one';

/*
 * idem.period_key(at timestamptz, period text, zone text, "offset" int)
 * returns text
 *
 * The name of the period that holds an instant, as a part of a key.  Each
 * instant is in exactly one period, in the nights when clocks change too.
 *
 *	at		the instant
 *	period	hour	2026-11-29T14+01:00
 *			day		2026-11-29
 *			week	2026-W48, the ISO week, which starts on Monday
 *			month	2026-11
 *			quarter	2026-Q4
 *			year	2026
 *	zone	a full name out of pg_timezone_names such as Europe/Berlin: that of
 *			the team, not of the session; abbreviations are refused, since a
 *			setting defines them, and offsets, whose sign POSIX turns round
 *	offset	how many periods later; -1 is the one before, there.  Days and
 *			longer periods are counted on the calendar, hours as they pass:
 *			an hour that the clock shows twice is two, one that it leaves out
 *			is none, one cut short by a change of the clock is one
 *
 * Result: never null.  It changes only if the rules of the zone do.
 * Errors: IA006, an argument is null; 22023, unknown period or zone; 22008,
 * the instant is infinite or the period not within the years 1 to 9999.
 */
CREATE FUNCTION idem.period_key(
	at timestamptz,
	period text,
	zone text,
	"offset" int DEFAULT 0
)
RETURNS text
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_period_key';

COMMENT ON FUNCTION idem.period_key(timestamptz, text, text, int) IS
'name of the hour, day, ISO week, month, quarter or year that holds an instant in a time zone';

/*
 * idem.action_id(key text, intent text, scope text) returns uuid
 *
 * The identity of an action, whether it exists or not.  docs/action-id.md
 * says how to compute it without the server.
 *
 *	key		1 byte to 16 kB
 *	intent	1 to 256 bytes
 *	scope	0 to 256 bytes
 *
 * Result: a UUIDv8, never null.
 * Errors: IA006, an argument is null, empty, blank or too long; of an intent with
 * confidential keys IA008, without the level worker, and IA014, the secret is
 * missing; 22P05, a character of a database that is not in UTF-8 has no
 * equivalent there.
 */
CREATE FUNCTION idem.action_id(
	key text,
	intent text,
	scope text DEFAULT ''
)
RETURNS uuid
LANGUAGE C STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_action_id';

COMMENT ON FUNCTION idem.action_id(text, text, text) IS
'identity of the action with this key, intent and scope';
