/*-------------------------------------------------------------------------
 *
 * digest.h
 *	  SHA-256 over unambiguous bytes.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/digest.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_DIGEST_H
#define IDEM_DIGEST_H

#include "lib/stringinfo.h"

#define IDEM_DIGEST_LENGTH		32

/*
 * What a digest is made for, and the version of its byte layout: the first
 * bytes that go into it, so that digests of two kinds never meet.  A layout
 * that has been released never changes; a new one gets a new number.
 */
#define IDEM_FORMAT_LENGTH		2
#define IDEM_FORMAT_ACTION_ID	"A1"	/* (scope, intent, key) */
#define IDEM_FORMAT_KEYED_ID	"K1"	/* the same under a secret */
#define IDEM_FORMAT_PROVIDER	"P1"	/* (action_id, generation) */
#define IDEM_FORMAT_PARAMS		"F1"	/* canonical params */
#define IDEM_FORMAT_VALUE		"V1"	/* a confidential value, under a
										 * secret */
#define IDEM_FORMAT_LEDGERS		"L1"	/* the ledgers that came together */
#define IDEM_FORMAT_CHECK		"C1"	/* nothing, under a secret: tells it
										 * apart */

extern void idem_digest_start(StringInfo buf, const char *format);
extern char *idem_digest_utf8(const char *s, int *len);
extern void idem_digest_append(StringInfo buf, const char *s, int len);
extern void idem_digest_append_text(StringInfo buf, const char *s, int len);
extern void idem_sha256(StringInfo buf, uint8 *digest);
extern void idem_hmac_sha256(const uint8 *secret, int secret_len,
							 StringInfo buf, uint8 *digest);

#endif							/* IDEM_DIGEST_H */
