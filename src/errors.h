/*-------------------------------------------------------------------------
 *
 * errors.h
 *	  SQLSTATE class IA: the errors that only this ledger raises.
 *
 * Everything else uses PostgreSQL's own codes, as PostgreSQL means them.
 * The README's table is checked against this list.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/errors.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_ERRORS_H
#define IDEM_ERRORS_H

/* the key is known with other params; a mistake of the caller */
#define ERRCODE_IDEM_PARAMS_MISMATCH	MAKE_SQLSTATE('I', 'A', '0', '0', '1')
/* the claim was outrun, or someone decided meanwhile; do not act */
#define ERRCODE_IDEM_CLAIM_LOST			MAKE_SQLSTATE('I', 'A', '0', '0', '2')
/* once(): the action is known, but nobody can say that it is done */
#define ERRCODE_IDEM_NOT_DONE			MAKE_SQLSTATE('I', 'A', '0', '0', '3')
/* cancel requested, or the intent is paused; release the claim */
#define ERRCODE_IDEM_CANCEL_REQUESTED	MAKE_SQLSTATE('I', 'A', '0', '0', '4')
/* the intent has no rule */
#define ERRCODE_IDEM_NO_RULE			MAKE_SQLSTATE('I', 'A', '0', '0', '5')
/* key, intent or scope is missing, empty or too long */
#define ERRCODE_IDEM_INVALID_KEY		MAKE_SQLSTATE('I', 'A', '0', '0', '6')
/* the role may not do this */
#define ERRCODE_IDEM_NOT_PERMITTED		MAKE_SQLSTATE('I', 'A', '0', '0', '8')
/* params or draft are larger than idem_action.max_content */
#define ERRCODE_IDEM_CONTENT_TOO_LARGE	MAKE_SQLSTATE('I', 'A', '0', '1', '0')
/* a secret that stored rows need is not in the secret file */
#define ERRCODE_IDEM_SECRET_MISSING		MAKE_SQLSTATE('I', 'A', '0', '1', '4')
/* no such action, or none that the role may see */
#define ERRCODE_IDEM_NO_SUCH_ACTION		MAKE_SQLSTATE('I', 'A', '0', '1', '6')

#endif							/* IDEM_ERRORS_H */
