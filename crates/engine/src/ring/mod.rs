//! A ring, and the parts of it that other threads may touch.
//!
//! - [`Ring`] is what all threads share: atomic words, the task-work list and the sleep word.
//! - [`RingState`] (`state`) is everything else. Only the ring's driver uses it: the thread that
//!   holds the ring's lock (the kernel's `uring_lock`).
//! - [`LockedRing`] (`locked`) is the proof that a thread holds the lock.
//! - `aio_context` has the differences between the ring of an AIO context and other rings.
//! - [`Exit`] (`exit`) lists the ways in which a driver releases the lock.

mod aio_context;
mod exit;
mod locked;
mod posting;
mod state;

pub(crate) use exit::Exit;
pub(crate) use locked::{LockedRing, ReleaseCheck};
pub(crate) use state::{Devices, Queues, Registered, RingState, Waiting};

use crate::completion::event_descriptor::EventDescriptor;
use crate::completion::signal::Readiness;
use crate::completion::wakers::Wakers;
use crate::process::{self, Process};
use crate::registered::OwnRegistrations;
use crate::request::Request;
use crate::waiting::cq_estimate::CqWaits;
use crate::waiting::sq_thread::SqThreadHandle;
use crate::waiting::tasks::tasks;
use crate::waiting::watcher_entry::WatcherEntry;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use usring_ring::{Control, Journal, Memory, Registrations};
use usring_sys::Errno;
use usring_sys::epoll::Epoll;
use usring_sys::mutex::Mutex;
use usring_sys::process_mutex::ProcessMutex;
use usring_sys::process_number;
use usring_sys::queue::Queue;
use usring_sys::shared::View;
use usring_sys::thread;
use usring_uapi::io_uring as abi;

/// One io_uring instance in one process. Always in an `Arc`: a worker or the ring watcher keeps the
/// ring alive while it works for the ring.
///
/// After fork(2), several processes may use one ring. Each of them has a `Ring` of its own. These
/// `Ring`s share the words of `memory` and `control`. Everything else concerns only requests that
/// the `Ring`'s own process has submitted.
#[doc(alias = "io_ring_ctx")]
pub struct Ring {
    /// `IORING_SETUP_*`, fixed at setup.
    pub(crate) flags: u32,
    /// The ring's number in its process, in the order in which rings are made; from 1. 0: an AIO
    /// context.
    pub(crate) number: u32,
    /// The queues and the SQEs, in memory that the program maps.
    pub(crate) memory: Memory,
    /// Words that the ring's processes share and the program does not see, such as the ring's lock.
    pub(crate) control: Control,
    /// The registrations that all processes of the ring see; `None` for an AIO context.
    pub(crate) registrations: Option<Registrations>,
    pub(crate) own_registrations: OwnRegistrations,
    /// Requests that other threads hand to the ring's driver: requests that workers have finished,
    /// and messages from other rings.
    pub(crate) task_work: Queue<Request>,
    pub(crate) wakers: Wakers,
    pub(crate) readiness: Readiness,
    /// The only thread that may submit (SINGLE_ISSUER), by its thread pointer; 0 while that thread
    /// is unknown. [`OTHER_PROCESS`]: the thread belongs to another process.
    pub(crate) issuer: AtomicUsize,
    pub(crate) watch: WatcherEntry,
    pub(crate) sq_thread: SqThreadHandle,
    pub(crate) cq_waits: CqWaits,
    /// The registered eventfd of a ring with DEFER_TASKRUN. The eventfd is here and not in
    /// [`RingState`], because threads that add task work signal the eventfd without the ring's
    /// lock.
    pub(crate) work_event: Mutex<Option<Arc<EventDescriptor>>>,
    /// Threads that wait for events poll the devices, although the ring has no IOPOLL. Fixed at
    /// setup: see `calls::events`.
    pub(crate) waiters_poll: bool,
    /// Number of concurrent requests that an AIO context was made for; 0 for any other ring. (The
    /// size of the context's CQ does not show this number.)
    pub(crate) expected_requests: u32,
    /// The process that made this `Ring` value and uses it.
    process: &'static Process,
    /// Another process made the io_uring instance, and this process adopted it after a fork(2).
    is_adopted: bool,
    /// Whether a driver of this process has noticed that several processes use the ring: see
    /// `waiting::process_rings`.
    pub(crate) takes_part: AtomicBool,
    /// The count of changes that other processes have to handle ([`Control::notices`]), as a driver
    /// of this process has last seen it. Changed under the ring's lock.
    pub(crate) seen_notices: AtomicU32,
    /// Descriptor number of the eventfd that wakes the ring watcher of the process that made the
    /// ring. Children inherit the descriptor. −1: the children cannot wake that ring watcher.
    pub(crate) creators_watcher: i32,
    /// An epoll set that shows whether a process has a descriptor of the ring, after this process
    /// has closed its own descriptor: see `waiting::left_rings`.
    pub(crate) witness: Mutex<Option<Epoll>>,
    state: ProcessMutex<RingState, View<AtomicU32>>,
}

