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

#include "postgres.h"

extern bool idem_worker_enabled;
extern char *idem_worker_databases;
extern int	idem_worker_naptime;

extern void idem_worker_init(void);
PGDLLEXPORT void idem_launcher_main(Datum arg);
PGDLLEXPORT void idem_worker_main(Datum arg);

#endif							/* IDEM_WORKER_H */
