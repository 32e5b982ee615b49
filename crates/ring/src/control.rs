//! Words behind a ring's queues that the engines of several processes share, after these processes
//! have inherited the ring by fork(2). Programs do not use the words.

use crate::change_slot::{self, ChangeSlot};
use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::futex;
use usring_sys::ordering::{Edge, Side};
use usring_sys::shared::{SharedMemory, View};
use usring_sys::sharing::SharingWord;
use usring_sys::sleep::SleepWord;
use usring_sys::sync::Arc;

/// Offsets of the words, in bytes. The lock and the sleep word have a cache line each.
const LOCK: usize = 0;
const STATE: usize = 4;
const SHARING: usize = 8;
const NOTICES: usize = 12;
const CQE_LISTENER: usize = 16;
const TIMEOUTS_ENDED: usize = 20;
const MAKER: usize = 24;
const DRAIN: usize = 28;
const UNJOURNALED: usize = 32;
const POLLED: usize = 36;
const SLEEP: usize = 64;
const CHANGE_SLOT: usize = 128;
/// Bytes of all words.
pub(crate) const LENGTH: usize = CHANGE_SLOT + change_slot::LENGTH;
/// Alignment of the words, in bytes: a cache line.
pub(crate) const ALIGNMENT: usize = 64;

/// Bit of the state word: the ring is not enabled yet (R_DISABLED).
const DISABLED: u32 = 1;

/// Value of the word at [`CQE_LISTENER`] if several processes listen for CQEs. No process has this
/// number (`sys::process_number`).
const SEVERAL: u32 = u32::MAX;

/// Flags in the word at [`MAKER`], above the number of the process that made the ring.
/// `TAKES_PART`: that process has noticed that the ring is shared. `HAS_LEFT`: it has left the
/// ring.
const TAKES_PART: u32 = 1 << 30;
const HAS_LEFT: u32 = 1 << 31;

/// Flags in the word at [`DRAIN`]; see [`Control::is_draining`] and [`Control::refuses_drains`].
const DRAINING: u32 = 1;
const REFUSES: u32 = 2;

/// Value of the word at [`UNJOURNALED`] until the process that made the ring has counted its
/// requests that are not in the journal.
const UNKNOWN: u32 = u32::MAX;

/// The words that the engines of all processes of a ring share.
#[derive(Debug)]
pub struct Control {
    state: View<AtomicU32>,
    sharing: View<SharingWord>,
    notices: View<AtomicU32>,
    cqe_listener: View<AtomicU32>,
    timeouts_ended: View<AtomicU32>,
    maker: View<AtomicU32>,
    drain: View<AtomicU32>,
    unjournaled: View<AtomicU32>,
    polled: View<AtomicU32>,
    memory: Arc<SharedMemory>,
    start: usize,
}

impl Control {
    pub(crate) fn new(memory: &Arc<SharedMemory>, start: usize) -> Control {
        let word = |offset| View::of(memory, start + offset);
        Control {
            state: word(STATE),
            sharing: View::of(memory, start + SHARING),
            notices: word(NOTICES),
            cqe_listener: word(CQE_LISTENER),
            timeouts_ended: word(TIMEOUTS_ENDED),
            maker: word(MAKER),
            drain: word(DRAIN),
            unjournaled: word(UNJOURNALED),
            polled: word(POLLED),
            memory: memory.clone(),
            start,
        }
    }

    /// Sets the words of a new ring. At first, only the process with the number `own` uses the
    /// ring.
    pub fn begin(&self, is_disabled: bool, own: u32) {
        self.state.store(if is_disabled { DISABLED } else { 0 }, Ordering::Relaxed);
        self.sharing.begin();
        for word in [&self.notices, &self.cqe_listener, &self.timeouts_ended, &self.drain, &self.polled] {
            word.store(0, Ordering::Relaxed);
        }
        self.maker.store(own, Ordering::Relaxed);
        // A ring that is not enabled has no requests yet, so the journal lacks none.
        self.unjournaled.store(if is_disabled { 0 } else { UNKNOWN }, Ordering::Relaxed);
    }

