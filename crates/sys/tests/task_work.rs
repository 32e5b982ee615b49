//! Tests the mutex, the task-work list and the sleep word on real threads and in real memory. (The
//! loom models in `loom_*.rs` check the interleavings.)
#![cfg(not(loom))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::queue::{Consumer, Entry, Pushed, Queue, Rest, Urgency, queue};
use usring_sys::sleep::{SleepWord, Sleeper, Wake};
use usring_sys::{Errno, SystemCall, futex};
use usring_uapi::general as linux;

const SECOND: u64 = 1_000_000_000;

/// A value that counts how many values of its type exist. From that count a test knows how many
/// values were freed.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Entry<Counted> {
        count.fetch_add(1, Ordering::Relaxed);
        Entry::new(Counted(count.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn push<T>(queue: &Queue<T>, value: T) -> Pushed {
    queue.push(Entry::new(value), Urgency::Urgent)
}

/// Takes all entries that the consumer can reach, oldest first. Takes none if no entry was pushed
/// since the consumer last began to take entries.
fn take<T>(consumer: &mut Consumer<T>) -> Vec<T> {
    let mut taken = Vec::new();
    if consumer.begin() {
        taken.extend(std::iter::from_fn(|| consumer.take().map(Entry::into_inner)));
    }
    taken
}

#[test]
fn entries_come_out_in_the_order_they_went_in() {
    let (queue, mut consumer) = queue();
    assert!(queue.is_empty());
    assert!(push(&queue, 0).first);
    assert!(!push(&queue, 1).first);
    let _ = push(&queue, 2);
    assert!(!queue.is_empty());
    assert_eq!(take(&mut consumer), [0, 1, 2]);
    assert!(queue.is_empty() && take(&mut consumer).is_empty());
    assert!(push(&queue, 3).first, "empty again");
    assert_eq!(take(&mut consumer), [3]);
}

#[test]
fn an_entry_keeps_its_address_as_it_moves() {
    let mut entry = Entry::new([7u8; 100]);
    let address = entry.as_ptr();
    entry[0] = 8;
    let (queue, mut consumer) = queue();
    let _ = queue.push(entry, Urgency::Lazy);
    let entry = consumer.take().unwrap();
    assert_eq!((entry.as_ptr(), entry[0], entry[1]), (address, 8, 7));
}

#[test]
fn lazy_entries_are_counted_until_one_is_urgent() {
    let (queue, mut consumer) = queue();
    let push = |urgency| queue.push(Entry::new(()), urgency).queued;
    assert_eq!(push(Urgency::Lazy), 1);
    assert_eq!(push(Urgency::Lazy), 2);
    assert_eq!(push(Urgency::Urgent), u32::MAX);
    assert_eq!(push(Urgency::Lazy), u32::MAX);
    assert_eq!(take(&mut consumer).len(), 4);
    assert_eq!(push(Urgency::Lazy), 1);
}

#[test]
fn entries_that_a_taker_leaves_are_reported_as_the_rest() {
    let (queue, mut consumer) = queue();
    for number in 0..3 {
        let _ = push(&queue, number);
    }
    assert!(consumer.begin());
    assert_eq!(consumer.take().map(Entry::into_inner), Some(0));
    assert_eq!(consumer.stop(), Rest::Entries);
    assert!(!queue.is_empty());
    assert!(!push(&queue, 3).first, "a consumer that leaves entries announces them itself");
    assert_eq!(take(&mut consumer), [1, 2, 3]);
    assert_eq!(consumer.stop(), Rest::Nothing);
    assert!(queue.is_empty());
}

#[test]
fn a_push_to_a_sealed_queue_reports_the_seal() {
    let (queue, mut consumer) = queue();
    assert!(!push(&queue, 1).sealed && !queue.is_sealed());
    consumer.seal();
    assert!(queue.is_sealed());
    assert_eq!(take(&mut consumer), [1], "the sealing thread takes the earlier entries");
    assert!(queue.is_empty());
    assert!(push(&queue, 2).sealed);
    assert_eq!(take(&mut consumer), [2]);
}

#[test]
fn a_dropped_queue_frees_its_entries() {
    let count = Arc::new(AtomicUsize::new(0));
    let (queue, mut consumer) = queue();
    for _ in 0..5 {
        let _ = queue.push(Counted::new(&count), Urgency::Lazy);
    }
    drop(consumer.take());
    assert_eq!(count.load(Ordering::Relaxed), 4);
    drop(queue);
    assert_eq!(count.load(Ordering::Relaxed), 4, "the consumer's end keeps the entries");
    drop(consumer);
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

#[test]
fn many_pushers_lose_no_entry() {
    const PUSHERS: usize = 4;
    const EACH: usize = 20_000;
    let (queue, mut consumer) = queue();
    let mut next = [0; PUSHERS];
    std::thread::scope(|scope| {
        for pusher in 0..PUSHERS {
            let queue = &queue;
            scope.spawn(move || {
                for number in 0..EACH {
                    let _ = push(queue, (pusher, number));
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(60);
        let mut taken = 0;
        while taken < PUSHERS * EACH {
            for (pusher, number) in take(&mut consumer) {
                assert_eq!(number, next[pusher], "each pusher's entries in order");
                next[pusher] += 1;
                taken += 1;
            }
            assert!(Instant::now() < end, "entries are lost: only {taken} were taken");
        }
    });
}

#[test]
fn try_lock_fails_while_the_lock_is_held() {
    let lock = Mutex::new(5);
    assert!(!lock.is_locked());
    let guard = lock.lock();
    assert!(lock.is_locked() && lock.try_lock().is_none());
    drop(guard);
    let mut guard = lock.try_lock().expect("no thread holds the lock");
    *guard += 1;
    assert!(std::ptr::eq(Guard::mutex(&guard), &lock));
    drop(guard);
    assert_eq!(*lock.lock(), 6);
}

#[test]
fn threads_that_hold_the_mutex_exclude_each_other() {
    let lock = Mutex::new((0u64, 0u64));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50_000 {
                    let mut both = lock.lock();
                    both.0 += 1;
                    both.1 += 1;
                    assert_eq!(both.0, both.1);
                }
            });
        }
    });
    assert_eq!(*lock.lock(), (200_000, 200_000));
}

/// Waits, for at most a minute, until a thread of this process sleeps in the kernel.
fn until_it_sleeps(thread: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        if status.rsplit(") ").next().unwrap().starts_with('S') {
            return;
        }
        assert!(Instant::now() < end, "the thread does not sleep: {status}");
        std::thread::yield_now();
    }
}

#[test]
fn a_thread_that_sleeps_on_a_lock_gets_it() {
    let lock = Mutex::new(0);
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        let guard = lock.lock();
        let sleeper = scope.spawn(|| {
            sender.send(SystemCall::new(linux::__NR_gettid, [0; 5]).run().unwrap()).unwrap();
            *lock.lock() += 1
        });
        until_it_sleeps(receiver.recv().unwrap());
        drop(guard);
        sleeper.join().unwrap();
    });
    assert_eq!(*lock.lock(), 1);
}

