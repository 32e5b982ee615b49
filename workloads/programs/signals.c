/*
 * Uses signals as programs do: jumps out of handlers, handlers on other stacks, nested handlers,
 * waiting for signals, queued values, resets, restarts, inherited masks. Each check tests a promise
 * of the kernel that a layer like usring might break.
 */
#define _GNU_SOURCE
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/signalfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

static volatile sig_atomic_t count;
static sigjmp_buf place;

static void install(int signal, void (*handler)(int), int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	EQUAL(sigaction(signal, &action, NULL), 0);
}

static void jump(int signal)
{
	count++;
	siglongjmp(place, signal);
}

static void note(int signal)
{
	(void)signal;
	count++;
}

static void a_handler_may_jump_out(void)
{
	count = 0;
	install(SIGUSR1, jump, 0);
	for (int round = 1; round <= 1000; round++) {
		if (sigsetjmp(place, 1) == 0)
			raise(SIGUSR1);
		EQUAL(count, round);
	}
}

static void a_handler_may_jump_out_of_a_sleep(void)
{
	install(SIGALRM, jump, 0);
	for (int round = 0; round < 20; round++) {
		struct itimerval soon = { .it_value.tv_usec = 2000 };
		if (sigsetjmp(place, 1) == 0) {
			setitimer(ITIMER_REAL, &soon, NULL);
			for (;;)
				poll(NULL, 0, -1);
		}
	}
	signal(SIGALRM, too_long);
}

static void a_fault_may_be_jumped_out_of(void)
{
	void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	install(SIGSEGV, jump, SA_NODEFER);
	for (int round = 0; round < 100; round++) {
		if (sigsetjmp(place, 1) == 0) {
			*(volatile int *)page = 1;
			HOLDS(!"the page was writable");
		}
	}
	signal(SIGSEGV, SIG_DFL);
	munmap(page, 4096);
}

static void mend(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	mprotect(info->si_addr, 4096, PROT_READ | PROT_WRITE);
	count++;
}

static void a_fault_may_be_mended(void)
{
	volatile char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct sigaction action = { .sa_sigaction = mend, .sa_flags = SA_SIGINFO };

	count = 0;
	sigaction(SIGSEGV, &action, NULL);
	page[0] = 7;
	EQUAL(count, 1);
	EQUAL(page[0], 7);
	signal(SIGSEGV, SIG_DFL);
	munmap((void *)page, 4096);
}

static char alternate[65536];
static char *volatile seen_stack;

static void see_stack(int signal)
{
	char here;
	(void)signal;
	seen_stack = &here;
	count++;
}

static void handlers_run_on_the_alternate_stack(void)
{
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate }, off = { .ss_flags = SS_DISABLE };

	EQUAL(sigaltstack(&stack, NULL), 0);
	install(SIGUSR2, see_stack, SA_ONSTACK);
	raise(SIGUSR2);
	HOLDS(seen_stack >= alternate && seen_stack < alternate + sizeof alternate);
	install(SIGUSR2, see_stack, 0);
	raise(SIGUSR2);
	HOLDS(seen_stack < alternate || seen_stack >= alternate + sizeof alternate);
	EQUAL(sigaltstack(&off, NULL), 0);
}

static volatile siginfo_t seen_info;

static void see_info(int signal, siginfo_t *info, void *context)
{
	ucontext_t *interrupted = context;
	(void)signal;
	seen_info = *info;
	HOLDS(!sigismember(&interrupted->uc_sigmask, SIGSYS));
	count++;
}

static void a_queued_value_arrives(void)
{
	struct sigaction action = { .sa_sigaction = see_info, .sa_flags = SA_SIGINFO };

	count = 0;
	sigaction(SIGRTMIN + 3, &action, NULL);
	for (int value = 1; value <= 10; value++) {
		EQUAL(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){ .sival_int = value }), 0);
		EQUAL(count, value);
		EQUAL(seen_info.si_value.sival_int, value);
		EQUAL(seen_info.si_code, SI_QUEUE);
		EQUAL(seen_info.si_pid, getpid());
	}
}

static volatile sig_atomic_t depth, deepest;

static void nest(int signal)
{
	depth++;
	deepest = depth > deepest ? depth : deepest;
	if (signal == SIGUSR1)
		raise(SIGUSR2);
	depth--;
}

