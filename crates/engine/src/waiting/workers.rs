//! Worker threads, which may block (the kernel's io-wq). Each group of requests with equal rights
//! (`rights`) has two pools. The bounded pool serves regular files and block devices, whose work
//! ends by itself. The unbounded pool serves work that may wait for ever.
//!
//! - The group's anchor, a thread with the group's rights, starts workers on demand. If the common
//!   group has no anchor, the ring watcher starts its workers. Idle workers end after some seconds.
//! - Buffered writes to one file run one at a time, also across groups. The writes of one group run
//!   in the order in which they were queued.
//! - A queued job belongs to the pool's queue, a running job to its worker. The worker passes a
//!   finished request back to its ring as task work.

use crate::probes;
use crate::request::conditions::RequestId;
use crate::request::operation::Operation;
use crate::request::{Blocking, Progress, Request, RequestEntry};
use crate::ring::{LockedRing, Ring};
use crate::waiting::idle_threads::{self, IdleThreads};
use crate::waiting::rights::{self, Group, GroupState};
use crate::waiting::tasks::tasks;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use usring_ring::JournalSlot;
use usring_sys::descriptor::{self, FileIdentity};
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::processor::Mask;
use usring_sys::{Errno, processor, signals, valgrind, wait};
use usring_uapi::general::O_DIRECT;
use usring_uapi::{Sqe, sqe_flags};

/// Maximum number of a group's workers in the unbounded pool, unless the program sets another
/// limit.
const DEFAULT_UNBOUNDED: u32 = 1024;

/// The two pools, in the order of IORING_REGISTER_IOWQ_MAX_WORKERS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Bounded = 0,
    Unbounded = 1,
}

/// Device and inode of a regular file. Buffered writes to the file run one at a time.
type OrderKey = (u64, u64);

struct Job {
    request: RequestEntry,
    ring: Arc<Ring>,
    order: Option<OrderKey>,
    /// The group whose rights the request has. The job's reference keeps the group alive.
    group: Arc<Group>,
}

/// A job that a worker is running.
struct Running {
    ring: Arc<Ring>,
    view: JobView,
    order: Option<OrderKey>,
    slot: Arc<WorkerSlot>,
}

/// The properties by which a cancellation finds a job.
#[derive(Clone, Copy)]
pub(crate) struct JobView {
    pub id: RequestId,
    pub sqe: Sqe,
    /// Descriptor number of the request's file, if it works on one.
    pub number: Option<i32>,
    /// The request's slot in the journal of a shared ring.
    pub journal: Option<JournalSlot>,
    /// Whether the job goes on after its ring is closed. `true` for a direct transfer without
    /// IOSQE_ASYNC: the kernel would have started the transfer before the submitter's enter(2)
    /// returned.
    pub outlives_ring: bool,
}

impl JobView {
    fn of(request: &Request) -> JobView {
        let is_left_to_workers = request.has_flag(sqe_flags::ASYNC);
        let outlives_ring = matches!(&request.operation, Operation::ReadWrite(transfer) if transfer.is_direct());
        let outlives_ring = outlives_ring && !is_left_to_workers;
        let (number, journal) = (request.file_number(), request.journal);
        JobView { id: request.id, sqe: request.sqe, number, journal, outlives_ring }
    }
}

/// The state of a worker by which another thread cancels the request that the worker runs.
#[derive(Default)]
struct WorkerSlot {
    thread: AtomicU32,
    /// 1: the worker's system call must end early.
    cancelled: AtomicU32,
}

impl WorkerSlot {
    /// Interrupts the system call that the worker is in or about to make.
    fn interrupt(&self) {
        self.cancelled.store(1, Ordering::SeqCst);
        wait::interrupt_worker(self.thread.load(Ordering::Relaxed));
    }
}

#[derive(Default)]
struct ClassState {
    queue: VecDeque<Job>,
    threads: IdleThreads,
}

#[derive(Default)]
struct PoolState {
    /// The queues of each group, by the group's serial number.
    groups: BTreeMap<u32, [ClassState; 2]>,
    /// Maximum number of workers per group, for each of the two pools; 0: not yet decided.
    limits: [u32; 2],
    running: Vec<Running>,
    placement: Placement,
}

