/*
 * Children of a program with rings. A child may do anything to descriptors that it inherits or
 * borrows, without an effect on its parent. Every program that is started must be served, whatever
 * environment it gets.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

static struct io_uring ring;
static char *self;

static long enter(int descriptor)
{
	long answer = syscall(SYS_io_uring_enter, descriptor, 0, 0, 0, NULL, 0);
	return answer < 0 ? -errno : answer;
}

static void the_ring_lives(void)
{
	struct io_uring_cqe *cqe;
	io_uring_prep_nop(request(&ring));
	EQUAL(io_uring_submit_and_wait(&ring, 1), 1);
	EQUAL(io_uring_peek_cqe(&ring, &cqe), 0);
	io_uring_cqe_seen(&ring, cqe);
}

static int status_of(pid_t child)
{
	int status;
	HOLDS(child > 0);
	EQUAL(waitpid(child, &status, 0), child);
	return status;
}

/*
 * The code of an executed program: makes a ring, completes a request, and checks its signal mask.
 */
static int be_a_child(void)
{
	sigset_t mask;
	struct io_uring_cqe *cqe;
	struct io_uring mine;
	if (io_uring_queue_init(8, &mine, 0) != 0)
		return 10;
	io_uring_prep_nop(io_uring_get_sqe(&mine));
	if (io_uring_submit_and_wait(&mine, 1) != 1 || io_uring_peek_cqe(&mine, &cqe) != 0)
		return 11;
	io_uring_queue_exit(&mine);
	if (sigprocmask(SIG_BLOCK, NULL, &mask) != 0)
		return 12;
	for (int signal = 1; signal < 65; signal++)
		if (sigismember(&mask, signal) == 1)
			return 100 + signal;
	/* The environment must not contain a variable of usring's. */
	for (char **variable = environ; *variable != NULL; variable++)
		if (strstr(*variable, "usring") != NULL || strncmp(*variable, "LD_PRELOAD=", 11) != 0)
			return 13;
	return 0;
}

static char *child_words[] = { "child", "--child", NULL };
static char *no_variables[] = { NULL };

static void a_vfork_child_may_close_and_exec(void)
{
	ring = new_ring(8, 0);
	for (int round = 0; round < 3; round++) {
		pid_t child = vfork();
		if (child == 0) {
			close(ring.ring_fd);
			dup2(1, ring.ring_fd);
			execve(self, child_words, no_variables);
			_exit(9);
		}
		EQUAL(status_of(child), 0);
		the_ring_lives();
	}
	pid_t child = vfork();
	if (child == 0) {
		syscall(SYS_close_range, 3, ~0u, 0);
		_exit(3);
	}
	EQUAL(status_of(child), 3 << 8);
	the_ring_lives();
	io_uring_queue_exit(&ring);
}

static void a_spawned_child_may_close_descriptors(void)
{
	posix_spawn_file_actions_t actions;
	pid_t child;
	ring = new_ring(8, 0);
	EQUAL(posix_spawn_file_actions_init(&actions), 0);
	EQUAL(posix_spawn_file_actions_addclose(&actions, ring.ring_fd), 0);
	EQUAL(posix_spawn_file_actions_adddup2(&actions, 1, ring.ring_fd), 0);
	EQUAL(posix_spawn_file_actions_addclosefrom_np(&actions, 3), 0);
	EQUAL(posix_spawn(&child, self, &actions, NULL, child_words, no_variables), 0);
	EQUAL(status_of(child), 0);
	the_ring_lives();
	io_uring_queue_exit(&ring);
}

static void a_forked_child_may_close_its_copies(void)
{
	ring = new_ring(8, 0);
	pid_t child = fork();
	if (child == 0) {
		int low = dup(0);
		close(low);
		if (close(ring.ring_fd) != 0 || close(ring.ring_fd) != -1)
			_exit(1);
		for (int descriptor = 3; descriptor < 4096; descriptor++)
			close(descriptor);
		/* The child makes a ring of its own. */
		struct io_uring_cqe *cqe;
		struct io_uring mine;
		if (io_uring_queue_init(8, &mine, 0) != 0)
			_exit(2);
		io_uring_prep_nop(io_uring_get_sqe(&mine));
		if (io_uring_submit_and_wait(&mine, 1) != 1 || io_uring_peek_cqe(&mine, &cqe) != 0)
			_exit(3);
		_exit(7);
	}
	EQUAL(status_of(child), 7 << 8);
	the_ring_lives();
	/* Another forked child executes a program. */
	child = fork();
	if (child == 0) {
		execve(self, child_words, no_variables);
		_exit(9);
	}
	EQUAL(status_of(child), 0);
	the_ring_lives();
	io_uring_queue_exit(&ring);
}

