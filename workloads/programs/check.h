/*
 * The frame of the C programs: a list of named checks. A check either returns or ends the program
 * with a message. If a check hangs, an alarm ends the program and names the check.
 */
#pragma once

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Seconds that a check may take: far more than it needs, because the machine may be busy. */
#ifndef SECONDS_PER_CHECK
#define SECONDS_PER_CHECK 60
#endif

struct check {
	const char *name;
	void (*run)(void);
};

static const char *running = "start";

/* Ends the program, or the forked child, from any thread. */
static inline _Noreturn void failed(void)
{
	fflush(stdout);
	_exit(1);
}

/* Fails with the condition's source text, unless it holds. */
#define HOLDS(condition)                                                                         \
	do {                                                                                     \
		if (!(condition)) {                                                              \
			printf("%s: line %d: not so: %s (%s)\n", running, __LINE__, #condition,  \
			       strerror(errno));                                                 \
			failed();                                                                \
		}                                                                                \
	} while (0)

/* Fails with both numbers if they differ. */
#define EQUAL(found, wanted)                                                                     \
	do {                                                                                     \
		long long found_ = (found), wanted_ = (wanted);                                  \
		if (found_ != wanted_) {                                                         \
			printf("%s: line %d: %s is %lld, not %lld\n", running, __LINE__, #found, \
			       found_, wanted_);                                                 \
			failed();                                                                \
		}                                                                                \
	} while (0)

static void too_long(int signal)
{
	(void)signal;
	static const char sentence[] = ": still running, gave up\n";
	if (write(1, running, strlen(running)) < 0 || write(1, sentence, sizeof sentence - 1) < 0)
		_exit(3);
	_exit(2);
}

static inline long long milliseconds_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/*
 * Yields the processor at every thousandth call. A loop that waits for another thread must call
 * this function, because that thread may be waiting for this processor.
 */
static inline void look_again(void)
{
	static _Thread_local unsigned looks;
	if (++looks % 1000 == 0)
		sched_yield();
}

/*
 * Runs all checks or, if `only` is not NULL, the check with that name. Prints how many checks hold.
 */
static inline int run_checks(const struct check *checks, size_t count, const char *only)
{
	size_t index, done = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (index = 0; index < count; index++) {
		if (only != NULL && strcmp(only, checks[index].name) != 0)
			continue;
		running = checks[index].name;
		signal(SIGALRM, too_long);
		alarm(SECONDS_PER_CHECK);
		checks[index].run();
		alarm(0);
		done++;
	}
	printf("%zu checks hold\n", done);
	return done == 0;
}

#define RUN(checks, count, arguments) \
	run_checks(checks, sizeof(checks) / sizeof *(checks), (count) > 1 ? (arguments)[1] : NULL)
