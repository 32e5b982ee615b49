/*
 * Polled AIO for programs on libaio (contexts whose events are polled for), and
 * below, swap regions: memory larger than what of it may be resident.
 *
 * The interface is that of the kernel patches at the end of 2018 (no release of
 * Linux has it) in their last form without rings: io_setup2 takes five
 * arguments, of which both rings are NULL; IOCTX_FLAG_IOPOLL is bit 0 and
 * IOCB_FLAG_HIPRI bit 2. Earlier forms of the patches had other numbers.
 *
 *     io_context_t ctx = 0;
 *     int error = io_setup2(128, IOCTX_FLAG_IOPOLL, NULL, NULL, &ctx);
 *     io_prep_pread(iocb, fd, buffer, 4096, offset);
 *     iocb->u.c.flags |= IOCB_FLAG_HIPRI;
 *
 * and from there on as with any other context: io_submit, io_getevents,
 * io_destroy. Build with `pkg-config --cflags --libs usring`. usring then serves
 * all of the program's io_uring and libaio calls; it need not be started by
 * `usring run`, but only that brings devices (`--device`).
 *
 * Rules of a polled context:
 * - Each iocb carries IOCB_FLAG_HIPRI, else io_submit answers EINVAL; and one
 *   that carries it is EINVAL in a context without IOCTX_FLAG_IOPOLL.
 * - PREAD, PWRITE, PREADV and PWRITEV; every other command is EINVAL, and so is
 *   IOCB_FLAG_RESFD.
 * - The file is open with O_DIRECT: a device of the run that polls, or any regular
 *   file or block device (by the kernel's AIO, whose ring is looked at), else EOPNOTSUPP.
 * - io_submit takes at most 127 iocbs at once; how many are under way is not
 *   limited.
 * - io_getevents looks at the devices until there are min_nr events or nothing
 *   is under way any more; its timeout means nothing. One thread at a time: a
 *   second one gets EBUSY.
 * - Events are there only by io_getevents: the ring at the context's address
 *   stays empty, and its magic number says so.
 * - io_cancel is EINVAL. io_destroy waits for what is under way.
 */
#ifndef USRING_H
#define USRING_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For io_setup2: events are polled for. */
#define IOCTX_FLAG_IOPOLL (1 << 0)

/* For an iocb's flags: to be polled for. */
#define IOCB_FLAG_HIPRI (1 << 2)

struct io_context;

/*
 * Makes a context for nr_events requests at a time. `ctx` (libaio's
 * io_context_t *) points to NULL; sq_ring and cq_ring are NULL.
 *
 * Answers 0 or a negative errno: -EINVAL for an unknown flag, rings, nr_events
 * of 0 or beyond what any context has, and where *ctx is not NULL; -EFAULT;
 * -ENOMEM.
 */
int io_setup2(unsigned nr_events, unsigned flags, void *sq_ring, void *cq_ring, struct io_context **ctx);

/*
 * Swap regions: memory larger than what of it may be resident, without swap of the
 * system's and without privileges. Its pages go to a file or a device, and the
 * thread that touches one that is out reads it back itself, by polling.
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
 * What differs from other memory:
 * - A system call that is given memory of a region answers EFAULT where a page is out,
 *   or does a part (but with the mechanism "compat"), and a datagram received into
 *   such a page is lost: pin what you give it.
 * - A forked child does not have the memory; a touch ends it with SIGBUS.
 * - A page that cannot be read back is a SIGBUS, and standard error names its slot.
 * - SIGBUS and SIGSEGV may not be blocked by a thread that touches a region.
 * - It is no good for stacks of threads, futexes, or buffers that a ring has registered.
 *
 * Functions answer 0 or a negative errno, unless they say otherwise. A handle is
 * what a function here gave, and lives until it is given up; other numbers are
 * as bad as pointers that are.
 */
struct usring_swap;

