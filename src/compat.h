/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  The only place that asks which PostgreSQL this is.
 *
 * The code is written for the newest server; here the newer calls are
 * defined in terms of the older ones.  To drop a major, delete its block.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/compat.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_COMPAT_H
#define IDEM_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "executor/executor.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#else
/* heap_update told only yes or no which indexes want the new version */
typedef bool TU_UpdateIndexes;
#define TU_None false

#define ExecInsertIndexTuples(rri, slot, estate, update, nodup, conflict, arbiters, summarizing) \
	ExecInsertIndexTuples(rri, slot, estate, update, nodup, conflict, arbiters)
#endif

#if PG_VERSION_NUM >= 180000
#define IDEM_PG_MODULE_MAGIC \
	PG_MODULE_MAGIC_EXT(.name = "idem_action")
#else
#define IDEM_PG_MODULE_MAGIC PG_MODULE_MAGIC
#define index_beginscan(heap, index, snapshot, instrument, nkeys, norderbys) \
	index_beginscan(heap, index, snapshot, nkeys, norderbys)
#define RelationGetPrimaryKeyIndex(rel, deferrable_ok) \
	RelationGetPrimaryKeyIndex(rel)
#endif

#endif							/* IDEM_COMPAT_H */