#[test]
fn a_futex_wait_returns_at_once_if_the_word_has_changed() {
    let word = usring_sys::sync::AtomicU32::new(1);
    assert_eq!(futex::wait(&word, 0, None), Ok(()));
    assert_eq!(futex::wake(&word, u32::MAX), 0);
}

#[test]
fn no_thread_is_woken_without_an_announcement() {
    let word = SleepWord::new();
    assert_eq!(word.wake_target(u32::MAX), Wake::NoSleeper);
    let ticket = word.announce(Sleeper::Futex, 1);
    assert!(!word.retract(ticket));
    assert_eq!(word.wake_target(u32::MAX), Wake::NoSleeper);
}

#[test]
fn an_announcement_causes_exactly_one_wake_up() {
    let word = SleepWord::new();
    for (kind, wake) in [(Sleeper::Futex, Wake::Futex), (Sleeper::Epoll, Wake::Epoll)] {
        let ticket = word.announce(kind, 1);
        assert_eq!(word.wake_target(1), wake);
        assert_eq!(word.wake_target(1), Wake::NoSleeper);
        assert!(word.retract(ticket), "a waker has claimed the announcement");
        assert_eq!(word.wake_target(1), Wake::NoSleeper);
    }
}

#[test]
fn a_sleeper_is_not_woken_before_it_has_enough_entries() {
    let word = SleepWord::new();
    let ticket = word.announce(Sleeper::Epoll, 8);
    assert_eq!(word.wake_target(7), Wake::NoSleeper);
    assert_eq!(word.wake_target(8), Wake::Epoll);
    assert!(word.retract(ticket));
    for too_much in [0x1_0000, u32::MAX] {
        let ticket = word.announce(Sleeper::Futex, too_much);
        assert_eq!(word.wake_target(0xfffe), Wake::NoSleeper);
        assert_eq!(word.wake_target(0xffff), Wake::Futex, "larger needs count as 0xffff");
        assert!(word.retract(ticket));
    }
}

