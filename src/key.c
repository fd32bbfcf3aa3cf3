/*-------------------------------------------------------------------------
 *
 * key.c
 *	  Identities made from keys, and the helpers that make good keys.
 *
 * An action_id is a UUIDv8 of the SHA-256 of scope, intent and key, or of
 * their HMAC-SHA-256 under a secret.  docs/action-id.md publishes the bytes:
 * anyone can compute an action_id beforehand, and whatever is released here
 * stays.  It depends on nothing but the three texts: no collation, locale,
 * time zone or encoding.
 *
 * action_key() and period_key() build keys out of what makes an outcome
 * unique.  A key must neither be shared by two outcomes nor be missing, so
 * whatever would make it NULL or ambiguous is an error.
 *
 * No message of this file repeats a key or a part of one.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/key.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "arg.h"
#include "blank.h"
#include "catalog/pg_type.h"
#include "digest.h"
#include "errors.h"
#include "fmgr.h"
#include "key.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "pgtime.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datetime.h"

/* field4 of an advisory lock tag; SQL's functions use 1 and 2 */
#define KEY_LOCK_CLASS	3

/* random bytes fetched at a time, for that many claims */
#define CLAIM_IDS_AT_ONCE	16

/* between the parts of a key; the second protects both inside a part */
#define PART_SEPARATOR	'/'
#define PART_ESCAPE		'~'

PG_FUNCTION_INFO_V1(idem_action_key);
PG_FUNCTION_INFO_V1(idem_period_key);
PG_FUNCTION_INFO_V1(idem_provider_key_of);

static void
check_name(const char *what, const text *name, int min, int max, const char *hint)
{
	int			len = VARSIZE_ANY_EXHDR(name);

	if (len < min || len > max)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_INVALID_KEY),
				 len < min ? errmsg("%s must not be empty", what) :
				 errmsg("%s is too long", what),
				 errdetail("It has %d bytes, allowed are %d to %d.", len, min, max),
				 errhint("%s", hint)));
	if (len > 0 && idem_is_blank(name))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_INVALID_KEY),
				 errmsg("%s must not be blank", what),
				 errdetail("It has nothing but white space and characters that do not show."),
				 errhint("%s", hint)));
}

/*
 * Raise IA006 unless a key, intent or scope is allowed; no scope is ''.
 */
void
idem_check_key(const text *key)
{
	check_name("key", key, 1, IDEM_MAX_KEY,
			   "Pass the identifier of the event or of the outcome, not its contents.");
}

void
idem_check_intent(const text *intent)
{
	check_name("intent", intent, 1, IDEM_MAX_INTENT,
			   "Pass the name of the step, such as send-reply.");
}

void
idem_check_scope(const text *scope)
{
	check_name("scope", scope, 0, IDEM_MAX_SCOPE,
			   "Pass the identifier of the tenant.");
}

/*
 * Make a UUID of the given version from its first 16 bytes.
 */
static void
set_uuid(pg_uuid_t *id, const uint8 *bytes, int version)
{
	memcpy(id->data, bytes, UUID_LEN);
	id->data[6] = (id->data[6] & 0x0f) | (version << 4);
	id->data[8] = (id->data[8] & 0x3f) | 0x80;
}

static void
start_action(StringInfo buf, const char *format,
			 const char *scope, int scope_len,
			 const char *intent, int intent_len,
			 const char *key, int key_len)
{
	idem_digest_start(buf, format);
	idem_digest_append_text(buf, scope, scope_len);
	idem_digest_append_text(buf, intent, intent_len);
	idem_digest_append_text(buf, key, key_len);
}

/*
 * The action_id of (scope, intent, key), texts in the encoding of the
 * database whose lengths the caller has checked.
 */
void
idem_action_id_plain(const char *scope, int scope_len,
					 const char *intent, int intent_len,
					 const char *key, int key_len,
					 pg_uuid_t *id)
{
	StringInfoData buf;
	uint8		digest[IDEM_DIGEST_LENGTH];

	start_action(&buf, IDEM_FORMAT_ACTION_ID,
				 scope, scope_len, intent, intent_len, key, key_len);
	idem_sha256(&buf, digest);
	set_uuid(id, digest, 8);
}

/*
 * The same where the rule keeps keys confidential: without the secret nobody
 * can find out by trying whether a key has been used.
 */
void
idem_action_id_keyed(const char *scope, int scope_len,
					 const char *intent, int intent_len,
					 const char *key, int key_len,
					 const uint8 *secret, int secret_len,
					 pg_uuid_t *id)
{
	StringInfoData buf;
	uint8		digest[IDEM_DIGEST_LENGTH];

	start_action(&buf, IDEM_FORMAT_KEYED_ID,
				 scope, scope_len, intent, intent_len, key, key_len);
	idem_hmac_sha256(secret, secret_len, &buf, digest);
	set_uuid(id, digest, 8);
}

