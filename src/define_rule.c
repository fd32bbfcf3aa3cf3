/*-------------------------------------------------------------------------
 *
 * define_rule.c
 *	  define_rule, drop_rule, describe_rule: rules as people state and read them.
 *
 * A rule is stated as a whole: every bound is checked first, then the row takes the
 * place of the older one in the caller's transaction, with a line of the history.
 * A rule that is the same as before is not written.  A lock on idem_rules keeps two
 * who state rules apart; what is confidential changes only under a lock on
 * idem_actions and while the intent has no rows, since it decides about ids.
 *
 * A crash leaves the older rule or the new one.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/define_rule.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "rule.h"
#include "rule_columns.h"
#include "access.h"
#include "arg.h"
#include "blank.h"
#include "catalog/pg_type.h"
#include "confirm.h"
#include "errors.h"
#include "executor/spi.h"
#include "key.h"
#include "ledger.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(idem_define_rule);
PG_FUNCTION_INFO_V1(idem_drop_rule);
PG_FUNCTION_INFO_V1(idem_describe_rule);

/*-------------------------------------------------------------------------
 * define_rule
 *-------------------------------------------------------------------------
 */

static char *
intent_arg(FunctionCallInfo fcinfo, int n)
{
	if (PG_ARGISNULL(n))
		idem_bad_setting("intent", "given");
	idem_check_intent(PG_GETARG_TEXT_PP(n));
	return text_to_cstring(PG_GETARG_TEXT_PP(n));
}

/* a sentence a person will read: required, not blank */
static const char *
sentence_arg(FunctionCallInfo fcinfo, int n, const char *name, const char *otherwise)
{
	if (PG_ARGISNULL(n))
	{
		if (otherwise == NULL)
			idem_bad_setting(name, "given: a sentence that a colleague understands");
		return otherwise;
	}
	if (idem_is_blank(PG_GETARG_TEXT_PP(n)))
		idem_bad_setting(name, "a sentence that a colleague understands, not blank");
	if (VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(n)) > IDEM_MAX_LABEL)
		idem_bad_setting(name, "a sentence of at most 1 kB");
	return text_to_cstring(PG_GETARG_TEXT_PP(n));
}

static int64
duration_arg(FunctionCallInfo fcinfo, int n, const char *name, int64 otherwise, bool positive)
{
	int64		usec;

	if (PG_ARGISNULL(n))
		return otherwise;
	if (!idem_interval_usec(PG_GETARG_INTERVAL_P(n), &usec) ||
		usec < (positive ? 1 : 0) || usec > IDEM_CENTURY)
		idem_bad_setting(name, positive ? "longer than nothing and shorter than a century"
						 : "shorter than a century and not negative");
	return usec;
}

static int32
count_arg(FunctionCallInfo fcinfo, int n, const char *name, int32 otherwise)
{
	if (PG_ARGISNULL(n))
		return otherwise;
	if (PG_GETARG_INT32(n) < 1)
		idem_bad_setting(name, "at least 1");
	return PG_GETARG_INT32(n);
}

static IdemRole
role_arg(FunctionCallInfo fcinfo, int n, const char *name)
{
	IdemRole	role = {0};

	if (PG_ARGISNULL(n))
		return role;
	role.oid = PG_GETARG_OID(n);
	role.name = GetUserNameFromId(role.oid, true);
	if (role.name == NULL)
		idem_bad_setting(name, "an existing role");
	return role;
}

/* on the calendar, whenever an action ends: months and years differ in length */
static bool
key_outlives_content(const IdemRule *rule)
{
	for (int month = 0; month < 48; month++)
	{
		IdemAction	action;
		Interval	offset = {.month = month};

		action.finished_at =
			DatumGetTimestamp(DirectFunctionCall2(timestamp_pl_interval, TimestampGetDatum(0),
												  IntervalPGetDatum(&offset)));
		idem_rule_start_retention(rule, &action);
		if (action.forget_after < action.purge_after)
			return false;
	}
	return true;
}