struct usring_swap_options {
	/* Bytes of the region; rounded up to whole pages. */
	size_t size;
	/* Most bytes of it that are resident; 64 pages at least. */
	size_t limit;
	/* Where its pages go, as `usring run --device` takes it: room for the region, and
	 * for a header of 4 KiB in a file. What it holds is lost; unless usring wrote it, or
	 * it is zeroes, the text has to say `overwrite=on`. */
	const char *backing;
	/* "userfault", "guard", "mprotect", "compat"; NULL: the best that works here. */
	const char *mechanism;
	/* Most bytes that are read ahead; 0: as many as seems good. */
	size_t readahead;
	/* Threads that fault at the same time without waiting for each other; 0: by itself. */
	size_t lanes;
};

/* For `readahead`: none. */
#define USRING_SWAP_NO_READAHEAD ((size_t)-1)

/* Errors, of the backing:
 *   -ENODATA  it keeps nothing that is written to it (`null`, whatever is around it)
 *   -ENOSPC   it is smaller than the region and its header
 *   -EEXIST   it holds data that usring did not write, or the kernel's swap space
 *   -EBUSY    another region has it, or it is mounted
 *   -EROFS    it is read-only
 * and what opening it answers. -EINVAL: an option that cannot be; -EOPNOTSUPP: no
 * mechanism works here; -ENOMEM. */
int usring_swap_map(const struct usring_swap_options *options, struct usring_swap **swap);

/* Gives the region up, and its memory. Nobody touches it any more. */
void usring_swap_unmap(struct usring_swap *swap);

/* Its first byte. */
void *usring_swap_address(struct usring_swap *swap);

/* For usring_swap_advise: whole pages hold zeroes from now on, and take neither
 * memory nor room in the backing. -EBUSY where one is pinned. */
#define USRING_SWAP_DONTNEED 4

int usring_swap_advise(struct usring_swap *swap, void *start, size_t length, int advice);

/* Brings a range in and keeps it resident, until as many unpins of the same range:
 * for system calls. `writes`: it will be written to. -ENOMEM where more than half of
 * the limit would be pinned; -EIO where a page cannot be read back. */
int usring_swap_pin(struct usring_swap *swap, const void *start, size_t length, int writes);
int usring_swap_unpin(struct usring_swap *swap, const void *start, size_t length);

/* A lower limit is kept when this returns. -ENOSPC: the backing has no room; -EBUSY:
 * too much is pinned. */
int usring_swap_set_limit(struct usring_swap *swap, size_t limit);

/* How pages are waited for: "interrupt", "classic" (polling), "hybrid", "hybrid:20us". */
int usring_swap_set_policy(struct usring_swap *swap, const char *policy);

/* Pages are units of `page_size` bytes. */
struct usring_swap_statistics {
	uint64_t pages, page_size, limit, resident, pinned;
	/* Of the backing, and how many hold a page. */
	uint64_t slots, slots_taken;
	/* Pages touched first; read by who touched them; written to first while clean;
	 * brought in by somebody else meanwhile; read before anybody touched them. */
	uint64_t first_touches, swap_ins, write_faults, late_faults, read_ahead;
	/* Pages evicted; of these written; requests that wrote them; evictions that a
	 * thread had to make before it could have its page. */
	uint64_t evicted, written, write_requests, direct_evictions;
	/* Pages that could not be read; requests that could not be written; pages that
	 * came in although the limit was reached and nothing could go. */
	uint64_t read_errors, write_errors, over_limit;
};

int usring_swap_statistics(struct usring_swap *swap, struct usring_swap_statistics *statistics);

/*
 * An allocator over a region, which it takes over (also where it fails: then the
 * region is given up). Blocks are aligned to 16 bytes. Looking for room and
 * freeing brings no page back; what is larger than half a page gives its memory and
 * its room in the backing up when it is freed.
 */
struct usring_arena;

int usring_arena_create(struct usring_swap *swap, struct usring_arena **arena);

/* Gives the arena up, and its region. */
void usring_arena_destroy(struct usring_arena *arena);

/* The region of an arena, for pins and statistics. */
struct usring_swap *usring_arena_region(struct usring_arena *arena);

/* NULL where there is no room. */
void *usring_arena_malloc(struct usring_arena *arena, size_t size);
void usring_arena_free(struct usring_arena *arena, void *block);

/* At least what was asked for. */
size_t usring_arena_usable_size(struct usring_arena *arena, void *block);

#ifdef __cplusplus
}
#endif

#endif