/*
 * What the outside service gets as its idempotency key, terminated, in a
 * buffer of IDEM_PROVIDER_KEY_SIZE bytes.  Every attempt of a generation
 * sends the same one; that of the first is the action_id itself.
 */
void
idem_provider_key(const pg_uuid_t *action_id, int32 generation, char *buf)
{
	static const char hex[] = "0123456789abcdef";
	pg_uuid_t	id = *action_id;

	if (generation > 1)
	{
		StringInfoData bytes;
		uint8		digest[IDEM_DIGEST_LENGTH];

		idem_digest_start(&bytes, IDEM_FORMAT_PROVIDER);
		appendBinaryStringInfo(&bytes, (const char *) action_id->data, UUID_LEN);
		pq_sendint32(&bytes, generation);
		idem_sha256(&bytes, digest);
		set_uuid(&id, digest, 8);
	}

	for (int i = 0; i < UUID_LEN; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*buf++ = '-';
		*buf++ = hex[id.data[i] >> 4];
		*buf++ = hex[id.data[i] & 0x0f];
	}
	*buf = '\0';
}

/*
 * A new claim_id: a random UUIDv4, which nobody can guess.  Random bytes are
 * fetched for several at a time, and wiped as they are handed out.
 */
void
idem_new_claim_id(pg_uuid_t *id)
{
	static uint8 pool[CLAIM_IDS_AT_ONCE][UUID_LEN];
	static int	left = 0;

	if (left == 0)
	{
		if (!pg_strong_random(pool, sizeof(pool)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		left = CLAIM_IDS_AT_ONCE;
	}

	left--;
	set_uuid(id, pool[left], 4);
	explicit_bzero(pool[left], UUID_LEN);
}

/*
 * The advisory lock that guards the insertion of an action, in a class that
 * SQL can't reach.  Two actions may share a lock: it may be awaited and
 * found taken without need, but means nothing else.
 */
void
idem_key_locktag(const pg_uuid_t *id, LOCKTAG *tag)
{
	uint32		hi;
	uint32		lo;

	/* all of these bits are random: version and variant are in between */
	memcpy(&hi, id->data, sizeof(hi));
	memcpy(&lo, id->data + UUID_LEN - sizeof(lo), sizeof(lo));
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, hi, lo, KEY_LOCK_CLASS);
}

static void
reject_null(bool is_null, const char *what)
{
	if (is_null)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_INVALID_KEY),
				 errmsg("%s must not be null", what),
				 errhint("A key made without it would be missing or shared by different outcomes.")));
}

/*
 * idem.action_key(VARIADIC parts text[]) returns text
 *
 * The parts with a slash between them.  A tilde stands before each slash and
 * tilde that belongs to a part, and no part is empty, so that the list can
 * be read back from the key: no two lists share one.  A blank part is refused
 * with 22023: what should have been there is missing.
 */
Datum
idem_action_key(PG_FUNCTION_ARGS)
{
	ArrayType  *list;
	Datum	   *parts;
	bool	   *nulls;
	int			nparts;
	StringInfoData key;
	text	   *result;

	reject_null(PG_ARGISNULL(0), "list of key parts");

	list = PG_GETARG_ARRAYTYPE_P(0);
	if (ARR_NDIM(list) != 1)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_INVALID_KEY),
				 errmsg("key parts must be a non-empty list"),
				 errdetail("The array has %d dimensions.", ARR_NDIM(list)),
				 errhint("Pass each part as an argument of its own.")));

	deconstruct_array(list, TEXTOID, -1, false, TYPALIGN_INT,
					  &parts, &nulls, &nparts);

	initStringInfo(&key);
	for (int i = 0; i < nparts; i++)
	{
		text	   *part = nulls[i] ? NULL : DatumGetTextPP(parts[i]);
		char	   *c;
		char	   *end;

		CHECK_FOR_INTERRUPTS();
		if (part == NULL || VARSIZE_ANY_EXHDR(part) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_INVALID_KEY),
					 errmsg("key part %d must not be %s",
							i + 1, part == NULL ? "null" : "empty"),
					 errhint("Name what its absence means, such as none.")));
		if (idem_is_blank(part))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("key part %d must not be blank", i + 1),
					 errdetail("It has nothing but white space and characters that do not show."),
					 errhint("Name what its absence means, such as none.")));

		c = VARDATA_ANY(part);
		end = c + VARSIZE_ANY_EXHDR(part);
		if (i > 0)
			appendStringInfoChar(&key, PART_SEPARATOR);
		for (; c < end; c++)
		{
			if (*c == PART_SEPARATOR || *c == PART_ESCAPE)
				appendStringInfoChar(&key, PART_ESCAPE);
			appendStringInfoChar(&key, *c);
		}
	}
	result = cstring_to_text_with_len(key.data, key.len);
	idem_check_key(result);

	PG_RETURN_TEXT_P(result);
}