/* the settings as given, every bound checked */
static void
rule_from_args(FunctionCallInfo fcinfo, IdemRule *rule)
{
	*rule = idem_rule_defaults;
	rule->intent = intent_arg(fcinfo, RULE_INTENT);
	rule->unique_by = sentence_arg(fcinfo, RULE_UNIQUE_BY, "unique_by", NULL);
	rule->resolved_by = sentence_arg(fcinfo, RULE_RESOLVED_BY, "resolved_by", NULL);
	rule->new_when = sentence_arg(fcinfo, RULE_NEW_WHEN, "new_when", idem_rule_defaults.new_when);

	if (!PG_ARGISNULL(RULE_ON_UNCERTAIN))
	{
		int			i = idem_on_uncertain_of(text_to_cstring(PG_GETARG_TEXT_PP(RULE_ON_UNCERTAIN)));

		if (i < 0)
			idem_bad_setting("on_uncertain", "review, verify, retry or repeat");
		rule->on_uncertain = i;
	}
	rule->provider_window = duration_arg(fcinfo, RULE_PROVIDER_WINDOW, "provider_window", 0, true);
	if (rule->on_uncertain == IDEM_RETRY && rule->provider_window == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("on_uncertain \"retry\" needs a provider_window"),
				 errdetail("Trying again is safe only as long as the provider remembers the key."),
				 errhint("Set provider_window to what the provider promises, or use on_uncertain => 'review'.")));
	rule->settle = duration_arg(fcinfo, RULE_SETTLE, "settle", idem_rule_defaults.settle, false);
	rule->lease = duration_arg(fcinfo, RULE_LEASE, "lease", idem_rule_defaults.lease, true);
	rule->marks_effect = idem_arg_bool(fcinfo, RULE_MARKS_EFFECT, false);
	rule->max_attempts = count_arg(fcinfo, RULE_MAX_ATTEMPTS, "max_attempts", idem_rule_defaults.max_attempts);
	rule->max_failures = count_arg(fcinfo, RULE_MAX_FAILURES, "max_failures", idem_rule_defaults.max_failures);
	rule->retry_delay = duration_arg(fcinfo, RULE_RETRY_DELAY, "retry_delay", idem_rule_defaults.retry_delay, false);

	(void) duration_arg(fcinfo, RULE_KEEP_CONTENT, "keep_content", 0, false);
	(void) duration_arg(fcinfo, RULE_KEEP_KEY, "keep_key", 0, true);
	if (!PG_ARGISNULL(RULE_KEEP_CONTENT))
		rule->keep_content = *PG_GETARG_INTERVAL_P(RULE_KEEP_CONTENT);
	if (!PG_ARGISNULL(RULE_KEEP_KEY))
		rule->keep_key = *PG_GETARG_INTERVAL_P(RULE_KEEP_KEY);
	if (!key_outlives_content(rule))
		idem_bad_setting("keep_key", "at least as long as keep_content: a key outlives its contents");

	rule->requires_approval = idem_arg_bool(fcinfo, RULE_REQUIRES_APPROVAL, false);
	rule->scoped = idem_arg_bool(fcinfo, RULE_SCOPED, false);
	if (!PG_ARGISNULL(RULE_RERUN_BY))
	{
		rule->rerun_by = text_to_cstring(PG_GETARG_TEXT_PP(RULE_RERUN_BY));
		if (strcmp(rule->rerun_by, "resolver") != 0 &&
			strcmp(rule->rerun_by, "worker") != 0 &&
			strcmp(rule->rerun_by, "nobody") != 0)
			idem_bad_setting("rerun_by", "resolver, worker or nobody");
	}

	rule->worker_role = role_arg(fcinfo, RULE_WORKER_ROLE, "worker_role");
	rule->resolver_role = role_arg(fcinfo, RULE_RESOLVER_ROLE, "resolver_role");

	rule->confidential_key = idem_arg_bool(fcinfo, RULE_CONFIDENTIAL_KEY, false);
	idem_rule_set_fields(rule, PG_ARGISNULL(RULE_CONFIDENTIAL_FIELDS) ? (Datum) 0 :
						 PG_GETARG_DATUM(RULE_CONFIDENTIAL_FIELDS));
	if (rule->confidential_paths != NIL && rule->requires_approval)
		idem_bad_setting("confidential_fields", "empty where an approval is required: a taker could not act on digests");
	rule->four_eyes = idem_arg_bool(fcinfo, RULE_FOUR_EYES, false);
	if (rule->four_eyes && !rule->requires_approval)
		idem_bad_setting("four_eyes", "false where no approval is required");
}

static Datum
usec_datum(int64 usec)
{
	Interval   *value = palloc0(sizeof(Interval));

	value->day = usec / USECS_PER_DAY;
	value->time = usec % USECS_PER_DAY;
	return IntervalPGetDatum(value);
}

