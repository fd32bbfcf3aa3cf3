/*-------------------------------------------------------------------------
 *
 * canon.c
 *	  Canonical bytes of a jsonb.
 *
 * Two params are the same facts if and only if their canonical bytes are
 * equal.  That is jsonb's own equality, without what it takes from the
 * database: numbers count by value (1 = 1.0 = 1e0, and -0 is 0), strings by
 * their bytes in UTF-8, arrays in order, objects in no order.
 *
 *	null, false, true	n, f, t
 *	number				d, then as counted text its decimal notation without
 *						exponent and without needless zeros
 *	string				s, then as counted text itself
 *	array				a, the number of elements, each element
 *	object				o, the number of fields, each field: its name as
 *						counted text, its value.  Shorter names come first,
 *						equally long ones in the order of their bytes.
 *
 * Counts are 32 bits in network order.  A bare scalar is not an array of one.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/canon.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "canon.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/json.h"

/* how much of a difference is told */
#define MAX_NAMES		10
#define MAX_NAME_LENGTH	64

static void append_container(StringInfo buf, JsonbContainer *container);

static void
append_value(StringInfo buf, JsonbValue *value)
{
	char	   *number;

	switch (value->type)
	{
		case jbvNull:
			appendStringInfoCharMacro(buf, 'n');
			break;
		case jbvBool:
			appendStringInfoCharMacro(buf, value->val.boolean ? 't' : 'f');
			break;
		case jbvNumeric:
			appendStringInfoCharMacro(buf, 'd');
			number = numeric_normalize(value->val.numeric);
			idem_digest_append(buf, number, strlen(number));
			pfree(number);
			break;
		case jbvString:
			appendStringInfoCharMacro(buf, 's');
			idem_digest_append_text(buf, value->val.string.val,
									value->val.string.len);
			break;
		case jbvBinary:
			append_container(buf, value->val.binary.data);
			break;
		default:
			elog(ERROR, "unexpected jsonb value type: %d", (int) value->type);
	}
}

static int
compare_names(const void *a, const void *b)
{
	const JsonbValue *name1 = &((const JsonbPair *) a)->key;
	const JsonbValue *name2 = &((const JsonbPair *) b)->key;

	CHECK_FOR_INTERRUPTS();
	if (name1->val.string.len != name2->val.string.len)
		return name1->val.string.len < name2->val.string.len ? -1 : 1;
	return memcmp(name1->val.string.val, name2->val.string.val,
				  name1->val.string.len);
}

/*
 * The fields of an object in canonical order, their names in UTF-8.  jsonb
 * keeps this order by itself, but in the encoding of the database.
 */
static JsonbPair *
sorted_fields(JsonbContainer *object)
{
	JsonbPair  *fields = palloc(JsonContainerSize(object) * sizeof(JsonbPair));
	JsonbPair  *field = fields;
	JsonbIterator *it = JsonbIteratorInit(object);
	JsonbValue	name;

	(void) JsonbIteratorNext(&it, &name, true); /* the object itself */
	while (JsonbIteratorNext(&it, &name, true) == WJB_KEY)
	{
		name.val.string.val = idem_digest_utf8(name.val.string.val,
											   &name.val.string.len);
		field->key = name;
		(void) JsonbIteratorNext(&it, &field->value, true);
		field++;
	}

	qsort(fields, field - fields, sizeof(JsonbPair), compare_names);
	return fields;
}

static void
append_container(StringInfo buf, JsonbContainer *container)
{
	uint32		size = JsonContainerSize(container);

	/* content.c bounds the depth of what callers hand in */
	check_stack_depth();

	if (JsonContainerIsObject(container))
	{
		JsonbPair  *fields = sorted_fields(container);

		appendStringInfoCharMacro(buf, 'o');
		pq_sendint32(buf, size);
		for (uint32 i = 0; i < size; i++)
		{
			CHECK_FOR_INTERRUPTS();
			idem_digest_append(buf, fields[i].key.val.string.val,
							   fields[i].key.val.string.len);
			append_value(buf, &fields[i].value);
		}
		pfree(fields);
	}
	else
	{
		JsonbIterator *it = JsonbIteratorInit(container);
		JsonbValue	element;

		(void) JsonbIteratorNext(&it, &element, true);	/* the array itself */
		if (!JsonContainerIsScalar(container))
		{
			appendStringInfoCharMacro(buf, 'a');
			pq_sendint32(buf, size);
		}
		while (JsonbIteratorNext(&it, &element, true) == WJB_ELEM)
		{
			CHECK_FOR_INTERRUPTS();
			append_value(buf, &element);
		}
	}
}

