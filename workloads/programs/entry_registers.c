/*
 * A system call changes rax, rcx and r11 and no other register. This program fills every register
 * of the processor, the flags and the red zone with a pattern, makes an io_uring_enter, and
 * compares all of them with the pattern. It does so through each entry point:
 * - an instruction that traps;
 * - a call site that may be rewritten, before and after its rewriting;
 * - a call that the entry point passes on to the kernel.
 *
 * libc's syscall() must preserve the registers that every function preserves.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <sys/syscall.h>

enum { VECTORS = 32, VECTOR = 64, GENERAL = 12, RED_ZONE = 16 };

struct state {
	/* In this order: rdi rsi rdx r10 r8 r9 rbx rbp r12 r13 r14 r15 */
	uint64_t general[GENERAL];
	uint64_t red_zone[RED_ZONE];
	uint64_t flags;
	int64_t answer;
	uint64_t masks[8];
	unsigned char vectors[VECTORS][VECTOR] __attribute__((aligned(64)));
};

static struct io_uring ring;

/*
 * LOAD_GENERAL and the macros below copy registers from or to a `struct state`. The address of the
 * structure is in rbx.
 */
#define LOAD_GENERAL                                                                             \
	"mov 0(%%rbx), %%rdi\n mov 8(%%rbx), %%rsi\n mov 16(%%rbx), %%rdx\n"                     \
	"mov 24(%%rbx), %%r10\n mov 32(%%rbx), %%r8\n mov 40(%%rbx), %%r9\n"                     \
	"mov 64(%%rbx), %%r12\n mov 72(%%rbx), %%r13\n mov 80(%%rbx), %%r14\n"                   \
	"mov 88(%%rbx), %%r15\n"
#define EACH_16(instruction)                                                                     \
	instruction(0) instruction(1) instruction(2) instruction(3) instruction(4)               \
	instruction(5) instruction(6) instruction(7) instruction(8) instruction(9)               \
	instruction(10) instruction(11) instruction(12) instruction(13) instruction(14)          \
	instruction(15)
#define EACH_HIGH_16(instruction)                                                                \
	instruction(16) instruction(17) instruction(18) instruction(19) instruction(20)          \
	instruction(21) instruction(22) instruction(23) instruction(24) instruction(25)          \
	instruction(26) instruction(27) instruction(28) instruction(29) instruction(30)          \
	instruction(31)
#define AT(n) "%c[vectors]+64*" #n "(%%rbx)"
#define LOAD_XMM(n) "movups " AT(n) ", %%xmm" #n "\n"
#define LOAD_YMM(n) "vmovups " AT(n) ", %%ymm" #n "\n"
#define LOAD_ZMM(n) "vmovups " AT(n) ", %%zmm" #n "\n"
#define STORE_XMM(n) "movups %%xmm" #n ", " AT(n) "\n"
#define STORE_YMM(n) "vmovups %%ymm" #n ", " AT(n) "\n"
#define STORE_ZMM(n) "vmovups %%zmm" #n ", " AT(n) "\n"
#define LOAD_MASK(n) "kmovq %c[masks]+8*" #n "(%%rbx), %%k" #n "\n"
#define STORE_MASK(n) "kmovq %%k" #n ", %c[masks]+8*" #n "(%%rbx)\n"
#define MASKS(each) each(1) each(2) each(3) each(4) each(5) each(6) each(7)

#define RED_IN(n) "mov 96+8*" #n "(%%rbx), %%rax\n mov %%rax, -8-8*" #n "(%%rsp)\n"
#define RED_OUT(n) "mov -8-8*" #n "(%%rsp), %%rax\n mov %%rax, 96+8*" #n "(%%rbx)\n"

/*
 * Defines a function that makes one call. The top word of its stack has the address of the
 * `struct state`. The red zone is below that word, so nothing may be pushed between filling the
 * zone and reading it back. rbp and rbx are loaded last.
 */
