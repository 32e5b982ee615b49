/*
 * A program must survive a lack of free addresses (RLIMIT_AS). Each call and each request must end
 * with its result, with EAGAIN or with ENOMEM. Once there is room again, everything must work.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <linux/aio_abi.h>
#include <linux/openat2.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { ENTRIES = 256, BYTES = 1 << 16 };

static struct io_uring ring, other;
static int ends[2], pair[2], file;
static char memory[BYTES];
static struct iovec vectors[1024];
static struct msghdr header;
static struct statx status;
static struct __kernel_timespec later = { .tv_sec = 1000 };
static struct iovec buffers[16384];
static int numbers[32768];

static void limit(size_t bytes)
{
	struct rlimit addresses;
	EQUAL(getrlimit(RLIMIT_AS, &addresses), 0);
	addresses.rlim_cur = bytes;
	EQUAL(setrlimit(RLIMIT_AS, &addresses), 0);
}

/* Lowers the limit so that this program has `bytes` of address space left. */
static void leave_room(size_t bytes)
{
	unsigned long pages = 0;
	char text[64] = { 0 };
	int statm = open("/proc/self/statm", O_RDONLY);
	HOLDS(statm >= 0);
	HOLDS(read(statm, text, sizeof text - 1) > 0);
	close(statm);
	pages = strtoul(text, NULL, 10);
	limit(pages * 4096 + bytes);
}

static int is_expected(int result)
{
	return result >= 0 || result == -EAGAIN || result == -ENOMEM || result == -ECANCELED || result == -ENOENT ||
	       result == -ENOBUFS || result == -EMFILE;
}

static void reap(void)
{
	struct io_uring_cqe *cqe;
	while (io_uring_peek_cqe(&ring, &cqe) == 0) {
		/*
		 * These errors do not come from the lack of memory, but from files without
		 * attributes, from sockets, and from full tables.
		 */
		int said = cqe->res == -ENOSPC || cqe->res == -EOPNOTSUPP || cqe->res == -EPIPE ||
			   cqe->res == -ENFILE || cqe->res == -ENXIO;
		if (!is_expected(cqe->res) && !said)
			printf("%s: result %d\n", running, cqe->res), exit(1);
		io_uring_cqe_seen(&ring, cqe);
	}
}

/* Submits `count` requests, and returns how many of them were accepted. */
static int drive(void (*prepare)(struct io_uring_sqe *, int), int count)
{
	int index, taken = 0, refused = 0;
	for (index = 0; index < count && refused < 3; index++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
		if (sqe != NULL) {
			prepare(sqe, index);
			sqe->user_data = index + 1;
			if (index + 1 < count)
				continue;
		}
		int result = io_uring_submit(&ring);
		HOLDS(is_expected(result) || result == -EBUSY);
		taken += result > 0 ? result : 0;
		refused += result <= 0;
		reap();
	}
	return taken;
}

static void polls(struct io_uring_sqe *sqe, int index)
{
	(void)index;
	io_uring_prep_poll_add(sqe, ends[0], POLLIN);
}

static void polls_of_many(struct io_uring_sqe *sqe, int index)
{
	io_uring_prep_poll_add(sqe, numbers[index % 500], POLLIN);
}

static void reads(struct io_uring_sqe *sqe, int index)
{
	io_uring_prep_read(sqe, ends[0], memory, 1 + index % 16, 0);
}

static void long_vectors(struct io_uring_sqe *sqe, int index)
{
	(void)index;
	io_uring_prep_readv(sqe, ends[0], vectors, 1024, 0);
}

static void timeouts(struct io_uring_sqe *sqe, int index)
{
	(void)index;
	io_uring_prep_timeout(sqe, &later, 0, 0);
}

static void workers_writes(struct io_uring_sqe *sqe, int index)
{
	io_uring_prep_write(sqe, file, memory, sizeof memory, index % 64 * BYTES);
	sqe->flags |= IOSQE_ASYNC;
}

static void paths(struct io_uring_sqe *sqe, int index)
{
	if (index % 2)
		io_uring_prep_statx(sqe, AT_FDCWD, ".", 0, 0, &status);
	else
		io_uring_prep_openat(sqe, AT_FDCWD, "/proc/self/status", O_RDONLY | O_CREAT, 0);
}

static void attributes(struct io_uring_sqe *sqe, int index)
{
	(void)index;
	io_uring_prep_fsetxattr(sqe, file, "user.long", memory, 0, 60000);
}

static void chains(struct io_uring_sqe *sqe, int index)
{
	reads(sqe, index);
	if (index % 100 != 99)
		sqe->flags |= IOSQE_IO_LINK;
}

