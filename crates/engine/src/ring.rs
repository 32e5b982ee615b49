//! A ring, and the parts of it that other threads may touch.
//!
//! - [`Ring`] is what all threads share: atomic words, the task-work list and the sleep word.
//! - [`RingState`] is everything else. Only the ring's driver uses it: the thread that holds the
//!   ring's lock (the kernel's `uring_lock`). [`LockedRing`] is the proof that a thread holds the
//!   lock.

use crate::completion::event_descriptor::EventDescriptor;
use crate::completion::request_events::RequestEvents;
use crate::completion::signal::Readiness;
use crate::completion::wakers::Wakers;
use crate::counters::RingCounters;
use crate::op::named_files::NamedFiles;
use crate::process::{self, Process};
use crate::registered::buffer_group::BufferGroups;
use crate::registered::napi::Napi;
use crate::registered::registered_buffers::RegisteredBuffers;
use crate::registered::registered_files::RegisteredFiles;
use crate::registered::restrictions::Restrictions;
use crate::registered::{Lineage, RegistrationSharing};
use crate::request::pool::RequestPool;
use crate::request::{Request, RequestEntry};
use crate::submission::chain::Chain;
use crate::submission::drain::Drain;
use crate::waiting::asks::Asks;
use crate::waiting::cq_estimate::CqWaits;
use crate::waiting::device_queues::{Departing, DeviceQueues};
use crate::waiting::poll_table::PollTable;
use crate::waiting::rights::RingRights;
use crate::waiting::sq_thread::SqThreadHandle;
use crate::waiting::stuck_calls::StuckCalls;
use crate::waiting::tasks::tasks;
use crate::waiting::timeout::Timeouts;
use crate::waiting::watcher_entry::WatcherEntry;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use usring_ring::{CompletionQueue, Control, Journal, Memory, Registrations, SubmissionQueue};
use usring_sys::Errno;
use usring_sys::clock::Clock;
use usring_sys::mutex::Mutex;
use usring_sys::process_mutex::{Guard, HeldBy, ProcessMutex, Since};
use usring_sys::process_number;
use usring_sys::queue::{Queue, Taker};
use usring_sys::shared::View;
use usring_sys::thread;
use usring_uapi::io_uring as abi;

/// Most io_uring_enter calls in a row that find enough completions ready and so do not poll the
/// ring's files and timers. A poll costs a system call.
const CALLS_WITHOUT_POLL: u32 = 8;
/// Replaces [`CALLS_WITHOUT_POLL`] while the guesses of `waiting::expected` are right: the engine
/// tried files before the epoll set reported them, and they were ready. The next poll of the set
/// has to check each of these files again, so polls are rarer. (A call that submits nothing, or
/// finds the CQ more than half full, tries no file, so it makes no guess right.)
const CALLS_OF_GUESSES: u32 = 32;

/// One io_uring instance in one process. Always in an `Arc`: a worker or the ring watcher keeps the
/// ring alive while it works for the ring.
///
/// After fork(2), several processes may use one ring. Each of them has a `Ring` of its own. They
/// share the words of `memory` and `control`. Everything else concerns only requests that the
/// `Ring`'s own process has submitted.
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
    pub(crate) lineage: Lineage,
    /// Requests that other threads hand to the ring's driver: requests that workers have finished,
    /// and messages from other rings.
    pub(crate) task_work: Queue<Request>,
    pub(crate) wakers: Wakers,
    pub(crate) readiness: Readiness,
    /// The only thread that may submit (SINGLE_ISSUER), by its thread pointer; 0 while it is
    /// unknown. [`OTHER_PROCESS`]: it belongs to another process.
    pub(crate) issuer: AtomicUsize,
    pub(crate) watch: WatcherEntry,
    pub(crate) sq_thread: SqThreadHandle,
    pub(crate) cq_waits: CqWaits,
    /// The registered eventfd of a ring with DEFER_TASKRUN. It is here and not in [`RingState`],
    /// because threads that add task work signal it without the ring's lock.
    pub(crate) work_event: Mutex<Option<Arc<EventDescriptor>>>,
    /// Threads that wait for events poll the devices, although the ring has no IOPOLL. Fixed at
    /// setup: see `calls::events`.
    pub(crate) waiters_poll: bool,
    /// Number of concurrent requests that an AIO context was made for; 0 for any other ring. (The
    /// size of the context's CQ does not show it.)
    pub(crate) expected_requests: u32,
    /// The process that made this `Ring` value and uses it.
    process: &'static Process,
    /// Another process made the io_uring instance, and this process adopted it after a fork(2).
    is_adopted: bool,
    /// Whether a driver of this process has noticed that several processes use the ring: see
    /// `waiting::process_rings`.
    pub(crate) takes_part: AtomicBool,
    /// The count of changes that other processes have to handle ([`Control::news`]), as a driver of
    /// this process has last seen it. Changed under the ring's lock.
    pub(crate) heard_news: AtomicU32,
    /// Descriptor number of the eventfd that wakes the ring watcher of the process that made the
    /// ring. Children inherit the descriptor. −1: they cannot wake that ring watcher.
    pub(crate) creators_watcher: i32,
    state: ProcessMutex<RingState, View<AtomicU32>>,
}

