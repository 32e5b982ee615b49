/*
 * A program that forks and has no code for swap. Parents and children change memory at the same
 * addresses, each in its own copy, and print the results. Under `usring run --swap` most of this
 * memory is evicted when they fork. The output must be the same with and without swap.
 *
 * - argv[1]: bytes of the memory in MiB;
 * - argv[2]: if there is one, only the check of children that do not inherit the memory runs.
 */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

extern char **environ;
static size_t pages;
static volatile uint64_t *memory;
#define WORDS 512
#define AT(page) memory[(page) * WORDS + (page) % WORDS]

static void check(const char *where, uint64_t plus) {
	running = where;
	for (size_t page = 0; page < pages; page++) EQUAL(AT(page), page * 7 + plus);
}
static void add(uint64_t what) { for (size_t page = 0; page < pages; page++) AT(page) += what; }
static void wait_for(pid_t child, int want, const char *what) {
	int status;
	running = what;
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, want << 8);
	printf("%s\n", what);
	fflush(stdout);
}

static void both_sides(void) {
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		check("child at first", 0);
		add(1000);
		check("child", 1000);
		add(1000);
		check("child again", 2000);
		_exit(5);
	}
	add(1);
	check("parent", 1);
	wait_for(child, 5, "both sides");
	check("parent afterwards", 1);
	add(-1);
}

static void nested(int depth, uint64_t plus) {
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		add(10);
		plus += 10;
		if (depth > 1) nested(depth - 1, plus);
		check("nested", plus);
		_exit(depth);
	}
	check("nested parent", plus);
	wait_for(child, depth, "nested");
}

static atomic_int stop;
static atomic_ullong rounds;
static void *faults(void *argument) {
	uint64_t state = (uintptr_t)argument + 1, sum = 0;
	size_t own = pages / 8, first = (uintptr_t)argument * own;
	while (!atomic_load(&stop)) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		size_t page = first + (state >> 33) % own;
		AT(page) ^= 0x8000000000000000u;
		AT(page) ^= 0x8000000000000000u;
		sum += AT(page);
		atomic_fetch_add(&rounds, 1);
	}
	return (void *)sum;
}
static void fork_while_threads_fault(void) {
	pthread_t threads[8];
	for (uintptr_t index = 0; index < 8; index++)
		EQUAL(pthread_create(&threads[index], NULL, faults, (void *)index), 0);
	for (int round = 0; round < 6; round++) {
		unsigned long long before = atomic_load(&rounds);
		while (atomic_load(&rounds) < before + 2000) sched_yield();
		pid_t child = fork();
		HOLDS(child >= 0);
		if (child == 0) {
			for (size_t page = 0; page < pages; page++)
				AT(page) &= ~0x8000000000000000u;
			check("child of a process with threads", 0);
			add(3);
			check("child of a process with threads again", 3);
			_exit(6);
		}
		wait_for(child, 6, "while threads fault");
	}
	atomic_store(&stop, 1);
	for (int index = 0; index < 8; index++) pthread_join(threads[index], NULL);
	check("after the threads", 0);
}

/*
 * A thread increments three counters, always in this order: two in swapped memory, and `counted`
 * elsewhere. In a child's copy each counter may be ahead of the next, but the first one may be
 * ahead of the last one by at most 1.
 */
static volatile uint64_t counted;
static void *counts(void *argument) {
	volatile uint64_t *first = &AT(pages - 2), *second = &AT(3);
	for (counted = 0; !atomic_load(&stop); counted++) { ++*first; ++*second; }
	return argument;
}
static void child_has_all_of_one_moment(void) {
	uint64_t first = AT(pages - 2), second = AT(3);
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, counts, NULL), 0);
	for (int round = 0; round < 40; round++) {
		uint64_t before = counted;
		while (counted < before + 1000) sched_yield();
		pid_t child = fork();
		HOLDS(child >= 0);
		if (child == 0) {
			uint64_t one = AT(pages - 2) - first, two = AT(3) - second, three = counted;
			HOLDS(one >= two && two >= three && one <= three + 1);
			_exit(18);
		}
		int status;
		HOLDS(waitpid(child, &status, 0) == child && status == 18 << 8);
	}
	atomic_store(&stop, 1);
	pthread_join(thread, NULL);
	atomic_store(&stop, 0);
	AT(pages - 2) = first;
	AT(3) = second;
	printf("all of one moment\n");
}

