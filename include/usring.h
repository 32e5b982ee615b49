/*
 * Polled AIO for programs on libaio (contexts whose events are polled for) and,
 * below, swap regions: memory of which only a part is resident.
 *
 * The interface is that of the kernel patches at the end of 2018, in their last
 * form without rings. (No release of Linux has it, and earlier forms had other
 * numbers.) io_setup2 takes five arguments, of which both rings are NULL.
 * IOCTX_FLAG_IOPOLL is bit 0, and IOCB_FLAG_HIPRI is bit 2.
 *
 *     io_context_t ctx = 0;
 *     int error = io_setup2(128, IOCTX_FLAG_IOPOLL, NULL, NULL, &ctx);
 *     io_prep_pread(iocb, fd, buffer, 4096, offset);
 *     iocb->u.c.flags |= IOCB_FLAG_HIPRI;
 *
 * The rest is as with any other context: io_submit, io_getevents, io_destroy.
 * Build with `pkg-config --cflags --libs usring`. usring then serves all of the
 * program's io_uring and libaio calls. The program need not be started by
 * `usring run`, except to use devices (`--device`).
 *
 * Rules of a polled context:
 * - Each iocb carries IOCB_FLAG_HIPRI; without it io_submit answers EINVAL. In a
 *   context without IOCTX_FLAG_IOPOLL an iocb with the flag gets EINVAL.
 * - The commands are PREAD, PWRITE, PREADV and PWRITEV. Every other command is
 *   EINVAL, and so is IOCB_FLAG_RESFD.
 * - The file is open with O_DIRECT. It is a device of the run that polls, or any
 *   regular file or block device (the kernel's AIO, whose ring is polled). Any
 *   other file gets EOPNOTSUPP.
 * - io_submit takes at most 127 iocbs per call. Any number may be in flight.
 * - io_getevents polls the devices until there are min_nr events or no request
 *   is in flight. It ignores the timeout. One thread at a time may call it; a
 *   second thread gets EBUSY.
 * - Only io_getevents returns events. The ring at the context's address stays
 *   empty, and its magic number says so.
 * - io_cancel is EINVAL. io_destroy waits for the requests in flight.
 */
#ifndef USRING_H
#define USRING_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flag of io_setup2: the context's events are polled for. */
#define IOCTX_FLAG_IOPOLL (1 << 0)

/* Flag of an iocb: its event is polled for. */
#define IOCB_FLAG_HIPRI (1 << 2)

struct io_context;

/*
 * Makes a context for nr_events requests at a time. `ctx` (libaio's
 * io_context_t *) points to NULL; sq_ring and cq_ring are NULL.
 *
 * Returns 0 or a negative errno:
 * - -EINVAL: a flag is unknown, a ring is not NULL, nr_events is 0 or more than any
 *   context has, or *ctx is not NULL.
 * - -EFAULT: ctx is no valid address.
 * - -ENOMEM: there is no memory.
 */
int io_setup2(unsigned nr_events, unsigned flags, void *sq_ring, void *cq_ring, struct io_context **ctx);

/*
 * Swap regions: memory of which only a part is resident, without swap of the
 * system's and without privileges. The pages of a region go to a file or a device.
 * The thread that touches a page that is out reads it back itself, by polling.
 *
 *     struct usring_swap_options options = {
 *         .size = 1 << 30,
 *         .limit = 256 << 20,
 *         .backing = "file:path=/var/tmp/pages,size=1G",
 *     };
 *     struct usring_swap *swap;
 *     int error = usring_swap_map(&options, &swap);
 *     char *memory = usring_swap_address(swap);
 *
 * Differences from other memory:
 * - A system call on memory of a region answers EFAULT at a page that is out, or
 *   stops there; a datagram received into such a page is lost. So pin the memory
 *   that you pass to a system call. (With the mechanism "compat" that is not needed.)
 * - A forked child does not have the memory. Touching it ends the child with SIGBUS.
 * - A page that cannot be read back raises SIGBUS, and standard error names its slot.
 * - A thread that touches a region must not block SIGBUS and SIGSEGV.
 * - The memory must not be used for threads' stacks, futexes, or buffers that a ring
 *   has registered.
 *
 * Functions return 0 or a negative errno, unless their comment says otherwise. A
 * handle is valid from the function that returns it to the one that gives it up. Any
 * other value is as wrong as an invalid pointer.
 */
struct usring_swap;

