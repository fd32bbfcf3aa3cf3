/*-------------------------------------------------------------------------
 *
 * conceal.h
 *	  Confidential fields of params, as keyed digests.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/conceal.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CONCEAL_H
#define IDEM_CONCEAL_H

#include "nodes/pg_list.h"
#include "secret.h"
#include "utils/jsonb.h"

extern List *idem_field_path(const char *path);
extern Jsonb *idem_conceal(Jsonb *params, List *paths, const IdemSecret *secret);

#endif							/* IDEM_CONCEAL_H */