#[test]
fn the_smaller_need_of_two_sleepers_decides_on_the_wake_up() {
    let word = SleepWord::new();
    let modest = word.announce(Sleeper::Futex, 2);
    let greedy = word.announce(Sleeper::Epoll, 9);
    assert_eq!(word.wake_target(1), Wake::NoSleeper);
    assert_eq!(word.wake_target(2), Wake::Futex, "the futex sleeper is woken before the leader");
    assert_eq!(word.wake_target(9), Wake::Epoll);
    assert_eq!(word.wake_target(9), Wake::NoSleeper);
    assert!(word.retract(modest) && word.retract(greedy));
    let fresh = word.announce(Sleeper::Futex, 5);
    assert_eq!(word.wake_target(4), Wake::NoSleeper, "the need of an earlier sleeper no longer counts");
    assert!(!word.retract(fresh));
}

#[test]
fn a_retracted_announcement_leaves_the_others_valid() {
    let word = SleepWord::new();
    let first = word.announce(Sleeper::Futex, 1);
    let second = word.announce(Sleeper::Futex, 1);
    assert!(!word.retract(first));
    assert_eq!(word.wake_target(1), Wake::Futex);
    let third = word.announce(Sleeper::Futex, 1);
    assert!(word.retract(second), "the second announcement was claimed, in spite of the third");
    assert_eq!(word.wake_target(1), Wake::Futex);
    let fourth = word.announce(Sleeper::Futex, 1);
    assert!(word.retract(third) && !word.retract(fourth));
    assert_eq!(word.wake_target(1), Wake::NoSleeper, "no sleeper is left");
}

#[test]
fn a_wake_up_reaches_all_futex_sleepers() {
    let word = SleepWord::new();
    let tickets = [1, 2, 3].map(|needed| word.announce(Sleeper::Futex, needed));
    assert_eq!(word.wake_target(3), Wake::Futex);
    assert_eq!(word.wake_target(3), Wake::NoSleeper);
    for ticket in tickets {
        assert_eq!(word.sleep(&ticket, Some(60 * SECOND)), Ok(()));
        assert!(word.retract(ticket));
    }
    assert_eq!(word.wake_target(3), Wake::NoSleeper);
}

#[test]
fn a_claimed_sleeper_does_not_fall_asleep() {
    let word = SleepWord::new();
    let ticket = word.announce(Sleeper::Futex, 1);
    assert_eq!(word.wake_target(1), Wake::Futex);
    assert_eq!(word.sleep(&ticket, Some(60 * SECOND)), Ok(()), "a claimed sleeper does not fall asleep");
    assert!(word.retract(ticket));
}

#[test]
fn an_unclaimed_sleeper_wakes_at_its_timeout() {
    let word = SleepWord::new();
    let ticket = word.announce(Sleeper::Futex, 1);
    assert_eq!(word.sleep(&ticket, Some(SECOND / 100)), Err(Errno::ETIMEDOUT));
    assert!(!word.retract(ticket));
}

#[test]
fn a_ring_has_one_leader_whose_resignation_wakes_a_follower() {
    let word = SleepWord::new();
    assert!(word.try_lead());
    assert!(!word.try_lead());
    let ticket = word.announce(Sleeper::Futex, 1);
    assert!(ticket.is_led());
    assert_eq!(word.resign(), Wake::Futex);
    assert!(word.retract(ticket));
    let ticket = word.announce(Sleeper::Futex, 1);
    assert!(!ticket.is_led());
    assert!(!word.retract(ticket));
    assert!(word.try_lead());
    assert_eq!(word.resign(), Wake::NoSleeper);
}

/// Runs pushers and one sleeper. A pusher wakes the sleeper when as many entries are queued as the
/// sleeper needs. Checks that the sleeper never sleeps while enough entries are queued.
fn traffic(needed: u32) {
    const WAKERS: usize = 3;
    const EACH: usize = 20_000;
    let ((queue, mut consumer), word) = (queue(), SleepWord::new());
    std::thread::scope(|scope| {
        for _ in 0..WAKERS {
            scope.spawn(|| {
                for number in 0..EACH {
                    let queued = queue.push(Entry::new(number), Urgency::Lazy).queued;
                    if word.wake_target_after_rmw(queued) == Wake::Futex {
                        word.wake_futex();
                    }
                }
            });
        }
        let mut taken = 0;
        while taken < WAKERS * EACH {
            let missing = needed.min((WAKERS * EACH - taken) as u32);
            let round = take(&mut consumer).len();
            taken += round;
            if round > 0 || taken == WAKERS * EACH {
                continue;
            }
            let missing = if consumer.stop() == Rest::OutOfReach { 1 } else { missing };
            let ticket = word.announce(Sleeper::Futex, missing);
            if queue.is_empty() {
                word.sleep(&ticket, Some(60 * SECOND)).expect("a wake-up was lost");
            }
            word.retract(ticket);
        }
    });
}

#[test]
fn a_sleeper_gets_every_entry_that_many_wakers_push() {
    traffic(1);
}

#[test]
fn a_sleeper_that_needs_many_entries_gets_every_entry() {
    traffic(16);
}