/// Value of [`Ring::issuer`] for a thread of another process. No thread pointer has this value.
pub(crate) const OTHER_PROCESS: usize = usize::MAX;

impl Ring {
    pub(crate) fn from_parts(flags: u32, memory: Memory, task_work: Queue<Request>, state: RingState) -> Ring {
        let control = memory.control();
        // Without a process number, this process cannot share a ring, and no child can adopt the
        // ring that is made here.
        let own = process_number::own().unwrap_or(process_number::ALONE);
        control.begin(flags & abi::IORING_SETUP_R_DISABLED != 0, own);
        let state = ProcessMutex::new(control.lock(), own, process_number::is_alive, state);
        Ring {
            creators_watcher: tasks().number_for_children(),
            own_registrations: OwnRegistrations::of_maker(own),
            ..Ring::with_state(flags, memory, task_work, state)
        }
    }

    /// Makes this process's `Ring` for an io_uring instance that an ancestor has made. `inherited`
    /// is the ancestor's `Ring` as it was at the fork. Only values that were fixed at setup are
    /// read from it.
    ///
    /// Errors: `EOWNERDEAD` if this process cannot share rings, or if the ring's memory is private.
    pub(crate) fn inherited_from(inherited: &Ring, task_work: Queue<Request>, state: RingState) -> Result<Ring, Errno> {
        let memory = inherited.memory.clone();
        if !memory.is_inherited_by_children() || inherited.state.own() == process_number::ALONE {
            return Err(Errno::EOWNERDEAD);
        }
        let own = process_number::own().map_err(|_| Errno::EOWNERDEAD)?;
        let state = ProcessMutex::join(memory.control().lock(), own, process_number::is_alive, state);
        Ok(Ring {
            waiters_poll: inherited.waiters_poll,
            expected_requests: inherited.expected_requests,
            number: inherited.number,
            creators_watcher: inherited.creators_watcher,
            sq_thread: SqThreadHandle::inherited_from(&inherited.sq_thread),
            is_adopted: true,
            own_registrations: OwnRegistrations::of_child(&inherited.own_registrations, own),
            ..Ring::with_state(inherited.flags, memory, task_work, state)
        })
    }

    fn with_state(
        flags: u32,
        memory: Memory,
        task_work: Queue<Request>,
        state: ProcessMutex<RingState, View<AtomicU32>>,
    ) -> Ring {
        let control = memory.control();
        Ring {
            flags,
            number: 0,
            wakers: Wakers::new(control.sleep()),
            control,
            registrations: memory.registrations(),
            own_registrations: OwnRegistrations::default(),
            memory,
            task_work,
            readiness: Readiness::default(),
            issuer: AtomicUsize::new(0),
            watch: WatcherEntry::default(),
            sq_thread: SqThreadHandle::default(),
            cq_waits: CqWaits::default(),
            work_event: Mutex::new(None),
            waiters_poll: false,
            expected_requests: 0,
            process: process::this(),
            is_adopted: false,
            takes_part: AtomicBool::new(false),
            seen_notices: AtomicU32::new(0),
            creators_watcher: -1,
            witness: Mutex::new(None),
            state,
        }
    }

