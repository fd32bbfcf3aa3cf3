/*-------------------------------------------------------------------------
 *
 * blank.c
 *	  Whether a text shows anything.
 *
 * A text is blank if it has nothing but white space, control characters and
 * characters that Unicode gives no shape.  What is blank is never meant: as an
 * external_ref it counts as not given, as a key, a part of a key, an intent or
 * a sentence it is refused.  docs/action-id.md publishes the list, as a key
 * built elsewhere has to be refused there too.
 *
 * The answer does not depend on locale or encoding.  Under SQL_ASCII, where
 * nobody knows the encoding, the bytes are read as UTF-8, as digest.c does;
 * what is not UTF-8, or has no equivalent in Unicode, is something.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/blank.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "blank.h"
#include "catalog/namespace.h"
#include "mb/pg_wchar.h"

/* bytes of one character in UTF-8, with room for what a conversion asks for */
#define CHARACTER_SIZE ((MAX_MULTIBYTE_CHAR_LEN + 1) * MAX_CONVERSION_GROWTH + 1)

/* the code points that show nothing, in order */
static const struct
{
	pg_wchar	first;
	pg_wchar	last;
}			blanks[] = {
	{0x0000, 0x0020},			/* controls, space */
	{0x007F, 0x00A0},			/* controls, no-break space */
	{0x00AD, 0x00AD},			/* soft hyphen */
	{0x034F, 0x034F},			/* combining grapheme joiner */
	{0x061C, 0x061C},			/* Arabic letter mark */
	{0x115F, 0x1160},			/* Hangul fillers */
	{0x1680, 0x1680},			/* Ogham space mark */
	{0x17B4, 0x17B5},			/* Khmer inherent vowels */
	{0x180B, 0x180F},			/* Mongolian separators and selectors */
	{0x2000, 0x200F},			/* spaces, zero width, marks of direction */
	{0x2028, 0x202F},			/* separators, directions, narrow space */
	{0x205F, 0x206F},			/* mathematical space, invisible operators */
	{0x2800, 0x2800},			/* braille pattern blank */
	{0x3000, 0x3000},			/* ideographic space */
	{0x3164, 0x3164},			/* Hangul filler */
	{0xFE00, 0xFE0F},			/* variation selectors */
	{0xFEFF, 0xFEFF},			/* byte order mark */
	{0xFFA0, 0xFFA0},			/* halfwidth Hangul filler */
	{0xFFF9, 0xFFFB},			/* interlinear annotation */
	{0xE0000, 0xE0FFF},			/* tags, more variation selectors */
};

static bool
shows_nothing(pg_wchar c)
{
	for (int i = 0; i < (int) lengthof(blanks) && blanks[i].first <= c; i++)
	{
		if (c <= blanks[i].last)
			return true;
	}
	return false;
}

/* the code point that stands at s; false where it is none */
static bool
code_point(const char *s, int len, pg_wchar *c)
{
	int			encoding = GetDatabaseEncoding();
	unsigned char utf8[CHARACTER_SIZE];

	if (encoding != PG_UTF8 && encoding != PG_SQL_ASCII)
	{
		Oid			proc = FindDefaultConversionProc(encoding, PG_UTF8);

		memset(utf8, 0, sizeof(utf8));
		if (!OidIsValid(proc) ||
			pg_do_encoding_conversion_buf(proc, encoding, PG_UTF8,
										  (unsigned char *) unconstify(char *, s), len,
										  utf8, sizeof(utf8), true) != len)
			return false;
		s = (const char *) utf8;
		len = strlen(s);
	}
	if (len == 0 || pg_encoding_verifymbchar(PG_UTF8, s, len) < 0)
		return false;
	*c = utf8_to_unicode((const unsigned char *) s);
	return true;
}

/* length of the character that stands at s, of which len bytes are there */
static int
character_length(const char *s, int len)
{
	int			encoding = GetDatabaseEncoding();

	return Min(pg_encoding_mblen(encoding == PG_SQL_ASCII ? PG_UTF8 : encoding, s), len);
}

/* whether a text in the encoding of the database is blank */
bool
idem_is_blank(const text *value)
{
	const char *s = VARDATA_ANY(value);
	int			len = VARSIZE_ANY_EXHDR(value);

	while (len > 0)
	{
		int			n = 1;

		if (!IS_HIGHBIT_SET(*s))
		{
			if (!shows_nothing((unsigned char) *s))
				return false;
		}
		else
		{
			pg_wchar	c;

			n = character_length(s, len);
			if (!code_point(s, n, &c) || !shows_nothing(c))
				return false;
		}
		s += n;
		len -= n;
	}
	return true;
}
