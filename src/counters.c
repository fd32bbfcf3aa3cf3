/*-------------------------------------------------------------------------
 *
 * counters.c
 *	  Counting repeats in shared memory.
 *
 * One lock protects the table of counters: shared to find an entry, whose
 * numbers are atomic, exclusive to add or remove one.  A repeat that finds the
 * table full is counted as uncounted.
 *
 * Maintenance takes numbers out to write them down (repeats.c); where its
 * transaction does not commit they are put back.  So a number is in one place at
 * any time, whoever else takes some meanwhile.
 *
 * A crash of the server loses what was not written.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/counters.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "counters.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

typedef struct Counters
{
	LWLock	   *lock;
	pg_atomic_uint64 uncounted;
} Counters;

static Counters *counters = NULL;
static HTAB *repeats = NULL;

Size
idem_counters_size(void)
{
	return sizeof(Counters);
}

void
idem_counters_start(void *memory, bool fresh, LWLock *its_lock, HTAB *its_table)
{
	counters = memory;
	repeats = its_table;
	if (!fresh)
		return;
	counters->lock = its_lock;
	pg_atomic_init_u64(&counters->uncounted, 0);
}

/* at most IDEM_MAX_COUNTED bytes, never half a character */
static void
copy_label(char *to, text *label)
{
	int			len = label == NULL ? 0 : VARSIZE_ANY_EXHDR(label);

	if (len > IDEM_MAX_COUNTED)
		len = pg_mbcliplen(VARDATA_ANY(label), len, IDEM_MAX_COUNTED);
	if (len > 0)
		memcpy(to, VARDATA_ANY(label), len);
	to[len] = '\0';
}

static uint64
hash_label(text *label, uint64 seed)
{
	if (label == NULL)
		return hash_bytes_extended((const unsigned char *) "", 0, seed);
	return hash_bytes_extended((const unsigned char *) VARDATA_ANY(label),
							   VARSIZE_ANY_EXHDR(label), seed);
}

/* tells deliveries apart; NULL and '' are the same */
uint64
idem_delivery_hash(text *source, text *event_id)
{
	return hash_label(event_id, hash_label(source, 0));
}

static void
add_one(IdemRepeat *entry, TimestampTz now)
{
	pg_atomic_fetch_add_u64(&entry->n, 1);
	pg_atomic_write_u64(&entry->last_at, (uint64) now);
}

/*
 * Counts an answer to a delivery.  It is not undone by a rollback, and it is
 * lost in a crash of the server.
 */
void
idem_counter_add(const pg_uuid_t *action_id, text *intent, text *source, text *event_id, int what)
{
	IdemRepeatKey key = {0};
	IdemRepeat *entry;
	TimestampTz now;
	bool		found;

	if (counters == NULL)
		return;
	now = GetCurrentTimestamp();
	key.dbid = MyDatabaseId;
	key.day = now / USECS_PER_DAY - (now < 0 && now % USECS_PER_DAY != 0);
	key.what = what;
	key.delivery = idem_delivery_hash(source, event_id);
	key.action_id = *action_id;

	LWLockAcquire(counters->lock, LW_SHARED);
	entry = hash_search(repeats, &key, HASH_FIND, NULL);
	if (entry != NULL)
		add_one(entry, now);
	LWLockRelease(counters->lock);
	if (entry != NULL)
		return;

	LWLockAcquire(counters->lock, LW_EXCLUSIVE);
	if (hash_get_num_entries(repeats) >= IDEM_MAX_COUNTERS)
		entry = hash_search(repeats, &key, HASH_FIND, NULL);
	else
	{
		entry = hash_search(repeats, &key, HASH_ENTER_NULL, &found);
		if (entry != NULL && !found)
		{
			pg_atomic_init_u64(&entry->n, 0);
			pg_atomic_init_u64(&entry->last_at, 0);
			entry->left = false;
			entry->first_at = now;
			text_to_cstring_buffer(intent, entry->intent, sizeof(entry->intent));
			copy_label(entry->source, source);
			copy_label(entry->event_id, event_id);
		}
	}
	if (entry != NULL)
		add_one(entry, now);
	else
		pg_atomic_fetch_add_u64(&counters->uncounted, 1);
	LWLockRelease(counters->lock);
}

