/*
 * A program that knows nothing of swap: system calls whose memory is larger than a structure or is
 * named through other memory, and calls that wait. All of them use ordinary mappings, most of which
 * are evicted.
 *
 * - argv[1]: bytes of the memory in MiB;
 * - argv[2]: the number of threads that wait in reads of one MiB each.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/futex.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define MIB (1UL << 20)
#define CHECK(condition)                                                                                             \
	do {                                                                                                         \
		if (!(condition)) {                                                                                  \
			dprintf(2, "line %d: %s does not hold (errno %d: %s)\n", __LINE__, #condition, errno,        \
				strerror(errno));                                                                    \
			exit(1);                                                                                     \
		}                                                                                                    \
		__atomic_add_fetch(&checks, 1, __ATOMIC_RELAXED);                                                    \
	} while (0)

static unsigned checks;
static unsigned char *memory;
static size_t length;

/*
 * Returns memory that is evicted by the time it is used: all other memory has been touched since
 * its last use.
 */
static void *out(size_t bytes)
{
	static size_t next;
	size_t pages = (bytes + PAGE - 1) / PAGE + 1;
	if ((next + pages) * PAGE > length)
		next = 0;
	unsigned char *place = memory + next * PAGE + 64;
	next += pages;
	return place;
}

static void evict(void)
{
	for (size_t at = 0; at < length; at += PAGE)
		*(volatile unsigned char *)(memory + at);
}

static void pattern(unsigned char *bytes, size_t count, unsigned seed)
{
	for (size_t at = 0; at < count; at++)
		bytes[at] = (unsigned char)((at ^ at >> 8) * 7 + seed);
}

static int matches(const unsigned char *bytes, size_t count, unsigned seed)
{
	for (size_t at = 0; at < count; at++)
		if (bytes[at] != (unsigned char)((at ^ at >> 8) * 7 + seed))
			return 0;
	return 1;
}

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

/* A thread that waits in a call prevents no other thread from making one. */
static void waiting(unsigned count)
{
	struct waiter *waiters = calloc(count, sizeof *waiters);
	for (int round = 0; round < 2; round++) {
		is_datagram = round;
		for (unsigned each = 0; each < count; each++) {
			int kind = round ? SOCK_DGRAM : SOCK_STREAM;
			CHECK(socketpair(AF_UNIX, kind, 0, waiters[each].ends) == 0);
			waiters[each].into = memory + each % (length / MIB - 1) * MIB + 100;
			CHECK(pthread_create(&waiters[each].thread, NULL, wait_in_recv, &waiters[each]) == 0);
		}
		/* Waits until all of them sleep in their call. */
		for (unsigned each = 0; each < count; each++) {
			struct pollfd end = { .fd = waiters[each].ends[0], .events = POLLOUT };
			CHECK(poll(&end, 1, 10000) == 1);
		}
		usleep(200000);
		FILE *file = tmpfile();
		unsigned char *bytes = out(3 * MIB);
		pattern(bytes, 3 * MIB, round);
		evict();
		CHECK(pwrite(fileno(file), bytes, 3 * MIB, 0) == 3 * MIB);
		memset(bytes, 0, 3 * MIB);
		evict();
		CHECK(pread(fileno(file), bytes, 3 * MIB, 0) == 3 * MIB && matches(bytes, 3 * MIB, round));
		fclose(file);
		for (unsigned each = 0; each < count; each++) {
			unsigned char text[1000];
			pattern(text, sizeof text, each);
			CHECK(write(waiters[each].ends[0], text, sizeof text) == sizeof text);
			close(waiters[each].ends[0]);
			CHECK(pthread_join(waiters[each].thread, NULL) == 0 && waiters[each].got == sizeof text);
			/*
			 * Threads may share a place. Only the last of those finds its own bytes
			 * there.
			 */
			if (each + length / MIB > count)
				CHECK(matches(waiters[each].into, sizeof text, each));
			close(waiters[each].ends[1]);
		}
	}
	free(waiters);
}

static void *send_slowly(void *argument)
{
	int *end = argument;
	unsigned char *bytes = malloc(3 * MIB);
	pattern(bytes, 3 * MIB, 5);
	for (size_t at = 0; at < 3 * MIB; at += 100000) {
		size_t part = 3 * MIB - at < 100000 ? 3 * MIB - at : 100000;
		CHECK(write(*end, bytes + at, part) == (ssize_t)part);
	}
	free(bytes);
	return NULL;
}