struct usring_swap_options {
	/* Size of the region in bytes, rounded up to whole pages. */
	size_t size;
	/* How many bytes of it may be resident; 64 pages at least. */
	size_t limit;
	/* Where its pages go, in the words of `usring run --device`. The backing has room
	 * for the region; a file has room for a header of 4 KiB besides. Its content is
	 * lost: if usring did not write it and it is not all zeroes, the text must say
	 * `overwrite=on`. */
	const char *backing;
	/* "userfault", "guard", "mprotect", "compat"; NULL: the best that works here. */
	const char *mechanism;
	/* How many bytes are read ahead; 0: the default, USRING_SWAP_NO_READAHEAD: none. */
	size_t readahead;
	/* How many threads can fault at the same time without waiting for each other; 0: the
	 * default. */
	size_t queues;
};

/* For `readahead`: read nothing ahead. */
#define USRING_SWAP_NO_READAHEAD ((size_t)-1)

/* Makes a region. Errors:
 * - -ENODATA: the backing keeps nothing that is written to it (`null`, also within a
 *   wrapper).
 * - -ENOSPC: the backing is smaller than the region and its header.
 * - -EEXIST: the backing holds data that usring did not write, or is the kernel's swap
 *   space.
 * - -EBUSY: another region uses the backing, or it is mounted.
 * - -EROFS: the backing is read-only.
 * - -EINVAL: an option has an impossible value.
 * - -EOPNOTSUPP: no mechanism works here.
 * - -ENOMEM: there is no memory.
 * - Other errors are those of opening the backing. */
int usring_swap_map(const struct usring_swap_options *options, struct usring_swap **swap);

/* Gives the region up, with its memory, which must not be touched any more. */
void usring_swap_unmap(struct usring_swap *swap);

/* Returns the address of the first byte. */
void *usring_swap_address(struct usring_swap *swap);

/* For usring_swap_advise: drops the content of whole pages. They hold zeroes from now
 * on, and take neither memory nor room in the backing. -EBUSY: a page is pinned. */
#define USRING_SWAP_DONTNEED 4

int usring_swap_advise(struct usring_swap *swap, void *start, size_t length, int advice);

/* Brings a range in and keeps it resident, so that system calls can use it, until the
 * same range was unpinned as often. `writes`: the memory will be written to. -ENOMEM:
 * more than half of the limit would be pinned; -EIO: a page cannot be read back. */
int usring_swap_pin(struct usring_swap *swap, const void *start, size_t length, int writes);
int usring_swap_unpin(struct usring_swap *swap, const void *start, size_t length);

/* Changes the limit. When the limit falls, the call returns after enough pages are
 * evicted. -ENOSPC: the backing has no room; -EBUSY: too many pages are pinned. */
int usring_swap_set_limit(struct usring_swap *swap, size_t limit);

/* Sets how threads wait for pages: "interrupt", "classic" (polling), "hybrid", "hybrid:20us". */
int usring_swap_set_policy(struct usring_swap *swap, const char *policy);

/* Counters of a region. Pages have `page_size` bytes. */
struct usring_swap_statistics {
	uint64_t pages, page_size, limit, resident, pinned;
	/* Slots of the backing, and how many of them hold a page. */
	uint64_t slots, slots_taken;
	/* Pages touched for the first time; read back by the thread that touched them; clean
	 * pages written to; pages that another thread brought in meanwhile; pages read ahead. */
	uint64_t first_touches, swap_ins, write_faults, late_faults, read_ahead;
	/* Pages evicted; pages of these that were written; requests that wrote them;
	 * evictions that a faulting thread had to make itself. */
	uint64_t evicted, written, write_requests, direct_evictions;
	/* Pages that could not be read; requests that could not be written; pages brought in
	 * above the limit, because nothing could be evicted. */
	uint64_t read_errors, write_errors, over_limit;
};

int usring_swap_statistics(struct usring_swap *swap, struct usring_swap_statistics *statistics);

/*
 * An allocator over a region, which it takes over. (If creating it fails, the region is
 * given up.) Blocks are aligned to 16 bytes. Allocating and freeing bring no page back.
 * A block larger than half a page releases its memory and its room in the backing when
 * it is freed.
 */
struct usring_arena;

int usring_arena_create(struct usring_swap *swap, struct usring_arena **arena);

/* Gives up the arena and its region. */
void usring_arena_destroy(struct usring_arena *arena);

/* Returns the region of an arena, for pins and statistics. */
struct usring_swap *usring_arena_region(struct usring_arena *arena);

/* Allocates a block; NULL if there is no room. */
void *usring_arena_malloc(struct usring_arena *arena, size_t size);
void usring_arena_free(struct usring_arena *arena, void *block);

/* Returns the size of a block: at least the size that it was allocated with. */
size_t usring_arena_usable_size(struct usring_arena *arena, void *block);

#ifdef __cplusplus
}
#endif

#endif
