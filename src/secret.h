/*-------------------------------------------------------------------------
 *
 * secret.h
 *	  The secrets that confidential keys and contents are digested under.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/secret.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SECRET_H
#define IDEM_SECRET_H

#include "idem_action.h"
#include "nodes/pg_list.h"

#define IDEM_MIN_SECRET 32		/* bytes */

typedef struct IdemSecret
{
	char	   *id;
	uint8	   *bytes;
	int			len;
} IdemSecret;

extern char *idem_secret_file;

extern void idem_secret_file_changed(const char *newval, void *extra);
extern List *idem_secrets_in_use(void);

#endif							/* IDEM_SECRET_H */
