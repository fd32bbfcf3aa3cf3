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

/* a cluster and database in which the ledger may hand out, see place.c */
typedef struct IdemAcceptedPlace
{
	char	   *name;
	TimeLineID	timeline;
} IdemAcceptedPlace;

typedef struct IdemSettings
{
	List	   *paused;			/* of text, names of intents, '' for all */
	List	   *restricted;		/* likewise: their dropped rule named roles */
	List	   *used_secrets;	/* of IdemUsedSecret */
	char	   *current_secret; /* its id, or NULL */
	List	   *ruled;			/* of text, names of intents that have a rule */
	TimestampTz known_time;		/* the last one recorded, or 0: see clock.c */
	List	   *ledgers;		/* of char *, names of those that came
								 * together here */
	List	   *accepted;		/* of IdemAcceptedPlace */
	char	   *place;			/* the name of the current one */
	bool		copied;			/* that is not accepted */
	TimeLineID	timeline;		/* on which it was accepted, or 0 */
} IdemSettings;

extern const IdemSettings *idem_settings(void);

#endif							/* IDEM_SETTINGS_H */
