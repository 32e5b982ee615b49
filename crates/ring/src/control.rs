//! The words after a ring's queues that the engines of several processes share: of all processes
//! that have the ring by fork(2). A program does not use them.

use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::shared::{SharedMemory, View};
use usring_sys::sharing::SharingWord;
use usring_sys::sleep::SleepWord;
use usring_sys::sync::Arc;

/// Offsets, in bytes. The lock and the sleep word have a cache line each.
const LOCK: usize = 0;
const STATE: usize = 4;
const SHARING: usize = 8;
const NEWS: usize = 12;
const CQE_LISTENER: usize = 16;
const TIMEOUTS_ENDED: usize = 20;
const MAKER: usize = 24;
const SLEEP: usize = 64;
/// Bytes of all words.
pub(crate) const LENGTH: usize = 128;
/// The words begin at a cache line.
pub(crate) const ALIGNMENT: usize = 64;

/// The ring is not enabled yet (R_DISABLED).
const DISABLED: u32 = 1;

/// Value of the word at [`CQE_LISTENER`] if several processes listen. No process has this number.
const SEVERAL: u32 = u32::MAX;

/// The words that all processes of a ring share.
#[derive(Debug)]
pub struct Control {
    state: View<AtomicU32>,
    sharing: View<SharingWord>,
    news: View<AtomicU32>,
    cqe_listener: View<AtomicU32>,
    timeouts_ended: View<AtomicU32>,
    maker: View<AtomicU32>,
    memory: Arc<SharedMemory>,
    start: usize,
}

impl Control {
    pub(crate) fn new(memory: &Arc<SharedMemory>, start: usize) -> Control {
        let word = |offset| View::of(memory, start + offset);
        Control {
            state: word(STATE),
            sharing: View::of(memory, start + SHARING),
            news: word(NEWS),
            cqe_listener: word(CQE_LISTENER),
            timeouts_ended: word(TIMEOUTS_ENDED),
            maker: word(MAKER),
            memory: memory.clone(),
            start,
        }
    }

    /// Sets the words of a new ring, which one process uses.
    pub fn begin(&self, is_disabled: bool) {
        self.state.store(if is_disabled { DISABLED } else { 0 }, Ordering::Relaxed);
        self.sharing.begin();
        for word in [&self.news, &self.cqe_listener, &self.timeouts_ended, &self.maker] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the word of the ring's lock.
    pub fn lock(&self) -> View<AtomicU32> {
        View::of(&self.memory, self.start + LOCK)
    }

    /// Returns the word on which the ring's waiters sleep.
    pub fn sleep(&self) -> View<SleepWord> {
        View::of(&self.memory, self.start + SLEEP)
    }

    /// Returns whether the ring has not been enabled yet. If it has, the enabling thread's writes
    /// are visible.
    #[inline(always)]
    pub fn is_disabled(&self) -> bool {
        self.state.load(Ordering::Acquire) & DISABLED != 0
    }

    /// Enables the ring.
    pub fn enable(&self) {
        self.state.fetch_and(!DISABLED, Ordering::Release);
    }

    /// Returns the word that says whether several processes use the ring.
    #[inline(always)]
    pub fn sharing(&self) -> &SharingWord {
        &self.sharing
    }

    /// Returns whether the process that made the ring knows that the ring is shared.
    pub fn maker_takes_part(&self) -> bool {
        self.maker.load(Ordering::Acquire) != 0
    }

    /// Notes that the process that made the ring knows that the ring is shared.
    pub fn note_maker(&self) {
        self.maker.store(1, Ordering::Release);
    }

    /// Notes that this process has something for the others to look at. Returns the new count of
    /// news. The caller holds the ring's lock, and wakes the other processes next.
    pub fn post_news(&self) -> u32 {
        self.news.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Returns the count of news. A process that was woken compares it with the count that it has
    /// heard of, without the ring's lock.
    pub fn news(&self) -> u32 {
        self.news.load(Ordering::Relaxed)
    }

    /// Has the process with the number `own` hear of the next CQEs that other processes publish.
    /// The caller holds the ring's lock.
    pub fn listen_for_cqes(&self, own: u32) {
        let listener = self.cqe_listener.load(Ordering::Relaxed);
        let both = if listener == 0 || listener == own { own } else { SEVERAL };
        self.cqe_listener.store(both, Ordering::Relaxed);
    }

    /// Returns whether a process other than `own` wants to hear of CQEs. If so, that wish is over:
    /// the caller posts news, and each listener listens anew. The caller holds the ring's lock.
    pub fn take_cqe_listeners(&self, own: u32) -> bool {
        let listener = self.cqe_listener.load(Ordering::Relaxed);
        let any = listener != 0 && listener != own;
        if any {
            self.cqe_listener.store(0, Ordering::Relaxed);
        }
        any
    }

    /// Returns how many timeouts have ended by time or count, in all processes. The count wraps
    /// around.
    pub fn timeouts_ended(&self) -> u32 {
        self.timeouts_ended.load(Ordering::Relaxed)
    }

    /// Counts a timeout of a shared ring that has ended by time or count. Returns the new count.
    /// The caller holds the ring's lock.
    pub fn count_ended_timeout(&self) -> u32 {
        self.timeouts_ended.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usring_sys::mapping::{Mapping, PAGE};

    fn control() -> Control {
        let memory = Arc::new(SharedMemory::new(Mapping::shared(PAGE).unwrap()));
        let control = Control::new(&memory, 0);
        control.begin(false);
        control
    }

    #[test]
    fn a_listener_hears_of_the_next_cqes_of_another_process_once() {
        let control = control();
        assert!(!control.take_cqe_listeners(2));
        control.listen_for_cqes(2);
        assert!(!control.take_cqe_listeners(2), "no process calls itself");
        assert!(control.take_cqe_listeners(3));
        assert!(!control.take_cqe_listeners(3), "the listener was called, and has not asked again");
    }

    #[test]
    fn several_listeners_hear_of_the_cqes_of_each() {
        let control = control();
        control.listen_for_cqes(2);
        control.listen_for_cqes(2);
        assert!(!control.take_cqe_listeners(2));
        control.listen_for_cqes(3);
        assert!(control.take_cqe_listeners(2), "process 3 is to be called");
    }
}
