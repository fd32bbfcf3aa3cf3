--
-- Rules: define_rule, describe_rule, drop_rule.
--
SET client_min_messages = warning;
SET IntervalStyle = 'postgres';

--
-- Recipes: the rule in words, made from its settings
--
\pset format unaligned
\pset tuples_only on

-- send a mail: nobody can take it back, and the outbox of the mailer can be searched
SELECT idem.define_rule(
	intent => 'rules: send-reply',
	unique_by => 'the support request and the stage of the conversation',
	resolved_by => 'support lead on duty, #support-oncall',
	new_when => 'the customer writes again',
	on_uncertain => 'verify',
	settle => '10 min',
	marks_effect => true);

-- publish a page: a second time does harm, so a person decides
SELECT idem.define_rule(
	intent => 'rules: publish-summary',
	unique_by => 'the team and the ISO week',
	resolved_by => 'editor of the week',
	on_uncertain => 'review',
	marks_effect => true,
	scoped => true,
	rerun_by => 'nobody',
	keep_content => '1 month',
	keep_key => '2 years');

-- charge a card: the provider honours our key for a day
SELECT idem.define_rule(
	intent => 'rules: charge-card',
	unique_by => 'the invoice',
	resolved_by => 'accounting@example.org',
	new_when => 'never; a correction is an invoice of its own',
	on_uncertain => 'retry',
	provider_window => '24 hours',
	lease => '1 min 30 s',
	max_attempts => 5,
	max_failures => 1,
	retry_delay => '5 s',
	keep_content => '1 year',
	keep_key => '10 years');

-- create a record from a model's answer: doing it twice harms nobody
SELECT idem.define_rule(
	intent => 'rules: create-review-task',
	unique_by => 'the request',
	resolved_by => 'nobody has to',
	on_uncertain => 'repeat',
	max_attempts => 1,
	rerun_by => 'worker');

-- describe_rule prints what define_rule has printed
SELECT idem.describe_rule('rules: charge-card');

\pset tuples_only off
\pset format aligned

--
-- Every setting, as given and by default
--
SELECT idem.define_rule('rules: all', 'u', 'r', 'n', 'retry', '2 days', '3 min', '4 min', true, 5, 6, '7 s', '8 days', '9 days', false, true, 'worker') <> '' AS defined;
SELECT idem.define_rule('rules: default', 'u', 'r') <> '' AS defined;
\x
SELECT * FROM idem.rules WHERE intent = ANY ('{rules: all,rules: default}') ORDER BY intent;
\x
-- what is omitted goes back to its default; so does NULL
SELECT idem.define_rule('rules: all', 'u', 'r', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
	= replace(idem.describe_rule('rules: default'), 'rules: default', 'rules: all') AS all_defaults;
SELECT count(*) AS differing FROM idem.rules a, idem.rules b
WHERE a.intent = 'rules: all' AND b.intent = 'rules: default' AND to_jsonb(a) - 'intent' <> to_jsonb(b) - 'intent';
-- named in any order
SELECT idem.define_rule(resolved_by => 'r', lease => '1 h', unique_by => 'u', intent => 'rules: named') <> '' AS defined;
SELECT lease, unique_by, resolved_by FROM idem.rules WHERE intent = 'rules: named';
-- whatever the session's settings, durations are told alike
SET IntervalStyle = 'iso_8601';
SET TimeZone = 'Asia/Kathmandu';
\pset format unaligned
SELECT line FROM regexp_split_to_table(idem.define_rule('rules: words', 'u', 'r', on_uncertain => 'verify', settle => '1 day 2:03:04.005006', lease => '1 microsecond',
	retry_delay => '0', keep_content => '0', keep_key => '1 year 1 month 1 day 1 hour 1 min 1 s', max_attempts => 1, max_failures => 1), '\n') AS line
WHERE line ~ '^(How|When a retry)';
-- no delay grows beyond an hour, nor begins there
SELECT idem.define_rule('rules: late', 'u', 'r', retry_delay => '2 hours') ~ 'starts at 1 hour\.' AS an_hour;
SET IntervalStyle = 'postgres';
RESET TimeZone;
\pset format aligned

--
-- Refusals
--
\set VERBOSITY sqlstate
-- A8: no rule without unique_by and resolved_by
SELECT idem.define_rule('rules: bad');
SELECT idem.define_rule('rules: bad', 'u');
\set VERBOSITY default
SELECT idem.define_rule('rules: bad', NULL, 'r');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', NULL);
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', E' \t\n', 'r');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', '');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', new_when => ' ');
\echo :SQLSTATE
SELECT idem.define_rule(NULL, 'u', 'r');
\echo :SQLSTATE
SELECT idem.define_rule('', 'u', 'r');
\echo :SQLSTATE
SELECT idem.define_rule(repeat('x', 257), 'u', 'r');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', on_uncertain => 'hope');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', on_uncertain => 'REVIEW');
\echo :SQLSTATE
-- A38: an irreversible action is not retried blindly
SELECT idem.define_rule('rules: bad', 'u', 'r', on_uncertain => 'retry');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', on_uncertain => 'retry', provider_window => '0');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', provider_window => '-1 s');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', settle => '-1 s');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', lease => '0');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', lease => '-1 month 1 day');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', lease => '1000 years');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', max_attempts => 0);
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', max_failures => -1);
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', retry_delay => '-1 s');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', keep_content => '-1 s');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', keep_content => '0', keep_key => '0');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', keep_content => '2 days', keep_key => '1 day');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', keep_content => '401 days');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', keep_key => '89 days');
\echo :SQLSTATE
SELECT idem.define_rule('rules: bad', 'u', 'r', rerun_by => 'anybody');
\echo :SQLSTATE
-- nothing of it was stored, and what was stored stays
SELECT count(*) FROM idem.rules WHERE intent = 'rules: bad' OR intent = '';
SELECT idem.define_rule('rules: named', 'u', 'r', max_attempts => 0);
SELECT lease FROM idem.rules WHERE intent = 'rules: named';
-- the bounds themselves are allowed
SELECT idem.define_rule('rules: bounds', 'u', 'r', on_uncertain => 'retry', provider_window => '1 microsecond', settle => '0', lease => '1 microsecond',
	max_attempts => 1, max_failures => 1, retry_delay => '0', keep_content => '0', keep_key => '1 microsecond') <> '' AS defined;
