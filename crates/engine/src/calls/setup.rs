//! io_uring_setup(2), mmap(2) of a ring's memory, and the close of a ring.

use crate::completion::observation;
use crate::counters::RingCounters;
use crate::driving::{ring_watcher, sq_thread, task_work, wait};
use crate::host;
use crate::request::Request;
use crate::ring::{Queues, Ring, RingState};
use crate::waiting::device_queues::ClosedRingResources;
use crate::waiting::{ask_processes, fast_poll, process_rings, workers};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use usring_ring::{CompletionQueue, Layout, Memory, SubmissionQueue, layout};
use usring_sys::mapping::PAGE;

use usring_sys::per_process;
use usring_sys::queue::{Consumer, queue};
use usring_sys::syscall::AddressTrust;
use usring_sys::{Errno, UserAddress, memory_reserve, thread, width};
use usring_uapi::io_uring as abi;
use usring_uapi::io_uring::io_uring_params;

const KNOWN: u32 = abi::IORING_SETUP_IOPOLL
    | abi::IORING_SETUP_HYBRID_IOPOLL
    | abi::IORING_SETUP_SQPOLL
    | abi::IORING_SETUP_SQ_AFF
    | abi::IORING_SETUP_CQSIZE
    | abi::IORING_SETUP_CLAMP
    | abi::IORING_SETUP_ATTACH_WQ
    | abi::IORING_SETUP_R_DISABLED
    | abi::IORING_SETUP_SUBMIT_ALL
    | abi::IORING_SETUP_COOP_TASKRUN
    | abi::IORING_SETUP_TASKRUN_FLAG
    | abi::IORING_SETUP_SQE128
    | abi::IORING_SETUP_CQE32
    | abi::IORING_SETUP_SINGLE_ISSUER
    | abi::IORING_SETUP_DEFER_TASKRUN
    | abi::IORING_SETUP_NO_MMAP
    | abi::IORING_SETUP_REGISTERED_FD_ONLY
    | abi::IORING_SETUP_NO_SQARRAY;

/// The IORING_FEAT_* flags that setup reports. RW_ATTR is missing, because usring transfers no
/// integrity data.
pub const FEATURES: u32 = abi::IORING_FEAT_SINGLE_MMAP
    | abi::IORING_FEAT_NODROP
    | abi::IORING_FEAT_SUBMIT_STABLE
    | abi::IORING_FEAT_RW_CUR_POS
    | abi::IORING_FEAT_CUR_PERSONALITY
    | abi::IORING_FEAT_FAST_POLL
    | abi::IORING_FEAT_POLL_32BITS
    | abi::IORING_FEAT_SQPOLL_NONFIXED
    | abi::IORING_FEAT_EXT_ARG
    | abi::IORING_FEAT_NATIVE_WORKERS
    | abi::IORING_FEAT_RSRC_TAGS
    | abi::IORING_FEAT_CQE_SKIP
    | abi::IORING_FEAT_LINKED_FILE
    | abi::IORING_FEAT_REG_REG_RING
    | abi::IORING_FEAT_RECVSEND_BUNDLE
    | abi::IORING_FEAT_MIN_TIMEOUT
    | abi::IORING_FEAT_NO_IOWAIT;

/// Number of rings that this process and its ancestors have made. Rings are numbered from 1, so
/// this is also the number of the last ring.
static RINGS: AtomicU32 = AtomicU32::new(0);

