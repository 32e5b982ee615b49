//! The kernel's AIO: batches of requests go to the kernel by io_submit(2), and completions come
//! back through a ring in this process's memory ([`CompletionRing`]). This needs no privilege and
//! no io_uring.
//!
//! The kernel checks the memory that a request names as for any system call, and uses it until the
//! completion. When a [`Context`] and its [`Batch`]es are dropped, the drop waits until all their
//! requests have completed.
//!
//! A context without requests in the kernel is kept for the next user that asks for a context of
//! this size. This saves time: the kernel takes tens of milliseconds to destroy a context, even an
//! idle one.

mod completion_ring;

pub use completion_ring::CompletionRing;
pub use context::{Batch, Context, Waiter};

mod context {
    use super::CompletionRing;
    use crate::clock::Nanoseconds;
    use crate::descriptor::OwnedDescriptor;
    use crate::mapping::PAGE;
    use crate::mutex::Mutex;
    use crate::per_process::PerProcess;
    use crate::plain::IoVector;
    use crate::shared::SharedMemory;
    use crate::sync::Arc;
    use crate::width;
    use crate::{Errno, SystemCall, UserAddress, epoll, user_memory, wait};
    use alloc::boxed::Box;
    use alloc::vec::Vec;
    use core::sync::atomic::{AtomicBool, Ordering};
    use linux_raw_sys::general as linux;
    use usring_uapi::aio::{self, AioRing, IoEvent, Iocb};

    /// The unused AIO contexts of this process. A forked child has none of its parent's contexts,
    /// so it starts with no unused context.
    static PROCESS: PerProcess<Process> = PerProcess::new();

    #[derive(Default)]
    struct Process {
        /// AIO contexts that are not in use, the oldest first; at most [`MOST_IDLE`].
        idle: Mutex<Vec<Idle>>,
    }

    /// An unused context, for `requests` requests.
    #[derive(Clone, Copy)]
    struct Idle {
        requests: u32,
        address: u64,
    }

    /// Maximum number of unused contexts that a process keeps. They count towards the limit of the
    /// whole machine (`/proc/sys/fs/aio-max-nr`).
    const MOST_IDLE: usize = 4;

    impl Process {
        fn take(&self, requests: u32) -> Option<Idle> {
            let mut idle = self.idle.lock();
            let place = idle.iter().position(|idle| idle.requests == requests)?;
            Some(idle.remove(place))
        }

        /// Keeps a context that is no longer used. If the process already keeps [`MOST_IDLE`]
        /// contexts, destroys the oldest of them.
        fn keep(&self, context: Idle) {
            let mut idle = self.idle.lock();
            let oldest = if idle.len() == MOST_IDLE { Some(idle.remove(0)) } else { None };
            let kept = idle.try_reserve(1).is_ok();
            if kept {
                idle.push(context);
            }
            drop(idle);
            let others = if kept { None } else { Some(context) };
            oldest.into_iter().chain(others).for_each(|context| destroy(context.address));
        }

        /// Makes a new context. If the machine's limit is reached (`EAGAIN`), destroys all unused
        /// contexts and tries again.
        fn set_up(&self, requests: u32) -> Result<u64, Errno> {
            let mut address = 0u64;
            let arguments = [u64::from(requests), &raw mut address as u64, 0, 0, 0];
            let call = SystemCall::new(linux::__NR_io_setup, arguments);
            if call.run() == Err(Errno::EAGAIN) {
                let idle = core::mem::take(&mut *self.idle.lock());
                idle.into_iter().for_each(|context| destroy(context.address));
                call.run()?;
            }
            match address {
                // io_setup(2) succeeded but wrote no address: a sandbox answered the call, and not
                // the kernel.
                0 => Err(Errno::ENOSYS),
                address => Ok(address),
            }
        }
    }

    /// The kernel's AIO context that belongs to a [`Context`]. It lives until the `Context`, its
    /// batches and its waiters are all dropped.
    struct Kernels {
        requests: u32,
        address: u64,
        /// Whether all completions had arrived when the [`Context`] was dropped. If so, the
        /// kernel's context can be used again.
        all_completed: AtomicBool,
        /// The [`PROCESS`] of the process that made the context.
        process: &'static Process,
    }