/// The processors on which workers may run (REGISTER_IOWQ_AFF). Each worker applies a change before
/// its next job.
#[derive(Clone, Copy, Default)]
struct Placement {
    /// Number of changes so far; 0: workers keep the affinity with which they were started.
    version: u32,
    processors: Mask,
}

/// All workers of the process, and the jobs queued for them.
#[derive(Default)]
pub(crate) struct WorkerPool {
    state: Mutex<PoolState>,
}

static WORKERS: PerProcess<WorkerPool> = PerProcess::new();

/// Returns the worker pool of this process; makes it on first use.
pub(crate) fn workers() -> &'static WorkerPool {
    WORKERS.get_or_make(WorkerPool::default)
}

/// Queues a request for a worker.
pub(crate) fn queue_for_worker(locked: &mut LockedRing, request: RequestEntry) {
    debug_assert!(request.properties.work.is_some(), "an opcode without blocking work was handed to a worker");
    let (class, order) = classify(&request);
    if probes::is_on(locked.ring) {
        probes::queued(locked, &request, order.is_some());
    }
    let Some(group) = rights::group_of(&request) else {
        return finish(request, locked.ring.clone(), Errno::EAGAIN.negative());
    };
    let job = Job { request, ring: locked.ring.clone(), order, group };
    workers().enqueue(class, job);
}

/// Returns a request's pool. For a buffered write to a regular file, also returns the file's
/// [`OrderKey`]. Work on regular files and block devices always ends, so it goes to the bounded
/// pool.
fn classify(request: &Request) -> (Class, Option<OrderKey>) {
    let row = request.properties;
    if !row.needs_file {
        return (if row.waits_for_ever { Class::Unbounded } else { Class::Bounded }, None);
    }
    let number = request.file.number;
    let Ok(identity) = descriptor::identity(number) else { return (Class::Unbounded, None) };
    if !identity.is_regular() {
        let class = if identity.is_block_device() { Class::Bounded } else { Class::Unbounded };
        return (class, None);
    }
    let direct = descriptor::status_flags(number).is_ok_and(|flags| flags & O_DIRECT != 0);
    let FileIdentity { device, inode, .. } = identity;
    (Class::Bounded, (row.hashes_regular_file && !direct).then_some((device, inode)))
}

impl WorkerPool {
    fn enqueue(&'static self, class: Class, job: Job) {
        let group = job.group.clone();
        let mut state = self.state.lock();
        let limit = state.limit(class);
        let pool = state.pool(&group.state, class);
        pool.queue.push_back(job);
        let wakes = pool.threads.has_idle();
        let spawns = pool.threads.add_for(pool.queue.len(), 1, limit);
        drop(state);
        idle_threads::note_job(&group.state.job_futexes[class as usize], wakes);
        self.start(&group, class, spawns);
    }

    fn start(&'static self, group: &Group, class: Class, spawns: u32) {
        for _ in 0..spawns {
            let (theirs, spawn_failed) = (group.state.clone(), group.state.clone());
            group.start_worker(
                tasks(),
                Box::new(move || {
                    if theirs.has_group_rights() {
                        self.work(class, &theirs)
                    } else {
                        self.spawn_failed(class, &theirs)
                    }
                }),
                Box::new(move || self.spawn_failed(class, &spawn_failed)),
            );
        }
    }

    /// Handles a worker that could not be started, or that has other rights than its group. If the
    /// group's pool has no other worker, the queued jobs fail with `EAGAIN`, as on a kernel without
    /// workers.
    fn spawn_failed(&self, class: Class, group: &GroupState) {
        let mut state = self.state.lock();
        let pool = state.pool(group, class);
        pool.threads.remove();
        let stranded = if pool.threads.is_empty() { core::mem::take(&mut pool.queue) } else { VecDeque::new() };
        state.forget_if_over(group);
        drop(state);
        for job in stranded {
            finish(job.request, job.ring, Errno::EAGAIN.negative());
        }
    }

