/*
 * Threads that pass memory to each other by rings, for ThreadSanitizer. Each way to pass the memory
 * has two variants. The first variant has no race. In the second variant, the first thread also
 * changes the memory after it has passed it on. Arguments: the name of the way, and "race" for the
 * second variant. `workloads/tests/sanitizers.rs` runs this program.
 */
#include "check.h"
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/eventfd.h>

static struct io_uring ring, other;
static bool races;
static int event;

struct parcel {
	int value;
};

/* Makes a parcel, which the second thread will open. */
static struct parcel *pack(void)
{
	struct parcel *parcel = malloc(sizeof *parcel);

	HOLDS(parcel != NULL);
	parcel->value = 41;
	return parcel;
}

/* Runs in the first thread after it has handed the parcel over. */
static void after(struct parcel *parcel)
{
	if (races)
		parcel->value = 43; /* the race */
}

/* Runs in the second thread. The parcel is freed only if no other thread still uses it. */
static void open_parcel(struct io_uring_cqe *cqe)
{
	struct parcel *parcel = (struct parcel *)(unsigned long)cqe->user_data;

	HOLDS(parcel->value++ >= 41);
	if (!races)
		free(parcel);
}

static struct io_uring *inbox(void)
{
	return other.ring_fd > 0 ? &other : &ring;
}

static void *wait_for_one(void *nothing)
{
	struct io_uring_cqe *cqe;

	EQUAL(io_uring_wait_cqe(inbox(), &cqe), 0);
	open_parcel(cqe);
	io_uring_cqe_seen(inbox(), cqe);
	return nothing;
}

static void *peek_for_one(void *nothing)
{
	struct io_uring_cqe *cqe;

	while (io_uring_peek_batch_cqe(inbox(), &cqe, 1) == 0)
		look_again();
	open_parcel(cqe);
	io_uring_cqe_seen(inbox(), cqe);
	return nothing;
}

/* Looks at the CQ by functions of liburing that the compiler has inlined into this program. */
static void *look_for_one(void *nothing)
{
	struct io_uring_cqe *cqe = NULL;
	unsigned head;

	while (cqe == NULL) {
		io_uring_for_each_cqe(inbox(), head, cqe)
			break;
		look_again();
	}
	open_parcel(cqe);
	io_uring_cqe_seen(inbox(), cqe);
	return nothing;
}

/* Waits for the ring's eventfd. */
static void *event_of_one(void *nothing)
{
	unsigned long long count;

	EQUAL(read(event, &count, sizeof count), sizeof count);
	return peek_for_one(nothing);
}

static void submit_nop(void)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
	struct parcel *parcel = pack();

	io_uring_prep_nop(sqe);
	sqe->user_data = (unsigned long)parcel;
	EQUAL(io_uring_submit(&ring), 1);
	after(parcel);
}

/* Writes the parcel to a file, too. */
static void submit_write(void)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
	struct parcel *parcel = pack();
	int file = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);

	io_uring_prep_write(sqe, file, parcel, sizeof *parcel, 0);
	sqe->user_data = (unsigned long)parcel;
	EQUAL(io_uring_submit(&ring), 1);
	after(parcel);
}

/* Sends the parcel to the other ring. */
static void send_message(void)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
	struct parcel *parcel = pack();

	io_uring_prep_msg_ring(sqe, other.ring_fd, 0, (unsigned long)parcel, 0);
	EQUAL(io_uring_submit(&ring), 1);
	after(parcel);
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*give)(void);
		void *(*take)(void *);
		unsigned flags;
		bool has_other;
	} ways[] = {
		{"wait", submit_nop, wait_for_one, 0, false},
		{"write", submit_write, wait_for_one, 0, false},
		{"peek", submit_nop, peek_for_one, 0, false},
		{"look", submit_nop, look_for_one, 0, false},
		{"event", submit_write, event_of_one, 0, false},
		{"message", send_message, wait_for_one, 0, true},
		{"sq-thread", submit_write, wait_for_one, IORING_SETUP_SQPOLL, false},
	};
	const char *name = count > 1 ? arguments[1] : "";
	pthread_t thread;
	size_t index;

	alarm(SECONDS_PER_CHECK);
	races = count > 2;
	for (index = 0; index < sizeof ways / sizeof *ways; index++) {
		if (strcmp(ways[index].name, name) != 0)
			continue;
		running = name;
		EQUAL(io_uring_queue_init(8, &ring, ways[index].flags), 0);
		if (ways[index].has_other)
			EQUAL(io_uring_queue_init(8, &other, 0), 0);
		event = eventfd(0, 0);
		EQUAL(io_uring_register_eventfd(&ring, event), 0);
		/* All that comes later is ordered only by the rings. */
		EQUAL(pthread_create(&thread, NULL, ways[index].take, NULL), 0);
		ways[index].give();
		EQUAL(pthread_join(thread, NULL), 0);
		printf("%s is done\n", name);
		return 0;
	}
	printf("there is no way '%s'\n", name);
	return 1;
}
