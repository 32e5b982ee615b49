//! A ring, and the parts of it that other threads may touch.
//!
//! - [`Ring`] is what all threads share: its words, its task-work list and its sleep word.
//! - [`RingState`] is everything else. Only the thread that drives the ring sees it, through
//!   [`LockedRing`], the proof that the thread holds the ring's lock (the kernel's `uring_lock`).

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
use crate::request::pool::RequestPool;
use crate::request::{Request, RequestEntry};
use crate::submission::chain::Chain;
use crate::submission::drain::Drain;
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
use usring_ring::{CompletionQueue, Control, Journal, Memory, SubmissionQueue};
use usring_sys::Errno;
use usring_sys::clock::Clock;
use usring_sys::mutex::Mutex;
use usring_sys::process_mutex::{Guard, HeldBy, ProcessMutex, Since};
use usring_sys::process_number;
use usring_sys::queue::{Queue, Taker};
use usring_sys::shared::View;
use usring_sys::thread;
use usring_uapi::io_uring as abi;

/// Calls in a row that may end without a poll of the ring's files and timers, because enough
/// completions are ready. A poll costs a system call.
const CALLS_WITHOUT_POLL: u32 = 8;
/// The limit that replaces [`CALLS_WITHOUT_POLL`] while guesses are right (`waiting::expected`):
/// files were tried before the epoll set reported them, and were ready. The next poll of the set
/// has to check each of those files again, so it is made less often. (Files that are only expected
/// to be ready do not count: a call that submits nothing, or finds the CQ full, tries none.)
const CALLS_OF_GUESSES: u32 = 32;

/// One io_uring instance, as one process knows it. Always in an `Arc`: workers and the ring watcher
/// hold it while they have work for it.
///
/// A ring that processes share by fork(2) has a `Ring` in each process that uses it. These
/// processes share the words of `memory` and `control`. All else belongs to the requests that this
/// process has submitted.
#[doc(alias = "io_ring_ctx")]
pub struct Ring {
    /// `IORING_SETUP_*`, fixed at setup.
    pub(crate) flags: u32,
    /// Memory that the program maps.
    pub(crate) memory: Memory,
    /// Words behind the queues.
    pub(crate) control: Control,
    /// Work that other threads have for the ring's driver: requests that workers have finished,
    /// messages of other rings.
    pub(crate) task_work: Queue<Request>,
    pub(crate) wakers: Wakers,
    pub(crate) readiness: Readiness,
    /// The thread that alone may submit (SINGLE_ISSUER), 0 until known. [`OTHER_PROCESS`]: a thread
    /// of another process.
    pub(crate) issuer: AtomicUsize,
    pub(crate) watch: WatcherEntry,
    pub(crate) sq_thread: SqThreadHandle,
    pub(crate) cq_waits: CqWaits,
    /// The registered eventfd of a ring that defers task work. Other threads signal it when they
    /// bring work, which they do without the ring's lock.
    pub(crate) work_event: Mutex<Option<Arc<EventDescriptor>>>,
    /// Callers that ask for events poll the devices, although the ring has no IOPOLL: see
    /// `calls::events`.
    pub(crate) waiters_poll: bool,
    /// Number of concurrent requests that the ring was made for, where its CQ does not show it.
    pub(crate) expected_requests: u32,
    /// The process that this value belongs to.
    process: &'static Process,
    /// Another process made the ring.
    is_adopted: bool,
    /// This process takes part in the sharing of the ring with other processes: see
    /// `waiting::process_rings`.
    pub(crate) takes_part: AtomicBool,
    /// The count of news that this process has heard of ([`Control::news`]). Changed under the
    /// ring's lock.
    pub(crate) heard_news: AtomicU32,
    /// The wake eventfd of the ring watcher in the process that made the ring. Descendants of that
    /// process keep the number open.
    pub(crate) creators_watcher: i32,
    state: ProcessMutex<RingState, View<AtomicU32>>,
}

/// Value of [`Ring::issuer`] for a thread of another process. No thread pointer has it.
pub(crate) const OTHER_PROCESS: usize = usize::MAX;

/// State that only the ring's driver touches, in groups by what it is for.
pub(crate) struct RingState {
    pub queues: Queues,
    pub waiting: Waiting,
    pub registered: Registered,
    pub notify: Notify,
    pub devices: Devices,
    pub closed: bool,
    /// The ring takes no more requests and no more waits. It is closed once nothing is under way.
    pub retired: bool,
}

