/*
 * Makes the calls of a program's start before usring's library has a handler for traps. The
 * registers that a call does not use contain an address of swapped memory. That happens by chance:
 * glibc's loader reads the time stamp counter.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* An address in the window of swapped memory. */
#define SWAPPED 0x208012345678L

static int calls;

/* Makes a call with up to five arguments. The other registers contain SWAPPED. */
static long call(long number, int count, long a, long b, long c, long d, long e)
{
	register long first __asm__("rdi") = count > 0 ? a : SWAPPED;
	register long second __asm__("rsi") = count > 1 ? b : SWAPPED;
	register long third __asm__("rdx") = count > 2 ? c : SWAPPED;
	register long fourth __asm__("r10") = count > 3 ? d : SWAPPED;
	register long fifth __asm__("r8") = count > 4 ? e : SWAPPED;
	register long sixth __asm__("r9") = SWAPPED;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "r"(first), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth)
			 : "rcx", "r11", "memory");
	calls++;
	return result;
}

static void make_calls(void)
{
	static char page[4096] __attribute__((aligned(4096)));
	static char text[512];
	long file = call(SYS_openat, 4, AT_FDCWD, (long)"/proc/self/exe", O_RDONLY | O_CLOEXEC, 0, 0);
	call(SYS_getpid, 0, 0, 0, 0, 0, 0);
	call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	call(SYS_brk, 1, 0, 0, 0, 0, 0);
	call(SYS_uname, 1, (long)text, 0, 0, 0, 0);
	call(SYS_arch_prctl, 2, 0x1003 /* ARCH_GET_FS */, (long)text, 0, 0, 0);
	call(SYS_access, 2, (long)"/etc/ld.so.preload", 4, 0, 0, 0);
	call(SYS_fstat, 2, file, (long)text, 0, 0, 0);
	call(SYS_clock_gettime, 2, 0, (long)text, 0, 0, 0);
	call(SYS_getcwd, 2, (long)text, sizeof text, 0, 0, 0);
	call(SYS_read, 3, file, (long)text, 64, 0, 0);
	call(SYS_lseek, 3, file, 0, 0, 0, 0);
	call(SYS_mprotect, 3, (long)page, sizeof page, PROT_READ, 0, 0);
	call(SYS_readlink, 3, (long)"/proc/self/exe", (long)text, sizeof text, 0, 0);
	call(SYS_getrandom, 3, (long)text, 8, 1, 0, 0);
	call(SYS_pread64, 4, file, (long)text, 64, 64, 0);
	call(SYS_newfstatat, 4, file, (long)"", (long)text, 0x1000 /* AT_EMPTY_PATH */, 0);
	call(SYS_prlimit64, 4, 0, 3 /* RLIMIT_STACK */, 0, (long)text, 0);
	call(SYS_prctl, 5, 16 /* PR_GET_NAME */, (long)text, 0, 0, 0);
	call(SYS_statx, 5, AT_FDCWD, (long)"/", 0, 0, (long)text);
	call(SYS_munmap, 2, 0x10000, 4096, 0, 0, 0);
	call(SYS_close, 1, file, 0, 0, 0, 0);
}

static int number_of_calls(void)
{
	return calls;
}

/* The loader calls this function while it links the program, before libraries start. */
static int (*choose(void))(void)
{
	make_calls();
	return number_of_calls;
}

int chosen(void) __attribute__((ifunc("choose")));

int main(void)
{
	enum { BLOCK = 2 << 20 };
	char *block = malloc(BLOCK);

	/* The run reports swapped memory, so the test sees that the filter is there. */
	if (!block)
		return 1;
	memset(block, 1, BLOCK);
	printf("%d calls\n", chosen());
	return block[BLOCK - 1] != 1;
}