static void *take_all(void *argument)
{
	int *end = argument;
	unsigned char *bytes = malloc(3 * MIB);
	CHECK(recv(*end, bytes, 3 * MIB, MSG_WAITALL) == 3 * MIB && matches(bytes, 3 * MIB, 6));
	free(bytes);
	return NULL;
}

static void streams(void)
{
	int pair[2];
	pthread_t thread;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	unsigned char *bytes = out(3 * MIB);
	evict();
	CHECK(pthread_create(&thread, NULL, send_slowly, &pair[0]) == 0);
	CHECK(recv(pair[1], bytes, 3 * MIB, MSG_WAITALL) == 3 * MIB && matches(bytes, 3 * MIB, 5));
	CHECK(pthread_join(thread, NULL) == 0);
	/* A vector of which a part lies outside the swapped memory. */
	static unsigned char elsewhere[5000];
	CHECK(pthread_create(&thread, NULL, send_slowly, &pair[0]) == 0);
	struct iovec *vector = out(3 * sizeof *vector);
	vector[0] = (struct iovec){ bytes, 70000 };
	vector[1] = (struct iovec){ elsewhere, sizeof elsewhere };
	vector[2] = (struct iovec){ bytes + 75000, 3 * MIB - 75000 };
	struct msghdr *message = out(sizeof *message);
	*message = (struct msghdr){ .msg_iov = vector, .msg_iovlen = 3 };
	memset(bytes, 0, 3 * MIB);
	evict();
	CHECK(recvmsg(pair[1], message, MSG_WAITALL) == 3 * MIB);
	memcpy(bytes + 70000, elsewhere, sizeof elsewhere);
	CHECK(matches(bytes, 3 * MIB, 5) && pthread_join(thread, NULL) == 0);
	/* Sent as a whole, by one call. */
	pattern(bytes, 3 * MIB, 6);
	for (int way = 0; way < 3; way++) {
		vector[0] = (struct iovec){ bytes, 300000 };
		vector[1] = (struct iovec){ bytes + 300000, 3 * MIB - 300000 };
		*message = (struct msghdr){ .msg_iov = vector, .msg_iovlen = 2 };
		evict();
		CHECK(pthread_create(&thread, NULL, take_all, &pair[1]) == 0);
		ssize_t sent = way == 0 ? send(pair[0], bytes, 3 * MIB, 0)
		             : way == 1 ? writev(pair[0], vector, 2)
		                        : sendmsg(pair[0], message, 0);
		CHECK(sent == 3 * MIB && pthread_join(thread, NULL) == 0);
	}
	/* Peeked at as a whole, and still there. */
	CHECK(send(pair[0], bytes, 100000, MSG_DONTWAIT) == 100000);
	unsigned char *peeked = out(100000);
	evict();
	CHECK(recv(pair[1], peeked, 100000, MSG_PEEK | MSG_WAITALL) == 100000 && matches(peeked, 100000, 6));
	memset(peeked, 0, 100000);
	evict();
	CHECK(read(pair[1], peeked, 100000) == 100000 && matches(peeked, 100000, 6));
	close(pair[0]);
	close(pair[1]);
	/* A pipe, by pages. */
	int ends[2];
	CHECK(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 65536) >= 65536);
	*vector = (struct iovec){ bytes, 40000 };
	evict();
	CHECK(vmsplice(ends[1], vector, 1, 0) == 40000);
	*vector = (struct iovec){ peeked, 40000 };
	evict();
	CHECK(vmsplice(ends[0], vector, 1, 0) == 40000 && matches(peeked, 40000, 6));
	close(ends[0]);
	close(ends[1]);
}

/* Bytes that are counted but not copied (MSG_TRUNC on TCP) leave the buffer unchanged. */
static void passed_over(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
	CHECK(connect(client, (struct sockaddr *)&address, size) == 0);
	int server = accept(listener, NULL, NULL);
	unsigned char *bytes = out(30000);
	for (int round = 0; round < 2; round++) {
		pattern(bytes, 30000, 5);
		CHECK(send(client, bytes, 30000, 0) == 30000);
		pattern(bytes, 30000, 6);
		evict();
		CHECK(recv(server, bytes, 30000, MSG_WAITALL | (round ? 0 : MSG_TRUNC)) == 30000);
		CHECK(matches(bytes, 30000, round ? 5 : 6));
	}
	close(listener);
	close(client);
	close(server);
}

