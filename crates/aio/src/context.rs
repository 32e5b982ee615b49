//! One AIO context: its ring, the address at which the program sees the ring's events, and the
//! context's calls.

use crate::context_kind::ContextKind;
use crate::iocb;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};
use usring_engine::{CompletionMode, EventDescriptor, Ring, Submission};
use usring_sys::mutex::Mutex;
use usring_sys::process_maps::Maps;
use usring_sys::syscall::AddressTrust;
use usring_sys::{Errno, UserAddress, mapping, user_memory, width};
use usring_uapi::aio::{IOCB_FLAG_RESFD, IoEvent, Iocb};

/// The time limit of io_getevents(2), and the signal mask during its wait.
pub struct Wait {
    /// Time on the monotonic clock, in nanoseconds; 0 if the time limit is zero. `None`: no limit.
    pub deadline: Option<u64>,
    /// Signal mask during the wait; `None`: the mask stays unchanged.
    pub mask: Option<u64>,
}

impl Wait {
    fn is_over(&self) -> bool {
        self.deadline == Some(0)
    }
}

pub struct Context {
    ring: Arc<Ring>,
    /// Address of the mapping in which the program sees the events. `length` is the mapping's size
    /// in bytes. The program may move the mapping. The thread that notices the move then stores the
    /// new address here ([`Context::is_at`]).
    address: AtomicU64,
    length: usize,
    /// Maximum number of events in the ring.
    capacity: u32,
    kind: ContextKind,
    /// Locked by the thread that consumes events for the program (io_getevents(2)). That thread
    /// moves the head of the context's ring.
    taking: Mutex<()>,
    /// The eventfd that the last iocb with IOCB_FLAG_RESFD named. Most iocbs name one eventfd, so
    /// the next iocb finds it here. The reference is weak: it is valid only while a request still
    /// has to signal the eventfd. So the program's close of the eventfd takes effect.
    last_eventfd: Mutex<Weak<EventDescriptor>>,
}

impl Context {
    /// Makes a context. `completion_mode`: how threads that wait for events learn of completions. A
    /// polled context ignores the mode, because the callers of io_getevents(2) then poll the
    /// devices.
    pub fn new(
        trust: AddressTrust,
        requests: u32,
        id: u32,
        kind: ContextKind,
        completion_mode: CompletionMode,
    ) -> Result<Context, Errno> {
        let completion_mode = if kind == ContextKind::Polled { CompletionMode::Required } else { completion_mode };
        let ring = Ring::with_events(trust, requests, id, completion_mode)?;
        let (length, capacity) = ring.events_size();
        let address = ring.map_events().inspect_err(|_| ring.close())? as u64;
        let address = AtomicU64::new(address);
        Ok(Context {
            ring,
            address,
            length,
            capacity,
            kind,
            taking: Mutex::new(()),
            last_eventfd: Mutex::new(Weak::new()),
        })
    }

    #[inline]
    pub fn address(&self) -> u64 {
        self.address.load(Ordering::Relaxed)
    }

    /// Returns whether the context's events are mapped at `address`. If the program has moved this
    /// mapping to `address` by mremap(2), stores the new address, as the kernel does.
    #[inline]
    pub fn is_at(&self, address: u64) -> bool {
        self.address() == address || self.has_moved_to(address)
    }

    #[cold]
    #[inline(never)]
    fn has_moved_to(&self, address: u64) -> bool {
        let Some(maps) = Maps::open() else { return false };
        let old = self.address();
        let moved = self.ring.shows_events_at(&maps, address) && !self.ring.shows_events_at(&maps, old);
        if moved {
            self.address.store(address, Ordering::Relaxed);
        }
        moved
    }

    /// Ends a context that has been removed from the table: unmaps the events and retires the ring.
    pub fn end(&self) {
        let _ = mapping::unmap(width::size(self.address()), self.length);
        self.ring.retire();
    }

    pub fn submit(&self, count: u64, list: UserAddress) -> Result<u64, Errno> {
        // Like the kernel, accepts at most as many iocbs per call as the context's ring has slots.
        let count = count.min(u64::from(self.capacity) + 1);
        let mut submission = self.ring.begin_submission()?;
        for taken in 0..count {
            if let Err(error) = self.submit_one(&mut submission, list.offset(8 * taken)) {
                return if taken > 0 { Ok(taken) } else { Err(error) };
            }
        }
        Ok(count)
    }

    /// Submits one iocb. Makes the checks in the kernel's order.
    #[inline]
    fn submit_one(&self, submission: &mut Submission, place: UserAddress) -> Result<(), Errno> {
        let address = UserAddress(user_memory::read::<u64>(place)?);
        let iocb: Iocb = user_memory::read(address)?;
        iocb::check(&iocb)?;
        if !submission.has_room() {
            return Err(Errno::EAGAIN);
        }
        let file = submission.file(iocb.aio_fildes.cast_signed())?;
        let eventfd = match iocb.aio_flags & IOCB_FLAG_RESFD {
            0 => None,
            _ if self.kind == ContextKind::Polled => return Err(Errno::EINVAL),
            _ => Some(self.eventfd(iocb.aio_resfd.cast_signed())?),
        };
        const KEY: u64 = core::mem::offset_of!(Iocb, aio_key) as u64;
        user_memory::write(address.offset(KEY), iocb::KEY)?;
        let sqe = iocb::translate(&iocb, address.0, &file, self.kind)?;
        submission.add(&sqe, eventfd)
    }

