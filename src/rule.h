/*-------------------------------------------------------------------------
 *
 * rule.h
 *	  The policy of an intent.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/rule.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RULE_H
#define IDEM_RULE_H

#include "idem_action.h"
#include "nodes/pg_list.h"
#include "role.h"

/* what to do with an attempt whose outcome is not known */
typedef enum IdemOnUncertain
{
	IDEM_REVIEW,				/* a person decides */
	IDEM_SEARCH,				/* search outside before acting again */
	IDEM_RETRY,					/* the provider honours our key for a while */
	IDEM_REPEAT					/* doing it twice harms nobody */
} IdemOnUncertain;

/* what delays grow to; a rule's longer one is no longer than this */
#define IDEM_MAX_RETRY_DELAY USECS_PER_HOUR

/* durations in microseconds; 0 where there is none */
typedef struct IdemRule
{
	const char *intent;
	const char *unique_by;
	const char *resolved_by;
	const char *new_when;
	IdemOnUncertain on_uncertain;
	int64		provider_window;
	int64		settle;
	int64		lease;
	bool		marks_effect;
	int32		max_attempts;
	int32		max_failures;
	int64		retry_delay;
	Interval	keep_content;
	Interval	keep_key;
	bool		requires_approval;
	bool		scoped;
	const char *rerun_by;
	IdemRole	worker_role;
	IdemRole	resolver_role;
	bool		confidential_key;
	List	   *confidential_paths; /* of lists of steps, see conceal.c */
	bool		four_eyes;		/* who drafted or revised does not approve */
	const char *confidential_fields;	/* the same as people read them */
	bool		is_missing;		/* there was one: nobody may anything */
} IdemRule;

extern const IdemRule *idem_rule_of(const char *intent, int len, bool required);
extern const IdemRule *idem_rule_of_action(const IdemAction *action);
pg_noreturn extern void idem_raise_no_rule(const char *intent, bool is_missing);
extern bool idem_rule_lets_act(const IdemRule *rule);
extern bool idem_rule_lets_decide(const IdemRule *rule);
extern bool idem_rule_lets_see(const IdemRule *rule, Oid user);
extern bool idem_rule_shows(const IdemRule *rule);
extern List *idem_intents_with_rules(void);
extern void idem_rule_start_retention(const IdemRule *rule, IdemAction *action);

#endif							/* IDEM_RULE_H */
