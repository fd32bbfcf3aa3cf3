/*-------------------------------------------------------------------------
 *
 * secret.c
 *	  The secrets that confidential keys and contents are digested under.
 *
 * The secrets themselves are in a file that only the server can read; which of
 * them is current, and which ones rows were made under, is in idem_state.  Each
 * used one has a check value there, a digest of a constant, so that a file with
 * other bytes under the same id is noticed instead of taking every key for new.
 *
 * What it protects: that a rotation never forgets.  A key counts as new only
 * after it was looked for under every secret in use, the current one first, and
 * a secret that is missing or altered is an error.  use_secret() makes another
 * one current under a lock that no writer of idem_actions holds: whoever wrote
 * under the old one has committed before, and whoever comes later sees the new
 * one, since writers take their table lock before they ask.
 *
 * The file is read again on SIGHUP and when a secret is not among those read;
 * what was read before is wiped.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/secret.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "compat.h"
#include "secret.h"
#include "access.h"
#include "arg.h"
#include "canon.h"
#include "catalog/pg_type.h"
#include "detail.h"
#include "digest.h"
#include "errors.h"
#include "executor/spi.h"
#include "key.h"
#include "ledger.h"
#include "miscadmin.h"
#include "settings.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#define MAX_SECRET_ID 64
#define MAX_LINE 4096
#define ID_CHARACTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
#define CHECK_LENGTH 8			/* bytes of the check value */

char	   *idem_secret_file = NULL;

static List *secrets = NIL;		/* of IdemSecret, as last read */
static MemoryContext secret_context = NULL;
static bool file_read = false;

PG_FUNCTION_INFO_V1(idem_use_secret);
PG_FUNCTION_INFO_V1(idem_keyed_digest);

/*-------------------------------------------------------------------------
 * The file
 *-------------------------------------------------------------------------
 */

static void
wipe(void)
{
	ListCell   *lc;

	foreach(lc, secrets)
	{
		IdemSecret *secret = lfirst(lc);

		explicit_bzero(secret->bytes, secret->len);
	}
	secrets = NIL;
	file_read = false;
	if (secret_context != NULL)
		MemoryContextReset(secret_context);
}

/* assign hook of idem_action.secret_file; also called on every reload */
void
idem_secret_file_changed(const char *newval, void *extra)
{
	wipe();
}

static void
bad_file(const char *what, int line)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_SECRET_MISSING),
			 errmsg("the secret file cannot be used: %s", what),
			 line > 0 ? errdetail("Line %d.", line) : 0,
			 errhint("Each line is an id, a blank, and at least %d bytes in hexadecimal.", IDEM_MIN_SECRET)));
}

/* the same rule as for the server's private key */
static void
check_permissions(FILE *file)
{
	struct stat st;

	if (fstat(fileno(file), &st) != 0)
		bad_file("it cannot be examined", 0);
	if (!S_ISREG(st.st_mode))
		bad_file("it is not a regular file", 0);
	if (st.st_uid != geteuid() && st.st_uid != 0)
		bad_file("it belongs neither to the server's user nor to root", 0);
	if ((st.st_uid == geteuid() && (st.st_mode & (S_IRWXG | S_IRWXO))) ||
		(st.st_uid == 0 && (st.st_mode & (S_IWGRP | S_IXGRP | S_IRWXO))))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_SECRET_MISSING),
				 errmsg("the secret file cannot be used: others may read it"),
				 errhint("It has to have permissions 0600 or less if it belongs to the server's user, 0640 or less if it belongs to root.")));
}

static int
hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* one line "id hex"; blank lines and comments are passed over */
static void
read_line(char *buf, int line)
{
	char	   *id = buf + strspn(buf, " \t");
	char	   *hex;
	IdemSecret *secret;
	ListCell   *lc;
	int			len;

	buf[strcspn(buf, "\r\n")] = '\0';
	if (*id == '\0' || *id == '#')
		return;
	len = strcspn(id, " \t");
	hex = id + len + strspn(id + len, " \t");
	if (len > MAX_SECRET_ID || *hex == '\0')
		bad_file("a line is not an id and a secret", line);
	if ((int) strspn(id, ID_CHARACTERS) != len)
		bad_file("an id may hold letters, digits, \".\", \"_\" and \"-\" only", line);
	id[len] = '\0';
	len = strcspn(hex, " \t");
	if (hex[len + strspn(hex + len, " \t")] != '\0' || len % 2 != 0 ||
		(int) strspn(hex, "0123456789abcdefABCDEF") != len)
		bad_file("a secret is not hexadecimal", line);
	if (len / 2 < IDEM_MIN_SECRET)
		bad_file("a secret is too short", line);
	foreach(lc, secrets)
	{
		if (strcmp(((IdemSecret *) lfirst(lc))->id, id) == 0)
			bad_file("an id stands there twice", line);
	}

	secret = palloc(sizeof(IdemSecret));
	secret->id = pstrdup(id);
	secret->len = len / 2;
	secret->bytes = palloc(secret->len);
	for (int i = 0; i < secret->len; i++)
		secret->bytes[i] = hex_value(hex[2 * i]) << 4 | hex_value(hex[2 * i + 1]);
	secrets = lappend(secrets, secret);
}

