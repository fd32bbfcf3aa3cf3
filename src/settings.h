/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  What idem_state says about the ledger as a whole, cached.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/settings.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SETTINGS_H
#define IDEM_SETTINGS_H

#include "idem_action.h"
#include "access/xlogdefs.h"
#include "nodes/pg_list.h"

/* a secret that rows were made under; the check tells it from another */
typedef struct IdemUsedSecret
{
	char	   *id;
	char	   *check;			/* hex */
} IdemUsedSecret;

typedef struct IdemSettings
{
	List	   *paused;			/* of text, names of intents, '' for all */
	List	   *restricted;		/* likewise: their dropped rule named roles */
	List	   *used_secrets;	/* of IdemUsedSecret */
	char	   *current_secret; /* its id, or NULL */
	bool		copied;			/* another system wrote this ledger */
	TimeLineID	left_timeline;	/* the one that it was written on, or 0 */
} IdemSettings;

extern const IdemSettings *idem_settings(void);
extern bool idem_adopt(const char *kind);

#endif							/* IDEM_SETTINGS_H */
