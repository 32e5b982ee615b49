/*
 * The program makes rings, and then installs a seccomp filter that denies a call that usring makes
 * for the program. Each request must end with its result or with an error, and none may hang.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void deny(int number, int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };
	EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	EQUAL(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program), 0);
}

/* This process's id, read before any call is denied. */
static pid_t self;

/* The errno that the filter answers. A request may end with it. */
static int denied;

/*
 * Returns whether a result is allowed: `wanted`, the filter's errno, EAGAIN or ENOMEM. EAGAIN and
 * ENOMEM mean that usring could not start a thread for the request.
 */
static int is_result(int result, int wanted)
{
	return result == wanted || result == -denied || result == -EAGAIN || result == -ENOMEM;
}

/* Submits one request. Returns whether it was accepted. */
static int is_submitted(struct io_uring *ring)
{
	int taken = io_uring_submit(ring);
	HOLDS(taken == 1 || taken == -denied);
	return taken == 1;
}

static void note(int signal)
{
	(void)signal;
}

/* Uses a ring as programs do: with files that wait, files that do not, timeouts and signals. */
static void use(struct io_uring *ring, int file, int ends[2])
{
	char byte = 0;
	struct __kernel_timespec moment = { .tv_nsec = 1000000 };
	struct io_uring_sqe *sqe;
	struct answer answer;

	sqe = request(ring);
	io_uring_prep_read(sqe, ends[0], &byte, 1, 0);
	named(sqe, 1, 0);
	if (!is_submitted(ring))
		return;
	EQUAL(write(ends[1], "x", 1), 1);
	answer = answer_to(ring, 1);
	HOLDS(is_result(answer.res, 1));
	if (answer.res < 0)
		EQUAL(read(ends[0], &byte, 1), 1);
	sqe = request(ring);
	io_uring_prep_write(sqe, file, &byte, 1, 0);
	named(sqe, 2, 0);
	if (is_submitted(ring))
		HOLDS(is_result(answer_to(ring, 2).res, 1));
	sqe = request(ring);
	io_uring_prep_timeout(sqe, &moment, 0, 0);
	named(sqe, 3, 0);
	if (is_submitted(ring))
		HOLDS(is_result(answer_to(ring, 3).res, -ETIME));
	/* This request needs a worker. */
	sqe = request(ring);
	io_uring_prep_fsync(sqe, file, 0);
	named(sqe, 4, 0);
	if (is_submitted(ring))
		HOLDS(is_result(answer_to(ring, 4).res, 0));
	sqe = request(ring);
	io_uring_prep_poll_add(sqe, ends[0], POLLIN);
	named(sqe, 5, 0);
	if (is_submitted(ring)) {
		/* No thread is inside the ring, so only the ring watcher can see this write. */
		EQUAL(write(ends[1], "x", 1), 1);
		while (io_uring_cq_ready(ring) == 0)
			look_again();
		answer = answer_to(ring, 5);
		HOLDS(is_result(answer.res > 0 ? answer.res & POLLIN : answer.res, POLLIN));
		EQUAL(read(ends[0], &byte, 1), 1);
	}
	/* A signal ends a wait. */
	sqe = request(ring);
	io_uring_prep_nop(sqe);
	named(sqe, 6, 0);
	EQUAL(kill(self, SIGUSR1), 0);
	if (is_submitted(ring))
		EQUAL(answer_to(ring, 6).res, 0);
}

static void without(int number, int error)
{
	pid_t child = fork();
	if (child == 0) {
		alarm(SECONDS_PER_CHECK / 4);
		struct sigaction action = { .sa_handler = note };
		int ends[2], file = open(".", O_TMPFILE | O_RDWR, 0600);
		HOLDS(file >= 0);
		EQUAL(pipe(ends), 0);
		EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
		struct io_uring ring = new_ring(8, 0);
		self = getpid();
		HOLDS(self > 0);
		denied = error;
		deny(number, error);
		use(&ring, file, ends);
		/* After the filter, a new ring must work, or its setup must fail. */
		struct io_uring later;
		if (io_uring_queue_init(8, &later, 0) == 0) {
			use(&later, file, ends);
			io_uring_queue_exit(&later);
		}
		io_uring_queue_exit(&ring);
		exit(0);
	}
	int status;
	HOLDS(child > 0);
	EQUAL(waitpid(child, &status, 0), child);
	if (status != 0)
		printf("without call %d, error %d: status %#x\n", number, error, status), exit(1);
}

/* The calls that usring makes for a ring. Those that this program makes itself are left out. */
static const int of_files[] = { SYS_preadv2, SYS_pwritev2, SYS_readv, SYS_writev, SYS_preadv, SYS_pwritev,
				SYS_fcntl, SYS_close, SYS_dup, SYS_lseek, SYS_newfstatat, SYS_fstat,
				SYS_statx, SYS_fstatfs, SYS_ioctl, SYS_openat, SYS_getdents64, SYS_io_setup,
				SYS_io_submit, SYS_io_getevents, SYS_io_pgetevents, SYS_io_destroy, SYS_fsync,
				SYS_readlinkat, SYS_kcmp };
static const int of_waits[] = { SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2,
				SYS_poll, SYS_ppoll, SYS_timerfd_create, SYS_timerfd_settime, SYS_futex,
				SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_sched_yield, SYS_pidfd_open };
static const int of_memory[] = { SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_membarrier };
static const int of_threads[] = { SYS_clone, SYS_prctl, SYS_gettid, SYS_getpid, SYS_tgkill, SYS_rt_sigprocmask,
				  SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_sched_getaffinity,
				  SYS_sched_setaffinity, SYS_prlimit64, SYS_getrlimit, SYS_setrlimit,
				  SYS_set_tid_address, SYS_unshare, SYS_getuid, SYS_capget };

#define WITHOUT(calls)                                                              \
	static void without_##calls(void)                                           \
	{                                                                           \
		for (size_t index = 0; index < sizeof calls / sizeof *calls; index++) { \
			without(calls[index], EPERM);                               \
			without(calls[index], ENOSYS);                              \
		}                                                                   \
	}
WITHOUT(of_files)
WITHOUT(of_waits)
WITHOUT(of_memory)
WITHOUT(of_threads)

static const struct check checks[] = {
	{ "without a call on files", without_of_files },
	{ "without a call that waits", without_of_waits },
	{ "without a call on memory", without_of_memory },
	{ "without a call on threads", without_of_threads },
};

int main(int count, char **arguments)
{
	if (count == 3) {
		/* For use by hand: argv[1] is the number of the call to deny, argv[2] the errno. */
		without(atoi(arguments[1]), atoi(arguments[2]));
		return 0;
	}
	return RUN(checks, count, arguments);
}