    /// Returns the program's eventfd with this descriptor number. Several requests may have to
    /// signal this eventfd: they share one [`EventDescriptor`].
    #[cold]
    fn eventfd(&self, number: i32) -> Result<Arc<EventDescriptor>, Errno> {
        let mut last = self.last_eventfd.lock();
        if let Some(known) = last.upgrade()
            && known.is_named_by(number)
        {
            return Ok(known);
        }
        let fresh = Arc::new(EventDescriptor::new(number, false)?);
        *last = Arc::downgrade(&fresh);
        Ok(fresh)
    }

    pub fn get_events(&self, minimum: i64, most: i64, to: UserAddress, wait: &Wait) -> Result<u64, Errno> {
        if minimum < 0 || minimum > most {
            return Err(Errno::EINVAL);
        }
        let (minimum, most) = (minimum.cast_unsigned(), most.cast_unsigned());
        if self.kind == ContextKind::Polled {
            return self.poll_events(minimum, most, to);
        }
        let mut taken = self.take(to, 0, most)?;
        if taken < minimum || taken == 0 && most > 0 {
            taken = self.wait_for_events(taken, minimum, most, to, wait)?;
        }
        Ok(taken)
    }

    /// Waits until this caller has consumed at least `minimum` events. `taken` of them are consumed
    /// before the wait. If another caller consumes the events for which this thread was woken, this
    /// thread waits again.
    #[inline(never)]
    fn wait_for_events(
        &self,
        mut taken: u64,
        minimum: u64,
        most: u64,
        to: UserAddress,
        wait: &Wait,
    ) -> Result<u64, Errno> {
        loop {
            let wanted = width::low(minimum.saturating_sub(taken).min(u64::from(self.capacity)));
            // With a time limit of zero this call must not sleep. `await_events` does not sleep for
            // 0 events: it only checks for completions.
            let (wanted, deadline) = if wait.is_over() { (0, None) } else { (wanted, wait.deadline) };
            let waited = self.ring.await_events(wanted, deadline, wait.mask);
            match self.take(to, taken, most) {
                Ok(all) => taken = all,
                Err(error) => return ended(taken, error),
            }
            match waited {
                Ok(()) if taken >= minimum || wanted == 0 => return Ok(taken),
                Ok(()) => {}
                Err(Errno::ETIME) => return Ok(taken),
                Err(error) => return ended(taken, error),
            }
        }
    }

    /// Consumes events of a polled context. The caller polls the devices without a time limit. It
    /// stops when it has `minimum` events (one if `minimum` is 0), or when no request is in flight.
    /// Error: `EBUSY` if another thread consumes events of this context.
    fn poll_events(&self, minimum: u64, most: u64, to: UserAddress) -> Result<u64, Errno> {
        let _alone = self.taking.try_lock().ok_or(Errno::EBUSY)?;
        let mut taken = self.take_alone(to, 0, most)?;
        while taken < most && (taken < minimum || taken == 0) {
            let wanted = u32::try_from(minimum.saturating_sub(taken)).unwrap_or(u32::MAX);
            let polled = self.ring.poll_events(wanted);
            let before = taken;
            match self.take_alone(to, taken, most) {
                Ok(all) => taken = all,
                Err(error) => return ended(taken, error),
            }
            match polled {
                Err(error) => return ended(taken, error),
                Ok(()) if taken == before => return Ok(taken),
                Ok(()) => {}
            }
        }
        Ok(taken)
    }

    /// Copies events to the program, up to `most` in all, and removes them from the ring. `taken`:
    /// the number of events that this caller has consumed before. Returns `taken` plus the number
    /// of new events. Error: `EFAULT`; this function has then consumed no event.
    fn take(&self, to: UserAddress, taken: u64, most: u64) -> Result<u64, Errno> {
        let _one_at_a_time = self.taking.lock();
        self.take_alone(to, taken, most)
    }

    fn take_alone(&self, to: UserAddress, taken: u64, most: u64) -> Result<u64, Errno> {
        let room = u32::try_from(most - taken).unwrap_or(u32::MAX);
        let more = self.ring.take_events(to.offset(taken * size_of::<IoEvent>() as u64), room)?;
        Ok(taken + u64::from(more))
    }

    /// Ends the wait of the poll that the iocb at the address `iocb` requested. Returns whether
    /// such a poll was waiting.
    pub fn cancel(&self, iocb: u64) -> bool {
        self.ring.end_poll(iocb)
    }
}

/// Returns the result of a call of io_getevents(2) that meets `error` after it has consumed `taken`
/// events. The call reports the error only if `taken` is 0.
fn ended(taken: u64, error: Errno) -> Result<u64, Errno> {
    if taken > 0 { Ok(taken) } else { Err(error) }
}

impl Drop for Context {
    /// Closes the ring of a context that was never inserted into the table. `end` has already
    /// closed the ring of any other context.
    fn drop(&mut self) {
        self.ring.close();
    }
}
