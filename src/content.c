/*-------------------------------------------------------------------------
 *
 * content.c
 *	  What may be kept as params, draft or result, and whether it can go out.
 *
 * What comes in must be able to go out again, to every caller that asks.  A
 * jsonb is stored in a few bytes where its text has many: a number of 8 bytes
 * may have 131 000 digits, and an answer that holds thousands of them cannot be
 * made.  Nesting costs 8 bytes a level, and whatever walks it by recursion ends
 * at max_stack_depth.  So content is bounded when it comes in: in bytes as it
 * is stored and as text, in digits of a number, in levels.  The bounds of
 * numbers and levels are also about what common JSON readers take.  Params and
 * drafts are refused with IA010; a result that breaks a bound is left out, as a
 * success is never lost for what it says.
 *
 * What is in the ledger may still be unfit for one caller: its client_encoding
 * may lack a character, or the row was written by hand.  A take asks before it
 * hands a row out, since the error that PostgreSQL raises when it sends the row
 * takes back the whole take, and the next one would meet the same row first.
 *
 * The walks here are loops, so that no depth can stop them.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/content.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "content.h"
#include "catalog/namespace.h"
#include "errors.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/numeric.h"

#define MAX_DEPTH 500
#define MAX_DIGITS 1000			/* on either side of the decimal point */
#define SMALLEST_NUMBER 12		/* bytes of a jsonb that a number takes */
#define LONGEST_NUMBER 150000	/* more than the text of any numeric */

/* content of so few bytes is sendable, whatever is in it */
#define SURELY_SENDABLE \
	(IDEM_LARGEST_CONTENT / LONGEST_NUMBER * SMALLEST_NUMBER)

#define CONVERSION_BUFFER 8192

PG_FUNCTION_INFO_V1(idem_holds_value);

typedef enum Fault
{
	FITS,
	TOO_MANY_BYTES,
	TOO_LONG_AS_TEXT,
	NUMBER_TOO_LONG,
	TOO_DEEP
} Fault;

/* JSON null says as little as SQL NULL */
Jsonb *
idem_content_given(Jsonb *content)
{
	JsonbValue	value;

	if (content != NULL && JB_ROOT_IS_SCALAR(content) &&
		JsonbExtractScalar(&content->root, &value) && value.type == jbvNull)
		return NULL;
	return content;
}

/*-------------------------------------------------------------------------
 * Bounds
 *-------------------------------------------------------------------------
 */

static Datum
number_of(const char *digits)
{
	return DirectFunctionCall3(numeric_in, CStringGetDatum(digits),
							   ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
}

static bool
number_fits(Numeric number)
{
	static Datum above = (Datum) 0; /* the smallest number that is too long */
	static Datum below;			/* its negative */
	Datum		value = NumericGetDatum(number);

	if (above == (Datum) 0)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		below = number_of("-1e" CppAsString2(MAX_DIGITS));
		above = number_of("1e" CppAsString2(MAX_DIGITS));
		MemoryContextSwitchTo(old);
	}
	return DatumGetInt32(DirectFunctionCall1(numeric_scale, value)) <= MAX_DIGITS &&
		DatumGetBool(DirectFunctionCall2(numeric_lt, value, above)) &&
		DatumGetBool(DirectFunctionCall2(numeric_gt, value, below));
}

static int
number_length(Numeric number)
{
	char	   *digits = DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(number)));
	int			len = strlen(digits);

	pfree(digits);
	return len;
}

/* bytes of a string as JSON, with its quotes: see escape_json */
static int64
string_length(const JsonbValue *string)
{
	int64		len = 2;

	for (int i = 0; i < string->val.string.len; i++)
	{
		unsigned char c = string->val.string.val[i];

		if (c == '"' || c == '\\' || (c < ' ' && strchr("\b\f\n\r\t", c) != NULL))
			len += 2;
		else
			len += c < ' ' ? 6 : 1;
	}
	return len;
}

