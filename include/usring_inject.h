/* Faults on demand, for a program's own tests. `usring_inject_once("ring:fsync:error=EIO")` has the
 * next fsync by a ring fail, as a rule of `usring run --inject` does. The syntax is in
 * docs/testing-with-usring.md. The rule concerns this process alone. It makes one fault, and is
 * then gone. A rule may also name plain system calls and libaio.
 *
 * The program need not be linked to usring: both functions look for it in the process. Under
 * `usring run`, or linked to libusring.so, the rule holds. Otherwise usring_inject_once answers
 * -ENOSYS and usring_injected 0, and a test can skip its case. */
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
 * - -ENOSPC: the process has added more than 8000 rules.
 * - -EPERM: the system calls that the rule names cannot be trapped here.
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
