/*-------------------------------------------------------------------------
 *
 * arg.h
 *	  Reading, checking and bounding what callers hand in.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/arg.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_ARG_H
#define IDEM_ARG_H

#include "idem_action.h"

/* most elements of an array argument */
#define IDEM_MAX_BATCH 100000
#define IDEM_MAX_INTENTS 1000

/* longest duration that makes sense, in microseconds */
#define IDEM_CENTURY (100 * 365 * USECS_PER_DAY)

extern text *idem_arg_text(FunctionCallInfo fcinfo, int n);
extern text *idem_arg_reference(FunctionCallInfo fcinfo, int n);
extern text *idem_text_given(text *value);
extern text *idem_arg_label(FunctionCallInfo fcinfo, int n);
extern text *idem_arg_sentence(FunctionCallInfo fcinfo, int n, const char *name, const char *hint);
extern Jsonb *idem_arg_content(FunctionCallInfo fcinfo, int n, const char *name);
extern Jsonb *idem_arg_result(FunctionCallInfo fcinfo, int n);
extern void idem_arg_uuid(FunctionCallInfo fcinfo, int n, const char *name, pg_uuid_t *id);
extern bool idem_arg_bool(FunctionCallInfo fcinfo, int n, bool otherwise);
extern int64 idem_arg_lease(FunctionCallInfo fcinfo, int n);
extern int64 idem_arg_usec(FunctionCallInfo fcinfo, int n, const char *name);
extern int	idem_arg_list(FunctionCallInfo fcinfo, int n, const char *name,
						  Oid type, int max, Datum **values, bool **nulls);
extern void idem_arg_array(FunctionCallInfo fcinfo, int n, const char *name,
						   Oid type, int expected, Datum **values, bool **nulls);

extern char *idem_shown(const char *name);
extern char *idem_shown_text(const text *name);
extern text *idem_text_cut(text *value, int limit);
extern text *idem_text_clean(text *value, int limit);
extern bool idem_interval_usec(const Interval *value, int64 *usec);
extern char *idem_interval_text(const Interval *value);
extern char *idem_usec_text(int64 usec);

#endif							/* IDEM_ARG_H */
