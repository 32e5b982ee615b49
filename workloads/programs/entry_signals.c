/*
 * Signals and rings: interrupted waits, handlers that use the interrupted ring or jump out of its
 * call, masks that block every signal, and signals at every moment of a call.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>

static struct io_uring ring;
static volatile sig_atomic_t count;
static sigjmp_buf place;

static long enter(unsigned submit, unsigned wait, unsigned flags, void *argument, size_t size)
{
	long answer = syscall(SYS_io_uring_enter, ring.ring_fd, submit, wait, flags, argument, size);
	return answer < 0 ? -errno : answer;
}

static long wait_for_one(void)
{
	return enter(0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
}

static void install(int signal, void (*handler)(int), int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	EQUAL(sigaction(signal, &action, NULL), 0);
}

static void note(int signal)
{
	(void)signal;
	count++;
}

static void send_in_a_moment(int signal)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = signal };
	struct itimerspec span = { .it_value = { 0, 20000000 } };
	static timer_t timer;
	static int made;
	if (made)
		timer_delete(timer);
	EQUAL(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
	made = 1;
	EQUAL(timer_settime(timer, 0, &span, NULL), 0);
}

/*
 * A timer that repeats until `quiet` is called. One signal would not do, because it may come before
 * the wait that it has to end.
 */
static timer_t repeated;

static void send_again_and_again(int signal)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = signal };
	struct itimerspec span = { .it_value = { 0, 20000000 }, .it_interval = { 0, 20000000 } };
	EQUAL(timer_create(CLOCK_MONOTONIC, &event, &repeated), 0);
	EQUAL(timer_settime(repeated, 0, &span, NULL), 0);
}

static void quiet(void)
{
	EQUAL(timer_delete(repeated), 0);
}

static void one_nop(void)
{
	struct io_uring_cqe *cqe;
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_nop(sqe);
	named(sqe, 77, 0);
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(io_uring_wait_cqe(&ring, &cqe), 0);
	EQUAL((long long)cqe->user_data, 77);
	io_uring_cqe_seen(&ring, cqe);
}

static void a_signal_ends_a_wait(void)
{
	static const int flags[] = { 0, SA_RESTART };
	ring = new_ring(8, 0);
	for (int index = 0; index < 2; index++) {
		install(SIGUSR1, note, flags[index]);
		count = 0;
		send_again_and_again(SIGUSR1);
		EQUAL(wait_for_one(), -EINTR);
		quiet();
		HOLDS(count > 0);
		one_nop();
	}
	io_uring_queue_exit(&ring);
}

static void block(int signal, sigset_t *without)
{
	sigset_t with;
	sigemptyset(&with);
	sigaddset(&with, signal);
	EQUAL(sigprocmask(SIG_BLOCK, &with, without), 0);
	sigdelset(without, signal);
}

static int is_blocked(int signal)
{
	sigset_t mask;
	EQUAL(sigprocmask(SIG_BLOCK, NULL, &mask), 0);
	return sigismember(&mask, signal);
}

static void the_mask_of_a_wait_lets_a_signal_in(void)
{
	sigset_t without;
	ring = new_ring(8, 0);
	install(SIGUSR1, note, 0);
	block(SIGUSR1, &without);
	/* The signal comes during the wait. */
	count = 0;
	send_in_a_moment(SIGUSR1);
	EQUAL(enter(0, 1, IORING_ENTER_GETEVENTS, &without, 8), -EINTR);
	EQUAL(count, 1);
	EQUAL(is_blocked(SIGUSR1), 1);
	/* The signal comes before the wait. */
	EQUAL(raise(SIGUSR1), 0);
	EQUAL(count, 1);
	EQUAL(enter(0, 1, IORING_ENTER_GETEVENTS, &without, 8), -EINTR);
	EQUAL(count, 2);
	/* The signal has nothing to interrupt, because there is no wait. */
	EQUAL(raise(SIGUSR1), 0);
	EQUAL(enter(0, 0, IORING_ENTER_GETEVENTS, &without, 8), 0);
	EQUAL(count, 2);
	EQUAL(sigprocmask(SIG_SETMASK, &without, NULL), 0);
	EQUAL(count, 3);
	io_uring_queue_exit(&ring);
}

