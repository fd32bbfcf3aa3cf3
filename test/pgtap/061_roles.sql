--
-- Who may, by the roles of a rule: outside of them an action is as if it were
-- not there.  Membership counts, so roles may be renamed; a role that is gone
-- matches nobody.  And what operators find by a value in params.
--
SELECT plan(38);

CREATE ROLE regress_idem_billing;
CREATE ROLE regress_idem_leads;
CREATE ROLE regress_idem_in;
CREATE ROLE regress_idem_out;
CREATE ROLE regress_idem_lead;
GRANT regress_idem_billing TO regress_idem_in;
GRANT regress_idem_leads TO regress_idem_lead;
SELECT idem.grant_access('regress_idem_in', 'worker'), idem.grant_access('regress_idem_out', 'worker'),
	idem.grant_access('regress_idem_out', 'operator'), idem.grant_access('regress_idem_lead', 'operator') \g /dev/null
SELECT idem.define_rule('charge', 'the invoice', 'billing', worker_role => 'regress_idem_billing', resolver_role => 'regress_idem_leads') \g /dev/null

SET ROLE regress_idem_in;
SELECT action_id, claim_id, granted FROM idem.claim_action('inv-1', 'charge', '{"iban": "DE02"}') \gset
SELECT ok(:'granted'::boolean, 'a member of worker_role claims');
SELECT throws_ok(format('SELECT idem.resolve_action(%L, ''happened'', ''seen'', 1)', :'action_id'), '42501', NULL, 'and has not the level to decide');

SET ROLE regress_idem_out;
SELECT throws_ok($$SELECT idem.claim_action('inv-1', 'charge', in_transaction => true)$$, 'IA008', NULL, 'others: claim');
SELECT throws_ok($$SELECT * FROM idem.claim_actions('charge', '{inv-1}', in_transaction => true)$$, 'IA008', NULL, 'others: claim a batch');
SELECT throws_ok($$SELECT idem.once('inv-1', 'charge')$$, 'IA008', NULL, 'others: once');
SELECT throws_ok($$SELECT idem.enqueue_action('inv-1', 'charge')$$, 'IA008', NULL, 'others: enqueue');
SELECT throws_ok($$SELECT * FROM idem.take_actions('{charge}', in_transaction => true)$$, 'IA008', NULL, 'others: take');
SELECT is((SELECT outcome FROM idem.find_action('inv-1', 'charge')), 'unknown', 'others: find');
SELECT throws_ok(format('SELECT idem.complete_action(%L, %L)', :'action_id', :'claim_id'), 'IA016', NULL, 'others: complete');
SELECT is((SELECT concat(accepted, state) FROM idem.complete_actions(ARRAY[:'action_id']::uuid[], ARRAY[:'claim_id']::uuid[])), 'f', 'others: complete a batch');
SELECT throws_ok(format('SELECT idem.cancel_action(%L)', :'action_id'), 'IA016', NULL, 'others: cancel');
SELECT throws_ok(format('SELECT idem.resolve_action(%L, ''happened'', ''seen'', 1)', :'action_id'), 'IA016', NULL, 'others: resolve');
SELECT throws_ok(format('SELECT idem.show_action(%L)', :'action_id'), 'IA016', NULL, 'others: show');
SELECT throws_ok(format('SELECT idem.explain_action(%L)', :'action_id'), 'IA016', NULL, 'others: explain');
SELECT is((SELECT count(*) FROM idem.search_actions('inv-1')), 0::bigint, 'others: search');
SELECT is((SELECT count(*) FROM idem.actions) + (SELECT count(*) FROM idem.history WHERE intent = 'charge') + (SELECT count(*) FROM idem.rules), 0::bigint, 'others: views');
SELECT throws_ok($$SELECT idem.import_actions('charge', '{inv-2}')$$, 'IA008', NULL, 'others: import');
SELECT throws_ok($$SELECT idem.describe_rule('charge')$$, 'IA008', NULL, 'others: the rule in words');
SELECT throws_ok(format('SELECT idem.may_see(%L)', repeat('x', 300)), 'IA006', NULL, 'what is no intent cannot be seen');

