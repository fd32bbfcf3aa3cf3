/*
 * Confidential keys and contents: src/secret.c, src/conceal.c.
 */

/*
 * idem.use_secret(id text) returns void
 *
 * Makes a secret of the secret file the current one: new rows are made under
 * it, older rows are still found under theirs.  Waits for open writers and
 * keeps new ones waiting for an instant.
 *
 *	id	the id of a line in idem_action.secret_file
 *
 * Errors: IA014, the file or the secret is missing, cannot be used, or holds
 * another secret under an id already used; 22023, no id.
 * Volatile.
 */
CREATE FUNCTION idem.use_secret(id text)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_use_secret';

COMMENT ON FUNCTION idem.use_secret(text) IS
'makes a secret of the secret file the current one';

/*
 * idem.keyed_digest(value text) returns text
 *
 * What a confidential field with this text is kept as under the current secret,
 * to look for it in params.
 *
 *	value	the text
 *
 * Errors: IA014, a secret is missing.
 * Stable.
 */
CREATE FUNCTION idem.keyed_digest(value text)
RETURNS text
LANGUAGE C STABLE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_keyed_digest';

COMMENT ON FUNCTION idem.keyed_digest(text) IS
'what a confidential field with this text is kept as under the current secret';

CREATE VIEW idem.secrets WITH (security_barrier) AS
SELECT s.name AS id,
	s.name = (SELECT c.value FROM idem.idem_state c WHERE c.kind = 'current') AS current,
	coalesce(a.rows, 0) AS rows,
	CASE WHEN a.unfinished > 0 THEN 'infinity' ELSE a.needed_until END AS needed_until
FROM idem.idem_state s LEFT JOIN (
	SELECT secret_id, count(*) AS rows, max(forget_after) AS needed_until,
		count(*) FILTER (WHERE forget_after IS NULL) AS unfinished
	FROM idem.idem_actions WHERE secret_id IS NOT NULL GROUP BY secret_id
) a ON a.secret_id = s.name
WHERE s.kind = 'secret';

COMMENT ON VIEW idem.secrets IS 'the secrets that rows were made under; each has to stay in the secret file until needed_until';
COMMENT ON COLUMN idem.secrets.needed_until IS 'infinity while an action made under it is not finished';