#define SQL_LOCK_RULES \
	"LOCK TABLE idem.idem_rules IN SHARE ROW EXCLUSIVE MODE"
#define SQL_LOCK_ACTIONS \
	"LOCK TABLE idem.idem_actions IN SHARE ROW EXCLUSIVE MODE"
#define SQL_DELETE_RULE \
	"DELETE FROM idem.idem_rules WHERE intent OPERATOR(pg_catalog.=) $1"
#define RULE_PARAMS \
	"$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25"
/* by the bytes: 30 days are another interval than a month */
#define SQL_SAME_RULE \
	"SELECT FROM idem.idem_rules r WHERE intent OPERATOR(pg_catalog.=) $1" \
	" AND r OPERATOR(pg_catalog.*=) ROW(" RULE_PARAMS ")::idem.idem_rules"
#define SQL_INSERT_RULE \
	"INSERT INTO idem.idem_rules VALUES (" RULE_PARAMS ")"
#define SQL_SHOW_RULE \
	"SELECT pg_catalog.to_jsonb(r) OPERATOR(pg_catalog.-) '{worker_role_oid,resolver_role_oid,roles_of}'::pg_catalog.text[]" \
	" FROM idem.idem_rules r WHERE intent OPERATOR(pg_catalog.=) $1"
#define SQL_KEEP_RESTRICTED \
	"INSERT INTO idem.idem_state (kind, name, role, since)" \
	" SELECT 'restricted', r.intent, $2, pg_catalog.clock_timestamp() FROM idem.idem_rules r" \
	" WHERE r.intent OPERATOR(pg_catalog.=) $1 AND (r.worker_role IS NOT NULL OR r.resolver_role IS NOT NULL)" \
	" ON CONFLICT DO NOTHING"
#define SQL_NOTE_RULE \
	"INSERT INTO idem.idem_state (kind, name, role, since)" \
	" VALUES ('ruled', $1, $2, pg_catalog.clock_timestamp()) ON CONFLICT DO NOTHING"
#define SQL_FORGET_RULE \
	"DELETE FROM idem.idem_state WHERE kind OPERATOR(pg_catalog.=) 'ruled' AND name OPERATOR(pg_catalog.=) $1"
#define SQL_INTENT_IN_USE \
	"SELECT FROM idem.idem_actions WHERE intent OPERATOR(pg_catalog.=) $1 LIMIT 1"
#define SQL_INTENT_DIFFERS \
	"SELECT FROM idem.idem_actions WHERE intent OPERATOR(pg_catalog.=) $1" \
	" AND ((key IS NULL) OPERATOR(pg_catalog.<>) $2 OR (secret_id IS NOT NULL) OPERATOR(pg_catalog.<>) $3) LIMIT 1"
#define RULE_NPARAMS RULE_NCOLS

static bool
same_steps(List *a, List *b)
{
	ListCell   *lca;
	ListCell   *lcb;

	if (list_length(a) != list_length(b))
		return false;
	forboth(lca, a, lcb, b)
	{
		if (strcmp(lfirst(lca), lfirst(lcb)) != 0)
			return false;
	}
	return true;
}

static bool
same_paths(List *a, List *b)
{
	ListCell   *lca;
	ListCell   *lcb;

	if (list_length(a) != list_length(b))
		return false;
	forboth(lca, a, lcb, b)
	{
		if (!same_steps(lfirst(lca), lfirst(lcb)))
			return false;
	}
	return true;
}

/*
 * What is confidential decides about ids and fingerprints, so it cannot change
 * under the rows of an intent.  Where the rule is missing, the rows tell what
 * they were made under.  Caller has connected SPI.
 */
