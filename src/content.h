/*-------------------------------------------------------------------------
 *
 * content.h
 *	  What may be kept as params, draft or result, and whether it can go out.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/content.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CONTENT_H
#define IDEM_CONTENT_H

#include "idem_action.h"

/* largest idem_action.max_content: an answer has three contents, all told in
 * one message of less than 1 GB, in which quotes may double */
#define IDEM_LARGEST_CONTENT (64 * 1024 * 1024)

extern Jsonb *idem_content_given(Jsonb *content);
extern void idem_content_check(Jsonb *content, const char *name);
extern const char *idem_result_fault(Jsonb *result);
extern const char *idem_cannot_go_out(const IdemAction *action);

#endif							/* IDEM_CONTENT_H */
