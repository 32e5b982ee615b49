//! The ways to wake a ring's sleepers: the sleep word, the wake eventfd in the ring's epoll set,
//! and the kernel AIO context on which the leader may sleep.

use crate::waiting::poll_table::WAKE_DATA;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::epoll::{self, Epoll};
use usring_sys::kernel_aio::Waiter;
use usring_sys::mutex::Mutex;
use usring_sys::shared::View;
use usring_sys::sleep::{SleepWord, Sleeper, Ticket, Wake};
use usring_sys::sleep_place::SleepPlace;
use usring_sys::{Errno, eventfd};

/// The ways to wake the sleepers of one ring.
pub(crate) struct Wakers {
    /// The sleep word, which all processes of the ring share.
    pub sleep: View<SleepWord>,
    /// The wake eventfd in the ring's epoll set; `None` until the ring has an epoll set. Threads
    /// that wake the leader read the eventfd's descriptor number from `number`, without this lock.
    /// Without an epoll set, `number` is −1.
    descriptor: Mutex<Option<OwnedDescriptor>>,
    number: AtomicI32,
    /// The index of the CQ from which [`Wakers::count_for_sleepers`] counts CQEs. It is the oldest
    /// start of a present sleeper's wait, or older. If it is too old, a sleeper wakes too early. It
    /// is too new only if two threads begin to sleep at once without the ring's lock
    /// (`driving::cq_wait`). These two threads sleep only briefly.
    wait_start: AtomicU32,
    /// The kernel AIO context in which the leader sleeps. Empty while the leader sleeps on the
    /// epoll set.
    pub completions: SleepPlace<Waiter>,
}

impl Wakers {
    pub fn new(sleep: View<SleepWord>) -> Wakers {
        Wakers {
            sleep,
            descriptor: Mutex::default(),
            number: AtomicI32::new(-1),
            wait_start: AtomicU32::new(0),
            completions: SleepPlace::default(),
        }
    }

    /// Makes a wake eventfd and puts it into the ring's new epoll set.
    pub fn add_wake_event(&self, set: &Epoll) -> Result<(), Errno> {
        let descriptor = eventfd::create()?.into_private()?;
        set.add(descriptor.number(), epoll::IN | epoll::EDGE, WAKE_DATA)?;
        self.number.store(descriptor.number(), Ordering::Release);
        *self.descriptor.lock() = Some(descriptor);
        Ok(())
    }

    /// Announces that this thread is about to sleep until `needed` CQEs have been posted. The CQEs
    /// are counted from the CQ's index `start`. See [`SleepWord::announce`].
    pub fn announce(&self, kind: Sleeper, needed: u32, start: u32) -> Ticket {
        let others = self.sleep.has_sleeper().then(|| self.wait_start.load(Ordering::Relaxed));
        self.wait_start.store(older_start(start, others), Ordering::Relaxed);
        self.sleep.announce(kind, needed)
    }

    /// Returns how many CQEs count for the present sleepers, if the CQ's tail is `tail`. CQEs that
    /// another thread has consumed during the waits count, too. Returns at least 1.
    #[inline(always)]
    pub fn count_for_sleepers(&self, tail: u32) -> u32 {
        tail.wrapping_sub(self.wait_start.load(Ordering::Relaxed)).max(1)
    }

    /// Wakes all sleepers on the futex. If there are none, wakes the leader, which sleeps on the
    /// epoll set or in the kernel's AIO context. Wakes no thread if each sleeper needs more than
    /// `queued` completions. Returns whether it has woken a thread. The caller has just pushed a
    /// task-work entry, or published CQEs and released the lock.
    #[inline(always)]
    pub fn wake_target(&self, queued: u32) -> bool {
        let target = self.sleep.wake_target_after_rmw(queued);
        target != Wake::NoSleeper && self.wake_claimed(target)
    }

    /// Wakes sleepers for CQEs that were published before the lock was released. Sleepers that need
    /// more than `count` CQEs stay asleep.
    #[inline(always)]
    pub fn wake_all(&self, count: u32) {
        while self.wake_target(count) {}
    }

    /// Wakes the thread that watches the ring's epoll set: the leader of the waiters, or the ring
    /// watcher. That thread then checks for work.
    #[cold]
    pub fn wake_watcher(&self) {
        eventfd::signal(self.number.load(Ordering::Acquire));
        self.completions.wake(Waiter::wake);
    }

    #[inline(never)]
    fn wake_claimed(&self, target: Wake) -> bool {
        match target {
            Wake::NoSleeper => return false,
            Wake::Futex => self.sleep.wake_futex(),
            Wake::Epoll => self.wake_watcher(),
        }
        true
    }
}

/// Returns the older of two indices of the CQ. If `others` is `None`, returns `start`.
fn older_start(start: u32, others: Option<u32>) -> u32 {
    others.filter(|others| others.wrapping_sub(start).cast_signed() < 0).unwrap_or(start)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::older_start;

    #[test]
    fn sleepers_count_from_the_oldest_start_of_their_waits() {
        assert_eq!(older_start(7, None), 7, "a single sleeper");
        assert_eq!(older_start(7, Some(5)), 5, "a sleeper beside one that waits for longer");
        assert_eq!(older_start(5, Some(7)), 5, "a sleeper that sleeps again");
        assert_eq!(older_start(1, Some(u32::MAX)), u32::MAX, "the index has wrapped");
    }
}