    /// Returns the word of the ring's lock.
    pub fn lock(&self) -> View<AtomicU32> {
        View::of(&self.memory, self.start + LOCK)
    }

    /// Returns the word on which the ring's waiters sleep.
    pub fn sleep(&self) -> View<SleepWord> {
        View::of(&self.memory, self.start + SLEEP)
    }

    /// Returns whether the ring has not been enabled yet. If `false`, the writes of the thread that
    /// enabled the ring are visible.
    #[inline(always)]
    pub fn is_disabled(&self) -> bool {
        self.state.load(Ordering::Acquire) & DISABLED != 0
    }

    /// Enables the ring.
    pub fn enable(&self) {
        self.state.fetch_and(!DISABLED, Ordering::Release);
    }

    /// Returns the sharing word, which records whether several processes use the ring.
    #[inline(always)]
    pub fn sharing(&self) -> &SharingWord {
        &self.sharing
    }

    /// Returns whether the process that made the ring has noticed that the ring is shared.
    pub fn maker_takes_part(&self) -> bool {
        self.maker.load(Ordering::Acquire) & TAKES_PART != 0
    }

    /// Records that the process that made the ring has noticed that the ring is shared. Wakes the
    /// processes that wait for this in [`Control::await_maker`].
    pub fn note_maker(&self) {
        self.maker.fetch_or(TAKES_PART, Ordering::Release);
        futex::wake_shared(&self.maker, u32::MAX);
    }

    /// Sleeps until the process that made the ring has noticed that the ring is shared, but for at
    /// most `span` nanoseconds.
    pub fn await_maker(&self, span: u64) {
        let word = self.maker.load(Ordering::Acquire);
        if word & TAKES_PART == 0 {
            let _ = futex::wait_shared(&self.maker, word, Some(span));
        }
    }

    /// Records that the process that made the ring has left it, and has no requests any more.
    pub fn note_maker_has_left(&self) {
        self.maker.fetch_or(HAS_LEFT, Ordering::Release);
    }

    /// Returns the number of the process that made the ring; `None`: it has left the ring.
    pub fn maker(&self) -> Option<u32> {
        let word = self.maker.load(Ordering::Acquire);
        (word & HAS_LEFT == 0).then_some(word & !TAKES_PART)
    }

    /// Returns the number of the process that made the ring, even if that process has left the
    /// ring.
    pub fn maker_number(&self) -> u32 {
        self.maker.load(Ordering::Relaxed) & !(TAKES_PART | HAS_LEFT)
    }

    /// Stores how many requests in flight of the ring's creator (the process that made the ring)
    /// the journal lacks. The calling thread belongs to the creator, and holds the ring's lock.
    pub fn count_unjournaled(&self, requests: u64) {
        let count = u32::try_from(requests).unwrap_or(UNKNOWN);
        self.unjournaled.store(count, Ordering::Relaxed);
    }

