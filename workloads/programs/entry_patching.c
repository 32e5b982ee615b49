/*
 * usring rewrites call sites while other threads run through them and processes fork. There are 256
 * sites, at every alignment. All threads reach each site for the first time at the same moment.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <elf.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { SITES = 256, THREADS = 4, CALLS = 200 };

/*
 * Consecutive sites are 37 bytes apart. 37 is odd, so the sites are at every offset in a cache
 * line. Every second site has further instructions between the call's number and the call.
 */
__asm__(".text\n"
	".balign 64\n"
	"sites:\n"
	".cfi_startproc\n"
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
	".endr\n"
	".cfi_endproc\n");
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

/* Forks during the rewriting. The child must be able to use every site. */
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

/*
 * Other code appears at the address of a rewritten site, as if a library had been unloaded and
 * another one loaded there. The constants are offsets in a page.
 */
enum { TABLE = 512, ENTRY = 544, SITE = 1024, MOV_IN_IT = 3 };
static const unsigned char enters[] = { 0x49, 0x89, 0xca,		/* mov %rcx, %r10 */
					0xb8, 0xaa, 0x01, 0x00, 0x00,	/* mov $426, %eax */
					0x0f, 0x05, 0xc3 };		/* syscall; ret */
/* The `syscall` is at the offset that it has in `enters`, but the `mov` is at another offset. */
static const unsigned char enters_otherwise[] = { 0xb8, 0xaa, 0x01, 0x00, 0x00, /* mov $426, %eax */
						  0x49, 0x89, 0xca,		/* mov %rcx, %r10 */
						  0x0f, 0x05, 0xc3 };		/* syscall; ret */
static const unsigned char faults[] = { 0x90, 0x90, 0x90,		/* nop */
					0x8b, 0x04, 0x25, 8, 0, 0, 0,	/* mov 8, %eax */
					0xc3 };
static const unsigned char traps_no_longer[] = { 0x90, 0x90, 0x90,
						 0xb8, 7, 0, 0, 0, 0x90, 0x90, 0xc3 }; /* mov $7, %eax */

static void put(int file, const void *bytes, size_t size, off_t place)
{
	EQUAL(pwrite(file, bytes, size, place), (ssize_t)size);
}

static unsigned char *load(unsigned char *where, const void *code, size_t size)
{
	int file = open(".", O_TMPFILE | O_RDWR, 0700);
	HOLDS(file >= 0);
	EQUAL(ftruncate(file, 4096), 0);
	put(file, code, size, SITE);
	/*
	 * Writes those parts of a library that are needed to look up a function: headers, unwind
	 * table, entry.
	 */
	Elf64_Ehdr header = { .e_ident = ELFMAG, .e_phoff = sizeof header, .e_phentsize = sizeof(Elf64_Phdr), .e_phnum = 2 };
	Elf64_Phdr segments[] = { { .p_type = PT_LOAD }, { .p_type = PT_GNU_EH_FRAME, .p_vaddr = TABLE } };
	int32_t table[] = { 0x3b031b01, 0, 1, SITE - TABLE, ENTRY - TABLE };
	int32_t entry[] = { 12, 0, SITE - (ENTRY + 8), size };
	put(file, &header, sizeof header, 0);
	put(file, segments, sizeof segments, sizeof header);
	put(file, table, sizeof table, TABLE);
	put(file, entry, sizeof entry, ENTRY);
	unsigned char *page = mmap(where, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | (where ? MAP_FIXED : 0), file, 0);
	HOLDS(page != MAP_FAILED);
	close(file);
	return page;
}

/* Number of rewritten sites, without the 256. */
static int others;

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
		load(page, enters_otherwise, sizeof enters_otherwise);
		for (int call = 0; call < 3; call++) {
			EQUAL(code(ring.ring_fd, 0, 0, 0), 0);
			EQUAL(code(ring.ring_fd, 0, 0, 1U << 30), -EINVAL);
		}
		EQUAL(page[SITE] != 0xb8, is_rewritten);
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
	others += is_rewritten;
}

/*
 * usring must not rewrite a part of an instruction. In these functions the bytes of `mov $426,%eax`
 * occur inside another instruction, or the real `mov` is not the instruction directly before the
 * `syscall`. Each function returns 426, or another number if an instruction was rewritten.
 */
__asm__(".text\n"
	".macro function name\n"
	".balign 64\n"
	"\\name:\n"
	".cfi_startproc\n"
	"mov %rcx, %r10\n"
	"mov $426, %eax\n"
	"xor %r11d, %r11d\n"
	"nop\n" /* separates the real `mov` from what follows */
	".endm\n"
	".macro end\n"
	"ret\n"
	".cfi_endproc\n"
	".endm\n"
	"function stores\n" /* c7 44 24 b8 aa 01 00 00 */
	"movl $426, -0x48(%rsp)\n"
	"syscall\n"
	"mov -0x48(%rsp), %eax\n"
	"end\n"
	"function stores_far\n"
	"movq $426, -0x48(%rsp)\n"
	"mov %edx, %edx\n"
	"syscall\n"
	"mov -0x48(%rsp), %rax\n"
	"end\n"
	"function loads_another\n" /* 41 b8 aa 01 00 00 */
	"mov $426, %r8d\n"
	"syscall\n"
	"mov %r8d, %eax\n"
	"end\n"
	"function loads_edx\n" /* ba aa 01 00 00 */
	"mov $426, %edx\n"
	"syscall\n"
	"mov %edx, %eax\n"
	"end\n"
	"function behind_unknown\n"
	"jmp 0f\n"
	"mov $426, %eax\n"
	".byte 0x06\n" /* no instruction in 64-bit mode */
	"0: syscall\n"
	"mov $426, %eax\n"
	"end\n"
	"function addresses\n"
	"mov $426, %eax\n"
	"lea 0f(%rip), %rdx\n" /* works only at its own address */
	"syscall\n"
	"0: lea 0b(%rip), %rax\n"
	"sub %rdx, %rax\n"
	"add $426, %eax\n"
	"end\n"
	"function compares\n" /* 48 81 7c 24 b8 aa 01 00 00 */
	"movq $426, -0x48(%rsp)\n"
	"cmpq $426, -0x48(%rsp)\n"
	"syscall\n"
	"mov -0x48(%rsp), %eax\n"
	"end\n");