static void a_forked_child_that_enters_comes_back(void)
{
	ring = new_ring(8, 0);
	pid_t child = fork();
	if (child == 0) {
		/* A call on an inherited ring may work or fail, but must not hang. */
		alarm(SECONDS_PER_CHECK);
		io_uring_prep_nop(io_uring_get_sqe(&ring));
		int submitted = io_uring_submit(&ring);
		_exit(submitted == 1 || submitted < 0 ? 5 : 6);
	}
	EQUAL(status_of(child), 5 << 8);
	io_uring_queue_exit(&ring);
}

static void a_child_does_not_keep_the_parents_files_open(void)
{
	int ends[2];
	char byte;
	struct io_uring_cqe *cqe;
	ring = new_ring(8, 0);
	/* The read ends when the writing end is closed. The child has no copy of that end. */
	EQUAL(pipe2(ends, O_CLOEXEC), 0);
	io_uring_prep_read(request(&ring), ends[0], &byte, 1, 0);
	EQUAL(io_uring_submit(&ring), 1);
	int signal_ends[2];
	EQUAL(pipe(signal_ends), 0);
	pid_t child = fork();
	if (child == 0) {
		close(ends[0]);
		close(ends[1]);
		close(signal_ends[1]);
		/* Sleeps until the parent has made its checks and kills this process. */
		alarm(SECONDS_PER_CHECK);
		_exit(read(signal_ends[0], &byte, 1) == 0 ? 0 : 1);
	}
	close(signal_ends[0]);
	close(ends[1]);
	EQUAL(io_uring_wait_cqe(&ring, &cqe), 0);
	EQUAL(cqe->res, 0);
	close(signal_ends[1]);
	EQUAL(status_of(child), 0);
	close(ends[0]);
	io_uring_queue_exit(&ring);
}

static void a_shells_child_is_served_without_environment(void)
{
	char line[4200];
	snprintf(line, sizeof line, "env -i %s --child", self);
	EQUAL(system(line), 0);
	snprintf(line, sizeof line, "env -i sh -c 'exec env -u PWD -u SHLVL -u OLDPWD -u _ %s --child'", self);
	EQUAL(system(line), 0);
	/* If the program preloads a library itself, that library must stay preloaded, too. */
	EQUAL(setenv("LD_PRELOAD", "libm.so.6", 1), 0);
	EQUAL(system("test \"$LD_PRELOAD\" = libm.so.6 && grep -q libm /proc/$$/maps"), 0);
	EQUAL(unsetenv("LD_PRELOAD"), 0);
	EQUAL(system("test -z \"$LD_PRELOAD\""), 0);
}

/*
 * If LD_PRELOAD occurs several times in the environment, glibc's loader uses the last one, musl's
 * the first. So every one of them must name usring's library.
 */
static void every_list_of_libraries_names_ours(void)
{
	static char first[] = "LD_PRELOAD=libm.so.6", middle[] = "LD_PRELOAD=", last[] = "LD_PRELOAD=libdl.so.2";
	char *lists[][4] = { { first, last, NULL }, { first, middle, last, NULL }, { middle, middle, NULL }, { last, middle, NULL } };
	for (size_t index = 0; index < sizeof lists / sizeof *lists; index++) {
		pid_t child;
		EQUAL(posix_spawn(&child, self, NULL, NULL, child_words, lists[index]), 0);
		EQUAL(status_of(child), 0);
	}
}

static void a_large_environment_goes_along(void)
{
	enum { MANY = 3000 };
	static char texts[MANY][24], *variables[MANY + 1];
	for (int index = 0; index < MANY; index++) {
		snprintf(texts[index], sizeof texts[index], "VARIABLE_%d=%d", index, index);
		variables[index] = texts[index];
	}
	char *words[] = { "sh", "-c", "test $VARIABLE_0 = 0 && test $VARIABLE_2999 = 2999", NULL };
	static const int counts[] = { 50, 62, 63, 64, 65, 500, 509, 510, 511, 512, 513, MANY };
	for (size_t index = 0; index < sizeof counts / sizeof *counts; index++) {
		char *last = variables[counts[index] - 1], *behind = variables[counts[index]];
		variables[counts[index] - 1] = "VARIABLE_2999=2999";
		variables[counts[index]] = NULL;
		pid_t child;
		EQUAL(posix_spawn(&child, "/bin/sh", NULL, NULL, words, variables), 0);
		EQUAL(status_of(child), 0);
		variables[counts[index] - 1] = last;
		variables[counts[index]] = behind;
	}
}

