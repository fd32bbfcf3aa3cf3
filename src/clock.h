/*-------------------------------------------------------------------------
 *
 * clock.h
 *	  Whether the clock may be believed, and time that no one can set.
 *
 * Copyright (c) 2026, idem_action contributors
 *
 * IDENTIFICATION
 *	  src/clock.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLOCK_H
#define IDEM_CLOCK_H

#include "datatype/timestamp.h"

#define IDEM_CLOCK_TOLERANCE USECS_PER_HOUR

extern void idem_clock_init(void);
extern int64 idem_clock_monotonic(void);
extern int64 idem_clock_monotonic_of(TimestampTz then);
extern TimestampTz idem_clock_now(void);
extern bool idem_clock_believed(void);
extern bool idem_clock_lease_over(TimestampTz claimed_at, TimestampTz lease_until, TimestampTz now);
extern TimestampTz idem_clock_not_before_known(TimestampTz now);
extern void idem_clock_record(TimestampTz now);

#endif							/* IDEM_CLOCK_H */
