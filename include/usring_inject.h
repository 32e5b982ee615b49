/* Faults on demand, for a program's own tests. `usring_inject_once("ring:fsync:error=EIO")` makes
 * the next fsync by a ring fail. The rule concerns this process alone. It makes one fault, and is
 * then gone. A rule may also name plain system calls and libaio. Rules have the syntax of
 * `usring run --inject` (docs/testing-with-usring.md).
 *
 * The program need not be linked to usring: both functions look for usring in the process. They
 * find it if the program runs under `usring run` or is linked to libusring.so. Otherwise
 * usring_inject_once returns -ENOSYS and usring_injected returns 0, so that a test can skip its
 * case. */
#ifndef USRING_INJECT_H
#define USRING_INJECT_H

#if defined(__GNUC__) && !defined(USRING_NO_INJECT)
#include <dlfcn.h>
#include <errno.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Adds the rule. NULL removes the rules of this process that have made no fault yet. Returns 0 or a
 * negative errno:
 * - -ENOSYS: usring is not in this process.
 * - -EINVAL: the rule has a mistake, which usring explains on standard error.
 * - -ENOSPC: the process has no room for a further rule; it can add 8,192, of at most 8 KiB each
 *   and 1 MiB in all.
 * - -EPERM: the system calls that the rule names cannot be trapped in this process.
 * - -ENOMEM: memory could not be allocated. */
static inline int usring_inject_once(const char *rule)
{
	int (*function)(const char *) = (int (*)(const char *))dlsym((void *)0, "usring_inject_once");
	return function ? function(rule) : -ENOSYS;
}

/* Returns how many faults this process has got, by rules of its own and of `usring run --inject`. A
 * forked child begins with the count of its parent. */
static inline unsigned long usring_injected(void)
{
	unsigned long (*function)(void) = (unsigned long (*)(void))dlsym((void *)0, "usring_injected");
	return function ? function() : 0;
}

#ifdef __cplusplus
}
#endif
#endif

#endif
