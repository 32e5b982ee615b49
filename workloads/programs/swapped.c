/*
 * A program without any code for swap: system calls, signals and threads on ordinary mappings.
 * Under `usring run --swap` the memory is larger than its resident limit. So most memory that a
 * call gets here is evicted at that moment.
 *
 * - argv[1]: bytes of the memory in MiB, 12 or more.
 */
#define _GNU_SOURCE
#include "swapped.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

/* Returns the number that the first word of a page must have. */
static uint64_t mark(size_t page) { return page * 0x9e3779b97f4a7c15UL + 1; }

static void fill(void)
{
	for (size_t page = 0; page < length / PAGE; page++)
		*(uint64_t *)(memory + page * PAGE) = mark(page);
}

static void verify(void)
{
	for (size_t page = 0; page < length / PAGE; page++)
		EQUAL(*(uint64_t *)(memory + page * PAGE), mark(page));

}

/*
 * Each call returns another address in swapped memory. The page at that address was not used for
 * long, so the page is evicted.
 */
static unsigned char *place(void)
{
	static size_t next = 7;
	next = (next + length / PAGE / 3) % (length / PAGE - 8);
	return memory + next * PAGE + 64;
}

static void files(void)
{
	char name[] = "/tmp/swapped-XXXXXX";
	int file = mkstemp(name);
	HOLDS(file >= 0);
	/* The path, the result of stat(2) and the name are all in swapped memory. */
	char *path = (char *)place();
	strcpy(path, name);
	fill();
	struct stat *status = (struct stat *)place();
	fill();
	HOLDS(stat(path, status) == 0 && S_ISREG(status->st_mode));
	/* One call writes the whole memory, which is more than may be resident. */
	HOLDS(write(file, memory, length) == (ssize_t)length);
	HOLDS(lseek(file, 0, SEEK_SET) == 0);
	memset(memory, 0, length);
	HOLDS(read(file, memory, length) == (ssize_t)length);
	verify();
	memset(memory, 0, length);
	HOLDS(pread(file, memory, length, 0) == (ssize_t)length);
	verify();
	struct iovec halves[3] = { { memory, length / 2 + 5 }, { memory + length / 2 + 5, PAGE }, { NULL, 0 } };
	halves[2].iov_base = memory + length / 2 + 5 + PAGE;
	halves[2].iov_len = length - length / 2 - 5 - PAGE;
	memset(memory, 0, length);
	HOLDS(preadv(file, halves, 3, 0) == (ssize_t)length);
	verify();
	HOLDS(pwritev(file, halves, 3, PAGE) == (ssize_t)length);
	HOLDS(pread(file, memory, length, PAGE) == (ssize_t)length);
	verify();
	/* The iovec itself is in swapped memory, too. */
	struct iovec *vector = (struct iovec *)place();
	unsigned char *target = place();
	*vector = (struct iovec){ target, 8 };
	fill();
	HOLDS(preadv(file, vector, 1, PAGE) == 8 && *(uint64_t *)target == mark(0));
	/* System calls that stdio makes. */
	FILE *stream = fdopen(dup(file), "r+");
	HOLDS(stream != NULL && fseek(stream, PAGE, SEEK_SET) == 0);
	memset(memory, 0, length);
	HOLDS(fread(memory, 1, length, stream) == length);
	verify();
	HOLDS(fclose(stream) == 0);
	HOLDS(getrandom(place(), 5000, 0) == 5000);
	HOLDS(getcwd((char *)place(), PAGE) != NULL);
	HOLDS(unlink(path) == 0 || unlink(name) == 0);
	close(file);
	fill();
}

