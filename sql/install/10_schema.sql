/*
 * Where the ledger is kept.
 *
 * idem_actions holds what is so now, idem_events what was before or unusual.
 * A straight life (claimed, completed) is one insert and one HOT update of
 * idem_actions and writes no event, which is why no index but the primary key
 * stands on that table; see the header of src/ledger.c for the figures.
 *
 * Rows come and go, so autovacuum comes early.  It does not truncate: it would
 * wait seconds at a time for a lock that live claims do not leave it, and dead
 * rows pile up meanwhile.
 *
 * Text that is looked up or compared is COLLATE "C": an index must not depend on
 * an order that an update of the operating system changes.
 *
 * Every table can be published: what identifies a row to a subscriber holds the
 * action_id, so that a publication can select actions by it.  In idem_events it
 * may be null, so all of an old row identifies it; subscribers find it by the id.
 */

CREATE SCHEMA idem;
COMMENT ON SCHEMA idem IS 'ledger of idempotent actions';

/* one row per action: (scope, intent, key) */
CREATE TABLE idem.idem_actions (
	action_id			uuid		NOT NULL,
	created_at			timestamptz	NOT NULL,
	revision			bigint		NOT NULL,
	generation			int			NOT NULL,
	attempt				int			NOT NULL,
	lost				int			NOT NULL,
	failures			int			NOT NULL,
	priority			int			NOT NULL,
	uncertain			boolean		NOT NULL,
	uncertain_before	boolean		NOT NULL,
	marked				boolean		NOT NULL,
	begun				boolean		NOT NULL,
	verifying			boolean		NOT NULL,
	approved			boolean		NOT NULL,
	cancel_requested	boolean		NOT NULL,
	purged				boolean		NOT NULL,
	ruled				boolean		NOT NULL,
	first_claimed_at	timestamptz,
	claimed_at			timestamptz,
	lease_until			timestamptz,
	due_at				timestamptz,
	doubt_until			timestamptz,
	finished_at			timestamptz,
	purge_after			timestamptz,
	forget_after		timestamptz,
	claim_id			uuid,
	call_id				uuid,
	state				text COLLATE "C" NOT NULL,
	scope				text COLLATE "C" NOT NULL,
	intent				text COLLATE "C" NOT NULL,
	key					text COLLATE "C",
	reason				text COLLATE "C",
	ended_by			text COLLATE "C",
	worker				text COLLATE "C",
	source				text COLLATE "C",
	event_id			text COLLATE "C",
	secret_id			text COLLATE "C",
	params				jsonb,
	params_digest		bytea,
	draft				jsonb,
	external_ref		text COLLATE "C",
	result				jsonb,
	error				text,
	CONSTRAINT idem_actions_pkey PRIMARY KEY (action_id),
	CONSTRAINT state_known CHECK (state = ANY (ARRAY['pending', 'in_progress', 'completed', 'failed', 'needs_attention', 'cancelled'])),
	CONSTRAINT no_stand_ins CHECK ('-infinity' <> ALL (ARRAY[
			coalesce(first_claimed_at, 'infinity'), coalesce(claimed_at, 'infinity'), coalesce(lease_until, 'infinity'), coalesce(due_at, 'infinity'),
			coalesce(doubt_until, 'infinity'), coalesce(finished_at, 'infinity'), coalesce(purge_after, 'infinity'), coalesce(forget_after, 'infinity')])
		AND claim_id IS DISTINCT FROM '00000000-0000-0000-0000-000000000000' AND call_id IS DISTINCT FROM '00000000-0000-0000-0000-000000000000'),
	CONSTRAINT counters_in_range CHECK (revision >= 1 AND generation >= 1
		AND attempt >= 0 AND lost >= 0 AND failures >= 0),
	CONSTRAINT key_or_secret CHECK (key IS NOT NULL OR secret_id IS NOT NULL),
	CONSTRAINT in_progress_is_held CHECK (state <> 'in_progress'
		OR (claim_id IS NOT NULL AND claimed_at IS NOT NULL AND ended_by IS NULL)),
	CONSTRAINT lease_while_in_progress CHECK ((lease_until IS NOT NULL) = (state = 'in_progress')),
	CONSTRAINT lease_is_finite CHECK (lease_until IS NULL OR isfinite(lease_until)),
	CONSTRAINT due_while_open CHECK (CASE state WHEN 'pending' THEN due_at IS NOT NULL WHEN 'in_progress' THEN true ELSE due_at IS NULL END),
	CONSTRAINT finished_when_final CHECK ((finished_at IS NOT NULL) = (state = ANY (ARRAY['completed', 'failed', 'cancelled']))),
	CONSTRAINT retention_when_final CHECK ((forget_after IS NOT NULL) = (finished_at IS NOT NULL)
		AND (purge_after IS NULL OR finished_at IS NOT NULL)),
	CONSTRAINT final_is_certain CHECK (finished_at IS NULL OR NOT uncertain),
	CONSTRAINT attention_has_reason CHECK (state <> 'needs_attention' OR reason IS NOT NULL),
	CONSTRAINT verifying_in_progress CHECK (NOT verifying OR state = 'in_progress'),
	CONSTRAINT claim_is_whole CHECK ((claim_id IS NULL) = (claimed_at IS NULL)
		AND (claim_id IS NULL) = (first_claimed_at IS NULL)
		AND (claim_id IS NULL) = (attempt = 0)),
	CONSTRAINT ended_claim_exists CHECK (ended_by IS NULL OR claim_id IS NOT NULL)
) USING heap WITH (fillfactor = 95, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
COMMENT ON TABLE idem.idem_actions IS 'every action as it is now; written by the functions of schema idem only';
COMMENT ON COLUMN idem.idem_actions.action_id IS 'UUIDv8 of (scope, intent, key), see docs/action-id.md';
COMMENT ON COLUMN idem.idem_actions.revision IS 'grows with every change but extend and purge';
COMMENT ON COLUMN idem.idem_actions.generation IS '1, and one more for each deliberate rerun';
COMMENT ON COLUMN idem.idem_actions.attempt IS 'number of the last hand-out within the generation';
COMMENT ON COLUMN idem.idem_actions.lost IS 'ended attempts whose outcome nobody reported';
COMMENT ON COLUMN idem.idem_actions.failures IS 'attempts that surely did nothing, reported as such';
COMMENT ON COLUMN idem.idem_actions.uncertain IS 'an attempt may have taken effect and nobody knows';
COMMENT ON COLUMN idem.idem_actions.uncertain_before IS 'uncertain, as it was when the last claim was handed out';
COMMENT ON COLUMN idem.idem_actions.marked IS 'the last claim was handed out under a rule that marks effects';
COMMENT ON COLUMN idem.idem_actions.begun IS 'the last claim has said that it acts now';
COMMENT ON COLUMN idem.idem_actions.verifying IS 'the claim was handed out to search, not to act';
COMMENT ON COLUMN idem.idem_actions.first_claimed_at IS 'first hand-out of the generation: the provider window runs from here';
COMMENT ON COLUMN idem.idem_actions.purged IS 'the contents are gone, by retention or by erase_action';
COMMENT ON COLUMN idem.idem_actions.ruled IS 'made or changed under a rule: while its intent has none the action is left alone';
COMMENT ON COLUMN idem.idem_actions.due_at IS 'when the queue offers the action next; of a claim that came from the queue, the end of its lease';
COMMENT ON COLUMN idem.idem_actions.doubt_until IS 'last moment at which the doubtful attempt could have acted';
COMMENT ON COLUMN idem.idem_actions.claim_id IS 'fencing token of the last claim, kept after it ended';
COMMENT ON COLUMN idem.idem_actions.ended_by IS 'how the last claim ended: succeeded, succeeded_late, found, failed_none, failed_unknown, failed_refused, released, searched, expired, search_expired or interrupted';
COMMENT ON COLUMN idem.idem_actions.params_digest IS 'fingerprint of the canonical params, the first 16 bytes of docs/action-id.md''s';
COMMENT ON COLUMN idem.idem_actions.secret_id IS 'secret under which the key or fields of params were digested; NULL where nothing is confidential';

/* the timeline: ended attempts, decisions, reports that came too late */
CREATE TABLE idem.idem_events (
	id					bigint		GENERATED ALWAYS AS IDENTITY,
	at					timestamptz	NOT NULL,
	action_id			uuid,
	generation			int,
	attempt				int,
	during				int,
	claim_id			uuid,
	claimed_at			timestamptz,
	intent				text COLLATE "C",
	event				text COLLATE "C" NOT NULL,
	role				text COLLATE "C" NOT NULL,
	actor				text COLLATE "C",
	worker				text COLLATE "C",
	source				text COLLATE "C",
	event_id			text COLLATE "C",
	detail				jsonb,
	content				jsonb,
	CONSTRAINT idem_events_pkey PRIMARY KEY (id)
) USING heap WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
ALTER TABLE idem.idem_events REPLICA IDENTITY FULL;
CREATE INDEX idem_events_action ON idem.idem_events (action_id, id);
COMMENT ON TABLE idem.idem_events IS 'what happened to an action before or beside what its row tells; rule changes have no action_id';
COMMENT ON COLUMN idem.idem_events.attempt IS 'the attempt that the event speaks of';
COMMENT ON COLUMN idem.idem_events.content IS 'what no view shows: results and drafts; gone when the action is purged';
COMMENT ON COLUMN idem.idem_events.claimed_at IS 'hand-out of the attempt that this event ended';
COMMENT ON COLUMN idem.idem_events.during IS 'the attempt that the action had reached when it happened';

/* the actions with a due_at, in the order in which they are handed out; kept
 * in step with idem_actions by the same transaction, under the row's lock */
CREATE TABLE idem.idem_queue (
	intent				text COLLATE "C" NOT NULL,
	priority			int			NOT NULL,
	due_at				timestamptz	NOT NULL,
	action_id			uuid		NOT NULL,
	call_id				uuid
) USING heap WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
CREATE UNIQUE INDEX idem_queue_order ON idem.idem_queue (intent, priority DESC, due_at, action_id);
ALTER TABLE idem.idem_queue REPLICA IDENTITY USING INDEX idem_queue_order;
CREATE INDEX idem_queue_call ON idem.idem_queue (call_id) WHERE call_id IS NOT NULL;
COMMENT ON TABLE idem.idem_queue IS 'what waits for a taker, or for the end of a taker''s lease, in the order of its hand-out';
COMMENT ON COLUMN idem.idem_queue.call_id IS 'of the take that holds the action: finds its rows again when its reply was lost';

CREATE TABLE idem.idem_rules (
	intent				text COLLATE "C" NOT NULL,
	unique_by			text		NOT NULL,
	resolved_by			text		NOT NULL,
	new_when			text		NOT NULL,
	on_uncertain		text COLLATE "C" NOT NULL,
	provider_window		interval,
	settle				interval	NOT NULL,
	lease				interval	NOT NULL,
	marks_effect		boolean		NOT NULL,
	max_attempts		int			NOT NULL,
	max_failures		int			NOT NULL,
	retry_delay			interval	NOT NULL,
	keep_content		interval	NOT NULL,
	keep_key			interval	NOT NULL,
	requires_approval	boolean		NOT NULL,
	scoped				boolean		NOT NULL,
	rerun_by			text COLLATE "C" NOT NULL,
	worker_role			text COLLATE "C",
	resolver_role		text COLLATE "C",
	confidential_key	boolean		NOT NULL,
	confidential_fields	text[],
	four_eyes			boolean		NOT NULL,
	worker_role_oid		oid,
	resolver_role_oid	oid,
	roles_of			text COLLATE "C" NOT NULL,
	CONSTRAINT idem_rules_pkey PRIMARY KEY (intent)
) USING heap;
COMMENT ON TABLE idem.idem_rules IS 'the policy of each intent; written by define_rule and drop_rule';
COMMENT ON COLUMN idem.idem_rules.worker_role_oid IS '0: the role was dropped, and matches nobody whatever is called so now';
COMMENT ON COLUMN idem.idem_rules.roles_of IS 'system identifier and database in which the OIDs are those of the roles; elsewhere their names decide';

/* repeats by action and delivery, flushed from shared memory in batches */
CREATE TABLE idem.idem_repeats (
	day					date		NOT NULL,
	intent				text COLLATE "C" NOT NULL,
	source				text COLLATE "C",
	event_id			text COLLATE "C",
	action_id			uuid		NOT NULL,
	delivery			bigint		NOT NULL,
	outcome				text COLLATE "C" NOT NULL,
	n					bigint		NOT NULL,
	first_at			timestamptz	NOT NULL,
	last_at				timestamptz	NOT NULL,
	CONSTRAINT idem_repeats_pkey PRIMARY KEY (action_id, delivery, day, outcome)
) USING heap;
CREATE INDEX idem_repeats_day ON idem.idem_repeats (day, intent);
COMMENT ON TABLE idem.idem_repeats IS 'how often which delivery met an action already known';
COMMENT ON COLUMN idem.idem_repeats.action_id IS 'all zero where the action is gone and only the figures are kept';
COMMENT ON COLUMN idem.idem_repeats.delivery IS 'hash of the delivery, or of intent and source where the action is gone: finds the row that a repeat is added to';

CREATE TABLE idem.idem_access (
	role				text COLLATE "C" NOT NULL,
	level				text COLLATE "C" NOT NULL CHECK (level = ANY (ARRAY['worker', 'operator', 'admin', 'analyst'])),
	granted_by			text		NOT NULL,
	granted_at			timestamptz	NOT NULL,
	role_oid			oid			NOT NULL,
	roles_of			text COLLATE "C" NOT NULL,
	CONSTRAINT idem_access_pkey PRIMARY KEY (role_oid, level, roles_of)
) USING heap;
COMMENT ON TABLE idem.idem_access IS 'who was given which level by grant_access';
COMMENT ON COLUMN idem.idem_access.roles_of IS 'system identifier and database in which role_oid is the role''s; elsewhere its name decides';

CREATE TABLE idem.idem_state (
	kind				text COLLATE "C" NOT NULL CHECK (kind = ANY (ARRAY['ledger', 'accepted', 'clock', 'secret', 'current', 'pause', 'restricted', 'ruled'])),
	name				text COLLATE "C" NOT NULL,
	value				text,
	reason				text,
	role				text COLLATE "C" NOT NULL,
	actor				text,
	since				timestamptz	NOT NULL,
	CONSTRAINT idem_state_pkey PRIMARY KEY (kind, name)
) USING heap;
COMMENT ON TABLE idem.idem_state IS 'facts about the ledger as a whole: its name, the places where it was accepted with their timelines, the last time known, the current secret, pauses (name '''' = all intents), intents that have a rule, intents whose dropped rule named roles';

SELECT pg_extension_config_dump('idem.idem_actions', '');
SELECT pg_extension_config_dump('idem.idem_events', '');
SELECT pg_extension_config_dump('idem.idem_events_id_seq', '');
SELECT pg_extension_config_dump('idem.idem_queue', '');
SELECT pg_extension_config_dump('idem.idem_rules', '');
SELECT pg_extension_config_dump('idem.idem_repeats', '');
SELECT pg_extension_config_dump('idem.idem_access', '');
SELECT pg_extension_config_dump('idem.idem_state', '');

/* the timeline that this server writes: null on a standby */
CREATE FUNCTION idem.timeline()
RETURNS bigint
LANGUAGE C STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_timeline';

COMMENT ON FUNCTION idem.timeline() IS 'the timeline that this server writes; null on a standby';

/* where the ledger is now; worker_status looks for it among what was accepted */
CREATE FUNCTION idem.place()
RETURNS text
LANGUAGE C STABLE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idem_place_name';

COMMENT ON FUNCTION idem.place() IS
'system identifier, database OID and a digest of the ledgers that came together here';

/*
 * A new ledger is accepted where it is made: src/place.c tells what becomes of
 * that in a copy.  No name here can meet one in a dump that is restored.
 */
INSERT INTO idem.idem_state (kind, name, role, since)
VALUES ('ledger', gen_random_uuid()::text, current_user, clock_timestamp());
INSERT INTO idem.idem_state (kind, name, value, role, since)
VALUES ('accepted', idem.place(), idem.timeline()::text, current_user, clock_timestamp());

/* what a claim is answered with; this shape never changes */
CREATE TYPE idem.claim AS (
	granted				boolean,
	outcome				text,
	action_id			uuid,
	claim_id			uuid,
	attempt				int,
	generation			int,
	repeat				boolean,
	state				text,
	reason				text,
	lease_until			timestamptz,
	retry_after			double precision,
	provider_key		text,
	scope				text,
	intent				text,
	key					text,
	params				jsonb,
	draft				jsonb,
	revision			bigint,
	external_ref		text,
	result				jsonb,
	error				text,
	uncertain			boolean,
	source				text,
	event_id			text,
	worker				text,
	claimed_at			timestamptz,
	first_seen			timestamptz,
	finished_at			timestamptz
);
COMMENT ON TYPE idem.claim IS 'granted is the one thing to test before acting; keep the message exactly where retry_after is not NULL';

/* what a report is answered with; this shape never changes */
CREATE TYPE idem.report AS (
	action_id			uuid,
	accepted			boolean,
	state				text,
	revision			bigint,
	note				text
);
COMMENT ON TYPE idem.report IS 'accepted: the report counts; otherwise the note says why and what to do';