/*
 * Lengths beyond the end of the memory, which the kernel accepts: memory that it neither reads nor
 * writes need not exist.
 */
static void beyond_the_end(void)
{
	unsigned char *part = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(part != MAP_FAILED && munmap(part + 4 * MIB, 28 * MIB) == 0);
	pattern(part, 4 * MIB, 11);
	evict();
	int pair[2];
	unsigned char text[1000];
	pattern(text, sizeof text, 12);
	for (int round = 0; round < 2; round++) {
		unsigned char *last = part + 4 * MIB - sizeof text;
		CHECK(socketpair(AF_UNIX, round ? SOCK_STREAM : SOCK_DGRAM, 0, pair) == 0);
		CHECK(send(pair[0], text, sizeof text, 0) == sizeof text);
		CHECK(recv(pair[1], last, 100000, MSG_TRUNC) == sizeof text && matches(last, sizeof text, 12));
		pattern(part, 4 * MIB, 11);
		evict();
		/* Too long for the socket, whatever the memory holds. */
		if (round == 0)
			CHECK(send(pair[0], part, 16 * MIB, MSG_DONTWAIT) == -1 && errno == EMSGSIZE);
		close(pair[0]);
		close(pair[1]);
	}
	/* As many bytes as there are. */
	CHECK(pipe(pair) == 0 && write(pair[1], part + 4 * MIB - 32768, 100000) == 32768);
	close(pair[0]);
	close(pair[1]);
	int datagrams = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof address;
	CHECK(bind(datagrams, (struct sockaddr *)&address, size) == 0);
	CHECK(getsockname(datagrams, (struct sockaddr *)&address, &size) == 0);
	CHECK(connect(datagrams, (struct sockaddr *)&address, size) == 0);
	CHECK(send(datagrams, part, 1UL << 30, 0) == -1 && errno == EMSGSIZE);
	struct iovec vectors[3] = { { part, 20000 }, { part, 65536 }, { part, 20000 } };
	struct mmsghdr all[3];
	for (int each = 0; each < 3; each++)
		all[each] = (struct mmsghdr){ .msg_hdr = { .msg_iov = vectors + each, .msg_iovlen = 1 } };
	CHECK(sendmmsg(datagrams, all, 3, 0) == 1 && all[0].msg_len == 20000);
	CHECK(sendmmsg(datagrams, all + 1, 2, 0) == -1 && errno == EMSGSIZE);
	CHECK(recv(datagrams, part, 65536, MSG_TRUNC) == 20000 && matches(part, 20000, 11));
	vectors[1].iov_len = -1UL;
	CHECK(writev(datagrams, vectors, 2) == -1 && errno == EINVAL);
	close(datagrams);
	char name[] = "/tmp/appended-XXXXXX";
	close(mkstemp(name));
	int file = open(name, O_RDWR | O_APPEND);
	CHECK(write(file, part, 8 * MIB) == 4 * MIB && lseek(file, 0, SEEK_END) == 4 * MIB);
	memset(part, 0, 4 * MIB);
	evict();
	CHECK(pread(file, part, 4 * MIB, 0) == 4 * MIB && matches(part, 4 * MIB, 11));
	close(file);
	unlink(name);
	CHECK(munmap(part, 4 * MIB) == 0);
}

/* A long append with little resident memory for it. */
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
		CHECK(read(sizes, statistics, sizeof statistics - 1) > 0 && close(sizes) == 0);
		struct { unsigned long now, most; } before, less;
		CHECK(syscall(SYS_prlimit64, 0, RLIMIT_AS, NULL, &before) == 0);
		less = before;
		less.now = strtoul(statistics, NULL, 10) * PAGE + room;
		CHECK(ftruncate(file, 0) == 0 && syscall(SYS_prlimit64, 0, RLIMIT_AS, &less, NULL) == 0);
		ssize_t written = writev(file, vector, TIMES);
		CHECK(syscall(SYS_prlimit64, 0, RLIMIT_AS, &before, NULL) == 0 && written == TIMES * 4 * MIB);
		for (int each = 0; each < TIMES; each++) {
			unsigned char *bytes = out(4 * MIB);
			CHECK(pread(file, bytes, 4 * MIB, each * 4 * MIB) == 4 * MIB && matches(bytes, 4 * MIB, 13));
		}
		pattern(memory, 4 * MIB, 13);
	}
	close(file);
	unlink(name);
}

