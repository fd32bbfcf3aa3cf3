--
-- Keys: action_key, period_key, action_id.
--
-- Periods must not depend on the session, so give it odd settings.
SET TimeZone = 'America/New_York';
SET DateStyle = 'German';

--
-- action_key: readable, and no two lists share a key
--
SELECT idem.action_key('evt_1');
SELECT idem.action_key('request-17', 'stage-2');
SELECT parts, idem.action_key(VARIADIC parts) AS key
FROM (VALUES
	('{a/b,c}'::text[]),
	('{a,b/c}'),
	('{a,b,c}'),
	('{a/b/c}'),
	('{ab,c}'),
	('{a,bc}'),
	('{a~,b}'),
	('{a,~b}'),
	('{a~/b}'),
	('{/}'),
	('{/,/}'),
	('{//}'),
	('{" a "}'),
	('[0:1]={from,zero}')) AS v(parts);

-- nothing becomes a key that is missing or ambiguous
\set VERBOSITY sqlstate
SELECT idem.action_key();
\set VERBOSITY default
SELECT idem.action_key(VARIADIC '{}');
SELECT idem.action_key(VARIADIC NULL);
SELECT idem.action_key(NULL);
SELECT idem.action_key('a', NULL, 'b');
SELECT idem.action_key('');
SELECT idem.action_key('a', '');
SELECT idem.action_key(VARIADIC '{{a,b},{c,d}}');
-- nor does a part that shows nothing, in Unicode's sense
SELECT idem.action_key('a', ' ');
SELECT idem.action_key('a', U&'\00A0\3000\200B');
SELECT idem.action_key('a', U&'\00A0x');
-- a key that claim_action would refuse is not made; its text is not shown
SELECT length(idem.action_key(repeat('x', 16384)));
SELECT length(idem.action_key(repeat('/', 8192)));
SELECT idem.action_key(repeat('secret', 10000));
SELECT idem.action_key(repeat('/', 8193));

--
-- period_key
--
SELECT period,
	idem.period_key('2026-11-29 12:34:56+01', period, 'Europe/Berlin', -1) AS before,
	idem.period_key('2026-11-29 12:34:56+01', period, 'Europe/Berlin') AS this,
	idem.period_key('2026-11-29 12:34:56+01', period, 'Europe/Berlin', 1) AS after
FROM unnest('{hour,day,week,month,quarter,year}'::text[]) AS period;

-- the zone of the team decides, not that of the session
SELECT zone,
	idem.period_key(at => '2024-12-31 22:30+00', period => 'hour', zone => zone) AS hour,
	idem.period_key(at => '2024-12-31 22:30+00', period => 'day', zone => zone) AS day,
	idem.period_key(at => '2024-12-31 22:30+00', period => 'year', zone => zone) AS year,
	idem.period_key(at => '2024-12-31 22:30+00', period => 'year', zone => zone, "offset" => -1) AS before
FROM unnest('{America/New_York,UTC,europe/berlin,Europe/Helsinki,Asia/Kathmandu,Pacific/Kiritimati}'::text[]) AS zone;

-- ISO weeks at the edges of years: they start on Monday, week 1 holds 4 January
SELECT d AS noon,
	idem.period_key(d + time '12:00' AT TIME ZONE 'UTC', 'week', 'UTC', -1) AS before,
	idem.period_key(d + time '12:00' AT TIME ZONE 'UTC', 'week', 'UTC') AS week,
	idem.period_key(d + time '12:00' AT TIME ZONE 'UTC', 'week', 'UTC', 1) AS after
FROM unnest('{2015-12-31,2016-01-03,2016-01-04,2018-12-31,2019-12-29,2019-12-30,2020-12-31,2021-01-03,2021-01-04,2026-12-31,2027-01-01}'::date[]) AS d;

-- Monday starts in the team's zone
SELECT idem.period_key('2025-03-16 23:30+00', 'week', 'UTC') AS utc,
	idem.period_key('2025-03-16 23:30+00', 'week', 'Europe/Berlin') AS berlin,
	idem.period_key('2025-03-17 03:30+00', 'week', 'America/New_York') AS new_york;

