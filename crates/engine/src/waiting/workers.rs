//! Threads that may block (the kernel's io-wq): a bounded pool for regular
//! files and block devices, whose work ends by itself, and an unbounded one
//! for everything that may wait for ever. Threads are born on demand, by the
//! attendant, and end when idle. Writes to one buffered file run in order.
//!
//! A waiting job belongs to the pool's queue; a running one to its worker; a
//! finished one goes back to its ring as task work.

use crate::process::process;
use crate::request::{Progress, Request, RequestEntry, RequestId};
use crate::ring::{LockedRing, Ring};
use crate::task_work;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::descriptor::{self, FileIdentity};
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::processor::Mask;
use usring_sys::{Errno, SystemCall, futex, processor, signals, wait};
use usring_uapi::Sqe;
use usring_uapi::general::O_DIRECT;

/// An idle worker ends after this long.
const IDLE_LIMIT: u64 = 5_000_000_000;
/// Most unbounded workers unless the program sets another limit.
const DEFAULT_UNBOUNDED: u32 = 1024;

/// The two pools, in the order of IORING_REGISTER_IOWQ_MAX_WORKERS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Bounded = 0,
    Unbounded = 1,
}

/// Work on the same file that must not overtake.
type OrderKey = (u64, u64);

struct Job {
    request: RequestEntry,
    ring: Arc<Ring>,
    order: Option<OrderKey>,
}

/// What is remembered of a job while a worker has it.
struct Running {
    ring: Arc<Ring>,
    view: JobView,
    order: Option<OrderKey>,
    slot: Arc<WorkerSlot>,
}

/// What a canceller knows a job by.
#[derive(Clone, Copy)]
pub(crate) struct JobView {
    pub id: RequestId,
    pub sqe: Sqe,
    /// Of its file.
    pub number: i32,
}

impl JobView {
    fn of(request: &Request) -> JobView {
        JobView { id: request.id, sqe: request.sqe, number: request.file.number }
    }
}

/// One worker, as a canceller sees it.
#[derive(Default)]
struct WorkerSlot {
    thread: AtomicU32,
    /// Set to break off the system call that the worker is in.
    cancelled: AtomicU32,
}

impl WorkerSlot {
    /// Breaks off the system call that the worker is in or about to make.
    fn interrupt(&self) {
        self.cancelled.store(1, Ordering::SeqCst);
        wait::interrupt_worker(self.thread.load(Ordering::Relaxed));
    }
}

/// The blocking side of a system call: ends early when the request is
/// cancelled.
pub(crate) struct Blocking<'a> {
    cancelled: &'a AtomicU32,
}

impl Blocking<'_> {
    pub fn run(&self, call: &SystemCall) -> Result<u64, Errno> {
        wait::blocking(call, self.cancelled)
    }
}

#[derive(Default)]
struct ClassState {
    queue: VecDeque<Job>,
    threads: u32,
    idle: u32,
    /// 0: not yet decided.
    limit: u32,
}

#[derive(Default)]
struct PoolState {
    classes: [ClassState; 2],
    running: Vec<Running>,
    placement: Placement,
}

/// Where workers may run (REGISTER_IOWQ_AFF). Each looks before its next job.
#[derive(Clone, Copy, Default)]
struct Placement {
    /// Counts the changes; 0 as long as a worker may run where it was born.
    version: u32,
    processors: Mask,
}

/// All workers of the process.
#[derive(Default)]
pub(crate) struct WorkerPool {
    state: Mutex<PoolState>,
    /// Futex words of the idle workers, one per class; counted up per job.
    signals: [AtomicU32; 2],
}

/// Gives a request to a worker.
pub(crate) fn hand_over(locked: &mut LockedRing, request: RequestEntry) {
    let row = request.row;
    debug_assert!(row.work.is_some(), "an opcode without blocking work was handed to a worker");
    let (class, order) = classify(&request);
    let job = Job { request, ring: locked.ring.clone(), order };
    process().workers.enqueue(class, job);
}