/// The requests between the SQ and the CQ that wait for nothing but their turn. `submission` and
/// `driving` move them.
pub(crate) struct Queues {
    /// The driver's end of the task-work list.
    pub taker: Taker<Request>,
    pub sq: SubmissionQueue,
    pub cq: CompletionQueue,
    pub pool: RequestPool,
    pub chain: Chain,
    pub drain: Drain,
    /// Requests that may be issued now.
    pub issuable: VecDeque<RequestEntry>,
    /// Chain members that may start. They start behind all requests that are submitted or run in
    /// the same batch, as in the kernel.
    pub successors: VecDeque<RequestEntry>,
    pub statistics: RingCounters,
    /// The requests without a published CQE, once other processes use the ring.
    pub journal: Option<Box<Journal>>,
}

/// The requests that wait for files or time. `waiting` arms them, `driving` brings them back.
#[derive(Default)]
pub(crate) struct Waiting {
    pub polls: PollTable,
    pub timeouts: Timeouts,
    pub stuck_calls: StuckCalls,
    pub rights: RingRights,
    /// Clock of the waits' timeouts (REGISTER_CLOCK).
    pub clock: Clock,
    /// Calls since the ring's files and timers were last polled, on a ring that defers its task
    /// work.
    pub calls_without_poll: u32,
}

/// The things that the program has registered. `calls::register` fills the tables, and requests
/// use them.
#[derive(Default)]
pub(crate) struct Registered {
    pub files: RegisteredFiles,
    pub buffers: RegisteredBuffers,
    pub buffer_groups: BufferGroups,
    pub restrictions: Restrictions,
    pub napi: Napi,
}

/// The notifications that published CQEs cause. `completion` and `driving::release` make them.
#[derive(Default)]
pub(crate) struct Notify {
    pub event_descriptor: Option<Arc<EventDescriptor>>,
    /// Requests' own eventfds.
    pub request_events: RequestEvents,
    /// CQEs were published since the lock was taken, and sleepers are to be notified.
    pub published: bool,
    /// One of these CQEs came from a worker (EVENTFD_ASYNC).
    pub completed_by_worker: bool,
}

/// The transfers that devices carry out. `submission::device_submit` hands them over, and
/// `driving::reap` completes them.
#[derive(Default)]
pub(crate) struct Devices {
    pub queues: DeviceQueues,
    pub named: NamedFiles,
    /// Resources of a ring that was closed while a deferred submit was under way.
    pub departing: Option<Box<Departing>>,
}

impl Ring {
    pub(crate) fn from_parts(flags: u32, memory: Memory, task_work: Queue<Request>, state: RingState) -> Ring {
        let control = memory.control();
        control.begin(flags & abi::IORING_SETUP_R_DISABLED != 0);
        // A process without a number shares no ring: a child that inherits this ring cannot adopt
        // it.
        let own = process_number::own().unwrap_or(process_number::ALONE);
        let state = ProcessMutex::new(control.lock(), own, process_number::is_alive, state);
        Ring { creators_watcher: tasks().number_for_children(), ..Ring::with_state(flags, memory, task_work, state) }
    }

    /// Makes this process's view of a ring that its parent has made. Only what is fixed at setup is
    /// read from `inherited`, the parent's view as it was at the fork.
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
            creators_watcher: inherited.creators_watcher,
            is_adopted: true,
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
            wakers: Wakers::new(control.sleep()),
            control,
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

    /// Returns the memory of both queues, for an application's halves in this process.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns whether an ancestor of this process made the value. The value is then a copy from
    /// the time of the fork, and the threads that it names do not exist here. The process must not
    /// drive it: enter and register answer `EOWNERDEAD`. To use the ring, the process makes a value
    /// of its own ([`Ring::adopt`]). A child by vfork(2) counts as its parent.
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

    /// Returns whether completions are found by polling the devices.
    #[inline]
    pub(crate) fn is_polled(&self) -> bool {
        self.has(abi::IORING_SETUP_IOPOLL)
    }

    /// Returns whether the SQ thread alone polls the devices.
    #[inline]
    pub(crate) fn is_polled_by_thread(&self) -> bool {
        const BOTH: u32 = abi::IORING_SETUP_IOPOLL | abi::IORING_SETUP_SQPOLL;
        self.flags & BOTH == BOTH
    }

