/* Swap regions: memory of which only a part is resident, without the system's swap and without
 * privileges. The region's other pages are on its backing: a file, or a device that usring drives.
 * A thread that touches an evicted page reads that page back itself, by polling.
 *
 *     struct usring_swap_options options = {
 *         .options_size = sizeof(options),
 *         .size = 1 << 30,
 *         .limit = 256 << 20,
 *         .backing = "file:path=/var/tmp/pages,size=1G,create=on",
 *     };
 *     struct usring_swap *swap;
 *     int error = usring_swap_map(&options, &swap);
 *     char *memory = usring_swap_address(swap);
 *
 * Differences from other memory:
 * - A system call on memory of a region answers EFAULT at an evicted page, or stops there. A
 *   datagram that is received into such a page is lost. So pin memory before you pass it to a
 *   system call. (The mechanism "compat" does not need this.)
 * - A forked child does not have the memory. A child that touches it ends with SIGBUS.
 * - A touch of a page that cannot be read back raises SIGBUS. usring writes the number of that
 *   page's slot in the backing to standard error.
 * - A thread that touches a region must not block SIGBUS or SIGSEGV.
 * - The memory must not be used for threads' stacks, for futexes, or for buffers registered with a
 *   ring.
 *
 * Functions return 0 or a negative errno, unless their comment says otherwise. A handle is valid
 * from the call that returns it until the call that frees it. Passing any other value is undefined
 * behaviour, like an invalid pointer. */
#ifndef USRING_SWAP_H
#define USRING_SWAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct usring_swap;

struct usring_swap_options {
	/* sizeof(struct usring_swap_options). It tells the library which options the program knows. */
	size_t options_size;
	/* Size of the region in bytes, rounded up to whole pages. */
	size_t size;
	/* Bytes of the region that may be resident; at least 64 pages. */
	size_t limit;
	/* Where evicted pages go: a SPEC of `usring run --device`. The backing needs room for the whole
	 * region, and a file needs 4 KiB more for a header. The old content of the backing is lost. If
	 * usring did not write that content and it is not all zeroes, the SPEC must contain
	 * `overwrite=on`. */
	const char *backing;
	/* "userfault", "guard", "mprotect" or "compat". NULL: the best that works in this process. */
	const char *mechanism;
	/* Bytes to read ahead of a thread that touches pages in order. 0 stands for the default of
	 * 128 KiB. USRING_SWAP_NO_READAHEAD turns reading ahead off. */
	size_t readahead;
	/* How many threads can fault at the same time without sharing a queue pair of the backing. 0 is
	 * the default, four per processor. */
	size_t queues;
};

/* Value of `readahead` that turns reading ahead off. */
#define USRING_SWAP_NO_READAHEAD ((size_t)-1)

/* Makes a region. Errors:
 * - -ENODATA: the backing stores nothing that is written to it (`null`, also inside a wrapper).
 * - -ENOSPC: the backing is smaller than the region and its header.
 * - -EEXIST: the backing holds data that usring did not write, or is swap space of the kernel.
 * - -EBUSY: another region uses the backing, or the backing is mounted.
 * - -EROFS: the backing is read-only.
 * - -EINVAL: an option has an impossible value.
 * - -EOPNOTSUPP: no mechanism works here.
 * - -ENOMEM: memory could not be allocated.
 * - Further errors are those of opening the backing. */
int usring_swap_map(const struct usring_swap_options *options, struct usring_swap **swap);

/* Copies to `text` the reason for this thread's last failure of usring_swap_map: one sentence and a
 * NUL. `text` has room for `room` bytes; a longer sentence is cut. Without a failure the sentence
 * is empty.
 *
 * Returns the length of the whole sentence without its NUL, or a negative errno. */
int usring_swap_error(char *text, size_t room);

/* Frees the region with its memory, which must not be accessed after the call. */
void usring_swap_unmap(struct usring_swap *swap);

/* Returns the address of the region's first byte. */
void *usring_swap_address(struct usring_swap *swap);

/* Advice for usring_swap_advise: drop the content of whole pages. Afterwards the pages read as
 * zeroes, and take neither memory nor room in the backing. -EBUSY: a page is pinned. */
#define USRING_SWAP_DONTNEED 4

int usring_swap_advise(struct usring_swap *swap, void *start, size_t length, int advice);

/* Brings a range in and keeps it resident, so that system calls can use it. The range stays
 * resident until it was unpinned as many times as it was pinned. `writes` says whether the memory
 * will be written to. -ENOMEM: more than half of the limit would be pinned. -EIO: a page cannot be
 * read back. */
int usring_swap_pin(struct usring_swap *swap, const void *start, size_t length, int writes);
int usring_swap_unpin(struct usring_swap *swap, const void *start, size_t length);

/* Changes the limit to `limit` bytes. If the new limit is lower, the call returns after enough
 * pages were evicted. -ENOSPC: the backing has no room. -EBUSY: too many pages are pinned. */
int usring_swap_set_limit(struct usring_swap *swap, size_t limit);

/* Sets how threads wait for pages: "interrupt", "classic" (polling), "hybrid" or "hybrid:20us". */
int usring_swap_set_policy(struct usring_swap *swap, const char *policy);

/* Counters of a region. A page has `page_size` bytes. */
struct usring_swap_statistics {
	uint64_t pages, page_size, limit, resident, pinned;
	/* Slots of the backing, and how many of these hold a page. */
	uint64_t slots, slots_taken;
	/* - first_touches: pages touched for the first time.
	 * - swap_ins: pages read back by the thread that touched or pinned them.
	 * - write_faults: first writes to clean pages.
	 * - late_faults: faults on pages that another thread had just brought in.
	 * - read_ahead: pages read ahead. */
	uint64_t first_touches, swap_ins, write_faults, late_faults, read_ahead;
	/* - evicted: pages evicted.
	 * - written: evicted pages that had to be written.
	 * - write_requests: requests that wrote pages.
	 * - direct_evictions: evictions that a faulting thread had to make itself. */
	uint64_t evicted, written, write_requests, direct_evictions;
	/* - read_errors: pages that could not be read.
	 * - write_errors: write requests that failed.
	 * - over_limit: pages that came in above the limit, because no page could be evicted. */
	uint64_t read_errors, write_errors, over_limit;
};

int usring_swap_statistics(struct usring_swap *swap, struct usring_swap_statistics *statistics);

/* An allocator over a region. The allocator owns the region. (If usring_arena_create fails, it
 * frees the region.) Blocks are aligned to 16 bytes. Allocating and freeing a block brings no page
 * in. When a block larger than half a page is freed, its memory and its room in the backing are
 * released. */
struct usring_arena;

int usring_arena_create(struct usring_swap *swap, struct usring_arena **arena);

/* Frees the arena and its region. */
void usring_arena_destroy(struct usring_arena *arena);

/* Returns the region of an arena, for pinning and statistics. */
struct usring_swap *usring_arena_region(struct usring_arena *arena);

/* Allocates a block. Returns NULL if the region has no room. */
void *usring_arena_malloc(struct usring_arena *arena, size_t size);
void usring_arena_free(struct usring_arena *arena, void *block);

/* Returns the size of a block in bytes, which is at least the size that was asked for. */
size_t usring_arena_usable_size(struct usring_arena *arena, void *block);

#ifdef __cplusplus
}
#endif

#endif
