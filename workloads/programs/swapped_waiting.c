/*
 * A program that knows nothing of swap: calls that wait, and calls with more memory than may be
 * resident. All of them use ordinary mappings, most of which are evicted.
 *
 * - argv[1]: bytes of the memory in MiB;
 * - argv[2]: the number of threads that wait in reads of one MiB each.
 */
#define _GNU_SOURCE
#include "swapped.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static unsigned threads;

struct waiter {
	pthread_t thread;
	int ends[2];
	unsigned char *into;
	ssize_t got;
};

static int is_datagram;

static void *wait_in_recv(void *argument)
{
	struct waiter *waiter = argument;
	waiter->got = is_datagram ? read(waiter->ends[1], waiter->into, MIB)
				  : recv(waiter->ends[1], waiter->into, MIB, MSG_WAITALL);
	return NULL;
}

/* A thread that waits in a call must not prevent another thread from making calls. */
static void wait_with(unsigned count)
{
	struct waiter *waiters = calloc(count, sizeof *waiters);
	for (int round = 0; round < 2; round++) {
		is_datagram = round;
		for (unsigned each = 0; each < count; each++) {
			int kind = round ? SOCK_DGRAM : SOCK_STREAM;
			HOLDS(socketpair(AF_UNIX, kind, 0, waiters[each].ends) == 0);
			waiters[each].into = memory + each % (length / MIB - 1) * MIB + 100;
			HOLDS(pthread_create(&waiters[each].thread, NULL, wait_in_recv, &waiters[each]) == 0);
		}
		/* Waits until each socket accepts data. Then most likely all threads sleep. */
		for (unsigned each = 0; each < count; each++) {
			struct pollfd end = { .fd = waiters[each].ends[0], .events = POLLOUT };
			HOLDS(poll(&end, 1, 10000) == 1);
		}
		usleep(200000);
		FILE *file = tmpfile();
		unsigned char *bytes = out(3 * MIB);
		pattern(bytes, 3 * MIB, round);
		evict();
		HOLDS(pwrite(fileno(file), bytes, 3 * MIB, 0) == 3 * MIB);
		memset(bytes, 0, 3 * MIB);
		evict();
		HOLDS(pread(fileno(file), bytes, 3 * MIB, 0) == 3 * MIB && matches(bytes, 3 * MIB, round));
		fclose(file);
		for (unsigned each = 0; each < count; each++) {
			unsigned char text[1000];
			pattern(text, sizeof text, each);
			HOLDS(write(waiters[each].ends[0], text, sizeof text) == sizeof text);
			close(waiters[each].ends[0]);
			HOLDS(pthread_join(waiters[each].thread, NULL) == 0 && waiters[each].got == sizeof text);
			/*
			 * Several threads may receive into the same place. Only the one that
			 * received last finds its own bytes there.
			 */
			if (each + length / MIB > count)
				HOLDS(matches(waiters[each].into, sizeof text, each));
			close(waiters[each].ends[1]);
		}
	}
	free(waiters);
}

static void waiting(void) { wait_with(threads); }

static void waiting_again(void) { wait_with(threads / 4); }

static void *send_slowly(void *argument)
{
	int *end = argument;
	unsigned char *bytes = malloc(3 * MIB);
	pattern(bytes, 3 * MIB, 5);
	for (size_t at = 0; at < 3 * MIB; at += 100000) {
		size_t part = 3 * MIB - at < 100000 ? 3 * MIB - at : 100000;
		HOLDS(write(*end, bytes + at, part) == (ssize_t)part);
	}
	free(bytes);
	return NULL;
}

static void *take_all(void *argument)
{
	int *end = argument;
	unsigned char *bytes = malloc(3 * MIB);
	HOLDS(recv(*end, bytes, 3 * MIB, MSG_WAITALL) == 3 * MIB && matches(bytes, 3 * MIB, 6));
	free(bytes);
	return NULL;
}

