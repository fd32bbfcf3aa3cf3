/*-------------------------------------------------------------------------
 *
 * quote.h
 *	  Names from outside in sentences of ours.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/quote.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_QUOTE_H
#define IDEM_QUOTE_H

extern bool idem_is_plain_label(const char *label);
extern const char *idem_quote_label(const char *label);
extern void idem_keep_one_line(char *sentence);

#endif							/* IDEM_QUOTE_H */