/*
 * Raise 22008 unless a year, month or day is within the years 1 to 9999, the
 * ones that four digits name.
 */
static void
check_period(int64 value, int64 first, int64 last)
{
	if (value < first || value > last)
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("period out of range"),
				 errdetail("Periods have keys in the years 1 to 9999.")));
}

/*
 * What the clock and the calendar of a zone show at t, with year and month
 * as people count them.
 */
static struct pg_tm
local_time(pg_time_t t, pg_tz *zone)
{
	struct pg_tm tm = *pg_localtime(&t, zone);

	tm.tm_year += 1900;
	tm.tm_mon += 1;
	return tm;
}

static void
shift_days(struct pg_tm *tm, int64 by)
{
	int64		date = date2j(tm->tm_year, tm->tm_mon, tm->tm_mday) + by;

	check_period(date, date2j(1, 1, 1), date2j(9999, 12, 31));
	j2date((int) date, &tm->tm_year, &tm->tm_mon, &tm->tm_mday);
}

/*
 * The day of the month is left as it is.
 */
static void
shift_months(struct pg_tm *tm, int64 by)
{
	int64		month = tm->tm_year * MONTHS_PER_YEAR + tm->tm_mon - 1 + by;

	check_period(month, MONTHS_PER_YEAR, 10000 * MONTHS_PER_YEAR - 1);
	tm->tm_year = month / MONTHS_PER_YEAR;
	tm->tm_mon = month % MONTHS_PER_YEAR + 1;
}

/*
 * The last second of the hour before the one that holds t, or the first of
 * the hour after.  An hour ends when the clock shows the next one, and when
 * the clock is put forward or back.
 */
static pg_time_t
adjacent_hour(pg_time_t t, pg_tz *zone, bool before)
{
	struct pg_tm tm = local_time(t, zone);
	pg_time_t	start = t - tm.tm_min * SECS_PER_MINUTE - tm.tm_sec;
	pg_time_t	end = start + SECS_PER_HOUR;
	pg_time_t	from = before ? start - 1 : t;
	pg_time_t	to = before ? t : end - 1;
	pg_time_t	change;
	long int	old_offset;
	long int	new_offset;
	int			old_dst;
	int			new_dst;

	check_period(tm.tm_year, 1, 9999);

	if (pg_next_dst_boundary(&from, &old_offset, &old_dst,
							 &change, &new_offset, &new_dst, zone) == 1 &&
		change <= to && old_offset != new_offset)
		start = end = change;

	return before ? start - 1 : end;
}

/*
 * The key of the hour that holds t: date and hour, and how far the clock is
 * from UTC.  The latter tells apart the two hours that a clock put back shows
 * twice; seconds appear in it in the days of local mean time only.
 */
static char *
hour_key(pg_time_t t, pg_tz *zone)
{
	struct pg_tm tm = local_time(t, zone);
	int			offset = abs((int) tm.tm_gmtoff);
	int			seconds = offset % SECS_PER_MINUTE;

	check_period(tm.tm_year, 1, 9999);

	return psprintf("%04d-%02d-%02dT%02d%c%02d:%02d%s",
					tm.tm_year, tm.tm_mon, tm.tm_mday, tm.tm_hour,
					tm.tm_gmtoff < 0 ? '-' : '+',
					offset / SECS_PER_HOUR,
					offset / SECS_PER_MINUTE % MINS_PER_HOUR,
					seconds ? psprintf(":%02d", seconds) : "");
}

/*
 * Whether a name that holds a digit is the name of a zone: the time zone database
 * has a closed list of such names, which it keeps for compatibility.  Looking into
 * its folder instead takes long, and fails where a link in it leads nowhere.
 */
static bool
is_name_with_digit(const char *name)
{
	static const char *const names[] = {
		"EST5EDT", "CST6CDT", "MST7MDT", "PST8PDT", "GMT0", "GMT+0", "GMT-0",
		"Etc/GMT0"
	};
	int			hours;
	char		sign;
	int			length = 0;

	if (pg_strncasecmp(name, "posix/", 6) == 0)
		name += 6;
	for (int i = 0; i < (int) lengthof(names); i++)
	{
		if (pg_strcasecmp(name, names[i]) == 0)
			return true;
	}
	return pg_strncasecmp(name, "Etc/GMT", 7) == 0 &&
		sscanf(name + 7, "%c%2d%n", &sign, &hours, &length) == 2 &&
		name[7 + length] == '\0' && (sign == '+' || sign == '-') &&
		strspn(name + 8, "0123456789") == strlen(name + 8) && hours <= 14;
}

