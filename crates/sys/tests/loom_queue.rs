//! Models of the task-work list:
//! - The consumer takes every entry exactly once, completely written, and after earlier entries of
//!   its pusher.
//! - If the consumer could not reach an entry, the queue's state shows that entries are left.
//! - No entry is lost when the list is sealed.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p usring-sys --release --test 'loom_*'`
#![cfg(loom)]

use loom::thread;
use usring_sys::mutex::Mutex;
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::queue::{Consumer, Entry, Queue, Rest, Urgency, queue};
use usring_sys::sync::Arc;

type Number = (u32, u32);

fn take(consumer: &mut Consumer<Number>, into: &mut Vec<Number>) {
    if consumer.begin() {
        while let Some(entry) = consumer.take() {
            into.push(entry.into_inner());
        }
    }
}

/// Runs a model with a bounded number of preemptions. So a model of three threads takes only
/// seconds.
fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn two_pushers_one_taker() {
    bounded(|| {
        let (ours, mut consumer) = queue();
        let ours = Arc::new(ours);
        let pushers: Vec<_> = [(1, 2), (2, 1)]
            .into_iter()
            .map(|(pusher, count)| {
                let queue = ours.clone();
                thread::spawn(move || {
                    for number in 0..count {
                        let _ = queue.push(Entry::new((pusher, number)), Urgency::Urgent);
                    }
                })
            })
            .collect();
        let mut taken = Vec::new();
        take(&mut consumer, &mut taken);
        take(&mut consumer, &mut taken);
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        // After the pushers have ended, `begin` reports the entries that were pushed last.
        take(&mut consumer, &mut taken);
        let of = |pusher| taken.iter().filter(move |entry| entry.0 == pusher).map(|entry| entry.1).collect::<Vec<_>>();
        assert_eq!((of(1), of(2)), (vec![0, 1], vec![0]), "lost, doubled or out of order");
        assert_eq!(consumer.stop(), Rest::Nothing);
    });
}