static void sockets(void)
{
	int pair[2];
	HOLDS(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	for (int round = 0; round < 50; round++) {
		char text[3000];
		memset(text, 'a' + round % 26, sizeof text);
		HOLDS(send(pair[0], text, sizeof text, 0) == sizeof text);
		/*
		 * If the page were still evicted when the datagram is received, the datagram would
		 * be lost. So usring must read the page in first.
		 */
		unsigned char *into = place();
		HOLDS(recv(pair[1], into, PAGE, 0) == sizeof text);
		HOLDS(memcmp(into, text, sizeof text) == 0);
		struct msghdr *message = (struct msghdr *)place();
		struct iovec *vector = (struct iovec *)place();
		unsigned char *buffer = place();
		memset(buffer, round, 100);
		memset(message, 0, sizeof *message);
		*vector = (struct iovec){ buffer, 100 };
		*message = (struct msghdr){ .msg_iov = vector, .msg_iovlen = 1 };
		fill();
		memset(message, 0, sizeof *message);
		*vector = (struct iovec){ buffer, 100 };
		*message = (struct msghdr){ .msg_iov = vector, .msg_iovlen = 1 };
		HOLDS(sendmsg(pair[0], message, 0) == 100);
		HOLDS(recvmsg(pair[1], message, 0) == 100);
	}
	close(pair[0]);
	close(pair[1]);
	int ends[2];
	HOLDS(pipe(ends) == 0);
	struct pollfd *polled = (struct pollfd *)place();
	*polled = (struct pollfd){ .fd = ends[0], .events = POLLIN };
	struct epoll_event *event = (struct epoll_event *)place();
	int set = epoll_create1(0);
	*event = (struct epoll_event){ .events = EPOLLIN, .data = { .u64 = 42 } };
	HOLDS(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], event) == 0);
	HOLDS(write(ends[1], place(), 2 * PAGE) == 2 * PAGE);
	HOLDS(poll(polled, 1, 1000) == 1 && polled->revents == POLLIN);
	HOLDS(epoll_wait(set, event, 1, 1000) == 1 && event->data.u64 == 42);
	int *waiting = (int *)place();
	HOLDS(ioctl(ends[0], FIONREAD, waiting) == 0 && *waiting == 2 * (int)PAGE);
	struct timespec *now = (struct timespec *)place();
	HOLDS(clock_gettime(CLOCK_MONOTONIC, now) == 0);
	close(ends[0]);
	close(ends[1]);
	close(set);
	fill();
}

static volatile sig_atomic_t faults, alarms;