static void child_execs(void) {
	for (int round = 0; round < 3; round++) {
		pid_t child = fork();
		if (child == 0) { execl("/bin/true", "true", (char *)NULL); _exit(96); }
		wait_for(child, 0, "exec at once");
		child = fork();
		if (child == 0) _exit(7);
		wait_for(child, 7, "exit at once");
	}
	pid_t child = vfork();
	if (child == 0) { execl("/bin/true", "true", (char *)NULL); _exit(96); }
	wait_for(child, 0, "vfork");
	char *arguments[] = {"true", NULL};
	EQUAL(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ), 0);
	wait_for(child, 0, "posix_spawn");
	int answer = system("exit 3");
	printf("system %d\n", WEXITSTATUS(answer));
	check("after exec", 0);
}

static void child_outlives_parent(void) {
	int ends[2];
	EQUAL(pipe(ends), 0);
	pid_t child = fork();
	if (child == 0) {
		int gone[2];
		EQUAL(pipe(gone), 0);
		pid_t grandchild = fork();
		if (grandchild == 0) {
			close(gone[1]);
			char byte;
			while (read(gone[0], &byte, 1) > 0) {}
			check("grandchild", 0);
			add(9);
			check("grandchild again", 9);
			HOLDS(write(ends[1], "fine", 4) == 4);
			_exit(0);
		}
		close(gone[0]);
		add(1);
		check("child that goes first", 1);
		_exit(8);
	}
	wait_for(child, 8, "child goes first");
	close(ends[1]);
	add(2);
	char said[5] = "";
	for (size_t got = 0; got < 4;) {
		ssize_t count = read(ends[0], said + got, 4 - got);
		if (count <= 0) break;
		got += count;
	}
	printf("grandchild says %s\n", said);
	check("after the grandchild", 2);
	add(-2);
}

static void system_calls(void) {
	pid_t child = fork();
	if (child == 0) {
		int ends[2];
		EQUAL(pipe(ends), 0);
		size_t bytes = 32768, page = pages / 3;
		char *from = (char *)memory + page * 4096, *to = (char *)memory + (pages / 2) * 4096, *copy = malloc(bytes);
		HOLDS(write(ends[1], from, bytes) == (ssize_t)bytes);
		HOLDS(read(ends[0], to, bytes) == (ssize_t)bytes);
		memcpy(copy, from, bytes);
		HOLDS(memcmp(copy, to, bytes) == 0);
		char *fresh = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (size_t at = 0; at < 8 << 20; at += 4096) HOLDS(fresh[at] == 0);
		memset(fresh, 7, 8 << 20);
		munmap(fresh, 8 << 20);
		munmap((void *)memory, pages * 4096 / 2);
		_exit(4);
	}
	wait_for(child, 4, "system calls");
	check("after system calls", 0);
}

static void many_children(void) {
	pid_t children[12];
	for (int index = 0; index < 12; index++) {
		children[index] = fork();
		if (children[index] == 0) {
			check("one of many", index);
			add(100);
			check("one of many again", index + 100);
			_exit(index);
		}
		add(1);
		if (index == 5) { kill(children[0], SIGKILL); }
	}
	for (int index = 1; index < 12; index++) wait_for(children[index], index, "one of many");
	int status;
	waitpid(children[0], &status, 0);
	check("after many", 12);
	add(-12);
}

/*
 * Writes a string into a page of swapped memory, beside the page's other content. Returns the
 * string's address.
 */
static char *text_at(size_t page, const char *text) {
	char *place = (char *)memory + page * 4096 + 3000;
	strcpy(place, text);
	return place;
}

/*
 * The child starts a program before it has touched swapped memory itself. The program's arguments
 * are in swapped memory.
 */
static void heir_starts_programs(void) {
	char *shell[] = {"sh", "-c", text_at(300, "exit 9"), NULL};
	char *command = text_at(301, "exit 12");
	for (int way = 0; way < 3; way++) {
		check("before an heir", 0);
		pid_t child = fork();
		if (child == 0) {
			pid_t other = -1;
			int status = 0;
			if (way == 0) {
				EQUAL(posix_spawn(&other, "/bin/sh", NULL, NULL, shell, environ), 0);
			} else if (way == 1) {
				other = vfork();
				if (other == 0) { execve("/bin/sh", shell, environ); _exit(91); }
			} else {
				status = system(command);
				EQUAL(status, 12 << 8);
			}
			HOLDS(other <= 0 || (waitpid(other, &status, 0) == other && status == 9 << 8));
			check("heir that has started a program", 0);
			add(4);
			check("heir that has started a program, again", 4);
			_exit(13);
		}
		wait_for(child, 13, "heir starts a program");
	}
}