static void a_mask_keeps_a_handler_from_being_interrupted(void)
{
	struct sigaction action = { .sa_handler = nest };

	deepest = 0;
	sigemptyset(&action.sa_mask);
	sigaction(SIGUSR2, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	EQUAL(deepest, 2);
	deepest = 0;
	sigaddset(&action.sa_mask, SIGUSR2);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	EQUAL(deepest, 1);
}

static void a_handler_may_last_for_one_signal(void)
{
	struct sigaction now;

	count = 0;
	install(SIGUSR1, note, SA_RESETHAND);
	EQUAL(sigaction(SIGUSR1, NULL, &now), 0);
	HOLDS(now.sa_handler == note && (now.sa_flags & SA_RESETHAND));
	raise(SIGUSR1);
	EQUAL(count, 1);
	EQUAL(sigaction(SIGUSR1, NULL, &now), 0);
	HOLDS(now.sa_handler == SIG_DFL);
}

static void what_was_installed_is_told(void)
{
	struct sigaction action = { .sa_sigaction = see_info, .sa_flags = SA_SIGINFO | SA_RESTART }, now;

	sigfillset(&action.sa_mask);
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	EQUAL(sigaction(SIGUSR1, NULL, &now), 0);
	HOLDS(now.sa_sigaction == see_info);
	/* The C library has added SA_RESTORER to the flags. */
	EQUAL(now.sa_flags & ~0x04000000, SA_SIGINFO | SA_RESTART);
	HOLDS(sigismember(&now.sa_mask, SIGSYS) && sigismember(&now.sa_mask, SIGUSR2));
	EQUAL(sigaction(SIGSYS, &action, &now), 0);
	HOLDS(now.sa_handler == SIG_DFL);
	EQUAL(sigaction(SIGSYS, NULL, &now), 0);
	HOLDS(now.sa_sigaction == see_info);
	signal(SIGSYS, SIG_DFL);
	EQUAL(sigaction(SIGKILL, &action, NULL), -1);
	EQUAL(errno, EINVAL);
}

static void a_raised_sigsys_reaches_its_handler(void)
{
	struct sigaction action = { .sa_sigaction = see_info, .sa_flags = SA_SIGINFO };

	count = 0;
	sigaction(SIGSYS, &action, NULL);
	raise(SIGSYS);
	EQUAL(count, 1);
	EQUAL(seen_info.si_code, SI_TKILL);
	signal(SIGSYS, SIG_DFL);
}

static void blocked_signals_wait(void)
{
	sigset_t all, before, pending, now;

	count = 0;
	install(SIGUSR1, note, 0);
	sigfillset(&all);
	sigdelset(&all, SIGALRM);
	EQUAL(sigprocmask(SIG_SETMASK, &all, &before), 0);
	EQUAL(sigprocmask(SIG_BLOCK, NULL, &now), 0);
	HOLDS(sigismember(&now, SIGUSR2) && sigismember(&now, SIGUSR1));
	raise(SIGUSR1);
	EQUAL(count, 0);
	EQUAL(sigpending(&pending), 0);
	HOLDS(sigismember(&pending, SIGUSR1));
	EQUAL(sigprocmask(SIG_SETMASK, &before, NULL), 0);
	EQUAL(count, 1);
}

static void *send_soon(void *thread)
{
	usleep(5000);
	pthread_kill(*(pthread_t *)thread, SIGUSR1);
	return NULL;
}

static volatile sig_atomic_t enough;

/* Sends a signal again and again, because one may come before the call that it has to interrupt. */
static void *send_again_and_again(void *thread)
{
	while (!enough)
		send_soon(thread);
	return NULL;
}

static void a_sleep_lets_a_blocked_signal_in(void)
{
	sigset_t blocked, before, now;
	pthread_t self = pthread_self(), sender;
	struct timespec long_time = { .tv_sec = 1000 };

	count = 0;
	install(SIGUSR1, note, 0);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	EQUAL(pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
	for (int round = 0; round < 6; round++) {
		EQUAL(pthread_create(&sender, NULL, send_soon, &self), 0);
		if (round % 3 == 0)
			EQUAL(sigsuspend(&before), -1);
		else if (round % 3 == 1)
			EQUAL(ppoll(NULL, 0, &long_time, &before), -1);
		else
			EQUAL(pselect(0, NULL, NULL, NULL, &long_time, &before), -1);
		EQUAL(errno, EINTR);
		EQUAL(count, round + 1);
		pthread_join(sender, NULL);
	}
	EQUAL(pthread_sigmask(SIG_SETMASK, &before, &now), 0);
	HOLDS(sigismember(&now, SIGUSR1));
}

static void a_signal_can_be_taken_without_a_handler(void)
{
	sigset_t set, before;
	siginfo_t info;
	struct signalfd_siginfo read_info;
	int got;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	EQUAL(sigprocmask(SIG_BLOCK, &set, &before), 0);
	raise(SIGUSR1);
	EQUAL(sigwaitinfo(&set, &info), SIGUSR1);
	raise(SIGUSR1);
	EQUAL(sigwait(&set, &got), 0);
	EQUAL(got, SIGUSR1);
	int file = signalfd(-1, &set, 0);
	raise(SIGUSR1);
	EQUAL(read(file, &read_info, sizeof read_info), sizeof read_info);
	EQUAL(read_info.ssi_signo, SIGUSR1);
	close(file);
	EQUAL(sigprocmask(SIG_SETMASK, &before, NULL), 0);
}

static void a_read_is_restarted_or_not(void)
{
	pthread_t self = pthread_self(), sender;
	int ends[2];
	char byte;

	EQUAL(pipe(ends), 0);
	install(SIGUSR1, note, 0);
	enough = 0;
	EQUAL(pthread_create(&sender, NULL, send_again_and_again, &self), 0);
	EQUAL(read(ends[0], &byte, 1), -1);
	EQUAL(errno, EINTR);
	enough = 1;
	pthread_join(sender, NULL);
	install(SIGUSR1, note, SA_RESTART);
	pid_t writer = fork();
	if (writer == 0) {
		usleep(30000);
		_exit(write(ends[1], "x", 1) != 1);
	}
	EQUAL(pthread_create(&sender, NULL, send_soon, &self), 0);
	EQUAL(read(ends[0], &byte, 1), 1);
	pthread_join(sender, NULL);
	EQUAL(waitpid(writer, NULL, 0), writer);
	close(ends[0]);
	close(ends[1]);
}

/*
 * Prints the signal state that a program inherits. The three signals that usring needs are left
 * out, because they cannot stay blocked under usring.
 */
static int tell_inheritance(void)
{
	sigset_t mask;
	struct sigaction action;

	sigprocmask(SIG_BLOCK, NULL, &mask);
	for (int signal = 1; signal < 65; signal++) {
		/* The C library uses two signals itself, and refuses calls for them. */
		if (signal > 31 && signal < SIGRTMIN)
			continue;
		if (signal == SIGSYS || signal == SIGSEGV || signal == SIGBUS)
			continue;
		sigaction(signal, NULL, &action);
		if ((sigismember(&mask, signal) == 0) != (signal == SIGKILL || signal == SIGSTOP))
			return 1;
		if ((action.sa_handler == SIG_IGN) != (signal == SIGUSR1 || signal == SIGRTMAX))
			return 2;
		if (action.sa_handler != SIG_IGN && action.sa_handler != SIG_DFL)
			return 3;
	}
	return 0;
}

static void programs_inherit_masks_and_dispositions(void)
{
	sigset_t all, before;
	int status;

	sigfillset(&all);
	EQUAL(sigprocmask(SIG_SETMASK, &all, &before), 0);
	signal(SIGUSR1, SIG_IGN);
	signal(SIGRTMAX, SIG_IGN);
	install(SIGUSR2, note, 0);
	pid_t child = fork();
	if (child == 0) {
		execl("/proc/self/exe", "signals", "--inherited", NULL);
		_exit(127);
	}
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
	signal(SIGUSR1, SIG_DFL);
	signal(SIGUSR2, SIG_DFL);
	signal(SIGRTMAX, SIG_DFL);
	EQUAL(sigprocmask(SIG_SETMASK, &before, NULL), 0);
}

static void deaths_are_as_they_should_be(void)
{
	static const int deadly[] = { SIGTERM, SIGSEGV, SIGABRT, SIGBUS, SIGSYS, SIGKILL, SIGPIPE };
	int status;

	for (size_t index = 0; index < sizeof deadly / sizeof *deadly; index++) {
		pid_t child = fork();
		if (child == 0) {
			raise(deadly[index]);
			_exit(0);
		}
		EQUAL(waitpid(child, &status, 0), child);
		HOLDS(WIFSIGNALED(status));
		EQUAL(WTERMSIG(status), deadly[index]);
	}
}

static const struct check checks[] = {
	{ "a handler may jump out", a_handler_may_jump_out },
	{ "a handler may jump out of a sleep", a_handler_may_jump_out_of_a_sleep },
	{ "a fault may be jumped out of", a_fault_may_be_jumped_out_of },
	{ "a fault may be mended", a_fault_may_be_mended },
	{ "handlers run on the alternate stack", handlers_run_on_the_alternate_stack },
	{ "a queued value arrives", a_queued_value_arrives },
	{ "a mask keeps a handler from being interrupted", a_mask_keeps_a_handler_from_being_interrupted },
	{ "a handler may last for one signal", a_handler_may_last_for_one_signal },
	{ "what was installed is told", what_was_installed_is_told },
	{ "a raised SIGSYS reaches its handler", a_raised_sigsys_reaches_its_handler },
	{ "blocked signals wait", blocked_signals_wait },
	{ "a sleep lets a blocked signal in", a_sleep_lets_a_blocked_signal_in },
	{ "a signal can be taken without a handler", a_signal_can_be_taken_without_a_handler },
	{ "a read is restarted or not", a_read_is_restarted_or_not },
	{ "programs inherit masks and dispositions", programs_inherit_masks_and_dispositions },
	{ "deaths are as they should be", deaths_are_as_they_should_be },
};

int main(int words, char **arguments)
{
	if (words > 1 && strcmp(arguments[1], "--inherited") == 0)
		return tell_inheritance();
	return RUN(checks, words, arguments);
}