static void
check_confidentiality(const IdemRule *rule)
{
	const IdemRule *stored;
	bool		same;
	Oid			types[3] = {TEXTOID, BOOLOID, BOOLOID};
	Datum		values[3];

	/* before the stored rule is looked at, so that it is the one replaced */
	idem_run(SQL_LOCK_RULES, 0, NULL, NULL, NULL, SPI_OK_UTILITY);
	stored = idem_rule_of(rule->intent, strlen(rule->intent), false);
	same = stored->confidential_key == rule->confidential_key &&
		same_paths(stored->confidential_paths, rule->confidential_paths);
	if (same && stored->intent != NULL)
		return;
	values[0] = CStringGetTextDatum(rule->intent);
	values[1] = BoolGetDatum(rule->confidential_key);
	values[2] = BoolGetDatum(rule->confidential_key || rule->confidential_paths != NIL);

	/* waits for open claims, made under the settings as they were */
	if (!same)
		idem_run(SQL_LOCK_ACTIONS, 0, NULL, NULL, NULL, SPI_OK_UTILITY);
	if (stored->intent == NULL)
		idem_run(SQL_INTENT_DIFFERS, 3, types, values, NULL, SPI_OK_SELECT);
	else
		idem_run(SQL_INTENT_IN_USE, 1, types, values, NULL, SPI_OK_SELECT);
	if (SPI_processed > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("intent \"%s\" has actions, so what is confidential cannot change", idem_shown(rule->intent)),
				 errhint("Use another intent, or wait until the last action has been forgotten.")));
}

static void
put_role(const IdemRole *role, Datum *v, char *nulls, int name, int oid)
{
	if (role->name == NULL)
		nulls[name] = nulls[oid] = 'n';
	else
		v[name] = CStringGetTextDatum(role->name);
	v[oid] = ObjectIdGetDatum(role->oid);
}

/*
 * Stores the rule in place of an older one; false where it is stored as it is.
 * Caller has connected SPI and locked idem_rules.
 */
static bool
store_rule(const IdemRule *rule, Datum fields, const char *role)
{
	Oid			note_types[2] = {TEXTOID, TEXTOID};
	Datum		note[2];
	static Oid	types[RULE_NPARAMS] = {
		TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INTERVALOID, INTERVALOID,
		INTERVALOID, BOOLOID, INT4OID, INT4OID, INTERVALOID, INTERVALOID,
		INTERVALOID, BOOLOID, BOOLOID, TEXTOID, TEXTOID, TEXTOID,
		BOOLOID, TEXTARRAYOID, BOOLOID, OIDOID, OIDOID, TEXTOID
	};
	Datum		v[RULE_NPARAMS];
	char		nulls[RULE_NPARAMS];

	memset(nulls, ' ', sizeof(nulls));
	if (rule->provider_window == 0)
		nulls[RULE_PROVIDER_WINDOW] = 'n';
	v[RULE_INTENT] = CStringGetTextDatum(rule->intent);
	v[RULE_UNIQUE_BY] = CStringGetTextDatum(rule->unique_by);
	v[RULE_RESOLVED_BY] = CStringGetTextDatum(rule->resolved_by);
	v[RULE_NEW_WHEN] = CStringGetTextDatum(rule->new_when);
	v[RULE_ON_UNCERTAIN] = CStringGetTextDatum(idem_on_uncertain_names[rule->on_uncertain]);
	v[RULE_PROVIDER_WINDOW] = usec_datum(rule->provider_window);
	v[RULE_SETTLE] = usec_datum(rule->settle);
	v[RULE_LEASE] = usec_datum(rule->lease);
	v[RULE_MARKS_EFFECT] = BoolGetDatum(rule->marks_effect);
	v[RULE_MAX_ATTEMPTS] = Int32GetDatum(rule->max_attempts);
	v[RULE_MAX_FAILURES] = Int32GetDatum(rule->max_failures);
	v[RULE_RETRY_DELAY] = usec_datum(rule->retry_delay);
	v[RULE_KEEP_CONTENT] = IntervalPGetDatum(&rule->keep_content);
	v[RULE_KEEP_KEY] = IntervalPGetDatum(&rule->keep_key);
	v[RULE_REQUIRES_APPROVAL] = BoolGetDatum(rule->requires_approval);
	v[RULE_SCOPED] = BoolGetDatum(rule->scoped);
	v[RULE_RERUN_BY] = CStringGetTextDatum(rule->rerun_by);
	put_role(&rule->worker_role, v, nulls, RULE_WORKER_ROLE, RULE_WORKER_ROLE_OID);
	put_role(&rule->resolver_role, v, nulls, RULE_RESOLVER_ROLE, RULE_RESOLVER_ROLE_OID);
	v[RULE_ROLES_OF] = CStringGetTextDatum(idem_roles_of());
	v[RULE_CONFIDENTIAL_KEY] = BoolGetDatum(rule->confidential_key);
	v[RULE_CONFIDENTIAL_FIELDS] = fields;
	v[RULE_FOUR_EYES] = BoolGetDatum(rule->four_eyes);
	if (fields == (Datum) 0)
		nulls[RULE_CONFIDENTIAL_FIELDS] = 'n';

	idem_run(SQL_SAME_RULE, RULE_NPARAMS, types, v, nulls, SPI_OK_SELECT);
	if (SPI_processed > 0)
		return false;
	idem_run(SQL_DELETE_RULE, 1, types, v, NULL, SPI_OK_DELETE);
	idem_run(SQL_INSERT_RULE, RULE_NPARAMS, types, v, nulls, SPI_OK_INSERT);

	note[0] = v[RULE_INTENT];
	note[1] = CStringGetTextDatum(role);
	idem_run(SQL_NOTE_RULE, 2, note_types, note, NULL, SPI_OK_INSERT);
	return true;
}