/// Value of [`Ring::issuer`] for a thread of another process. No thread pointer has it.
pub(crate) const OTHER_PROCESS: usize = usize::MAX;

/// State that only the ring's driver touches, grouped by purpose.
pub(crate) struct RingState {
    pub queues: Queues,
    pub waiting: Waiting,
    pub registered: Registered,
    pub notify: Notify,
    pub devices: Devices,
    pub closed: bool,
    /// The ring accepts no more requests and no more waits. It is closed once its last request has
    /// completed.
    pub retired: bool,
}

/// The SQ, the CQ, and the requests between them that the driver has to issue next. `submission`
/// and `driving` move these requests.
pub(crate) struct Queues {
    /// The driver's half of the task-work list, which takes requests off the list.
    pub taker: Taker<Request>,
    pub sq: SubmissionQueue,
    pub cq: CompletionQueue,
    pub pool: RequestPool,
    pub chain: Chain,
    pub drain: Drain,
    /// Requests that may be issued now.
    pub issuable: VecDeque<RequestEntry>,
    /// Members of chains that may start. The driver starts them after all requests of the batch
    /// that it submits or completes, as the kernel does.
    pub successors: VecDeque<RequestEntry>,
    pub statistics: RingCounters,
    /// The requests without a published CQE, by process. `None` until several processes use the
    /// ring.
    pub journal: Option<Box<Journal>>,
}

/// The requests that wait for files or deadlines. `waiting` arms them, and `driving` continues
/// them.
#[derive(Default)]
pub(crate) struct Waiting {
    pub polls: PollTable,
    pub timeouts: Timeouts,
    /// Changes that other processes of a shared ring are asked for.
    pub asks: Asks,
    pub stuck_calls: StuckCalls,
    pub rights: RingRights,
    /// Clock by which io_uring_enter measures its time limits (REGISTER_CLOCK).
    pub clock: Clock,
    /// Number of io_uring_enter calls since the ring's files and timers were last polled: see
    /// [`CALLS_WITHOUT_POLL`].
    pub calls_without_poll: u32,
}

/// Everything that the program has registered with the ring. `calls::register` fills the tables.
#[derive(Default)]
pub(crate) struct Registered {
    pub files: RegisteredFiles,
    pub buffers: RegisteredBuffers,
    pub buffer_groups: BufferGroups,
    pub restrictions: Restrictions,
    pub napi: Napi,
    pub sharing: RegistrationSharing,
}

/// The notifications that are due for CQEs. `completion` and `driving::release` send them.
#[derive(Default)]
pub(crate) struct Notify {
    pub event_descriptor: Option<Arc<EventDescriptor>>,
    /// Eventfds of single requests (IOCB_FLAG_RESFD of an AIO context).
    pub request_events: RequestEvents,
    /// CQEs were published since the driver acquired the lock, so sleepers have to be woken.
    pub published: bool,
    /// A worker has completed a request since eventfds were last signalled (EVENTFD_ASYNC).
    pub completed_by_worker: bool,
}

/// The transfers that devices carry out. `submission::device_submit` submits them, and
/// `driving::reap` completes them.
#[derive(Default)]
pub(crate) struct Devices {
    pub queues: DeviceQueues,
    pub named: NamedFiles,
    /// Queue pairs and buffers of a closed ring, kept until its last deferred submit is done.
    pub departing: Option<Box<Departing>>,
}

impl Ring {
    pub(crate) fn from_parts(flags: u32, memory: Memory, task_work: Queue<Request>, state: RingState) -> Ring {
        let control = memory.control();
        // Without a number, this process cannot share a ring, and no child can adopt the ring.
        let own = process_number::own().unwrap_or(process_number::ALONE);
        control.begin(flags & abi::IORING_SETUP_R_DISABLED != 0, own);
        let state = ProcessMutex::new(control.lock(), own, process_number::is_alive, state);
        Ring {
            creators_watcher: tasks().number_for_children(),
            lineage: Lineage::of_maker(own),
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
            is_adopted: true,
            lineage: Lineage::of_child(&inherited.lineage, own),
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
            lineage: Lineage::default(),
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
            heard_news: AtomicU32::new(0),
            creators_watcher: -1,
            state,
        }
    }