/*
 * Which bound the content breaks.  The text is as jsonb_out writes it; it is
 * measured without being made, and each number is bounded before its digits
 * are written.
 */
static Fault
fault_of(Jsonb *content, int max, int64 *len)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;
	int			depth = 0;

	*len = VARSIZE(content) - VARHDRSZ;
	if (*len > max)
		return TOO_MANY_BYTES;
	*len = 0;
	it = JsonbIteratorInit(&content->root);
	while ((token = JsonbIteratorNext(&it, &value, false)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		switch (token)
		{
			case WJB_BEGIN_ARRAY:
				if (value.val.array.rawScalar)
					continue;
				*len += 2 + 2 * (int64) Max(value.val.array.nElems - 1, 0);
				depth++;
				break;
			case WJB_BEGIN_OBJECT:
				/* brackets, commas, colons */
				*len += 2 + 2 * (int64) Max(value.val.object.nPairs - 1, 0) +
					2 * (int64) value.val.object.nPairs;
				depth++;
				break;
			case WJB_END_ARRAY:
			case WJB_END_OBJECT:
				depth--;
				continue;
			default:
				break;
		}
		if (depth > MAX_DEPTH)
			return TOO_DEEP;
		switch (value.type)
		{
			case jbvString:
				*len += string_length(&value);
				break;
			case jbvNumeric:
				if (!number_fits(value.val.numeric))
					return NUMBER_TOO_LONG;
				*len += number_length(value.val.numeric);
				break;
			case jbvBool:
				*len += value.val.boolean ? strlen("true") : strlen("false");
				break;
			case jbvNull:
				*len += strlen("null");
				break;
			default:
				break;
		}
	}
	return *len > max ? TOO_LONG_AS_TEXT : FITS;
}

/* IA010 for params or draft that break a bound */
void
idem_content_check(Jsonb *content, const char *name)
{
	int64		len;
	Fault		fault = fault_of(content, idem_max_content, &len);

	if (fault == FITS)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_CONTENT_TOO_LARGE),
			 fault == TOO_DEEP ? errmsg("%s is nested too deeply", name) :
			 fault == NUMBER_TOO_LONG ? errmsg("%s holds a number that is too long", name) :
			 errmsg("%s is too large", name),
			 fault == TOO_DEEP ? errdetail("At most %d levels are allowed.", MAX_DEPTH) :
			 fault == NUMBER_TOO_LONG ?
			 errdetail("At most %d digits are allowed on either side of the decimal point.", MAX_DIGITS) :
			 fault == TOO_LONG_AS_TEXT ?
			 errdetail("It takes " INT64_FORMAT " bytes as text, and idem_action.max_content allows %d.",
					   len, idem_max_content) :
			 errdetail("It takes " INT64_FORMAT " bytes, and idem_action.max_content allows %d.",
					   len, idem_max_content),
			 errhint("Store a reference to the content instead of the content.")));
}

/* the note on a result that is not kept, or NULL */
const char *
idem_result_fault(Jsonb *result)
{
	int64		len;

	switch (fault_of(result, idem_max_content, &len))
	{
		case FITS:
			return NULL;
		case TOO_MANY_BYTES:
		case TOO_LONG_AS_TEXT:
			return "result was larger than idem_action.max_content and is not kept";
		case NUMBER_TOO_LONG:
			return "result held a number that was too long and is not kept";
		case TOO_DEEP:
			return "result was nested too deeply and is not kept";
	}
	return NULL;
}

/*-------------------------------------------------------------------------
 * Going out
 *-------------------------------------------------------------------------
 */

/* a trial conversion to client_encoding */
typedef struct Trial
{
	int			server;
	int			client;
	Oid			proc;			/* where both encodings are known */
} Trial;

/* false where every text goes out as it is */
static bool
trial_start(Trial *trial)
{
	trial->server = GetDatabaseEncoding();
	trial->client = pg_get_client_encoding();
	trial->proc = InvalidOid;
	if (trial->client == trial->server || trial->client == PG_SQL_ASCII)
		return false;
	if (trial->server != PG_SQL_ASCII)
		trial->proc = FindDefaultConversionProc(trial->server, trial->client);
	return true;
}

