/*-------------------------------------------------------------------------
 *
 * digest.c
 *	  SHA-256 over unambiguous bytes.
 *
 * What is to be hashed is first laid out in a buffer: the two bytes of its
 * format, then its parts.  Whatever has no fixed length is preceded by its
 * length in bytes, 32 bits in network order, so that no two lists of parts
 * share their bytes.  Text is UTF-8 whatever the database's encoding is, so
 * that databases of any encoding agree; under SQL_ASCII nobody knows the
 * encoding and the bytes stand as they are.  Unicode is not normalised.
 *
 * Creating a hash context costs more than hashing a key with it, so that one
 * of each kind serves the backend for life.  Each use starts it afresh, which
 * makes an error in the middle of the previous one harmless.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/digest.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "common/cryptohash.h"
#include "common/hmac.h"
#include "digest.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

static pg_cryptohash_ctx *sha256_context = NULL;
static pg_hmac_ctx *hmac_context = NULL;

/*
 * Create both contexts.  With OpenSSL they belong to the current resource
 * owner and would die with the transaction; they get an owner of their own,
 * which is never released.  Without OpenSSL they are plain memory.
 */
static void
create_contexts(void)
{
	ResourceOwner caller = CurrentResourceOwner;
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);

	PG_TRY();
	{
		CurrentResourceOwner = ResourceOwnerCreate(NULL, "idem_action");
		sha256_context = pg_cryptohash_create(PG_SHA256);
		hmac_context = pg_hmac_create(PG_SHA256);
	}
	PG_FINALLY();
	{
		CurrentResourceOwner = caller;
		MemoryContextSwitchTo(oldcontext);
	}
	PG_END_TRY();
}

/*
 * Set up buf for the bytes of one digest of the given format.
 */
void
idem_digest_start(StringInfo buf, const char *format)
{
	initStringInfo(buf);
	appendBinaryStringInfo(buf, format, IDEM_FORMAT_LENGTH);
}

/*
 * The text s, not necessarily terminated, in UTF-8; *len becomes its length.
 * Where there is nothing to convert the result is s itself.
 */
char *
idem_digest_utf8(const char *s, int *len)
{
	int			encoding = GetDatabaseEncoding();
	char	   *utf8;

	if (encoding == PG_UTF8 || encoding == PG_SQL_ASCII || *len == 0)
		return unconstify(char *, s);

	utf8 = pg_server_to_any(s, *len, PG_UTF8);
	*len = strlen(utf8);
	return utf8;
}

/*
 * Append bytes as they are, behind their length.
 */
void
idem_digest_append(StringInfo buf, const char *s, int len)
{
	pq_sendint32(buf, len);
	appendBinaryStringInfo(buf, s, len);
}

/*
 * Append a text of the database in UTF-8, behind its length.
 */
void
idem_digest_append_text(StringInfo buf, const char *s, int len)
{
	char	   *utf8 = idem_digest_utf8(s, &len);

	idem_digest_append(buf, utf8, len);
	if (utf8 != s)
		pfree(utf8);
}

/*
 * SHA-256 of buf, which is freed.
 */
void
idem_sha256(StringInfo buf, uint8 *digest)
{
	if (sha256_context == NULL)
		create_contexts();

	if (pg_cryptohash_init(sha256_context) < 0 ||
		pg_cryptohash_update(sha256_context, (uint8 *) buf->data, buf->len) < 0 ||
		pg_cryptohash_final(sha256_context, digest, IDEM_DIGEST_LENGTH) < 0)
		elog(ERROR, "could not compute SHA-256: %s",
			 pg_cryptohash_error(sha256_context));

	pfree(buf->data);
}

/*
 * HMAC-SHA-256 of buf, which is freed, under a secret.
 */
void
idem_hmac_sha256(const uint8 *secret, int secret_len,
				 StringInfo buf, uint8 *digest)
{
	if (hmac_context == NULL)
		create_contexts();

	if (pg_hmac_init(hmac_context, secret, secret_len) < 0 ||
		pg_hmac_update(hmac_context, (uint8 *) buf->data, buf->len) < 0 ||
		pg_hmac_final(hmac_context, digest, IDEM_DIGEST_LENGTH) < 0)
		elog(ERROR, "could not compute HMAC-SHA-256: %s",
			 pg_hmac_error(hmac_context));

	pfree(buf->data);
}
