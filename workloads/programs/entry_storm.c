/*
 * Calls while a signal comes every 10 us. Each call must end, and must leave the signal mask as it
 * was. If usring started such a call again after each signal, the call would never end: preparing
 * it takes longer than the time between two signals.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <grp.h>
#include <linux/aio_abi.h>
#include <linux/capability.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

enum { EVERY_NS = 10000, ROUNDS = 20 };

static char *self;
static timer_t timer;
static volatile sig_atomic_t count;

static void note(int signal)
{
	(void)signal;
	count++;
}

/* The signal is SIGURG. By default it is ignored, so it does no harm in an executed program. */
static void begin_storm(void)
{
	struct sigaction action = { .sa_handler = note, .sa_flags = SA_RESTART };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGURG };
	struct itimerspec every = { { 0, EVERY_NS }, { 0, EVERY_NS } };
	count = 0;
	EQUAL(sigaction(SIGURG, &action, NULL), 0);
	EQUAL(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
	EQUAL(timer_settime(timer, 0, &every, NULL), 0);
}

static void end_storm(void)
{
	EQUAL(timer_delete(timer), 0);
	HOLDS(count > 0);
}

static int status_of(pid_t child)
{
	int status;
	HOLDS(child > 0);
	EQUAL(waitpid(child, &status, 0), child);
	return status;
}

/* The exit status says whether a signal is blocked. */
static int be_a_child(void)
{
	sigset_t mask;
	if (sigprocmask(SIG_BLOCK, NULL, &mask) != 0)
		return 10;
	for (int signal = 1; signal < 65; signal++)
		if (sigismember(&mask, signal) == 1)
			return 100 + signal;
	return 0;
}

/*
 * Makes a chain of scripts, as long as Linux allows. Each script is the interpreter of the next.
 * The chain and many environment variables make the work before an exec long.
 */
static const char *deep_script(void)
{
	static char path[64], above[4096];
	snprintf(above, sizeof above, "%s", self);
	for (int depth = 0; depth < 4; depth++) {
		snprintf(path, sizeof path, "/tmp/usring-storm-%d-%d", (int)getpid(), depth);
		FILE *file = fopen(path, "w");
		HOLDS(file != NULL);
		fprintf(file, "#!%s --child\n", above);
		EQUAL(fclose(file), 0);
		EQUAL(chmod(path, 0755), 0);
		snprintf(above, sizeof above, "%s", path);
	}
	return path;
}

static void remove_scripts(void)
{
	char path[64];
	for (int depth = 0; depth < 4; depth++) {
		snprintf(path, sizeof path, "/tmp/usring-storm-%d-%d", (int)getpid(), depth);
		unlink(path);
	}
}

static void an_exec_comes_to_its_end(void)
{
	enum { MANY = 3000 };
	static char texts[MANY][24], *variables[MANY + 1];
	for (int index = 0; index < MANY; index++) {
		snprintf(texts[index], sizeof texts[index], "VARIABLE_%d=%d", index, index);
		variables[index] = texts[index];
	}
	const char *script = deep_script();
	char *words[] = { "child", "--child", NULL };
	for (int round = 0; round < ROUNDS; round++) {
		pid_t child = fork();
		if (child == 0) {
			begin_storm();
			execve(round % 2 == 0 ? script : self, words, variables);
			_exit(9);
		}
		EQUAL(status_of(child), 0);
	}
	remove_scripts();
}

static void an_exec_that_fails_comes_back(void)
{
	char *words[] = { "child", NULL };
	char *volatile nowhere = (char *)16;
	begin_storm();
	for (int round = 0; round < ROUNDS; round++) {
		EQUAL(execve("/no/such/program", words, environ), -1);
		EQUAL(errno, ENOENT);
		EQUAL(execve(self, words, (char **)nowhere), -1);
		EQUAL(errno, EFAULT);
	}
	end_storm();
}

static sigjmp_buf place;

static void jump(int signal)
{
	if (++count % 64 == 0)
		siglongjmp(place, signal);
}

/* A handler jumps out of an exec. The exec must not leave any state behind. */
static void an_exec_may_be_left_by_a_jump(void)
{
	char *words[] = { "child", NULL };
	sigset_t mask;
	begin_storm();
	struct sigaction action = { .sa_handler = jump };
	static volatile int left;
	left = 0;
	if (sigsetjmp(place, 1) != 0)
		left++;
	else
		EQUAL(sigaction(SIGURG, &action, NULL), 0);
	while (left < ROUNDS)
		execve("/no/such/program", words, environ);
	end_storm();
	EQUAL(sigprocmask(SIG_BLOCK, NULL, &mask), 0);
	EQUAL(sigismember(&mask, SIGURG), 0);
	EQUAL(sigismember(&mask, SIGTERM), 0);
}

static void children_are_forked(void)
{
	/* In a run with swap, usring must bring this memory to a consistent state before a fork. */
	enum { SIZE = 8 << 20 };
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(memory != MAP_FAILED);
	memset(memory, 1, SIZE);
	begin_storm();
	for (int round = 0; round < ROUNDS; round++) {
		pid_t child = fork();
		if (child == 0)
			_exit(memory[round * 4096] == 1 ? be_a_child() : 9);
		EQUAL(status_of(child), 0);
	}
	end_storm();
	EQUAL(munmap(memory, SIZE), 0);
}