    impl Kernels {
        /// Returns whether this process made the context. A forked child has only a copy of this
        /// value: the context and its ring belong to the parent.
        #[inline]
        fn is_ours(&self) -> bool {
            PROCESS.get().is_some_and(|process| core::ptr::eq(process, self.process))
        }
    }

    impl Drop for Kernels {
        /// Keeps the kernel's context for later use, or destroys it. io_destroy(2) returns only
        /// when the kernel no longer uses the memory that requests named.
        fn drop(&mut self) {
            // This may be a forked child that has only a copy of this value. A context of the
            // child's own may have this address, and must not be destroyed here.
            if !self.is_ours() {
                return;
            }
            if *self.all_completed.get_mut() {
                self.process.keep(Idle { requests: self.requests, address: self.address });
            } else {
                destroy(self.address);
            }
        }
    }

    /// Requests for an AIO context, in order of arrival, which the kernel has not accepted yet.
    /// Only the batch's owner uses it. A submission of the batch does not access the [`Context`].
    /// So it needs no lock, even if a lock guards the `Context`.
    pub struct Batch {
        kernels: Arc<Kernels>,
        iocbs: Box<[Iocb]>,
        /// Addresses of the requests, as io_submit(2) takes them.
        addresses: Box<[u64]>,
        first: usize,
        last: usize,
        /// The vectors of vectored requests. The allocation never grows, so the vectors keep their
        /// addresses until the kernel has copied them.
        vectors: Vec<IoVector>,
    }

    impl Batch {
        /// Makes a batch with room for `requests` requests that have `vectors` vectors in all.
        /// Errors: `ENOMEM`.
        pub fn new(context: &Context, requests: usize, vectors: usize) -> Result<Self, Errno> {
            let mut iocbs = Vec::new();
            let mut addresses = Vec::new();
            let mut members = Vec::new();
            iocbs.try_reserve_exact(requests).map_err(|_| Errno::ENOMEM)?;
            addresses.try_reserve_exact(requests).map_err(|_| Errno::ENOMEM)?;
            members.try_reserve_exact(vectors).map_err(|_| Errno::ENOMEM)?;
            iocbs.resize(requests, Iocb::default());
            addresses.resize(requests, 0);
            let (iocbs, addresses) = (iocbs.into_boxed_slice(), addresses.into_boxed_slice());
            let kernels = context.kernels.clone();
            Ok(Batch { kernels, iocbs, addresses, first: 0, last: 0, vectors: members })
        }

        #[inline]
        pub fn is_empty(&self) -> bool {
            self.first == self.last
        }

        /// Returns the number of requests in the batch.
        #[inline]
        pub fn length(&self) -> usize {
            self.last - self.first
        }

        /// Returns whether the batch has room for one more request with `members` vectors.
        #[inline]
        pub fn has_room(&self, members: usize) -> bool {
            let vectors = if members > 1 { members } else { 0 };
            self.last < self.iocbs.len() && self.vectors.capacity() - self.vectors.len() >= vectors
        }

        /// Appends a request whose memory is `segments`. A request with several segments gets the
        /// opcode `vectored`.
        ///
        /// # Panics
        /// If the batch has no room for the request.
        #[inline]
        pub fn push(&mut self, mut iocb: Iocb, segments: &[IoVector], vectored: u16) {
            assert!(self.has_room(segments.len()), "a caller checks for space before it pushes");
            match segments {
                [] => {}
                [only] => (iocb.aio_buf, iocb.aio_nbytes) = (only.base, only.length),
                _ => {
                    let start = self.vectors.len();
                    self.vectors.extend_from_slice(segments);
                    iocb.aio_lio_opcode = vectored;
                    iocb.aio_buf = self.vectors[start..].as_ptr() as u64;
                    iocb.aio_nbytes = segments.len() as u64;
                }
            }
            self.iocbs[self.last] = iocb;
            self.addresses[self.last] = &raw mut self.iocbs[self.last] as u64;
            self.last += 1;
        }

