/*
 * Swap regions by the functions of usring_swap.h. The program is linked to the library, and uses
 * threads, system calls, signals and children. Its argument is the mechanism.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/wait.h>
#include <usring.h>

enum { UNITS = 1024, LIMIT = 128, THREADS = 4, ROUNDS = 3000 };

static const char *mechanism;

static struct usring_swap *map(size_t unit)
{
	struct usring_swap_options options = {
		.options_size = sizeof(options),
		.size = UNITS * unit,
		.limit = LIMIT * unit,
		.backing = "ram:size=80M",
		.mechanism = mechanism,
	};
	struct usring_swap *swap = NULL;
	EQUAL(usring_swap_map(&options, &swap), 0);
	return swap;
}

static size_t unit(void)
{
	return strcmp(mechanism, "mprotect") == 0 ? 65536 : 4096;
}

static struct usring_swap_statistics statistics(struct usring_swap *swap)
{
	struct usring_swap_statistics found;
	EQUAL(usring_swap_statistics(swap, &found), 0);
	HOLDS(found.resident <= found.limit);
	return found;
}

static void fill(char *memory, size_t page)
{
	for (size_t index = 0; index < UNITS; index++)
		memset(memory + index * page, (char)(index % 251 + 1), 100);
}

static void memory_keeps_what_is_written(void)
{
	struct usring_swap *swap = map(unit());
	char *memory = usring_swap_address(swap);
	fill(memory, unit());
	for (size_t index = 0; index < UNITS; index++)
		EQUAL(memory[index * unit() + 99], (char)(index % 251 + 1));
	HOLDS(statistics(swap).evicted > 0);
	EQUAL(usring_swap_set_limit(swap, LIMIT / 2 * unit()), 0);
	EQUAL(statistics(swap).limit, LIMIT / 2);
	EQUAL(usring_swap_set_policy(swap, "hybrid"), 0);
	EQUAL(usring_swap_set_policy(swap, "sometimes"), -EINVAL);
	EQUAL(usring_swap_advise(swap, memory, UNITS * unit(), USRING_SWAP_DONTNEED), 0);
	EQUAL(statistics(swap).slots_taken, 0);
	EQUAL(memory[0], 0);
	usring_swap_unmap(swap);
}

static void pinned_memory_is_good_for_system_calls(void)
{
	struct usring_swap *swap = map(unit());
	char *memory = usring_swap_address(swap);
	int ends[2];
	EQUAL(pipe(ends), 0);
	fill(memory, unit());
	EQUAL(usring_swap_pin(swap, memory, 5000, 0), 0);
	EQUAL(write(ends[1], memory, 5000), 5000);
	EQUAL(usring_swap_unpin(swap, memory, 5000), 0);
	fill(memory + 0, unit());
	EQUAL(usring_swap_pin(swap, memory + 100, 5000, 1), 0);
	EQUAL(statistics(swap).pinned, (5100 + unit() - 1) / unit());
	EQUAL(read(ends[0], memory + 100, 5000), 5000);
	EQUAL(usring_swap_unpin(swap, memory + 100, 5000), 0);
	EQUAL(memory[199], 1);
	EQUAL(statistics(swap).pinned, 0);
	EQUAL(usring_swap_pin(swap, memory, UNITS * unit(), 0), -ENOMEM);
	EQUAL(usring_swap_pin(swap, memory + UNITS * unit() - 1, 2, 0), -EINVAL);
	usring_swap_unmap(swap);
}

static struct usring_swap *shared;
static atomic_int handled;

static void *increment(void *argument)
{
	unsigned seed = (unsigned)(size_t)argument;
	atomic_ulong *words = usring_swap_address(shared);
	for (int round = 0; round < ROUNDS; round++)
		atomic_fetch_add(&words[rand_r(&seed) % (UNITS * unit() / sizeof *words)], 1);
	return NULL;
}

/* Touches evicted pages, in a handler that may interrupt the program's threads anywhere. */
static void on_alarm(int signal)
{
	(void)signal;
	atomic_ulong *words = usring_swap_address(shared);
	static unsigned seed = 77;
	atomic_fetch_add(&words[rand_r(&seed) % (UNITS * unit() / sizeof *words)], 1);
	atomic_fetch_add(&handled, 1);
}

static void threads_and_signal_handlers_lose_no_increment(void)
{
	shared = map(unit());
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	sigaction(SIGUSR1, &action, NULL);
	pthread_t threads[THREADS];
	for (size_t index = 0; index < THREADS; index++)
		pthread_create(&threads[index], NULL, increment, (void *)(index + 1));
	for (int count = 0; count < 500; count++) {
		pthread_kill(threads[count % THREADS], SIGUSR1);
		sched_yield();
	}
	for (size_t index = 0; index < THREADS; index++)
		pthread_join(threads[index], NULL);
	unsigned long sum = 0;
	unsigned long *words = usring_swap_address(shared);
	for (size_t index = 0; index < UNITS * unit() / sizeof *words; index++)
		sum += words[index];
	EQUAL(sum, THREADS * ROUNDS + atomic_load(&handled));
	HOLDS(atomic_load(&handled) > 0);
	usring_swap_unmap(shared);
}