static void enter_again(int signal)
{
	(void)signal;
	one_nop();
	count++;
}

static void a_handler_may_enter_the_ring_it_interrupted(void)
{
	ring = new_ring(8, 0);
	install(SIGUSR1, enter_again, 0);
	count = 0;
	send_again_and_again(SIGUSR1);
	EQUAL(wait_for_one(), -EINTR);
	quiet();
	HOLDS(count > 0);
	one_nop();
	io_uring_queue_exit(&ring);
}

static void jump(int signal)
{
	siglongjmp(place, signal);
}

static void a_handler_may_jump_out_of_a_wait(void)
{
	ring = new_ring(8, 0);
	install(SIGUSR1, jump, 0);
	for (int round = 0; round < 3; round++) {
		if (sigsetjmp(place, 1) == 0) {
			send_in_a_moment(SIGUSR1);
			wait_for_one();
			HOLDS(!"the wait returned");
		}
		EQUAL(is_blocked(SIGUSR1), 0);
		one_nop();
	}
	io_uring_queue_exit(&ring);
}

static void a_wait_ends_at_its_time(void)
{
	struct __kernel_timespec span = { 0, 30000000 };
	struct io_uring_getevents_arg argument = { .ts = (uintptr_t)&span };
	ring = new_ring(8, 0);
	long long before = milliseconds_now();
	EQUAL(enter(0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &argument, sizeof argument), -ETIME);
	HOLDS(milliseconds_now() - before >= 29);
	io_uring_queue_exit(&ring);
}

/*
 * A signal comes every 40 us while the program submits and waits. Its handler calls into the ring
 * that it interrupts. No request may be lost or complete twice.
 */
static void flush(int signal)
{
	(void)signal;
	int error = errno;
	long answer = enter(0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
	if (answer != 0)
		_exit(4);
	count++;
	errno = error;
}

static void storm(void (*handler)(int), int flags)
{
	struct itimerval every = { { 0, 40 }, { 0, 40 } }, never = { { 0, 0 }, { 0, 0 } };
	ring = new_ring(8, 0);
	install(SIGVTALRM, handler, flags);
	install(SIGPROF, handler, flags);
	count = 0;
	EQUAL(setitimer(ITIMER_PROF, &every, NULL), 0);
	long long end = milliseconds_now() + 1500;
	uint64_t sent = 0, seen = 0;
	while (milliseconds_now() < end) {
		unsigned batch = 1 + sent % 8;
		for (unsigned index = 0; index < batch; index++) {
			struct io_uring_sqe *sqe = request(&ring);
			io_uring_prep_nop(sqe);
			named(sqe, sent++, 0);
		}
		int submitted = io_uring_submit_and_wait(&ring, batch);
		HOLDS(submitted == (int)batch || submitted == -EINTR);
		struct io_uring_cqe *cqe;
		while (io_uring_peek_cqe(&ring, &cqe) == 0) {
			EQUAL((long long)cqe->user_data, (long long)seen);
			seen++;
			io_uring_cqe_seen(&ring, cqe);
		}
		if (raise(SIGVTALRM) != 0)
			exit(1);
	}
	EQUAL(setitimer(ITIMER_PROF, &never, NULL), 0);
	while (seen < sent) {
		struct io_uring_cqe *cqe;
		int waited = io_uring_wait_cqe(&ring, &cqe);
		HOLDS(waited == 0 || waited == -EINTR);
		if (io_uring_peek_cqe(&ring, &cqe) == 0) {
			EQUAL((long long)cqe->user_data, (long long)seen);
			seen++;
			io_uring_cqe_seen(&ring, cqe);
		}
	}
	HOLDS(count > 100);
	io_uring_queue_exit(&ring);
}

static void no_request_is_lost_in_a_storm_of_signals(void)
{
	storm(note, 0);
}

static void handlers_may_enter_the_ring_in_a_storm(void)
{
	storm(flush, SA_RESTART);
}

static char alternate[65536];

static void handlers_may_enter_from_the_alternate_stack(void)
{
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate }, none = { .ss_flags = SS_DISABLE };
	EQUAL(sigaltstack(&stack, NULL), 0);
	storm(flush, SA_ONSTACK);
	EQUAL(sigaltstack(&none, NULL), 0);
}

