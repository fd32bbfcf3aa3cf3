/*-------------------------------------------------------------------------
 *
 * shared.h
 *	  The library's shared memory.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/shared.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SHARED_H
#define IDEM_SHARED_H

extern void idem_shared_init(void);

#endif							/* IDEM_SHARED_H */