/*
 * The stored rule as jsonb, for the history, whatever the session's way to
 * print an interval.  Caller has connected SPI.
 */
static Jsonb *
stored_rule(const char *intent)
{
	Oid			type = TEXTOID;
	Datum		value = CStringGetTextDatum(intent);
	bool		isnull;
	int			level = NewGUCNestLevel();

	(void) set_config_option("IntervalStyle", "postgres", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	idem_run(SQL_SHOW_RULE, 1, &type, &value, NULL, SPI_OK_SELECT);
	AtEOXact_GUC(true, level);
	if (SPI_processed == 0)
		return NULL;
	return DatumGetJsonbPCopy(SPI_getbinval(SPI_tuptable->vals[0],
											SPI_tuptable->tupdesc, 1, &isnull));
}

/* a line of the history about a rule */
static void
record_change(const char *event, const char *intent, Jsonb *detail)
{
	IdemEvent	line = {.event = event,.intent = intent,.detail = detail};

	idem_ledger_append(&line);
}

static const char *
members_of(const IdemRole *role)
{
	if (!OidIsValid(idem_role_here(role)))
		return psprintf("nobody, since %s is no role here", role->name);
	return psprintf("members of %s", idem_role_name(role));
}

/* "what makes an action unique, ..." in words that follow from the settings */
static char *
describe(const IdemRule *rule, const char *intent)
{
	StringInfoData s;

	initStringInfo(&s);
	appendStringInfo(&s, "Rule of \"%s\"\n", intent);
	appendStringInfo(&s, "What makes an action unique: %s.%s\n", rule->unique_by,
					 rule->scoped ? " Each scope counts apart and must be named." : "");
	appendStringInfo(&s, "When a new one is allowed: %s. ", rule->new_when);
	if (strcmp(rule->rerun_by, "nobody") == 0)
		appendStringInfoString(&s, "Nobody may rerun it.\n");
	else
		appendStringInfo(&s, "A %s may rerun it.\n", rule->rerun_by);
	appendStringInfo(&s, "How long it is remembered: contents %s, key and external reference %s, counted from the end of the action. While unresolved it is kept without limit.\n",
					 idem_interval_text(&rule->keep_content), idem_interval_text(&rule->keep_key));
	appendStringInfo(&s, "When a retry is safe: a claim is protected for %s. ", idem_usec_text(rule->lease));
	if (rule->marks_effect)
		appendStringInfoString(&s, "An attempt lost before begin_effect did nothing and is tried again. ");
	switch (rule->on_uncertain)
	{
		case IDEM_REVIEW:
			appendStringInfoString(&s, "An attempt that may have taken effect is never repeated without a person's word.");
			break;
		case IDEM_SEARCH:
			appendStringInfo(&s, "An attempt that may have taken effect is searched for outside first, not before %s have passed.",
							 idem_usec_text(rule->settle));
			break;
		case IDEM_RETRY:
			appendStringInfo(&s, "An attempt that may have taken effect is repeated with the same provider key, as long as it ends within %s of the first claim; later a person decides.",
							 idem_usec_text(rule->provider_window));
			break;
		case IDEM_REPEAT:
			appendStringInfoString(&s, "An attempt that may have taken effect is repeated: doing it twice harms nobody.");
			break;
	}
	appendStringInfo(&s, " After %d lost attempt%s or %d clean failure%s a person decides; the delay after a failure starts at %s.\n",
					 rule->max_attempts, rule->max_attempts == 1 ? "" : "s",
					 rule->max_failures, rule->max_failures == 1 ? "" : "s",
					 idem_usec_text(Min(rule->retry_delay, IDEM_MAX_RETRY_DELAY)));
	if (rule->requires_approval)
		appendStringInfo(&s, "Nothing is handed out before a person has approved the draft%s.\n",
						 rule->four_eyes ? ", who has neither drafted nor revised it" : "");
	if (rule->worker_role.name != NULL)
		appendStringInfo(&s, "Who may act: %s.\n", members_of(&rule->worker_role));
	if (rule->resolver_role.name != NULL)
		appendStringInfo(&s, "Who may decide: %s.\n", members_of(&rule->resolver_role));
	if (rule->confidential_key)
		appendStringInfoString(&s, "Its keys are kept as keyed digests only.\n");
	if (rule->confidential_fields != NULL)
		appendStringInfo(&s, "Kept as keyed digests only: %s.\n", rule->confidential_fields);
	appendStringInfo(&s, "Who resolves doubt: %s.", rule->resolved_by);
	return s.data;
}

Datum
idem_define_rule(PG_FUNCTION_ARGS)
{
	IdemRule	rule;
	IdemOwner	caller;
	Jsonb	   *detail = NULL;
	char	   *role = GetUserNameFromId(GetUserId(), false);

	rule_from_args(fcinfo, &rule);
	PreventCommandIfReadOnly("define_rule");

	idem_owner_enter(&caller);
	SPI_connect();
	check_confidentiality(&rule);
	if (store_rule(&rule, rule.confidential_fields == NULL ? (Datum) 0 : PG_GETARG_DATUM(RULE_CONFIDENTIAL_FIELDS), role))
		detail = stored_rule(rule.intent);
	idem_owner_leave(&caller);
	if (detail != NULL)
		record_change("rule_defined", rule.intent, detail);
	SPI_finish();
	/* the same rule may be another session's, not confirmed yet */
	if (detail == NULL)
		idem_confirm_all();

	PG_RETURN_TEXT_P(cstring_to_text(describe(&rule, rule.intent)));
}

Datum
idem_drop_rule(PG_FUNCTION_ARGS)
{
	Oid			types[2] = {TEXTOID, TEXTOID};
	Datum		values[2];
	char	   *intent;
	IdemOwner	caller;
	Jsonb	   *detail;

	intent = intent_arg(fcinfo, 0);
	PreventCommandIfReadOnly("drop_rule");

	idem_owner_enter(&caller);
	SPI_connect();
	values[0] = CStringGetTextDatum(intent);
	values[1] = CStringGetTextDatum(GetUserNameFromId(caller.user, false));

	/* waits for open claims, so that none is left without its rule */
	idem_run(SQL_LOCK_RULES, 0, NULL, NULL, NULL, SPI_OK_UTILITY);
	idem_run(SQL_LOCK_ACTIONS, 0, NULL, NULL, NULL, SPI_OK_UTILITY);
	idem_run(SQL_INTENT_IN_USE, 1, types, values, NULL, SPI_OK_SELECT);
	if (SPI_processed > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("intent \"%s\" still has actions", idem_shown(intent)),
				 errhint("A rule goes when its last action has been forgotten.")));
	detail = stored_rule(intent);
	if (detail == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_NO_RULE),
				 errmsg("intent \"%s\" has no rule", idem_shown(intent))));
	idem_run(SQL_KEEP_RESTRICTED, 2, types, values, NULL, SPI_OK_INSERT);
	idem_run(SQL_DELETE_RULE, 1, types, values, NULL, SPI_OK_DELETE);
	idem_run(SQL_FORGET_RULE, 1, types, values, NULL, SPI_OK_DELETE);
	idem_owner_leave(&caller);
	record_change("rule_dropped", intent, detail);
	SPI_finish();
	PG_RETURN_VOID();
}

Datum
idem_describe_rule(PG_FUNCTION_ARGS)
{
	char	   *intent;
	const IdemRule *rule;

	intent = intent_arg(fcinfo, 0);
	rule = idem_rule_of(intent, strlen(intent), true);
	if (!idem_rule_shows(rule))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_NOT_PERMITTED),
				 errmsg("intent \"%s\" is for the roles of its rule only", idem_shown(intent))));
	PG_RETURN_TEXT_P(cstring_to_text(describe(rule, intent)));
}
