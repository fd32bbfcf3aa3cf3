/*-------------------------------------------------------------------------
 *
 * shared.c
 *	  The library's shared memory: what is known of each database
 *	  (databases.c), counted repeats (counters.c), bells (bells.c), commits that
 *	  no standby has confirmed (confirm.c).
 *
 * There is some only if the library was preloaded; without it everything works
 * but the automatic pass and the counters, and waiters look from time to time.
 * Its size is fixed.  A crash of the server clears it.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/shared.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "shared.h"
#include "bells.h"
#include "confirm.h"
#include "counters.h"
#include "databases.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

static void
request_memory(void)
{
	Size		size;

	if (previous_request_hook)
		previous_request_hook();
	size = add_size(idem_databases_size(), idem_bells_size());
	size = add_size(size, hash_estimate_size(IDEM_MAX_COUNTERS, sizeof(IdemRepeat)));
	size = add_size(size, idem_confirm_size());
	RequestAddinShmemSpace(add_size(size, idem_counters_size()));
	RequestNamedLWLockTranche("idem_action", 2);
}

/* a part of its own; the same in every process, and fresh in the first */
static void *
part(const char *name, Size size, bool *fresh)
{
	bool		found;
	void	   *memory = ShmemInitStruct(name, size, &found);

	*fresh = !found;
	if (*fresh)
		memset(memory, 0, size);
	return memory;
}

static void
start_memory(void)
{
	LWLockPadded *locks;
	HASHCTL		ctl = {.keysize = sizeof(IdemRepeatKey),.entrysize = sizeof(IdemRepeat)};
	void	   *memory;
	bool		fresh;

	if (previous_startup_hook)
		previous_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	locks = GetNamedLWLockTranche("idem_action");
	memory = part("idem_action databases", idem_databases_size(), &fresh);
	idem_databases_start(memory, &locks[0].lock);
	memory = part("idem_action bells", idem_bells_size(), &fresh);
	idem_bells_start(memory, fresh);
	memory = part("idem_action confirmations", idem_confirm_size(), &fresh);
	idem_confirm_start(memory, fresh);
	memory = part("idem_action counters", idem_counters_size(), &fresh);
	idem_counters_start(memory, fresh, &locks[1].lock,
						ShmemInitHash("idem_action repeats", IDEM_MAX_COUNTERS, IDEM_MAX_COUNTERS,
									  &ctl, HASH_ELEM | HASH_BLOBS));
	LWLockRelease(AddinShmemInitLock);
}

/* only while shared_preload_libraries are loaded */
void
idem_shared_init(void)
{
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request_memory;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = start_memory;
}
