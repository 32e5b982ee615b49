//! The threads of a swap region: the evictor, the reader (which reads pages ahead), and, with the
//! mechanism `compat`, the pager thread (which serves faults). The threads end before the region is
//! freed.

use crate::back_off::BackOff;
use crate::evict::{EvictionGoal, MOST_FAILURES};
use crate::message::say;
use crate::pager::{PageAccess, Pager};
use crate::store_queue::StoreQueue;
use alloc::boxed::Box;
use alloc::sync::Arc;
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::epoll::{self, Epoll, Event};
use usring_sys::sync::{AtomicU32, Ordering};
use usring_sys::thread::Credentials;
use usring_sys::ticks::Ticks;
use usring_sys::userfault::UserFault;
use usring_sys::{Errno, eventfd, futex, page_fault, processor, thread};

pub struct Background {
    pager: Arc<Pager>,
    running: Arc<AtomicU32>,
    /// The eventfd by which [`Background::stop`] ends the pager thread. `None` if there is no pager
    /// thread.
    end_of_service: Option<Arc<OwnedDescriptor>>,
    /// Whether the region's threads are started without libc, so that libc does not know them.
    unknown: bool,
}

impl Background {
    pub fn new(pager: Arc<Pager>, unknown: bool) -> Self {
        Background { pager, running: Arc::new(AtomicU32::new(0)), end_of_service: None, unknown }
    }

    /// Starts a thread of the region.
    pub fn spawn(&self, name: &str, life: impl FnOnce(&Pager) + Send + 'static) -> Result<(), Errno> {
        let (pager, running) = (self.pager.clone(), self.running.clone());
        self.running.fetch_add(1, Ordering::Relaxed);
        let work = move || {
            life(&pager);
            drop(pager);
            running.fetch_sub(1, Ordering::Release);
            futex::wake(&running, u32::MAX);
        };
        let spawn = if self.unknown { thread::spawn_unknown } else { thread::spawn };
        let started = spawn(name, Credentials::Service, Box::new(work));
        if started.is_err() {
            self.running.fetch_sub(1, Ordering::Relaxed);
        }
        started
    }

    /// Starts the pager thread, which reads fault events from the userfaultfd `events`.
    pub fn serve(&mut self, events: Arc<UserFault>) -> Result<(), Errno> {
        let end = Arc::new(eventfd::create()?.into_private()?);
        let set = Epoll::new()?;
        set.add(events.number(), epoll::IN, FAULT_EVENT_DATA)?;
        set.add(end.number(), epoll::IN, END_EVENT_DATA)?;
        self.end_of_service = Some(end.clone());
        self.spawn("usring-pager", move |pager| {
            pager.serve_events(&events, &set);
            drop(end);
        })
    }

    /// Ends all threads and waits for them.
    pub fn stop(&self) {
        self.pager.limit.stop();
        self.pager.streams.stop();
        if let Some(end) = &self.end_of_service {
            eventfd::signal(end.number());
        }
        loop {
            match self.running.load(Ordering::Acquire) {
                0 => return,
                left => drop(futex::wait(&self.running, left, None)),
            }
        }
    }
}

/// Event data of the pager thread's two descriptors in its epoll set.
const FAULT_EVENT_DATA: u64 = 0;
const END_EVENT_DATA: u64 = 1;

/// Nanoseconds that the evictor sleeps after an eviction that freed no page. While the store is
/// full or fails, each sleep is twice as long as the sleep before it, up to [`MOST_PAUSE`].
const LEAST_PAUSE: Nanoseconds = 10_000_000;
const MOST_PAUSE: Nanoseconds = 1_000_000_000;

impl Pager {
    /// Runs the evictor thread. Returns when the region stops its threads.
    pub fn evict_in_background(&self, mut queue: StoreQueue) {
        let fault_slot = page_fault::fault_slot();
        let mut back_off = BackOff::default();
        while self.limit.wait_for_work() {
            let mut pause = LEAST_PAUSE;
            loop {
                let (changes, ended) = (self.limit.changes(), self.evictions.ended());
                self.limit.lower();
                if self.limit.resident() <= self.limit.low_mark() || self.limit.is_stopped() {
                    break;
                }
                // A failing store is tested only by the evictor, which lets one write fail per
                // eviction. All other threads then evict only clean pages, which need no write.
                let failures = if self.store_fails() { 1 } else { MOST_FAILURES };
                let outcome = self.evict(&mut queue, EvictionGoal { pages: 1, kept: 0, failures }, fault_slot);
                if outcome.freed > 0 {
                    back_off.try_yield(Ticks::now());
                } else if outcome.failure.is_none() && outcome.found_claimed {
                    self.evictions.wait(ended, LEAST_PAUSE);
                } else {
                    // The evictor does not report why it could evict nothing. A thread whose fault
                    // then finds no room below the limit reports the reason.
                    self.limit.pause(changes, pause);
                    pause = if self.takes_no_dirty_pages() { (2 * pause).min(MOST_PAUSE) } else { LEAST_PAUSE };
                }
            }
        }
    }

    fn serve_events(&self, events: &UserFault, set: &Epoll) {
        let fault_slot = page_fault::fault_slot();
        let mut ready = [Event::default(); 2];
        loop {
            let count = match set.wait(&mut ready, None) {
                Ok(count) => count,
                Err(_) => {
                    processor::yield_now();
                    0
                }
            };
            if ready[..count].iter().any(|event| event.data == END_EVENT_DATA) {
                return;
            }
            while let Some(fault) = events.read() {
                let index = (fault.address - self.memory.address()) / self.unit();
                let start = self.memory.address() + self.offset(index);
                if let Err(lost) =
                    self.page_in(index, PageAccess { write: fault.write, present: fault.present, fault_slot })
                {
                    self.report_lost(index, lost);
                    if let Err(error) = events.poison(start, self.unit()) {
                        say(format_args!("swap: the faulting thread cannot be stopped ({error}) and waits for ever"));
                        continue;
                    }
                }
                events.wake(start, self.unit());
            }
        }
    }
}
