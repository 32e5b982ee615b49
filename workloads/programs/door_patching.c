/* Call sites that are rewritten while other threads run through them and
 * processes are forked: 256 sites at every alignment, each met by all threads at
 * the same moment for the first time.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { SITES = 256, THREADS = 4, CALLS = 200 };

/* Each 37 bytes behind the one before: 37 is odd, so every place in a cache line
 * is met. Every other one does more between the number and the call. */
__asm__(".text\n"
	".balign 64\n"
	"sites:\n"
	".rept 128\n"
	"0: mov %rcx, %r10\n" /* 3 */
	"mov $426, %eax\n"    /* 5 */
	"syscall\n"           /* 2 */
	"ret\n"               /* 1 */
	".skip 37 - (. - 0b), 0xcc\n"
	"1: mov $426, %eax\n" /* 5 */
	"mov %rcx, %r10\n"    /* 3 */
	"xor %r8d, %r8d\n"    /* 3 */
	"mov %edx, %edx\n"    /* 2 */
	"syscall\n"           /* 2 */
	"ret\n"               /* 1 */
	".skip 37 - (. - 1b), 0xcc\n"
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
			alarm(SECONDS_PER_CHECK);
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

/* Other code at an address that was rewritten: a library that was unloaded and
 * another one loaded there. Offsets in a page. */
enum { SITE = 64, MOV_IN_IT = 3 };
static const unsigned char enters[] = { 0x49, 0x89, 0xca,		/* mov %rcx, %r10 */
					0xb8, 0xaa, 0x01, 0x00, 0x00,	/* mov $426, %eax */
					0x0f, 0x05, 0xc3 };		/* syscall; ret */
static const unsigned char faults[] = { 0x90, 0x90, 0x90,		/* nop */
					0x8b, 0x04, 0x25, 8, 0, 0, 0,	/* mov 8, %eax */
					0xc3 };
static const unsigned char traps_no_longer[] = { 0x90, 0x90, 0x90,
						 0xb8, 7, 0, 0, 0, 0x90, 0x90, 0xc3 }; /* mov $7, %eax */

static unsigned char *load(unsigned char *where, const void *code, size_t size)
{
	int file = open(".", O_TMPFILE | O_RDWR, 0700);
	HOLDS(file >= 0);
	EQUAL(ftruncate(file, 4096), 0);
	EQUAL(pwrite(file, code, size, SITE), (ssize_t)size);
	unsigned char *page = mmap(where, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | (where ? MAP_FIXED : 0), file, 0);
	HOLDS(page != MAP_FAILED);
	close(file);
	return page;
}

static sigjmp_buf before_fault;

static void leave_fault(int signal)
{
	siglongjmp(before_fault, signal);
}

static void other_code_may_come_where_a_site_was(void)
{
	struct io_uring ring = new_ring(8, 0);
	struct sigaction action = { .sa_handler = leave_fault };
	EQUAL(sigaction(SIGSEGV, &action, NULL), 0);
	unsigned char *page = load(NULL, enters, sizeof enters);
	site *code = (site *)(page + SITE);
	int is_rewritten = 0;
	for (int round = 0; round < 3; round++) {
		load(page, enters, sizeof enters);
		for (int call = 0; call < 3; call++)
			EQUAL(code(ring.ring_fd, 0, 0, 0), 0);
		if (round == 0)
			is_rewritten = page[SITE + MOV_IN_IT] != 0xb8;
		EQUAL(page[SITE + MOV_IN_IT] != 0xb8, is_rewritten);
		load(page, faults, sizeof faults);
		int fault = sigsetjmp(before_fault, 1);
		if (fault == 0) {
			code(ring.ring_fd, 0, 0, 0);
			HOLDS(!"it did not fault");
		}
		EQUAL(fault, SIGSEGV);
		load(page, traps_no_longer, sizeof traps_no_longer);
		EQUAL(code(ring.ring_fd, 0, 0, 0), 7);
	}
	EQUAL(munmap(page, 4096), 0);
	io_uring_queue_exit(&ring);
}

/* Says how many sites are not as they were compiled. */
static void tell_how_many(void)
{
	int changed = 0;
	for (int index = 0; index < SITES; index++)
		changed += (unsigned char)sites[37 * index + (index % 2 ? 0 : 3)] != 0xb8;
	printf("%d sites were rewritten\n", changed);
}

static const struct check checks[] = {
	{ "sites are rewritten under way", sites_are_rewritten_under_way },
	{ "other code may come where a site was", other_code_may_come_where_a_site_was },
	{ "tell how many", tell_how_many },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