static void a_child_that_touches_the_memory_dies_and_its_parent_goes_on(void)
{
	struct usring_swap *swap = map(unit());
	char *memory = usring_swap_address(swap);
	memory[0] = 42;
	pid_t child = fork();
	if (child == 0) {
		close(2);
		_exit(memory[0]);
	}
	int status;
	EQUAL(waitpid(child, &status, 0), child);
	HOLDS(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	EQUAL(memory[0], 42);
	usring_swap_unmap(swap);
}

static void an_arena_gives_and_takes_blocks(void)
{
	struct usring_arena *arena;
	EQUAL(usring_arena_create(map(unit()), &arena), 0);
	char *blocks[200];
	for (int index = 0; index < 200; index++) {
		size_t size = index % 2 ? 100 + index : 3 * unit() + index;
		blocks[index] = usring_arena_malloc(arena, size);
		HOLDS(blocks[index] != NULL && (size_t)blocks[index] % 16 == 0);
		HOLDS(usring_arena_usable_size(arena, blocks[index]) >= size);
		memset(blocks[index], index + 1, size);
	}
	for (int index = 0; index < 200; index++) {
		EQUAL((unsigned char)blocks[index][99], index + 1);
		usring_arena_free(arena, blocks[index]);
	}
	usring_arena_free(arena, NULL);
	HOLDS(usring_arena_malloc(arena, 2 * UNITS * unit()) == NULL);
	HOLDS(statistics(usring_arena_region(arena)).slots_taken < 100);
	usring_arena_destroy(arena);
}

static void options_that_cannot_be_are_refused(void)
{
	struct usring_swap *swap;
	struct usring_swap_options options = {
		.options_size = sizeof(options),
		.size = 1 << 20,
		.limit = 1 << 20,
		.backing = "ram:size=1M",
	};
	options.mechanism = "magic";
	EQUAL(usring_swap_map(&options, &swap), -EINVAL);
	options.mechanism = mechanism;
	options.backing = "ram:colour=red";
	EQUAL(usring_swap_map(&options, &swap), -EINVAL);
	options.backing = "file:path=/nowhere/at/all";
	EQUAL(usring_swap_map(&options, &swap), -ENOENT);
	options.backing = (const char *)8;
	EQUAL(usring_swap_map(&options, &swap), -EFAULT);
	options.backing = "null:size=1G";
	EQUAL(usring_swap_map(&options, &swap), -ENODATA);
	options.backing = "error(null:size=1G,eio=1%)";
	EQUAL(usring_swap_map(&options, &swap), -ENODATA);
	options.backing = "ram:size=512K";
	EQUAL(usring_swap_map(&options, &swap), -ENOSPC);
	options.backing = "ram:size=1M";
	options.limit = 4096;
	EQUAL(usring_swap_map(&options, &swap), -EINVAL);
}

/* Fails unless usring_swap_map fails with this error, and the reason contains this text. */
static void refused(const struct usring_swap_options *options, int error, const char *text)
{
	struct usring_swap *swap = NULL;
	char reason[256];
	EQUAL(usring_swap_map(options, &swap), error);
	int length = usring_swap_error(reason, sizeof(reason));
	EQUAL(length, (int)strlen(reason));
	if (!strstr(reason, text))
		printf("the reason is: %s\n", reason);
	HOLDS(strstr(reason, text));
}

static void a_refusal_has_a_reason(void)
{
	struct usring_swap_options options = {
		.options_size = sizeof(options),
		.size = 1 << 20,
		.limit = 1 << 19,
		.backing = "ram:size=1K,speed=9",
	};
	char reason[8];
	refused(&options, -EINVAL, "speed");
	EQUAL(usring_swap_error(reason, sizeof(reason)) > 7, 1);
	EQUAL(strlen(reason), 7);
	HOLDS(usring_swap_error(NULL, 0) > 7);
	options.backing = "null:size=1G";
	refused(&options, -ENODATA, "keeps no data");
	options.backing = "ram:size=512K";
	refused(&options, -ENOSPC, "524288 bytes, but 1048576 are needed");
	options.backing = "ram:size=2M";
	options.mechanism = "magic";
	refused(&options, -EINVAL, "'magic' is not a mechanism");
	options.mechanism = NULL;
	options.options_size = 3;
	refused(&options, -EINVAL, "options_size is 3");
}

static void options_of_other_versions_are_read(void)
{
	struct {
		struct usring_swap_options known;
		size_t newer;
	} options = {
		.known = { .options_size = sizeof(options), .size = 1 << 20, .limit = 1 << 20, .backing = "ram:size=2M" },
	};
	struct usring_swap *swap = NULL;
	options.known.mechanism = strcmp(mechanism, "mprotect") ? mechanism : NULL;
	EQUAL(usring_swap_map(&options.known, &swap), 0);
	usring_swap_unmap(swap);
	options.newer = 1;
	refused(&options.known, -EINVAL, "newer");
	/* A program that knows the first three options only. */
	options.known.options_size = offsetof(struct usring_swap_options, mechanism);
	options.known.mechanism = (const char *)1;
	EQUAL(usring_swap_map(&options.known, &swap), 0);
	usring_swap_unmap(swap);
}

static const struct check checks[] = {
	{ "memory keeps what is written", memory_keeps_what_is_written },
	{ "pinned memory is good for system calls", pinned_memory_is_good_for_system_calls },
	{ "threads and signal handlers lose no increment", threads_and_signal_handlers_lose_no_increment },
	{ "a child that touches the memory dies", a_child_that_touches_the_memory_dies_and_its_parent_goes_on },
	{ "an arena gives and takes blocks", an_arena_gives_and_takes_blocks },
	{ "options that cannot be are refused", options_that_cannot_be_are_refused },
	{ "a refusal has a reason", a_refusal_has_a_reason },
	{ "options of other versions are read", options_of_other_versions_are_read },
};

int main(int count, char **arguments)
{
	mechanism = count > 1 ? arguments[1] : "guard";
	return run_checks(checks, sizeof checks / sizeof *checks, count > 2 ? arguments[2] : NULL);
}
