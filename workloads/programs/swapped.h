/*
 * Memory for programs that know nothing of swap. Most of it is evicted when a system call uses it.
 */
#pragma once

/*
 * Swap is slow on a busy disk. The tests give the whole program 180 s. The limit of a check is
 * shorter, so that the program can still name a check that hangs.
 */
#define SECONDS_PER_CHECK 170
#include "check.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define PAGE 4096UL
#define MIB (1UL << 20)

static unsigned char *memory;
static size_t length;

static inline void make_memory(int mib)
{
	length = (size_t)mib * MIB;
	memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(memory != MAP_FAILED);
	memset(memory, 1, length);
}

/*
 * Returns a part of the memory that is evicted when the caller uses it. Since the last use of this
 * part, the program has touched all other memory.
 */
static inline void *out(size_t bytes)
{
	static size_t next;
	size_t pages = (bytes + PAGE - 1) / PAGE + 1;
	if ((next + pages) * PAGE > length)
		next = 0;
	unsigned char *place = memory + next * PAGE + 64;
	next += pages;
	return place;
}

static inline void evict(void)
{
	for (size_t at = 0; at < length; at += PAGE)
		*(volatile unsigned char *)(memory + at);
}

static inline void pattern(unsigned char *bytes, size_t count, unsigned seed)
{
	for (size_t at = 0; at < count; at++)
		bytes[at] = (unsigned char)((at ^ at >> 8) * 7 + seed);
}

static inline int matches(const unsigned char *bytes, size_t count, unsigned seed)
{
	for (size_t at = 0; at < count; at++)
		if (bytes[at] != (unsigned char)((at ^ at >> 8) * 7 + seed))
			return 0;
	return 1;
}
