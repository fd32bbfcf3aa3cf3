/*-------------------------------------------------------------------------
 *
 * visible.h
 *	  Which intents a caller may see, and what the views show.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/visible.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_VISIBLE_H
#define IDEM_VISIBLE_H

extern bool idem_decides_on_every_intent(void);

#endif							/* IDEM_VISIBLE_H */