static void rings_come_and_go(void)
{
	static char buffers[16][4096];
	struct iovec vectors[16];
	int files[16];
	for (int index = 0; index < 16; index++) {
		vectors[index] = (struct iovec){ buffers[index], sizeof buffers[index] };
		files[index] = 0;
	}
	begin_storm();
	for (int round = 0; round < ROUNDS; round++) {
		struct io_uring ring = new_ring(64, 0);
		EQUAL(io_uring_register_buffers(&ring, vectors, 16), 0);
		EQUAL(io_uring_register_files(&ring, files, 16), 0);
		int other = dup(ring.ring_fd);
		HOLDS(other >= 0);
		EQUAL(dup2(ring.ring_fd, other), other);
		EQUAL(close(other), 0);
		for (unsigned index = 0; index < 64; index++)
			named(request(&ring), index, 0);
		int submitted = 0, seen = 0;
		while (submitted < 64) {
			int answer = io_uring_submit(&ring);
			HOLDS(answer >= 0 || answer == -EINTR);
			submitted += answer > 0 ? answer : 0;
		}
		while (seen < 64) {
			struct io_uring_cqe *cqe;
			int answer = io_uring_wait_cqe(&ring, &cqe);
			HOLDS(answer == 0 || answer == -EINTR);
			if (answer == 0) {
				io_uring_cqe_seen(&ring, cqe);
				seen++;
			}
		}
		io_uring_queue_exit(&ring);
	}
	end_storm();
}

static void contexts_come_and_go(void)
{
	int file = open("/dev/null", O_RDWR);
	char byte = 0;
	begin_storm();
	for (int round = 0; round < ROUNDS; round++) {
		aio_context_t context = 0;
		EQUAL(syscall(SYS_io_setup, 128, &context), 0);
		struct iocb block = { .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = file,
				      .aio_buf = (uintptr_t)&byte, .aio_nbytes = 1 };
		struct iocb *blocks[] = { &block };
		struct io_event event;
		EQUAL(syscall(SYS_io_submit, context, 1, blocks), 1);
		long got;
		do
			got = syscall(SYS_io_getevents, context, 1, 1, &event, NULL);
		while (got < 0 && errno == EINTR);
		EQUAL(got, 1);
		EQUAL(syscall(SYS_io_destroy, context), 0);
	}
	end_storm();
	close(file);
}

/* Opens a file by a worker. Returns the result, and closes the file. */
static int opened_by_a_worker(struct io_uring *ring, const char *path)
{
	struct io_uring_sqe *sqe = request(ring);
	struct io_uring_cqe *cqe;
	int answer;
	io_uring_prep_openat(sqe, AT_FDCWD, path, O_RDONLY, 0);
	named(sqe, 1, IOSQE_ASYNC);
	do
		answer = io_uring_submit(ring);
	while (answer == -EINTR);
	EQUAL(answer, 1);
	do
		answer = io_uring_wait_cqe(ring, &cqe);
	while (answer == -EINTR);
	EQUAL(answer, 0);
	answer = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	if (answer >= 0)
		EQUAL(close(answer), 0);
	return answer < 0 ? answer : 0;
}

static void *stay(void *unused)
{
	(void)unused;
	pause();
	return NULL;
}

/* Changes what a request may do, in a process with a second thread and a ring. */
static void change_rights(const char *secret)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];
	struct io_uring ring = new_ring(8, 0);
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, stay, NULL), 0);
	EQUAL(opened_by_a_worker(&ring, secret), 0);
	begin_storm();
	for (int round = 0; round < ROUNDS; round++) {
		umask(022);
		EQUAL(chdir(round % 2 == 0 ? "/tmp" : "/"), 0);
		EQUAL(opened_by_a_worker(&ring, round % 2 == 0 ? "etc" : "tmp"), round % 2 == 0 ? -ENOENT : 0);
		EQUAL(setresgid(-1, -1, -1), 0);
		EQUAL(syscall(SYS_setresuid, -1, -1, -1), 0);
		EQUAL(setfsuid(-1), (int)geteuid());
		EQUAL(syscall(SYS_capget, &header, data), 0);
		EQUAL(syscall(SYS_capset, &header, data), 0);
		EQUAL(opened_by_a_worker(&ring, secret), 0);
	}
	EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	if (geteuid() == 0) {
		EQUAL(setgroups(0, NULL), 0);
		EQUAL(setresgid(65534, 65534, 65534), 0);
		EQUAL(setresuid(65534, 65534, 65534), 0);
		EQUAL(opened_by_a_worker(&ring, secret), -EACCES);
	}
	end_storm();
}

static void rights_change(void)
{
	char secret[64];
	snprintf(secret, sizeof secret, "/tmp/usring-storm-%d-secret", (int)getpid());
	int file = open(secret, O_CREAT | O_EXCL | O_RDWR, 0600);
	HOLDS(file >= 0);
	EQUAL(close(file), 0);
	pid_t child = fork();
	if (child == 0) {
		change_rights(secret);
		_exit(be_a_child());
	}
	int status = status_of(child);
	unlink(secret);
	EQUAL(status, 0);
}

static const struct check checks[] = {
	{ "an exec comes to its end", an_exec_comes_to_its_end },
	{ "an exec that fails comes back", an_exec_that_fails_comes_back },
	{ "an exec may be left by a jump", an_exec_may_be_left_by_a_jump },
	{ "children are forked", children_are_forked },
	{ "rings come and go", rings_come_and_go },
	{ "contexts come and go", contexts_come_and_go },
	{ "rights change", rights_change },
};

int main(int count, char **arguments)
{
	static char path[4096];
	if (count > 1 && strcmp(arguments[1], "--child") == 0)
		return be_a_child();
	HOLDS(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
	self = path;
	return RUN(checks, count, arguments);
}