extern char stores[], stores_far[], loads_another[], loads_edx[], behind_unknown[], addresses[], compares[];

/*
 * Here usring may rewrite the site, because a complete `mov` is before the `syscall`. But the last
 * bytes of the instruction before that `mov` look like the beginning of a longer instruction.
 */
__asm__(".text\n"
	".balign 64\n"
	"behind_zeroes:\n"
	".cfi_startproc\n"
	"mov %rcx, %r10\n"
	"mov $8, %r9d\n" /* …00 b8 aa 01 00 00 would be add %bh,426(%rax) */
	"0: mov $426, %eax\n"
	"syscall\n"
	"ret\n"
	".cfi_endproc\n"
	"behind_zeroes_number = 0b\n");
extern char behind_zeroes[], behind_zeroes_number[];

static void only_whole_instructions_are_rewritten(void)
{
	char *const kept[] = { stores,		stores_far, loads_another, loads_edx,
			       behind_unknown,	addresses,  compares };
	for (size_t index = 0; index < sizeof kept / sizeof *kept; index++) {
		char before[64];
		memcpy(before, kept[index], sizeof before);
		for (int call = 0; call < 40; call++)
			EQUAL(((site *)kept[index])(-1, 0, 0, 0), 426);
		EQUAL(memcmp(before, kept[index], sizeof before), 0);
	}
	for (int call = 0; call < 40; call++)
		EQUAL(((site *)behind_zeroes)(-1, 0, 0, 0), -EBADF);
	others += (unsigned char)*behind_zeroes_number != 0xb8;
}

/*
 * Two calls share a `syscall` instruction: io_uring_enter, for a negative descriptor, and getppid.
 * One of them jumps to the `syscall`. The `mov` directly before the `syscall` is the other call's.
 * usring may rewrite the site only if that `mov` loads the number of the call that has trapped.
 */
__asm__(".text\n"
	".macro shares name, jumps, falls, condition\n"
	".balign 64\n"
	"\\name:\n"
	".cfi_startproc\n"
	"mov %rcx, %r10\n"
	"mov $\\jumps, %eax\n"
	"test %edi, %edi\n"
	"\\condition 0f\n"
	"\\name\\()_number: mov $\\falls, %eax\n"
	"0: syscall\n"
	"ret\n"
	".cfi_endproc\n"
	".endm\n"
	"shares enter_jumps, 426, 110, js\n"
	"shares enter_falls, 110, 426, jns\n");
extern char enter_jumps[], enter_jumps_number[], enter_falls[], enter_falls_number[];

static void a_site_may_have_two_numbers(void)
{
	char *const functions[] = { enter_jumps, enter_falls };
	for (int index = 0; index < 2; index++)
		for (int call = 0; call < 40; call++) {
			EQUAL(((site *)functions[index])(-1, 0, 0, 0), -EBADF);
			EQUAL(((site *)functions[index])(0, 0, 0, 0), getppid());
		}
	EQUAL((unsigned char)*enter_jumps_number, 0xb8);
	others += (unsigned char)*enter_falls_number != 0xb8;
}

/*
 * This code has a `hlt` of the program's own shortly before a site. While usring rewrites the site,
 * the site begins with a `hlt`, too. usring must not take the program's `hlt` for its own.
 */
__asm__(".text\n"
	".balign 64\n"
	"halts:\n"
	".cfi_startproc\n"
	"hlt\n"
	"behind_halt:\n"
	"mov %rcx, %r10\n"
	"behind_halt_number: mov $426, %eax\n"
	"syscall\n"
	"ret\n"
	".cfi_endproc\n");
extern char halts[], behind_halt[], behind_halt_number[];

static void a_halt_of_the_programs_faults(void)
{
	struct sigaction action = { .sa_handler = leave_fault };
	EQUAL(sigaction(SIGSEGV, &action, NULL), 0);
	for (int call = 0; call < 3; call++)
		EQUAL(((site *)behind_halt)(-1, 0, 0, 0), -EBADF);
	others += (unsigned char)*behind_halt_number != 0xb8;
	int fault = sigsetjmp(before_fault, 1);
	if (fault == 0) {
		((site *)halts)(-1, 0, 0, 0);
		HOLDS(!"it did not fault");
	}
	EQUAL(fault, SIGSEGV);
}

/* Prints how many of the sites differ from the code that was compiled. */
static void tell_how_many(void)
{
	int changed = 0;
	for (int index = 0; index < SITES; index++)
		changed += (unsigned char)sites[37 * index + (index % 2 ? 0 : 3)] != 0xb8;
	printf("%d sites were rewritten, and %d others\n", changed, others);
}

static const struct check checks[] = {
	{ "sites are rewritten under way", sites_are_rewritten_under_way },
	{ "other code may come where a site was", other_code_may_come_where_a_site_was },
	{ "only whole instructions are rewritten", only_whole_instructions_are_rewritten },
	{ "a site may have two numbers", a_site_may_have_two_numbers },
	{ "a halt of the program's faults", a_halt_of_the_programs_faults },
	{ "tell how many", tell_how_many },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