#[test]
fn no_entry_is_lost_or_doubled_and_each_pushers_order_is_kept() {
    two_pushers_one_taker();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_push_without_release_hands_over_an_unfinished_entry() {
    weaken(Edge::Queue, Side::Release, two_pushers_one_taker);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_take_without_acquire_reads_an_unfinished_entry() {
    weaken(Edge::Queue, Side::Acquire, two_pushers_one_taker);
}

/// Of two threads that push into an empty list, exactly one gets `first`. That thread has to notify
/// a thread that takes entries.
#[test]
fn exactly_one_of_two_pushers_is_the_first() {
    loom::model(|| {
        let (queue, mut consumer) = queue();
        let queue = Arc::new(queue);
        let other = {
            let queue = queue.clone();
            thread::spawn(move || queue.push(Entry::new((1, 0)), Urgency::Lazy))
        };
        let mine = queue.push(Entry::new((2, 0)), Urgency::Lazy);
        let theirs = other.join().unwrap();
        assert!(mine.first != theirs.first);
        assert_eq!(mine.queued.max(theirs.queued), 2);
        let mut taken = Vec::new();
        take(&mut consumer, &mut taken);
        assert_eq!(taken.len(), 2);
    });
}

/// The consumer checks the queue `looks` times, as if it had been notified each time, and takes the
/// entries that it can reach. Checks the answer of `stop` for each entry that is left. `stop` must
/// report the entry, unless the entry's pusher still has to announce it.
fn a_taker_leaves_before_the_queue_is_empty(looks: usize) {
    bounded(move || {
        let (queue, mut consumer) = queue();
        let queue = Arc::new(queue);
        let first = queue.push(Entry::new((1, 0)), Urgency::Urgent);
        assert!(first.first);
        let second = {
            let queue = queue.clone();
            thread::spawn(move || queue.push(Entry::new((1, 1)), Urgency::Urgent))
        };
        let mut taken = Vec::new();
        let mut rest = Rest::Nothing;
        for _ in 0..looks {
            if consumer.begin() {
                while let Some(entry) = consumer.take() {
                    taken.push(entry.into_inner());
                }
                rest = consumer.stop();
            }
        }
        let second = second.join().unwrap();
        if !second.first && taken.len() < 2 {
            assert_eq!(rest, Rest::Entries, "no thread announces the entries that are left");
        }
        take(&mut consumer, &mut taken);
        assert_eq!(taken, [(1, 0), (1, 1)]);
    });
}

#[test]
fn a_taker_that_leaves_learns_of_unannounced_entries() {
    a_taker_leaves_before_the_queue_is_empty(1);
}

#[test]
fn a_taker_that_returns_to_a_half_linked_list_learns_of_its_rest_again() {
    a_taker_leaves_before_the_queue_is_empty(2);
}

/// If `stop` finds the queue empty, the consumer's thread may handle new work at once, without
/// pushing it. Entries that this thread pushed before must come first, even if another thread has
/// not yet linked the entry in front of them.
#[test]
fn a_direct_delivery_by_the_taker_comes_after_its_own_entries() {
    bounded(|| {
        let (queue, consumer) = queue();
        let (queue, consumer) = (Arc::new(queue), Arc::new(Mutex::new((consumer, Vec::new()))));
        let other = {
            let queue = queue.clone();
            thread::spawn(move || queue.push(Entry::new((1, 0)), Urgency::Urgent))
        };
        let _ = queue.push(Entry::new((2, 0)), Urgency::Urgent);
        {
            let mut held = consumer.lock();
            let (consumer, taken) = &mut *held;
            take(consumer, taken);
            match consumer.stop() {
                Rest::Nothing => taken.push((2, 1)),
                _ => {
                    let _ = queue.push(Entry::new((2, 1)), Urgency::Urgent);
                }
            }
        }
        let _ = other.join().unwrap();
        let mut held = consumer.lock();
        let (consumer, taken) = &mut *held;
        take(consumer, taken);
        let mine: Vec<_> = taken.iter().filter(|entry| entry.0 == 2).collect();
        assert_eq!(mine, [&(2, 0), &(2, 1)]);
    });
}

/// Models the close of a ring. The sealing thread takes the entries that are in the queue. A pusher
/// that sees the seal takes the entries that come later. Each thread holds the ring's lock while it
/// takes entries.
fn sealed_while_two_push() {
    bounded(|| {
        let (queue, consumer) = queue();
        let (queue, consumer) = (Arc::new(queue), Arc::new(Mutex::new((consumer, Vec::new()))));
        let pushers = [1, 2].map(|pusher| {
            let (queue, consumer) = (queue.clone(), consumer.clone());
            thread::spawn(move || {
                if queue.push(Entry::new((pusher, 0)), Urgency::Urgent).sealed {
                    let mut held = consumer.lock();
                    let (consumer, taken) = &mut *held;
                    take(consumer, taken);
                }
            })
        });
        {
            let mut held = consumer.lock();
            let (consumer, taken) = &mut *held;
            consumer.seal();
            take(consumer, taken);
        }
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        assert!(queue.is_sealed());
        assert_eq!(consumer.lock().1.len(), 2, "an entry is left in a sealed queue");
    });
}

#[test]
fn nothing_is_left_in_a_sealed_queue() {
    sealed_while_two_push();
}

/// Dropping the queue frees the entries that were not taken.
#[test]
fn a_dropped_queue_frees_its_remaining_entries() {
    loom::model(|| {
        let (queue, consumer) = queue();
        let queue: Queue<Arc<()>> = queue;
        let value = Arc::new(());
        let theirs = value.clone();
        let pusher = thread::spawn(move || {
            let _ = queue.push(Entry::new(theirs), Urgency::Lazy);
        });
        drop(consumer);
        pusher.join().unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
    });
}
