/*-------------------------------------------------------------------------
 *
 * place.h
 *	  The cluster and the database that a ledger is accepted in.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/place.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_PLACE_H
#define IDEM_PLACE_H

#include "access/xlogdefs.h"
#include "nodes/pg_list.h"

extern char *idem_place(List *ledgers);
extern TimeLineID idem_left_timeline(void);
extern void idem_acknowledge_left_timeline(text *actor);

#endif							/* IDEM_PLACE_H */