-- ends of months and leap years
SELECT idem.period_key('2024-03-31 12:00+00', 'month', 'UTC', -1) AS month,
	idem.period_key('2024-03-31 12:00+00', 'quarter', 'UTC', -1) AS quarter,
	idem.period_key('2024-02-29 12:00+00', 'year', 'UTC', -1) AS year,
	idem.period_key('2024-02-29 12:00+00', 'day', 'UTC', 1) AS day,
	idem.period_key('2024-01-31 12:00+00', 'month', 'UTC', -14) AS months;

-- nights when clocks change: the hour shown twice is two periods, the one
-- left out is none, the one cut in half by Lord Howe's half hour is one
CREATE FUNCTION pg_temp.hours(zone text, since timestamptz)
RETURNS TABLE (utc text, before text, hour text, after text)
LANGUAGE sql AS $$
	SELECT to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI'),
		idem.period_key(t, 'hour', zone, -1),
		idem.period_key(t, 'hour', zone),
		idem.period_key(t, 'hour', zone, 1)
	FROM generate_series(since, since + interval '2 hours 30 minutes', '30 minutes') AS t
$$;
SELECT * FROM pg_temp.hours('Europe/Berlin', '2025-10-25 23:30+00');
SELECT * FROM pg_temp.hours('Europe/Berlin', '2025-03-30 00:00+00');
SELECT * FROM pg_temp.hours('America/New_York', '2025-11-02 05:00+00');
SELECT * FROM pg_temp.hours('America/New_York', '2025-03-09 06:00+00');
SELECT * FROM pg_temp.hours('Australia/Lord_Howe', '2025-04-05 14:00+00');
SELECT * FROM pg_temp.hours('Australia/Lord_Howe', '2025-10-04 14:30+00');
SELECT idem.period_key('2025-10-26 01:30+00', 'hour', 'Europe/Berlin', -24) AS day_before,
	idem.period_key('2025-10-26 01:30+00', 'hour', 'Europe/Berlin', 24) AS day_after;

-- the day of such a night is one day
SELECT DISTINCT idem.period_key(t, 'day', 'America/New_York') AS day
FROM generate_series('2025-11-02 04:00+00', '2025-11-03 04:59:59+00', interval '1 minute') AS t;

-- local mean time has seconds; rounding is downwards before 2000 too
SELECT idem.period_key('1890-01-01 12:00+00', 'hour', 'Europe/Berlin') AS mean_time,
	idem.period_key('1999-12-31 22:59:59.9+00', 'hour', 'UTC') AS hour,
	idem.period_key('1999-12-31 23:59:59.999999+00', 'year', 'UTC') AS year;

-- a date that a zone left out still counts as a day
SELECT idem.period_key('2011-12-31 12:00+14', 'day', 'Pacific/Apia', -1) AS left_out;

-- four digits name a year
SELECT idem.period_key('0001-01-01 00:00+00', 'week', 'UTC') AS first,
	idem.period_key('9999-12-31 23:59+00', 'week', 'UTC') AS last;
SELECT idem.period_key('0001-01-01 00:00+00 BC', 'year', 'UTC');
SELECT idem.period_key('10000-01-01 00:00+00', 'hour', 'UTC');
SELECT idem.period_key('9999-12-31 23:00+00', 'hour', 'UTC', 1);
SELECT idem.period_key('0001-01-01 00:00+00', 'hour', 'UTC', -1);
SELECT idem.period_key('0001-01-01 00:00+00', 'day', 'UTC', -1);
SELECT idem.period_key('9999-12-31 23:00+00', 'month', 'UTC', 1);
SELECT idem.period_key('2025-06-01 00:00+00', 'week', 'UTC', 2147483647);
SELECT idem.period_key('2025-06-01 00:00+00', 'year', 'UTC', -2147483648);
SELECT idem.period_key('infinity', 'day', 'UTC');
SELECT idem.period_key('-infinity', 'day', 'UTC');

