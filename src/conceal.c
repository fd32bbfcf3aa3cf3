/*-------------------------------------------------------------------------
 *
 * conceal.c
 *	  Confidential fields of params, as keyed digests.
 *
 * A path names a field: "customer.phone", or with [] each element of an array:
 * "items[].name".  The value there, whatever it is, is replaced by
 * {"digest": "...", "secret": "id"}, so that equal values can be recognised as
 * equal and nothing can be guessed without the secret.  Where a path meets a
 * value of another shape than it expects, the whole of that value is replaced:
 * what is confidential may be in it.  Everything else stays.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/conceal.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "conceal.h"
#include "canon.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/json.h"

#define ELEMENT "[]"

static void conceal_container(StringInfo out, JsonbContainer *container, List *paths,
							  const IdemSecret *secret);

/*
 * A path as the list of its steps, field names and "[]"; NIL where it is not
 * one.
 */
List *
idem_field_path(const char *path)
{
	List	   *steps = NIL;
	const char *p = path;

	for (;;)
	{
		int			len = strcspn(p, ".[");

		if (len == 0)
			return NIL;
		steps = lappend(steps, pnstrdup(p, len));
		p += len;
		while (strncmp(p, ELEMENT, strlen(ELEMENT)) == 0)
		{
			steps = lappend(steps, pstrdup(ELEMENT));
			p += strlen(ELEMENT);
		}
		if (*p == '\0')
			return steps;
		if (*p != '.')
			return NIL;
		p++;
	}
}

/* what is left of the paths that take this step; *here if one ends with it */
static List *
follow(List *paths, const char *step, int len, bool *here)
{
	List	   *rest = NIL;
	ListCell   *lc;

	*here = false;
	foreach(lc, paths)
	{
		List	   *path = lfirst(lc);
		const char *first = linitial(path);

		if ((int) strlen(first) != len || memcmp(first, step, len) != 0)
			continue;
		if (list_length(path) == 1)
			*here = true;
		else
			rest = lappend(rest, list_copy_tail(path, 1));
	}
	return rest;
}

static void
append_scalar(StringInfo out, JsonbValue *value)
{
	switch (value->type)
	{
		case jbvNull:
			appendStringInfoString(out, "null");
			break;
		case jbvBool:
			appendStringInfoString(out, value->val.boolean ? "true" : "false");
			break;
		case jbvNumeric:
			appendStringInfoString(out, DatumGetCString(DirectFunctionCall1(numeric_out,
																			NumericGetDatum(value->val.numeric))));
			break;
		case jbvString:
			escape_json(out, pnstrdup(value->val.string.val, value->val.string.len));
			break;
		default:
			elog(ERROR, "unexpected jsonb value type: %d", (int) value->type);
	}
}

/* whether a path leads on through the value, or meets another shape */
static bool
is_blocked(JsonbValue *value, List *paths)
{
	ListCell   *lc;

	foreach(lc, paths)
	{
		bool		element = strcmp(linitial((List *) lfirst(lc)), ELEMENT) == 0;

		if (value->type != jbvBinary ||
			element != JsonContainerIsArray(value->val.binary.data))
			return true;
	}
	return false;
}

static void
conceal_value(StringInfo out, JsonbValue *value, List *paths, bool here,
			  const IdemSecret *secret)
{
	if (here || is_blocked(value, paths))
		appendStringInfo(out, "{\"digest\": \"%s\", \"secret\": \"%s\"}",
						 idem_value_digest(value, secret->bytes, secret->len), secret->id);
	else if (value->type == jbvBinary)
		conceal_container(out, value->val.binary.data, paths, secret);
	else
		append_scalar(out, value);
}

static void
conceal_container(StringInfo out, JsonbContainer *container, List *paths,
				  const IdemSecret *secret)
{
	bool		object = JsonContainerIsObject(container);
	JsonbIterator *it = JsonbIteratorInit(container);
	JsonbValue	value;
	JsonbIteratorToken token;
	List	   *rest = NIL;
	bool		here = false;
	bool		first = true;

	check_stack_depth();
	appendStringInfoChar(out, object ? '{' : '[');
	if (!object)
		rest = follow(paths, ELEMENT, strlen(ELEMENT), &here);
	(void) JsonbIteratorNext(&it, &value, true);
	while ((token = JsonbIteratorNext(&it, &value, true)) == WJB_KEY || token == WJB_ELEM)
	{
		CHECK_FOR_INTERRUPTS();
		if (!first)
			appendStringInfoString(out, ", ");
		first = false;
		if (token == WJB_KEY)
		{
			rest = follow(paths, value.val.string.val, value.val.string.len, &here);
			append_scalar(out, &value);
			appendStringInfoString(out, ": ");
			(void) JsonbIteratorNext(&it, &value, true);
		}
		conceal_value(out, &value, rest, here, secret);
	}
	appendStringInfoChar(out, object ? '}' : ']');
}

/* params with the fields that the paths lead to concealed under the secret */
Jsonb *
idem_conceal(Jsonb *params, List *paths, const IdemSecret *secret)
{
	StringInfoData out;
	JsonbValue	root;

	initStringInfo(&out);
	if (!JB_ROOT_IS_SCALAR(params) || !JsonbExtractScalar(&params->root, &root))
	{
		root.type = jbvBinary;
		root.val.binary.data = &params->root;
		root.val.binary.len = VARSIZE(params) - VARHDRSZ;
	}
	conceal_value(&out, &root, paths, false, secret);
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(out.data)));
}
