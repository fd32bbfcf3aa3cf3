/*-------------------------------------------------------------------------
 *
 * rule.c
 *	  Rules: what an intent's actions may do, stored, cached and printed.
 *
 * Every call on an action needs its intent's rule, so each backend keeps the
 * rules it has used.  idem_rules has a trigger that sends a relcache
 * invalidation of the table; it reaches the other sessions at commit, the own
 * session at once and again on rollback, and empties the cache.  Callers open
 * the ledger first (taking a table lock handles pending invalidations) and ask
 * for the rule afterwards, so a change holds from the next call on.
 *
 * A rule is read by a scan that is not MVCC, so that it neither depends on the
 * transaction's snapshot nor takes predicate locks.  Such a scan can miss a
 * row that is being replaced; before a rule counts as missing, a scan with the
 * latest MVCC snapshot has to agree.
 *
 * An intent without a rule goes on by the defaults where require_rule is off.
 * One that had a rule does not: the defaults would open what worker_role closed
 * and forget that keys are confidential, so the same key would be another
 * action.  Each action remembers whether a rule made it, and idem_state (kind
 * "ruled") which intents were given one, since a new key has no row yet.  Where
 * a data-only restore or a DELETE has lost the rule, every call is denied and
 * the pass leaves the actions alone until define_rule states it again.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/rule.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "rule.h"
#include "access.h"
#include "access/table.h"
#include "arg.h"
#include "blank.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "conceal.h"
#include "errors.h"
#include "executor/spi.h"
#include "key.h"
#include "ledger.h"
#include "miscadmin.h"
#include "settings.h"
#include "table.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

/* columns of idem_rules, and arguments of define_rule in the same order */
enum
{
	RULE_INTENT,
	RULE_UNIQUE_BY,
	RULE_RESOLVED_BY,
	RULE_NEW_WHEN,
	RULE_ON_UNCERTAIN,
	RULE_PROVIDER_WINDOW,
	RULE_SETTLE,
	RULE_LEASE,
	RULE_MARKS_EFFECT,
	RULE_MAX_ATTEMPTS,
	RULE_MAX_FAILURES,
	RULE_RETRY_DELAY,
	RULE_KEEP_CONTENT,
	RULE_KEEP_KEY,
	RULE_REQUIRES_APPROVAL,
	RULE_SCOPED,
	RULE_RERUN_BY,
	RULE_WORKER_ROLE,
	RULE_RESOLVER_ROLE,
	RULE_CONFIDENTIAL_KEY,
	RULE_CONFIDENTIAL_FIELDS,
	RULE_FOUR_EYES,
	/* what define_rule adds */
	RULE_WORKER_ROLE_OID,
	RULE_RESOLVER_ROLE_OID,
	RULE_ROLES_OF,
	RULE_NCOLS
};

static const char *const on_uncertain_names[] = {
	[IDEM_REVIEW] = "review",
	[IDEM_SEARCH] = "verify",
	[IDEM_RETRY] = "retry",
	[IDEM_REPEAT] = "repeat",
};

/* what an omitted setting means */
#define DEFAULTS \
	.unique_by = "its key", \
	.resolved_by = "nobody named", \
	.new_when = "only on a deliberate rerun", \
	.on_uncertain = IDEM_REVIEW, \
	.settle = 2 * USECS_PER_MINUTE, \
	.lease = 5 * USECS_PER_MINUTE, \
	.max_attempts = 3, \
	.max_failures = 12, \
	.retry_delay = 30 * USECS_PER_SEC, \
	.keep_content = {.day = 90}, \
	.keep_key = {.day = 400}, \
	.rerun_by = "resolver"

static const IdemRule defaults = {DEFAULTS};
static const IdemRule missing = {DEFAULTS,.is_missing = true};

#define MAX_FIELDS 100			/* confidential ones of a rule */
#define INTENT_SIZE 260			/* IDEM_MAX_INTENT and its end, rounded up */

typedef struct RuleEntry
{
	char		intent[INTENT_SIZE];
	IdemRule	rule;
} RuleEntry;

static HTAB *cache = NULL;
static MemoryContext cache_context = NULL;
static bool cache_valid = false;
static Oid	cache_relid = InvalidOid;

PG_FUNCTION_INFO_V1(idem_define_rule);
PG_FUNCTION_INFO_V1(idem_drop_rule);
PG_FUNCTION_INFO_V1(idem_describe_rule);
PG_FUNCTION_INFO_V1(idem_settings_changed);

