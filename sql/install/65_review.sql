/*
 * What people say: src/review.c, src/explain.c.
 *
 * Of every decision: actor is the person as the application names them, kept
 * beside the database role.  accepted false means that nothing was written; the
 * note says why and what to do instead.  The same call again is answered as before
 * while the decision stands; where another one has followed on it, the note says
 * who decided what.
 */

/*
 * idem.resolve_action(action_id, decision, note, revision, external_ref, result, actor) returns idem.report
 *
 * Decides what became of an action, as a rule a doubtful one.
 *
 *	decision		happened: it took effect; not_happened: it did not, hand it out
 *					again; cancel: it is not wanted any more
 *	note			how the person knows
 *	revision		what the person saw; another one is refused
 *	external_ref	the outside's id; happened without one takes that of a late
 *					success
 *	result			handed to every repeat
 *	actor			the person
 *
 * Result: accepted, or a note on who decided what and when.
 * Errors: IA016, no such action; 22023, a bad argument; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.resolve_action(
	action_id uuid,
	decision text,
	note text,
	revision bigint,
	external_ref text DEFAULT NULL,
	result jsonb DEFAULT NULL,
	actor text DEFAULT NULL
)
RETURNS idem.report
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_resolve_action';

COMMENT ON FUNCTION idem.resolve_action(uuid, text, text, bigint, text, jsonb, text) IS
'decides a doubtful action: happened, not_happened or cancel';

/*
 * idem.approve_action(action_id, revision, note, actor) returns idem.report
 *
 * Approves the draft of a pending action, as seen at this revision.
 *
 *	revision	what the person saw; another one is refused
 *	note		for the history
 *	actor		the person
 *
 * Result: accepted, or a note.
 * Errors: IA016; 22023; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.approve_action(
	action_id uuid,
	revision bigint,
	note text DEFAULT NULL,
	actor text DEFAULT NULL
)
RETURNS idem.report
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_approve_action';

COMMENT ON FUNCTION idem.approve_action(uuid, bigint, text, text) IS
'approves the draft that was seen at a revision';

/*
 * idem.revise_action(action_id, draft, revision, actor) returns idem.report
 *
 * Replaces the draft of a pending action: same action, same provider key.  An
 * approval is lost by it.
 *
 *	draft		the new draft
 *	revision	what the person saw; null decides on whatever is there
 *	actor		the person
 *
 * Result: accepted; refused once it is handed out or done.
 * Errors: IA010, the draft is too large; IA016; 22023; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.revise_action(
	action_id uuid,
	draft jsonb,
	revision bigint DEFAULT NULL,
	actor text DEFAULT NULL
)
RETURNS idem.report
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_revise_action';

COMMENT ON FUNCTION idem.revise_action(uuid, jsonb, bigint, text) IS
'replaces the draft of a pending action';

/*
 * idem.cancel_action(action_id, reason, actor, revision) returns idem.report
 *
 * The action is not wanted any more.  While a holder has it, the wish is kept
 * and told to the holder at its next begin_effect or extend_claim.  Doubt is not
 * ended by it: where an attempt may have taken effect, a person decides by
 * resolve_action.
 *
 *	reason		for the history
 *	actor		the person
 *	revision	what the person saw, another one is refused; null decides on
 *				whatever is there
 *
 * Result: accepted; refused once the action is done, and while it needs
 * attention.
 * Errors: IA016; 22023; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.cancel_action(
	action_id uuid,
	reason text DEFAULT NULL,
	actor text DEFAULT NULL,
	revision bigint DEFAULT NULL
)
RETURNS idem.report
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_cancel_action';

COMMENT ON FUNCTION idem.cancel_action(uuid, text, text, bigint) IS
'cancels an action, or asks its holder to stop';

/*
 * idem.rerun_action(action_id, reason, revision, draft, actor) returns idem.report
 *
 * Does an action once more on purpose: a new generation with a provider key of
 * its own.
 *
 *	reason		why
 *	revision	what the person saw; another one is refused, so that a repeated
 *				call does it once
 *	draft		replaces the kept draft
 *	actor		the person
 *
 * Result: accepted; refused while it is pending or in progress.  Of an action
 * that needs attention it ends the doubt: only a resolver may say so.
 * Errors: IA008, the rule gives it to others; IA010; IA016; 22023; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.rerun_action(
	action_id uuid,
	reason text,
	revision bigint,
	draft jsonb DEFAULT NULL,
	actor text DEFAULT NULL
)
RETURNS idem.report
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_rerun_action';

COMMENT ON FUNCTION idem.rerun_action(uuid, text, bigint, jsonb, text) IS
'does an action once more on purpose';

/*
 * idem.erase_action(action_id, reason, actor) returns idem.report
 *
 * Contents go from the row and the history; the key still blocks.  WAL, archived
 * or not, backups made before, and copies of the history keep them until they
 * expire, and the files of the tables until VACUUM; the note says so.
 *
 *	reason	why
 *	actor	the person
 *
 * Result: accepted; refused while the action is pending or in progress.
 * Errors: IA016; 22023; 25006; 40001.
 * Volatile.
 */
