//! A region's own threads: the evictor, the reader, and for the mechanism
//! `compat` the one that serves faults. They end before the region does.

use crate::courtesy::Courtesy;
use crate::evict::{Aim, MOST_FAILURES};
use crate::lane::Lane;
use crate::message::say;
use crate::pager::{Pager, Touch};
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
    /// Ends the thread that serves faults, if there is one.
    end_of_service: Option<Arc<OwnedDescriptor>>,
    /// Its threads are none of libc's.
    unknown: bool,
}

impl Background {
    pub fn new(pager: Arc<Pager>, unknown: bool) -> Self {
        Background { pager, running: Arc::new(AtomicU32::new(0)), end_of_service: None, unknown }
    }

    /// Starts a thread.
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
        let started = spawn(name, Credentials::Following, Box::new(work));
        if started.is_err() {
            self.running.fetch_sub(1, Ordering::Relaxed);
        }
        started
    }

    /// Starts the thread that serves faults which the kernel tells of by events.
    pub fn serve(&mut self, events: Arc<UserFault>) -> Result<(), Errno> {
        let end = Arc::new(eventfd::create()?.into_private()?);
        let set = Epoll::new()?;
        set.add(events.number(), epoll::IN, FAULT)?;
        set.add(end.number(), epoll::IN, END)?;
        self.end_of_service = Some(end.clone());
        self.spawn("usring-pager", move |pager| {
            pager.serve_events(&events, &set);
            drop(end);
        })
    }

    /// Ends all threads, and waits for them.
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

/// What is ready, in the set of the thread that serves faults.
const FAULT: u64 = 0;
const END: u64 = 1;

/// How long the evictor leaves alone what could not be evicted: at first, and where the store has taken nothing for long.
const LEAST_PAUSE: Nanoseconds = 10_000_000;
const MOST_PAUSE: Nanoseconds = 1_000_000_000;

impl Pager {
    /// The evictor's life.
    pub fn evict_in_background(&self, mut lane: Lane) {
        let place = page_fault::place();
        let mut courtesy = Courtesy::default();
        while self.limit.wait_for_work() {
            let mut pause = LEAST_PAUSE;
            loop {
                let (changes, ended) = (self.limit.changes(), self.evictions.ended());
                self.limit.lower();
                if self.limit.resident() <= self.limit.low() || self.limit.is_stopped() {
                    break;
                }
                // It alone finds out whether a store that takes nothing does again: for all, and not for each of their pages.
                let failures = if self.store_fails() { 1 } else { MOST_FAILURES };
                let outcome = self.evict(&mut lane, Aim { pages: 1, kept: 0, failures }, place);
                if outcome.freed > 0 {
                    courtesy.give_way(Ticks::now());
                } else if outcome.obstacle.is_none() && outcome.met_others {
                    self.evictions.wait(ended, LEAST_PAUSE);
                } else {
                    // Threads that find no room say so.
                    self.limit.pause(changes, pause);
                    pause = if self.takes_nothing() { (2 * pause).min(MOST_PAUSE) } else { LEAST_PAUSE };
                }
            }
        }
    }

    fn serve_events(&self, events: &UserFault, set: &Epoll) {
        let place = page_fault::place();
        let mut ready = [Event::default(); 2];
        loop {
            let count = match set.wait(&mut ready, None) {
                Ok(count) => count,
                Err(_) => {
                    processor::give_way();
                    0
                }
            };
            if ready[..count].iter().any(|event| event.data == END) {
                return;
            }
            while let Some(touch) = events.read() {
                let index = (touch.address - self.memory.address()) / self.unit();
                let start = self.memory.address() + self.offset(index);
                if let Err(lost) = self.bring_in(index, Touch { write: touch.write, present: touch.present, place }) {
                    self.complain(index, lost);
                    if let Err(error) = events.poison(start, self.unit()) {
                        say(format_args!("swap: the thread cannot be told ({error}); it waits for ever"));
                        continue;
                    }
                }
                events.wake(start, self.unit());
            }
        }
    }
}
