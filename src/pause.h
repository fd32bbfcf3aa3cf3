/*-------------------------------------------------------------------------
 *
 * pause.h
 *	  Intents that hand nothing out for the time being.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/pause.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_PAUSE_H
#define IDEM_PAUSE_H

#include "idem_action.h"

extern bool idem_is_paused(text *intent);

#endif							/* IDEM_PAUSE_H */
