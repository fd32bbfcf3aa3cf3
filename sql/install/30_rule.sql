/*
 * Rules: src/rule.c.
 */

/*
 * idem.define_rule(intent, unique_by, resolved_by, ...) returns text
 *
 * States the whole rule of an intent: what is omitted or null has its default,
 * also where an older rule said otherwise.  Holds from the next call on, in
 * every session; what is handed out keeps the marks_effect it was handed out
 * with.
 *
 *	intent				the step, 1 to 256 bytes, never renamed
 *	unique_by			sentence: what makes an action unique
 *	resolved_by			who resolves doubt: a name or a contact
 *	new_when			sentence: when a new action is allowed
 *						(only on a deliberate rerun)
 *	on_uncertain		what follows when nobody knows whether an attempt took
 *						effect: review, verify, retry or repeat (review)
 *	provider_window		how long the provider honours our key; retry needs it
 *	settle				how long a search must wait to prove absence (2 minutes)
 *	lease				how long a claim is protected (5 minutes)
 *	marks_effect		the holder calls begin_effect before it acts (false)
 *	max_attempts		lost claims after which a person decides (3)
 *	max_failures		clean failures after which a person decides (12)
 *	retry_delay			delay after the first failure, doubling, jittered, at
 *						most an hour (30 seconds)
 *	keep_content		how long contents are kept after the end (90 days)
 *	keep_key			how long the key blocks after the end (400 days)
 *	requires_approval	nothing is handed out before approve_action (false)
 *	scoped				a call with scope '' is refused (false)
 *	rerun_by			resolver, worker or nobody (resolver)
 *	worker_role			only its members act on the intent
 *	resolver_role		only its members decide about the intent
 *	confidential_key	keys are kept as keyed digests only (false)
 *	confidential_fields	paths of params kept as keyed digests only
 *	four_eyes			who drafted or revised an action does not approve it (false)
 *
 * Result: the rule in words, as describe_rule prints it.  A rule that is the same
 * as before is not written, nor is a line of the history.
 * Errors: 22023, a setting out of bounds; IA006, a bad intent; 0A000, a setting
 * whose feature this version does not have.
 * Volatile.
 */
CREATE FUNCTION idem.define_rule(
	intent text,
	unique_by text,
	resolved_by text,
	new_when text DEFAULT NULL,
	on_uncertain text DEFAULT NULL,
	provider_window interval DEFAULT NULL,
	settle interval DEFAULT NULL,
	lease interval DEFAULT NULL,
	marks_effect boolean DEFAULT NULL,
	max_attempts int DEFAULT NULL,
	max_failures int DEFAULT NULL,
	retry_delay interval DEFAULT NULL,
	keep_content interval DEFAULT NULL,
	keep_key interval DEFAULT NULL,
	requires_approval boolean DEFAULT NULL,
	scoped boolean DEFAULT NULL,
	rerun_by text DEFAULT NULL,
	worker_role regrole DEFAULT NULL,
	resolver_role regrole DEFAULT NULL,
	confidential_key boolean DEFAULT NULL,
	confidential_fields text[] DEFAULT NULL,
	four_eyes boolean DEFAULT NULL
)
RETURNS text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_define_rule';

COMMENT ON FUNCTION idem.define_rule(text, text, text, text, text, interval, interval, interval, boolean, int, int, interval, interval, interval, boolean, boolean, text, regrole, regrole, boolean, text[], boolean) IS
'states the whole rule of an intent, omitted settings by default, and returns it in words';

/*
 * idem.drop_rule(intent text) returns void
 *
 * Removes the rule of an intent that has no actions any more.
 *
 *	intent	the intent
 *
 * Errors: 55006, the intent still has actions; IA005, it has no rule.
 * Volatile.
 */
CREATE FUNCTION idem.drop_rule(intent text)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_drop_rule';

COMMENT ON FUNCTION idem.drop_rule(text) IS
'removes the rule of an intent without actions';

