/*
 * Polled AIO for programs on libaio: contexts whose events are polled for.
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
 * `usring run`, but only that brings devices that poll (`--device`).
 *
 * Rules of a polled context:
 * - Each iocb carries IOCB_FLAG_HIPRI, else io_submit answers EINVAL; and one
 *   that carries it is EINVAL in a context without IOCTX_FLAG_IOPOLL.
 * - PREAD, PWRITE, PREADV and PWRITEV; every other command is EINVAL, and so is
 *   IOCB_FLAG_RESFD.
 * - The file is open with O_DIRECT on something that polls, else EOPNOTSUPP.
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

#ifdef __cplusplus
}
#endif

#endif
