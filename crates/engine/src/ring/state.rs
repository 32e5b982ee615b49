//! The state of a ring that only its driver touches, in groups. The comment of each group names the
//! modules that change the group. Other modules only read it.

use crate::completion::event_descriptor::EventDescriptor;
use crate::completion::request_events::RequestEvents;
use crate::counters::RingCounters;
use crate::op::named_files::NamedFiles;
use crate::registered::RegistrationSharing;
use crate::registered::buffer_group::BufferGroups;
use crate::registered::napi::Napi;
use crate::registered::registered_buffers::RegisteredBuffers;
use crate::registered::registered_files::RegisteredFiles;
use crate::registered::restrictions::Restrictions;
use crate::request::pool::RequestPool;
use crate::request::successor::Successor;
use crate::request::{Progress, Request, RequestEntry};
use crate::submission::chain::Chain;
use crate::submission::drain::Drain;
use crate::waiting::device_queues::{ClosedRingResources, DeviceQueues};
use crate::waiting::order::Order;
use crate::waiting::poll_table::PollTable;
use crate::waiting::remote_changes::RemoteChanges;
use crate::waiting::rights::RingRights;
use crate::waiting::stuck_calls::StuckCalls;
use crate::waiting::timeout::Timeouts;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use usring_ring::{CompletionQueue, Journal, SubmissionQueue};
use usring_sys::Errno;
use usring_sys::clock::Clock;
use usring_sys::queue::Consumer;

/// State that only the ring's driver touches, grouped by purpose.
pub(crate) struct RingState {
    pub queues: Queues,
    pub waiting: Waiting,
    pub registered: Registered,
    pub notify: Notify,
    pub devices: Devices,
    pub closed: bool,
    /// The ring accepts no more requests and no more waits. The ring is closed once its last
    /// request has completed.
    pub retired: bool,
}

impl RingState {
    /// Marks a request as cancelled, and queues it for the driver to complete
    /// (`driving::batch::run_issuable`).
    pub fn queue_cancelled(&mut self, mut request: RequestEntry) {
        request.progress = Progress::Refused;
        request.result = Errno::ECANCELED.negative();
        self.queues.issuable.push_back(request);
    }
}

/// The SQ, the CQ, and the requests between them that the driver has to issue next. `submission`
/// and `driving` move these requests.
pub(crate) struct Queues {
    /// The driver's half of the task-work list, which takes requests off the list.
    pub consumer: Consumer<Request>,
    pub sq: SubmissionQueue,
    pub cq: CompletionQueue,
    pub pool: RequestPool,
    pub chain: Chain,
    pub drain: Drain,
    /// Requests that may be issued now.
    pub issuable: VecDeque<RequestEntry>,
    /// The requests that may start now: members of chains, and requests that a drain has held back.
    /// As in the kernel, the driver starts them after the rest of the batch that it is submitting
    /// or completing.
    pub successors: VecDeque<Successor>,
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
    /// Changes that this process asks other processes of a shared ring to make.
    pub remote_changes: RemoteChanges,
    pub stuck_calls: StuckCalls,
    pub rights: RingRights,
    /// Clock by which io_uring_enter measures its time limits (REGISTER_CLOCK).
    pub clock: Clock,
    /// Number of io_uring_enter calls since the ring's files and timers were last polled: see
    /// [`LockedRing::is_poll_due`](super::LockedRing::is_poll_due).
    pub calls_without_poll: u32,
    /// The requests that `usring run --order` holds back; `None`: there were none yet.
    pub order: Option<Box<Order>>,
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
    pub closed_ring_resources: Option<Box<ClosedRingResources>>,
}
