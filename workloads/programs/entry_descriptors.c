/*
 * A ring's descriptor must behave like any descriptor. A program can duplicate and replace it,
 * close it in a range, and watch it by every call that polls. The ring lives until its last
 * descriptor is closed.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <linux/close_range.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static struct io_uring ring;

static long enter(int descriptor)
{
	long answer = syscall(SYS_io_uring_enter, descriptor, 0, 0, 0, NULL, 0);
	return answer < 0 ? -errno : answer;
}

static void submit_nop(void)
{
	io_uring_prep_nop(request(&ring));
	EQUAL(io_uring_submit(&ring), 1);
}

static void reap(void)
{
	struct io_uring_cqe *cqe;
	EQUAL(io_uring_peek_cqe(&ring, &cqe), 0);
	io_uring_cqe_seen(&ring, cqe);
}

static void use_number(int descriptor)
{
	ring.ring_fd = ring.enter_ring_fd = descriptor;
}

static void a_ring_lives_until_its_last_number_is_closed(void)
{
	ring = new_ring(8, 0);
	int first = ring.ring_fd, numbers[6];
	numbers[0] = dup(first);
	numbers[1] = fcntl(first, F_DUPFD, 3);
	numbers[2] = fcntl(first, F_DUPFD_CLOEXEC, 700);
	numbers[3] = dup2(first, 50);
	numbers[4] = dup3(first, 900, O_CLOEXEC);
	numbers[5] = dup(numbers[3]);
	EQUAL(numbers[3], 50);
	EQUAL(numbers[4], 900);
	HOLDS(numbers[2] >= 700);
	EQUAL(fcntl(numbers[0], F_GETFD), 0);
	EQUAL(fcntl(first, F_GETFD), FD_CLOEXEC);
	EQUAL(fcntl(numbers[2], F_GETFD), FD_CLOEXEC);
	EQUAL(close(first), 0);
	EQUAL(enter(first), -EBADF);
	for (int index = 0; index < 6; index++) {
		use_number(numbers[index]);
		submit_nop();
		reap();
		EQUAL(close(numbers[index]), 0);
		EQUAL(enter(numbers[index]), -EBADF);
	}
	EQUAL(close(numbers[0]), -1);
	EQUAL(errno, EBADF);
}

static void a_number_that_is_replaced_is_what_replaced_it(void)
{
	int ends[2];
	ring = new_ring(8, 0);
	int number = ring.ring_fd;
	EQUAL(pipe(ends), 0);
	EQUAL(dup2(ends[1], number), number);
	EQUAL(enter(number), -EOPNOTSUPP);
	EQUAL(write(number, "x", 1), 1);
	EQUAL(close(number), 0);
	struct io_uring other = new_ring(8, 0);
	ring = new_ring(8, 0);
	/* A ring's descriptor replaces another ring's, and then itself. */
	EQUAL(dup2(ring.ring_fd, other.ring_fd), other.ring_fd);
	EQUAL(dup2(ring.ring_fd, ring.ring_fd), ring.ring_fd);
	EQUAL(dup3(ring.ring_fd, ring.ring_fd, 0), -1);
	EQUAL(errno, EINVAL);
	EQUAL(dup2(-1, ring.ring_fd), -1);
	EQUAL(errno, EBADF);
	submit_nop();
	reap();
	use_number(other.ring_fd);
	submit_nop();
	reap();
	close(ends[0]);
	close(ends[1]);
}

/*
 * The program closes the number by a bare `syscall` instruction, so that no libc function of
 * usring's sees the close.
 */
static void a_low_number_that_was_reused_is_no_ring(void)
{
	long answer;
	ring = new_ring(8, 0);
	EQUAL(dup2(ring.ring_fd, 50), 50);
	EQUAL(enter(50), 0);
	__asm__ volatile("syscall" : "=a"(answer) : "a"(SYS_close), "D"(50) : "rcx", "r11", "memory");
	EQUAL(answer, 0);
	EQUAL(enter(50), -EBADF);
	int file = new_file();
	EQUAL(ftruncate(file, 4096), 0);
	EQUAL(dup2(file, 50), 50);
	EQUAL(enter(50), -EOPNOTSUPP);
	void *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, 50, 0);
	HOLDS(mapped != MAP_FAILED);
	close(50);
	close(file);
	io_uring_queue_exit(&ring);
}

