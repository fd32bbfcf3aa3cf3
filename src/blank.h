/*-------------------------------------------------------------------------
 *
 * blank.h
 *	  Whether a text shows anything.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/blank.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_BLANK_H
#define IDEM_BLANK_H

#include "postgres.h"

extern bool idem_is_blank(const text *value);

#endif							/* IDEM_BLANK_H */