    /// Returns the memory of both queues. Code in this process uses it as the ring's application.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns whether an ancestor of this process made this `Ring`. The `Ring` is then a copy from
    /// the time of the fork, and the threads that it names do not exist in this process. The
    /// process must not drive it: enter and register return `EOWNERDEAD`. To use the io_uring
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

    /// Returns whether the ring is an AIO context: its completions become events (`calls::events`).
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.memory.layout().has_events()
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
    /// calling thread sees everything that the enabling thread wrote before.
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
        !self.task_work.is_empty() || self.watch.is_called()
    }

    /// Returns whether the ring has SINGLE_ISSUER and its issuer is not the calling thread.
    pub(crate) fn is_other_issuer(&self) -> bool {
        let issuer = self.issuer.load(Ordering::Relaxed);
        // An enabled ring always has an issuer. If the issuer is unknown here, another process
        // enabled the ring.
        let is_unknown = issuer == 0 && self.is_disabled();
        self.has(abi::IORING_SETUP_SINGLE_ISSUER) && issuer != thread::current().0 && !is_unknown
    }

    /// Brings this process's copies of queue positions up to date. Called when the driver before
    /// this one was in another process.
    #[cold]
    fn catch_up(&self, state: &mut RingState, since: Since) {
        state.queues.sq.catch_up();
        state.queues.cq.catch_up();
        if since == Since::HolderDied {
            self.mend(state);
        }
        self.hear_of_others(state);
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

    /// Acquires the ring's lock, and so becomes the ring's driver. Blocks while another thread is
    /// the driver.
    #[inline(always)]
    pub(crate) fn lock(self: &Arc<Self>) -> LockedRing<'_> {
        LockedRing {
            ring: self,
            state: self.state.lock(|state, since| self.catch_up(state, since)),
            duty: ReleaseDuty(self),
        }
    }

    /// Acquires the ring's lock if it is free. The error says which kind of thread holds it. A
    /// driver in another process ([`HeldBy::OtherProcess`]) does not see task work of this process.
    pub(crate) fn try_lock(self: &Arc<Self>) -> Result<LockedRing<'_>, HeldBy> {
        let state = self.state.try_lock(|state, since| self.catch_up(state, since))?;
        Ok(LockedRing { ring: self, state, duty: ReleaseDuty(self) })
    }
}

/// A ring whose lock this thread holds: the thread is the ring's driver.
pub(crate) struct LockedRing<'a> {
    pub ring: &'a Arc<Ring>,
    state: Guard<'a, RingState, View<AtomicU32>>,
    /// Declared after `state`, because fields are dropped in this order: the lock is released
    /// first.
    duty: ReleaseDuty<'a>,
}

/// The duty of every driver to check for work again after it has released the lock. While the
/// driver held the lock, another thread may have added task work and left it to the driver.
pub(crate) struct ReleaseDuty<'a>(pub &'a Arc<Ring>);

impl<'a> LockedRing<'a> {
    /// Counts an io_uring_enter call that found enough completions. Returns whether the files and
    /// timers have to be polled now, because too many such calls went without a poll.
    #[cold]
    #[inline(never)]
    pub fn is_poll_due(&mut self) -> bool {
        if self.waiting.polls.armed() == 0 && self.waiting.timeouts.is_empty() && self.devices.queues.in_flight() == 0 {
            return false;
        }
        self.waiting.calls_without_poll += 1;
        let limit = if self.waiting.polls.expected.was_right() { CALLS_OF_GUESSES } else { CALLS_WITHOUT_POLL };
        if self.waiting.calls_without_poll < limit {
            return false;
        }
        self.note_poll();
        true
    }

    /// Returns whether waiters poll the devices, so that the devices' completion interrupts stay
    /// off.
    pub fn waiters_poll_devices(&self) -> bool {
        self.ring.is_polled() || self.ring.waiters_poll && !self.notify.request_events.is_awaited()
    }

    /// Notes that the ring's files and timers have been polled.
    #[inline]
    pub fn note_poll(&mut self) {
        self.waiting.calls_without_poll = 0;
        self.waiting.polls.expected.begin_anew();
    }

    /// Adds a request of a shared ring to the journal, so that another process can complete it if
    /// this process dies. Then moves the SQ's head past the request's entry.
    #[inline(never)]
    pub fn take_by_journal(&mut self, request: &mut Request) {
        if !self.ring.is_shared() {
            return self.queues.sq.commit();
        }
        let index = self.queues.sq.last_index();
        request.journal = self.journal().begin(request.sqe.user_data, index);
        self.queues.sq.commit();
        match request.journal {
            Some(slot) => self.journal().confirm(slot),
            None if self.ring.is_adopted() => {}
            None => self.ring.control.expect_unjournaled(),
        }
    }