static void drains(struct io_uring_sqe *sqe, int index)
{
	reads(sqe, index);
	sqe->flags |= IOSQE_IO_DRAIN;
}

static void messages(struct io_uring_sqe *sqe, int index)
{
	if (index % 2)
		io_uring_prep_recvmsg(sqe, pair[0], &header, 0);
	else
		io_uring_prep_sendmsg(sqe, pair[1], &header, 0);
}

static void provided(struct io_uring_sqe *sqe, int index)
{
	io_uring_prep_provide_buffers(sqe, memory, 1, 65535, index, 0);
}

static void to_the_other(struct io_uring_sqe *sqe, int index)
{
	io_uring_prep_msg_ring(sqe, other.ring_fd, 0, index, 0);
}

static void nops(struct io_uring_sqe *sqe, int index)
{
	(void)index;
	io_uring_prep_nop(sqe);
}

static void sockets(struct io_uring_sqe *sqe, int index)
{
	(void)index;
	io_uring_prep_socket_direct_alloc(sqe, AF_UNIX, SOCK_STREAM, 0, 0);
}

static void registered(void)
{
	HOLDS(is_expected(io_uring_register_files(&ring, numbers, 32768)));
	HOLDS(is_expected(io_uring_register_buffers(&ring, buffers, 16384)));
	for (int group = 100; group < 200; group++) {
		/* struct io_uring_buf_reg, with IOU_PBUF_RING_MMAP. */
		struct {
			uint64_t address;
			uint32_t entries;
			uint16_t group, flags;
			uint64_t reserved[3];
		} description = { 0, 16384, group, 1, { 0 } };
		int answer = syscall(SYS_io_uring_register, ring.ring_fd, 22, &description, 1);
		HOLDS(answer == 0 || is_expected(-errno));
	}
	drive(sockets, 1000);
}

static void made(void)
{
	for (int index = 0; index < 40; index++) {
		struct io_uring_params params = { .flags = index % 4 == 0 ? IORING_SETUP_SQPOLL : 0 };
		int made = syscall(SYS_io_uring_setup, 4096, &params);
		HOLDS(made >= 0 || is_expected(-errno));
		aio_context_t context = 0;
		int answer = syscall(SYS_io_setup, 4096, &context);
		HOLDS(answer == 0 || is_expected(-errno));
		for (int turn = 0; answer == 0 && turn < 100; turn++) {
			struct iocb block = { .aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PWRITE,
					      .aio_buf = (uintptr_t)memory, .aio_nbytes = 4096 };
			struct iocb *list[] = { &block };
			HOLDS(syscall(SYS_io_submit, context, 1, list) == 1 || is_expected(-errno));
		}
	}
}

static void children(void)
{
	for (int index = 0; index < 4; index++) {
		pid_t child = fork();
		if (child == 0) {
			struct io_uring_params params = { 0 };
			int answer = syscall(SYS_io_uring_setup, 8, &params);
			_exit(answer >= 0 || is_expected(-errno) ? 0 : 1);
		}
		int status;
		HOLDS(child > 0);
		EQUAL(waitpid(child, &status, 0), child);
		EQUAL(status, 0);
	}
}

/*
 * Without memory the SQ thread may leave entries in the SQ. It takes them once there is room again.
 */
static void by_the_sq_thread(void)
{
	int submitted = 0, seen = 0;
	while (submitted < 30000) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
		for (long long since = milliseconds_now(); sqe == NULL && milliseconds_now() - since < 50;) {
			HOLDS(is_expected(io_uring_submit(&ring)));
			look_again();
			sqe = io_uring_get_sqe(&ring);
		}
		if (sqe == NULL)
			break;
		polls(sqe, 0);
		sqe->user_data = ++submitted;
	}
	HOLDS(is_expected(io_uring_submit(&ring)));
	limit(RLIM_INFINITY);
	EQUAL(write(ends[1], "x", 1), 1);
	for (; seen < submitted; seen++) {
		int result = next_answer(&ring).res;
		HOLDS(is_expected(result));
	}
	nothing_left(&ring);
}

