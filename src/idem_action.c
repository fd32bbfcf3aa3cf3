/*-------------------------------------------------------------------------
 *
 * idem_action.c
 *	  Module entry point: one call per module that needs setting up.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/idem_action.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "clock.h"
#include "idem_action.h"
#include "miscadmin.h"
#include "shared.h"
#include "utils/builtins.h"
#include "worker.h"

PG_MODULE_MAGIC_EXT(.name = "idem_action");

PG_FUNCTION_INFO_V1(idem_library_version);

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	idem_guc_init();
	if (process_shared_preload_libraries_in_progress)
	{
		idem_clock_init();
		idem_shared_init();
		idem_worker_init();
	}
}

Datum
idem_library_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(IDEM_VERSION));
}