    /// Returns the journal of a shared ring: the requests without a published CQE.
    pub fn journal(&mut self) -> &mut Journal {
        self.ring.journal(&mut self.state)
    }

    /// Wakes sleepers for the CQEs that were published, and keeps the lock.
    pub fn wake_others(&mut self) {
        if let Some(ready) = self.take_published() {
            self.ring.wakers.wake_all(ready);
        }
    }

    /// Returns how many CQEs are ready, if sleepers have to be woken for new ones. A sleeper wakes
    /// if it waits for at most that many. `u32::MAX` wakes all sleepers, in these cases:
    ///
    /// - A timeout has expired, by time or by count, which ends every wait.
    /// - There is a backlog, which only a woken waiter moves into the CQ.
    /// - The ring has DEFER_TASKRUN: its owner waits for a number of further CQEs, not for a total.
    /// - The ring is shared: each waiter counts from the CQEs that were consumed when its wait
    ///   began.
    #[inline(always)]
    fn take_published(&mut self) -> Option<u32> {
        if !core::mem::take(&mut self.notify.published) {
            return None;
        }
        let ended = core::mem::take(&mut self.waiting.timeouts.just_ended);
        if self.ring.is_shared() {
            return Some(self.published_for_all());
        }
        let wakes_all = ended || self.queues.cq.has_overflow() || self.ring.defers_task_work();
        Some(if wakes_all { u32::MAX } else { self.queues.cq.ready() })
    }

    /// Frees the journal's slots of requests whose CQEs are published. Wakes other processes if
    /// their timeouts count these CQEs. Returns `u32::MAX`: all waiters are woken.
    #[cold]
    #[inline(never)]
    fn published_for_all(&mut self) -> u32 {
        if let Some(journal) = &mut self.queues.journal {
            journal.clear_published();
        }
        if self.ring.control.has_unjournaled() {
            self.count_unjournaled();
        }
        self.call_cqe_listeners();
        u32::MAX
    }

    /// Releases the lock, which is a full barrier. Wakes sleepers for the CQEs that were published.
    /// Drivers call [`LockedRing::release`] instead, which also fulfils the duty that is returned
    /// here.
    #[inline(always)]
    pub fn unlock(mut self) -> ReleaseDuty<'a> {
        debug_assert!(!self.queues.cq.has_unannounced(), "a driver publishes its CQEs before it releases the lock");
        let published = self.take_published();
        let ring = self.ring;
        drop(self.state);
        if let Some(ready) = published {
            ring.wakers.wake_all(ready);
        }
        self.duty
    }
}

/// A driver's ways to release a ring ([`LockedRing::release`]). Each of them wakes the sleepers for
/// the CQEs that were published.
///
/// | exit | finishes the batch | deferred submits | hands waits to the ring watcher | runs work that arrived |
/// |---|---|---|---|---|
/// | `Leave` | yes | makes them | yes | yes |
/// | `Finished` | the caller did | makes them | yes | yes |
/// | `FinishedForOthers` | the caller did | makes them; the ring watcher leaves them to a submit helper | yes | no: the caller checks for it |
/// | `FinishedInside` | the caller did | leaves them to a submit helper | yes | no: the caller checks for it |
/// | `LeaveInside` | yes | leaves them to a submit helper | yes | yes, without waiting for other processes |
/// | `Pause` | the caller did | makes them | no: the driver comes back | no: the caller checks for it |
/// | `ToSubmit` | the caller did | the caller makes them next | no: the caller did | yes, without waiting for other processes |
/// | `Bare` | the caller did | stay pending | no | no |
///
/// A thread that drives another ring at the same time, or that serves several rings, uses
/// `FinishedInside` or `LeaveInside`. Its deferred submits may sleep, and these rings would have to
/// wait.
///
/// Dropping a [`LockedRing`] without an exit (after a read, on an error, when the ring is closed)
/// wakes no sleeper, and runs the work that arrived.
#[derive(Clone, Copy)]
pub(crate) enum Exit {
    Leave,
    Finished,
    /// For a driver that only runs other threads' task work, possibly in the ring watcher's thread.
    FinishedForOthers,
    FinishedInside,
    LeaveInside,
    Pause,
    /// For a driver that makes the deferred submits next, which may sleep.
    ToSubmit,
    Bare,
}

impl Deref for LockedRing<'_> {
    type Target = RingState;

    #[inline]
    fn deref(&self) -> &RingState {
        &self.state
    }
}

impl DerefMut for LockedRing<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut RingState {
        &mut self.state
    }
}