static void rings_go_with_all_others(void)
{
	for (int way = 0; way < 3; way++) {
		struct io_uring one = new_ring(8, 0), two = new_ring(8, 0);
		if (way == 0)
			EQUAL(close_range(3, ~0u, 0), 0);
		else if (way == 1)
			closefrom(3);
		else
			for (int number = 3; number < 3000; number++)
				close(number);
		EQUAL(enter(one.ring_fd), -EBADF);
		EQUAL(enter(two.ring_fd), -EBADF);
		/* A request that needs a thread of usring's must also work: a read that waits. */
		int ends[2];
		char byte;
		ring = new_ring(8, 0);
		EQUAL(pipe(ends), 0);
		io_uring_prep_read(request(&ring), ends[0], &byte, 1, 0);
		EQUAL(io_uring_submit(&ring), 1);
		EQUAL(write(ends[1], "x", 1), 1);
		struct io_uring_cqe *cqe;
		EQUAL(io_uring_wait_cqe(&ring, &cqe), 0);
		EQUAL(cqe->res, 1);
		io_uring_cqe_seen(&ring, cqe);
		io_uring_queue_exit(&ring);
	}
	ring = new_ring(8, 0);
	EQUAL(close_range(3, ~0u, CLOSE_RANGE_CLOEXEC), 0);
	submit_nop();
	reap();
	io_uring_queue_exit(&ring);
}

static void every_poll_follows_the_completions(void)
{
	ring = new_ring(8, 0);
	int number = ring.ring_fd, set = epoll_create1(0);
	for (int round = 0; round < 3; round++)
		for (int full = 0; full < 2; full++) {
			struct pollfd polled = { .fd = number, .events = POLLIN };
			struct timeval now = { 0, 0 };
			struct timespec at_once = { 0, 0 };
			struct epoll_event event = { .events = EPOLLIN };
			fd_set chosen;
			if (full)
				submit_nop();
			EQUAL(poll(&polled, 1, 0), full);
			EQUAL(ppoll(&polled, 1, &at_once, NULL), full);
			FD_ZERO(&chosen);
			FD_SET(number, &chosen);
			EQUAL(select(number + 1, &chosen, NULL, NULL, &now), full);
			FD_SET(number, &chosen);
			EQUAL(pselect(number + 1, &chosen, NULL, NULL, &at_once, NULL), full);
			if (round == 1)
				EQUAL(epoll_ctl(set, full ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, number, &event), 0);
			if (round > 0) {
				EQUAL(epoll_wait(set, &event, 1, 0), full);
				EQUAL(epoll_pwait(set, &event, 1, 0, NULL), full);
				EQUAL(epoll_pwait2(set, &event, 1, &at_once, NULL), full);
			}
			if (full)
				reap();
		}
	EQUAL(epoll_ctl(set, EPOLL_CTL_DEL, number, NULL), 0);
	close(set);
	io_uring_queue_exit(&ring);
}

/* Makes a system call by a bare instruction, as programs without libc do. */
static long bare(long number, long first, long second, long third, long fourth, long fifth, long sixth)
{
	long answer;
	register long r10 __asm__("r10") = fourth, r8 __asm__("r8") = fifth, r9 __asm__("r9") = sixth;
	__asm__ volatile("syscall"
			 : "=a"(answer)
			 : "a"(number), "D"(first), "S"(second), "d"(third), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return answer;
}

typedef long maker(long, long, long, long, long, long, long);

static long by_libc(long number, long first, long second, long third, long fourth, long fifth, long sixth)
{
	long answer = syscall(number, first, second, third, fourth, fifth, sixth);
	return answer < 0 ? -errno : answer;
}

/*
 * Calls every function that polls, by its system call number. Returns how many of them report that
 * the descriptor is readable.
 */
static int polls_that_see_it(maker *make, int number)
{
	struct pollfd polled = { .fd = number, .events = POLLIN };
	struct timespec at_once = { 0, 0 };
	struct timeval now = { 0, 0 };
	fd_set chosen;
	int seen = 0;
	seen += make(SYS_poll, (long)&polled, 1, 0, 0, 0, 0) == 1;
	seen += make(SYS_ppoll, (long)&polled, 1, (long)&at_once, 0, 8, 0) == 1;
	FD_ZERO(&chosen);
	FD_SET(number, &chosen);
	seen += make(SYS_select, number + 1, (long)&chosen, 0, 0, (long)&now, 0) == 1;
	FD_SET(number, &chosen);
	seen += make(SYS_pselect6, number + 1, (long)&chosen, 0, 0, (long)&at_once, 0) == 1;
	return seen;
}

static int waits_that_see_it(maker *make, int set)
{
	struct timespec at_once = { 0, 0 };
	struct epoll_event event;
	int seen = 0;
	seen += make(SYS_epoll_wait, set, (long)&event, 1, 0, 0, 0) == 1;
	seen += make(SYS_epoll_pwait, set, (long)&event, 1, 0, 0, 8) == 1;
	seen += make(SYS_epoll_pwait2, set, (long)&event, 1, (long)&at_once, 0, 8) == 1;
	return seen;
}

/* If `exactly` is set, the calls must not report an event while the CQ is empty. */
static void polls_follow(maker *make, int exactly)
{
	for (int with_set = 0; with_set < 2; with_set++) {
		ring = new_ring(8, 0);
		int number = ring.ring_fd, set = epoll_create1(0);
		struct epoll_event event = { .events = EPOLLIN };
		if (with_set)
			EQUAL(make(SYS_epoll_ctl, set, EPOLL_CTL_ADD, number, (long)&event, 0, 0), 0);
		for (int round = 0; round < 30; round++) {
			if (with_set && exactly)
				EQUAL(waits_that_see_it(make, set), 0);
			if (exactly)
				EQUAL(polls_that_see_it(make, number), 0);
			submit_nop();
			EQUAL(polls_that_see_it(make, number), 4);
			if (with_set)
				EQUAL(waits_that_see_it(make, set), 3);
			reap();
		}
		close(set);
		io_uring_queue_exit(&ring);
	}
}

static void polls_by_their_numbers_follow_the_completions(void)
{
	polls_follow(by_libc, 1);
}

static void bare_polls_miss_no_completion(void)
{
	polls_follow(bare, 0);
}

/* An anonymous mapping does not belong to a ring, even if the call names a ring's descriptor. */
static void anonymous_memory_is_no_ring(void)
{
	ring = new_ring(8, 0);
	unsigned *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, ring.ring_fd, 0);
	HOLDS(memory != MAP_FAILED);
	for (int index = 0; index < 1024; index++)
		EQUAL(memory[index], 0);
	memset(memory, 0xff, 4096);
	submit_nop();
	reap();
	EQUAL(munmap(memory, 4096), 0);
	io_uring_queue_exit(&ring);
}