    /// Returns whether completions become an AIO context's events: see `calls::events`.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.memory.layout().has_events()
    }

    /// Returns whether completions appear only when the owner asks for events.
    #[inline]
    pub(crate) fn defers_task_work(&self) -> bool {
        self.has(abi::IORING_SETUP_DEFER_TASKRUN)
    }

    /// Returns whether the ring's files and timers are polled only by threads that come to wait.
    #[inline]
    pub(crate) fn is_left_to_owner(&self) -> bool {
        self.defers_task_work() || self.watch.activity.is_idle_watched()
    }

    /// Returns whether the ring has not been enabled yet. If it has, the enabling thread's writes
    /// are visible.
    #[inline]
    pub(crate) fn is_disabled(&self) -> bool {
        self.control.is_disabled()
    }

    /// Returns whether several processes use the ring. Then:
    ///
    /// - No waiter leads: each process's ring watcher watches the files of that process's requests,
    ///   and all waiters sleep on the shared sleep word.
    /// - Each published CQE wakes all waiters.
    /// - Work that another thread brings is run by the thread that brings it.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.control.sharing().is_shared()
    }

    /// Returns whether a thread of this process leads the ring's waiters.
    #[inline]
    pub(crate) fn is_led(&self) -> bool {
        !self.is_adopted && self.wakers.sleep.is_led()
    }

    /// Returns whether a thread of this process leads although several processes use the ring.
    pub(crate) fn has_late_leader(&self) -> bool {
        !self.is_adopted && self.control.sharing().has_late_leader(&self.wakers.sleep)
    }

    /// Returns whether other threads have brought work, or the ring watcher has called.
    #[inline(always)]
    pub(crate) fn has_work_left(&self) -> bool {
        !self.task_work.is_empty() || self.watch.is_called()
    }

    /// Returns whether the ring has SINGLE_ISSUER and its issuer is not the calling thread.
    pub(crate) fn is_other_issuer(&self) -> bool {
        let issuer = self.issuer.load(Ordering::Relaxed);
        // If the issuer is unknown here but the ring is enabled, another process has enabled it.
        let is_unknown = issuer == 0 && self.is_disabled();
        self.has(abi::IORING_SETUP_SINGLE_ISSUER) && issuer != thread::current().0 && !is_unknown
    }

    /// Brings this process's view of the queues up to date, after another process has driven the
    /// ring.
    #[cold]
    fn catch_up(&self, state: &mut RingState, since: Since) {
        state.queues.sq.catch_up();
        state.queues.cq.catch_up();
        self.readiness.share();
        if since == Since::HolderDied {
            // The next CQEs overwrite those that the dead driver had not published.
            self.journal(state);
            let Queues { journal, cq, .. } = &mut state.queues;
            journal.iter_mut().for_each(|journal| journal.forget_unpublished(cq));
            cq.show_overflow();
        }
        self.hear_of_others(state);
    }

    /// Returns the number of this process.
    pub(crate) fn process_number(&self) -> u32 {
        self.state.own()
    }

    /// Returns whether this process has inherited the ring.
    pub(crate) fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// Returns the journal of a shared ring.
    fn journal<'a>(&self, state: &'a mut RingState) -> &'a mut Journal {
        let new = || Box::new(self.memory.journal(self.state.own()));
        state.queues.journal.get_or_insert_with(new)
    }

    /// Becomes the ring's driver; waits while another thread is.
    #[inline(always)]
    pub(crate) fn lock(self: &Arc<Self>) -> LockedRing<'_> {
        LockedRing {
            ring: self,
            state: self.state.lock(|state, since| self.catch_up(state, since)),
            duty: ReleaseDuty(self),
        }
    }

    /// Becomes the ring's driver unless another thread is. If that thread is in another process
    /// ([`HeldBy::OtherProcess`]), it does not see the work of this process.
    pub(crate) fn try_lock(self: &Arc<Self>) -> Result<LockedRing<'_>, HeldBy> {
        let state = self.state.try_lock(|state, since| self.catch_up(state, since))?;
        Ok(LockedRing { ring: self, state, duty: ReleaseDuty(self) })
    }
}

/// The driver's hold on a ring: proof that its lock is held.
pub(crate) struct LockedRing<'a> {
    pub ring: &'a Arc<Ring>,
    state: Guard<'a, RingState, View<AtomicU32>>,
    /// Behind `state`, because fields are dropped in this order.
    duty: ReleaseDuty<'a>,
}

