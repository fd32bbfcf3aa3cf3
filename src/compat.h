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
#include "storage/procarray.h"
#include "utils/rel.h"

#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#define idem_check_rights_as(query, owner) \
	(linitial_node(RTEPermissionInfo, (query)->rteperminfos)->checkAsUser = (owner))
#define idem_only_summarizing(which) ((which) == TU_Summarizing)
#else
#define idem_check_rights_as(query, owner) \
	(linitial_node(RangeTblEntry, (query)->rtable)->checkAsUser = (owner))
/* heap_update told only yes or no which indexes want the new version */
typedef bool TU_UpdateIndexes;
#define TU_None false
#define idem_only_summarizing(which) false
#endif

#if PG_VERSION_NUM < 180000
#define PG_MODULE_MAGIC_EXT(...) PG_MODULE_MAGIC
#define pg_noreturn _Noreturn
#define RelationGetPrimaryKeyIndex(rel, deferrable_ok) \
	RelationGetPrimaryKeyIndex(rel)
#endif

#if PG_VERSION_NUM < 190000
#define GetOldestActiveTransactionId(in_commit_only, all_databases) \
	GetOldestActiveTransactionId()
#define EIIT_IS_UPDATE			(1 << 0)
#define EIIT_NO_DUPE_ERROR		(1 << 1)
#define EIIT_ONLY_SUMMARIZING	(1 << 2)

#define table_tuple_update(rel, tid, slot, cid, options, ...) \
	table_tuple_update(rel, tid, slot, cid, __VA_ARGS__)
#define table_beginscan_tidrange(rel, snapshot, first, last, flags) \
	table_beginscan_tidrange(rel, snapshot, first, last)
#define table_tuple_delete(rel, tid, cid, options, ...) \
	table_tuple_delete(rel, tid, cid, __VA_ARGS__, false)

#if PG_VERSION_NUM >= 180000
#define index_beginscan(heap, index, snapshot, instrument, nkeys, norderbys, flags) \
	index_beginscan(heap, index, snapshot, instrument, nkeys, norderbys)
#else
#define index_beginscan(heap, index, snapshot, instrument, nkeys, norderbys, flags) \
	index_beginscan(heap, index, snapshot, nkeys, norderbys)
#endif

#if PG_VERSION_NUM >= 160000
#define ExecInsertIndexTuples(rri, estate, flags, slot, arbiters, conflict) \
	ExecInsertIndexTuples(rri, slot, estate, \
						  ((flags) & EIIT_IS_UPDATE) != 0, \
						  ((flags) & EIIT_NO_DUPE_ERROR) != 0, \
						  conflict, arbiters, \
						  ((flags) & EIIT_ONLY_SUMMARIZING) != 0)
#else
#define ExecInsertIndexTuples(rri, estate, flags, slot, arbiters, conflict) \
	ExecInsertIndexTuples(rri, slot, estate, \
						  ((flags) & EIIT_IS_UPDATE) != 0, \
						  ((flags) & EIIT_NO_DUPE_ERROR) != 0, \
						  conflict, arbiters)
#endif
#endif							/* < 190000 */

#endif							/* IDEM_COMPAT_H */
