/*
 * Namespaces of a served program. usring's threads make a program with a ring multithreaded, so
 * some calls answer as in any multithreaded program. Each check runs in a process of its own,
 * because a namespace cannot be left.
 */
#define _GNU_SOURCE
#include "ring.h"
#include <sys/wait.h>

/* A user namespace gives the right to make a PID namespace. */
enum { PID_NAMESPACE = CLONE_NEWUSER | CLONE_NEWPID };

static void a_ring_works(struct io_uring *ring)
{
	io_uring_prep_nop(request(ring));
	EQUAL(io_uring_submit_and_wait(ring, 1), 1);
	EQUAL(next_answer(ring).res, 0);
}

static void a_new_ring_works(void)
{
	struct io_uring ring = new_ring(8, 0);
	a_ring_works(&ring);
	io_uring_queue_exit(&ring);
}

/* Runs a function in a forked child, and fails if the child fails. */
static void in_child(void (*run)(void))
{
	int status;
	fflush(stdout);
	pid_t child = fork();
	HOLDS(child >= 0);
	if (child == 0) {
		alarm(SECONDS_PER_CHECK);
		run();
		fflush(stdout);
		_exit(0);
	}
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
}

static void enter_a_user_namespace(void)
{
	EQUAL(unshare(CLONE_NEWUSER), 0);
	a_new_ring_works();
}

static void a_user_namespace_before_the_first_ring(void)
{
	in_child(enter_a_user_namespace);
}

static void enter_after_a_ring(void)
{
	struct io_uring ring = new_ring(8, 0);
	a_ring_works(&ring);
	EQUAL(unshare(CLONE_NEWUSER), -1);
	EQUAL(errno, EINVAL);
	a_ring_works(&ring);
	/* A forked child has one thread. */
	in_child(enter_a_user_namespace);
	a_ring_works(&ring);
	io_uring_queue_exit(&ring);
}

static void a_user_namespace_after_a_ring(void)
{
	in_child(enter_after_a_ring);
}

static void set_up_after_leaving(void)
{
	struct io_uring ring;
	EQUAL(unshare(PID_NAMESPACE), 0);
	EQUAL(io_uring_queue_init(8, &ring, 0), -EINVAL);
	/* The first child is the first process of the namespace. */
	in_child(a_new_ring_works);
}

static void no_first_ring_after_a_pid_namespace(void)
{
	in_child(set_up_after_leaving);
}

static void use_rings_after_leaving(void)
{
	struct io_uring ring = new_ring(8, 0);
	a_ring_works(&ring);
	EQUAL(unshare(CLONE_NEWPID), 0);
	a_ring_works(&ring);
	a_new_ring_works();
	in_child(a_new_ring_works);
	io_uring_queue_exit(&ring);
}

/* Needs the right to make a PID namespace without a user namespace. */
static void rings_go_on_after_a_pid_namespace(void)
{
	in_child(use_rings_after_leaving);
}

static const struct check checks[] = {
	{ "a user namespace before the first ring", a_user_namespace_before_the_first_ring },
	{ "a user namespace after a ring", a_user_namespace_after_a_ring },
	{ "no first ring after a PID namespace", no_first_ring_after_a_pid_namespace },
	{ "rings go on after a PID namespace", rings_go_on_after_a_pid_namespace },
};

int main(int count, char **arguments)
{
	return RUN(checks, count, arguments);
}