    /// Records that the creator of the ring may have any number of requests in flight that the
    /// journal lacks. Called while the ring is not shared, or when the journal is full.
    pub fn expect_unjournaled(&self) {
        self.unjournaled.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Returns whether the process that made the ring may have requests in flight that are not in
    /// the journal.
    pub fn has_unjournaled(&self) -> bool {
        self.unjournaled.load(Ordering::Relaxed) != 0
    }

    /// Returns whether a newly submitted request has to wait. It has to wait in two cases: a
    /// request of any process waits behind an IO_DRAIN, or a request with IO_DRAIN may be in
    /// flight. The caller holds the ring's lock.
    pub fn is_draining(&self) -> bool {
        self.drain.load(Ordering::Relaxed) & DRAINING != 0
    }

    /// Sets the answer of [`Control::is_draining`]. The caller holds the ring's lock.
    pub fn set_draining(&self, is_draining: bool) {
        let rest = self.drain.load(Ordering::Relaxed) & !DRAINING;
        self.drain.store(rest | if is_draining { DRAINING } else { 0 }, Ordering::Release);
    }

    /// Returns whether the ring refuses requests with IO_DRAIN, because a process has submitted a
    /// request with CQE_SKIP_SUCCESS. The caller holds the ring's lock.
    pub fn refuses_drains(&self) -> bool {
        self.drain.load(Ordering::Relaxed) & REFUSES != 0
    }

    /// Makes the ring refuse requests with IO_DRAIN in all processes. The caller holds the ring's
    /// lock.
    pub fn refuse_drains(&self) {
        self.drain.store(self.drain.load(Ordering::Relaxed) | REFUSES, Ordering::Relaxed);
    }

    /// Records that a process polls the ring's descriptor. The store is a full barrier on x86-64.
    /// [`Edge::Share`] explains why a full barrier is needed.
    pub fn note_poller(&self) {
        self.polled.swap(1, Ordering::SeqCst);
        Edge::Share.barrier_beside_rmw(Side::Sleeper);
    }

    /// Returns whether a process polls the ring's descriptor, or has polled it.
    pub fn is_polled(&self) -> bool {
        self.polled.load(Ordering::Relaxed) != 0
    }

    /// Returns the view of the ring's change slot for the process with the number `own`.
    pub fn change_slot(&self, own: u32) -> ChangeSlot {
        ChangeSlot::new(self.memory.clone(), self.start + CHANGE_SLOT, own)
    }

    /// Posts a notice: increments the count of changes that other processes have to handle. Returns
    /// the new count. The caller holds the ring's lock, and then wakes the other processes. A woken
    /// process finds that the count has changed, and searches for the change.
    pub fn post_notice(&self) -> u32 {
        self.notices.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Returns the count of notices. A woken process compares this count with the count that it saw
    /// last. The caller needs no lock.
    pub fn notices(&self) -> u32 {
        self.notices.load(Ordering::Relaxed)
    }

    /// Registers the process with the number `own` as a listener. When another process next
    /// publishes CQEs, it wakes the listeners. The caller holds the ring's lock.
    pub fn listen_for_cqes(&self, own: u32) {
        let listener = self.cqe_listener.load(Ordering::Relaxed);
        let both = if listener == 0 || listener == own { own } else { SEVERAL };
        self.cqe_listener.store(both, Ordering::Relaxed);
    }

    /// Returns whether a process other than `own` listens for CQEs. If so, removes all listeners.
    /// The caller then posts a notice, and each woken listener registers again. The caller holds
    /// the ring's lock.
    pub fn take_cqe_listeners(&self, own: u32) -> bool {
        let listener = self.cqe_listener.load(Ordering::Relaxed);
        let any = listener != 0 && listener != own;
        if any {
            self.cqe_listener.store(0, Ordering::Relaxed);
        }
        any
    }

    /// Returns how many TIMEOUTs of all processes have ended because their time has passed, or
    /// because enough requests have completed. The result wraps around.
    pub fn timeouts_ended(&self) -> u32 {
        self.timeouts_ended.load(Ordering::Relaxed)
    }

    /// Counts a TIMEOUT of a shared ring that has ended because its time has passed, or because
    /// enough requests have completed. Returns the new count. The caller holds the ring's lock.
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
        control.begin(false, 2);
        control
    }

    #[test]
    fn a_listener_hears_of_the_next_cqes_of_another_process_once() {
        let control = control();
        assert!(!control.take_cqe_listeners(2));
        control.listen_for_cqes(2);
        assert!(!control.take_cqe_listeners(2), "a process does not wake itself");
        assert!(control.take_cqe_listeners(3));
        assert!(!control.take_cqe_listeners(3), "the listener was woken, and has not listened again");
    }

    #[test]
    fn several_listeners_hear_of_the_cqes_of_each() {
        let control = control();
        control.listen_for_cqes(2);
        control.listen_for_cqes(2);
        assert!(!control.take_cqe_listeners(2));
        control.listen_for_cqes(3);
        assert!(control.take_cqe_listeners(2), "process 3 listens");
    }
}
