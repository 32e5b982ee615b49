/* Polled AIO for programs that use libaio.
 *
 * The interface is that of kernel patches of late 2018, in the last form in which they had no
 * rings. No release of Linux has it. Earlier forms gave the flags other values; here
 * IOCTX_FLAG_IOPOLL is bit 0, and IOCB_FLAG_HIPRI is bit 2. Of io_setup2's five arguments, the two
 * rings must be NULL.
 *
 *     io_context_t ctx = 0;
 *     int error = io_setup2(128, IOCTX_FLAG_IOPOLL, NULL, NULL, &ctx);
 *     io_prep_pread(iocb, fd, buffer, 4096, offset);
 *     iocb->u.c.flags |= IOCB_FLAG_HIPRI;
 *
 * All other calls are those of any context: io_submit, io_getevents, io_destroy. Build with
 * `pkg-config --cflags --libs usring`. usring then serves all io_uring and libaio calls of the
 * program. The program need not be started by `usring run`, except to use devices (`--device`).
 *
 * Rules of a polled context:
 * - Each iocb must carry IOCB_FLAG_HIPRI, or io_submit answers EINVAL. If io_setup2 made a context
 *   without IOCTX_FLAG_IOPOLL, an iocb with IOCB_FLAG_HIPRI gets EINVAL. A context of io_setup
 *   ignores IOCB_FLAG_HIPRI.
 * - The commands are PREAD, PWRITE, PREADV and PWRITEV. Any other command gets EINVAL, and so does
 *   IOCB_FLAG_RESFD.
 * - The file must be open with O_DIRECT. It must be a device of the run that can be polled, or a
 *   regular file or block device. (usring passes requests for regular files and block devices to
 *   the kernel's AIO, and polls the ring of a kernel context.) Any other file gets EOPNOTSUPP.
 * - io_submit takes at most 127 iocbs per call. Any number may be in flight.
 * - io_getevents polls until it has min_nr events or no request is in flight. It ignores the
 *   timeout. While one thread is inside io_getevents for a context, a second one gets EBUSY.
 * - Only io_getevents returns events. The ring at the context's address stays empty. The ring's
 *   magic number differs from that of other contexts, so that libaio does not read the ring.
 * - io_cancel answers EINVAL. io_destroy waits for the requests in flight. */
#ifndef USRING_AIO_H
#define USRING_AIO_H

#ifdef __cplusplus
extern "C" {
#endif

/* Flag of io_setup2: io_getevents polls for the context's events. */
#define IOCTX_FLAG_IOPOLL (1 << 0)

/* Flag of an iocb: io_getevents polls for the request's completion. */
#define IOCB_FLAG_HIPRI (1 << 2)

struct io_context;

/* Makes a context that can have nr_events requests in flight. `ctx` (libaio's io_context_t *) must
 * point to NULL; sq_ring and cq_ring must be NULL.
 *
 * Returns 0 or a negative errno:
 * - -EINVAL: a flag is unknown, a ring is not NULL, nr_events is 0 or larger than any context
 *   allows, or *ctx is not NULL.
 * - -EFAULT: ctx is not a valid address.
 * - -ENOMEM: memory could not be allocated. */
int io_setup2(unsigned nr_events, unsigned flags, void *sq_ring, void *cq_ring, struct io_context **ctx);

#ifdef __cplusplus
}
#endif

#endif