/*
 * What a confidential value is kept as: the hexadecimal HMAC of its canonical
 * bytes under a secret.
 */
char *
idem_value_digest(JsonbValue *value, const uint8 *secret, int secret_len)
{
	StringInfoData buf;
	uint8		digest[IDEM_DIGEST_LENGTH];
	char	   *hex = palloc0(2 * IDEM_DIGEST_LENGTH + 1);

	idem_digest_start(&buf, IDEM_FORMAT_VALUE);
	append_value(&buf, value);
	idem_hmac_sha256(secret, secret_len, &buf, digest);
	hex_encode((char *) digest, IDEM_DIGEST_LENGTH, hex);
	return hex;
}

/*
 * The fingerprint of an action's params, IDEM_DIGEST_LENGTH bytes: equal for
 * equal jsonb, whatever the encoding of the database.
 */
void
idem_params_digest(Jsonb *params, uint8 *digest)
{
	StringInfoData buf;

	idem_digest_start(&buf, IDEM_FORMAT_PARAMS);
	append_container(&buf, &params->root);
	idem_sha256(&buf, digest);
}

static bool
same_value(JsonbValue *a, JsonbValue *b)
{
	StringInfoData bytes1;
	StringInfoData bytes2;

	initStringInfo(&bytes1);
	initStringInfo(&bytes2);
	append_value(&bytes1, a);
	append_value(&bytes2, b);

	return bytes1.len == bytes2.len &&
		memcmp(bytes1.data, bytes2.data, bytes1.len) == 0;
}

/*
 * Append to names the name of each field of object that other lacks or, if
 * changed, has with another value; *count is what both callers have found.
 */
static void
append_differences(StringInfo names, int *count, JsonbContainer *object,
				   JsonbContainer *other, bool changed)
{
	JsonbIterator *it = JsonbIteratorInit(object);
	JsonbValue	name;
	JsonbValue	value;
	JsonbValue	other_value;

	(void) JsonbIteratorNext(&it, &name, true); /* the object itself */
	while (JsonbIteratorNext(&it, &name, true) == WJB_KEY)
	{
		char	   *field = name.val.string.val;
		int			len = name.val.string.len;

		CHECK_FOR_INTERRUPTS();
		(void) JsonbIteratorNext(&it, &value, true);
		if (getKeyJsonValueFromContainer(other, field, len, &other_value) &&
			(!changed || same_value(&value, &other_value)))
			continue;
		if (++*count > MAX_NAMES)
			continue;

		if (*count > 1)
			appendStringInfoString(names, ", ");
		escape_json(names,
					pnstrdup(field, pg_mbcliplen(field, len, MAX_NAME_LENGTH)));
	}
}

/*
 * Which top-level fields of the params differ: their names, quoted, never a
 * value.  Long names and long lists are cut.  Params that are not both
 * objects differ as a whole.
 */
char *
idem_params_difference(Jsonb *stored, Jsonb *given)
{
	StringInfoData names;
	int			count = 0;

	if (!JB_ROOT_IS_OBJECT(stored) || !JB_ROOT_IS_OBJECT(given))
		return pstrdup("the params as a whole");

	initStringInfo(&names);
	append_differences(&names, &count, &given->root, &stored->root, true);
	append_differences(&names, &count, &stored->root, &given->root, false);
	if (count > MAX_NAMES)
		appendStringInfo(&names, " and %d more", count - MAX_NAMES);

	return names.data;
}