impl Ring {
    /// io_uring_setup(2): makes a ring and fills `params`. By `trust`, the caller promises that
    /// usring may access every address that the ring's requests will name.
    ///
    /// Errors:
    /// - `EINVAL` for a wrong size, a wrong flag, or flags that exclude each other; `ENOMEM`.
    /// - `EFAULT` if the memory that the program passes with NO_MMAP cannot be used.
    /// - `ENXIO` or `EINVAL` for the descriptor that ATTACH_WQ names.
    /// - The errors of starting a thread.
    pub fn setup(trust: AddressTrust, entries: u32, params: &mut io_uring_params) -> Result<Arc<Ring>, Errno> {
        let _ = trust;
        check(params)?;
        memory_reserve::check()?;
        per_process::prepare()?;
        let (sq_entries, cq_entries) = layout::entries(entries, params.cq_entries, params.flags)?;
        let layout = Layout::new(sq_entries, cq_entries, params.flags);
        let memory = if params.flags & abi::IORING_SETUP_NO_MMAP != 0 {
            let (rings, sqes) = (UserAddress(params.cq_off.user_addr), UserAddress(params.sq_off.user_addr));
            if !rings.0.is_multiple_of(PAGE as u64) || !sqes.0.is_multiple_of(PAGE as u64) {
                return Err(Errno::EINVAL);
            }
            Memory::of_program(rings, sqes, layout)?
        } else {
            Memory::allocate(layout)?
        };
        ring_watcher::start()?;
        let mut ring = new_ring(params.flags, memory);
        ring.number = RINGS.fetch_add(1, Ordering::Relaxed) + 1;
        let mut ring = Arc::new(ring);
        if params.flags & abi::IORING_SETUP_R_DISABLED == 0 {
            ring.issuer.store(thread::current().0, Ordering::Relaxed);
        }
        if params.flags & abi::IORING_SETUP_SQPOLL != 0 {
            sq_thread::join(&mut ring, params)?;
        } else if params.flags & abi::IORING_SETUP_ATTACH_WQ != 0 {
            // All rings of a process share its workers even without ATTACH_WQ. So nothing is
            // attached here: only the descriptor is checked.
            host::ring_to_attach_to(params.wq_fd.cast_signed())?;
        }
        process_rings::enlist(&ring);
        params.sq_entries = sq_entries;
        params.cq_entries = cq_entries;
        params.features = FEATURES;
        let lent = params.flags & abi::IORING_SETUP_NO_MMAP != 0;
        params.sq_off = layout.sq_offsets(if lent { params.sq_off.user_addr } else { 0 });
        params.cq_off = layout.cq_offsets(if lent { params.cq_off.user_addr } else { 0 });
        observation::opened(&ring);
        Ok(ring)
    }

    /// mmap(2) of a ring's descriptor: maps the memory that `offset` stands for, at any free
    /// address.
    ///
    /// Errors: `EINVAL` (`offset` not a multiple of the page size, length 0), `ENOMEM` (unknown
    /// offset, NO_MMAP, no such buffer ring), the errors of mremap(2).
    pub fn map(self: &Arc<Self>, offset: u64, length: usize) -> Result<usize, Errno> {
        if !offset.is_multiple_of(PAGE as u64) {
            return Err(Errno::EINVAL);
        }
        let region = offset & u64::from(abi::IORING_OFF_MMAP_MASK);
        let buffer_ring;
        let mut behind = 0;
        let lent = self.has(abi::IORING_SETUP_NO_MMAP);
        let memory = match width::low(region) {
            abi::IORING_OFF_SQ_RING | abi::IORING_OFF_CQ_RING | abi::IORING_OFF_SQES if lent => {
                return Err(Errno::ENOMEM);
            }
            abi::IORING_OFF_SQ_RING | abi::IORING_OFF_CQ_RING => self.memory.rings(),
            abi::IORING_OFF_SQES => {
                behind = self.memory.layout().rings_length();
                self.memory.sqes()
            }
            abi::IORING_OFF_PBUF_RING => {
                let group = (offset & !region) >> abi::IORING_OFF_PBUF_SHIFT;
                buffer_ring =
                    self.lock().registered.buffer_groups.ring_memory(width::short(group)).ok_or(Errno::ENOMEM)?;
                &*buffer_ring
            }
            _ => return Err(Errno::ENOMEM),
        };
        memory.duplicate(length, behind)
    }

    /// Returns the distance of the CQ's tail from the start of the memory that the program maps at
    /// the offset `IORING_OFF_CQ_RING`.
    pub fn cq_tail_offset(&self) -> u64 {
        self.memory.layout().cq_offsets(0).tail.into()
    }

    /// Closes the ring, because its last descriptor in this process was closed. Cancels the
    /// requests in flight, and does not wait until they have ended. But if other processes use the
    /// ring, the requests continue. Does nothing to a `Ring` that an ancestor of this process made.
    pub fn close(self: &Arc<Self>) {
        if !self.is_inherited() && !self.leave() {
            self.end();
        }
    }

    /// Notifies the observers that the ring closes because the process ends. Does nothing if the
    /// ring's lock cannot be acquired in time.
    pub fn end_observation(self: &Arc<Self>) {
        if !self.is_inherited()
            && let Some(locked) = self.lock_in_time()
        {
            observation::closed(&locked);
        }
    }