/* A request with more buffer space than can be resident goes to the kernel all the same. */
static void much_room(void)
{
	enum { MANY = 24 };
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	struct mmsghdr all[MANY];
	struct iovec vectors[MANY];
	for (int each = 0; each < MANY; each++) {
		unsigned char text[1000];
		pattern(text, sizeof text, each);
		if (each < 8)
			CHECK(send(pair[0], text, sizeof text, 0) == sizeof text);
		vectors[each] = (struct iovec){ memory + each * 5000, MIB };
		all[each] = (struct mmsghdr){ .msg_hdr = { .msg_iov = vectors + each, .msg_iovlen = 1 } };
	}
	evict();
	CHECK(recvmmsg(pair[1], all, MANY, MSG_WAITFORONE, NULL) == 8);
	for (int each = 0; each < 8; each++)
		CHECK(all[each].msg_len == 1000 && matches(memory + each * 5000, 1000, each));
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
			CHECK(write(file, bytes, append_size) == (ssize_t)append_size);
		} else {
			struct iovec halves[2] = { { bytes, append_size / 2 },
						   { bytes + append_size / 2, append_size / 2 } };
			CHECK(writev(file, halves, 2) == (ssize_t)append_size);
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
		CHECK(file >= 0);
		for (uintptr_t each = 0; each < 4; each++)
			memset(memory + each * (length / 4 / PAGE * PAGE), 'a' + each, append_size);
		evict();
		for (uintptr_t each = 0; each < 4; each++)
			CHECK(pthread_create(&threads[each], NULL, append, (void *)each) == 0);
		for (int each = 0; each < 4; each++)
			pthread_join(threads[each], NULL);
		static unsigned char block[64 << 10];
		for (size_t at = 0; at < 4 * APPENDS * append_size; at += sizeof block) {
			static unsigned char first;
			CHECK(pread(file, block, sizeof block, at) == sizeof block);
			if (at % append_size == 0)
				first = block[0];
			CHECK(block[0] == first && memcmp(block, block + 1, sizeof block - 1) == 0);
		}
		CHECK(lseek(file, 0, SEEK_END) == (off_t)(4 * APPENDS * append_size));
		close(file);
		unlink(appended);
	}
}

