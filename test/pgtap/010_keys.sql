--
-- Keys: the published vectors, and what must hold for every input.
--
-- The vectors are read from docs/action-id.md, so run this in the top folder.
--
\set vectors `grep '^{"kind"' docs/action-id.md`
BEGIN;
SELECT plan(12);

--
-- The published vectors
--
CREATE TEMP TABLE vectors AS
SELECT line::jsonb AS v FROM regexp_split_to_table(:'vectors', '\n') AS line;

SELECT cmp_ok(count(*), '>=', 100::bigint, 'the vectors were found') FROM vectors;

SELECT is_empty($$
	SELECT v FROM vectors,
		repeat(v->>'key', coalesce((v->>'times')::int, 1)) AS key
	WHERE v->>'kind' = 'plain'
		AND idem.action_id(key, v->>'intent', v->>'scope')::text IS DISTINCT FROM v->>'result'
	$$, 'action_id agrees with the vectors');

SELECT is_empty($$
	SELECT v FROM vectors
	WHERE v->>'kind' = 'key'
		AND idem.action_key(VARIADIC ARRAY(SELECT jsonb_array_elements_text(v->'parts')))
			IS DISTINCT FROM v->>'result'
	$$, 'action_key agrees with the vectors');

--
-- action_id
--
SELECT is_empty($$
	SELECT id FROM generate_series(1, 10000) AS i, idem.action_id(i::text, 'any') AS id
	WHERE id::text !~ '^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'
	$$, 'every action_id is a UUIDv8');

SELECT is((SELECT count(DISTINCT idem.action_id(key, intent, scope))
		FROM unnest('{a,b,ab,ba,aa,aab,aba}'::text[]) AS key,
			unnest('{a,b,ab,ba,aa,aab,aba}'::text[]) AS intent,
			unnest('{"",a,b,ab,ba,aa,aab,aba}'::text[]) AS scope),
	(7 * 7 * 8)::bigint, 'key, intent and scope never run into each other');

