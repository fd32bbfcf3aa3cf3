/*-------------------------------------------------------------------------
 *
 * detail.c
 *	  The detail of an event, a flat jsonb object.
 *
 * Written and read off the common path, so it goes by way of JSON text: the
 * server's own parser keeps us from knowing how jsonb is built.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/detail.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "detail.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/json.h"

void
idem_detail_start(StringInfo buf)
{
	initStringInfo(buf);
	appendStringInfoChar(buf, '{');
}

static void
add_name(StringInfo buf, const char *name)
{
	if (buf->len > 1)
		appendStringInfoString(buf, ", ");
	escape_json(buf, name);
	appendStringInfoString(buf, ": ");
}

/* a NULL value is left out, here and below */
void
idem_detail_add(StringInfo buf, const char *name, const char *value)
{
	if (value == NULL)
		return;
	add_name(buf, name);
	escape_json(buf, value);
}

void
idem_detail_add_text(StringInfo buf, const char *name, text *value)
{
	if (value != NULL)
		idem_detail_add(buf, name, text_to_cstring(value));
}

void
idem_detail_add_bool(StringInfo buf, const char *name, bool value)
{
	add_name(buf, name);
	appendStringInfoString(buf, value ? "true" : "false");
}

void
idem_detail_add_int(StringInfo buf, const char *name, int64 value)
{
	add_name(buf, name);
	appendStringInfo(buf, INT64_FORMAT, value);
}

/* as to_jsonb() would, but in UTC whatever the session's time zone */
void
idem_detail_add_time(StringInfo buf, const char *name, TimestampTz value)
{
	char		iso[MAXDATELEN + 1];
	int			utc = 0;

	JsonEncodeDateTime(iso, TimestampTzGetDatum(value), TIMESTAMPTZOID, &utc);
	idem_detail_add(buf, name, iso);
}

void
idem_detail_add_json(StringInfo buf, const char *name, Jsonb *value)
{
	if (value == NULL)
		return;
	add_name(buf, name);
	(void) JsonbToCString(buf, &value->root, VARSIZE(value));
}

Jsonb *
idem_detail_end(StringInfo buf)
{
	appendStringInfoChar(buf, '}');
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(buf->data)));
}

static JsonbValue *
value_of(Jsonb *detail, const char *name)
{
	if (detail == NULL)
		return NULL;
	return getKeyJsonValueFromContainer(&detail->root, name, strlen(name), NULL);
}

/* NULL where the name is missing or not a string */
char *
idem_detail_string(Jsonb *detail, const char *name)
{
	JsonbValue *value = value_of(detail, name);

	if (value == NULL || value->type != jbvString)
		return NULL;
	return pnstrdup(value->val.string.val, value->val.string.len);
}

/* DT_NOBEGIN where the name is missing */
TimestampTz
idem_detail_time(Jsonb *detail, const char *name)
{
	char	   *iso = idem_detail_string(detail, name);

	if (iso == NULL)
		return DT_NOBEGIN;
	return DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in, CStringGetDatum(iso),
												   ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}

/* 0 where the name is missing or not a number */
int64
idem_detail_int(Jsonb *detail, const char *name)
{
	JsonbValue *value = value_of(detail, name);

	if (value == NULL || value->type != jbvNumeric)
		return 0;
	return DatumGetInt64(DirectFunctionCall1(numeric_int8,
											 NumericGetDatum(value->val.numeric)));
}

/* false where the name is missing or not a boolean */
bool
idem_detail_bool(Jsonb *detail, const char *name)
{
	JsonbValue *value = value_of(detail, name);

	return value != NULL && value->type == jbvBool && value->val.boolean;
}
