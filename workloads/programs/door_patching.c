/* Call sites that are rewritten while other threads run through them and
 * processes are forked: 256 sites at every alignment, each met by all threads at
 * the same moment for the first time.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { SITES = 256, THREADS = 4, CALLS = 200 };

/* Each 37 bytes behind the one before: 37 is odd, so every place in a cache line
 * is met. The names lie in a table. */
__asm__(".text\n"
	".balign 64\n"
	"sites:\n"
	".rept 256\n"
	"0: mov %rcx, %r10\n" /* 3 */
	"mov $426, %eax\n"    /* 5 */
	"syscall\n"           /* 2 */
	"ret\n"               /* 1 */
	".skip 37 - (. - 0b), 0xcc\n"
	".endr\n");
extern char sites[];

typedef long site(int descriptor, unsigned submit, unsigned wait, unsigned flags);

static site *site_at(int index)
{
	return (site *)(sites + 37 * index);
}

static int descriptor;
static pthread_barrier_t barrier;
static atomic_int done;

static void *run_through(void *unused)
{
	for (int index = 0; index < SITES; index++) {
		pthread_barrier_wait(&barrier);
		for (int call = 0; call < CALLS; call++) {
			EQUAL(site_at(index)(descriptor, 0, 0, 0), 0);
			EQUAL(site_at(index)(-1, 0, 0, 0), -EBADF);
		}
	}
	return unused;
}

/* A child that was forked amid a rewriting can use every site. */
static void *fork_meanwhile(void *unused)
{
	while (!atomic_load(&done)) {
		pid_t child = fork();
		if (child == 0) {
			alarm(10);
			for (int index = 0; index < SITES; index++)
				if (site_at(index)(-1, 0, 0, 0) != -EBADF)
					_exit(1);
			_exit(0);
		}
		int status;
		HOLDS(child > 0);
		EQUAL(waitpid(child, &status, 0), child);
		EQUAL(status, 0);
	}
	return unused;
}

static void sites_are_rewritten_under_way(void)
{
	pthread_t threads[THREADS], forker;
	struct io_uring ring = new_ring(8, 0);
	descriptor = ring.ring_fd;
	atomic_store(&done, 0);
	EQUAL(pthread_barrier_init(&barrier, NULL, THREADS), 0);
	EQUAL(pthread_create(&forker, NULL, fork_meanwhile, NULL), 0);
	for (int index = 0; index < THREADS; index++)
		EQUAL(pthread_create(&threads[index], NULL, run_through, NULL), 0);
	for (int index = 0; index < THREADS; index++)
		EQUAL(pthread_join(threads[index], NULL), 0);
	atomic_store(&done, 1);
	EQUAL(pthread_join(forker, NULL), 0);
	io_uring_queue_exit(&ring);
}

/* Says how many sites are not as they were compiled. */
static void tell_how_many(void)
{
	int changed = 0;
	for (int index = 0; index < SITES; index++)
		changed += (unsigned char)sites[37 * index + 3] != 0xb8;
	printf("%d sites were rewritten\n", changed);
}

static const struct check checks[] = {
	{ "sites are rewritten under way", sites_are_rewritten_under_way },
	{ "tell how many", tell_how_many },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