/* whether the client can be sent these bytes; all encodings share ASCII */
static bool
string_converts(const Trial *trial, const char *s, int len)
{
	unsigned char buffer[CONVERSION_BUFFER];

	while (len > 0 && !IS_HIGHBIT_SET(*s))
	{
		s++;
		len--;
	}
	if (len == 0)
		return true;
	if (trial->server == PG_SQL_ASCII)
		return pg_encoding_verifymbstr(trial->client, s, len) == len;
	if (!OidIsValid(trial->proc))
		return false;
	while (len > 0)
	{
		int			n;

		CHECK_FOR_INTERRUPTS();
		n = pg_do_encoding_conversion_buf(trial->proc, trial->server, trial->client,
										  (unsigned char *) unconstify(char *, s), len,
										  buffer, sizeof(buffer), true);
		if (n <= 0)
			return false;
		s += n;
		len -= n;
	}
	return true;
}

static bool
text_converts(const Trial *trial, const text *value)
{
	return value == NULL ||
		string_converts(trial, VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
}

static bool
content_converts(const Trial *trial, Jsonb *content)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	if (content == NULL)
		return true;
	it = JsonbIteratorInit(&content->root);
	while ((token = JsonbIteratorNext(&it, &value, false)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		if ((token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM) &&
			value.type == jbvString &&
			!string_converts(trial, value.val.string.val, value.val.string.len))
			return false;
	}
	return true;
}

/* whatever idem_action.max_content is now or was when the content came in */
static bool
is_sendable(Jsonb *content)
{
	int64		len;

	return content == NULL || VARSIZE(content) <= SURELY_SENDABLE ||
		fault_of(content, IDEM_LARGEST_CONTENT, &len) == FITS;
}

/* why an action cannot be told to this caller as the row stands, or NULL */
const char *
idem_cannot_go_out(const IdemAction *a)
{
	const text *texts[] = {
		a->scope, a->intent, a->key, a->reason, a->worker, a->source, a->event_id,
		a->external_ref, a->error
	};
	Jsonb	   *contents[] = {a->params, a->draft, a->result};
	Trial		trial;

	for (int i = 0; i < (int) lengthof(contents); i++)
	{
		if (!is_sendable(contents[i]))
			return "its contents are too large or nested too deeply to be sent";
	}
	if (!trial_start(&trial))
		return NULL;
	for (int i = 0; i < (int) lengthof(texts); i++)
	{
		if (!text_converts(&trial, texts[i]))
			return psprintf("client_encoding %s lacks a character of it",
							pg_get_client_encoding_name());
	}
	for (int i = 0; i < (int) lengthof(contents); i++)
	{
		if (!content_converts(&trial, contents[i]))
			return psprintf("client_encoding %s lacks a character of its contents",
							pg_get_client_encoding_name());
	}
	return NULL;
}

/*-------------------------------------------------------------------------
 * Looking for a value
 *-------------------------------------------------------------------------
 */

/* idem.holds_value(content, what): whether a string in it is just that */
Datum
idem_holds_value(PG_FUNCTION_ARGS)
{
	Jsonb	   *content = PG_GETARG_JSONB_P(0);
	text	   *what = PG_GETARG_TEXT_PP(1);
	int			len = VARSIZE_ANY_EXHDR(what);
	JsonbIterator *it = JsonbIteratorInit(&content->root);
	JsonbIteratorToken token;
	JsonbValue	value;

	while ((token = JsonbIteratorNext(&it, &value, false)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		if ((token == WJB_VALUE || token == WJB_ELEM) && value.type == jbvString &&
			value.val.string.len == len && memcmp(value.val.string.val, VARDATA_ANY(what), len) == 0)
			PG_RETURN_BOOL(true);
	}
	PG_RETURN_BOOL(false);
}