static void messages(void)
{
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	struct msghdr *message = out(sizeof *message);
	struct iovec *vector = out(sizeof *vector);
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} *control = out(sizeof *control);
	unsigned char *bytes = out(100000);
	pattern(bytes, 100000, 9);
	memset(control, 0, sizeof *control);
	control->header = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
	memcpy(CMSG_DATA(&control->header), &pair[0], sizeof(int));
	*vector = (struct iovec){ bytes, 100000 };
	*message = (struct msghdr){ NULL, 0, vector, 1, control, sizeof *control, 0 };
	evict();
	CHECK(sendmsg(pair[0], message, 0) == 100000);
	memset(bytes, 0, 100000);
	memset(control, 0, sizeof *control);
	message->msg_flags = -1;
	vector->iov_len = 60000;
	evict();
	CHECK(recvmsg(pair[1], message, 0) == 60000 && message->msg_flags == MSG_TRUNC);
	CHECK(message->msg_controllen == CMSG_SPACE(sizeof(int)) && control->header.cmsg_type == SCM_RIGHTS);
	int received;
	memcpy(&received, CMSG_DATA(&control->header), sizeof received);
	CHECK(fcntl(received, F_GETFD) >= 0 && matches(bytes, 60000, 9));
	close(received);
	/* Several messages at once, of different lengths. */
	enum { MANY = 16 };
	struct mmsghdr *all = out(MANY * sizeof *all);
	struct iovec *vectors = out(MANY * sizeof *vectors);
	unsigned char *texts = out(MANY * 5000);
	for (int each = 0; each < MANY; each++) {
		vectors[each] = (struct iovec){ texts + each * 5000, 1000 + each * 100 };
		pattern(texts + each * 5000, 1000 + each * 100, each);
		all[each] = (struct mmsghdr){ .msg_hdr = { .msg_iov = vectors + each, .msg_iovlen = 1 } };
	}
	evict();
	CHECK(sendmmsg(pair[0], all, MANY, 0) == MANY);
	memset(texts, 0, MANY * 5000);
	for (int each = 0; each < MANY; each++) {
		CHECK(all[each].msg_len == 1000U + each * 100);
		all[each].msg_len = 0;
		vectors[each].iov_len = 5000;
	}
	evict();
	struct timespec *limit = out(sizeof *limit);
	*limit = (struct timespec){ 10, 0 };
	CHECK(recvmmsg(pair[1], all, MANY, 0, limit) == MANY);
	for (int each = 0; each < MANY; each++)
		CHECK(all[each].msg_len == 1000U + each * 100 && matches(texts + each * 5000, 1000 + each * 100, each));
	close(pair[0]);
	close(pair[1]);
	/* The sender's address, and control data of a length that takes a separate path. */
	int one = socket(AF_INET, SOCK_DGRAM, 0), other = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in *address = out(sizeof *address);
	socklen_t *size = out(sizeof *size);
	memset(address, 0, sizeof *address);
	address->sin_family = AF_INET;
	address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(one, (struct sockaddr *)address, sizeof *address) == 0);
	*size = sizeof *address;
	evict();
	CHECK(getsockname(one, (struct sockaddr *)address, size) == 0 && *size == sizeof *address);
	in_port_t port = address->sin_port;
	pattern(bytes, 60000, 3);
	evict();
	CHECK(sendto(other, bytes, 60000, 0, (struct sockaddr *)address, sizeof *address) == 60000);
	memset(bytes, 0, 60000);
	memset(address, 0, sizeof *address);
	evict();
	CHECK(recvfrom(one, bytes, 100000, 0, (struct sockaddr *)address, size) == 60000 && matches(bytes, 60000, 3));
	CHECK(address->sin_family == AF_INET && address->sin_port != port);
	int *option = out(sizeof *option);
	*option = 1;
	*size = sizeof *option;
	evict();
	CHECK(setsockopt(one, SOL_SOCKET, SO_REUSEADDR, option, sizeof *option) == 0);
	*option = 0;
	evict();
	CHECK(getsockopt(one, SOL_SOCKET, SO_REUSEADDR, option, size) == 0 && *option == 1);
	/* A structure that names a buffer. */
	struct ifconf *interfaces = out(sizeof *interfaces);
	*interfaces = (struct ifconf){ .ifc_len = 20000, .ifc_buf = out(20000) };
	evict();
	CHECK(ioctl(one, SIOCGIFCONF, interfaces) == 0 && interfaces->ifc_len >= (int)sizeof(struct ifreq));
	struct ifconf outside = { .ifc_len = 20000, .ifc_buf = out(20000) };
	evict();
	CHECK(ioctl(one, SIOCGIFCONF, &outside) == 0 && outside.ifc_len == interfaces->ifc_len);
	close(one);
	close(other);
	int queue = msgget(IPC_PRIVATE, 0600);
	if (queue >= 0) {
		struct {
			long type;
			unsigned char text[8192];
		} *sent = out(sizeof *sent), *got = out(sizeof *got);
		sent->type = 3;
		pattern(sent->text, 8192, 4);
		evict();
		CHECK(msgsnd(queue, sent, 8192, 0) == 0);
		evict();
		CHECK(msgrcv(queue, got, 8192, 0, 0) == 8192 && got->type == 3 && matches(got->text, 8192, 4));
		struct msqid_ds *status = out(sizeof *status);
		evict();
		CHECK(msgctl(queue, IPC_STAT, status) == 0 && status->msg_qnum == 0);
		CHECK(msgctl(queue, IPC_RMID, NULL) == 0);
	}
	int set = semget(IPC_PRIVATE, 200, 0600);
	if (set >= 0) {
		unsigned short *values = out(400);
		for (int each = 0; each < 200; each++)
			values[each] = each;
		evict();
		CHECK(semctl(set, 0, SETALL, values) == 0 && semctl(set, 77, GETVAL) == 77);
		CHECK(semctl(set, 0, IPC_RMID) == 0);
	}
}