/*
 * The zone of a name, or NULL.  What is no name is read as a POSIX rule by
 * pg_tzset, in which "+02:00" lies west of Greenwich.  A rule has an offset and
 * so a digit, which few names have.
 */
static pg_tz *
zone_of(const char *name)
{
	pg_tz	   *zone = pg_tzset(name);

	if (zone == NULL || !pg_tz_acceptable(zone))
		return NULL;
	if (strpbrk(name, "0123456789") != NULL && !is_name_with_digit(name))
		return NULL;
	return zone;
}

/*
 * idem.period_key(at timestamptz, period text, zone text, "offset" int)
 * returns text
 *
 * Days and whatever is longer are counted on the calendar, hours as they
 * pass.  Only names of zones are taken, as they mean the same in every session
 * and to every reader: no abbreviations, which a setting defines, and no
 * offsets, whose sign POSIX reads the other way round.
 */
Datum
idem_period_key(PG_FUNCTION_ARGS)
{
	TimestampTz at;
	char	   *period;
	char	   *zone_name;
	int64		offset;
	pg_tz	   *zone;
	pg_time_t	t;
	struct pg_tm tm;
	char	   *key;

	reject_null(PG_ARGISNULL(0), "at");
	reject_null(PG_ARGISNULL(1), "period");
	reject_null(PG_ARGISNULL(2), "zone");
	reject_null(PG_ARGISNULL(3), "offset");

	at = PG_GETARG_TIMESTAMPTZ(0);
	period = text_to_cstring(PG_GETARG_TEXT_PP(1));
	zone_name = text_to_cstring(PG_GETARG_TEXT_PP(2));
	offset = PG_GETARG_INT32(3);

	if (TIMESTAMP_NOT_FINITE(at))
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("timestamp must be finite")));

	zone = zone_of(zone_name);
	if (zone == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("time zone \"%s\" not recognized", idem_shown(zone_name)),
				 errhint("Pass a full name out of pg_timezone_names, such as Europe/Berlin.")));

	/* whole seconds, rounded down also before 2000 */
	t = at / USECS_PER_SEC - (at % USECS_PER_SEC < 0) +
		(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY;
	tm = local_time(t, zone);

	if (strcmp(period, "hour") == 0)
	{
		for (; offset != 0; offset += offset < 0 ? 1 : -1)
		{
			CHECK_FOR_INTERRUPTS();
			t = adjacent_hour(t, zone, offset < 0);
		}
		key = hour_key(t, zone);
	}
	else if (strcmp(period, "day") == 0)
	{
		shift_days(&tm, offset);
		key = psprintf("%04d-%02d-%02d", tm.tm_year, tm.tm_mon, tm.tm_mday);
	}
	else if (strcmp(period, "week") == 0)
	{
		shift_days(&tm, offset * 7);
		key = psprintf("%04d-W%02d",
					   date2isoyear(tm.tm_year, tm.tm_mon, tm.tm_mday),
					   date2isoweek(tm.tm_year, tm.tm_mon, tm.tm_mday));
	}
	else if (strcmp(period, "month") == 0)
	{
		shift_months(&tm, offset);
		key = psprintf("%04d-%02d", tm.tm_year, tm.tm_mon);
	}
	else if (strcmp(period, "quarter") == 0)
	{
		shift_months(&tm, offset * 3);
		key = psprintf("%04d-Q%d", tm.tm_year, (tm.tm_mon + 2) / 3);
	}
	else if (strcmp(period, "year") == 0)
	{
		shift_months(&tm, offset * MONTHS_PER_YEAR);
		key = psprintf("%04d", tm.tm_year);
	}
	else
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("period \"%s\" not recognized", idem_shown(period)),
				 errhint("Pass hour, day, week, month, quarter or year.")));

	PG_RETURN_TEXT_P(cstring_to_text(key));
}

/* the provider key of a generation, for SQL */
Datum
idem_provider_key_of(PG_FUNCTION_ARGS)
{
	char		buf[IDEM_PROVIDER_KEY_SIZE];

	if (PG_GETARG_INT32(1) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("generations count from 1")));
	idem_provider_key(PG_GETARG_UUID_P(0), PG_GETARG_INT32(1), buf);
	PG_RETURN_TEXT_P(cstring_to_text(buf));
}