static void
forget_cached_rules(Datum arg, Oid relid)
{
	if (relid == cache_relid || !OidIsValid(relid))
		cache_valid = false;
}

/* an empty cache, its callback registered once per backend */
static void
reset_cache(Oid relid)
{
	HASHCTL		ctl = {0};

	if (cache_context == NULL)
	{
		cache_context = AllocSetContextCreate(CacheMemoryContext,
											  "idem_action cache",
											  ALLOCSET_SMALL_SIZES);
		CacheRegisterRelcacheCallback(forget_cached_rules, (Datum) 0);
	}
	MemoryContextReset(cache_context);
	ctl.keysize = INTENT_SIZE;
	ctl.entrysize = sizeof(RuleEntry);
	ctl.hcxt = cache_context;
	cache = hash_create("idem_action rules", 32, &ctl,
						HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	cache_relid = relid;
	cache_valid = true;
}

static int
on_uncertain_of(const char *name)
{
	for (int i = 0; i < (int) lengthof(on_uncertain_names); i++)
	{
		if (strcmp(on_uncertain_names[i], name) == 0)
			return i;
	}
	return -1;
}

/* a stored interval in microseconds; the CHECKs of define_rule have passed */
static int64
stored_usec(Datum value, bool isnull)
{
	int64		usec = 0;

	if (!isnull && !idem_interval_usec(DatumGetIntervalP(value), &usec))
		elog(ERROR, "stored interval out of range");
	return usec;
}

static void
bad_setting(const char *setting, const char *wanted)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("setting %s must be %s", setting, wanted)));
}

/* the paths of confidential fields, from a text[] or (Datum) 0 */
static void
set_fields(IdemRule *rule, Datum fields)
{
	StringInfoData names;
	Datum	   *values;
	bool	   *nulls;
	int			n;

	rule->confidential_paths = NIL;
	rule->confidential_fields = NULL;
	if (fields == (Datum) 0)
		return;
	if (ARR_NDIM(DatumGetArrayTypeP(fields)) > 1)
		bad_setting("confidential_fields", "a list, not a table");
	deconstruct_array(DatumGetArrayTypeP(fields), TEXTOID, -1, false, TYPALIGN_INT,
					  &values, &nulls, &n);
	initStringInfo(&names);
	if (n > MAX_FIELDS)
		bad_setting("confidential_fields", psprintf("at most %d paths", MAX_FIELDS));
	for (int i = 0; i < n; i++)
	{
		char	   *name = nulls[i] ? NULL : TextDatumGetCString(values[i]);
		List	   *path = name == NULL || strlen(name) > IDEM_MAX_LABEL ? NIL : idem_field_path(name);

		if (path == NIL)
			bad_setting("confidential_fields", "paths like customer.phone or items[].name");
		rule->confidential_paths = lappend(rule->confidential_paths, path);
		appendStringInfo(&names, "%s%s", i > 0 ? ", " : "", name);
	}
	if (n > 0)
		rule->confidential_fields = names.data;
}

static void
get_role(IdemRole *role, const Datum *v, const bool *n, int name, int oid, bool is_foreign)
{
	if (n[name])
		return;
	role->name = TextDatumGetCString(v[name]);
	role->oid = n[oid] ? InvalidOid : DatumGetObjectId(v[oid]);
	role->is_foreign = is_foreign;
}