/*
 * The signal is blocked except during the wait. It must end every wait, whether it comes before the
 * call, while the call prepares to sleep, or during the sleep.
 */
enum { ROUNDS = 20000 };
static atomic_int round_number;
static pthread_t waiter;

static void *send_at_every_moment(void *unused)
{
	for (int round = 1; round <= ROUNDS; round++) {
		while (atomic_load(&round_number) != round)
			look_again();
		for (volatile int delay = 0; delay < round % 700; delay++)
			;
		EQUAL(pthread_kill(waiter, SIGUSR1), 0);
	}
	return unused;
}

static void no_signal_is_lost_before_a_sleep(void)
{
	sigset_t without;
	pthread_t sender;
	ring = new_ring(8, 0);
	install(SIGUSR1, note, 0);
	block(SIGUSR1, &without);
	count = 0;
	waiter = pthread_self();
	EQUAL(pthread_create(&sender, NULL, send_at_every_moment, NULL), 0);
	for (int round = 1; round <= ROUNDS; round++) {
		atomic_store(&round_number, round);
		EQUAL(enter(0, 1, IORING_ENTER_GETEVENTS, &without, 8), -EINTR);
		EQUAL(count, round);
	}
	EQUAL(pthread_join(sender, NULL), 0);
	EQUAL(sigprocmask(SIG_SETMASK, &without, NULL), 0);
	io_uring_queue_exit(&ring);
}

/*
 * Several signals are sent together to a thread that waits. The first one ends the wait. The wait's
 * mask blocks none of the others, so all of them must be delivered, too.
 */
enum { SENT_ROUNDS = 200 };
static const int together[] = { SIGUSR1, SIGTRAP, SIGILL, SIGFPE, SIGSEGV, SIGBUS };
enum { TOGETHER = sizeof together / sizeof together[0] };
static volatile sig_atomic_t arrived[65];

static void note_which(int signal)
{
	arrived[signal]++;
}

static void *send_together(void *unused)
{
	for (int round = 1; round <= SENT_ROUNDS; round++) {
		while (atomic_load(&round_number) != round)
			look_again();
		for (volatile int delay = 0; delay < round * 50; delay++)
			;
		for (int index = 0; index < TOGETHER; index++)
			EQUAL(pthread_kill(waiter, together[index]), 0);
	}
	return unused;
}

static void signals_that_come_together_all_arrive(void)
{
	struct __kernel_timespec span = { 0, 2000000 };
	struct io_uring_getevents_arg argument = { .ts = (uintptr_t)&span };
	pthread_t sender;
	ring = new_ring(8, 0);
	for (int index = 0; index < TOGETHER; index++)
		install(together[index], note_which, 0);
	waiter = pthread_self();
	atomic_store(&round_number, 0);
	EQUAL(pthread_create(&sender, NULL, send_together, NULL), 0);
	for (int round = 1; round <= SENT_ROUNDS; round++) {
		for (int index = 0; index < TOGETHER; index++)
			arrived[together[index]] = 0;
		atomic_store(&round_number, round);
		for (int index = 0; index < TOGETHER; index++)
			while (arrived[together[index]] == 0) {
				/*
				 * If the signal comes after the call's last check for signals and
				 * before its sleep, it must end the sleep.
				 */
				long answer = enter(0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &argument,
						    sizeof argument);
				HOLDS(answer == -EINTR || answer == -ETIME);
			}
		for (int index = 0; index < TOGETHER; index++)
			EQUAL(arrived[together[index]], 1);
	}
	EQUAL(pthread_join(sender, NULL), 0);
	for (int index = 0; index < TOGETHER; index++)
		HOLDS(signal(together[index], SIG_DFL) != SIG_ERR);
	io_uring_queue_exit(&ring);
}