    /// Cancels the requests in flight, and releases everything that the ring has in this process.
    pub(super) fn end(self: &Arc<Self>) {
        self.readiness.forget();
        sq_thread::leave(self);
        ring_watcher::forget(self);
        let mut locked = self.lock();
        observation::closed(&locked);
        locked.closed = true;
        if !self.is_adopted() {
            self.control.note_maker_has_left();
            if self.has(abi::IORING_SETUP_SQPOLL) {
                // The ring has no SQ thread any more. The flag NEED_WAKEUP makes a child that has
                // inherited the ring call io_uring_enter(2). That call fails with EOWNERDEAD, so
                // the child does not wait for the SQ thread.
                locked.queues.sq.need_wakeup();
            }
        }
        locked.queues.consumer.seal();
        while locked.waiting.polls.extract(|_| true).is_some() {}
        drop(locked.waiting.timeouts.take_all());
        ask_processes::forget(&mut locked);
        workers::interrupt_running(self);
        locked.waiting.rights.forget();
        locked.queues.issuable.clear();
        locked.queues.successors.clear();
        locked.queues.drain.clear();
        locked.registered.files.follow(None);
        locked.notify.event_descriptor = None;
        locked.notify.request_events.forget();
        *self.work_event.lock() = None;
        fast_poll::drop_set(&mut locked);
        self.wakers.completions.end();
        let resources = {
            let RingState { devices, registered, .. } = &mut *locked;
            ClosedRingResources::of(&mut devices.queues, &mut registered.buffers)
        };
        // The task-work list is sealed, so no thread adds to it any more. This call releases the
        // requests on it, and sends back those that came from other rings.
        task_work::run(&mut locked);
        locked.wake_others();
        if resources.submits_have_ended() {
            drop(locked);
            resources.release_resources();
        } else {
            // The thread that makes this ring's last deferred submit releases the ring's queue
            // pairs and buffers.
            locked.devices.closed_ring_resources = Some(Box::new(resources));
        }
    }

    /// Closes the ring. Waits until no worker and no deferred submit accesses memory for the ring.
    /// Workers' waits are interrupted, but writes that have begun are completed.
    pub fn close_and_wait(self: &Arc<Self>) {
        self.close();
        while !self.is_inherited()
            && (workers::have_requests_of(self) || self.lock().devices.closed_ring_resources.is_some())
        {
            workers::interrupt_running(self);
            let _ = wait::pause(self);
        }
    }
}

fn check(params: &io_uring_params) -> Result<(), Errno> {
    let flags = params.flags;
    let has = |flag: u32| flags & flag != 0;
    if params.resv != [0; 3] || flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let polled = has(abi::IORING_SETUP_SQPOLL);
    let cooperative = abi::IORING_SETUP_COOP_TASKRUN | abi::IORING_SETUP_TASKRUN_FLAG | abi::IORING_SETUP_DEFER_TASKRUN;
    let contradictions = [
        polled && has(cooperative),
        has(abi::IORING_SETUP_SQ_AFF) && !polled,
        has(abi::IORING_SETUP_HYBRID_IOPOLL) && !has(abi::IORING_SETUP_IOPOLL),
        has(abi::IORING_SETUP_DEFER_TASKRUN) && !has(abi::IORING_SETUP_SINGLE_ISSUER),
        has(abi::IORING_SETUP_TASKRUN_FLAG) && !has(abi::IORING_SETUP_COOP_TASKRUN | abi::IORING_SETUP_DEFER_TASKRUN),
        has(abi::IORING_SETUP_REGISTERED_FD_ONLY) && !has(abi::IORING_SETUP_NO_MMAP),
    ];
    if contradictions.contains(&true) { Err(Errno::EINVAL) } else { Ok(()) }
}

pub(super) fn new_ring(flags: u32, memory: Memory) -> Ring {
    let (task_work, consumer) = queue();
    let state = new_state(consumer, &memory);
    Ring::from_parts(flags, memory, task_work, state)
}

pub(super) fn new_state(consumer: Consumer<Request>, memory: &Memory) -> RingState {
    RingState {
        queues: Queues {
            consumer,
            sq: SubmissionQueue::new(memory),
            cq: CompletionQueue::new(memory),
            pool: Default::default(),
            chain: Default::default(),
            drain: Default::default(),
            issuable: VecDeque::new(),
            successors: VecDeque::new(),
            statistics: RingCounters::claim(),
            journal: None,
        },
        waiting: Default::default(),
        registered: Default::default(),
        notify: Default::default(),
        devices: Default::default(),
        closed: false,
        retired: false,
    }
}
