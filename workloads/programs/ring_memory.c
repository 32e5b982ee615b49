/*
 * Measures the memory of idle rings, and shows that many rings can exist at the same time.
 *
 * ring_memory COUNT ENTRIES
 *
 * Makes COUNT rings of ENTRIES entries, of which each completes a NOP. Then prints by how many
 * bytes per ring the process has grown. There are three numbers:
 * - of the proportional set size (Pss);
 * - of the resident set size (Rss);
 * - of the resident set size after the rings are closed.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <sys/resource.h>

struct memory {
	long pss, rss;
};

static struct memory memory_now(void)
{
	struct memory memory = { -1, -1 };
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	char line[256];

	HOLDS(file != NULL);
	while (fgets(line, sizeof line, file) != NULL) {
		sscanf(line, "Pss: %ld kB", &memory.pss);
		sscanf(line, "Rss: %ld kB", &memory.rss);
	}
	fclose(file);
	HOLDS(memory.pss > 0 && memory.rss > 0);
	return memory;
}

static void one_answer(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = request(ring);
	io_uring_prep_nop(sqe);
	EQUAL(result_of(ring, sqe), 0);
}

int main(int count, char **arguments)
{
	HOLDS(count == 3);
	int rings_wanted = atoi(arguments[1]), entries = atoi(arguments[2]);
	struct io_uring *rings = calloc(rings_wanted, sizeof *rings);
	struct rlimit files;

	running = "ring_memory";
	signal(SIGALRM, too_long);
	alarm(SECONDS_PER_CHECK);
	EQUAL(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = files.rlim_max;
	EQUAL(setrlimit(RLIMIT_NOFILE, &files), 0);
	/*
	 * The first ring also allocates what all rings share. It is made before the measurement
	 * begins.
	 */
	struct io_uring first = new_ring(entries, 0);
	one_answer(&first);
	memset(rings, 0, rings_wanted * sizeof *rings);
	struct memory before = memory_now();
	for (int index = 0; index < rings_wanted; index++) {
		rings[index] = new_ring(entries, 0);
		one_answer(&rings[index]);
	}
	struct memory after = memory_now();
	/* All rings must still exist, and must be independent. */
	for (int index = rings_wanted - 1; index >= 0; index--)
		one_answer(&rings[index]);
	for (int index = 0; index < rings_wanted; index++)
		io_uring_queue_exit(&rings[index]);
	one_answer(&first);
	struct memory end = memory_now();
	printf("%ld %ld %ld\n", (after.pss - before.pss) * 1024 / rings_wanted,
	       (after.rss - before.rss) * 1024 / rings_wanted, (end.rss - before.rss) * 1024 / rings_wanted);
	return 0;
}
