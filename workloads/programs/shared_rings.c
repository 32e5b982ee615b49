/*
 * Processes share rings, while some of them are killed or stopped at random. No completion may be
 * lost or come twice:
 *
 * - A request has exactly one completion if its process has marked it as submitted.
 * - A request whose process was killed while it submitted has at most one.
 *
 * Some requests are in flight, or held back by a drain, before the processes are forked. Every
 * other ring has a small CQ, so that completions overflow.
 *
 * usage: shared_rings PROCESSES RINGS SECONDS
 *
 * Each ring has two robust mutexes, one for its SQ and one for reaping. A process that gets a mutex
 * of a dead owner goes on, because the owner's writes stay valid.
 *
 * - Submitting: the process writes an entry, marks the request as begun, stores the tail, calls
 *   enter for all entries that are in the SQ, and marks its requests as submitted.
 * - Reaping: the process notes the CQE's index for its request, then moves the head. If it dies in
 *   between, the next process finds the CQE again, with the noted index.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ENTRIES = 64, MOST_BATCH = 8, BEFORE_FORK = 128, MOST_RINGS = 64, MOST_PROCESSES = 64, REQUESTS = 1 << 24 };

/* The states of a request. */
enum { UNKNOWN, BEGUN, SUBMITTED };

/* Longest time that a process is stopped, in microseconds. */
enum { LONGEST_STOP = 5000 };

/* Number of lost or doubled requests that are named at the end. */
enum { MOST_NAMED = 10 };

struct shared_ring {
	pthread_mutex_t submitting, reaping;
	struct io_uring ring;
	atomic_ulong reaped;
};

struct shared {
	struct shared_ring rings[MOST_RINGS];
	atomic_uint next_request;
	atomic_ulong longest_enter; /* nanoseconds */
	atomic_uchar state[REQUESTS], is_doubled[REQUESTS], ring[REQUESTS];
	/* The index of the request's CQE in its CQ, plus 1; 0: there is none. */
	atomic_uint completion[REQUESTS];
};

static struct shared *shared;
static int rings, file, reader;