#define PIECE(name, load_vectors, call, store_vectors)                                           \
	static __attribute__((noinline)) void name(struct state *state)                          \
	{                                                                                        \
		__asm__ volatile(                                                                \
			"push %%rbp\n push %%rbx\n sub $1024, %%rsp\n push %%rbx\n"              \
			load_vectors                                                             \
			/* Flags first: no later instruction changes them. */                    \
			"pushq %c[flags](%%rbx)\n popfq\n"                                       \
			EACH_16(RED_IN)                                                          \
			LOAD_GENERAL                                                             \
			"mov 56(%%rbx), %%rbp\n"                                                 \
			"mov 48(%%rbx), %%rbx\n"                                                 \
			call                                                                     \
			/* rcx and r11 are free now. */                                          \
			"mov (%%rsp), %%rcx\n"                                                   \
			"mov %%rax, %c[answer](%%rcx)\n"                                         \
			"mov %%rbx, 48(%%rcx)\n mov %%rcx, %%rbx\n"                              \
			EACH_16(RED_OUT)                                                         \
			"mov %%rdi, 0(%%rbx)\n mov %%rsi, 8(%%rbx)\n mov %%rdx, 16(%%rbx)\n"     \
			"mov %%r10, 24(%%rbx)\n mov %%r8, 32(%%rbx)\n mov %%r9, 40(%%rbx)\n"     \
			"mov %%rbp, 56(%%rbx)\n mov %%r12, 64(%%rbx)\n mov %%r13, 72(%%rbx)\n"   \
			"mov %%r14, 80(%%rbx)\n mov %%r15, 88(%%rbx)\n"                          \
			"pushfq\n popq %c[flags](%%rbx)\n"                                       \
			store_vectors                                                            \
			"pop %%rbx\n add $1024, %%rsp\n pop %%rbx\n pop %%rbp\n cld\n"           \
			:                                                                        \
			: "b"(state), [flags] "i"(__builtin_offsetof(struct state, flags)),      \
			  [answer] "i"(__builtin_offsetof(struct state, answer)),                \
			  [vectors] "i"(__builtin_offsetof(struct state, vectors)),              \
			  [masks] "i"(__builtin_offsetof(struct state, masks))                   \
			: "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12",    \
			  "r13", "r14", "r15", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3",   \
			  "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",      \
			  "xmm12", "xmm13", "xmm14", "xmm15");                                   \
	}

/* usring never rewrites this site, because the call's number comes from another register. */
#define TRAPPING "mov $426, %%ecx\n mov %%ecx, %%eax\n nop\n syscall\n"
/* The form that compilers emit, which usring rewrites. */
#define REWRITABLE "mov $426, %%eax\n syscall\n"
/* close(2) of a number that is not open. It traps, and usring passes it on to the kernel. */
#define PASSING "mov $3, %%ecx\n mov %%ecx, %%eax\n nop\n syscall\n"

PIECE(trapping_xmm, EACH_16(LOAD_XMM), TRAPPING, EACH_16(STORE_XMM))
PIECE(rewritable_xmm, EACH_16(LOAD_XMM), REWRITABLE, EACH_16(STORE_XMM))
PIECE(passing_xmm, EACH_16(LOAD_XMM), PASSING, EACH_16(STORE_XMM))
PIECE(trapping_ymm, EACH_16(LOAD_YMM), TRAPPING, EACH_16(STORE_YMM))
PIECE(rewritable_ymm, EACH_16(LOAD_YMM), REWRITABLE, EACH_16(STORE_YMM))
PIECE(passing_ymm, EACH_16(LOAD_YMM), PASSING, EACH_16(STORE_YMM))
#define LOAD_ALL EACH_16(LOAD_ZMM) EACH_HIGH_16(LOAD_ZMM) MASKS(LOAD_MASK)
#define STORE_ALL EACH_16(STORE_ZMM) EACH_HIGH_16(STORE_ZMM) MASKS(STORE_MASK)
PIECE(trapping_zmm, LOAD_ALL, TRAPPING, STORE_ALL)
PIECE(rewritable_zmm, LOAD_ALL, REWRITABLE, STORE_ALL)
PIECE(passing_zmm, LOAD_ALL, PASSING, STORE_ALL)

static void (*const pieces[3][3])(struct state *) = {
	{ trapping_xmm, rewritable_xmm, passing_xmm },
	{ trapping_ymm, rewritable_ymm, passing_ymm },
	{ trapping_zmm, rewritable_zmm, passing_zmm },
};

/*
 * Returns the index of the widest vector registers that processor and kernel have: 0 for xmm, 1 for
 * ymm, 2 for zmm.
 */
static int width(void)
{
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512bw"))
		return 2;
	return __builtin_cpu_supports("avx") ? 1 : 0;
}

/* The flags that a program may set: carry, parity, adjust, zero, sign, overflow. */
enum { FLAGS = 0x8d5 };

static void fill(struct state *state, unsigned round)
{
	unsigned char *byte = (unsigned char *)state;
	for (size_t index = 0; index < sizeof *state; index++)
		byte[index] = (unsigned char)(index * 167 + round * 59 + (index >> 8));
	state->flags = 0x202 | ((round * 0x51u * 0x35u) & FLAGS);
	static const int all[] = { 0x202 | FLAGS, 0x202 };
	if (round < 2)
		state->flags = all[round];
}

static void compare(unsigned entry_point, unsigned round, int64_t first, unsigned to_submit, int64_t answer)
{
	static struct state before, after;

	fill(&before, round);
	/*
	 * The call's arguments: rdi is the descriptor; rsi, rdx, r10, r8, r9 are to_submit, 0, 0,
	 * NULL, 0. The upper half of a register keeps its pattern if the argument is an int.
	 */
	before.general[0] = (uint64_t)first;
	before.general[1] = (before.general[1] & ~0xffffffffull) | to_submit;
	before.general[2] &= ~0xffffffffull;
	before.general[3] &= ~0xffffffffull;
	before.general[4] = 0;
	before.general[5] = 0;
	after = before;
	pieces[width()][entry_point](&after);
	EQUAL(after.answer, answer);
	for (int index = 0; index < GENERAL; index++)
		EQUAL((long long)after.general[index], (long long)before.general[index]);
	for (int index = 0; index < RED_ZONE; index++)
		EQUAL((long long)after.red_zone[index], (long long)before.red_zone[index]);
	EQUAL(after.flags & FLAGS, before.flags & FLAGS);
	EQUAL(after.flags & 0x400, 0);
	for (int index = 1; index < 8 && width() == 2; index++)
		EQUAL((long long)after.masks[index], (long long)before.masks[index]);
	for (int vector = 0; vector < (width() == 2 ? 32 : 16); vector++)
		for (int byte = 0; byte < 16 << width(); byte++)
			EQUAL(after.vectors[vector][byte], before.vectors[vector][byte]);
}

static void submit_one(unsigned entry_point, unsigned round)
{
	struct io_uring_cqe *cqe;

	/* Only the SQ tail is stored here, so that the call that is tested finds a request. */
	struct io_uring_sqe *sqe = request(&ring);
	io_uring_prep_nop(sqe);
	named(sqe, round, 0);
	*ring.sq.array = 0;
	unsigned tail = *ring.sq.ktail;
	ring.sq.array[tail & *ring.sq.kring_mask] = (unsigned)(sqe - ring.sq.sqes);
	io_uring_smp_store_release(ring.sq.ktail, tail + 1);
	ring.sq.sqe_head = ring.sq.sqe_tail;
	compare(entry_point, round, ring.ring_fd, 1, 1);
	EQUAL(io_uring_peek_cqe(&ring, &cqe), 0);
	EQUAL((long long)cqe->user_data, round);
	io_uring_cqe_seen(&ring, cqe);
}

static void a_trapped_call_changes_nothing_else(void)
{
	ring = new_ring(8, 0);
	for (unsigned round = 0; round < 64; round++) {
		submit_one(0, round);
		compare(0, round, -1, 1, -EBADF);
	}
	io_uring_queue_exit(&ring);
}

static void a_rewritten_call_changes_nothing_else(void)
{
	ring = new_ring(8, 0);
	for (unsigned round = 0; round < 64; round++) {
		submit_one(1, round);
		compare(1, round, -1, 1, -EBADF);
	}
	io_uring_queue_exit(&ring);
}

static void a_call_that_goes_on_changes_nothing_else(void)
{
	for (unsigned round = 0; round < 64; round++)
		compare(2, round, 0x7ffffff0, 0, -EBADF);
}

static void libc_keeps_what_a_function_keeps(void)
{
	ring = new_ring(8, 0);
	errno = 0;
	EQUAL(syscall(SYS_io_uring_enter, ring.ring_fd, 0, 0, 0, NULL, 0), 0);
	EQUAL(errno, 0);
	EQUAL(syscall(SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0), -1);
	EQUAL(errno, EBADF);
	EQUAL(syscall(SYS_io_uring_enter, ring.ring_fd, 0, 0, 0x80000000, NULL, 0), -1);
	EQUAL(errno, EINVAL);
	EQUAL(syscall(SYS_getpid), getpid());
	EQUAL(syscall(SYS_close, -1), -1);
	EQUAL(errno, EBADF);
	io_uring_queue_exit(&ring);
}

static const struct check checks[] = {
	{ "a trapped call changes nothing else", a_trapped_call_changes_nothing_else },
	{ "a rewritten call changes nothing else", a_rewritten_call_changes_nothing_else },
	{ "a call that goes on changes nothing else", a_call_that_goes_on_changes_nothing_else },
	{ "libc keeps what a function keeps", libc_keeps_what_a_function_keeps },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
