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

#include "content.h"
#include "idem_action.h"
#include "secret.h"
#include "utils/guc.h"
#include "worker.h"

bool		idem_async_complete = false;
int			idem_max_content = 1024 * 1024;
bool		idem_require_rule = true;
bool		idem_start_paused = false;

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

	DefineCustomStringVariable("idem_action.databases",
							   "Databases that the background worker serves.",
							   "A comma-separated list; empty for all that can be connected to.",
							   &idem_worker_databases,
							   "",
							   PGC_SIGHUP,
							   0,
							   idem_worker_check_databases, NULL, NULL);

	DefineCustomIntVariable("idem_action.max_content",
							"Largest params, draft or result of one action.",
							"Counts the bytes that are stored, and those of the text that is sent.",
							&idem_max_content,
							1024 * 1024,
							1024,
							IDEM_LARGEST_CONTENT,
							PGC_SUSET,
							GUC_UNIT_BYTE,
							NULL, NULL, NULL);

	DefineCustomIntVariable("idem_action.naptime",
							"Rest of a database between two passes of the background worker.",
							"A large ledger rests longer, so that passes take a twentieth of a core at most.",
							&idem_worker_naptime,
							10,
							1,
							86400,
							PGC_SIGHUP,
							GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("idem_action.require_rule",
							 "Refuses to claim an action whose intent has no rule.",
							 "Where it is off, an intent without a rule follows the defaults of define_rule.",
							 &idem_require_rule,
							 true,
							 PGC_SUSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomStringVariable("idem_action.secret_file",
							   "File with the secrets that confidential keys are digested under.",
							   "Each line is an id, a blank and at least 32 bytes in hexadecimal.",
							   &idem_secret_file,
							   "",
							   PGC_SIGHUP,
							   GUC_SUPERUSER_ONLY,
							   NULL, idem_secret_file_changed, NULL);

	DefineCustomBoolVariable("idem_action.start_paused",
							 "Hands out nothing, as while all intents are paused.",
							 "For a server that may be a physical copy: set it before the start.",
							 &idem_start_paused,
							 false,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("idem_action.worker",
							 "Runs maintenance in the background, where the library is preloaded.",
							 NULL,
							 &idem_worker_enabled,
							 true,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	MarkGUCPrefixReserved("idem_action");
}