/* the rule in a row of idem_rules, its strings in cache_context */
static void
rule_from_row(HeapTuple tuple, TupleDesc desc, IdemRule *rule)
{
	Datum		v[RULE_NCOLS];
	bool		n[RULE_NCOLS];
	bool		is_foreign;
	MemoryContext old;

	heap_deform_tuple(tuple, desc, v, n);
	memset(rule, 0, sizeof(*rule));

	old = MemoryContextSwitchTo(cache_context);
	rule->intent = TextDatumGetCString(v[RULE_INTENT]);
	rule->unique_by = TextDatumGetCString(v[RULE_UNIQUE_BY]);
	rule->resolved_by = TextDatumGetCString(v[RULE_RESOLVED_BY]);
	rule->new_when = TextDatumGetCString(v[RULE_NEW_WHEN]);
	rule->rerun_by = TextDatumGetCString(v[RULE_RERUN_BY]);
	is_foreign = strcmp(TextDatumGetCString(v[RULE_ROLES_OF]), idem_roles_of()) != 0;
	get_role(&rule->worker_role, v, n, RULE_WORKER_ROLE, RULE_WORKER_ROLE_OID, is_foreign);
	get_role(&rule->resolver_role, v, n, RULE_RESOLVER_ROLE, RULE_RESOLVER_ROLE_OID, is_foreign);
	set_fields(rule, n[RULE_CONFIDENTIAL_FIELDS] ? (Datum) 0 : v[RULE_CONFIDENTIAL_FIELDS]);
	MemoryContextSwitchTo(old);

	rule->on_uncertain = on_uncertain_of(TextDatumGetCString(v[RULE_ON_UNCERTAIN]));
	rule->provider_window = stored_usec(v[RULE_PROVIDER_WINDOW], n[RULE_PROVIDER_WINDOW]);
	rule->settle = stored_usec(v[RULE_SETTLE], false);
	rule->lease = stored_usec(v[RULE_LEASE], false);
	rule->marks_effect = DatumGetBool(v[RULE_MARKS_EFFECT]);
	rule->max_attempts = DatumGetInt32(v[RULE_MAX_ATTEMPTS]);
	rule->max_failures = DatumGetInt32(v[RULE_MAX_FAILURES]);
	rule->retry_delay = stored_usec(v[RULE_RETRY_DELAY], false);
	rule->keep_content = *DatumGetIntervalP(v[RULE_KEEP_CONTENT]);
	rule->keep_key = *DatumGetIntervalP(v[RULE_KEEP_KEY]);
	rule->requires_approval = DatumGetBool(v[RULE_REQUIRES_APPROVAL]);
	rule->scoped = DatumGetBool(v[RULE_SCOPED]);
	rule->confidential_key = DatumGetBool(v[RULE_CONFIDENTIAL_KEY]);
	rule->four_eyes = DatumGetBool(v[RULE_FOUR_EYES]);
}

/* reads one row of idem_rules; false where the snapshot shows none */
static bool
read_rule(Relation rel, const char *intent, Snapshot snapshot, IdemRule *rule)
{
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found;

	ScanKeyInit(&key, RULE_INTENT + 1, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(intent));
	key.sk_collation = TupleDescAttr(RelationGetDescr(rel), RULE_INTENT)->attcollation;
	scan = systable_beginscan(rel, RelationGetPrimaryKeyIndex(rel, false), true,
							  snapshot, 1, &key);
	tuple = systable_getnext(scan);
	found = HeapTupleIsValid(tuple);
	if (found)
		rule_from_row(tuple, RelationGetDescr(rel), rule);
	systable_endscan(scan);
	return found;
}

void
idem_raise_no_rule(const char *intent, bool is_missing)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NO_RULE),
			 errmsg("intent \"%s\" has no rule", idem_shown(intent)),
			 is_missing ? errdetail("It had one, so the defaults do not hold in its place.") : 0,
			 errhint("Call idem.define_rule(intent => %s, unique_by => '...', resolved_by => '...').",
					 quote_literal_cstr(idem_shown(intent)))));
}

static bool
had_rule(const char *intent)
{
	ListCell   *lc;

	foreach(lc, idem_settings()->ruled)
	{
		if (idem_text_is(lfirst(lc), intent))
			return true;
	}
	return false;
}

/*
 * The rule of an intent, valid until the next call of this function.  Without
 * one the defaults hold, or where it is missing a rule that lets nobody do
 * anything.  For a call that needs a rule ("required") both are an error IA005,
 * the defaults only unless require_rule is off.
 */
const IdemRule *
idem_rule_of(const char *intent, int len, bool required)
{
	char		name[INTENT_SIZE];
	RuleEntry  *entry;
	IdemRule	rule;
	Relation	rel;
	bool		found;

	if (len >= INTENT_SIZE)
		elog(ERROR, "intent was not checked");
	memcpy(name, intent, len);
	memset(name + len, 0, INTENT_SIZE - len);

	if (cache_valid)
	{
		entry = hash_search(cache, name, HASH_FIND, NULL);
		if (entry != NULL)
			return &entry->rule;
	}

	rel = idem_relation_open("idem_rules", RULE_NCOLS, AccessShareLock);
	if (!cache_valid)
		reset_cache(RelationGetRelid(rel));
	found = read_rule(rel, name, SnapshotSelf, &rule);
	if (!found)
	{
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

		found = read_rule(rel, name, snapshot, &rule);
		UnregisterSnapshot(snapshot);
	}
	table_close(rel, AccessShareLock);

	if (!found)
	{
		bool		is_missing = had_rule(name);

		if (required && (is_missing || idem_require_rule))
			idem_raise_no_rule(name, is_missing);
		return is_missing ? &missing : &defaults;
	}
	entry = hash_search(cache, name, HASH_ENTER, NULL);
	entry->rule = rule;
	return &entry->rule;
}