/* what this transaction has taken out, in a context of its own */
static List *taken = NIL;
static MemoryContext taken_context = NULL;

static void
put_back(IdemRepeat *copy)
{
	uint64		n = pg_atomic_read_u64(&copy->n);
	bool		found = true;
	IdemRepeat *entry = hash_search(repeats, &copy->key, HASH_FIND, NULL);

	if (entry == NULL && hash_get_num_entries(repeats) < IDEM_MAX_COUNTERS)
		entry = hash_search(repeats, &copy->key, HASH_ENTER_NULL, &found);
	if (entry == NULL)
		pg_atomic_fetch_add_u64(&counters->uncounted, n);
	else if (!found)
		memcpy(entry, copy, sizeof(IdemRepeat));
	else
	{
		entry->left = copy->left;
		entry->first_at = copy->first_at;
		pg_atomic_fetch_add_u64(&entry->n, n);
	}
}

/* at the end of a transaction that has taken some */
static void
end_taking(XactEvent event, void *arg)
{
	ListCell   *lc;

	if (taken == NIL || (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT))
		return;
	LWLockAcquire(counters->lock, LW_EXCLUSIVE);
	foreach(lc, taken)
	{
		IdemRepeat *copy = lfirst(lc);

		if (event == XACT_EVENT_ABORT || copy->left)
			put_back(copy);
	}
	LWLockRelease(counters->lock);
	taken = NIL;
	MemoryContextReset(taken_context);
}

/*
 * Takes out counters of a database, at most so many, until the transaction
 * commits or they are put back.  The result lives as long as it.
 */
List *
idem_counters_take(Oid dbid, int max)
{
	HASH_SEQ_STATUS status;
	IdemRepeat *entry;
	MemoryContext old;

	if (counters == NULL)
		return NIL;
	if (taken_context == NULL)
	{
		taken_context = AllocSetContextCreate(TopMemoryContext, "idem_action repeats",
											  ALLOCSET_DEFAULT_SIZES);
		RegisterXactCallback(end_taking, NULL);
	}
	old = MemoryContextSwitchTo(taken_context);
	LWLockAcquire(counters->lock, LW_EXCLUSIVE);

	/*
	 * those that were left the last time come last, or they could fill each
	 * time
	 */
	for (int left = 0; left <= 1 && list_length(taken) < max; left++)
	{
		hash_seq_init(&status, repeats);
		while ((entry = hash_seq_search(&status)) != NULL)
		{
			IdemRepeat *copy;

			if (entry->key.dbid != dbid || entry->left != (left == 1))
				continue;
			copy = palloc(sizeof(IdemRepeat));
			memcpy(copy, entry, sizeof(IdemRepeat));
			copy->left = false;
			taken = lappend(taken, copy);
			hash_search(repeats, &entry->key, HASH_REMOVE, NULL);
			if (list_length(taken) == max)
			{
				hash_seq_term(&status);
				break;
			}
		}
	}
	LWLockRelease(counters->lock);
	MemoryContextSwitchTo(old);
	return taken;
}

/* one of those taken is left for later, whatever becomes of the transaction */
void
idem_counters_leave(IdemRepeat *copy)
{
	copy->left = true;
}

/* lets go of what belongs to databases that are not in the list any more */
void
idem_counters_keep_only(List *dbids)
{
	HASH_SEQ_STATUS status;
	IdemRepeat *entry;

	LWLockAcquire(counters->lock, LW_EXCLUSIVE);
	hash_seq_init(&status, repeats);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (!list_member_oid(dbids, entry->key.dbid))
			hash_search(repeats, &entry->key, HASH_REMOVE, NULL);
	}
	LWLockRelease(counters->lock);
}

/* how many were too many since the server was started; preload only */
uint64
idem_counters_uncounted(void)
{
	return pg_atomic_read_u64(&counters->uncounted);
}