/// Regular files and block devices never keep a worker for ever, so their
/// number is bounded; buffered writes to one file keep their order.
fn classify(request: &Request) -> (Class, Option<OrderKey>) {
    let row = request.row;
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
        let mut state = self.state.lock();
        let pool = &mut state.classes[class as usize];
        pool.queue.push_back(job);
        pool.decide_limit(class);
        let wake = pool.idle > 0;
        let births = pool.grow().min(1);
        pool.threads += births;
        self.signals[class as usize].fetch_add(1, Ordering::SeqCst);
        drop(state);
        if wake {
            futex::wake(&self.signals[class as usize], 1);
        }
        self.start(class, births);
    }

    fn start(&'static self, class: Class, births: u32) {
        for _ in 0..births {
            process().attendant.start_thread(
                "iou-wrk",
                Box::new(move || self.work(class)),
                Box::new(move || self.not_born(class)),
            );
        }
    }

    /// The attendant could not start a thread: what waits and has nobody to
    /// run it fails with EAGAIN, as the kernel answers without workers.
    fn not_born(&self, class: Class) {
        let mut state = self.state.lock();
        let pool = &mut state.classes[class as usize];
        pool.threads -= 1;
        let stranded = if pool.threads == 0 { core::mem::take(&mut pool.queue) } else { VecDeque::new() };
        drop(state);
        for job in stranded {
            finish(job.request, job.ring, Errno::EAGAIN.negative());
        }
    }

    /// The life of a worker.
    fn work(&self, class: Class) {
        let slot = Arc::new(WorkerSlot::default());
        slot.thread.store(signals::thread_id(), Ordering::Relaxed);
        let mut placed = 0;
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.next_job(class, &slot) {
                let placement = state.placement;
                drop(state);
                if placement.version != placed {
                    placed = placement.version;
                    processor::stay_among(&placement.processors);
                }
                state = self.run_job(job, &slot);
                continue;
            }
            let seen = self.signals[class as usize].load(Ordering::SeqCst);
            state.classes[class as usize].idle += 1;
            drop(state);
            let outcome = futex::wait(&self.signals[class as usize], seen, Some(IDLE_LIMIT));
            state = self.state.lock();
            let pool = &mut state.classes[class as usize];
            pool.idle -= 1;
            if outcome == Err(Errno::ETIMEDOUT) && pool.queue.is_empty() {
                pool.threads -= 1;
                return;
            }
        }
    }

    fn run_job(&self, mut job: Job, slot: &WorkerSlot) -> Guard<'_, PoolState> {
        let id = job.request.id;
        let order = job.order;
        let result = match job.request.row.work {
            Some(work) => work(&mut job.request, &Blocking { cancelled: &slot.cancelled }),
            None => Errno::EINVAL.negative(),
        };
        let mut state = self.state.lock();
        state.running.retain(|running| running.view.id != id || !Arc::ptr_eq(&running.ring, &job.ring));
        if order.is_some() {
            // The next of this file may be waiting for us and for no one else.
            self.signals[Class::Bounded as usize].fetch_add(1, Ordering::SeqCst);
        }
        drop(state);
        finish(job.request, job.ring, result);
        self.state.lock()
    }

    /// From now on workers run on these processors only, or on all again.
    pub fn place(&self, processors: Option<Mask>) {
        let placement = &mut self.state.lock().placement;
        placement.version += 1;
        placement.processors = processors.unwrap_or_else(|| Mask::default().map(|_| u64::MAX));
    }

    /// The limits of both pools; non-zero members of `new` replace them. What
    /// queued for want of workers gets those that a raised limit allows.
    pub fn exchange_limits(&'static self, new: [u32; 2]) -> [u32; 2] {
        let mut state = self.state.lock();
        let mut old = [0; 2];
        let mut births = [0; 2];
        for (index, class) in [Class::Bounded, Class::Unbounded].into_iter().enumerate() {
            let pool = &mut state.classes[index];
            pool.decide_limit(class);
            old[index] = pool.limit;
            if new[index] != 0 {
                pool.limit = new[index];
            }
            births[index] = pool.grow();
            pool.threads += births[index];
        }
        drop(state);
        self.start(Class::Bounded, births[0]);
        self.start(Class::Unbounded, births[1]);
        old
    }
}

impl ClassState {
    /// How many more threads what waits could use, and the limit allows.
    fn grow(&self) -> u32 {
        let wanted = (self.queue.len() as u32).saturating_sub(self.idle);
        wanted.min(self.limit.saturating_sub(self.threads))
    }

    fn decide_limit(&mut self, class: Class) {
        if self.limit == 0 {
            self.limit = match class {
                Class::Bounded => 4 * processor::count(),
                Class::Unbounded => DEFAULT_UNBOUNDED,
            };
        }
    }
}

impl PoolState {
    /// The oldest job that overtakes nobody.
    fn next_job(&mut self, class: Class, slot: &Arc<WorkerSlot>) -> Option<Job> {
        let queue = &mut self.classes[class as usize].queue;
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
    task_work::add(&ring, request);
}

/// Breaks off everything that `matches` and that workers are doing for a ring.
pub(crate) fn interrupt(ring: &Arc<Ring>, matches: impl Fn(&JobView) -> bool) {
    let state = process().workers.state.lock();
    let of_ring = state.running.iter().filter(|running| Arc::ptr_eq(&running.ring, ring));
    of_ring.filter(|running| matches(&running.view)).for_each(|running| running.slot.interrupt());
}

/// What a cancellation found.
pub(crate) enum Cancelled {
    /// It had not started; the caller completes it.
    Waiting(RequestEntry),
    /// A worker has it; the system call it is in was broken off.
    Running,
    Nothing,
}

/// Finds one request of this ring that `matches`.
pub(crate) fn cancel(ring: &Arc<Ring>, matches: impl Fn(&JobView) -> bool) -> Cancelled {
    let mut state = process().workers.state.lock();
    for pool in &mut state.classes {
        let position =
            pool.queue.iter().position(|job| Arc::ptr_eq(&job.ring, ring) && matches(&JobView::of(&job.request)));
        if let Some(job) = position.and_then(|position| pool.queue.remove(position)) {
            return Cancelled::Waiting(job.request);
        }
    }
    let found = state.running.iter().find(|running| Arc::ptr_eq(&running.ring, ring) && matches(&running.view));
    let Some(running) = found else { return Cancelled::Nothing };
    running.slot.interrupt();
    Cancelled::Running
}

/// Whether workers have, or will have, requests of a ring.
pub(crate) fn have_requests_of(ring: &Arc<Ring>) -> bool {
    let state = process().workers.state.lock();
    let is_of_ring = |other: &Arc<Ring>| Arc::ptr_eq(other, ring);
    let waits = state.classes.iter().any(|pool| pool.queue.iter().any(|job| is_of_ring(&job.ring)));
    waits || state.running.iter().any(|running| is_of_ring(&running.ring))
}

/// Breaks off what workers still do for a closed ring; answers whether there
/// was anything.
pub(crate) fn break_off(ring: &Arc<Ring>) -> bool {
    !matches!(cancel(ring, |_| true), Cancelled::Nothing)
}