/// The duty of every driver after it has released the lock: to look for work again. In the
/// meantime, a thread that brought work may have found the lock taken and left its work to the
/// driver.
pub(crate) struct ReleaseDuty<'a>(pub &'a Arc<Ring>);

impl<'a> LockedRing<'a> {
    /// Returns whether a poll of the armed files and timers is due, because several calls in a row
    /// found enough completions without one.
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

    /// Returns whether waiters poll the devices, so that completion interrupts stay off.
    pub fn waiters_poll_devices(&self) -> bool {
        self.ring.is_polled() || self.ring.waiters_poll && !self.notify.request_events.is_awaited()
    }

    /// Notes that the files have been polled.
    #[inline]
    pub fn note_poll(&mut self) {
        self.waiting.calls_without_poll = 0;
        self.waiting.polls.expected.begin_anew();
    }

    /// Enters a request that was taken from the SQ of a shared ring in the journal, in case this
    /// process ends before the request does.
    #[inline(never)]
    pub fn note_in_journal(&mut self, request: &mut Request) {
        if !self.ring.is_shared() {
            return;
        }
        let is_published = !self.queues.cq.has_unannounced();
        if let Some(journal) = self.queues.journal.as_mut().filter(|_| is_published) {
            // Requests that succeeded without a CQE cause no publication, so their slots are
            // cleared here.
            journal.clear_published();
        }
        request.journal = self.journal().begin(request.sqe.user_data);
    }

    /// Returns the journal of a shared ring.
    pub fn journal(&mut self) -> &mut Journal {
        self.ring.journal(&mut self.state)
    }

    /// Wakes sleepers for the CQEs that were published, while the lock stays held.
    pub fn wake_others(&mut self) {
        if let Some(ready) = self.take_published() {
            self.ring.wakers.wake_all(ready);
        }
    }

    /// Returns the number of ready CQEs to wake sleepers for. `u32::MAX` wakes all sleepers. That
    /// is needed in four cases:
    ///
    /// - A timeout has ended, which ends every wait.
    /// - There is a backlog, which sleepers move into the CQ.
    /// - The ring defers task work: its owner waits for further CQEs and not for a total.
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

    /// Brings the journal of a shared ring up to date, and wakes all waiters.
    #[cold]
    #[inline(never)]
    fn published_for_all(&mut self) -> u32 {
        if let Some(journal) = &mut self.queues.journal {
            journal.clear_published();
        }
        self.call_cqe_listeners();
        u32::MAX
    }

    /// Releases the lock, which is a full barrier, and wakes sleepers for the CQEs that were
    /// published. A driver that leaves calls [`LockedRing::release`] instead, which fulfils the
    /// duty that is returned here.
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

/// A driver's ways to give a ring back ([`LockedRing::release`]). Every exit wakes the sleepers for
/// what was published.
///
/// | exit | finishes the batch | deferred submits | hands waits to the ring watcher | runs work that arrived |
/// |---|---|---|---|---|
/// | `Leave` | yes | now | yes | yes |
/// | `Finished` | was done | now | yes | yes |
/// | `FinishedForOthers` | was done | now; the ring watcher's by a submit helper | yes | no: the caller looks |
/// | `FinishedInside` | was done | by a submit helper | yes | no: the caller looks |
/// | `LeaveInside` | yes | by a submit helper | yes | yes, as `FinishedInside` |
/// | `Pause` | was done | now | no: the driver comes back | no: the caller looks |
/// | `ToSubmit` | was done | the caller makes them next | no: the caller did | yes, as `FinishedInside` |
/// | `Bare` | was done | stay pending | no | no |
///
/// A driver that is inside another ring, or serves several, uses the exits `…Inside`: its deferred
/// submits may sleep, and another ring would wait. A [`LockedRing`] that is only dropped (after a
/// read, on an error, at the ring's end) wakes no sleeper, and runs the work that arrived.
#[derive(Clone, Copy)]
pub(crate) enum Exit {
    Leave,
    Finished,
    /// For a driver that came for other threads' work, perhaps in the ring watcher.
    FinishedForOthers,
    FinishedInside,
    LeaveInside,
    Pause,
    /// For a driver that is about to make deferred submits, which may sleep.
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