    /// Runs a worker's thread. The thread ends when it has been idle for some seconds, or when its
    /// group is retired and the pool's queue is empty.
    fn work(&self, class: Class, group: &GroupState) {
        let slot = Arc::new(WorkerSlot::default());
        slot.thread.store(signals::thread_id(), Ordering::Relaxed);
        let futex = &group.job_futexes[class as usize];
        let mut placed = 0;
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.next_job(group, class, &slot) {
                let placement = state.placement;
                drop(state);
                if placement.version != placed {
                    placed = placement.version;
                    processor::stay_among(&placement.processors);
                }
                self.run_job(job, &slot);
                state = self.state.lock();
                continue;
            }
            let seen = futex.load(Ordering::SeqCst);
            let is_over = group.is_retired() && state.pool(group, class).queue.is_empty();
            if is_over {
                return state.end_worker(group, class);
            }
            let is_long;
            (state, is_long) = idle_threads::sleep(&self.state, state, (futex, seen), |state: &mut PoolState| {
                &mut state.pool(group, class).threads
            });
            if is_long && state.pool(group, class).queue.is_empty() {
                return state.end_worker(group, class);
            }
        }
    }

    fn run_job(&self, mut job: Job, slot: &WorkerSlot) {
        let id = job.request.id;
        let result = match job.request.properties.work {
            // Under Valgrind, errors in the request's memory were reported at its submission. So
            // they are not reported again here.
            Some(work) => valgrind::without_errors(|| work(&mut job.request, &Blocking { cancelled: &slot.cancelled })),
            None => Errno::EINVAL.negative(),
        };
        let mut state = self.state.lock();
        state.running.retain(|running| running.view.id != id || !Arc::ptr_eq(&running.ring, &job.ring));
        // A queued write to this job's file, in any group, may have waited until this job ended.
        let successors = if job.order.is_some() { state.groups_with_job(job.order) } else { Vec::new() };
        drop(state);
        for group in successors {
            let is_other = !Arc::ptr_eq(&group, &job.group);
            idle_threads::note_job(&group.state.job_futexes[Class::Bounded as usize], is_other);
        }
        let Job { request, ring, group, .. } = job;
        finish(request, ring, result);
        drop(group);
    }

    /// Restricts all workers to these processors; `None`: lifts the restriction.
    pub fn set_affinity(&self, processors: Option<Mask>) {
        let placement = &mut self.state.lock().placement;
        placement.version += 1;
        placement.processors = processors.unwrap_or_else(|| Mask::default().map(|_| u64::MAX));
    }

    /// Sets the maximum number of workers for each of the two pools, and returns the previous
    /// limits. A zero in `new` leaves the pool's limit unchanged. Starts the workers that a raised
    /// limit allows for queued jobs.
    pub fn exchange_limits(&'static self, new: [u32; 2]) -> [u32; 2] {
        let mut state = self.state.lock();
        let old = [Class::Bounded, Class::Unbounded].map(|class| state.limit(class));
        let mut spawns = Vec::new();
        for (index, class) in [Class::Bounded, Class::Unbounded].into_iter().enumerate() {
            let limit = if new[index] == 0 { old[index] } else { new[index] };
            state.limits[index] = limit;
            for pools in state.groups.values_mut() {
                let pool = &mut pools[index];
                let count = pool.threads.add_for(pool.queue.len(), u32::MAX, limit);
                // `start` needs a reference to the group. The first queued job has one.
                spawns.extend(pool.queue.front().map(|job| (job.group.clone(), class, count)));
            }
        }
        drop(state);
        for (group, class, count) in spawns {
            self.start(&group, class, count);
        }
        old
    }
}

impl PoolState {
    /// Returns how many workers a group may have in this pool.
    fn limit(&mut self, class: Class) -> u32 {
        let limit = &mut self.limits[class as usize];
        if *limit == 0 {
            *limit = match class {
                Class::Bounded => 4 * processor::count(),
                Class::Unbounded => DEFAULT_UNBOUNDED,
            };
        }
        *limit
    }

    fn pool(&mut self, group: &GroupState, class: Class) -> &mut ClassState {
        &mut self.groups.entry(group.serial).or_default()[class as usize]
    }

    fn end_worker(&mut self, group: &GroupState, class: Class) {
        self.pool(group, class).threads.remove();
        self.forget_if_over(group);
    }

    /// Drops the state of a group that has no queued jobs and no workers.
    fn forget_if_over(&mut self, group: &GroupState) {
        let is_over =
            |pools: &[ClassState; 2]| pools.iter().all(|pool| pool.threads.is_empty() && pool.queue.is_empty());
        if self.groups.get(&group.serial).is_some_and(is_over) {
            self.groups.remove(&group.serial);
        }
    }