-- unknown words; an abbreviation means what a setting says
SELECT idem.period_key('2025-06-01 00:00+00', 'fortnight', 'UTC');
SELECT idem.period_key('2025-06-01 00:00+00', 'Day', 'UTC');
SELECT idem.period_key('2025-06-01 00:00+00', 'day', 'Europe/Atlantis');
SELECT idem.period_key('2025-06-01 00:00+00', 'day', 'CEST');
SELECT idem.period_key('2025-06-01 00:00+00', 'day', '');

-- an offset is no name: POSIX reads its sign the other way round
SELECT idem.period_key('2025-06-01 00:00+00', 'day', '+02:00');
SELECT idem.period_key('2025-06-01 00:00+00', 'day', 'UTC+2');
SELECT idem.period_key('2025-06-01 00:00+00', 'day', 'XYZ5');
SELECT idem.period_key('2025-06-01 00:00+00', 'day', '<+02>-2');
SELECT idem.period_key('2025-06-01 00:00+00', 'day', 'CET-1CEST');
SELECT idem.period_key('2025-06-01 00:00+00', 'day', 'PST8') AS pst8;
SELECT idem.period_key('2025-06-01 00:00+00', 'day', 'Etc/GMT+5') AS a_name_with_a_digit,
	idem.period_key('2025-06-01 00:00+00', 'day', 'est5edt') AS another;
SELECT name AS left_out FROM pg_timezone_names WHERE idem.period_key('2025-06-01 00:00+00', 'day', name) IS NULL;

-- no message repeats what is long
SELECT idem.period_key('2025-06-01 00:00+00', 'day', repeat('zone', 100000));
SELECT idem.period_key('2025-06-01 00:00+00', repeat('period', 100000), 'UTC');

-- a period that is not known is never a NULL key
SELECT idem.period_key(NULL, 'day', 'UTC');
SELECT idem.period_key('2025-06-01 00:00+00', NULL, 'UTC');
SELECT idem.period_key('2025-06-01 00:00+00', 'day', NULL);
SELECT idem.period_key('2025-06-01 00:00+00', 'day', 'UTC', NULL);

--
-- action_id
--
SELECT idem.action_id('evt_1', 'send-reply') AS without_scope,
	idem.action_id(key => 'evt_1', intent => 'send-reply', scope => 'acme') AS with_scope;
SELECT idem.action_id(NULL, 'send-reply');
SELECT idem.action_id('evt_1', NULL);
SELECT idem.action_id('evt_1', 'send-reply', NULL);
SELECT idem.action_id('', 'send-reply');
SELECT idem.action_id('evt_1', '');
SELECT idem.action_id(repeat('x', 16385), 'send-reply');
SELECT idem.action_id('evt_1', repeat('x', 257));
SELECT idem.action_id('evt_1', 'send-reply', repeat('x', 257));
-- bytes count, not characters
SELECT idem.action_id(repeat('é', 8193), 'send-reply');

-- each kind of refusal has its SQLSTATE
\set VERBOSITY sqlstate
SELECT idem.action_key('a', NULL);
SELECT idem.action_id('', 'send-reply');
SELECT idem.period_key(NULL, 'day', 'UTC');
SELECT idem.period_key('2025-06-01 00:00+00', 'day', 'Europe/Atlantis');
SELECT idem.period_key('2025-06-01 00:00+00', 'fortnight', 'UTC');
SELECT idem.period_key('infinity', 'day', 'UTC');
\set VERBOSITY default

-- a new backend whose first use is rolled back goes on hashing
\c -
BEGIN;
SAVEPOINT s;
SELECT idem.action_id('evt_1', 'send-reply');
SELECT idem.action_id('', 'send-reply');
ROLLBACK TO s;
SELECT idem.action_id('evt_1', 'send-reply');
ROLLBACK;
SELECT idem.action_id('evt_1', 'send-reply');

-- usable in an index and in a parallel worker
CREATE TEMP TABLE summaries (team text, at timestamptz);
CREATE INDEX ON summaries (idem.action_key(team, idem.period_key(at, 'week', 'Europe/Berlin')));
SELECT proname, provolatile, proparallel, proisstrict
FROM pg_proc
WHERE oid IN ('idem.action_key'::regproc, 'idem.period_key'::regproc, 'idem.action_id'::regproc)
ORDER BY proname;