SELECT idem.define_rule(repeat('x', 256), 'u', 'r') <> '' AS defined;
SELECT idem.drop_rule(repeat('x', 256));

--
-- A change holds from the next call on, in every session
--
SELECT lease_until - claimed_at AS lease FROM idem.claim_action('1', 'rules: named');
SELECT idem.define_rule('rules: named', 'u', 'r', lease => '2 h') <> '' AS defined;
SELECT lease_until - claimed_at AS lease FROM idem.claim_action('2', 'rules: named');
\c -
SET client_min_messages = warning;
SET IntervalStyle = 'postgres';
SELECT lease_until - claimed_at AS lease FROM idem.claim_action('3', 'rules: named');
-- unless it is rolled back
BEGIN;
SELECT idem.define_rule('rules: named', 'u', 'r', lease => '3 h') <> '' AS defined;
SELECT lease_until - claimed_at AS lease FROM idem.claim_action('4', 'rules: named', in_transaction => true);
ROLLBACK;
SELECT lease_until - claimed_at AS lease FROM idem.claim_action('4', 'rules: named');
BEGIN;
SAVEPOINT s;
SELECT idem.define_rule('rules: named', 'u', 'r', lease => '3 h') <> '' AS defined;
SELECT lease_until - claimed_at AS lease FROM idem.claim_action('5', 'rules: named', in_transaction => true);
ROLLBACK TO s;
SELECT lease_until - claimed_at AS lease FROM idem.claim_action('5', 'rules: named', in_transaction => true);
COMMIT;
-- also where a DBA has written it
UPDATE idem.idem_rules SET lease = '5 h' WHERE intent = 'rules: named';
SELECT lease_until - claimed_at AS lease FROM idem.claim_action('6', 'rules: named');
DELETE FROM idem.idem_rules WHERE intent = 'rules: named';
SELECT outcome FROM idem.claim_action('7', 'rules: named');
-- what it made is denied, not judged by the defaults
SELECT accepted, state FROM idem.idem_actions a, LATERAL idem.extend_claim(a.action_id, a.claim_id) AS seconds,
	LATERAL (SELECT seconds BETWEEN 10000 AND 18000 AS accepted) AS s
WHERE intent = 'rules: named' AND key = '6';

--
-- Without a rule
--
SET idem_action.require_rule = off;
\pset format unaligned
SELECT idem.describe_rule('rules: none');
\pset format aligned
SELECT outcome, lease_until - claimed_at AS lease FROM idem.claim_action('1', 'rules: none');
RESET idem_action.require_rule;
SELECT outcome FROM idem.claim_action('1', 'rules: none');
SELECT idem.describe_rule(NULL);
\echo :SQLSTATE
SELECT idem.describe_rule('');
\echo :SQLSTATE

--
-- drop_rule
--
SELECT idem.drop_rule(NULL);
\echo :SQLSTATE
SELECT idem.drop_rule('rules: unknown');
\echo :SQLSTATE
SELECT idem.define_rule('rules: dropped', 'u', 'r') <> '' AS defined;
SELECT idem.once('1', 'rules: dropped');
SELECT idem.drop_rule('rules: dropped');
\echo :SQLSTATE
-- what is forgotten but still there blocks as well
UPDATE idem.idem_actions SET forget_after = '2026-01-01' WHERE intent = 'rules: dropped';
SELECT idem.drop_rule('rules: dropped');
DELETE FROM idem.idem_actions WHERE intent = 'rules: dropped';
SELECT idem.drop_rule('rules: dropped');
SELECT idem.once('1', 'rules: dropped');
SELECT idem.drop_rule('rules: dropped');
SELECT idem.define_rule('rules: dropped', 'u', 'r') <> '' AS defined;
SELECT idem.once('1', 'rules: dropped');

--
-- The same rule again is written nowhere: no row, no line of the history, and a
-- month is not 30 days
--
SELECT idem.define_rule('rules: again', 'u', 'r', keep_content => '1 month', confidential_fields => '{to}') AS words \gset
SELECT xmin::text AS version FROM idem.idem_rules WHERE intent = 'rules: again' \gset
SELECT idem.define_rule('rules: again', 'u', 'r', keep_content => '1 month', confidential_fields => '{to}') = :'words' AS same_words;
SELECT xmin::text = :'version' AS same_row FROM idem.idem_rules WHERE intent = 'rules: again';
SELECT count(*) FROM idem.history WHERE intent = 'rules: again';
SELECT idem.define_rule('rules: again', 'u', 'r', keep_content => '30 days', confidential_fields => '{to}') = :'words' AS same_words;
SELECT xmin::text = :'version' AS same_row FROM idem.idem_rules WHERE intent = 'rules: again';
SELECT count(*) FROM idem.history WHERE intent = 'rules: again';

--
-- Changes of rules are in the history
--
SELECT intent, event, action_id, role = current_user AS by_me, (detail->>'lease')::interval AS lease
FROM idem.history WHERE intent = ANY ('{rules: named,rules: dropped}') AND event LIKE 'rule%' ORDER BY at, id;
