/*-------------------------------------------------------------------------
 *
 * rule.c
 *	  Rules: what an intent's actions may do, read and cached.
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
#include "rule_columns.h"
#include "access.h"
#include "access/table.h"
#include "arg.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "conceal.h"
#include "errors.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "settings.h"
#include "table.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

const char *const idem_on_uncertain_names[] = {
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

const IdemRule idem_rule_defaults = {DEFAULTS};
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

int
idem_on_uncertain_of(const char *name)
{
	for (int i = 0; i < (int) lengthof(idem_on_uncertain_names); i++)
	{
		if (strcmp(idem_on_uncertain_names[i], name) == 0)
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

void
idem_bad_setting(const char *setting, const char *wanted)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("setting %s must be %s", setting, wanted)));
}

/* the paths of confidential fields, from a text[] or (Datum) 0 */
void
idem_rule_set_fields(IdemRule *rule, Datum fields)
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
		idem_bad_setting("confidential_fields", "a list, not a table");
	deconstruct_array(DatumGetArrayTypeP(fields), TEXTOID, -1, false, TYPALIGN_INT,
					  &values, &nulls, &n);
	initStringInfo(&names);
	if (n > MAX_FIELDS)
		idem_bad_setting("confidential_fields", psprintf("at most %d paths", MAX_FIELDS));
	for (int i = 0; i < n; i++)
	{
		char	   *name = nulls[i] ? NULL : TextDatumGetCString(values[i]);
		List	   *path = name == NULL || strlen(name) > IDEM_MAX_LABEL ? NIL : idem_field_path(name);

		if (path == NIL)
			idem_bad_setting("confidential_fields", "paths like customer.phone or items[].name");
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
	idem_rule_set_fields(rule, n[RULE_CONFIDENTIAL_FIELDS] ? (Datum) 0 : v[RULE_CONFIDENTIAL_FIELDS]);
	MemoryContextSwitchTo(old);

	rule->on_uncertain = idem_on_uncertain_of(TextDatumGetCString(v[RULE_ON_UNCERTAIN]));
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
		return is_missing ? &missing : &idem_rule_defaults;
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