SET ROLE regress_idem_lead;
SELECT is((SELECT count(*) FROM idem.actions), 1::bigint, 'a member of resolver_role sees it');
SELECT throws_ok($$SELECT idem.claim_action('inv-1', 'charge', in_transaction => true)$$, 'IA008', NULL, 'and does not act');
SELECT is((SELECT params FROM idem.show_action(:'action_id')), '{"iban": "DE02"}', 'it shows the contents');
SELECT is((SELECT count(*) FROM idem.search_actions('DE02')), 1::bigint, 'and finds them by a value');
SELECT is((SELECT count(*) FROM idem.search_actions(:'action_id')), 1::bigint, 'or by the provider key');
SELECT ok((SELECT accepted FROM idem.resolve_action(:'action_id', 'happened', 'seen', 1)), 'it decides');

RESET ROLE;
ALTER ROLE regress_idem_billing RENAME TO regress_idem_accounts;
SET ROLE regress_idem_in;
SELECT ok((SELECT granted FROM idem.claim_action('inv-3', 'charge')), 'renamed: members still act');
SELECT is((SELECT count(*) FROM idem.search_actions('DE02')), 0::bigint, 'a worker finds nothing by contents');
RESET ROLE;
DROP ROLE regress_idem_accounts;
SET ROLE regress_idem_in;
SELECT throws_ok($$SELECT idem.claim_action('inv-4', 'charge', in_transaction => true)$$, 'IA008', NULL, 'dropped: nobody acts');
RESET ROLE;
SELECT throws_ok($$SELECT idem.claim_action('inv-4', 'charge', in_transaction => true)$$, 'IA008', NULL, 'not even a superuser');
REVOKE regress_idem_leads FROM regress_idem_lead;
DROP ROLE regress_idem_leads;
SELECT is((SELECT count(*) FROM idem.rules WHERE intent = 'charge'), 1::bigint, 'both roles dropped: a superuser sees the rule');
SELECT is((SELECT count(*) FROM idem.actions), 2::bigint, 'and its actions');
SELECT matches((SELECT problem FROM idem.worker_status), 'the rule of ''charge'' names regress_idem_billing and regress_idem_leads, which is no role here', 'the problem names the rule and the roles, as they were called when it was stored');
SELECT matches(idem.describe_rule('charge'), 'Who may decide: nobody, since regress_idem_leads is no role here', 'the rule says it in words');
SELECT idem.define_rule('charge', 'the invoice', 'billing', worker_role => 'regress_idem_in', resolver_role => 'regress_idem_lead') \g /dev/null
SELECT is((SELECT outcome FROM idem.claim_action('inv-4', 'charge')), 'claimed', 'define_rule mends it');
SELECT unalike((SELECT problem FROM idem.worker_status), '%charge%', 'and the problem is gone');
SELECT idem.define_rule('charge', 'the invoice', 'billing') \g /dev/null

SELECT idem.revoke_access('regress_idem_in', 'worker'), idem.revoke_access('regress_idem_out', 'worker'),
	idem.revoke_access('regress_idem_out', 'operator'), idem.revoke_access('regress_idem_lead', 'operator') \g /dev/null
DROP OWNED BY regress_idem_in, regress_idem_out, regress_idem_lead;
DROP ROLE regress_idem_in, regress_idem_out, regress_idem_lead;
-- the owner has every right already
RESET ROLE;
SELECT idem.grant_access(current_user::regrole, 'analyst') \g /dev/null
SELECT ok(has_function_privilege(p.oid, 'execute'), 'the owner keeps its rights') FROM pg_proc p WHERE p.oid = 'idem.resolve_action'::regproc;
SELECT ok(bool_or(a.grantee = p.proowner AND a.privilege_type = 'EXECUTE'), 'and its entry in the access list')
FROM pg_proc p, aclexplode(p.proacl) a WHERE p.oid = 'idem.resolve_action'::regproc;
SELECT idem.revoke_access(current_user::regrole, 'analyst') \g /dev/null

-- what would not fire is refused, on each table that is written directly
CREATE FUNCTION pg_temp.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER audit AFTER INSERT ON idem.idem_events FOR EACH ROW EXECUTE FUNCTION pg_temp.nothing();
SELECT throws_ok($$SELECT idem.pause_intent(NULL, 'wait')$$, '0A000', 'table idem_events has trigger "audit"', 'a trigger on the history');
DROP TRIGGER audit ON idem.idem_events;

SELECT * FROM finish();
