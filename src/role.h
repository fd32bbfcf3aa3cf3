/*-------------------------------------------------------------------------
 *
 * role.h
 *	  Roles that rules and levels name.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/role.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_ROLE_H
#define IDEM_ROLE_H

/* a role as it is stored; see role.c for what decides */
typedef struct IdemRole
{
	const char *name;			/* NULL: no role is named */
	Oid			oid;			/* where it was stored; 0: it was dropped
								 * there */
	bool		is_foreign;		/* stored elsewhere */
} IdemRole;

extern char *idem_roles_of(void);
extern Oid	idem_role_here(const IdemRole *role);
extern const char *idem_role_name(const IdemRole *role);
extern bool idem_role_has_member(const IdemRole *role, Oid user);
extern void idem_roles_refresh(void);
extern bool idem_roles_accept(void);

#endif							/* IDEM_ROLE_H */
