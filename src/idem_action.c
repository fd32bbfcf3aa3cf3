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
#include "idem_action.h"
#include "miscadmin.h"
#include "stats.h"
#include "worker.h"

PG_MODULE_MAGIC_EXT(.name = "idem_action");

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	idem_guc_init();
	if (process_shared_preload_libraries_in_progress)
	{
		idem_stats_init();
		idem_worker_init();
	}
}