/* Signals with queued values must all come, in their order, wherever they interrupt the thread. */
enum { VALUES = 30000 };
static volatile int expected, out_of_order;

static void see_value(int signal, siginfo_t *information, void *context)
{
	(void)signal;
	(void)context;
	if (information->si_value.sival_int != expected)
		out_of_order++;
	expected = information->si_value.sival_int + 1;
	count++;
}

static void *queue_values(void *unused)
{
	for (int value = 0; value < VALUES; value++) {
		union sigval carried = { .sival_int = value };
		while (pthread_sigqueue(waiter, SIGRTMIN + 3, carried) == EAGAIN)
			look_again();
	}
	return unused;
}

static void queued_values_arrive_in_order(void)
{
	struct sigaction action = { .sa_sigaction = see_value, .sa_flags = SA_SIGINFO };
	pthread_t sender;
	ring = new_ring(8, 0);
	EQUAL(sigaction(SIGRTMIN + 3, &action, NULL), 0);
	waiter = pthread_self();
	count = expected = out_of_order = 0;
	EQUAL(pthread_create(&sender, NULL, queue_values, NULL), 0);
	while (count < VALUES) {
		enter(0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
		look_again();
	}
	EQUAL(pthread_join(sender, NULL), 0);
	EQUAL(count, VALUES);
	EQUAL(out_of_order, 0);
	io_uring_queue_exit(&ring);
}

/* Uses a ring on a thread that blocks all signals, as QEMU's threads do. */
static void *use_a_ring_with_all_blocked(void *unused)
{
	sigset_t all;
	sigfillset(&all);
	EQUAL(pthread_sigmask(SIG_SETMASK, &all, NULL), 0);
	struct io_uring mine = new_ring(8, 0);
	io_uring_prep_nop(request(&mine));
	EQUAL(io_uring_submit_and_wait(&mine, 1), 1);
	/*
	 * With all signals blocked a bad address must still give an error, and must not kill the
	 * process.
	 */
	EQUAL(syscall(SYS_io_uring_setup, 8, 16), -1);
	EQUAL(errno, EFAULT);
	io_uring_queue_exit(&mine);
	return unused;
}

static void a_thread_that_blocks_everything_is_served(void)
{
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, use_a_ring_with_all_blocked, NULL), 0);
	EQUAL(pthread_join(thread, NULL), 0);
}

static void use_a_ring(int signal)
{
	(void)signal;
	use_a_ring_with_all_blocked(NULL);
	count++;
}

static void a_handler_that_blocks_everything_is_served(void)
{
	struct sigaction action = { .sa_handler = use_a_ring };
	sigset_t all, without, now;
	sigfillset(&action.sa_mask);
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	count = 0;
	EQUAL(raise(SIGUSR1), 0);
	EQUAL(count, 1);
	/* A wait unblocks the signal by its own mask. */
	block(SIGUSR1, &without);
	EQUAL(raise(SIGUSR1), 0);
	sigfillset(&all);
	sigdelset(&all, SIGUSR1);
	sigdelset(&all, SIGALRM);
	EQUAL(ppoll(NULL, 0, NULL, &all), -1);
	EQUAL(errno, EINTR);
	EQUAL(count, 2);
	EQUAL(raise(SIGUSR1), 0);
	EQUAL(sigsuspend(&all), -1);
	EQUAL(count, 3);
	EQUAL(sigprocmask(SIG_SETMASK, &without, NULL), 0);
	EQUAL(sigprocmask(SIG_SETMASK, NULL, &now), 0);
	for (int signal = 1; signal < 65; signal++)
		EQUAL(sigismember(&now, signal), sigismember(&without, signal));
}

