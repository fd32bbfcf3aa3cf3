/*-------------------------------------------------------------------------
 *
 * quote.c
 *	  Names from outside in sentences of ours.
 *
 * Advice, stories and notes name events, sources, workers, keys and persons as
 * their callers spelled them.  A line break in such a name could put a call of
 * somebody else's making where people look for ours, and a space or a quote
 * could end our sentence.  So a name that is more than letters, digits and the
 * usual marks is shown as a string literal of SQL, in which everything that moves
 * the text about is an escape.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/quote.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "compat.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "quote.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(idem_quote_label_of);

/* the character's code point where the encoding is UTF-8, else its byte, or 0 */
static unsigned int
code_of(const char *c, int length)
{
	if (GetDatabaseEncoding() == PG_UTF8)
		return utf8_to_unicode((const unsigned char *) c);
	return length == 1 ? (unsigned char) *c : 0;
}

/* controls, and what breaks lines or turns the direction of what follows */
static bool
moves_text(unsigned int code)
{
	return (code > 0 && code < 0x20) || (code >= 0x7F && code <= 0x9F) ||
		code == 0x061C || code == 0x200E || code == 0x200F ||
		(code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

static bool
is_plain(const char *c, int length)
{
	if (length > 1 || IS_HIGHBIT_SET(*c))
		return !moves_text(code_of(c, length));
	return isalnum((unsigned char) *c) || strchr("-_.:/@+#=~", *c) != NULL;
}

bool
idem_is_plain_label(const char *label)
{
	const char *c = label;

	while (*c != '\0')
	{
		int			length = pg_mblen(c);

		if (!is_plain(c, length))
			return false;
		c += length;
	}
	return c > label;
}

/* the name as it is, or as a literal */
const char *
idem_quote_label(const char *label)
{
	StringInfoData literal;
	bool		escapes = false;

	if (idem_is_plain_label(label))
		return label;
	initStringInfo(&literal);
	for (const char *c = label; *c != '\0';)
	{
		int			length = pg_mblen(c);
		unsigned int code = code_of(c, length);

		if (moves_text(code))
		{
			appendStringInfo(&literal, code < 0x100 && length == 1 ? "\\x%02X" : "\\u%04X", code);
			escapes = true;
		}
		else if (*c == '\\')
		{
			appendStringInfoString(&literal, "\\\\");
			escapes = true;
		}
		else if (*c == '\'')
			appendStringInfoString(&literal, "''");
		else
			appendBinaryStringInfo(&literal, c, length);
		c += length;
	}
	return psprintf("%s'%s'", escapes ? "E" : "", literal.data);
}

/* idem.quote_label(text), for the advice of view attention */
Datum
idem_quote_label_of(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(idem_quote_label(text_to_cstring(PG_GETARG_TEXT_PP(0)))));
}

/* spaces for what would break or turn a line, in place */
void
idem_keep_one_line(char *sentence)
{
	for (char *c = sentence; *c != '\0';)
	{
		int			length = pg_mblen(c);

		if (moves_text(code_of(c, length)))
			memset(c, ' ', length);
		c += length;
	}
}