--
-- action_key: no two lists of parts share a key.  The parts are made of
-- little but what could be mistaken for structure.
--
CREATE FUNCTION pg_temp.shared_keys(lists text)
RETURNS TABLE (key text, one text[], other text[])
LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY EXECUTE format('
		SELECT key, min(parts), max(parts)
		FROM (SELECT parts, idem.action_key(VARIADIC parts) AS key FROM (%s) AS l) AS k
		GROUP BY key HAVING min(parts) <> max(parts)', lists);
END
$$;

CREATE TEMP TABLE small_parts AS
SELECT concat(a, b, c) AS part
FROM unnest('{/,~,a}'::text[]) AS a,
	unnest('{"",/,~,a}'::text[]) AS b,
	unnest('{"",/,~,a}'::text[]) AS c
GROUP BY 1;

SELECT is_empty($$
	SELECT * FROM pg_temp.shared_keys('
		SELECT ARRAY[a.part] AS parts FROM small_parts a
		UNION ALL
		SELECT ARRAY[a.part, b.part] FROM small_parts a, small_parts b
		UNION ALL
		SELECT ARRAY[a.part, b.part, c.part] FROM small_parts a, small_parts b, small_parts c')
	$$, 'no two lists of up to three short parts share a key');

-- each hex digit of a hash stands for a character, five of them end a part
CREATE TEMP TABLE random_lists AS
SELECT parts
FROM generate_series(1, 1010000) AS i,
	left(md5('idem' || i), 5 + i % 12) AS digits,
	translate(digits, '0123456789abcdef', '///~~~aa:-\|||||') AS text,
	array_remove(string_to_array(text, '|'), '') AS parts
WHERE parts <> '{}';

SELECT cmp_ok(count(*), '>=', 1000000::bigint, 'a million random lists') FROM random_lists;

SELECT is_empty($$
	SELECT * FROM pg_temp.shared_keys('SELECT parts FROM random_lists')
	$$, 'no two random lists of parts share a key');

--
-- period_key: the periods of a zone follow each other without gap or
-- overlap, whatever its clocks did, and offset walks along them
--
CREATE TEMP TABLE zones AS
SELECT unnest('{UTC,Europe/Berlin,Europe/London,America/New_York,America/St_Johns,
	America/Santiago,Asia/Kathmandu,Asia/Kolkata,Asia/Beirut,Africa/Cairo,
	Australia/Adelaide,Australia/Lord_Howe,Pacific/Chatham,Pacific/Kiritimati}'::text[]) AS zone;

CREATE FUNCTION pg_temp.broken_runs(what text, since timestamptz, until timestamptz)
RETURNS TABLE (zone text, at timestamptz, before text, this text, after text)
LANGUAGE sql AS $$
	WITH keys AS (
		SELECT z.zone, t, idem.period_key(t, what, z.zone) AS this,
			lag(idem.period_key(t, what, z.zone)) OVER w AS previous
		FROM zones AS z, generate_series(since, until, interval '15 minutes') AS t
		WINDOW w AS (PARTITION BY z.zone ORDER BY t)
	), runs AS (
		SELECT *, lag(k.this) OVER w AS before, lead(k.this) OVER w AS after,
			lead(t, 1, t + interval '1 second') OVER w AS ends,
			count(*) OVER (PARTITION BY k.zone, k.this) AS times
		FROM keys AS k
		WHERE k.previous IS DISTINCT FROM k.this
		WINDOW w AS (PARTITION BY k.zone ORDER BY t)
	)
	SELECT r.zone, t, r.before, r.this, r.after
	FROM runs AS r
	WHERE times > 1
		OR idem.period_key(t, what, r.zone, -1) <> r.before
		OR idem.period_key(t, what, r.zone, 1) <> r.after
		OR idem.period_key(ends - interval '1 microsecond', what, r.zone) <> r.this
		OR idem.period_key(ends - interval '1 microsecond', what, r.zone, -1) <> r.before
		OR idem.period_key(ends - interval '1 microsecond', what, r.zone, 1) <> r.after
$$;

SELECT is_empty($$SELECT * FROM pg_temp.broken_runs('hour', '2025-01-01 00:00+00', '2025-12-31 00:00+00')$$,
	'each instant of a year is in one hour, between the one before and the one after');
SELECT is_empty($$SELECT * FROM pg_temp.broken_runs('day', '2025-01-01 00:00+00', '2025-12-31 00:00+00')$$,
	'each instant of a year is in one day, between the one before and the one after');

-- PostgreSQL's own calendar as the judge, over two centuries
SELECT setseed(0.48);
CREATE TEMP TABLE instants AS
SELECT at, zone, at AT TIME ZONE zone AS here,
	at AT TIME ZONE zone - at AT TIME ZONE 'UTC' AS from_utc, shift
FROM (SELECT zone, timestamptz '1900-01-01 00:00+00' + random() * interval '73000 days' AS at,
		(random() * 200)::int - 100 AS shift
	FROM zones, generate_series(1, 5000)) AS r;

SELECT is_empty($$
	SELECT * FROM instants
	WHERE idem.period_key(at, 'day', zone, shift) <>
			to_char(here + shift * interval '1 day', 'YYYY-MM-DD')
		OR idem.period_key(at, 'week', zone, shift) <>
			to_char(here + shift * interval '7 days', 'IYYY-"W"IW')
		OR idem.period_key(at, 'month', zone, shift) <>
			to_char(here + shift * interval '1 month', 'YYYY-MM')
		OR idem.period_key(at, 'quarter', zone, shift) <>
			to_char(here + shift * interval '3 months', 'YYYY-"Q"Q')
		OR idem.period_key(at, 'year', zone, shift) <>
			to_char(here + shift * interval '1 year', 'YYYY')
		OR idem.period_key(at, 'hour', zone) <>
			to_char(here, 'YYYY-MM-DD"T"HH24') ||
			CASE WHEN from_utc < '0' THEN '-' ELSE '+' END ||
			regexp_replace(greatest(from_utc, - from_utc)::text, '^(..:..):00$', '\1')
	$$, 'keys of periods agree with to_char');

SELECT is_empty($$
	SELECT * FROM instants
	WHERE idem.period_key(at, 'hour', 'UTC', shift) <>
		idem.period_key(at + shift * interval '1 hour', 'hour', 'UTC')
	$$, 'hours are counted as they pass');

SELECT * FROM finish();
ROLLBACK;
