/*-------------------------------------------------------------------------
 *
 * canon.h
 *	  Canonical bytes of a jsonb.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/canon.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CANON_H
#define IDEM_CANON_H

#include "utils/jsonb.h"

#include "digest.h"

extern void idem_params_digest(Jsonb *params, uint8 *digest);
extern char *idem_value_digest(JsonbValue *value, const uint8 *secret, int secret_len);
extern char *idem_params_difference(Jsonb *stored, Jsonb *given);

#endif							/* IDEM_CANON_H */
