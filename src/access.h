/*-------------------------------------------------------------------------
 *
 * access.h
 *	  Acting as the owner of the ledger, and who has which level.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/access.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_ACCESS_H
#define IDEM_ACCESS_H

#include "nodes/execnodes.h"

/* the caller's identity, while the code acts as the ledger's owner */
typedef struct IdemOwner
{
	Oid			user;
	int			sec_context;
	int			guc_level;
} IdemOwner;

extern void idem_owner_enter(IdemOwner *caller);
extern void idem_owner_leave(const IdemOwner *caller);
extern bool idem_may_execute(Oid user, const char *function);
extern bool idem_is_operator(Oid user);
extern bool idem_is_owner(Oid user);
extern void idem_run(const char *sql, int nargs, Oid *types, Datum *values,
					 const char *nulls, int expected);
extern void idem_owner_return_query(ReturnSetInfo *rsinfo, const char *sql,
									int nargs, Oid *types, Datum *values);

#endif							/* IDEM_ACCESS_H */
