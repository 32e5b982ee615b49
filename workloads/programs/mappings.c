/*
 * A random sequence of calls on mappings. Each step prints the result of the call, the content of
 * the memory, and whether the program and system calls can access the memory. For a given seed the
 * output must be the same on the kernel and under `usring run --swap`.
 *
 * - argv[1]: the seed;
 * - argv[2]: the number of steps;
 * - argv[3]: pages per unit. The bounds of mappings are multiples of a unit.
 *
 * The mappings are in an arena that is smaller than the blocks that are mapped elsewhere. So no
 * block fits into a hole of the arena, and the output does not depend on where new mappings are
 * placed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL
#define ARENA 1024UL
#define BLOCKS 3
#define LEAST_BLOCK 1200UL
#define MOST_BLOCK 1800UL

static unsigned char *arena;
static struct {
	unsigned char *start;
	size_t pages;
} blocks[BLOCKS];
static unsigned char *elsewhere;
static int ends[2];
static uint64_t state;
static size_t granule = 1;
static unsigned long step;

static size_t below(size_t end)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % end;
}

static sigjmp_buf back;
static volatile int fault_signal, fault_code;
static void *volatile fault_address;

static void on_fault(int signal, siginfo_t *information, void *context)
{
	(void)context;
	fault_signal = signal;
	fault_code = information->si_code;
	fault_address = information->si_addr;
	siglongjmp(back, 1);
}

/*
 * Touches a word. Returns its content or, if the access raises a signal, what the signal reports.
 */
static uint64_t touch(volatile uint64_t *word, int write, uint64_t value)
{
	if (sigsetjmp(back, 1) != 0) {
		int is_here = fault_address == (void *)word;
		return 0xf000 + 0x100 * (fault_signal == SIGBUS) + 0x10 * is_here + fault_code;
	}
	if (write) {
		*word = value;
		return 0;
	}
	return *word;
}

static uint64_t mixed(uint64_t digest, uint64_t value) { return (digest ^ value) * 0x100000001b3UL + (digest >> 29); }

/* Returns a digest of the memory. */
static uint64_t digest_of(unsigned char *start, size_t pages)
{
	uint64_t digest = 14695981039346656037UL;
	for (size_t page = 0; page < pages; page++) {
		volatile uint64_t *words = (volatile uint64_t *)(start + page * PAGE);
		uint64_t first = touch(words, 0, 0);
		digest = mixed(digest, first);
		if (first < 0xf000 || first > 0xffff)
			digest = mixed(digest, touch(words + 511, 0, 0));
	}
	return digest;
}

static void tell(const char *what, size_t first, size_t count, long answer)
{
	int error = errno;
	printf("%lu %s %zu+%zu: ", step, what, first, count);
	if (answer == -1)
		printf("%s\n", strerrorname_np(error));
	else
		printf("%ld\n", answer);
}

static void fill_block(size_t block)
{
	for (size_t page = 0; page < blocks[block].pages; page += 3)
		*(uint64_t *)(blocks[block].start + page * PAGE) = step << 20 | block << 16 | page;
}

static void make_block(size_t block)
{
	size_t pages = (LEAST_BLOCK + below(MOST_BLOCK - LEAST_BLOCK)) / granule * granule;
	blocks[block].pages = pages;
	blocks[block].start = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (blocks[block].start == MAP_FAILED)
		exit(3);
	fill_block(block);
}

/* Maps, moves, cuts and unmaps whole blocks of memory. */
static void on_blocks(size_t first, size_t count)
{
	size_t block = below(BLOCKS), pages = blocks[block].pages;
	unsigned char *start = blocks[block].start;
	switch (below(3)) {
	case 0: {
		size_t now = (LEAST_BLOCK + below(MOST_BLOCK - LEAST_BLOCK)) / granule * granule;
		void *moved = mremap(start, pages * PAGE, now * PAGE, MREMAP_MAYMOVE);
		tell("mremap of a block", block, now, moved == MAP_FAILED ? -1 : 0);
		blocks[block].start = moved;
		blocks[block].pages = now;
		break;
	}
	case 1: {
		size_t from = below(pages - count) / granule * granule;
		void *moved = mremap(start + from * PAGE, count * PAGE, count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
				     arena + first * PAGE);
		tell("mremap out of a block", first, count, moved == MAP_FAILED ? -1 : 0);
		printf("the rest holds %lx\n", digest_of(start, pages));
		tell("munmap of a block", block, pages, munmap(start, pages * PAGE));
		make_block(block);
		break;
	}
	default:
		tell("munmap of a block", block, pages, munmap(start, pages * PAGE));
		make_block(block);
	}
	printf("block %zu holds %lx\n", block, digest_of(blocks[block].start, blocks[block].pages));
}