    /// Returns the memory of both queues. Code in this process that acts as the ring's application
    /// fills SQEs and reads CQEs there.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns whether an ancestor of this process made this `Ring`. The `Ring` is then a copy from
    /// the time of the fork, and the threads that it names do not exist in this process. This
    /// process must not drive the copy: enter and register return `EOWNERDEAD`. To use the io_uring
    /// instance, the process makes its own `Ring` ([`Ring::adopt`]). A vfork(2) child counts as its
    /// parent.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        !process::is_current(self.process)
    }

    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Errno> {
        if self.is_inherited() { Err(Errno::EOWNERDEAD) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether the ring has IOPOLL: completions are found by polling the devices.
    #[inline]
    pub(crate) fn is_polled(&self) -> bool {
        self.has(abi::IORING_SETUP_IOPOLL)
    }

    /// Returns whether the ring has IOPOLL and SQPOLL, so that only the SQ thread polls the
    /// devices.
    #[inline]
    pub(crate) fn is_polled_by_thread(&self) -> bool {
        const BOTH: u32 = abi::IORING_SETUP_IOPOLL | abi::IORING_SETUP_SQPOLL;
        self.flags & BOTH == BOTH
    }

    /// Returns whether the ring has DEFER_TASKRUN: task work runs when the owner (issuer) waits.
    #[inline]
    pub(crate) fn defers_task_work(&self) -> bool {
        self.has(abi::IORING_SETUP_DEFER_TASKRUN)
    }

    /// Returns whether only threads that wait for completions poll the ring's files and timers. The
    /// ring watcher does not.
    #[inline]
    pub(crate) fn is_left_to_owner(&self) -> bool {
        self.defers_task_work() || self.watch.activity.is_idle_watched()
    }

    /// Returns whether the ring has not been enabled yet (R_DISABLED). `false` also means that the
    /// calling thread sees everything that the enabling thread wrote before it enabled the ring.
    #[inline]
    pub(crate) fn is_disabled(&self) -> bool {
        self.control.is_disabled()
    }

    /// Returns whether several processes use the ring, or have used it. On such a ring:
    ///
    /// - No waiter is the ring's leader, which would sleep in the epoll set of the ring's files.
    ///   Instead, each process's ring watcher watches the files of that process's requests, and all
    ///   waiters sleep on the shared sleep word.
    /// - Each published CQE wakes all waiters.
    /// - A thread that adds task work also runs it.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.control.sharing().is_shared()
    }

    /// Returns whether one of the ring's waiters in this process is the leader: the waiter that
    /// polls or sleeps in the epoll set of the ring's files.
    #[inline]
    pub(crate) fn is_led(&self) -> bool {
        !self.is_adopted && self.wakers.sleep.is_led()
    }

    /// Returns whether a waiter of this process still is the ring's leader although another process
    /// has begun to use the ring. The leader then has to be woken.
    pub(crate) fn has_late_leader(&self) -> bool {
        !self.is_adopted && self.control.sharing().has_late_leader(&self.wakers.sleep)
    }

    /// Returns whether work waits for a driver: task work, or a report of the ring watcher or of
    /// another process.
    #[inline(always)]
    pub(crate) fn has_work_left(&self) -> bool {
        !self.task_work.is_empty() || self.watch.must_be_driven()
    }

    /// Returns whether the ring has SINGLE_ISSUER and its issuer is not the calling thread.
    pub(crate) fn is_other_issuer(&self) -> bool {
        let issuer = self.issuer.load(Ordering::Relaxed);
        // An enabled ring always has an issuer. If the issuer of an enabled ring is unknown here,
        // another process enabled the ring, so the calling thread is not the issuer.
        let is_unknown = issuer == 0 && self.is_disabled();
        self.has(abi::IORING_SETUP_SINGLE_ISSUER) && issuer != thread::current().0 && !is_unknown
    }

    /// Returns this process's number (`sys::process_number`), which identifies the process in the
    /// words of a shared ring.
    pub(crate) fn process_number(&self) -> u32 {
        self.state.own()
    }

    /// Returns whether this process adopted the ring from an ancestor.
    pub(crate) fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// Returns the journal of a shared ring.
    pub(crate) fn journal<'a>(&self, state: &'a mut RingState) -> &'a mut Journal {
        let new = || Box::new(self.memory.journal(self.state.own()));
        state.queues.journal.get_or_insert_with(new)
    }
}
