/*-------------------------------------------------------------------------
 *
 * bells.c
 *	  Waking those who wait for a commit.
 *
 * A bell is a condition variable that several actions or intents share by hash:
 * who waits for one listens before it looks, and a commit rings what its
 * transaction has changed.  A ring for somebody else costs a look.
 *
 * Without shared memory nothing rings, and waiters look from time to time.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/bells.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "bells.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "utils/wait_event.h"

#define BELLS 256				/* a power of two */

static ConditionVariable *bells = NULL;

static bits32 to_ring[BELLS / 32];
static bool ringing = false;

Size
idem_bells_size(void)
{
	return sizeof(ConditionVariable) * BELLS;
}

void
idem_bells_start(void *memory, bool fresh)
{
	bells = memory;
	for (int i = 0; fresh && i < BELLS; i++)
		ConditionVariableInit(&bells[i]);
}

static void
ring(XactEvent event, void *arg)
{
	if (!ringing || (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
					 event != XACT_EVENT_PREPARE))
		return;
	for (int i = 0; event == XACT_EVENT_COMMIT && i < BELLS; i++)
	{
		if (to_ring[i / 32] & ((bits32) 1 << i % 32))
			ConditionVariableBroadcast(&bells[i]);
	}
	memset(to_ring, 0, sizeof(to_ring));
	ringing = false;
}

/* the bell for an action_id, or for the name of an intent */
uint32
idem_bell_of(const void *name, int len)
{
	return hash_bytes(name, len) % BELLS;
}

void
idem_bell_ring_at_commit(uint32 bell)
{
	static bool registered = false;

	if (bells == NULL)
		return;
	if (!registered)
		RegisterXactCallback(ring, NULL);
	registered = ringing = true;
	to_ring[bell / 32] |= (bits32) 1 << bell % 32;
}

/* from now on a ring is not missed; to be called before looking */
void
idem_bell_listen(uint32 bell)
{
	if (bells != NULL)
		ConditionVariablePrepareToSleep(&bells[bell]);
}

/* sleeps until the bell rings, or without preload for "poll" at most */
void
idem_bell_await(uint32 bell, long milliseconds, long poll)
{
	if (bells != NULL)
		(void) ConditionVariableTimedSleep(&bells[bell], milliseconds,
										   PG_WAIT_EXTENSION);
	else
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(milliseconds, poll), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
	CHECK_FOR_INTERRUPTS();
}

void
idem_bell_stop_listening(void)
{
	if (bells != NULL)
		ConditionVariableCancelSleep();
}
