--
-- Confidential keys and fields, word by word.  In a database of its own, since
-- the secrets in use are the ledger's.
--
SET client_min_messages = warning;
SELECT current_database() AS regression \gset
CREATE DATABASE regression_confidential;
\c regression_confidential
SET client_min_messages = warning;
CREATE EXTENSION idem_action;
\pset format unaligned
\pset null NULL

--
-- No secret yet
--
SELECT idem.define_rule('call', 'the number', 'the team', confidential_key => true, keep_content => '0', keep_key => '1 microsecond');
SELECT idem.define_rule('send', 'the event', 'the team', confidential_fields => '{to, customer.phone, items[].name}');
SELECT idem.define_rule('both', 'the event', 'the team', confidential_key => true, confidential_fields => '{to}') <> '' AS defined;
SELECT outcome FROM idem.claim_action('k', 'call');
\echo :SQLSTATE
SELECT idem.use_secret('r1');
\echo :SQLSTATE

-- a file that only the server can read, in its data directory
COPY (SELECT 'r' || i || ' ' || repeat(i::text, 64) FROM generate_series(1, 3) AS i)
	TO PROGRAM 'umask 077; cat > regression_confidential.txt';
ALTER SYSTEM SET idem_action.secret_file = 'regression_confidential.txt';
SELECT pg_reload_conf();
-- ends once the setting has come
\set ECHO none
SELECT $$DO 'BEGIN IF current_setting(''idem_action.secret_file'') = '''' THEN PERFORM pg_sleep(0.2); END IF; END'$$
FROM generate_series(1, 100) \gexec
\set ECHO all
SELECT outcome FROM idem.claim_action('k', 'call');
\echo :SQLSTATE
SELECT idem.keyed_digest('v');
\echo :SQLSTATE
SELECT idem.use_secret(NULL);
\echo :SQLSTATE
SELECT idem.use_secret('r9');
\echo :SQLSTATE
SELECT idem.use_secret('r1');
SELECT * FROM idem.secrets;

--
-- Keys
--
SELECT granted, outcome, action_id, key FROM idem.claim_action('+49 30 1234', 'call');
-- docs/action-id.md, with Python:
--   m = b'K1' + b''.join(struct.pack('>I', len(t)) + t for t in (b'', b'call', b'+49 30 1234'))
--   hmac.new(bytes.fromhex('11' * 32), m, 'sha256').hexdigest()[:32], made a uuid8
SELECT idem.action_id('+49 30 1234', 'call');
SELECT granted, outcome, key, repeat FROM idem.claim_action('+49 30 1234', 'call');
SELECT granted, outcome, key FROM idem.claim_actions('call', '{+49 30 1234, +49 30 1235}');
SELECT outcome, key FROM idem.find_action('+49 30 1234', 'call');
SELECT outcome, key FROM idem.find_action('+49 30 9999', 'call');
SELECT idem.once('+49 30 1234', 'call');
\echo :SQLSTATE
SELECT key, secret_id FROM idem.idem_actions;
SELECT key FROM idem.actions;
SELECT DISTINCT key FROM idem.history WHERE intent = 'call';
SELECT key, outcome FROM idem.show_action(idem.action_id('+49 30 1234', 'call'));
SELECT count(*) FROM idem.search_actions('+49 30 1234');
SELECT line FROM idem.explain_action(idem.action_id('+49 30 1234', 'call')) AS line LIMIT 1;
-- enqueue is for keys, too; a taker does not get them
SELECT outcome, key FROM idem.enqueue_action('+49 30 1236', 'call');
SELECT granted, key FROM idem.take_actions('{call}');
SELECT idem.import_actions('call', '{+49 30 1237, +49 30 1234}');

--
-- Fields: where they are, and where they are not
--
SELECT granted, params FROM idem.claim_action('full', 'send', '{"to": "V", "customer": {"phone": "V", "vip": true}, "items": [{"name": "V", "n": 1}, {"n": 2}], "amount": 1}');
SELECT params FROM idem.idem_actions WHERE key = 'full';
SELECT idem.keyed_digest('V');
CREATE FUNCTION kept(params jsonb) RETURNS text LANGUAGE sql AS $$
	SELECT count(*) FROM idem.claim_action(md5(params::text), 'send', params);
	SELECT regexp_replace(a.params::text, '\{"digest": "(.{4}).{60}", "secret": "r1"\}', '<\1>', 'g')
	FROM idem.idem_actions AS a WHERE a.key = md5(kept.params::text);
$$;
SELECT p AS given, kept(p) FROM unnest(ARRAY[
	-- missing, empty
	'{}', '{"a": 1}', '{"customer": {}}', '{"items": []}', '{"items": [{}]}',
	-- equal values are equal: numbers, whatever they are written like; strings by each byte
	'{"to": 1}', '{"to": 1.0}', '{"to": "1"}', '{"to": "v"}', '{"to": ""}',
	'{"to": null}', '{"to": true}', '{"to": []}', '{"to": {}}', '{"to": {"x": ["V"]}}', '{"to": {"x": ["V"], "y": 1}}',
	-- what is there is of another shape than the path: it is concealed as a whole
	'{"customer": "V"}', '{"customer": null}', '{"customer": ["V"]}', '{"customer": [{"phone": "V"}]}',
	'{"items": "V"}', '{"items": {"name": "V"}}', '{"items": ["V", 1, null, [{"name": "V"}]]}',
	-- roots
	'"V"', '1', 'null', '[]', '["V"]', '[{"to": "V"}]',
	-- names alike
	'{"To": "V"}', '{"to ": "V"}', '{"customer.phone": "V"}', '{"items[]": {"name": "V"}}', '{"x": {"to": "V"}}',
	-- what looks as if it were concealed already
	'{"to": {"digest": "x", "secret": "r1"}}',
	-- what has to be quoted
	'{"a\"b\\\n": "x\"y\\\n\u00fc", "to": "V"}', '{"n": 1e3, "m": -0.50}'
]::jsonb[]) AS p;
DROP FUNCTION kept;

-- the element of a list, and a list of lists
SELECT idem.define_rule('lists', 'the event', 'the team', confidential_fields => '{list[], deep[][].x, a, a.b}') <> '' AS defined;
SELECT outcome, params FROM idem.claim_action('k', 'lists', '{"list": ["V", {"y": 1}], "deep": [[{"x": "V", "y": 1}], ["V"], "V"], "a": {"b": "V"}}');
SELECT params FROM idem.idem_actions WHERE intent = 'lists';

--
-- The caller gets its own values, everybody else the digests
--
SELECT outcome, params FROM idem.claim_action('full', 'send', '{"to": "V", "customer": {"phone": "V", "vip": true}, "items": [{"name": "V", "n": 1}, {"n": 2}], "amount": 1}');
SELECT outcome, params FROM idem.claim_action('full', 'send');
SELECT outcome, params IS NULL AS none FROM idem.claim_actions('send', '{full}', ARRAY['{"to": "W"}'::jsonb]);
SELECT params -> 'to' AS to, params -> 'amount' AS amount FROM idem.find_action('full', 'send');
SELECT params -> 'to' AS to, params -> 'amount' AS amount FROM idem.show_action(idem.action_id('full', 'send'));
-- five rows keep it where no path leads
SELECT count(*) FROM idem.search_actions('V');
SELECT intent, key FROM idem.search_actions(idem.keyed_digest('V')) WHERE key IN ('full', 'k') ORDER BY 1;

-- IA001 names the fields, never their values; digests neither
SELECT outcome FROM idem.claim_action('full', 'send', '{"to": "W", "customer": {"phone": "V", "vip": true}, "items": [{"name": "W", "n": 1}, {"n": 2}], "amount": 1}');
\echo :SQLSTATE
SELECT idem.once('full', 'send', '{"to": "V", "customer": {"phone": "W", "vip": true}, "items": [{"name": "V", "n": 1}, {"n": 2}], "amount": 2}');
\echo :SQLSTATE
SELECT outcome FROM idem.claim_action('full', 'send', '"V"');
\echo :SQLSTATE
-- nor is a digest as good as the value
SELECT outcome FROM idem.claim_action('full', 'send', (SELECT params FROM idem.idem_actions WHERE key = 'full'));
\echo :SQLSTATE

-- key and fields
SELECT granted, key, params FROM idem.claim_action('k', 'both', '{"to": "V", "n": 1}');
SELECT granted, key, params FROM idem.claim_action('k', 'both', '{"to": "V", "n": 1}');
SELECT granted, key, params FROM idem.claim_action('k', 'both', '{"to": "W", "n": 1}');
\echo :SQLSTATE

--
-- Under a later secret
--
SELECT idem.use_secret('r2');
SELECT id, current, rows > 0 AS needed, needed_until FROM idem.secrets ORDER BY id;
SELECT outcome, params FROM idem.claim_action('k', 'both', '{"to": "V", "n": 1}');
SELECT outcome FROM idem.claim_action('k', 'both', '{"to": "W", "n": 1}');
\echo :SQLSTATE
SELECT outcome, params IS NOT NULL AS own FROM idem.claim_action('full', 'send', '{"to": "V", "customer": {"phone": "V", "vip": true}, "items": [{"name": "V", "n": 1}, {"n": 2}], "amount": 1}');
SELECT outcome FROM idem.claim_action('full', 'send', '{"to": "W", "customer": {"phone": "V", "vip": true}, "items": [{"name": "V", "n": 1}, {"n": 2}], "amount": 1}');
\echo :SQLSTATE
SELECT params -> 'to' ->> 'secret' AS secret FROM idem.find_action('full', 'send');
SELECT outcome FROM idem.claim_action('new', 'send', '{"to": "V"}');
SELECT secret_id, params FROM idem.idem_actions WHERE key = 'new';
SELECT idem.keyed_digest('V');

-- an import over a forgotten row is made anew, under the current secret
SELECT idem.once('old', 'call');
SELECT count(*) FROM idem.idem_actions WHERE intent = 'call' AND state = 'completed' AND secret_id = 'r2';
SELECT idem.use_secret('r3');
SELECT idem.import_actions('call', '{old}', '{ref 1}');
SELECT secret_id, key, external_ref, generation FROM idem.idem_actions WHERE external_ref = 'ref 1';
SELECT outcome, external_ref FROM idem.find_action('old', 'call');
SELECT count(*) FROM idem.idem_actions WHERE intent = 'call' AND secret_id = 'r2';

--
-- Refusals
--
SELECT outcome FROM idem.enqueue_action('k', 'send', '{"to": "V"}');
\echo :SQLSTATE
SELECT outcome FROM idem.enqueue_action('k', 'send');
\echo :SQLSTATE
SELECT outcome FROM idem.enqueue_actions('send', '{k}');
\echo :SQLSTATE
SELECT count(*) FROM idem.take_actions('{send}');
-- what is confidential stays so while there are actions
SELECT idem.define_rule('call', 'the number', 'the team');
\echo :SQLSTATE
SELECT idem.define_rule('call', 'the number', 'the team', confidential_key => true, confidential_fields => '{to}');
\echo :SQLSTATE
SELECT idem.define_rule('send', 'the event', 'the team');
\echo :SQLSTATE
SELECT idem.define_rule('send', 'the event', 'the team', confidential_fields => '{to, customer.phone}');
\echo :SQLSTATE
SELECT idem.define_rule('send', 'the event', 'the team', confidential_fields => ARRAY['to, customer.phone', 'items[].name']);
\echo :SQLSTATE
SELECT idem.define_rule('send', 'the event', 'the team', confidential_fields => '{to, customer.phone, items[].name}', requires_approval => true);
\echo :SQLSTATE
SELECT idem.drop_rule('send');
\echo :SQLSTATE
-- the rest of the rule may change
SELECT idem.define_rule('send', 'the event', 'the team', confidential_fields => '{to, customer.phone, items[].name}', lease => '1 hour') <> '' AS defined;
SELECT idem.describe_rule('send');
SELECT idem.describe_rule('call');
-- two lists that read alike are two
SELECT idem.define_rule('alike', 'the event', 'the team', confidential_fields => '{a, b}') <> '' AS defined;
SELECT outcome FROM idem.claim_action('k', 'alike', '{"a": 1}');
SELECT idem.define_rule('alike', 'the event', 'the team', confidential_fields => ARRAY['a, b']);
\echo :SQLSTATE
SELECT idem.define_rule('alike', 'the event', 'the team', confidential_fields => ARRAY['a', ' b']);
\echo :SQLSTATE
-- nor is a plain intent with actions made confidential
SELECT idem.define_rule('plain', 'the event', 'the team') <> '' AS defined;
SELECT outcome FROM idem.claim_action('k', 'plain', '{"to": "V"}');
SELECT idem.define_rule('plain', 'the event', 'the team', confidential_key => true);
\echo :SQLSTATE
SELECT idem.define_rule('plain', 'the event', 'the team', confidential_fields => '{to}');
\echo :SQLSTATE
-- an empty list is none
SELECT idem.define_rule('plain', 'the event', 'the team', confidential_fields => '{}') <> '' AS defined;
-- not a path
\set VERBOSITY terse
SELECT idem.define_rule('bad', 'u', 'r', confidential_fields => ARRAY['']);
SELECT idem.define_rule('bad', 'u', 'r', confidential_fields => ARRAY['[]']);
SELECT idem.define_rule('bad', 'u', 'r', confidential_fields => ARRAY['[].a']);
SELECT idem.define_rule('bad', 'u', 'r', confidential_fields => ARRAY['.a']);
SELECT idem.define_rule('bad', 'u', 'r', confidential_fields => ARRAY['a.']);
SELECT idem.define_rule('bad', 'u', 'r', confidential_fields => ARRAY['a..b']);
SELECT idem.define_rule('bad', 'u', 'r', confidential_fields => ARRAY['a[0]']);
SELECT idem.define_rule('bad', 'u', 'r', confidential_fields => ARRAY['a[]b']);
SELECT idem.define_rule('bad', 'u', 'r', confidential_fields => ARRAY['a', NULL]);
SELECT idem.define_rule('bad', 'u', 'r', confidential_fields => '{{a, b}, {c, d}}');
SELECT idem.define_rule('bad', 'u', 'r', confidential_fields => '{a}', requires_approval => true);
\set VERBOSITY default

-- nothing of all that is in the history
SELECT count(*) FROM idem.history WHERE intent <> 'plain' AND (key ~ '49 30' OR detail::text ~ '49 30|"[VW]"');

--
-- The end
--
ALTER SYSTEM RESET idem_action.secret_file;
SELECT pg_reload_conf();
COPY (SELECT) TO PROGRAM 'cat > regression_confidential.txt; rm regression_confidential.txt';
\c :regression
DROP DATABASE regression_confidential;
