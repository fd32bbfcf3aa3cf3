/*-------------------------------------------------------------------------
 *
 * bells.h
 *	  Waking those who wait for a commit.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/bells.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_BELLS_H
#define IDEM_BELLS_H

extern uint32 idem_bell_of(const void *name, int len);
extern void idem_bell_ring_at_commit(uint32 bell);
extern void idem_bell_listen(uint32 bell);
extern void idem_bell_await(uint32 bell, long milliseconds, long poll);
extern void idem_bell_stop_listening(void);

extern Size idem_bells_size(void);
extern void idem_bells_start(void *memory, bool fresh);

#endif							/* IDEM_BELLS_H */
