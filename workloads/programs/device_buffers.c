/*
 * Replaces registered buffers of a ring while it uses a device. `disk` is a polled device of a back
 * end in another process, and shares registered memory with the back end (zero-copy=on).
 */
#define _GNU_SOURCE
#include "ring.h"
#include <sys/mman.h>

enum { BUFFER = 65536 };

static char *new_memory(void *address, int content)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (address == NULL ? 0 : MAP_FIXED_NOREPLACE);
	char *memory = mmap(address, BUFFER, PROT_READ | PROT_WRITE, flags, -1, 0);
	HOLDS(memory != MAP_FAILED);
	return memset(memory, content, BUFFER);
}

/* Makes the memory the ring's only registered buffer. */
static void replace(struct io_uring *ring, char *memory)
{
	struct iovec buffer = { memory, BUFFER };
	__u64 tag = 0;
	EQUAL(io_uring_register_buffers_update_tag(ring, 0, &buffer, &tag, 1), 1);
}

static void write_buffer(struct io_uring *ring, int disk, char *memory)
{
	io_uring_prep_write_fixed(request(ring), disk, memory, BUFFER, 0, 0);
	EQUAL(io_uring_submit_and_wait(ring, 1), 1);
	EQUAL(next_answer(ring).res, BUFFER);
}

static void disk_contains(int disk, int content)
{
	char *found;
	HOLDS(posix_memalign((void **)&found, 4096, BUFFER) == 0);
	EQUAL(pread(disk, found, BUFFER, 0), BUFFER);
	EQUAL(found[0], content);
	EQUAL(found[BUFFER - 1], content);
	free(found);
}

/* Returns whether usring has put pages that it shares with the back end at this address. */
static int is_shared(char *memory)
{
	char line[512], start[32];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	HOLDS(maps != NULL);
	snprintf(start, sizeof start, "%lx-", (unsigned long)memory);
	while (fgets(line, sizeof line, maps) != NULL)
		if (strncmp(line, start, strlen(start)) == 0)
			found = strstr(line, "usring-registered") != NULL;
	fclose(maps);
	return found;
}

static void a_buffer_at_the_address_of_a_replaced_one_is_written(void)
{
	struct io_uring ring = new_ring(8, IORING_SETUP_IOPOLL);
	int disk = open("disk", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0);
	char *first = new_memory(NULL, 1), *other = new_memory(NULL, 2);
	struct iovec buffer = { first, BUFFER };
	EQUAL(io_uring_register_buffers(&ring, &buffer, 1), 0);
	HOLDS(is_shared(first));
	write_buffer(&ring, disk, first);
	disk_contains(disk, 1);
	replace(&ring, other);
	HOLDS(munmap(first, BUFFER) == 0);
	HOLDS(new_memory(first, 3) == first);
	replace(&ring, first);
	write_buffer(&ring, disk, first);
	disk_contains(disk, 3);
	io_uring_queue_exit(&ring);
}

static void a_buffer_that_replaces_another_is_shared(void)
{
	struct io_uring ring = new_ring(8, IORING_SETUP_IOPOLL);
	int disk = open("disk", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0);
	EQUAL(io_uring_register_buffers_sparse(&ring, 1), 0);
	char *memory = new_memory(NULL, 4);
	replace(&ring, memory);
	HOLDS(is_shared(memory));
	write_buffer(&ring, disk, memory);
	disk_contains(disk, 4);
	io_uring_queue_exit(&ring);
}

static void a_second_ring_registers_memory_at_the_address_of_earlier_memory(void)
{
	struct io_uring first = new_ring(8, IORING_SETUP_IOPOLL), second = new_ring(8, IORING_SETUP_IOPOLL);
	int disk = open("disk", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0);
	char *memory = new_memory(NULL, 5);
	struct iovec buffer = { memory, BUFFER };
	EQUAL(io_uring_register_buffers(&first, &buffer, 1), 0);
	HOLDS(is_shared(memory));
	HOLDS(munmap(memory, BUFFER) == 0);
	HOLDS(new_memory(memory, 6) == memory);
	EQUAL(io_uring_register_buffers(&second, &buffer, 1), 0);
	write_buffer(&second, disk, memory);
	disk_contains(disk, 6);
	io_uring_queue_exit(&first);
	write_buffer(&second, disk, memset(memory, 7, BUFFER));
	disk_contains(disk, 7);
	io_uring_queue_exit(&second);
	close(disk);
}

enum { REQUESTS = 64 };

static void submit_reads(struct io_uring *ring, int disk, char *memory, int slots)
{
	for (int i = 0; i < REQUESTS; i++) {
		int slot = 1 + i % (slots - 1);
		io_uring_prep_read_fixed(request(ring), disk, memory + slot * BUFFER, BUFFER, 0, slot);
	}
	EQUAL(io_uring_submit(ring), REQUESTS);
}