static void advise(unsigned char *start, size_t first, size_t count)
{
	static const struct {
		int advice;
		const char *name;
	} all[] = {
		{ MADV_DONTNEED, "DONTNEED" },	     { MADV_DONTNEED, "DONTNEED" },	    { MADV_WILLNEED, "WILLNEED" },
		{ MADV_NORMAL, "NORMAL" },	     { MADV_SEQUENTIAL, "SEQUENTIAL" },	    { MADV_COLD, "COLD" },
		{ MADV_PAGEOUT, "PAGEOUT" },	     { MADV_DONTDUMP, "DONTDUMP" },	    { MADV_REMOVE, "REMOVE" },
		{ MADV_POPULATE_READ, "POPULATE_READ" }, { MADV_POPULATE_WRITE, "POPULATE_WRITE" },
		{ MADV_WIPEONFORK, "WIPEONFORK" },   { MADV_KEEPONFORK, "KEEPONFORK" },	    { 4711, "4711" },
		{ 102, "GUARD_INSTALL" },	     { 103, "GUARD_REMOVE" },
	};
	size_t which = below(sizeof all / sizeof *all);
	char text[40];
	snprintf(text, sizeof text, "madvise %s", all[which].name);
	tell(text, first, count, madvise(start, count * PAGE, all[which].advice));
}

static void map_over(unsigned char *start, size_t first, size_t count)
{
	static const int protections[] = { PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE };
	int protection = protections[below(4)], flags = MAP_PRIVATE | MAP_ANONYMOUS;
	int only_free = below(3) == 0;
	flags |= only_free ? MAP_FIXED_NOREPLACE : MAP_FIXED;
	void *there = mmap(start, count * PAGE, protection, flags, -1, 0);
	char text[40];
	snprintf(text, sizeof text, "mmap%s %d", only_free ? " where nothing is" : "", protection);
	tell(text, first, count, there == MAP_FAILED ? -1 : there != start);
}

static void protect(unsigned char *start, size_t first, size_t count)
{
	static const int protections[] = { PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE, PROT_READ | PROT_WRITE };
	int protection = protections[below(4)];
	char text[40];
	snprintf(text, sizeof text, "mprotect %d", protection);
	tell(text, first, count, mprotect(start, count * PAGE, protection));
}