/*
 * libc interrupts every thread that it knows, changes the thread's user, and waits until all of
 * these threads have the new user.
 */
static void changing_the_user_reaches_every_thread(void)
{
	int ends[2];
	char byte;
	ring = new_ring(8, 0);
	EQUAL(pipe(ends), 0);
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_read(sqe, ends[0], &byte, 1, 0);
	named(sqe, 1, IOSQE_ASYNC);
	EQUAL(io_uring_submit(&ring), 1);
	EQUAL(setuid(getuid()), 0);
	EQUAL(write(ends[1], "x", 1), 1);
	struct io_uring_cqe *cqe;
	EQUAL(io_uring_wait_cqe(&ring, &cqe), 0);
	EQUAL(cqe->res, 1);
	io_uring_cqe_seen(&ring, cqe);
	EQUAL(setgid(getgid()), 0);
	io_uring_queue_exit(&ring);
}

/* Blocks every signal for the code after the handler, by the handler's ucontext_t. */
static void block_all_after(int signal, siginfo_t *information, void *context)
{
	(void)signal, (void)information;
	sigfillset(&((ucontext_t *)context)->uc_sigmask);
	count++;
}

static void a_handler_may_set_the_mask_that_follows(void)
{
	struct sigaction action = { .sa_sigaction = block_all_after, .sa_flags = SA_SIGINFO };
	sigset_t mask, none;
	sigemptyset(&none);
	ring = new_ring(8, 0);
	count = 0;
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	EQUAL(sigaction(SIGSEGV, &action, NULL), 0);
	for (int round = 0; round < 3; round++) {
		/*
		 * Round 0: the signal comes while the program runs. Round 1: it comes while the
		 * program waits in a ring. Round 2: the signal is SIGSEGV, one of three that usring
		 * keeps unblocked.
		 */
		if (round == 1) {
			send_in_a_moment(SIGUSR1);
			EQUAL(wait_for_one(), -EINTR);
		} else {
			EQUAL(raise(round == 0 ? SIGUSR1 : SIGSEGV), 0);
		}
		EQUAL(count, round + 1);
		EQUAL(sigprocmask(SIG_BLOCK, NULL, &mask), 0);
		EQUAL(sigismember(&mask, SIGTERM), 1);
		one_nop();
		EQUAL(sigprocmask(SIG_SETMASK, &none, NULL), 0);
	}
	io_uring_queue_exit(&ring);
	EQUAL(signal(SIGSEGV, SIG_DFL) == SIG_ERR, 0);
}

static const struct check checks[] = {
	{ "a handler may set the mask that follows", a_handler_may_set_the_mask_that_follows },
	{ "a signal ends a wait", a_signal_ends_a_wait },
	{ "the mask of a wait lets a signal in", the_mask_of_a_wait_lets_a_signal_in },
	{ "a handler may enter the ring it interrupted", a_handler_may_enter_the_ring_it_interrupted },
	{ "a handler may jump out of a wait", a_handler_may_jump_out_of_a_wait },
	{ "a wait ends at its time", a_wait_ends_at_its_time },
	{ "no request is lost in a storm of signals", no_request_is_lost_in_a_storm_of_signals },
	{ "handlers may enter the ring in a storm", handlers_may_enter_the_ring_in_a_storm },
	{ "handlers may enter from the alternate stack", handlers_may_enter_from_the_alternate_stack },
	{ "no signal is lost before a sleep", no_signal_is_lost_before_a_sleep },
	{ "signals that come together all arrive", signals_that_come_together_all_arrive },
	{ "queued values arrive in order", queued_values_arrive_in_order },
	{ "a thread that blocks everything is served", a_thread_that_blocks_everything_is_served },
	{ "a handler that blocks everything is served", a_handler_that_blocks_everything_is_served },
	{ "changing the user reaches every thread", changing_the_user_reaches_every_thread },
};

int main(int count_of_words, char **words)
{
	return RUN(checks, count_of_words, words);
}
