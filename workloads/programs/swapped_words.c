/*
 * A program without any code for swap: threads add to words all over an ordinary mapping. In the
 * end the sum of the words must be the sum of what was added. The program prints "at work" once all
 * of the memory has content.
 *
 * - argv[1]: bytes of the memory in MiB;
 * - argv[2]: the number of threads;
 * - argv[3]: additions per thread, or 0 to continue until SIGTERM.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Size of a part of the memory. Each part has one word, at an offset that differs between parts. */
#define PART 512UL
#define MOST 64

static unsigned char *memory;
static size_t parts;
static unsigned long rounds;
static volatile sig_atomic_t over;

static void end(int signal)
{
	(void)signal;
	over = 1;
}

static _Atomic uint64_t *word(size_t part)
{
	return (_Atomic uint64_t *)(memory + part * PART + part * 8 % PART);
}

static void *add(void *argument)
{
	uint64_t random = (uint64_t)argument + 1, added = 0;
	while (rounds ? added < rounds : !over) {
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		atomic_fetch_add(word(random % parts), 1);
		added++;
		/* Only reads the word, so that some resident pages stay clean. */
		(void)atomic_load(word(random / 3 % parts));
	}
	return (void *)added;
}

int main(int count, char **arguments)
{
	size_t length = count == 4 ? (size_t)atoi(arguments[1]) << 20 : 0;
	int threads = count == 4 ? atoi(arguments[2]) : 0;
	if (length == 0 || threads < 1 || threads > MOST)
		return 2;
	rounds = strtoul(arguments[3], NULL, 10);
	signal(SIGTERM, end);
	memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	parts = length / PART;
	for (size_t part = 0; part < parts; part++)
		*word(part) = part;
	puts("at work");
	fflush(stdout);
	pthread_t thread[MOST];
	uint64_t expected = 0, found = 0;
	for (int each = 0; each < threads; each++)
		if (pthread_create(&thread[each], NULL, add, (void *)(uintptr_t)each) != 0)
			return 1;
	for (int each = 0; each < threads; each++) {
		void *added;
		pthread_join(thread[each], &added);
		expected += (uint64_t)added;
	}
	for (size_t part = 0; part < parts; part++)
		found += *word(part) - part;
	if (found != expected) {
		fprintf(stderr, "%lu of %lu additions are there\n", (unsigned long)found, (unsigned long)expected);
		return 1;
	}
	printf("%lu additions hold\n", (unsigned long)found);
	return 0;
}