/* Makes calls that the kernel refuses before it accesses any memory. */
static void wrong(unsigned char *start, size_t first, size_t count)
{
	size_t length = count * PAGE;
	unsigned char residency[ARENA];
	tell("munmap of no page", first, 0, munmap(start, 0));
	tell("munmap within a page", first, count, munmap(start + 8, length));
	tell("mprotect of no page", first, 0, mprotect(start, 0, 0x70));
	tell("mprotect within a page", first, count, mprotect(start + 8, length, PROT_READ));
	tell("mprotect in no way", first, count, mprotect(start, length, 0x70));
	tell("madvise within a page", first, count, madvise(start + 8, length, MADV_DONTNEED));
	tell("msync in two ways", first, count, msync(start, length, MS_SYNC | MS_ASYNC));
	tell("mincore within a page", first, count, mincore(start + 8, length, residency));
	tell("mremap to nothing", first, count, (long)mremap(start, length, 0, MREMAP_MAYMOVE));
	tell("mremap within a page", first, count, (long)mremap(start + 8, length, length, MREMAP_MAYMOVE));
	tell("mremap in no way", first, count, (long)mremap(start, length, length, 64));
	tell("mremap onto itself", first, count,
	     (long)mremap(start, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, start));
	tell("mmap of no page", first, 0,
	     (long)mmap(start, 0, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	tell("mmap of no file", first, count,
	     (long)mmap(start, length, PROT_READ, MAP_PRIVATE | MAP_FIXED, 999, 0));
}

static void calls(unsigned char *start, size_t first)
{
	tell("write", first, 1, write(ends[1], start, 64));
	tell("read", first, 1, read(ends[0], start + PAGE - 64, 64));
}

static void one_step(void)
{
	size_t count = (1 + below(below(4) == 0 ? 200 : 20) + granule - 1) / granule * granule;
	size_t first = below(ARENA - count) / granule * granule;
	unsigned char *start = arena + first * PAGE;
	unsigned char residency[ARENA];
	switch (below(16)) {
	case 0:
		tell("munmap", first, count, munmap(start, count * PAGE));
		break;
	case 1:
	case 2:
		map_over(start, first, count);
		break;
	case 3:
	case 4:
		protect(start, first, count);
		break;
	case 5:
	case 6:
		advise(start, first, count);
		break;
	case 7:
		tell("mlock", first, count, mlock(start + below(2) * 8, count * PAGE - 8));
		break;
	case 8:
		tell("munlock", first, count, munlock(start + below(2) * 8, count * PAGE - 8));
		break;
	case 9:
		tell("msync", first, count, msync(start, count * PAGE, below(2) ? MS_SYNC : MS_INVALIDATE));
		break;
	case 10:
		tell("mincore", first, count, mincore(start, count * PAGE, residency));
		break;
	case 11:
		on_blocks(first, count);
		break;
	case 12: {
		size_t length = granule * PAGE;
		void *moved = mremap(start, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere);
		tell("mremap out of the arena", first, granule, moved == MAP_FAILED ? -1 : 0);
		printf("there it holds %lx\n", digest_of(elsewhere, granule));
		break;
	}
	case 13:
		wrong(start, first, count);
		break;
	case 14:
		calls(start, first);
		break;
	default:
		for (size_t page = 0; page < count; page++) {
			uint64_t *word = (uint64_t *)(start + page * PAGE) + (below(2) ? 511 : 0);
			uint64_t answer = touch(word, 1, step << 20 | page);
			if (answer != 0)
				printf("%lu page %zu: %lx\n", step, first + page, answer);
		}
	}
}

int main(int number, char **arguments)
{
	if (number < 3)
		return 2;
	state = strtoul(arguments[1], NULL, 0) * 0x9e3779b97f4a7c15UL + 1;
	size_t steps = strtoul(arguments[2], NULL, 0);
	if (number > 3)
		granule = strtoul(arguments[3], NULL, 0);
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER };
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	/* An address that is far from all addresses that the kernel chooses itself. */
	void *wish = (void *)0x300000000000;
	arena = mmap(wish, ARENA * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	elsewhere = mmap(NULL, granule * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (arena == MAP_FAILED || elsewhere == MAP_FAILED || pipe2(ends, O_NONBLOCK) != 0)
		return 3;
	for (size_t page = 0; page < ARENA; page++)
		*(uint64_t *)(arena + page * PAGE) = ~page;
	for (size_t block = 0; block < BLOCKS; block++)
		make_block(block);
	for (step = 0; step < steps; step++) {
		one_step();
		if (getenv("DUMP") && step >= strtoul(getenv("DUMP"), NULL, 0)) {
			for (size_t page = 0; page < ARENA; page++)
				printf("%lu: %zu %lx\n", step, page, touch((uint64_t *)(arena + page * PAGE), 0, 0));
		}
		if (step % 8 == 0)
			printf("%lu the arena holds %lx\n", step, digest_of(arena, ARENA));
	}
	for (size_t block = 0; block < BLOCKS; block++)
		printf("block %zu holds %lx\n", block, digest_of(blocks[block].start, blocks[block].pages));
	printf("the arena holds %lx\n", digest_of(arena, ARENA));
	return 0;
}
