/*
 * The whole privilege model on one page.
 *
 * PUBLIC has nothing.  Nobody but the owner has a right on a table: callers go
 * through functions, readers through views.  A level is the list below;
 * grant_access gives a role a level, remembers it, and an upgrade applies the
 * new version's list again.
 */

REVOKE ALL ON ALL ROUTINES IN SCHEMA idem FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA idem FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA idem FROM PUBLIC;
REVOKE ALL ON SCHEMA idem FROM PUBLIC;

CREATE VIEW idem.privileges AS
WITH listed (levels, privilege, objects) AS (
	VALUES
	/* everyone who was given a level */
	('{worker,operator,admin,analyst}'::text[], 'USAGE', '{SCHEMA idem}'::text[]),
	('{worker,operator,admin,analyst}', 'EXECUTE', '{
		FUNCTION idem.action_id,
		FUNCTION idem.action_key,
		FUNCTION idem.period_key,
		FUNCTION idem.provider_key,
		FUNCTION idem.quote_label,
		FUNCTION idem.may_see,
		FUNCTION idem.role_here,
		FUNCTION idem.worker_state,
		FUNCTION idem.clock_problem,
		FUNCTION idem.library_version,
		FUNCTION idem.timeline,
		FUNCTION idem.place,
		FUNCTION idem.describe_rule,
		FUNCTION idem.explain_action,
		FUNCTION idem.search_actions}'),
	/* workflow services */
	('{worker,operator,admin}', 'EXECUTE', '{
		FUNCTION idem.claim_action,
		FUNCTION idem.claim_actions,
		FUNCTION idem.once,
		FUNCTION idem.find_action,
		FUNCTION idem.begin_effect,
		FUNCTION idem.extend_claim,
		FUNCTION idem.extend_claims,
		FUNCTION idem.complete_action,
		FUNCTION idem.complete_actions,
		FUNCTION idem.fail_action,
		FUNCTION idem.release_action,
		FUNCTION idem.verify_action,
		FUNCTION idem.enqueue_action,
		FUNCTION idem.enqueue_actions,
		FUNCTION idem.take_actions,
		FUNCTION idem.take_to_verify,
		FUNCTION idem.revise_action,
		FUNCTION idem.cancel_action,
		FUNCTION idem.rerun_action}'),
	/* people who decide, and see contents */
	('{operator,admin}', 'EXECUTE', '{
		FUNCTION idem.resolve_action,
		FUNCTION idem.approve_action,
		FUNCTION idem.erase_action,
		FUNCTION idem.show_action,
		FUNCTION idem.import_actions,
		FUNCTION idem.reconcile,
		FUNCTION idem.keyed_digest,
		FUNCTION idem.pause_intent,
		FUNCTION idem.resume_intent}'),
	/* rules and access */
	('{admin}', 'EXECUTE', '{
		FUNCTION idem.define_rule,
		FUNCTION idem.drop_rule,
		FUNCTION idem.use_secret,
		FUNCTION idem.apply_retention,
		FUNCTION idem.after_restore,
		FUNCTION idem.accept_copy,
		FUNCTION idem.acknowledge_timeline,
		FUNCTION idem.confirm_time,
		PROCEDURE idem.run_maintenance,
		FUNCTION idem.grant_access,
		FUNCTION idem.revoke_access}'),
	/* what was done, without contents; the views call the functions */
	('{operator,admin,analyst}', 'EXECUTE', '{
		FUNCTION idem.history_horizon,
		FUNCTION idem.sees_all,
		FUNCTION idem.visible_actions,
		FUNCTION idem.visible_history,
		FUNCTION idem.visible_rules,
		FUNCTION idem.visible_attention,
		FUNCTION idem.visible_stuck,
		FUNCTION idem.visible_backlog,
		FUNCTION idem.visible_repeats,
		FUNCTION idem.visible_stat_intents}'),
	('{operator,admin,analyst}', 'SELECT', '{
		idem.actions,
		idem.history,
		idem.attention,
		idem.stuck,
		idem.backlog,
		idem.repeats,
		idem.stat_intents,
		idem.worker_status,
		idem.rules,
		idem.access,
		idem.secrets,
		idem.privileges}')
)
SELECT level, privilege, object
FROM listed, unnest(levels) AS level, unnest(objects) AS object;

COMMENT ON VIEW idem.privileges IS 'what each level may do';

REVOKE ALL ON idem.privileges FROM PUBLIC;