        /// Removes the batch's first request. Returns that request's `aio_data`.
        pub fn drop_first(&mut self) -> u64 {
            let data = self.iocbs[self.first].aio_data;
            self.advance(1);
            data
        }

        /// Submits the requests to the kernel by one call, which may sleep. Returns the number of
        /// requests that the kernel accepted, and removes these from the batch. Their completions
        /// can arrive before this function returns, so the caller calls [`Context::expect`] first.
        ///
        /// Errors: `EAGAIN` if the kernel has no room now; `EINVAL` in a forked child; otherwise
        /// the error of the first request, which stays in the batch.
        pub fn submit(&mut self) -> Result<usize, Errno> {
            let addresses = self.addresses[self.first..].as_ptr() as u64;
            let arguments = [self.kernels.address, self.length() as u64, addresses, 0, 0];
            let taken = width::size(SystemCall::new(linux::__NR_io_submit, arguments).run()?);
            self.advance(taken);
            Ok(taken)
        }

        /// Returns whether the kernel refuses every io_submit(2), for example because of a seccomp
        /// filter. Tests this by a call without requests.
        pub fn is_call_refused(&self) -> bool {
            SystemCall::new(linux::__NR_io_submit, [self.kernels.address, 0, 0, 0, 0]).run().is_err()
        }

        fn advance(&mut self, count: usize) {
            self.first += count;
            if self.first == self.last {
                (self.first, self.last) = (0, 0);
                self.vectors.clear();
            }
        }
    }

    /// An AIO context of this process, for taking completions. Its [`Batch`]es submit the requests.
    pub struct Context {
        kernels: Arc<Kernels>,
        ring: CompletionRing,
        /// Number of requests that were submitted, or are about to be submitted, and whose
        /// completions [`Self::take`] has not returned yet.
        expected: usize,
    }

    impl Context {
        /// Makes a context for up to `requests` requests in flight.
        ///
        /// Errors: `EAGAIN` if all contexts of the machine together would exceed
        /// `/proc/sys/fs/aio-max-nr`; `ENOSYS` if the kernel has no AIO, or an AIO without a ring;
        /// any error of a sandbox.
        pub fn new(requests: u32) -> Result<Self, Errno> {
            let process = PROCESS.get_or_make(Process::default);
            let address = match process.take(requests) {
                Some(idle) => idle.address,
                None => process.set_up(requests)?,
            };
            let Some(ring) = map_ring(address) else {
                destroy(address);
                return Err(Errno::ENOSYS);
            };
            let kernels = Kernels { requests, address, all_completed: AtomicBool::new(false), process };
            Ok(Context { kernels: Arc::new(kernels), ring, expected: 0 })
        }

        /// Records that `count` requests are about to be submitted.
        #[inline]
        pub fn expect(&mut self, count: usize) {
            self.expected += count;
        }

        /// Records that the kernel did not accept `count` of the requests that [`Self::expect`] has
        /// announced.
        #[inline]
        pub fn expect_fewer(&mut self, count: usize) {
            self.expected -= count;
        }

        /// Returns the number of requests whose completions [`Self::take`] has not returned.
        #[inline]
        pub fn expected(&self) -> usize {
            self.expected
        }

        /// Removes and returns the next completion. After the last one, the caller calls
        /// [`Context::free_read_slots`].
        #[inline]
        pub fn take(&mut self) -> Option<IoEvent> {
            if !self.kernels.is_ours() {
                return None;
            }
            loop {
                let event = self.ring.take()?;
                if event.data != WAKE {
                    self.expected -= 1;
                    return Some(event);
                }
                self.ring.publish_head();
            }
        }

        /// Returns a waiter, by which threads sleep until the context has completions. To wake a
        /// thread early, the waiter submits polls of the eventfd `writable`. This eventfd is always
        /// writable, so the polls complete at once.
        pub fn waiter(&self, writable: Arc<OwnedDescriptor>) -> Waiter {
            Waiter { kernels: self.kernels.clone(), writable }
        }