static void all_answers_are_good(struct io_uring *ring)
{
	for (int i = 0; i < REQUESTS; i++)
		EQUAL(next_answer(ring).res, BUFFER);
}

static void memory_is_registered_anew_after_an_unregistration_with_requests_in_flight(void)
{
	struct io_uring first = new_ring(2 * REQUESTS, IORING_SETUP_IOPOLL), second = new_ring(8, IORING_SETUP_IOPOLL);
	int disk = open("disk", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0);
	char *memory = new_memory(NULL, 1);
	struct iovec buffer = { memory, BUFFER };
	EQUAL(io_uring_register_buffers(&first, &buffer, 1), 0);
	HOLDS(is_shared(memory));
	for (int i = 0; i < REQUESTS; i++)
		io_uring_prep_write_fixed(request(&first), disk, memory, BUFFER, 0, 0);
	EQUAL(io_uring_submit(&first), REQUESTS);
	EQUAL(io_uring_unregister_buffers(&first), 0);
	all_answers_are_good(&first);
	HOLDS(munmap(memory, BUFFER) == 0);
	int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	HOLDS(mmap(memory, BUFFER, PROT_READ | PROT_WRITE, flags, -1, 0) == memory);
	memset(memory, 3, BUFFER);
	EQUAL(io_uring_register_buffers(&second, &buffer, 1), 0);
	write_buffer(&second, disk, memory);
	disk_contains(disk, 3);
	io_uring_queue_exit(&first);
	io_uring_queue_exit(&second);
	close(disk);
}

/* `renew`: whether the program first maps other memory in the place of the updated buffer. */
static void update_beside_requests(int renew)
{
	enum { SLOTS = 8 };
	struct io_uring ring = new_ring(2 * REQUESTS, IORING_SETUP_IOPOLL);
	int disk = open("disk", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	char *memory = mmap(NULL, SLOTS * BUFFER, PROT_READ | PROT_WRITE, flags, -1, 0);
	HOLDS(memory != MAP_FAILED);
	memset(memory, 5, SLOTS * BUFFER);
	struct iovec buffers[SLOTS];
	for (int i = 0; i < SLOTS; i++)
		buffers[i] = (struct iovec){ memory + i * BUFFER, BUFFER };
	EQUAL(io_uring_register_buffers(&ring, buffers, SLOTS), 0);
	HOLDS(is_shared(memory));
	submit_reads(&ring, disk, memory, SLOTS);
	if (renew) {
		HOLDS(munmap(memory, BUFFER) == 0);
		HOLDS(new_memory(memory, 6) == memory);
	}
	replace(&ring, memory);
	all_answers_are_good(&ring);
	submit_reads(&ring, disk, memory, SLOTS);
	all_answers_are_good(&ring);
	write_buffer(&ring, disk, memset(memory, 8, BUFFER));
	disk_contains(disk, 8);
	io_uring_queue_exit(&ring);
	close(disk);
}

static void requests_of_other_buffers_are_in_flight_at_an_update(void)
{
	update_beside_requests(0);
}

static void requests_of_other_buffers_are_in_flight_at_an_update_with_new_memory(void)
{
	update_beside_requests(1);
}

static void a_buffer_without_a_whole_page_is_written(void)
{
	struct io_uring ring = new_ring(8, IORING_SETUP_IOPOLL);
	int disk = open("disk", O_RDWR | O_DIRECT);
	HOLDS(disk >= 0);
	char *memory = new_memory(NULL, 9);
	struct iovec buffer = { memory + 512, 2048 };
	EQUAL(io_uring_register_buffers(&ring, &buffer, 1), 0);
	io_uring_prep_write_fixed(request(&ring), disk, memory + 512, 2048, 0, 0);
	EQUAL(io_uring_submit_and_wait(&ring, 1), 1);
	EQUAL(next_answer(&ring).res, 2048);
	io_uring_queue_exit(&ring);
	close(disk);
}

static const struct check checks[] = {
	{ "a buffer at the address of a replaced one is written", a_buffer_at_the_address_of_a_replaced_one_is_written },
	{ "a buffer that replaces another is shared", a_buffer_that_replaces_another_is_shared },
	{ "a second ring registers memory at the address of earlier memory",
	  a_second_ring_registers_memory_at_the_address_of_earlier_memory },
	{ "memory is registered anew after an unregistration with requests in flight",
	  memory_is_registered_anew_after_an_unregistration_with_requests_in_flight },
	{ "requests of other buffers are in flight at an update", requests_of_other_buffers_are_in_flight_at_an_update },
	{ "requests of other buffers are in flight at an update with new memory",
	  requests_of_other_buffers_are_in_flight_at_an_update_with_new_memory },
	{ "a buffer without a whole page is written", a_buffer_without_a_whole_page_is_written },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
