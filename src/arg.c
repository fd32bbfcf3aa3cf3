/*-------------------------------------------------------------------------
 *
 * arg.c
 *	  Reading, checking and bounding what callers hand in.
 *
 * What identifies an action or decides about it is refused when it is wrong;
 * what only describes it (labels, error texts) is cut instead, so that no
 * report is lost for the sake of its wording.  Intervals count as elapsed
 * time (a day is 24 hours, a month 30 days): a lease must not depend on the
 * session's time zone.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/arg.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "arg.h"
#include "blank.h"
#include "catalog/pg_type.h"
#include "common/int.h"
#include "content.h"
#include "errors.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

/* bytes of a name that a message repeats */
#define MAX_SHOWN 100

/* NULL where the argument is NULL or left to its default */
text *
idem_arg_text(FunctionCallInfo fcinfo, int n)
{
	return PG_ARGISNULL(n) ? NULL : PG_GETARG_TEXT_PP(n);
}

/* NULL where the text is blank */
text *
idem_text_given(text *value)
{
	return idem_is_blank(value) ? NULL : value;
}

/* a reference to the outside, or NULL where it is blank */
text *
idem_arg_reference(FunctionCallInfo fcinfo, int n)
{
	return PG_ARGISNULL(n) ? NULL : idem_text_given(PG_GETARG_TEXT_PP(n));
}

/* a text that only describes: cut at IDEM_MAX_LABEL, NULL where it is blank */
text *
idem_arg_label(FunctionCallInfo fcinfo, int n)
{
	return PG_ARGISNULL(n) ? NULL :
		idem_text_given(idem_text_cut(PG_GETARG_TEXT_PP(n), IDEM_MAX_LABEL));
}

/* a label that a person has to give: not null, and not blank */
text *
idem_arg_sentence(FunctionCallInfo fcinfo, int n, const char *name, const char *hint)
{
	text	   *sentence = idem_arg_label(fcinfo, n);

	if (sentence == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be %s", name, PG_ARGISNULL(n) ? "null" : "empty"),
				 errhint("%s", hint)));
	return sentence;
}

/* params or draft: refused where they break a bound of content.c */
Jsonb *
idem_arg_content(FunctionCallInfo fcinfo, int n, const char *name)
{
	Jsonb	   *content;

	if (PG_ARGISNULL(n))
		return NULL;
	content = idem_content_given(PG_GETARG_JSONB_P(n));
	if (content != NULL)
		idem_content_check(content, name);
	return content;
}

/* a result, to be bounded later */
Jsonb *
idem_arg_result(FunctionCallInfo fcinfo, int n)
{
	return PG_ARGISNULL(n) ? NULL : idem_content_given(PG_GETARG_JSONB_P(n));
}

/* a required uuid */
void
idem_arg_uuid(FunctionCallInfo fcinfo, int n, const char *name, pg_uuid_t *id)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be null", name),
				 errhint("Pass the %s that the claim was answered with.", name)));
	*id = *PG_GETARG_UUID_P(n);
}

bool
idem_arg_bool(FunctionCallInfo fcinfo, int n, bool otherwise)
{
	return PG_ARGISNULL(n) ? otherwise : PG_GETARG_BOOL(n);
}

/*
 * An interval as microseconds.  False where it is infinite or out of range.
 */
bool
idem_interval_usec(const Interval *value, int64 *usec)
{
	int64		days;

	if (pg_mul_s64_overflow(value->month, INT64CONST(30), &days) ||
		pg_add_s64_overflow(days, value->day, &days) ||
		pg_mul_s64_overflow(days, USECS_PER_DAY, usec) ||
		pg_add_s64_overflow(*usec, value->time, usec))
		return false;
	return true;
}

/* an interval argument in microseconds; 0 where it is NULL */
int64
idem_arg_usec(FunctionCallInfo fcinfo, int n, const char *name)
{
	int64		usec;

	if (PG_ARGISNULL(n))
		return 0;
	if (!idem_interval_usec(PG_GETARG_INTERVAL_P(n), &usec) || usec < 0 || usec > IDEM_CENTURY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be shorter than a century and not negative", name)));
	return usec;
}

/*
 * A lease in microseconds; 0 where the caller leaves it to the rule.  A lease
 * of nothing would let everyone in at once, an endless one nobody ever again.
 */
int64
idem_arg_lease(FunctionCallInfo fcinfo, int n)
{
	int64		usec;

	if (PG_ARGISNULL(n))
		return 0;
	if (!idem_interval_usec(PG_GETARG_INTERVAL_P(n), &usec) || usec <= 0 ||
		usec > IDEM_CENTURY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lease must be longer than nothing and shorter than a century"),
				 errhint("Leave it out to use the lease of the intent's rule.")));
	return usec;
}