static _Noreturn void fail(const char *what)
{
	printf("shared_rings: %s: %s\n", what, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static unsigned long now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ul + time.tv_nsec;
}

static void lock(pthread_mutex_t *mutex)
{
	int error = pthread_mutex_lock(mutex);
	if (error == EOWNERDEAD)
		error = pthread_mutex_consistent(mutex);
	if (error) {
		errno = error;
		fail("lock");
	}
}

static int try_lock(pthread_mutex_t *mutex)
{
	int error = pthread_mutex_trylock(mutex);
	if (error == EOWNERDEAD)
		error = pthread_mutex_consistent(mutex);
	return error == 0;
}

/* Prepares the request with this number. The number decides whether the request completes at once,
 * in a worker, or later. A few requests are drains, or cancel another request, mostly one of
 * another process. */
static void prepare(struct io_uring_sqe *sqe, unsigned request, char *buffer)
{
	static struct __kernel_timespec millisecond = { .tv_nsec = 1000000 };
	memset(sqe, 0, sizeof *sqe);
	if (request % 64 == 31) {
		io_uring_prep_cancel64(sqe, request - request / 64 % 64, 0);
		sqe->user_data = request;
		return;
	}
	switch (request % 5) {
	case 0:
		io_uring_prep_nop(sqe);
		break;
	case 1:
		io_uring_prep_read(sqe, file, buffer, 512, 0);
		break;
	case 2:
		io_uring_prep_read(sqe, file, buffer, 512, 512);
		sqe->flags = IOSQE_ASYNC;
		break;
	case 3:
		io_uring_prep_timeout(sqe, &millisecond, 0, 0);
		break;
	default:
		io_uring_prep_poll_add(sqe, reader, POLLIN);
	}
	sqe->user_data = request;
	if (request % 64 == 63)
		sqe->flags |= IOSQE_IO_DRAIN;
}

static int enter(struct io_uring *ring, unsigned submit, unsigned wait)
{
	struct __kernel_timespec limit = { .tv_nsec = 2000000 };
	struct io_uring_getevents_arg argument = { .ts = (unsigned long)&limit };
	unsigned flags = IORING_ENTER_EXT_ARG | (wait ? IORING_ENTER_GETEVENTS : 0);
	unsigned long start = now();
	int taken = syscall(__NR_io_uring_enter, ring->ring_fd, submit, wait, flags, &argument, sizeof argument);
	unsigned long took = now() - start, longest = atomic_load(&shared->longest_enter);
	while (took > longest && !atomic_compare_exchange_weak(&shared->longest_enter, &longest, took))
		;
	if (taken < 0 && errno != ETIME && errno != EINTR && errno != EAGAIN && errno != EBUSY)
		fail("io_uring_enter");
	return taken;
}

static void submit(struct shared_ring *to, char *buffer, unsigned count)
{
	struct io_uring_sq *sq = &to->ring.sq;
	unsigned begun[MOST_BATCH], number = 0;
	lock(&to->submitting);
	unsigned tail = *sq->ktail;
	while (number < count && tail - io_uring_smp_load_acquire(sq->khead) < ENTRIES) {
		unsigned request = atomic_fetch_add(&shared->next_request, 1);
		if (request >= REQUESTS)
			fail("too many requests: run for a shorter time");
		prepare(&sq->sqes[tail % ENTRIES], request, buffer);
		sq->array[tail % ENTRIES] = tail % ENTRIES;
		atomic_store(&shared->ring[request], to - shared->rings);
		atomic_store(&shared->state[request], BEGUN);
		begun[number++] = request;
		io_uring_smp_store_release(sq->ktail, ++tail);
	}
	/* A dead process may have left entries in front of this process's entry. */
	while (tail != io_uring_smp_load_acquire(sq->khead))
		enter(&to->ring, tail - *sq->khead, 0);
	for (unsigned index = 0; index < number; index++)
		atomic_store(&shared->state[begun[index]], SUBMITTED);
	pthread_mutex_unlock(&to->submitting);
}

static unsigned reap(struct shared_ring *from)
{
	struct io_uring_cq *cq = &from->ring.cq;
	unsigned count = 0;
	if (!try_lock(&from->reaping))
		return 0;
	for (;;) {
		unsigned head = *cq->khead;
		if (head == io_uring_smp_load_acquire(cq->ktail))
			break;
		unsigned long request = cq->cqes[head & cq->ring_mask].user_data;
		if (request >= REQUESTS)
			fail("a completion of no request");
		unsigned noted = atomic_exchange(&shared->completion[request], head + 1);
		if (noted != 0 && noted != head + 1)
			atomic_store(&shared->is_doubled[request], 1);
		io_uring_smp_store_release(cq->khead, head + 1);
		count++;
	}
	atomic_fetch_add(&from->reaped, count);
	pthread_mutex_unlock(&from->reaping);
	return count;
}

static _Noreturn void work(unsigned seed)
{
	static char buffer[512];
	for (;;) {
		struct shared_ring *ring = &shared->rings[rand_r(&seed) % rings];
		submit(ring, buffer, 1 + rand_r(&seed) % MOST_BATCH);
		if (rand_r(&seed) % 2)
			enter(&ring->ring, 0, 1);
		reap(ring);
	}
}

static pid_t start(unsigned seed)
{
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (child == 0)
		work(seed);
	return child;
}

static void make_rings(void)
{
	pthread_mutexattr_t robust;
	pthread_mutexattr_init(&robust);
	pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
	for (int index = 0; index < rings; index++) {
		struct shared_ring *ring = &shared->rings[index];
		pthread_mutex_init(&ring->submitting, &robust);
		pthread_mutex_init(&ring->reaping, &robust);
		unsigned entries = index % 2 == 0 ? 4096 : ENTRIES;
		struct io_uring_params params = { .flags = IORING_SETUP_CQSIZE, .cq_entries = entries };
		errno = -io_uring_queue_init_params(ENTRIES, &ring->ring, &params);
		if (errno)
			fail("io_uring_setup");
	}
}

/* Waits until no completion has come for a second. */
static void drain(void)
{
	for (unsigned long quiet = now(); now() - quiet < 1000000000ul;) {
		for (int index = 0; index < rings; index++) {
			enter(&shared->rings[index].ring, 0, 1);
			if (reap(&shared->rings[index]))
				quiet = now();
		}
	}
}

int main(int count, char **arguments)
{
	if (count != 4) {
		printf("usage: shared_rings PROCESSES RINGS SECONDS\n");
		return 2;
	}
	int processes = atoi(arguments[1]), seconds = atoi(arguments[3]);
	rings = atoi(arguments[2]);
	if (processes < 1 || processes > MOST_PROCESSES || rings < 1 || rings > MOST_RINGS || seconds < 1)
		fail("numbers out of range");
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int ends[2];
	if (shared == MAP_FAILED || pipe(ends) != 0 || write(ends[1], "x", 1) != 1)
		fail("start");
	reader = ends[0];
	file = memfd_create("shared_rings", MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, 4096) != 0)
		fail("memfd_create");
	make_rings();
	static char buffer[512];
	for (int index = 0; index < rings; index++)
		for (int batch = 0; batch < BEFORE_FORK / MOST_BATCH; batch++)
			submit(&shared->rings[index], buffer, MOST_BATCH);
	pid_t children[MOST_PROCESSES];
	unsigned seed = getpid(), kills = 0;
	for (int index = 0; index < processes; index++)
		children[index] = start(seed + index);
	for (unsigned long end = now() + seconds * 1000000000ul; now() < end; kills++) {
		int stopped = rand_r(&seed) % processes;
		kill(children[stopped], SIGSTOP);
		usleep(rand_r(&seed) % LONGEST_STOP);
		kill(children[stopped], SIGCONT);
		usleep(rand_r(&seed) % 20000);
		int victim = rand_r(&seed) % processes, status;
		kill(children[victim], SIGKILL);
		waitpid(children[victim], &status, 0);
		if (!WIFSIGNALED(status))
			fail("a process has ended by itself");
		children[victim] = start(rand_r(&seed));
	}
	for (int index = 0; index < processes; index++) {
		kill(children[index], SIGKILL);
		waitpid(children[index], NULL, 0);
	}
	kills += processes;
	drain();
	unsigned lost = 0, doubled = 0, unknown = 0, known = shared->next_request;
	for (unsigned request = 0; request < REQUESTS; request++) {
		unsigned completion = shared->completion[request];
		int is_lost = shared->state[request] == SUBMITTED && completion == 0;
		if ((is_lost || shared->is_doubled[request]) && lost + doubled < MOST_NAMED)
			printf("request %u of ring %d is %s\n", request, shared->ring[request], is_lost ? "lost" : "doubled");
		lost += is_lost;
		doubled += shared->is_doubled[request];
		unknown += shared->state[request] == UNKNOWN && completion != 0;
	}
	printf("%u requests, %u kills, longest enter %lu ms: %u lost, %u doubled, %u unknown\n", known, kills,
	       (unsigned long)shared->longest_enter / 1000000, lost, doubled, unknown);
	return lost != 0 || doubled != 0 || unknown != 0;
}
