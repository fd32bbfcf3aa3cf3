/*-------------------------------------------------------------------------
 *
 * key.h
 *	  Identities made from keys.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/key.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEY_H
#define IDEM_KEY_H

#include "storage/lock.h"
#include "utils/uuid.h"

/* longest names, in bytes */
#define IDEM_MAX_KEY			16384
#define IDEM_MAX_INTENT			256
#define IDEM_MAX_SCOPE			256

/* a provider key is the text of a uuid */
#define IDEM_PROVIDER_KEY_SIZE	37

extern void idem_check_key(const text *key);
extern void idem_check_intent(const text *intent);
extern void idem_check_scope(const text *scope);

extern void idem_action_id_plain(const char *scope, int scope_len,
								 const char *intent, int intent_len,
								 const char *key, int key_len,
								 pg_uuid_t *id);
extern void idem_action_id_keyed(const char *scope, int scope_len,
								 const char *intent, int intent_len,
								 const char *key, int key_len,
								 const uint8 *secret, int secret_len,
								 pg_uuid_t *id);
extern void idem_provider_key(const pg_uuid_t *action_id, int32 generation,
							  char *buf);
extern void idem_new_claim_id(pg_uuid_t *id);
extern void idem_key_locktag(const pg_uuid_t *id, LOCKTAG *tag);

#endif							/* IDEM_KEY_H */
