/*
 * Makes the calls of a program's start before usring's library has a handler for traps. Each
 * argument register that a call does not use holds an address in swapped memory (SWAPPED, which the
 * compiler's command line defines). In real programs that happens by chance: glibc's loader reads
 * the time stamp counter into registers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static int calls, missing;

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
	missing += result == -ENOSYS;
	return result;
}

static char page[4096] __attribute__((aligned(4096)));
static char text[4096];

static void make_calls_on_files(void)
{
	long path = (long)"/proc/self/exe", at = AT_FDCWD, into = (long)text;
	struct iovec empty = {text, 0};
	long file = call(SYS_openat, 3, at, path, O_RDONLY | O_CLOEXEC, 0, 0);
	long other = call(SYS_open, 2, path, O_RDONLY | O_CLOEXEC, 0, 0, 0);

	call(SYS_access, 2, path, 4, 0, 0, 0);
	call(SYS_faccessat, 3, at, path, 4, 0, 0);
	call(SYS_faccessat2, 4, at, path, 4, 0, 0);
	call(SYS_stat, 2, path, into, 0, 0, 0);
	call(SYS_lstat, 2, path, into, 0, 0, 0);
	call(SYS_fstat, 2, file, into, 0, 0, 0);
	call(SYS_newfstatat, 4, file, (long)"", into, AT_EMPTY_PATH, 0);
	call(SYS_statx, 5, at, (long)"/", 0, 0, into);
	call(SYS_statfs, 2, path, into, 0, 0, 0);
	call(SYS_fstatfs, 2, file, into, 0, 0, 0);
	call(SYS_read, 3, file, into, 64, 0, 0);
	call(SYS_pread64, 4, file, into, 64, 64, 0);
	call(SYS_write, 3, 2, into, 0, 0, 0);
	call(SYS_writev, 3, 2, (long)&empty, 1, 0, 0);
	call(SYS_lseek, 3, file, 0, 0, 0, 0);
	call(SYS_readlink, 3, path, into, sizeof text, 0, 0);
	call(SYS_readlinkat, 4, at, path, into, sizeof text, 0);
	call(SYS_getcwd, 2, into, sizeof text, 0, 0, 0);
	call(SYS_getdents64, 3, file, into, sizeof text, 0, 0);
	call(SYS_fcntl, 3, file, F_GETFD, 0, 0, 0);
	call(SYS_poll, 3, into, 0, 0, 0, 0);
	call(SYS_dup2, 2, file, other, 0, 0, 0);
	call(SYS_close, 1, call(SYS_dup, 1, file, 0, 0, 0, 0), 0, 0, 0, 0);
	call(SYS_close, 1, other, 0, 0, 0, 0);
	call(SYS_close, 1, file, 0, 0, 0, 0);
}

static void make_other_calls(void)
{
	long into = (long)text, moment[2] = {0, 1};

	call(SYS_brk, 1, 0, 0, 0, 0, 0);
	call(SYS_mprotect, 3, (long)page, sizeof page, PROT_READ, 0, 0);
	call(SYS_madvise, 3, (long)page, sizeof page, MADV_NORMAL, 0, 0);
	call(SYS_mincore, 3, (long)page, sizeof page, into, 0, 0);
	call(SYS_munmap, 2, 0x10000, 4096, 0, 0, 0);
	call(SYS_arch_prctl, 2, 0x1003 /* ARCH_GET_FS */, into, 0, 0, 0);
	call(SYS_prctl, 5, 16 /* PR_GET_NAME */, into, 0, 0, 0);
	call(SYS_set_tid_address, 1, into, 0, 0, 0, 0);
	call(SYS_set_robust_list, 2, 0, 24, 0, 0, 0);
	call(SYS_rseq, 4, 1, 0, 0, 0, 0);
	call(SYS_uname, 1, into, 0, 0, 0, 0);
	call(SYS_sysinfo, 1, into, 0, 0, 0, 0);
	call(SYS_getrandom, 3, into, 8, 1 /* GRND_NONBLOCK */, 0, 0);
	call(SYS_prlimit64, 4, 0, 3 /* RLIMIT_STACK */, 0, into, 0);
	call(SYS_getrlimit, 2, 3, into, 0, 0, 0);
	call(SYS_setrlimit, 2, 999, into, 0, 0, 0);
	call(SYS_getrusage, 2, 0, into, 0, 0, 0);
	call(SYS_rt_sigprocmask, 4, 1, 0, into, 8, 0);
	call(SYS_sched_getaffinity, 3, 0, sizeof text, into, 0, 0);
	call(SYS_getcpu, 2, into, into, 0, 0, 0);
	call(SYS_clock_gettime, 2, 0, into, 0, 0, 0);
	call(SYS_clock_getres, 2, 0, into, 0, 0, 0);
	call(SYS_gettimeofday, 2, into, 0, 0, 0, 0);
	call(SYS_time, 1, into, 0, 0, 0, 0);
	call(SYS_nanosleep, 2, (long)moment, 0, 0, 0, 0);
	call(SYS_clock_nanosleep, 4, 0, 0, (long)moment, 0, 0);
	call(SYS_kill, 2, call(SYS_getpid, 0, 0, 0, 0, 0, 0), 0, 0, 0, 0);
	call(SYS_tgkill, 3, -1, call(SYS_gettid, 0, 0, 0, 0, 0, 0), 0, 0, 0);
	call(SYS_umask, 1, call(SYS_umask, 1, 022, 0, 0, 0, 0), 0, 0, 0, 0);
	call(SYS_personality, 1, 0xffffffff, 0, 0, 0, 0);
	call(SYS_membarrier, 3, 0, 0, 0, 0, 0);
	call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	for (const long *id = (const long[]){SYS_getppid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, 0}; *id; id++)
		call(*id, 0, 0, 0, 0, 0, 0);
}

static int number_of_calls(void)
{
	return calls;
}

/* The loader calls this function while it links the program, before libraries start. */
static int (*choose(void))(void)
{
	make_calls_on_files();
	make_other_calls();
	return number_of_calls;
}

int chosen(void) __attribute__((ifunc("choose")));

int main(void)
{
	enum { BLOCK = 2 << 20 };
	char *block = malloc(BLOCK);

	/*
	 * The report of the run counts this block as swapped memory. From that, the test concludes
	 * that the filter of traps was installed.
	 */
	if (!block)
		return 1;
	memset(block, 1, BLOCK);
	printf("%d calls, %d missing\n", chosen(), missing);
	return block[BLOCK - 1] != 1;
}