static void a_ring_may_be_polled_by_its_only_other_number(void)
{
	ring = new_ring(8, 0);
	struct pollfd polled = { .fd = dup(ring.ring_fd), .events = POLLIN };
	EQUAL(poll(&polled, 1, 0), 0);
	submit_nop();
	EQUAL(poll(&polled, 1, 30000), 1);
	close(ring.ring_fd);
	EQUAL(poll(&polled, 1, 30000), 1);
	use_number(polled.fd);
	reap();
	EQUAL(poll(&polled, 1, 0), 0);
	submit_nop();
	EQUAL(poll(&polled, 1, 30000), 1);
	io_uring_queue_exit(&ring);
}

static void a_low_limit_leaves_room_for_rings(void)
{
	struct rlimit limit, before;
	EQUAL(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = before;
	limit.rlim_cur = 64;
	EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ring = new_ring(8, 0);
	submit_nop();
	struct pollfd polled = { .fd = ring.ring_fd, .events = POLLIN };
	EQUAL(poll(&polled, 1, 0), 1);
	reap();
	int other = dup(ring.ring_fd);
	HOLDS(other >= 0);
	io_uring_queue_exit(&ring);
	use_number(other);
	EQUAL(enter(other), 0);
	close(other);
	EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
	EQUAL(limit.rlim_cur, 64);
	EQUAL(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/*
 * If the hard limit is below the range of ring descriptors, io_uring_setup(2) must fail with EMFILE
 * or succeed.
 */
static void a_hard_limit_is_told(void)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		struct rlimit limit = { 256, 256 };
		struct io_uring_params parameters = { 0 };
		if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
			_exit(2);
		_exit(syscall(SYS_io_uring_setup, 8, &parameters) < 0 && errno != EMFILE);
	}
	HOLDS(child > 0);
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
}

static void numbers_can_be_registered_with_a_thread(void)
{
	ring = new_ring(8, 0);
	struct io_uring second = new_ring(8, 0);
	EQUAL(io_uring_register_ring_fd(&ring), 1);
	EQUAL(io_uring_register_ring_fd(&second), 1);
	EQUAL(ring.enter_ring_fd, 0);
	EQUAL(second.enter_ring_fd, 1);
	submit_nop();
	reap();
	/* A ring that is registered with a thread outlives its descriptor. */
	int number = ring.ring_fd;
	EQUAL(close(number), 0);
	submit_nop();
	reap();
	EQUAL(syscall(SYS_io_uring_enter, 2, 0, 0, IORING_ENTER_REGISTERED_RING, NULL, 0), -1);
	EQUAL(errno, EBADF);
	EQUAL(syscall(SYS_io_uring_enter, 16, 0, 0, IORING_ENTER_REGISTERED_RING, NULL, 0), -1);
	EQUAL(errno, EINVAL);
	EQUAL(io_uring_unregister_ring_fd(&second), 1);
	io_uring_queue_exit(&second);
}

static atomic_int stop, entered;

/* io_uring_enter must return for every descriptor number, whatever the number refers to. */
static void *enter_all(void *first)
{
	while (!atomic_load(&stop))
		for (int number = 0; number < 8; number++) {
			long answer = enter(*(int *)first + number);
			HOLDS(answer == 0 || answer == -EBADF || answer == -EOPNOTSUPP);
			atomic_fetch_add(&entered, 1);
		}
	return NULL;
}

static void rings_may_be_closed_while_others_enter_them(void)
{
	pthread_t threads[3];
	ring = new_ring(8, 0);
	int first = ring.ring_fd;
	io_uring_queue_exit(&ring);
	for (int index = 0; index < 3; index++)
		EQUAL(pthread_create(&threads[index], NULL, enter_all, &first), 0);
	for (int round = 0; round < 300; round++) {
		struct io_uring rings[8];
		for (int index = 0; index < 8; index++)
			rings[index] = new_ring(8, 0);
		int until = atomic_load(&entered) + 30;
		int other = dup(rings[round % 8].ring_fd);
		for (int index = 0; index < 8; index++)
			io_uring_queue_exit(&rings[index]);
		EQUAL(enter(other), 0);
		EQUAL(close(other), 0);
		while (atomic_load(&entered) < until)
			look_again();
	}
	atomic_store(&stop, 1);
	for (int index = 0; index < 3; index++)
		EQUAL(pthread_join(threads[index], NULL), 0);
}

static void nothing(int signal)
{
	(void)signal;
}

static void *wait_inside(void *unused)
{
	atomic_store(&entered, gettid());
	EQUAL(syscall(SYS_io_uring_enter, ring.ring_fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0), -1);
	EQUAL(errno, EINTR);
	return unused;
}

/* Returns after the thread has gone to sleep. The thread sleeps only in the call that is tested. */
static void until_asleep(int thread)
{
	char path[64], text[256];
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
	do {
		FILE *file = fopen(path, "r");
		HOLDS(file != NULL && fgets(text, sizeof text, file) != NULL);
		fclose(file);
	} while (strstr(text, ") S ") == NULL);
}

/* A call in progress keeps its ring alive, as a call in the kernel keeps its file. */
static void a_ring_that_is_closed_lives_until_the_last_has_left(void)
{
	struct sigaction action = { .sa_handler = nothing };
	pthread_t waiter;
	int ends[2];
	char byte;
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	ring = new_ring(8, 0);
	EQUAL(pipe(ends), 0);
	EQUAL(io_uring_register_files(&ring, &ends[1], 1), 0);
	close(ends[1]);
	atomic_store(&entered, 0);
	EQUAL(pthread_create(&waiter, NULL, wait_inside, NULL), 0);
	while (atomic_load(&entered) == 0)
		look_again();
	until_asleep(atomic_load(&entered));
	io_uring_queue_exit(&ring);
	/*
	 * The descriptor of the pipe's reading end is closed. The ring still has that end as a
	 * registered file, so the pipe stays open.
	 */
	struct pollfd polled = { .fd = ends[0], .events = POLLIN };
	EQUAL(poll(&polled, 1, 30), 0);
	EQUAL(pthread_kill(waiter, SIGUSR1), 0);
	EQUAL(pthread_join(waiter, NULL), 0);
	EQUAL(poll(&polled, 1, 30000), 1);
	EQUAL(read(ends[0], &byte, 1), 0);
	close(ends[0]);
}

static const struct check checks[] = {
	{ "a ring lives until its last number is closed", a_ring_lives_until_its_last_number_is_closed },
	{ "a number that is replaced is what replaced it", a_number_that_is_replaced_is_what_replaced_it },
	{ "a low number that was reused is no ring", a_low_number_that_was_reused_is_no_ring },
	{ "rings go with all others", rings_go_with_all_others },
	{ "every poll follows the completions", every_poll_follows_the_completions },
	{ "polls by their numbers follow the completions", polls_by_their_numbers_follow_the_completions },
	{ "bare polls miss no completion", bare_polls_miss_no_completion },
	{ "anonymous memory is no ring", anonymous_memory_is_no_ring },
	{ "a ring may be polled by its only other number", a_ring_may_be_polled_by_its_only_other_number },
	{ "a low limit leaves room for rings", a_low_limit_leaves_room_for_rings },
	{ "a hard limit is told", a_hard_limit_is_told },
	{ "rings may be closed while others enter them", rings_may_be_closed_while_others_enter_them },
	{ "a ring that is closed lives until the last has left", a_ring_that_is_closed_lives_until_the_last_has_left },
	{ "numbers can be registered with a thread", numbers_can_be_registered_with_a_thread },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