static void streams(void)
{
	int pair[2];
	pthread_t thread;
	HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	unsigned char *bytes = out(3 * MIB);
	evict();
	HOLDS(pthread_create(&thread, NULL, send_slowly, &pair[0]) == 0);
	HOLDS(recv(pair[1], bytes, 3 * MIB, MSG_WAITALL) == 3 * MIB && matches(bytes, 3 * MIB, 5));
	HOLDS(pthread_join(thread, NULL) == 0);
	/* The middle part of this vector lies outside of swapped memory. */
	static unsigned char elsewhere[5000];
	HOLDS(pthread_create(&thread, NULL, send_slowly, &pair[0]) == 0);
	struct iovec *vector = out(3 * sizeof *vector);
	vector[0] = (struct iovec){ bytes, 70000 };
	vector[1] = (struct iovec){ elsewhere, sizeof elsewhere };
	vector[2] = (struct iovec){ bytes + 75000, 3 * MIB - 75000 };
	struct msghdr *message = out(sizeof *message);
	*message = (struct msghdr){ .msg_iov = vector, .msg_iovlen = 3 };
	memset(bytes, 0, 3 * MIB);
	evict();
	HOLDS(recvmsg(pair[1], message, MSG_WAITALL) == 3 * MIB);
	memcpy(bytes + 70000, elsewhere, sizeof elsewhere);
	HOLDS(matches(bytes, 3 * MIB, 5) && pthread_join(thread, NULL) == 0);
	/* Sent as a whole, by one call. */
	pattern(bytes, 3 * MIB, 6);
	for (int way = 0; way < 3; way++) {
		vector[0] = (struct iovec){ bytes, 300000 };
		vector[1] = (struct iovec){ bytes + 300000, 3 * MIB - 300000 };
		*message = (struct msghdr){ .msg_iov = vector, .msg_iovlen = 2 };
		evict();
		HOLDS(pthread_create(&thread, NULL, take_all, &pair[1]) == 0);
		ssize_t sent = way == 0 ? send(pair[0], bytes, 3 * MIB, 0)
		             : way == 1 ? writev(pair[0], vector, 2)
		                        : sendmsg(pair[0], message, 0);
		HOLDS(sent == 3 * MIB && pthread_join(thread, NULL) == 0);
	}
	/* MSG_PEEK returns all bytes at once, and leaves them in the socket for the read below. */
	HOLDS(send(pair[0], bytes, 100000, MSG_DONTWAIT) == 100000);
	unsigned char *peeked = out(100000);
	evict();
	HOLDS(recv(pair[1], peeked, 100000, MSG_PEEK | MSG_WAITALL) == 100000 && matches(peeked, 100000, 6));
	memset(peeked, 0, 100000);
	evict();
	HOLDS(read(pair[1], peeked, 100000) == 100000 && matches(peeked, 100000, 6));
	close(pair[0]);
	close(pair[1]);
	/* A pipe, by pages. */
	int ends[2];
	HOLDS(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 65536) >= 65536);
	*vector = (struct iovec){ bytes, 40000 };
	evict();
	HOLDS(vmsplice(ends[1], vector, 1, 0) == 40000);
	*vector = (struct iovec){ peeked, 40000 };
	evict();
	HOLDS(vmsplice(ends[0], vector, 1, 0) == 40000 && matches(peeked, 40000, 6));
	close(ends[0]);
	close(ends[1]);
}