static void on_fault(int signal, siginfo_t *information, void *context)
{
	(void)signal, (void)context;
	faults++;
	mmap((void *)((uintptr_t)information->si_addr & ~(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static void on_alarm(int signal)
{
	(void)signal;
	/* Wherever the signal interrupts the program, the memory must be accessible. */
	*(volatile uint64_t *)(memory + (alarms++ * 977 % (length / PAGE)) * PAGE);
}

static void signals(void)
{
	/* The program's own handler must get faults outside of swapped memory. */
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO }, old;
	HOLDS(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGSEGV, NULL, &old) == 0);
	HOLDS(old.sa_sigaction == on_fault);
	unsigned char *nothing = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(nothing != MAP_FAILED);
	*(volatile unsigned char *)(nothing + 5) = 1;
	HOLDS(faults == 1);
	verify();
	HOLDS(faults == 1);
	/* With all signals blocked. */
	sigset_t all, before;
	sigfillset(&all);
	HOLDS(sigprocmask(SIG_SETMASK, &all, &before) == 0);
	verify();
	HOLDS(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
	/*
	 * A handler touches memory while other pages are being read in. It also interrupts calls.
	 */
	struct sigaction tick = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	HOLDS(sigaction(SIGALRM, &tick, NULL) == 0);
	timer_t timer;
	struct sigevent how = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
	HOLDS(timer_create(CLOCK_MONOTONIC, &how, &timer) == 0);
	struct itimerspec every = { { 0, 1000000 }, { 0, 1000000 } };
	HOLDS(timer_settime(timer, 0, &every, NULL) == 0);
	int ends[2];
	HOLDS(pipe(ends) == 0);
	for (int round = 0; round < 3; round++) {
		verify();
		fill();
		HOLDS(write(ends[1], place(), 100) == 100);
		HOLDS(read(ends[0], place(), 100) == 100);
	}
	/* A signal must end this call. (No other thread of the program could end it.) */
	tick.sa_flags = 0;
	HOLDS(sigaction(SIGALRM, &tick, NULL) == 0);
	HOLDS(read(ends[0], place(), 100) == -1 && errno == EINTR);
	timer_delete(timer);
	HOLDS(alarms > 0);
	close(ends[0]);
	close(ends[1]);
	fill();
}

struct shared {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	long counter;
	int turn;
};

static void *add(void *argument)
{
	struct shared *shared = argument;
	unsigned random = (unsigned)(uintptr_t)&argument;
	for (int round = 0; round < 3000; round++) {
		/* Touches pages of other threads, so that the mutex is evicted now and then. */
		random = random * 1103515245 + 12345;
		atomic_fetch_add((_Atomic uint64_t *)(memory + random / 7 % (length / PAGE) * PAGE + 8), 1);
		pthread_mutex_lock(&shared->mutex);
		shared->counter++;
		pthread_mutex_unlock(&shared->mutex);
	}
	return NULL;
}

static void *take_turns(void *argument)
{
	struct shared *shared = argument;
	for (int round = 0; round < 200; round++) {
		pthread_mutex_lock(&shared->mutex);
		while (shared->turn != 1)
			pthread_cond_wait(&shared->changed, &shared->mutex);
		shared->turn = 0;
		pthread_cond_signal(&shared->changed);
		pthread_mutex_unlock(&shared->mutex);
	}
	return NULL;
}

static void threads(void)
{
	for (size_t page = 0; page < length / PAGE; page++)
		*(uint64_t *)(memory + page * PAGE + 8) = 0;
	/* The futex words on which threads sleep are in swapped memory, too. */
	struct shared *shared = (struct shared *)(memory + length / 2 + 128);
	pthread_mutex_init(&shared->mutex, NULL);
	pthread_cond_init(&shared->changed, NULL);
	shared->counter = shared->turn = 0;
	pthread_t thread[8];
	for (int each = 0; each < 8; each++)
		HOLDS(pthread_create(&thread[each], NULL, add, shared) == 0);
	for (int each = 0; each < 8; each++)
		HOLDS(pthread_join(thread[each], NULL) == 0);
	HOLDS(shared->counter == 8 * 3000);
	uint64_t sum = 0;
	for (size_t page = 0; page < length / PAGE; page++)
		sum += *(uint64_t *)(memory + page * PAGE + 8);
	HOLDS(sum == 8 * 3000);
	HOLDS(pthread_create(&thread[0], NULL, take_turns, shared) == 0);
	for (int round = 0; round < 200; round++) {
		pthread_mutex_lock(&shared->mutex);
		while (shared->turn != 0)
			pthread_cond_wait(&shared->changed, &shared->mutex);
		shared->turn = 1;
		pthread_cond_signal(&shared->changed);
		pthread_mutex_unlock(&shared->mutex);
		if (round % 50 == 0)
			verify();
	}
	HOLDS(pthread_join(thread[0], NULL) == 0);
}

static void mappings(void)
{
	size_t half = length / 2;
	unsigned char *other = mmap(NULL, half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(other != MAP_FAILED);
	for (size_t page = 0; page < half / PAGE; page++)
		*(uint64_t *)(other + page * PAGE) = ~mark(page);
	/* Moves memory of which parts are evicted. */
	unsigned char *grown = mremap(other, half, length, MREMAP_MAYMOVE);
	HOLDS(grown != MAP_FAILED);
	for (size_t page = 0; page < half / PAGE; page++)
		if (*(uint64_t *)(grown + page * PAGE) != ~mark(page))
			HOLDS(!"the moved page holds what it held");
	for (size_t page = half / PAGE; page < length / PAGE; page += 5)
		if (*(uint64_t *)(grown + page * PAGE) != 0)
			HOLDS(!"what was added holds zeroes");
	HOLDS(madvise(grown + PAGE, 10 * PAGE, MADV_DONTNEED) == 0);
	HOLDS(*(uint64_t *)(grown + PAGE) == 0 && *(uint64_t *)(grown + 10 * PAGE) == 0);
	HOLDS(*(uint64_t *)grown == ~mark(0) && *(uint64_t *)(grown + 11 * PAGE) == ~mark(11));
	HOLDS(munmap(grown + 20 * PAGE, 4 * PAGE) == 0);
	HOLDS(*(uint64_t *)(grown + 19 * PAGE) == ~mark(19) && *(uint64_t *)(grown + 24 * PAGE) == ~mark(24));
	HOLDS(mprotect(grown, 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
	HOLDS(mmap(grown, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == grown);
	HOLDS(*(uint64_t *)grown == 0);
	HOLDS(mremap(grown, 20 * PAGE, 8 * PAGE, 0) == grown && munmap(grown, length) == 0);
	/* malloc's blocks, grown as realloc grows them. */
	size_t words = 300000;
	uint64_t *block = malloc(words * 8);
	for (size_t word = 0; word < words; word++)
		block[word] = mark(word);
	for (int step = 0; step < 4; step++) {
		size_t before = words;
		words = words * 3 / 2;
		block = realloc(block, words * 8);
		for (size_t word = before; word < words; word++)
			block[word] = mark(word);
	}
	for (size_t word = 0; word < words; word++)
		if (block[word] != mark(word))
			HOLDS(!"a word that realloc kept");
	free(block);
	unsigned char *zeroed = calloc(1, length / 4);
	for (size_t byte = 0; byte < length / 4; byte += 512)
		if (zeroed[byte] != 0)
			HOLDS(!"calloc's memory holds zeroes");
	free(zeroed);
	verify();
}

static void *on_a_stack_of_ours(void *argument)
{
	volatile unsigned char deep[600000];
	for (size_t byte = 0; byte < sizeof deep; byte += 512)
		deep[byte] = 3;
	verify();
	for (size_t byte = 0; byte < sizeof deep; byte += 512)
		if (deep[byte] != 3)
			return NULL;
	return argument;
}

/*
 * These calls make mappings of kinds that cannot be swapped. usring must release the memory to the
 * kernel, with its content.
 */
static void kinds(void)
{
	size_t half = length / 2;
	unsigned char *other = mmap(NULL, half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(other != MAP_FAILED);
	for (size_t page = 0; page < half / PAGE; page++)
		*(uint64_t *)(other + page * PAGE) = ~mark(page);
	/* `verify` reads all of `memory`. So afterwards a part of `other` is evicted. */
	verify();
	for (size_t page = 0; page < 600; page += 3)
		*(uint64_t *)(other + page * PAGE + 8) = page;
	faults = 0;
	HOLDS(mprotect(other + 8 * PAGE, 64 * PAGE, PROT_READ) == 0);
	for (size_t page = 0; page < half / PAGE; page++)
		if (*(uint64_t *)(other + page * PAGE) != ~mark(page))
			HOLDS(!"a page beside or in what is protected holds what it held");
	HOLDS(faults == 0);
	*(volatile unsigned char *)(other + 8 * PAGE + 16) = 1;
	HOLDS(faults == 1 && *(uint64_t *)(other + 8 * PAGE) == 0);
	HOLDS(mprotect(other + 100 * PAGE, PAGE, PROT_NONE) == 0);
	*(volatile unsigned char *)(other + 100 * PAGE) = 1;
	HOLDS(faults == 2);
	HOLDS(mlock(other + 200 * PAGE, 2 * PAGE) == 0);
	HOLDS(*(uint64_t *)(other + 201 * PAGE) == ~mark(201) && *(uint64_t *)(other + 201 * PAGE + 8) == 201);
	unsigned char *there = mmap(NULL, 8 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(there != MAP_FAILED);
	HOLDS(mremap(other + 300 * PAGE, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there);
	HOLDS(*(uint64_t *)(there + 3 * PAGE) == ~mark(303) && *(uint64_t *)(there + 3 * PAGE + 8) == 303);
	HOLDS(munmap(there, 8 * PAGE) == 0);
	HOLDS(madvise(other + 400 * PAGE, 2 * PAGE, MADV_WIPEONFORK) == 0);
	HOLDS(*(uint64_t *)(other + 401 * PAGE) == ~mark(401));
	/* A thread's stack. */
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	HOLDS(pthread_attr_setstack(&attributes, other + 1024 * PAGE, 256 * PAGE) == 0);
	pthread_t thread;
	void *answer = NULL;
	HOLDS(pthread_create(&thread, &attributes, on_a_stack_of_ours, other) == 0);
	HOLDS(pthread_join(thread, &answer) == 0 && answer == other);
	for (size_t page = 1400; page < half / PAGE; page++)
		if (*(uint64_t *)(other + page * PAGE) != ~mark(page))
			HOLDS(!"the rest holds what it held");
	HOLDS(munmap(other, half) == 0);
	verify();
}

static void children(void)
{
	/*
	 * system(3) and popen(3) start the shell by a child that shares this process's memory.
	 * Here the strings that the shell gets are in swapped memory.
	 */
	char *command = (char *)place();
	strcpy(command, "exit 7");
	int status = system(command);
	HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	FILE *pipe = popen("echo hello", "r");
	char line[16];
	HOLDS(pipe != NULL && fgets(line, sizeof line, pipe) != NULL && strcmp(line, "hello\n") == 0);
	HOLDS(pclose(pipe) == 0);
	fill();
	verify();
}

int main(int count, char **arguments)
{
	static const struct check checks[] = {
		{ "files", files },
		{ "sockets", sockets },
		{ "signals", signals },
		{ "threads", threads },
		{ "mappings", mappings },
		{ "kinds", kinds },
		{ "children", children },
	};
	make_memory(count > 1 ? atoi(arguments[1]) : 64);
	fill();
	verify();
	return run_checks(checks, sizeof checks / sizeof *checks, NULL);
}