CREATE FUNCTION idem.erase_action(
	action_id uuid,
	reason text,
	actor text DEFAULT NULL
)
RETURNS idem.report
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_erase_action';

COMMENT ON FUNCTION idem.erase_action(uuid, text, text) IS
'erases the contents of an action; its key still blocks';

/*
 * idem.show_action(action_id) returns idem.claim
 *
 * How an action stands, with its contents.  Reads only, works on a standby.
 *
 * Errors: IA016, no such action.
 * Volatile, since it answers from the latest committed row.
 */
CREATE FUNCTION idem.show_action(action_id uuid)
RETURNS idem.claim
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_show_action';

COMMENT ON FUNCTION idem.show_action(uuid) IS
'how an action stands, with its contents; reads only';

/*
 * idem.explain_action(action_id) returns setof text
 *
 * The story of an action in plain words: who, when, which attempt, what is
 * known, what is not, what to do next.  Reads only, works on a standby.
 *
 * Errors: IA016, no such action.
 * Volatile, since it answers from the latest committed row.
 */
CREATE FUNCTION idem.explain_action(action_id uuid)
RETURNS SETOF text
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10
AS 'MODULE_PATHNAME', 'idem_explain_action';

COMMENT ON FUNCTION idem.explain_action(uuid) IS
'the story of an action in plain words';

/*
 * idem.import_actions(intent, keys, external_refs, scope) returns bigint
 *
 * Makes keys known as completed that were done before the ledger was there.
 * What exists stays as it is.
 *
 *	intent			the step
 *	keys			the keys, none null
 *	external_refs	the outside's ids, as long as keys, or null
 *	scope			tenant
 *
 * Result: how many were new.
 * Errors: IA005, IA006, IA008, IA010, IA014, 2202E, 25006 as enqueue_actions.
 * Volatile.
 */
CREATE FUNCTION idem.import_actions(
	intent text,
	keys text[],
	external_refs text[] DEFAULT NULL,
	scope text DEFAULT ''
)
RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_import_actions';

COMMENT ON FUNCTION idem.import_actions(text, text[], text[], text) IS
'makes keys known as completed that were done before the ledger was there';

/*
 * idem.reconcile(intent, external_refs, since)
 * returns setof (kind, external_ref, action_id, scope, key, state, finished_at)
 *
 * Compares the intent with what the provider says it has done.
 *
 *	intent			the intent
 *	external_refs	the references of the provider's statement, at most 100 000
 *	since			the moment at which the statement begins
 *
 * Result, by kind:
 *	absent_here		the statement has the reference, no action of the intent has,
 *					however old
 *	unknown_there	the action was completed at or after "since", and none of its
 *					references is in the statement; external_ref is null where it
 *					has none
 *	twice			the statement has the reference more than once, or it stands at
 *					several actions (a row for each), or the statement has several
 *					references of one action in the same generation (a row for each)
 *
 * Where two different successes of one action were reported, both references are
 * known, and the statement tells whether it took effect twice.
 *
 * Errors: 22023, a null, a blank reference, or too many; IA005, no rule; IA006, a
 * bad intent; IA008, not one of the roles of its rule.
 * Volatile.
 */
CREATE FUNCTION idem.reconcile(
	intent text,
	external_refs text[],
	since timestamptz,
	OUT kind text,
	OUT external_ref text,
	OUT action_id uuid,
	OUT scope text,
	OUT key text,
	OUT state text,
	OUT finished_at timestamptz
)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'idem_reconcile';

COMMENT ON FUNCTION idem.reconcile(text, text[], timestamptz) IS
'compares an intent with the references of the provider''s statement';
