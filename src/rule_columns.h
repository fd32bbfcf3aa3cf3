/*-------------------------------------------------------------------------
 *
 * rule_columns.h
 *	  The columns of idem_rules, for rule.c, which reads them, and define_rule.c,
 *	  which writes them.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/rule_columns.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RULE_COLUMNS_H
#define IDEM_RULE_COLUMNS_H

#include "rule.h"

/* columns of idem_rules, and arguments of define_rule in the same order */
enum
{
	RULE_INTENT,
	RULE_UNIQUE_BY,
	RULE_RESOLVED_BY,
	RULE_NEW_WHEN,
	RULE_ON_UNCERTAIN,
	RULE_PROVIDER_WINDOW,
	RULE_SETTLE,
	RULE_LEASE,
	RULE_MARKS_EFFECT,
	RULE_MAX_ATTEMPTS,
	RULE_MAX_FAILURES,
	RULE_RETRY_DELAY,
	RULE_KEEP_CONTENT,
	RULE_KEEP_KEY,
	RULE_REQUIRES_APPROVAL,
	RULE_SCOPED,
	RULE_RERUN_BY,
	RULE_WORKER_ROLE,
	RULE_RESOLVER_ROLE,
	RULE_CONFIDENTIAL_KEY,
	RULE_CONFIDENTIAL_FIELDS,
	RULE_FOUR_EYES,
	/* what define_rule adds */
	RULE_WORKER_ROLE_OID,
	RULE_RESOLVER_ROLE_OID,
	RULE_ROLES_OF,
	RULE_NCOLS
};

extern const IdemRule idem_rule_defaults;
extern const char *const idem_on_uncertain_names[];

extern int	idem_on_uncertain_of(const char *name);
extern void idem_bad_setting(const char *setting, const char *wanted);
extern void idem_rule_set_fields(IdemRule *rule, Datum fields);

#endif							/* IDEM_RULE_COLUMNS_H */