        /// Frees the slots of all completions that were read, so that the kernel can use them
        /// again.
        #[inline]
        pub fn free_read_slots(&mut self) {
            self.ring.publish_head();
        }

        /// Returns whether there is no completion to take.
        #[inline]
        pub fn is_empty(&mut self) -> bool {
            !self.kernels.is_ours() || self.ring.is_empty()
        }
    }

    impl Drop for Context {
        fn drop(&mut self) {
            if self.expected == 0 && self.kernels.is_ours() {
                self.ring.publish_head();
                self.kernels.all_completed.store(true, Ordering::Release);
            }
        }
    }

    /// The `data` of a completion that only wakes the thread sleeping in [`Waiter::sleep`].
    const WAKE: u64 = u64::MAX;

    /// Lets threads sleep until an AIO context has completions, and lets other threads wake them
    /// early. Needs no lock, even if a lock guards the [`Context`].
    #[derive(Clone)]
    pub struct Waiter {
        kernels: Arc<Kernels>,
        /// An eventfd whose counter always has room. So a poll for POLLOUT on it completes at once.
        writable: Arc<OwnedDescriptor>,
    }

    impl Waiter {
        /// Maximum number of completions for which one sleep can wait. To wake the sleeper,
        /// [`Self::wake`] submits one poll for each of them. So a context needs this many slots in
        /// addition to the slots for its requests.
        pub const MOST: u32 = 64;

        /// Sleeps until the context holds `least` completions; see [`wait::aio_completions`].
        pub fn sleep(&self, least: u32, timeout: Option<Nanoseconds>) -> Result<(), Errno> {
            debug_assert!(least <= Self::MOST);
            wait::aio_completions(self.kernels.address, least, timeout)
        }

        /// Wakes a thread that sleeps until there are `least` completions. Submits `least` polls of
        /// the writable eventfd, which complete at once. [`Context::take`] skips their completions.
        pub fn wake(&self, least: u32) {
            let mut iocb = Iocb {
                aio_data: WAKE,
                aio_lio_opcode: aio::IOCB_CMD_POLL,
                aio_fildes: self.writable.number().cast_unsigned(),
                aio_buf: u64::from(epoll::OUT),
                ..Iocb::default()
            };
            let addresses = [&raw mut iocb as u64; Self::MOST as usize];
            let count = u64::from(least.min(Self::MOST));
            let arguments = [self.kernels.address, count, addresses.as_ptr() as u64, 0, 0];
            let _ = SystemCall::new(linux::__NR_io_submit, arguments).run();
        }
    }

    fn destroy(address: u64) {
        let _ = SystemCall::new(linux::__NR_io_destroy, [address, 0, 0, 0, 0]).run();
    }

    /// Returns the completion ring of a new AIO context; `None` if the ring's layout is unknown.
    fn map_ring(address: u64) -> Option<CompletionRing> {
        // A sandbox may answer io_setup(2) in place of the kernel. The context is then any number,
        // which may be no address.
        let header = user_memory::read::<AioRing>(UserAddress(address)).ok()?;
        let events = (header.nr as usize).checked_mul(size_of::<IoEvent>())?;
        let length = events.checked_add(header.header_length as usize)?.next_multiple_of(PAGE);
        let last = address.checked_add(length as u64)? - 8;
        if !address.is_multiple_of(PAGE as u64) || user_memory::read::<u64>(UserAddress(last)).is_err() {
            return None;
        }
        // SAFETY: 1. The kernel keeps a context's ring mapped, readable and writable, until
        // io_destroy(2). Its first and last word have just been read. 2. Only `Kernels::drop` calls
        // io_destroy(2), when no context has the ring any more. 3. There are no references into it.
        let ring = CompletionRing::new(Arc::new(unsafe { SharedMemory::borrowed(width::size(address), length) }))?;
        // A child must not see its parent's completions.
        let advice = [address, length as u64, u64::from(linux::MADV_DONTFORK), 0, 0];
        let _ = SystemCall::new(linux::__NR_madvise, advice).run();
        Some(ring)
    }
}