/*
 * idem.describe_rule(intent text) returns text
 *
 * The rule in words, made from its settings: what makes an action unique, when
 * a new one is allowed, how long it is remembered, when a retry is safe, who
 * resolves doubt.
 *
 *	intent	the intent
 *
 * Errors: IA005, the intent has no rule; IA006, a bad intent; 22023, none; IA008,
 * outside the roles of the rule.
 * Stable.
 */
CREATE FUNCTION idem.describe_rule(intent text)
RETURNS text
LANGUAGE C STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_describe_rule';

COMMENT ON FUNCTION idem.describe_rule(text) IS
'the rule of an intent in words';

/*
 * idem.may_see(intent text, role oid) returns boolean
 *
 * Whether the rule of the intent lets a role see its actions: what the views
 * are filtered by.
 *
 *	intent	the intent; null and '' stand for what belongs to none, and one
 *			without a rule restricts nobody, unless its dropped rule named roles:
 *			then only administrators see what is left of it; where its rule is
 *			missing, only superusers and the ledger's owner
 *	role	the role that looks; null is the caller
 *
 * Errors: none.  Stable.
 */
CREATE FUNCTION idem.may_see(intent text, role oid DEFAULT NULL)
RETURNS boolean
LANGUAGE C STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_may_see';

COMMENT ON FUNCTION idem.may_see(text, oid) IS
'whether the rule of an intent lets a role see its actions';

/*
 * idem.pause_intent(intent, reason, actor) returns void
 *
 * Nothing of the intent is handed out until it is resumed: a claim answers
 * paused, a take nothing, holders hear IA004 at their next call.  Enqueue,
 * reports and decisions go on.
 *
 *	intent	the intent; null for all of them, lifted by null only
 *	reason	why, for whoever finds it paused
 *	actor	the person, as the application names them
 *
 * Errors: 22023, no reason; IA005, no rule; IA008, not one of its resolvers, and
 * with a null intent neither of level admin nor one of the resolvers of every rule.
 * Volatile.
 */
CREATE FUNCTION idem.pause_intent(intent text, reason text, actor text DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_pause_intent';

COMMENT ON FUNCTION idem.pause_intent(text, text, text) IS
'hands out nothing of an intent until it is resumed; null pauses all';

/*
 * idem.resume_intent(intent, actor) returns void
 *
 * Lifts the pause of an intent, or with null the pause of all.
 *
 *	intent	the intent, or null
 *	actor	the person, as the application names them
 *
 * Errors: IA005, IA008 as pause_intent.
 * Volatile.
 */
CREATE FUNCTION idem.resume_intent(intent text, actor text DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_resume_intent';

COMMENT ON FUNCTION idem.resume_intent(text, text) IS
'lifts the pause of an intent, or with null the pause of all';

/* every session forgets what it has cached, also after a direct change */
CREATE FUNCTION idem.settings_changed()
RETURNS trigger
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_settings_changed';

COMMENT ON FUNCTION idem.settings_changed() IS
'trigger of idem_rules and idem_state: invalidates what sessions have cached';

/* for each row: a subscription applies rows, and fires no statement triggers */
CREATE TRIGGER settings_changed
AFTER INSERT OR UPDATE OR DELETE ON idem.idem_rules
FOR EACH ROW EXECUTE FUNCTION idem.settings_changed();

CREATE TRIGGER settings_truncated
AFTER TRUNCATE ON idem.idem_rules
FOR EACH STATEMENT EXECUTE FUNCTION idem.settings_changed();

CREATE TRIGGER settings_changed
AFTER INSERT OR UPDATE OR DELETE ON idem.idem_state
FOR EACH ROW EXECUTE FUNCTION idem.settings_changed();

CREATE TRIGGER settings_truncated
AFTER TRUNCATE ON idem.idem_state
FOR EACH STATEMENT EXECUTE FUNCTION idem.settings_changed();

/* whatever session_replication_role says: a session would go on by what was */
ALTER TABLE idem.idem_rules ENABLE ALWAYS TRIGGER settings_changed, ENABLE ALWAYS TRIGGER settings_truncated;
ALTER TABLE idem.idem_state ENABLE ALWAYS TRIGGER settings_changed, ENABLE ALWAYS TRIGGER settings_truncated;