/* Bytes that are counted but not copied (MSG_TRUNC on TCP) leave the buffer unchanged. */
static void passed_over(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	HOLDS(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0);
	HOLDS(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
	HOLDS(connect(client, (struct sockaddr *)&address, size) == 0);
	int server = accept(listener, NULL, NULL);
	unsigned char *bytes = out(30000);
	for (int round = 0; round < 2; round++) {
		pattern(bytes, 30000, 5);
		HOLDS(send(client, bytes, 30000, 0) == 30000);
		pattern(bytes, 30000, 6);
		evict();
		HOLDS(recv(server, bytes, 30000, MSG_WAITALL | (round ? 0 : MSG_TRUNC)) == 30000);
		HOLDS(matches(bytes, 30000, round ? 5 : 6));
	}
	close(listener);
	close(client);
	close(server);
}

/*
 * Calls whose lengths reach beyond the end of the memory. The kernel accepts them, because only
 * memory that it reads or writes must exist.
 */
static void beyond_the_end(void)
{
	unsigned char *part = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(part != MAP_FAILED && munmap(part + 4 * MIB, 28 * MIB) == 0);
	pattern(part, 4 * MIB, 11);
	evict();
	int pair[2];
	unsigned char text[1000];
	pattern(text, sizeof text, 12);
	for (int round = 0; round < 2; round++) {
		unsigned char *last = part + 4 * MIB - sizeof text;
		HOLDS(socketpair(AF_UNIX, round ? SOCK_STREAM : SOCK_DGRAM, 0, pair) == 0);
		HOLDS(send(pair[0], text, sizeof text, 0) == sizeof text);
		HOLDS(recv(pair[1], last, 100000, MSG_TRUNC) == sizeof text && matches(last, sizeof text, 12));
		pattern(part, 4 * MIB, 11);
		evict();
		/*
		 * The message is too long for the socket, which the kernel checks before it reads
		 * the memory.
		 */
		if (round == 0)
			HOLDS(send(pair[0], part, 16 * MIB, MSG_DONTWAIT) == -1 && errno == EMSGSIZE);
		close(pair[0]);
		close(pair[1]);
	}
	/* As many bytes as there are. */
	HOLDS(pipe(pair) == 0 && write(pair[1], part + 4 * MIB - 32768, 100000) == 32768);
	close(pair[0]);
	close(pair[1]);
	int datagrams = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof address;
	HOLDS(bind(datagrams, (struct sockaddr *)&address, size) == 0);
	HOLDS(getsockname(datagrams, (struct sockaddr *)&address, &size) == 0);
	HOLDS(connect(datagrams, (struct sockaddr *)&address, size) == 0);
	HOLDS(send(datagrams, part, 1UL << 30, 0) == -1 && errno == EMSGSIZE);
	struct iovec vectors[3] = { { part, 20000 }, { part, 65536 }, { part, 20000 } };
	struct mmsghdr all[3];
	for (int each = 0; each < 3; each++)
		all[each] = (struct mmsghdr){ .msg_hdr = { .msg_iov = vectors + each, .msg_iovlen = 1 } };
	HOLDS(sendmmsg(datagrams, all, 3, 0) == 1 && all[0].msg_len == 20000);
	HOLDS(sendmmsg(datagrams, all + 1, 2, 0) == -1 && errno == EMSGSIZE);
	HOLDS(recv(datagrams, part, 65536, MSG_TRUNC) == 20000 && matches(part, 20000, 11));
	vectors[1].iov_len = -1UL;
	HOLDS(writev(datagrams, vectors, 2) == -1 && errno == EINVAL);
	close(datagrams);
	char name[] = "/tmp/appended-XXXXXX";
	close(mkstemp(name));
	int file = open(name, O_RDWR | O_APPEND);
	HOLDS(write(file, part, 8 * MIB) == 4 * MIB && lseek(file, 0, SEEK_END) == 4 * MIB);
	memset(part, 0, 4 * MIB);
	evict();
	HOLDS(pread(file, part, 4 * MIB, 0) == 4 * MIB && matches(part, 4 * MIB, 11));
	close(file);
	unlink(name);
	HOLDS(munmap(part, 4 * MIB) == 0);
}

/*
 * Appends 48 MiB of swapped memory by one call, while 24, 12 and 6 MiB of address space are left.
 */
static void much_appended(void)
{
	enum { TIMES = 12 };
	char name[] = "/tmp/appended-XXXXXX", statistics[100] = "";
	close(mkstemp(name));
	int file = open(name, O_RDWR | O_APPEND);
	struct iovec vector[TIMES];
	pattern(memory, 4 * MIB, 13);
	for (int each = 0; each < TIMES; each++)
		vector[each] = (struct iovec){ memory, 4 * MIB };
	for (size_t room = 24 * MIB; room >= 6 * MIB; room /= 2) {
		int sizes = open("/proc/self/statm", O_RDONLY);
		HOLDS(read(sizes, statistics, sizeof statistics - 1) > 0 && close(sizes) == 0);
		struct { unsigned long now, most; } before, less;
		HOLDS(syscall(SYS_prlimit64, 0, RLIMIT_AS, NULL, &before) == 0);
		less = before;
		less.now = strtoul(statistics, NULL, 10) * PAGE + room;
		HOLDS(ftruncate(file, 0) == 0 && syscall(SYS_prlimit64, 0, RLIMIT_AS, &less, NULL) == 0);
		ssize_t written = writev(file, vector, TIMES);
		HOLDS(syscall(SYS_prlimit64, 0, RLIMIT_AS, &before, NULL) == 0 && written == TIMES * 4 * MIB);
		for (int each = 0; each < TIMES; each++) {
			unsigned char *bytes = out(4 * MIB);
			HOLDS(pread(file, bytes, 4 * MIB, each * 4 * MIB) == 4 * MIB && matches(bytes, 4 * MIB, 13));
		}
		pattern(memory, 4 * MIB, 13);
	}
	close(file);
	unlink(name);
}

/* A request that offers more buffer space than can be resident must still reach the kernel. */
static void much_room(void)
{
	enum { MANY = 24 };
	int pair[2];
	HOLDS(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	struct mmsghdr all[MANY];
	struct iovec vectors[MANY];
	for (int each = 0; each < MANY; each++) {
		unsigned char text[1000];
		pattern(text, sizeof text, each);
		if (each < 8)
			HOLDS(send(pair[0], text, sizeof text, 0) == sizeof text);
		vectors[each] = (struct iovec){ memory + each * 5000, MIB };
		all[each] = (struct mmsghdr){ .msg_hdr = { .msg_iov = vectors + each, .msg_iovlen = 1 } };
	}
	evict();
	HOLDS(recvmmsg(pair[1], all, MANY, MSG_WAITFORONE, NULL) == 8);
	for (int each = 0; each < 8; each++)
		HOLDS(all[each].msg_len == 1000 && matches(memory + each * 5000, 1000, each));
	close(pair[0]);
	close(pair[1]);
}

/* Several threads append. Each thread's data must arrive in one piece. */
enum { APPENDS = 6 };
static char appended[64];
static size_t append_size;
static void *append(void *argument)
{
	unsigned number = (unsigned)(uintptr_t)argument;
	int file = open(appended, O_WRONLY | O_APPEND);
	unsigned char *bytes = memory + number * (length / 4 / PAGE * PAGE);
	for (int round = 0; round < APPENDS; round++) {
		if (round % 2) {
			HOLDS(write(file, bytes, append_size) == (ssize_t)append_size);
		} else {
			struct iovec halves[2] = { { bytes, append_size / 2 },
						   { bytes + append_size / 2, append_size / 2 } };
			HOLDS(writev(file, halves, 2) == (ssize_t)append_size);
		}
	}
	close(file);
	return NULL;
}
static void appending(void)
{
	for (append_size = 3 * MIB / 2; append_size <= 3 * MIB; append_size *= 2) {
		pthread_t threads[4];
		strcpy(appended, "/tmp/appended-XXXXXX");
		int file = mkstemp(appended);
		HOLDS(file >= 0);
		for (uintptr_t each = 0; each < 4; each++)
			memset(memory + each * (length / 4 / PAGE * PAGE), 'a' + each, append_size);
		evict();
		for (uintptr_t each = 0; each < 4; each++)
			HOLDS(pthread_create(&threads[each], NULL, append, (void *)each) == 0);
		for (int each = 0; each < 4; each++)
			pthread_join(threads[each], NULL);
		static unsigned char block[64 << 10];
		for (size_t at = 0; at < 4 * APPENDS * append_size; at += sizeof block) {
			static unsigned char first;
			HOLDS(pread(file, block, sizeof block, at) == sizeof block);
			if (at % append_size == 0)
				first = block[0];
			HOLDS(block[0] == first && memcmp(block, block + 1, sizeof block - 1) == 0);
		}
		HOLDS(lseek(file, 0, SEEK_END) == (off_t)(4 * APPENDS * append_size));
		close(file);
		unlink(appended);
	}
}

struct sleeper {
	pthread_t thread;
	uint32_t *word;
};

static void *sleep_on(void *argument)
{
	struct sleeper *sleeper = argument;
	while (__atomic_load_n(sleeper->word, __ATOMIC_ACQUIRE) == 0)
		HOLDS(syscall(SYS_futex, sleeper->word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) == 0 || errno == EAGAIN);
	return NULL;
}

static void sleepers(void)
{
	unsigned count = threads;
	struct sleeper *all = calloc(count, sizeof *all);
	for (unsigned each = 0; each < count; each++) {
		all[each].word = (uint32_t *)(memory + each * 5 % (length / PAGE) * PAGE + 8);
		*all[each].word = 0;
		HOLDS(pthread_create(&all[each].thread, NULL, sleep_on, &all[each]) == 0);
	}
	evict();
	for (unsigned each = 0; each < count; each++) {
		__atomic_store_n(all[each].word, 1, __ATOMIC_RELEASE);
		HOLDS(syscall(SYS_futex, all[each].word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) >= 0);
		HOLDS(pthread_join(all[each].thread, NULL) == 0);
	}
	free(all);
}

int main(int count, char **arguments)
{
	static const struct check checks[] = {
		{ "waiting", waiting },
		{ "streams", streams },
		{ "passed over", passed_over },
		{ "beyond the end", beyond_the_end },
		{ "much appended", much_appended },
		{ "much room", much_room },
		{ "appending", appending },
		{ "sleepers", sleepers },
		{ "waiting again", waiting_again },
	};
	make_memory(count > 1 ? atoi(arguments[1]) : 16);
	threads = count > 2 ? (unsigned)atoi(arguments[2]) : 32;
	return run_checks(checks, sizeof checks / sizeof *checks, NULL);
}
