/*-------------------------------------------------------------------------
 *
 * detail.h
 *	  The detail of an event, a flat jsonb object.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/detail.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_DETAIL_H
#define IDEM_DETAIL_H

#include "lib/stringinfo.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

extern void idem_detail_start(StringInfo buf);
extern void idem_detail_add(StringInfo buf, const char *name, const char *value);
extern void idem_detail_add_text(StringInfo buf, const char *name, text *value);
extern void idem_detail_add_bool(StringInfo buf, const char *name, bool value);
extern void idem_detail_add_int(StringInfo buf, const char *name, int64 value);
extern void idem_detail_add_time(StringInfo buf, const char *name, TimestampTz value);
extern void idem_detail_add_json(StringInfo buf, const char *name, Jsonb *value);
extern Jsonb *idem_detail_end(StringInfo buf);

extern char *idem_detail_string(Jsonb *detail, const char *name);
extern int64 idem_detail_int(Jsonb *detail, const char *name);
extern TimestampTz idem_detail_time(Jsonb *detail, const char *name);
extern bool idem_detail_bool(Jsonb *detail, const char *name);

#endif							/* IDEM_DETAIL_H */
