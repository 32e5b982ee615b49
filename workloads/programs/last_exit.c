/*
 * A process with a ring whose threads end by the system call exit(2), which libc does not see. The
 * process must end with its last thread, as it does without usring.
 *
 * argv[1] selects how the threads end. argv[2], if given, names what the kernel seems to lack:
 * `pidfd_open`, `thread` or `status`. For that the program installs a seccomp filter before it
 * makes the ring.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STATUS = 7, FAILURE = 1, WORKERS = 32 };

/* linux/pidfd.h, which libc's headers may lack. */
enum { PIDFD_THREAD = O_EXCL };
#define PIDFD_GET_INFO 0xc040ff0bu

static struct io_uring ring;

static int ring_is_made(void)
{
	return io_uring_queue_init(WORKERS, &ring, 0) == 0;
}

/*
 * Makes the call `number` answer `error` if its second argument is `argument`. Threads that are
 * made later get this answer, too.
 */
static void deny(int number, unsigned argument, int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, argument, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0)
		_exit(6);
}

static void *ends_later(void *nothing)
{
	(void)nothing;
	usleep(20000);
	syscall(SYS_exit, STATUS);
	return NULL;
}

static void another_thread(void *(*function)(void *))
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, function, NULL) != 0)
		_exit(3);
}

/* The first thread is the last one to end. */
static void first_thread(void)
{
	another_thread(ends_later);
	usleep(60000);
	syscall(SYS_exit, STATUS);
}

/* Another thread than the first is the last one to end. */
static void other_thread(void)
{
	another_thread(ends_later);
	another_thread(ends_later);
	syscall(SYS_exit, STATUS);
}

/* The last thread ends by libc's function, after all others have ended by the system call. */
static void by_libc(void)
{
	another_thread(ends_later);
	usleep(60000);
	exit(STATUS);
}

static void alone(void)
{
	syscall(SYS_exit, STATUS);
}

/* The only thread of a child ends by the system call. The child was made without libc. */
static void cloned_child(void)
{
	int status;
	pid_t child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (child == 0) {
		alarm(30);
		if (!ring_is_made())
			_exit(1);
		syscall(SYS_exit, STATUS);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		_exit(4);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 5);
}

static int opens_under_way(void)
{
	for (int i = 0; i < WORKERS; i++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
		io_uring_prep_openat(sqe, AT_FDCWD, ".", O_DIRECTORY | O_RDONLY, 0);
		io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
	}
	return io_uring_submit(&ring) == WORKERS;
}

/*
 * The last thread ends together with threads that serve the ring: when the rights of the program's
 * threads change, idle workers end. (The kernel's own workers count as threads of the process. So
 * on the kernel the process's status may be a worker's.)
 */
static void *ends_with_workers(void *nothing)
{
	struct io_uring_cqe *cqe;

	(void)nothing;
	if (!opens_under_way() || io_uring_wait_cqe_nr(&ring, &cqe, WORKERS) != 0)
		_exit(8);
	/* usring sees the first thread's end meanwhile, and watches this thread. */
	sleep(3);
	syscall(SYS_setfsuid, 65534);
	syscall(SYS_exit, STATUS);
	return NULL;
}

static void beside_workers(void)
{
	another_thread(ends_with_workers);
	syscall(SYS_exit, STATUS);
}

static void *ends_much_later(void *nothing)
{
	(void)nothing;
	sleep(3);
	syscall(SYS_exit, STATUS);
	return NULL;
}

/* The first thread fails. usring sees its end long before the last thread ends. */
static void long_after_the_first(void)
{
	another_thread(ends_much_later);
	syscall(SYS_exit, FAILURE);
}

/* The first thread succeeds, and the last thread fails much later. */
static void long_after_a_success(void)
{
	another_thread(ends_much_later);
	syscall(SYS_exit, 0);
}

int main(int count, char **arguments)
{
	static void (*const ways[])(void) = { alone,	     first_thread,	   other_thread,   by_libc,
					      cloned_child,  long_after_the_first, beside_workers, long_after_a_success };
	const char *missing = count > 2 ? arguments[2] : "";

	alarm(30);
	if (strcmp(missing, "pidfd_open") == 0)
		deny(SYS_pidfd_open, PIDFD_THREAD, EINVAL);
	/*
	 * Simulates that each thread ends after usring has found it, and before usring has opened
	 * its pidfd.
	 */
	if (strcmp(missing, "thread") == 0)
		deny(SYS_pidfd_open, PIDFD_THREAD, ESRCH);
	if (strcmp(missing, "status") == 0)
		deny(SYS_ioctl, PIDFD_GET_INFO, ENOTTY);
	if (!ring_is_made())
		return 1;
	ways[count > 1 ? atoi(arguments[1]) : 0]();
}