    /// Returns the groups that have a queued job with this order key (the file's device and inode).
    fn groups_with_job(&self, order: Option<OrderKey>) -> Vec<Arc<Group>> {
        let queues = self.groups.values().map(|pools| &pools[Class::Bounded as usize].queue);
        queues.filter_map(|queue| queue.iter().find(|job| job.order == order)).map(|job| job.group.clone()).collect()
    }

    /// Dequeues the oldest job that can run now, and records it as running. A buffered write must
    /// not run while another write to its file runs. `None`: no queued job can run now.
    fn next_job(&mut self, group: &GroupState, class: Class, slot: &Arc<WorkerSlot>) -> Option<Job> {
        let queue = &mut self.groups.get_mut(&group.serial)?[class as usize].queue;
        let running = &self.running;
        let mut blocked: Vec<OrderKey> = Vec::new();
        let position = queue.iter().position(|job| {
            let Some(order) = job.order else { return true };
            if blocked.contains(&order) || running.iter().any(|other| other.order == Some(order)) {
                blocked.push(order);
                return false;
            }
            true
        })?;
        let job = queue.remove(position)?;
        slot.cancelled.store(0, Ordering::SeqCst);
        self.running.push(Running {
            ring: job.ring.clone(),
            view: JobView::of(&job.request),
            order: job.order,
            slot: slot.clone(),
        });
        Some(job)
    }
}

fn finish(mut request: RequestEntry, ring: Arc<Ring>, result: i32) {
    request.progress = Progress::Ran;
    request.result = result;
    ring.add_finished(request);
}

/// Interrupts the workers that run those requests of the ring for which `matches` returns true.
pub(crate) fn interrupt(ring: &Arc<Ring>, matches: impl Fn(&JobView) -> bool) {
    let state = workers().state.lock();
    let of_ring = state.running.iter().filter(|running| Arc::ptr_eq(&running.ring, ring));
    of_ring.filter(|running| matches(&running.view)).for_each(|running| running.slot.interrupt());
}

/// Result of a search for a request to cancel.
pub(crate) enum Cancelled {
    /// The request was still queued; the caller completes it.
    Waiting(RequestEntry),
    /// A worker runs the request, which has this opcode. The worker's system call was interrupted,
    /// and the request completes later.
    Running(u8),
    Nothing,
}

/// Cancels the first of the ring's requests for which `matches` returns true. Searches the queued
/// requests first. If a worker already runs the request, interrupts the worker's system call.
pub(crate) fn cancel(ring: &Arc<Ring>, matches: impl Fn(&JobView) -> bool) -> Cancelled {
    let mut state = workers().state.lock();
    for pool in state.groups.values_mut().flatten() {
        let position =
            pool.queue.iter().position(|job| Arc::ptr_eq(&job.ring, ring) && matches(&JobView::of(&job.request)));
        if let Some(job) = position.and_then(|position| pool.queue.remove(position)) {
            return Cancelled::Waiting(job.request);
        }
    }
    let found = state.running.iter().find(|running| Arc::ptr_eq(&running.ring, ring) && matches(&running.view));
    let Some(running) = found else { return Cancelled::Nothing };
    running.slot.interrupt();
    Cancelled::Running(running.view.sqe.opcode)
}

/// Returns whether workers run requests of the ring, or have them in their queues.
pub(crate) fn have_requests_of(ring: &Arc<Ring>) -> bool {
    let state = workers().state.lock();
    let is_of_ring = |other: &Arc<Ring>| Arc::ptr_eq(other, ring);
    let waits = state.groups.values().flatten().any(|pool| pool.queue.iter().any(|job| is_of_ring(&job.ring)));
    waits || state.running.iter().any(|running| is_of_ring(&running.ring))
}

/// Interrupts the system calls of workers that run a closed ring's requests, and drops the ring's
/// queued jobs. Leaves jobs that continue after the close ([`JobView::outlives_ring`]).
pub(crate) fn interrupt_running(ring: &Arc<Ring>) {
    let ends = |view: &JobView| !view.outlives_ring;
    while let Cancelled::Waiting(_) = cancel(ring, ends) {}
    interrupt(ring, ends);
}
