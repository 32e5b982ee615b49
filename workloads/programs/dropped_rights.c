/*
 * A program gives up its user id or its capabilities. After that no thread may have them, neither
 * the program's threads nor usring's. Each check runs in a child process that has a ring, idle
 * workers and busy workers. With an argument the child also has more memory than may be resident.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { NOBODY = 65534, SECONDS = 40 };

static size_t memory;

/*
 * Finds the line of a thread's status that begins with `name`, and copies it from its first digit
 * on.
 */
static int line_of(const char *thread, const char *name, char *line, size_t size)
{
	char path[300];
	snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
	FILE *file = fopen(path, "r");
	int found = 0;
	while (file != NULL && !found && fgets(line, (int)size, file) != NULL)
		found = strncmp(line, name, strlen(name)) == 0;
	if (file != NULL)
		fclose(file);
	return found;
}

/*
 * Returns whether the thread is a worker of the kernel. Such a thread runs no code of the
 * program's, so it may keep its rights.
 */
static int is_kernel_worker(const char *thread)
{
	char line[200];
	return line_of(thread, "Name:\tiou-", line, sizeof line) && strchr(line + 10, '-') != NULL;
}

/* Returns the number of threads whose status has another line than `wanted`. */
static int threads_unlike(const char *wanted)
{
	char line[200], name[16];
	int count = 0;
	DIR *tasks = opendir("/proc/self/task");
	HOLDS(tasks != NULL);
	snprintf(name, sizeof name, "%.*s", (int)strcspn(wanted, "\t"), wanted);
	for (struct dirent *task; (task = readdir(tasks)) != NULL;)
		if (task->d_name[0] != '.' && line_of(task->d_name, name, line, sizeof line))
			count += strcmp(line, wanted) != 0 && !is_kernel_worker(task->d_name);
	closedir(tasks);
	return count;
}

static void only_threads_like(const char *wanted)
{
	long long end = milliseconds_now() + SECONDS * 1000;
	int left;
	while ((left = threads_unlike(wanted)) != 0 && milliseconds_now() < end)
		usleep(1000);
	if (left != 0) {
		char command[60];
		snprintf(command, sizeof command, "grep -E 'Name|Uid|CapEff' /proc/%d/task/*/status >&2", getpid());
		HOLDS(system(command) == 0);
	}
	EQUAL(left, 0);
}

struct busy {
	struct io_uring ring;
	char fifo[64];
};

/* Makes a ring, an idle worker, and a worker that waits for data from a pipe. */
static struct busy begin(void)
{
	struct busy busy = { .ring = new_ring(8, 0) };
	if (memory != 0) {
		char *bytes = malloc(memory);
		HOLDS(bytes != NULL);
		for (size_t at = 0; at < memory; at += 4096)
			bytes[at] = (char)at;
	}
	struct io_uring_sqe *sqe = request(&busy.ring);
	io_uring_prep_openat(sqe, AT_FDCWD, ".", O_DIRECTORY | O_RDONLY, 0);
	named(sqe, 1, IOSQE_ASYNC);
	EQUAL(io_uring_submit(&busy.ring), 1);
	HOLDS(answer_to(&busy.ring, 1).res >= 0);
	snprintf(busy.fifo, sizeof busy.fifo, "/tmp/dropped-rights-%d", getpid());
	EQUAL(mkfifo(busy.fifo, 0666), 0);
	EQUAL(chmod(busy.fifo, 0666), 0);
	sqe = request(&busy.ring);
	io_uring_prep_openat(sqe, AT_FDCWD, busy.fifo, O_RDONLY, 0);
	named(sqe, 2, IOSQE_ASYNC);
	EQUAL(io_uring_submit(&busy.ring), 1);
	return busy;
}

/* Completes the busy worker's request, so that the worker becomes idle. */
static void release(struct busy *busy)
{
	int writer = open(busy->fifo, O_WRONLY);
	HOLDS(writer >= 0);
	HOLDS(answer_to(&busy->ring, 2).res >= 0);
	close(writer);
}

static void in_child(void (*work)(void))
{
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		alarm(SECONDS_PER_CHECK);
		work();
		_exit(0);
	}
	int status;
	EQUAL(waitpid(child, &status, 0), child);
	char fifo[64];
	snprintf(fifo, sizeof fifo, "/tmp/dropped-rights-%d", child);
	unlink(fifo);
	HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static const char *const AS_NOBODY = "Uid:\t65534\t65534\t65534\t65534\n";

