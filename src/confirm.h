/*-------------------------------------------------------------------------
 *
 * confirm.h
 *	  An answer waits until what it tells is durable.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/confirm.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CONFIRM_H
#define IDEM_CONFIRM_H

#include "access/xlogdefs.h"

/* the committed versions that an answer relies on; starts as all zero */
typedef struct IdemReliance
{
	bool		any;			/* at least one */
	bool		unsure;			/* shared memory may not know of its commit */
	XLogRecPtr	flush;			/* the server has to flush so far */
} IdemReliance;

extern void idem_confirm_rely(IdemReliance *reliance, TransactionId xmin);
extern void idem_confirm(const IdemReliance *reliance);
extern void idem_confirm_all(void);
extern void idem_confirm_note_write(void);

extern Size idem_confirm_size(void);
extern void idem_confirm_start(void *memory, bool fresh);

#endif							/* IDEM_CONFIRM_H */