/* the same for an action that is in the ledger: never an error */
const IdemRule *
idem_rule_of_action(const IdemAction *action)
{
	const IdemRule *rule = idem_rule_of(VARDATA_ANY(action->intent),
										VARSIZE_ANY_EXHDR(action->intent), false);

	return rule->intent == NULL && action->ruled ? &missing : rule;
}

/* members only, where a role is named */
static bool
lets_in(const IdemRole *role, Oid user)
{
	return role->name == NULL || idem_role_has_member(role, user);
}

/* may the caller claim, take and report? */
bool
idem_rule_lets_act(const IdemRule *rule)
{
	return !rule->is_missing && lets_in(&rule->worker_role, GetUserId());
}

/*
 * May the caller decide?  EXECUTE does not tell: workers share some functions
 * with those who decide, so the level is asked for too.
 */
bool
idem_rule_lets_decide(const IdemRule *rule)
{
	return !rule->is_missing &&
		lets_in(&rule->resolver_role, GetUserId()) &&
		idem_is_operator(GetUserId());
}

/*
 * May a role see the intent?  Whoever acts or decides does; where only the
 * workers are named, every operator decides and so sees.  The ledger's owner
 * and superusers see it in any case: where the rule is missing or its roles were
 * dropped, somebody has to find out.
 */
bool
idem_rule_lets_see(const IdemRule *rule, Oid user)
{
	bool		acts = rule->worker_role.name != NULL;
	bool		decides = rule->resolver_role.name != NULL;

	if (rule->is_missing)
		return idem_is_owner(user);
	if (!acts && !decides)
		return true;
	return (acts && idem_role_has_member(&rule->worker_role, user)) ||
		(decides && idem_role_has_member(&rule->resolver_role, user)) ||
		(!decides && idem_is_operator(user)) ||
		idem_is_owner(user);
}

/* may the caller see the intent? */
bool
idem_rule_shows(const IdemRule *rule)
{
	return idem_rule_lets_see(rule, GetUserId());
}

/* the intents that have a rule, or should have */
List *
idem_intents_with_rules(void)
{
	Relation	rel = idem_relation_open("idem_rules", RULE_NCOLS, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
	List	   *intents = NIL;
	ListCell   *lc;

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		slot_getallattrs(slot);
		intents = lappend(intents, DatumGetTextPCopy(slot->tts_values[RULE_INTENT]));
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	foreach(lc, idem_settings()->ruled)
		intents = lappend(intents, DatumGetTextPCopy(PointerGetDatum(lfirst(lc))));
	return intents;
}

/*
 * Retention runs from the end of the action, on the calendar of UTC.
 */
void
idem_rule_start_retention(const IdemRule *rule, IdemAction *action)
{
	Datum		end = TimestampGetDatum(action->finished_at);

	action->purge_after =
		DatumGetTimestamp(DirectFunctionCall2(timestamp_pl_interval, end,
											  IntervalPGetDatum(&rule->keep_content)));
	action->forget_after =
		DatumGetTimestamp(DirectFunctionCall2(timestamp_pl_interval, end,
											  IntervalPGetDatum(&rule->keep_key)));
}

/*-------------------------------------------------------------------------
 * define_rule
 *-------------------------------------------------------------------------
 */

static char *
intent_arg(FunctionCallInfo fcinfo, int n)
{
	if (PG_ARGISNULL(n))
		bad_setting("intent", "given");
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
			bad_setting(name, "given: a sentence that a colleague understands");
		return otherwise;
	}
	if (idem_is_blank(PG_GETARG_TEXT_PP(n)))
		bad_setting(name, "a sentence that a colleague understands, not blank");
	if (VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(n)) > IDEM_MAX_LABEL)
		bad_setting(name, "a sentence of at most 1 kB");
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
		bad_setting(name, positive ? "longer than nothing and shorter than a century"
					: "shorter than a century and not negative");
	return usec;
}

