//! Model of the task-work list: every entry is taken exactly once, whole, and
//! after what the same thread pushed before it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p usring-sys --release --test 'loom_*'`
#![cfg(loom)]

use loom::thread;
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::queue::{Entry, Queue};
use usring_sys::sync::Arc;

fn take(queue: &Queue<(u32, u32)>, into: &mut Vec<(u32, u32)>) {
    into.extend(queue.take_all().map(Entry::into_inner));
}

/// Bounded preemption keeps the model of three threads within seconds.
fn two_pushers_one_taker() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let queue = Arc::new(Queue::new());
        let pushers: Vec<_> = [(1, 2), (2, 1)]
            .into_iter()
            .map(|(pusher, count)| {
                let queue = queue.clone();
                thread::spawn(move || {
                    for number in 0..count {
                        queue.push(Entry::new((pusher, number)));
                    }
                })
            })
            .collect();
        let mut taken = Vec::new();
        take(&queue, &mut taken);
        take(&queue, &mut taken);
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        take(&queue, &mut taken);
        let of = |pusher| taken.iter().filter(move |entry| entry.0 == pusher).map(|entry| entry.1).collect::<Vec<_>>();
        assert_eq!((of(1), of(2)), (vec![0, 1], vec![0]));
    });
}

#[test]
fn nothing_is_lost_or_doubled_and_each_pushers_order_is_kept() {
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

#[test]
fn two_takers_share_the_entries() {
    loom::model(|| {
        let queue = Arc::new(Queue::new());
        let pusher = {
            let queue = queue.clone();
            thread::spawn(move || {
                queue.push(Entry::new((1, 0)));
                queue.push(Entry::new((1, 1)));
            })
        };
        let other = {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut taken = Vec::new();
                take(&queue, &mut taken);
                taken
            })
        };
        let mut taken = Vec::new();
        take(&queue, &mut taken);
        pusher.join().unwrap();
        taken.extend(other.join().unwrap());
        take(&queue, &mut taken);
        taken.sort();
        assert_eq!(taken, [(1, 0), (1, 1)]);
    });
}

#[test]
fn the_weight_that_the_last_pusher_sees_is_that_of_everything_queued() {
    loom::model(|| {
        let queue = Arc::new(Queue::new());
        let other = {
            let queue = queue.clone();
            thread::spawn(move || queue.push_weighted(Entry::new((1, 0)), 1))
        };
        let mine = queue.push_weighted(Entry::new((2, 0)), 2);
        let theirs = other.join().unwrap();
        assert_eq!(mine.max(theirs), 3);
        assert_eq!(queue.weight(), 3);
    });
}