static void a_bad_environment_is_an_error(void)
{
	char *volatile nowhere = (char *)16;
	EQUAL(execve(self, child_words, (char **)nowhere), -1);
	EQUAL(errno, EFAULT);
	EQUAL(execve(nowhere, child_words, no_variables), -1);
	EQUAL(errno, EFAULT);
	EQUAL(execve("/no/such/program", child_words, no_variables), -1);
	EQUAL(errno, ENOENT);
	EQUAL(execve("/etc/passwd", child_words, no_variables), -1);
	EQUAL(errno, EACCES);
	/* Executes a program with NULL in place of the arrays of arguments and environment. */
	pid_t child = fork();
	if (child == 0) {
		execve(self, child_words, NULL);
		_exit(9);
	}
	EQUAL(status_of(child), 0);
}

static void a_descriptor_may_be_executed(void)
{
	pid_t child = fork();
	if (child == 0) {
		int file = open(self, O_RDONLY | O_CLOEXEC);
		fexecve(file, child_words, no_variables);
		_exit(9);
	}
	EQUAL(status_of(child), 0);
}

static void nothing(int signal)
{
	(void)signal;
}

/*
 * A timer's signal arrives while the child executes another program. The mask that usring sets
 * during the exec must not reach the new program, which checks its own mask. The signal is SIGURG:
 * it may also arrive in the new program, where it is ignored by default.
 */
static void signals_on_the_way_leave_no_mask(void)
{
	for (int round = 0; round < 200; round++) {
		pid_t child = fork();
		if (child == 0) {
			struct sigaction action = { .sa_handler = nothing };
			struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGURG };
			struct itimerspec every = { { 0, 15000 + round * 50 }, { 0, 15000 } };
			timer_t timer;
			sigaction(SIGURG, &action, NULL);
			timer_create(CLOCK_MONOTONIC, &event, &timer);
			timer_settime(timer, 0, &every, NULL);
			execve(self, child_words, no_variables);
			_exit(9);
		}
		EQUAL(status_of(child), 0);
	}
}

static atomic_int stop;

static void *make_rings(void *unused)
{
	while (!atomic_load(&stop)) {
		struct io_uring mine = new_ring(8, 0);
		io_uring_prep_nop(request(&mine));
		EQUAL(io_uring_submit_and_wait(&mine, 1), 1);
		io_uring_queue_exit(&mine);
	}
	return unused;
}

/* The process forks while another thread may hold any lock of usring's. */
static void a_fork_amid_other_threads_is_safe(void)
{
	pthread_t threads[2];
	atomic_store(&stop, 0);
	for (int index = 0; index < 2; index++)
		EQUAL(pthread_create(&threads[index], NULL, make_rings, NULL), 0);
	for (int round = 0; round < 100; round++) {
		pid_t child = fork();
		if (child == 0) {
			alarm(SECONDS_PER_CHECK);
			struct io_uring mine;
			if (io_uring_queue_init(8, &mine, 0) != 0)
				_exit(1);
			io_uring_prep_nop(io_uring_get_sqe(&mine));
			if (io_uring_submit_and_wait(&mine, 1) != 1)
				_exit(2);
			io_uring_queue_exit(&mine);
			_exit(0);
		}
		EQUAL(status_of(child), 0);
	}
	atomic_store(&stop, 1);
	for (int index = 0; index < 2; index++)
		EQUAL(pthread_join(threads[index], NULL), 0);
}

static void a_closed_descriptor_is_no_ring(void)
{
	ring = new_ring(8, 0);
	int descriptor = ring.ring_fd;
	io_uring_queue_exit(&ring);
	EQUAL(enter(descriptor), -EBADF);
	EQUAL(enter(0), -EOPNOTSUPP);
	EQUAL(enter(-1), -EBADF);
}

static const struct check checks[] = {
	{ "a vfork child may close and exec", a_vfork_child_may_close_and_exec },
	{ "a spawned child may close descriptors", a_spawned_child_may_close_descriptors },
	{ "a forked child may close its copies", a_forked_child_may_close_its_copies },
	{ "a forked child that enters comes back", a_forked_child_that_enters_comes_back },
	{ "a child does not keep the parent's files open", a_child_does_not_keep_the_parents_files_open },
	{ "a shell's child is served without environment", a_shells_child_is_served_without_environment },
	{ "every list of libraries names ours", every_list_of_libraries_names_ours },
	{ "a large environment goes along", a_large_environment_goes_along },
	{ "a bad environment is an error", a_bad_environment_is_an_error },
	{ "a descriptor may be executed", a_descriptor_may_be_executed },
	{ "signals on the way leave no mask", signals_on_the_way_leave_no_mask },
	{ "a fork amid other threads is safe", a_fork_amid_other_threads_is_safe },
	{ "a closed descriptor is no ring", a_closed_descriptor_is_no_ring },
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