static int32
count_arg(FunctionCallInfo fcinfo, int n, const char *name, int32 otherwise)
{
	if (PG_ARGISNULL(n))
		return otherwise;
	if (PG_GETARG_INT32(n) < 1)
		bad_setting(name, "at least 1");
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
		bad_setting(name, "an existing role");
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
	*rule = defaults;
	rule->intent = intent_arg(fcinfo, RULE_INTENT);
	rule->unique_by = sentence_arg(fcinfo, RULE_UNIQUE_BY, "unique_by", NULL);
	rule->resolved_by = sentence_arg(fcinfo, RULE_RESOLVED_BY, "resolved_by", NULL);
	rule->new_when = sentence_arg(fcinfo, RULE_NEW_WHEN, "new_when", defaults.new_when);

	if (!PG_ARGISNULL(RULE_ON_UNCERTAIN))
	{
		int			i = on_uncertain_of(text_to_cstring(PG_GETARG_TEXT_PP(RULE_ON_UNCERTAIN)));

		if (i < 0)
			bad_setting("on_uncertain", "review, verify, retry or repeat");
		rule->on_uncertain = i;
	}
	rule->provider_window = duration_arg(fcinfo, RULE_PROVIDER_WINDOW, "provider_window", 0, true);
	if (rule->on_uncertain == IDEM_RETRY && rule->provider_window == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("on_uncertain \"retry\" needs a provider_window"),
				 errdetail("Trying again is safe only as long as the provider remembers the key."),
				 errhint("Set provider_window to what the provider promises, or use on_uncertain => 'review'.")));
	rule->settle = duration_arg(fcinfo, RULE_SETTLE, "settle", defaults.settle, false);
	rule->lease = duration_arg(fcinfo, RULE_LEASE, "lease", defaults.lease, true);
	rule->marks_effect = idem_arg_bool(fcinfo, RULE_MARKS_EFFECT, false);
	rule->max_attempts = count_arg(fcinfo, RULE_MAX_ATTEMPTS, "max_attempts", defaults.max_attempts);
	rule->max_failures = count_arg(fcinfo, RULE_MAX_FAILURES, "max_failures", defaults.max_failures);
	rule->retry_delay = duration_arg(fcinfo, RULE_RETRY_DELAY, "retry_delay", defaults.retry_delay, false);

	(void) duration_arg(fcinfo, RULE_KEEP_CONTENT, "keep_content", 0, false);
	(void) duration_arg(fcinfo, RULE_KEEP_KEY, "keep_key", 0, true);
	if (!PG_ARGISNULL(RULE_KEEP_CONTENT))
		rule->keep_content = *PG_GETARG_INTERVAL_P(RULE_KEEP_CONTENT);
	if (!PG_ARGISNULL(RULE_KEEP_KEY))
		rule->keep_key = *PG_GETARG_INTERVAL_P(RULE_KEEP_KEY);
	if (!key_outlives_content(rule))
		bad_setting("keep_key", "at least as long as keep_content: a key outlives its contents");

	rule->requires_approval = idem_arg_bool(fcinfo, RULE_REQUIRES_APPROVAL, false);
	rule->scoped = idem_arg_bool(fcinfo, RULE_SCOPED, false);
	if (!PG_ARGISNULL(RULE_RERUN_BY))
	{
		rule->rerun_by = text_to_cstring(PG_GETARG_TEXT_PP(RULE_RERUN_BY));
		if (strcmp(rule->rerun_by, "resolver") != 0 &&
			strcmp(rule->rerun_by, "worker") != 0 &&
			strcmp(rule->rerun_by, "nobody") != 0)
			bad_setting("rerun_by", "resolver, worker or nobody");
	}

	rule->worker_role = role_arg(fcinfo, RULE_WORKER_ROLE, "worker_role");
	rule->resolver_role = role_arg(fcinfo, RULE_RESOLVER_ROLE, "resolver_role");

	rule->confidential_key = idem_arg_bool(fcinfo, RULE_CONFIDENTIAL_KEY, false);
	set_fields(rule, PG_ARGISNULL(RULE_CONFIDENTIAL_FIELDS) ? (Datum) 0 :
			   PG_GETARG_DATUM(RULE_CONFIDENTIAL_FIELDS));
	if (rule->confidential_paths != NIL && rule->requires_approval)
		bad_setting("confidential_fields", "empty where an approval is required: a taker could not act on digests");
	rule->four_eyes = idem_arg_bool(fcinfo, RULE_FOUR_EYES, false);
	if (rule->four_eyes && !rule->requires_approval)
		bad_setting("four_eyes", "false where no approval is required");
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
	v[RULE_ON_UNCERTAIN] = CStringGetTextDatum(on_uncertain_names[rule->on_uncertain]);
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

/* trigger on idem_rules and idem_state: every session forgets what it has cached
 * of them */
Datum
idem_settings_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function was not called by the trigger manager")));
	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	PG_RETURN_POINTER(NULL);
}