static void user(void)
{
	struct busy busy = begin();
	EQUAL(setgroups(0, NULL), 0);
	EQUAL(setresgid(NOBODY, NOBODY, NOBODY), 0);
	EQUAL(setresuid(NOBODY, NOBODY, NOBODY), 0);
	release(&busy);
	only_threads_like(AS_NOBODY);
	only_threads_like("Gid:\t65534\t65534\t65534\t65534\n");
	only_threads_like("CapEff:\t0000000000000000\n");
	only_threads_like("CapPrm:\t0000000000000000\n");
}

static void *waits(void *ring)
{
	struct io_uring_cqe *cqe;
	int answer;
	/* The signal that libc sends to each thread may end this wait. */
	while ((answer = io_uring_wait_cqe(ring, &cqe)) == -EINTR)
		;
	EQUAL(answer, 0);
	return (void *)(intptr_t)cqe->res;
}

/* libc changes the user of every thread, also of one that waits in a ring. */
static void user_of_a_waiting_thread(void)
{
	struct busy busy = begin();
	struct io_uring other = new_ring(8, 0);
	int ends[2];
	char byte;
	new_pipe(ends);
	struct io_uring_sqe *sqe = request(&other);
	io_uring_prep_read(sqe, ends[0], &byte, 1, 0);
	EQUAL(io_uring_submit(&other), 1);
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, waits, &other), 0);
	EQUAL(setresuid(NOBODY, NOBODY, NOBODY), 0);
	release(&busy);
	only_threads_like(AS_NOBODY);
	EQUAL(write(ends[1], "x", 1), 1);
	void *result;
	EQUAL(pthread_join(thread, &result), 0);
	EQUAL((intptr_t)result, 1);
}

static void capabilities(void)
{
	struct busy busy = begin();
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { { 0, 0, 0 }, { 0, 0, 0 } };
	EQUAL(syscall(SYS_capset, &header, none), 0);
	release(&busy);
	only_threads_like("CapEff:\t0000000000000000\n");
	only_threads_like("CapPrm:\t0000000000000000\n");
}

/* Changes the effective user id and changes it back. Then changes all user ids for good. */
static void user_for_a_while(void)
{
	struct busy busy = begin();
	for (int round = 0; round < 20; round++) {
		EQUAL(seteuid(NOBODY), 0);
		EQUAL(seteuid(0), 0);
	}
	EQUAL(setresuid(NOBODY, NOBODY, NOBODY), 0);
	release(&busy);
	only_threads_like(AS_NOBODY);
}

static void set_effective(int all)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct sets[2];
	EQUAL(syscall(SYS_capget, &header, sets), 0);
	for (int half = 0; half < 2; half++)
		sets[half].effective = all ? sets[half].permitted : 0;
	EQUAL(syscall(SYS_capset, &header, sets), 0);
}

/* Accepts a connection. For this, usring starts a watchdog thread, which ends seconds later. */
static void accept_one(struct io_uring *ring)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	EQUAL(bind(listener, (struct sockaddr *)&address, length), 0);
	EQUAL(listen(listener, 1), 0);
	EQUAL(getsockname(listener, (struct sockaddr *)&address, &length), 0);
	EQUAL(connect(client, (struct sockaddr *)&address, length), 0);
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_accept(sqe, listener, NULL, NULL, 0);
	named(sqe, 1, 0);
	EQUAL(io_uring_submit(ring), 1);
	HOLDS(answer_to(ring, 1).res >= 0);
}

/*
 * The process gives up its effective capabilities, takes them back, and changes its groups. When
 * setgroups(2) returns, every thread of the process must have the new groups.
 */
static void groups(void)
{
	static const gid_t few[] = { NOBODY };
	struct io_uring ring = new_ring(8, 0);
	accept_one(&ring);
	set_effective(0);
	set_effective(1);
	EQUAL(setgroups(1, few), 0);
	EQUAL(threads_unlike("Groups:\t65534 \n"), 0);
}

#define CHILD(work) static void in_child_##work(void) { in_child(work); }
CHILD(user)
CHILD(user_of_a_waiting_thread)
CHILD(capabilities)
CHILD(user_for_a_while)
CHILD(groups)

static const struct check checks[] = {
	{ "setresuid", in_child_user },
	{ "setresuid with a thread that waits", in_child_user_of_a_waiting_thread },
	{ "capset", in_child_capabilities },
	{ "seteuid to and fro", in_child_user_for_a_while },
	{ "setgroups", in_child_groups },
};

int main(int count, char **arguments)
{
	if (count > 1)
		memory = strtoull(arguments[1], NULL, 0) << 20;
	if (geteuid() != 0) {
		puts("needs a superuser");
		return 0;
	}
	return RUN(checks, 1, arguments);
}
