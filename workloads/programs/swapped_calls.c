/*
 * A program that knows nothing of swap. It makes system calls whose arguments point to structures
 * that name further memory, and calls that signals end. All of them use ordinary mappings, most of
 * which are evicted.
 *
 * - argv[1]: bytes of the memory in MiB.
 */
#define _GNU_SOURCE
#include "swapped.h"
#include <fcntl.h>
#include <linux/fs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>

/* Of eight messages, one has no memory. The calls move the messages before that one. */
static void messages_without_memory(struct mmsghdr *all, struct iovec *vectors, unsigned char *texts)
{
	enum { MANY = 8, BAD_SENT = 7, BAD_RECEIVED = 2, BYTES = 5000 };
	int pair[2];
	HOLDS(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	for (int each = 0; each < MANY; each++) {
		pattern(texts + each * BYTES, BYTES, each);
		vectors[each] = (struct iovec){ texts + each * BYTES, BYTES };
		all[each] = (struct mmsghdr){ .msg_hdr = { .msg_iov = vectors + each, .msg_iovlen = 1 } };
	}
	void *nothing = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(nothing != MAP_FAILED);
	vectors[BAD_SENT].iov_base = nothing;
	evict();
	HOLDS(sendmmsg(pair[0], all + BAD_SENT, 1, 0) == -1 && errno == EFAULT);
	HOLDS(sendmmsg(pair[0], all, MANY, 0) == BAD_SENT && all[BAD_SENT - 1].msg_len == BYTES);
	memset(texts, 0, BAD_SENT * BYTES);
	vectors[BAD_RECEIVED].iov_base = nothing;
	evict();
	HOLDS(recvmmsg(pair[1], all, BAD_SENT, MSG_DONTWAIT, NULL) == BAD_RECEIVED);
	for (int each = 0; each < BAD_RECEIVED; each++)
		HOLDS(all[each].msg_len == BYTES && matches(texts + each * BYTES, BYTES, each));
	munmap(nothing, BYTES);
	close(pair[0]);
	close(pair[1]);
}

static void messages(void)
{
	int pair[2];
	HOLDS(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
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
	HOLDS(sendmsg(pair[0], message, 0) == 100000);
	memset(bytes, 0, 100000);
	memset(control, 0, sizeof *control);
	message->msg_flags = -1;
	vector->iov_len = 60000;
	evict();
	HOLDS(recvmsg(pair[1], message, 0) == 60000 && message->msg_flags == MSG_TRUNC);
	HOLDS(message->msg_controllen == CMSG_SPACE(sizeof(int)) && control->header.cmsg_type == SCM_RIGHTS);
	int received;
	memcpy(&received, CMSG_DATA(&control->header), sizeof received);
	HOLDS(fcntl(received, F_GETFD) >= 0 && matches(bytes, 60000, 9));
	close(received);
	/* Receives several messages of different lengths by one call. */
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
	HOLDS(sendmmsg(pair[0], all, MANY, 0) == MANY);
	memset(texts, 0, MANY * 5000);
	for (int each = 0; each < MANY; each++) {
		HOLDS(all[each].msg_len == 1000U + each * 100);
		all[each].msg_len = 0;
		vectors[each].iov_len = 5000;
	}
	evict();
	struct timespec *limit = out(sizeof *limit);
	*limit = (struct timespec){ 10, 0 };
	HOLDS(recvmmsg(pair[1], all, MANY, 0, limit) == MANY);
	for (int each = 0; each < MANY; each++)
		HOLDS(all[each].msg_len == 1000U + each * 100 && matches(texts + each * 5000, 1000 + each * 100, each));
	close(pair[0]);
	close(pair[1]);
	messages_without_memory(all, vectors, texts);
	/*
	 * Receives with more room than the message needs, and with the sender's address. Sets
	 * options whose values are in swapped memory.
	 */
	int one = socket(AF_INET, SOCK_DGRAM, 0), other = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in *address = out(sizeof *address);
	socklen_t *size = out(sizeof *size);
	memset(address, 0, sizeof *address);
	address->sin_family = AF_INET;
	address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	HOLDS(bind(one, (struct sockaddr *)address, sizeof *address) == 0);
	*size = sizeof *address;
	evict();
	HOLDS(getsockname(one, (struct sockaddr *)address, size) == 0 && *size == sizeof *address);
	in_port_t port = address->sin_port;
	pattern(bytes, 60000, 3);
	evict();
	HOLDS(sendto(other, bytes, 60000, 0, (struct sockaddr *)address, sizeof *address) == 60000);
	memset(bytes, 0, 60000);
	memset(address, 0, sizeof *address);
	evict();
	HOLDS(recvfrom(one, bytes, 100000, 0, (struct sockaddr *)address, size) == 60000 && matches(bytes, 60000, 3));
	HOLDS(address->sin_family == AF_INET && address->sin_port != port);
	int *option = out(sizeof *option);
	*option = 1;
	*size = sizeof *option;
	evict();
	HOLDS(setsockopt(one, SOL_SOCKET, SO_REUSEADDR, option, sizeof *option) == 0);
	*option = 0;
	evict();
	HOLDS(getsockopt(one, SOL_SOCKET, SO_REUSEADDR, option, size) == 0 && *option == 1);
	/* A structure that names a buffer. */
	struct ifconf *interfaces = out(sizeof *interfaces);
	*interfaces = (struct ifconf){ .ifc_len = 20000, .ifc_buf = out(20000) };
	evict();
	HOLDS(ioctl(one, SIOCGIFCONF, interfaces) == 0 && interfaces->ifc_len >= (int)sizeof(struct ifreq));
	struct ifconf outside = { .ifc_len = 20000, .ifc_buf = out(20000) };
	evict();
	HOLDS(ioctl(one, SIOCGIFCONF, &outside) == 0 && outside.ifc_len == interfaces->ifc_len);
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
		HOLDS(msgsnd(queue, sent, 8192, 0) == 0);
		evict();
		HOLDS(msgrcv(queue, got, 8192, 0, 0) == 8192 && got->type == 3 && matches(got->text, 8192, 4));
		struct msqid_ds *status = out(sizeof *status);
		evict();
		HOLDS(msgctl(queue, IPC_STAT, status) == 0 && status->msg_qnum == 0);
		HOLDS(msgctl(queue, IPC_RMID, NULL) == 0);
	}
	int set = semget(IPC_PRIVATE, 200, 0600);
	if (set >= 0) {
		unsigned short *values = out(400);
		for (int each = 0; each < 200; each++)
			values[each] = each;
		evict();
		HOLDS(semctl(set, 0, SETALL, values) == 0 && semctl(set, 77, GETVAL) == 77);
		HOLDS(semctl(set, 0, IPC_RMID) == 0);
	}
}

static void lists(void)
{
	unsigned char *vec = out(30000);
	void *other = mmap(NULL, 30000 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	HOLDS(other != MAP_FAILED);
	memset(vec, 0xff, 30000);
	evict();
	HOLDS(mincore(other, 30000 * PAGE, vec) == 0 && vec[0] == 0 && vec[29999] == 0);
	HOLDS(munmap(other, 30000 * PAGE) == 0);
	enum { MANY = 4000 };
	int event = eventfd(0, 0);
	struct pollfd *polled = out(MANY * sizeof *polled);
	for (int each = 0; each < MANY; each++)
		polled[each] = (struct pollfd){ .fd = -1 };
	polled[MANY - 1] = (struct pollfd){ .fd = event, .events = POLLOUT };
	evict();
	struct rlimit { unsigned long now, most; } many = { MANY, MANY };
	syscall(SYS_prlimit64, 0, 7, &many, NULL);
	HOLDS(poll(polled, MANY, 1000) == 1 && polled[MANY - 1].revents == POLLOUT);
	/*
	 * Reads of eventfd, inotify and signalfd. Each read returns one message, although the
	 * buffer is larger.
	 */
	uint64_t *counter = out(100000);
	HOLDS(write(event, &(uint64_t){ 5 }, 8) == 8);
	evict();
	HOLDS(read(event, counter, 100000) == 8 && *counter == 5);
	close(event);
	int watch = inotify_init1(0);
	char *name = out(PAGE);
	strcpy(name, "/tmp");
	evict();
	HOLDS(inotify_add_watch(watch, name, IN_CREATE) >= 0);
	char made[] = "/tmp/swapped-calls-XXXXXX";
	close(mkstemp(made));
	struct inotify_event *notice = out(100000);
	evict();
	HOLDS(read(watch, notice, 100000) > (ssize_t)sizeof *notice && notice->mask & IN_CREATE);
	close(watch);
	sigset_t *signals = out(sizeof *signals);
	sigemptyset(signals);
	sigaddset(signals, SIGUSR1);
	evict();
	HOLDS(sigprocmask(SIG_BLOCK, signals, NULL) == 0);
	int descriptor = signalfd(-1, signals, 0);
	HOLDS(descriptor >= 0 && raise(SIGUSR1) == 0);
	struct signalfd_siginfo *information = out(100000);
	evict();
	HOLDS(read(descriptor, information, 100000) == sizeof *information && information->ssi_signo == SIGUSR1);
	close(descriptor);
	siginfo_t *taken = out(sizeof *taken);
	struct timespec *limit = out(sizeof *limit);
	HOLDS(raise(SIGUSR1) == 0);
	*limit = (struct timespec){ 10, 0 };
	evict();
	HOLDS(sigtimedwait(signals, taken, limit) == SIGUSR1 && taken->si_signo == SIGUSR1);
	fd_set *sets = out(2 * sizeof *sets);
	struct timeval *time = out(sizeof *time);
	FD_ZERO(sets);
	FD_SET(1, sets);
	*time = (struct timeval){ 10, 0 };
	evict();
	HOLDS(select(2, NULL, sets, NULL, time) == 1 && FD_ISSET(1, sets));
	/* process_vm_readv(2) on this process's own memory. */
	struct iovec *here = out(sizeof *here), *there = out(sizeof *there);
	unsigned char *from = out(50000), *to = out(50000);
	pattern(from, 50000, 8);
	*here = (struct iovec){ to, 50000 };
	*there = (struct iovec){ from, 50000 };
	evict();
	HOLDS(process_vm_readv(getpid(), here, 1, there, 1, 0) == 50000 && matches(to, 50000, 8));
	/*
	 * mprotect(2) makes usring release a page of this memory to the kernel, if the mechanism
	 * can do that. The calls below use this page and swapped memory around it.
	 */
	unsigned char *mixed = memory + length / 2;
	pattern(mixed, 12 * PAGE, 2);
	evict();
	HOLDS(mprotect(mixed + 4 * PAGE, PAGE, PROT_READ) == 0 || errno == ENOMEM);
	int file = open(made, O_RDWR);
	evict();
	HOLDS(write(file, mixed, 12 * PAGE) == 12 * PAGE);
	HOLDS(mprotect(mixed + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
	memset(mixed, 0, 12 * PAGE);
	evict();
	HOLDS(pread(file, mixed, 12 * PAGE, 0) == 12 * PAGE && matches(mixed, 12 * PAGE, 2));
	struct stat *status = (struct stat *)(mixed + 5 * PAGE - 64);
	evict();
	HOLDS(fstat(file, status) == 0 && status->st_size == 12 * (off_t)PAGE);
	/*
	 * The dynamic loader writes its messages by writev(2) to descriptor 2. A program's own call
	 * of this form must work, too.
	 */
	int kept = dup(2);
	HOLDS(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0 && dup2(file, 2) == 2);
	struct iovec outside = { from, 50000 };
	evict();
	ssize_t said = writev(2, &outside, 1);
	HOLDS(dup2(kept, 2) == 2 && said == 50000 && close(kept) == 0);
	memset(from, 0, 50000);
	evict();
	HOLDS(pread(file, from, 50000, 0) == 50000 && matches(from, 50000, 8));
	close(file);
	strcpy(name, made);
	evict();
	HOLDS(unlink(name) == 0);
}

static sigjmp_buf before;

static void leave(int signal)
{
	(void)signal;
	siglongjmp(before, 1);
}

static void ignore(int signal) { (void)signal; }

/* Calls that do not return, or that return in an unusual way. */
static void interrupted(void)
{
	int pair[2];
	HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	struct sigaction action = { .sa_handler = leave }, old;
	HOLDS(sigaction(SIGALRM, &action, &old) == 0);
	struct itimerval soon = { .it_value = { 0, 300 } };
	volatile unsigned left = 0;
	for (volatile unsigned round = 0; round < 3000; round++) {
		if (sigsetjmp(before, 1) == 0) {
			size_t bytes = round % 2 ? 100000 : 4000;
			unsigned char *into = memory + round * 37 % (length / PAGE - 30) * PAGE;
			setitimer(ITIMER_REAL, &soon, NULL);
			HOLDS(read(pair[1], into, bytes) == -1 && errno == EINTR);
		} else {
			left++;
		}
	}
	setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
	HOLDS(left > 2900);
	/* A signal ends a write that waits: the result is the number of bytes written so far. */
	action.sa_handler = ignore;
	HOLDS(sigaction(SIGALRM, &action, NULL) == 0);
	unsigned char *bytes = out(3 * MIB);
	for (int round = 0; round < 6; round++) {
		evict();
		struct itimerval ticks = { { 0, 20000 }, { 0, 20000 } };
		setitimer(ITIMER_REAL, &ticks, NULL);
		ssize_t written = write(pair[0], bytes, 3 * MIB);
		setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
		HOLDS(written < (ssize_t)(3 * MIB) && (written > 0 || errno == EINTR));
		int waiting = 0;
		HOLDS(ioctl(pair[1], FIONREAD, &waiting) == 0 && waiting > 0);
		while (recv(pair[1], bytes, MIB, MSG_DONTWAIT) > 0)
			;
	}
	HOLDS(sigaction(SIGALRM, &old, NULL) == 0);
	close(pair[0]);
	close(pair[1]);
}

/* Executes programs whose strings are all in the memory. */
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
		HOLDS(posix_spawn(&child, path, NULL, NULL, arguments, environment) == 0);
		int *status = out(sizeof *status);
		evict();
		HOLDS(waitpid(child, status, 0) == child && WIFEXITED(*status) && WEXITSTATUS(*status) == 7);
	}
}

int main(int count, char **arguments)
{
	static const struct check checks[] = {
		{ "messages", messages },
		{ "lists", lists },
		{ "programs", programs },
		{ "interrupted", interrupted },
	};
	make_memory(count > 1 ? atoi(arguments[1]) : 16);
	return run_checks(checks, sizeof checks / sizeof *checks, NULL);
}