/*
 * Runs on a stack of its own in a child that does not inherit swapped memory. Touches that memory
 * only if `touches` is set.
 */
static int on_stack_of_its_own(void *touches) {
	volatile char own[4096];
	memset((char *)own, 14, sizeof own);
	if (touches) check("on a stack of its own", 0);
	/*
	 * A direct fork: libc's fork would need locks that another thread of the parent may have
	 * held.
	 */
	pid_t child = syscall(SYS_fork);
	if (child == 0) _exit(2);
	int status;
	if (waitpid(child, &status, 0) != child || status != 2 << 8) return 89;
	return own[4000];
}
static pid_t clone_with_stack(void *stack, int touches) {
	pid_t child = clone(on_stack_of_its_own, (char *)stack + (256 << 10), SIGCHLD, touches ? stack : NULL);
	HOLDS(child >= 0);
	return child;
}
static void by_other_calls(void) {
	void *stack = mmap(NULL, 256 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	wait_for(clone_with_stack(stack, 0), 14, "clone with a stack");
	uint64_t arguments[11] = {0};
	arguments[4] = SIGCHLD;
	pid_t child = syscall(SYS_clone3, arguments, 64);
	if (child < 0) child = fork();
	if (child == 0) { check("clone3", 0); add(2); check("clone3 again", 2); _exit(15); }
	wait_for(child, 15, "clone3");
	child = syscall(SYS_fork);
	if (child == 0) { check("fork by number", 0); _exit(15); }
	wait_for(child, 15, "fork by number");
	munmap(stack, 256 << 10);
	check("after other calls", 0);
}

static void *makes_children(void *argument) {
	void *stack = mmap(NULL, 256 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	char *arguments[] = {"true", NULL};
	for (int round = 0; round < 4; round++) {
		int status, want = 14 << 8;
		pid_t child;
		if ((uintptr_t)argument == 0) {
			child = clone_with_stack(stack, 0);
		} else if ((uintptr_t)argument == 1) {
			child = fork();
			if (child == 0) { check("one of several", 0); _exit(14); }
		} else {
			EQUAL(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ), 0);
			want = 0;
		}
		EQUAL(waitpid(child, &status, 0), child);
		EQUAL(status, want);
	}
	munmap(stack, 256 << 10);
	return NULL;
}
static void threads_fork_together(void) {
	pthread_t threads[3];
	for (uintptr_t index = 0; index < 3; index++)
		EQUAL(pthread_create(&threads[index], NULL, makes_children, (void *)index), 0);
	for (int index = 0; index < 3; index++) pthread_join(threads[index], NULL);
	printf("threads fork together\n");
}

/*
 * Children that do not inherit the memory touch it while another thread forks. The touch must kill
 * the child. The child must not read zeroes.
 */
static void *forks(void *argument) {
	while (!atomic_load(&stop)) {
		pid_t child = fork();
		if (child == 0) _exit(0);
		waitpid(child, NULL, 0);
	}
	return argument;
}
static void none_reads_zeroes(void) {
	void *stack = mmap(NULL, 256 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	pthread_t thread;
	int killed = 0, fine = 0;
	pthread_create(&thread, NULL, forks, NULL);
	for (int round = 0; round < 100; round++) {
		int status;
		pid_t child = clone_with_stack(stack, 1);
		EQUAL(waitpid(child, &status, 0), child);
		if (WIFSIGNALED(status)) killed++;
		else { EQUAL(status, 14 << 8); fine++; }
	}
	atomic_store(&stop, 1);
	pthread_join(thread, NULL);
	printf("%d killed, %d fine\n", killed, fine);
}

static atomic_int alarms;
static void count_alarm(int signal) { (void)signal; atomic_fetch_add(&alarms, 1); }
static void signals_come_while_it_forks(void) {
	struct sigaction action = {.sa_handler = count_alarm, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &action, NULL);
	struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &often, NULL);
	for (int round = 0; round < 200; round++) {
		pid_t child = fork();
		if (child == 0) {
			sigset_t mask;
			sigprocmask(SIG_BLOCK, NULL, &mask);
			_exit(sigisemptyset(&mask) ? 16 : 87);
		}
		int status;
		HOLDS(child >= 0 && waitpid(child, &status, 0) == child);
		EQUAL(status, 16 << 8);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	printf("signals while it forks\n");
}

/*
 * A handler forks while it interrupts a call that waits. Both parent and child must continue that
 * call.
 */
static int pipe_ends[2];
static volatile pid_t from_handler = -1;
static void fork_in_handler(int signal) {
	(void)signal;
	from_handler = fork();
	if (from_handler == 0) return;
	int status;
	HOLDS(write(pipe_ends[1], "for the child", 14) == 14);
	EQUAL(waitpid(from_handler, &status, 0), from_handler);
	EQUAL(status, 17 << 8);
	HOLDS(write(pipe_ends[1], "for the parent", 15) == 15);
}
static void handler_forks(void) {
	struct sigaction action = {.sa_handler = fork_in_handler, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &action, NULL);
	EQUAL(pipe(pipe_ends), 0);
	check("before the handler", 0);
	char *place = (char *)memory + 302 * 4096 + 3000;
	struct itimerval once = {{0, 0}, {0, 50000}};
	setitimer(ITIMER_REAL, &once, NULL);
	ssize_t got = read(pipe_ends[0], place, 64);
	if (from_handler == 0) {
		HOLDS(got == 14 && strcmp(place, "for the child") == 0);
		check("child of a handler", 0);
		_exit(17);
	}
	printf("handler forks: %zd %s\n", got, place);
	check("after the handler", 0);
}

/*
 * A handler interrupts a call that waits. The handler's vfork child is killed while that child
 * forks. The parent's calls must continue.
 */
static int begun[2], held_back[2];
static volatile pid_t borrower;
static void *kills(void *argument) {
	char byte;
	HOLDS(read(begun[0], &byte, 1) == 1);
	kill(borrower, SIGKILL);
	return argument;
}
static void vfork_in_handler(int signal) {
	(void)signal;
	int status;
	pid_t child = vfork();
	if (child == 0) {
		borrower = syscall(SYS_getpid);
		/* This call returns after its child has ended. */
		if (syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0) {
			char byte;
			syscall(SYS_close, held_back[1]);
			syscall(SYS_write, begun[1], "b", 1);
			syscall(SYS_read, held_back[0], &byte, 1);
		}
		syscall(SYS_exit_group, 80);
	}
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, SIGKILL);
	HOLDS(write(pipe_ends[1], "for both", 9) == 9);
}
static void vfork_child_is_killed_while_it_forks(void) {
	struct sigaction action = {.sa_handler = vfork_in_handler, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &action, NULL);
	HOLDS(pipe(pipe_ends) == 0 && pipe(begun) == 0 && pipe(held_back) == 0);
	pthread_t thread;
	sigset_t alarms_alone;
	sigemptyset(&alarms_alone);
	sigaddset(&alarms_alone, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarms_alone, NULL);
	EQUAL(pthread_create(&thread, NULL, kills, NULL), 0);
	pthread_sigmask(SIG_UNBLOCK, &alarms_alone, NULL);
	char *place = (char *)memory + 304 * 4096 + 3000;
	struct itimerval once = {{0, 0}, {0, 50000}};
	setitimer(ITIMER_REAL, &once, NULL);
	ssize_t got = read(pipe_ends[0], place, 64);
	pthread_join(thread, NULL);
	printf("killed while it forks: %zd %s\n", got, place);
	close(held_back[1]);
	pid_t child = fork();
	if (child == 0) { check("after a killed one", 0); _exit(19); }
	wait_for(child, 19, "forks afterwards");
}

int main(int count, char **arguments) {
	size_t mebibytes = count > 1 ? strtoul(arguments[1], NULL, 10) : 32;
	pages = (mebibytes << 20) / 4096;
	memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(memory != MAP_FAILED);
	for (size_t page = 0; page < pages; page++) AT(page) = page * 7;
	if (count > 2) { none_reads_zeroes(); return 0; }
	both_sides();
	nested(3, 0);
	child_has_all_of_one_moment();
	child_execs();
	system_calls();
	child_outlives_parent();
	many_children();
	heir_starts_programs();
	by_other_calls();
	threads_fork_together();
	signals_come_while_it_forks();
	handler_forks();
	vfork_child_is_killed_while_it_forks();
	fork_while_threads_fault();
	check("at last", 0);
	printf("all is well\n");
}