static void
read_lines(FILE *file)
{
	char		buf[MAX_LINE];
	int			line = 0;

	while (fgets(buf, sizeof(buf), file) != NULL)
	{
		line++;
		if (strlen(buf) == sizeof(buf) - 1)
			bad_file("a line is too long", line);
		read_line(buf, line);
	}
	explicit_bzero(buf, sizeof(buf));
	if (ferror(file))
		bad_file("it cannot be read", 0);
}

/* reads the file anew; of a file with a fault nothing is used */
static void
read_file(void)
{
	FILE	   *file;
	struct stat st;
	MemoryContext old;

	wipe();
	if (idem_secret_file == NULL || idem_secret_file[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_SECRET_MISSING),
				 errmsg("confidential keys need a secret file"),
				 errhint("Set idem_action.secret_file to a file that only the server can read.")));
	/* before a pipe would make us wait for its other end */
	if (stat(idem_secret_file, &st) == 0 && !S_ISREG(st.st_mode))
		bad_file("it is not a regular file", 0);
	file = AllocateFile(idem_secret_file, "r");
	if (file == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_SECRET_MISSING),
				 errmsg("the secret file cannot be opened: %m"),
				 errhint("The setting idem_action.secret_file names it; the user that the server runs as must be able to read it.")));
	check_permissions(file);
	if (secret_context == NULL)
		secret_context = AllocSetContextCreate(CacheMemoryContext, "idem_action secrets",
											   ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(secret_context);
	read_lines(file);
	MemoryContextSwitchTo(old);
	FreeFile(file);
	file_read = true;
}

static const IdemSecret *
find_secret(const char *id)
{
	ListCell   *lc;

	foreach(lc, secrets)
	{
		IdemSecret *secret = lfirst(lc);

		if (strcmp(secret->id, id) == 0)
			return secret;
	}
	return NULL;
}

/*
 * A secret by its id, from the file as it is if the one read before lacks it.
 * Valid until the file is read again.
 */
static const IdemSecret *
secret_of(const char *id)
{
	const IdemSecret *secret = file_read ? find_secret(id) : NULL;

	if (secret == NULL)
	{
		read_file();
		secret = find_secret(id);
	}
	if (secret == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_SECRET_MISSING),
				 errmsg("secret \"%s\" is not in the secret file", idem_shown(id)),
				 errhint("Add its line to the file and call pg_reload_conf(). A secret that rows were made under is needed until the last of them is forgotten: no key can count as new without it.")));
	return secret;
}

/*-------------------------------------------------------------------------
 * Which are in use
 *-------------------------------------------------------------------------
 */

/* what tells a secret from another one under the same id */
static char *
check_of(const IdemSecret *secret)
{
	StringInfoData buf;
	uint8		digest[IDEM_DIGEST_LENGTH];
	char	   *hex = palloc0(2 * CHECK_LENGTH + 1);

	idem_digest_start(&buf, IDEM_FORMAT_CHECK);
	idem_hmac_sha256(secret->bytes, secret->len, &buf, digest);
	hex_encode((char *) digest, CHECK_LENGTH, hex);
	return hex;
}

/* the file, as read, has the secret that rows were made under */
static bool
as_used(const IdemUsedSecret *used)
{
	const IdemSecret *secret = find_secret(used->id);

	return secret != NULL && strcmp(check_of(secret), used->check) == 0;
}

static bool
all_as_used(const IdemSettings *settings)
{
	ListCell   *lc;

	foreach(lc, settings->used_secrets)
	{
		if (!as_used(lfirst(lc)))
			return false;
	}
	return true;
}

/*
 * The secrets to look for a key under, the current one first.  IA014 where one
 * is missing or has changed, or none has been made current yet.
 */
