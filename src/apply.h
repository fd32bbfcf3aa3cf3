/*-------------------------------------------------------------------------
 *
 * apply.h
 *	  Deciding and writing, until both meet on one version of the row.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/apply.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_APPLY_H
#define IDEM_APPLY_H

#include "ledger.h"
#include "state.h"

extern bool idem_apply(IdemLedger *ledger, const pg_uuid_t *id, IdemRequest *request,
					   IdemVerdict *verdict);
extern IdemWrite idem_insert_new(IdemLedger *ledger, const IdemRequest *request,
								 const IdemVerdict *verdict, bool wait);
extern void idem_append_lines(const IdemAction *row, const IdemRequest *request,
							  const IdemVerdict *verdict);
extern bool idem_read_action(IdemLedger *ledger, const pg_uuid_t *id,
							 bool (*lets) (const IdemRule *rule),
							 IdemAction *row, const IdemRule **rule);
pg_noreturn extern void idem_raise_no_such_action(const pg_uuid_t *id);

#endif							/* IDEM_APPLY_H */
