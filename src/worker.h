/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The launcher and its one-shot workers.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/worker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_WORKER_H
#define IDEM_WORKER_H

#include "utils/guc.h"

extern bool idem_worker_enabled;
extern char *idem_worker_databases;
extern int	idem_worker_naptime;

extern bool idem_worker_check_databases(char **value, void **extra, GucSource source);
extern bool idem_worker_is_to_serve(const char *name);
extern void idem_worker_init(void);
PGDLLEXPORT void idem_launcher_main(Datum arg);
PGDLLEXPORT void idem_worker_main(Datum arg);

#endif							/* IDEM_WORKER_H */
