/*-------------------------------------------------------------------------
 *
 * repeats.h
 *	  Counted repeats on their way to idem_repeats, and out of it.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/repeats.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_REPEATS_H
#define IDEM_REPEATS_H

#include "idem_action.h"

extern bool idem_repeats_write(void);
extern int	idem_repeats_forget(const pg_uuid_t *action_id, int max);

#endif							/* IDEM_REPEATS_H */