List *
idem_secrets_in_use(void)
{
	const IdemSettings *settings = idem_settings();
	List	   *in_use = NIL;
	ListCell   *lc;

	if (settings->current_secret == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_SECRET_MISSING),
				 errmsg("no secret is current"),
				 errhint("Call idem.use_secret with the id of a secret in the secret file.")));

	/* all of them are read before a pointer to one is kept */
	foreach(lc, settings->used_secrets)
		(void) secret_of(((IdemUsedSecret *) lfirst(lc))->id);
	if (!all_as_used(settings))
		read_file();
	foreach(lc, settings->used_secrets)
	{
		IdemUsedSecret *used = lfirst(lc);
		const IdemSecret *secret = find_secret(used->id);

		if (!as_used(used))
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_SECRET_MISSING),
					 errmsg("secret \"%s\" is not the one that rows were made under", used->id),
					 errhint("Put the former secret back under this id, and give the new one an id of its own.")));
		if (strcmp(used->id, settings->current_secret) == 0)
			in_use = lcons(unconstify(IdemSecret *, secret), in_use);
		else
			in_use = lappend(in_use, unconstify(IdemSecret *, secret));
	}
	return in_use;
}

#define SQL_LOCK_ACTIONS \
	"LOCK TABLE idem.idem_actions IN SHARE ROW EXCLUSIVE MODE"
#define SQL_KNOWN_CHECK \
	"SELECT value FROM idem.idem_state WHERE kind OPERATOR(pg_catalog.=) 'secret' AND name OPERATOR(pg_catalog.=) $1"
#define SQL_ADD_SECRET \
	"INSERT INTO idem.idem_state (kind, name, value, role, since)" \
	" VALUES ('secret', $1, $2, $3, pg_catalog.clock_timestamp()) ON CONFLICT DO NOTHING"
#define SQL_SET_CURRENT \
	"INSERT INTO idem.idem_state (kind, name, value, role, since)" \
	" VALUES ('current', 'secret', $1, $3, pg_catalog.clock_timestamp())" \
	" ON CONFLICT (kind, name) DO UPDATE SET value = EXCLUDED.value, role = EXCLUDED.role, since = EXCLUDED.since"
#define SQL_DROP_UNUSED \
	"DELETE FROM idem.idem_state s WHERE kind OPERATOR(pg_catalog.=) 'secret' AND name OPERATOR(pg_catalog.<>) $1" \
	" AND NOT EXISTS (SELECT FROM idem.idem_actions a WHERE a.secret_id OPERATOR(pg_catalog.=) s.name)"

/* makes a secret of the file the current one */
Datum
idem_use_secret(PG_FUNCTION_ARGS)
{
	char	   *id;
	const IdemSecret *secret;
	Oid			types[3] = {TEXTOID, TEXTOID, TEXTOID};
	Datum		values[3];
	IdemOwner	caller;
	IdemEvent	event = {.event = "secret_used"};
	StringInfoData detail;
	bool		isnull;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("id must not be null")));
	id = text_to_cstring(PG_GETARG_TEXT_PP(0));
	read_file();
	secret = secret_of(id);

	values[0] = CStringGetTextDatum(id);
	values[1] = CStringGetTextDatum(check_of(secret));
	values[2] = CStringGetTextDatum(GetUserNameFromId(GetUserId(), false));
	SPI_connect();
	idem_owner_enter(&caller);
	idem_run(SQL_LOCK_ACTIONS, 0, types, NULL, NULL, SPI_OK_UTILITY);
	idem_run(SQL_KNOWN_CHECK, 1, types, values, NULL, SPI_OK_SELECT);
	if (SPI_processed > 0 &&
		strcmp(TextDatumGetCString(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull)),
			   TextDatumGetCString(values[1])) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_SECRET_MISSING),
				 errmsg("secret \"%s\" is not the one that rows were made under", id),
				 errhint("Give the new secret an id of its own.")));
	idem_run(SQL_ADD_SECRET, 3, types, values, NULL, SPI_OK_INSERT);
	idem_run(SQL_SET_CURRENT, 3, types, values, NULL, SPI_OK_INSERT);
	idem_run(SQL_DROP_UNUSED, 1, types, values, NULL, SPI_OK_DELETE);
	idem_owner_leave(&caller);
	SPI_finish();

	idem_detail_start(&detail);
	idem_detail_add(&detail, "id", id);
	event.detail = idem_detail_end(&detail);
	idem_ledger_append(&event);
	PG_RETURN_VOID();
}

/* the digest that a confidential field with this text is kept as, now */
Datum
idem_keyed_digest(PG_FUNCTION_ARGS)
{
	text	   *value = PG_GETARG_TEXT_PP(0);
	const IdemSecret *secret = linitial(idem_secrets_in_use());
	JsonbValue	string;

	string.type = jbvString;
	string.val.string.val = VARDATA_ANY(value);
	string.val.string.len = VARSIZE_ANY_EXHDR(value);
	PG_RETURN_TEXT_P(cstring_to_text(idem_value_digest(&string, secret->bytes, secret->len)));
}