/* the array of an argument, and its length */
static ArrayType *
array_arg(FunctionCallInfo fcinfo, int n, const char *name, int *count)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(n);

	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("%s must have one dimension", name)));
	*count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	return array;
}

static void
take_apart(ArrayType *array, Oid type, Datum **values, bool **nulls)
{
	int16		typlen;
	bool		typbyval;
	char		typalign;
	int			count;

	get_typlenbyvalalign(type, &typlen, &typbyval, &typalign);
	deconstruct_array(array, type, typlen, typbyval, typalign, values, nulls, &count);
}

/*
 * An array argument, taken apart: what is answered for each element is held in
 * memory, and the call cannot be answered in parts, so its length is bounded.
 */
int
idem_arg_list(FunctionCallInfo fcinfo, int n, const char *name,
			  Oid type, int max, Datum **values, bool **nulls)
{
	ArrayType  *array;
	int			count;

	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be null", name)));
	array = array_arg(fcinfo, n, name, &count);
	if (count > max)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%s has too many elements", name),
				 errdetail("It has %d, allowed are %d.", count, max),
				 errhint("Make several calls.")));
	take_apart(array, type, values, nulls);
	return count;
}

/* an array argument beside a list of that length; NULL yields NULL values */
void
idem_arg_array(FunctionCallInfo fcinfo, int n, const char *name,
			   Oid type, int expected, Datum **values, bool **nulls)
{
	ArrayType  *array;
	int			count;

	*values = NULL;
	*nulls = NULL;
	if (PG_ARGISNULL(n))
		return;
	array = array_arg(fcinfo, n, name, &count);
	if (count != expected)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("the arrays differ in length"),
				 errdetail("\"%s\" has length %d, expected %d.", name, count, expected)));
	take_apart(array, type, values, nulls);
}

/* at most limit bytes, never half a character */
text *
idem_text_cut(text *value, int limit)
{
	int			len = VARSIZE_ANY_EXHDR(value);

	if (len <= limit)
		return value;
	len = pg_mbcliplen(VARDATA_ANY(value), len, limit);
	return cstring_to_text_with_len(VARDATA_ANY(value), len);
}

/* cut, and control characters but newline and tab become spaces */
text *
idem_text_clean(text *value, int limit)
{
	int			len = VARSIZE_ANY_EXHDR(value);
	text	   *clean;
	char	   *p;

	if (len > limit)
		len = pg_mbcliplen(VARDATA_ANY(value), len, limit);
	clean = cstring_to_text_with_len(VARDATA_ANY(value), len);
	for (p = VARDATA(clean); p < VARDATA(clean) + len; p++)
	{
		if (((unsigned char) *p < ' ' && *p != '\n' && *p != '\t') || *p == 0x7f)
			*p = ' ';
	}
	return clean;
}

/* what a message repeats of a name: enough to recognise it, however long it is */
static char *
shown(const char *name, int len)
{
	if (len <= MAX_SHOWN)
		return pnstrdup(name, len);
	return psprintf("%.*s...", pg_mbcliplen(name, len, MAX_SHOWN), name);
}

char *
idem_shown(const char *name)
{
	return shown(name, strlen(name));
}

char *
idem_shown_text(const text *name)
{
	return shown(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));
}

static void
append_unit(StringInfo buf, int64 n, const char *unit)
{
	if (n == 0)
		return;
	if (buf->len > 0)
		appendStringInfoChar(buf, ' ');
	appendStringInfo(buf, INT64_FORMAT " %s%s", n, unit, n == 1 ? "" : "s");
}

/* an interval in words, whatever IntervalStyle says */
char *
idem_interval_text(const Interval *value)
{
	StringInfoData buf;
	int64		usec = value->time;

	initStringInfo(&buf);
	append_unit(&buf, value->month / 12, "year");
	append_unit(&buf, value->month % 12, "month");
	append_unit(&buf, value->day, "day");
	append_unit(&buf, usec / USECS_PER_HOUR, "hour");
	append_unit(&buf, usec / USECS_PER_MINUTE % 60, "minute");
	append_unit(&buf, usec / USECS_PER_SEC % 60, "second");
	append_unit(&buf, usec / 1000 % 1000, "millisecond");
	append_unit(&buf, usec % 1000, "microsecond");
	if (buf.len == 0)
		appendStringInfoString(&buf, "no time");
	return buf.data;
}

char *
idem_usec_text(int64 usec)
{
	Interval	value = {0};

	value.day = usec / USECS_PER_DAY;
	value.time = usec % USECS_PER_DAY;
	return idem_interval_text(&value);
}