static void everything(const char *what, size_t room)
{
	struct {
		const char *name;
		void (*prepare)(struct io_uring_sqe *, int);
		int count;
	} families[] = {
		{ "polls", polls, 30000 }, { "polls of many files", polls_of_many, 20000 },
		{ "reads", reads, 30000 }, { "long vectors", long_vectors, 2000 },
		{ "timeouts", timeouts, 30000 }, { "workers' writes", workers_writes, 2000 },
		{ "paths", paths, 4000 }, { "attributes", attributes, 2000 },
		{ "chains", chains, 20000 }, { "drains", drains, 20000 },
		{ "messages", messages, 10000 }, { "provided buffers", provided, 200 },
		{ "messages to a ring", to_the_other, 100000 }, { "nops", nops, 100000 },
	};
	for (size_t index = 0; index < sizeof families / sizeof *families; index++) {
		if (strcmp(what, families[index].name) != 0)
			continue;
		leave_room(room);
		drive(families[index].prepare, families[index].count);
		return;
	}
	leave_room(room);
	if (strcmp(what, "registered things") == 0)
		registered();
	else if (strcmp(what, "an SQ thread") == 0)
		by_the_sq_thread();
	else if (strcmp(what, "rings and contexts") == 0)
		made();
	else
		children();
}

/*
 * Runs a group of checks in a child, so that memory that another group has allocated is not there.
 */
static void in_a_child(const char *what, size_t room)
{
	pid_t child = fork();
	if (child == 0) {
		alarm(SECONDS_PER_CHECK);
		EQUAL(pipe(ends), 0);
		EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
		HOLDS((file = open(".", O_TMPFILE | O_RDWR, 0600)) >= 0);
		for (int index = 0; index < 1024; index++)
			vectors[index] = (struct iovec){ memory, 1 };
		for (int index = 0; index < 16384; index++)
			buffers[index] = (struct iovec){ memory, sizeof memory };
		for (int index = 0; index < 32768; index++)
			numbers[index] = index < 500 && strcmp(what, "polls of many files") == 0 ? dup(ends[0]) : -1;
		header = (struct msghdr){ .msg_iov = vectors, .msg_iovlen = 1024 };
		ring = new_ring(ENTRIES, strcmp(what, "an SQ thread") == 0 ? IORING_SETUP_SQPOLL : 0);
		other = new_ring(ENTRIES, 0);
		everything(what, room);
		limit(RLIM_INFINITY);
		/* The limit has been lifted, so there is room again. */
		reap();
		struct io_uring fresh = new_ring(8, 0);
		EQUAL(result_of(&fresh, (nops(request(&fresh), 0), &fresh.sq.sqes[0])), 0);
		HOLDS(io_uring_submit(&ring) >= 0);
		io_uring_queue_exit(&fresh);
		io_uring_queue_exit(&other);
		io_uring_queue_exit(&ring);
		exit(0);
	}
	int status;
	HOLDS(child > 0);
	EQUAL(waitpid(child, &status, 0), child);
	if (status != 0)
		printf("%s with room for %zu bytes: status %#x\n", what, room, status), exit(1);
}

static void with_rooms(const char *what)
{
	static const size_t rooms[] = { 0, 64 << 10, 300 << 10, 1 << 20, 12 << 20 };
	for (size_t index = 0; index < sizeof rooms / sizeof *rooms; index++)
		in_a_child(what, rooms[index]);
}

#define FAMILY(function, name)                \
	static void without_room_##function(void) \
	{                                         \
		with_rooms(name);                 \
	}
FAMILY(polls, "polls")
FAMILY(polls_of_many, "polls of many files")
FAMILY(reads, "reads")
FAMILY(long_vectors, "long vectors")
FAMILY(timeouts, "timeouts")
FAMILY(workers_writes, "workers' writes")
FAMILY(paths, "paths")
FAMILY(attributes, "attributes")
FAMILY(chains, "chains")
FAMILY(drains, "drains")
FAMILY(messages, "messages")
FAMILY(provided, "provided buffers")
FAMILY(to_the_other, "messages to a ring")
FAMILY(nops, "nops")
FAMILY(registered, "registered things")
FAMILY(made, "rings and contexts")
FAMILY(by_the_sq_thread, "an SQ thread")
FAMILY(children, "children")

#define CHECK(function, name) { name, without_room_##function }

static const struct check checks[] = {
	CHECK(polls, "polls"),
	CHECK(polls_of_many, "polls of many files"),
	CHECK(reads, "reads"),
	CHECK(long_vectors, "long vectors"),
	CHECK(timeouts, "timeouts"),
	CHECK(workers_writes, "workers' writes"),
	CHECK(paths, "paths"),
	CHECK(attributes, "attributes"),
	CHECK(chains, "chains"),
	CHECK(drains, "drains"),
	CHECK(messages, "messages"),
	CHECK(provided, "provided buffers"),
	CHECK(to_the_other, "messages to a ring"),
	CHECK(nops, "nops"),
	CHECK(registered, "registered things"),
	CHECK(made, "rings and contexts"),
	CHECK(by_the_sq_thread, "an SQ thread"),
	CHECK(children, "children"),
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
