/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  Every setting of the extension, in alphabetical order.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/guc.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "idem_action.h"
#include "utils/guc.h"

bool		idem_async_complete = false;
int			idem_max_content = 1024 * 1024;
bool		idem_require_rule = true;

void
idem_guc_init(void)
{
	DefineCustomBoolVariable("idem_action.async_complete",
							 "Lets a completion be answered before it is on disk.",
							 "A crash may then lose the completion, which leaves the action in doubt, never a second effect.",
							 &idem_async_complete,
							 false,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("idem_action.max_content",
							"Largest params, draft or result of one action.",
							NULL,
							&idem_max_content,
							1024 * 1024,
							1024,
							256 * 1024 * 1024,
							PGC_SUSET,
							GUC_UNIT_BYTE,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("idem_action.require_rule",
							 "Refuses to claim an action whose intent has no rule.",
							 "Where it is off, an intent without a rule follows the defaults of define_rule.",
							 &idem_require_rule,
							 true,
							 PGC_SUSET,
							 0,
							 NULL, NULL, NULL);

	MarkGUCPrefixReserved("idem_action");
}