static void lists(void)
{
	unsigned char *vec = out(30000);
	void *other = mmap(NULL, 30000 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(other != MAP_FAILED);
	memset(vec, 0xff, 30000);
	evict();
	CHECK(mincore(other, 30000 * PAGE, vec) == 0 && vec[0] == 0 && vec[29999] == 0);
	CHECK(munmap(other, 30000 * PAGE) == 0);
	enum { MANY = 4000 };
	int event = eventfd(0, 0);
	struct pollfd *polled = out(MANY * sizeof *polled);
	for (int each = 0; each < MANY; each++)
		polled[each] = (struct pollfd){ .fd = -1 };
	polled[MANY - 1] = (struct pollfd){ .fd = event, .events = POLLOUT };
	evict();
	struct rlimit { unsigned long now, most; } many = { MANY, MANY };
	syscall(SYS_prlimit64, 0, 7, &many, NULL);
	CHECK(poll(polled, MANY, 1000) == 1 && polled[MANY - 1].revents == POLLOUT);
	/* Files that deliver messages, with more buffer space than one message needs. */
	uint64_t *counter = out(100000);
	CHECK(write(event, &(uint64_t){ 5 }, 8) == 8);
	evict();
	CHECK(read(event, counter, 100000) == 8 && *counter == 5);
	close(event);
	int watch = inotify_init1(0);
	char *name = out(PAGE);
	strcpy(name, "/tmp");
	evict();
	CHECK(inotify_add_watch(watch, name, IN_CREATE) >= 0);
	char made[] = "/tmp/swapped-calls-XXXXXX";
	close(mkstemp(made));
	struct inotify_event *notice = out(100000);
	evict();
	CHECK(read(watch, notice, 100000) > (ssize_t)sizeof *notice && notice->mask & IN_CREATE);
	close(watch);
	sigset_t *signals = out(sizeof *signals);
	sigemptyset(signals);
	sigaddset(signals, SIGUSR1);
	evict();
	CHECK(sigprocmask(SIG_BLOCK, signals, NULL) == 0);
	int descriptor = signalfd(-1, signals, 0);
	CHECK(descriptor >= 0 && raise(SIGUSR1) == 0);
	struct signalfd_siginfo *information = out(100000);
	evict();
	CHECK(read(descriptor, information, 100000) == sizeof *information && information->ssi_signo == SIGUSR1);
	close(descriptor);
	siginfo_t *taken = out(sizeof *taken);
	struct timespec *limit = out(sizeof *limit);
	CHECK(raise(SIGUSR1) == 0);
	*limit = (struct timespec){ 10, 0 };
	evict();
	CHECK(sigtimedwait(signals, taken, limit) == SIGUSR1 && taken->si_signo == SIGUSR1);
	fd_set *sets = out(2 * sizeof *sets);
	struct timeval *time = out(sizeof *time);
	FD_ZERO(sets);
	FD_SET(1, sets);
	*time = (struct timeval){ 10, 0 };
	evict();
	CHECK(select(2, NULL, sets, NULL, time) == 1 && FD_ISSET(1, sets));
	/* process_vm_readv(2) on this process's own memory. */
	struct iovec *here = out(sizeof *here), *there = out(sizeof *there);
	unsigned char *from = out(50000), *to = out(50000);
	pattern(from, 50000, 8);
	*here = (struct iovec){ to, 50000 };
	*there = (struct iovec){ from, 50000 };
	evict();
	CHECK(process_vm_readv(getpid(), here, 1, there, 1, 0) == 50000 && matches(to, 50000, 8));
	/* Part of the memory has been released to the kernel by now, if that is possible. */
	unsigned char *mixed = memory + length / 2;
	pattern(mixed, 12 * PAGE, 2);
	evict();
	CHECK(mprotect(mixed + 4 * PAGE, PAGE, PROT_READ) == 0 || errno == ENOMEM);
	int file = open(made, O_RDWR);
	evict();
	CHECK(write(file, mixed, 12 * PAGE) == 12 * PAGE);
	CHECK(mprotect(mixed + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
	memset(mixed, 0, 12 * PAGE);
	evict();
	CHECK(pread(file, mixed, 12 * PAGE, 0) == 12 * PAGE && matches(mixed, 12 * PAGE, 2));
	struct stat *status = (struct stat *)(mixed + 5 * PAGE - 64);
	evict();
	CHECK(fstat(file, status) == 0 && status->st_size == 12 * (off_t)PAGE);
	/* A writev(2) to descriptor 2, as a loader makes it, works for a program, too. */
	int kept = dup(2);
	CHECK(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0 && dup2(file, 2) == 2);
	struct iovec outside = { from, 50000 };
	evict();
	ssize_t said = writev(2, &outside, 1);
	CHECK(dup2(kept, 2) == 2 && said == 50000 && close(kept) == 0);
	memset(from, 0, 50000);
	evict();
	CHECK(pread(file, from, 50000, 0) == 50000 && matches(from, 50000, 8));
	close(file);
	strcpy(name, made);
	evict();
	CHECK(unlink(name) == 0);
}

static sigjmp_buf before;

static void leave(int signal)
{
	(void)signal;
	siglongjmp(before, 1);
}

static void ignore(int signal) { (void)signal; }

/* Calls that do not return, or not in the ordinary way. */
static void interrupted(void)
{
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	struct sigaction action = { .sa_handler = leave }, old;
	CHECK(sigaction(SIGALRM, &action, &old) == 0);
	struct itimerval soon = { .it_value = { 0, 300 } };
	volatile unsigned left = 0;
	for (volatile unsigned round = 0; round < 3000; round++) {
		if (sigsetjmp(before, 1) == 0) {
			size_t bytes = round % 2 ? 100000 : 4000;
			unsigned char *into = memory + round * 37 % (length / PAGE - 30) * PAGE;
			setitimer(ITIMER_REAL, &soon, NULL);
			CHECK(read(pair[1], into, bytes) == -1 && errno == EINTR);
		} else {
			left++;
		}
	}
	setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
	CHECK(left > 2900);
	/* A signal ends a write that waits: the result is the number of bytes written so far. */
	action.sa_handler = ignore;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	unsigned char *bytes = out(3 * MIB);
	for (int round = 0; round < 6; round++) {
		evict();
		struct itimerval ticks = { { 0, 20000 }, { 0, 20000 } };
		setitimer(ITIMER_REAL, &ticks, NULL);
		ssize_t written = write(pair[0], bytes, 3 * MIB);
		setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
		CHECK(written < (ssize_t)(3 * MIB) && (written > 0 || errno == EINTR));
		int waiting = 0;
		CHECK(ioctl(pair[1], FIONREAD, &waiting) == 0 && waiting > 0);
		while (recv(pair[1], bytes, MIB, MSG_DONTWAIT) > 0)
			;
	}
	CHECK(sigaction(SIGALRM, &old, NULL) == 0);
	close(pair[0]);
	close(pair[1]);
}

/* Programs whose strings all lie in the memory. */
static void programs(void)
{
	for (int round = 0; round < 6; round++) {
		char **arguments = out(4 * sizeof *arguments), **environment = out(2 * sizeof *environment);
		arguments[0] = strcpy(out(16), "sh");
		arguments[1] = strcpy(out(16), "-c");
		char *script = out(40000);
		memset(script, ' ', 40000);
		strcpy(script + 39900, "test \"$WORD\" = there && exit 7");
		arguments[2] = script;
		arguments[3] = NULL;
		environment[0] = strcpy(out(16), "WORD=there");
		environment[1] = NULL;
		char *path = strcpy(out(16), "/bin/sh");
		evict();
		pid_t child;
		CHECK(posix_spawn(&child, path, NULL, NULL, arguments, environment) == 0);
		int *status = out(sizeof *status);
		evict();
		CHECK(waitpid(child, status, 0) == child && WIFEXITED(*status) && WEXITSTATUS(*status) == 7);
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
		CHECK(syscall(SYS_futex, sleeper->word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) == 0 || errno == EAGAIN);
	return NULL;
}

static void sleepers(unsigned count)
{
	struct sleeper *all = calloc(count, sizeof *all);
	for (unsigned each = 0; each < count; each++) {
		all[each].word = (uint32_t *)(memory + each * 5 % (length / PAGE) * PAGE + 8);
		*all[each].word = 0;
		CHECK(pthread_create(&all[each].thread, NULL, sleep_on, &all[each]) == 0);
	}
	evict();
	for (unsigned each = 0; each < count; each++) {
		__atomic_store_n(all[each].word, 1, __ATOMIC_RELEASE);
		CHECK(syscall(SYS_futex, all[each].word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) >= 0);
		CHECK(pthread_join(all[each].thread, NULL) == 0);
	}
	free(all);
}

int main(int count, char **arguments)
{
	length = (size_t)(count > 1 ? atoi(arguments[1]) : 16) * MIB;
	unsigned threads = count > 2 ? (unsigned)atoi(arguments[2]) : 32;
	memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	memset(memory, 1, length);
	waiting(threads);
	streams();
	messages();
	passed_over();
	beyond_the_end();
	much_appended();
	much_room();
	appending();
	lists();
	sleepers(threads);
	programs();
	interrupted();
	waiting(threads / 4);
	dprintf(1, "%u checks hold\n", checks);
	return 0;
}
