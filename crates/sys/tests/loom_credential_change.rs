//! Models of a change of credentials while a thread starts. They check:
//! - A new worker has the credentials of the generation that it reports.
//! - A new service thread (a thread of usring that repeats each change) misses no change.
//! - A service thread never mixes the words of two orders (commands to repeat a change).
//!
//! The models leave out the kernel's part:
//! - The table of threads. The kernel enters a thread at clone(2), and frees its slot at its end.
//! - Signals. A model calls `follow` where the service thread would get the signal of a change.
//! - The copy of memory that fork(2) makes. A forked child has the words as they were after some
//!   step of a change, and only the forking thread. So a model of a child begins with a change that
//!   was stopped after one of its steps. The conformance case `rights_later.forked_during_a_change`
//!   tests real forks.
#![cfg(loom)]

use loom::cell::Cell;
use loom::thread;
use usring_sys::credential_change::{Follower, Generations, Order, Origin};
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::sync::Arc;

#[derive(Debug)]
struct Process {
    generations: Generations,
    order: Order,
    follower: Follower,
}

impl Process {
    fn new() -> Arc<Process> {
        Arc::new(Process { generations: Generations::new(), order: Order::new(), follower: Follower::new() })
    }

    /// Changes the credentials to those of `generation`, as a thread of the program does. Orders
    /// the service thread to make the change, too, and does not wait for the service thread.
    /// Returns the number of the order.
    fn change(&self, generation: u32) -> u32 {
        self.generations.begin();
        let order = self.order.publish([u64::from(generation); 5]);
        self.generations.end();
        order
    }

    /// Returns a child process. Its parent forked it just after another thread of the parent had
    /// made the step `step` of a change. The child's first service thread has started.
    fn forked_at(step: Step) -> Arc<Process> {
        let child = Process::new();
        if step >= Step::Begun {
            child.generations.begin();
        }
        match step {
            Step::NotBegun | Step::Begun => {}
            Step::Written => _ = child.order.write([7; 5]),
            Step::Given | Step::Ended => _ = child.order.publish([7; 5]),
        }
        if step == Step::Ended {
            child.generations.end();
        }
        child.generations.forget_unfinished();
        child.order.forget_unfinished();
        let seen = child.generations.ended();
        let generation = child.follower.begin(Origin::Seen(seen), &child.generations, &child.order);
        assert_eq!(generation, Some(seen), "the rights of a child's first thread are unknown");
        child.follow(&Cell::new(0));
        assert_eq!(child.follower.last_made(), child.order.last(), "a child follows a change of its parent");
        child
    }

    /// Acts as the service thread does when it gets the signal of a change. `rights`: the
    /// generation of the service thread's credentials.
    fn follow(&self, rights: &Cell<u32>) {
        self.follow_as(&self.follower, rights);
    }

    fn follow_as(&self, follower: &Follower, rights: &Cell<u32>) {
        if let Some((order, words)) = self.order.take(follower.last_made()) {
            assert_eq!(words, [words[0]; 5], "an order is mixed with another");
            rights.set(words[0] as u32);
            follower.answer(order, words[0]);
        }
    }
}

/// The last step of a change that the changing thread had made when another thread forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    NotBegun,
    Begun,
    Written,
    Given,
    Ended,
}

/// Runs a model once for each step of a change, in a child that was forked after that step. All
/// these models run concurrently.
fn in_each_child(model: fn(Arc<Process>)) {
    std::thread::scope(|scope| {
        for step in [Step::NotBegun, Step::Begun, Step::Written, Step::Given, Step::Ended] {
            scope.spawn(move || loom::model(move || model(Process::forked_at(step))));
        }
    });
}

#[test]
fn a_new_thread_of_a_child_forked_during_a_change_misses_no_change() {
    in_each_child(|child| a_thread_starts(child, false));
    in_each_child(|child| a_thread_starts(child, true));
}

#[test]
fn a_follower_in_a_child_forked_during_a_change_mixes_no_credential_changes() {
    in_each_child(two_changes);
}

/// The ring watcher starts a thread during a change. The watcher gets the signal of the change
/// before or after it reads the generation.
fn a_thread_starts_during_a_credential_change(follows_after_looking: bool) {
    loom::model(move || a_thread_starts(Process::new(), follows_after_looking));
}

fn a_thread_starts(process: Arc<Process>, follows_after_looking: bool) {
    let asked_for = process.generations.ended();
    let watcher = {
        let process = process.clone();
        thread::spawn(move || {
            let rights = Cell::new(asked_for);
            if !follows_after_looking {
                process.follow(&rights);
            }
            let seen = process.generations.ended();
            if follows_after_looking {
                process.follow(&rights);
            }
            let inherited = rights.get();
            let newborn = thread::spawn(move || {
                let follower = Follower::new();
                let generation = follower.begin(Origin::Seen(seen), &process.generations, &process.order);
                if generation == Some(asked_for) {
                    assert_eq!(inherited, asked_for, "a worker has the rights of another generation");
                }
                (follower, generation, inherited)
            });
            newborn.join().unwrap()
        })
    };
    process.change(asked_for + 1);
    let (follower, generation, inherited) = watcher.join().unwrap();
    // If the new service thread has the old generation, it gets the signal of the change now. A
    // thread of the next generation needs no signal, because the change ended before that thread
    // started. (This can happen only in the model: a real change waits for the ring watcher, which
    // starts the thread.)
    if generation != Some(asked_for + 1) {
        let rights = Cell::new(inherited);
        process.follow_as(&follower, &rights);
        assert_eq!(rights.get(), asked_for + 1, "a new thread misses a change");
    }
}

#[test]
fn a_new_thread_has_the_rights_of_its_generation_and_misses_no_change() {
    a_thread_starts_during_a_credential_change(false);
    a_thread_starts_during_a_credential_change(true);
}

#[test]
#[should_panic(expected = "a new thread misses a change")]
fn a_thread_that_begins_without_acquire_misses_a_change() {
    weaken(Edge::Change, Side::Acquire, || a_thread_starts_during_a_credential_change(false));
}

/// The program changes its credentials a second time, while a service thread still reads the words
/// of the first change.
fn a_second_change_comes_while_a_follower_reads() {
    loom::model(|| two_changes(Process::new()));
}

fn two_changes(process: Arc<Process>) {
    let service = {
        let process = process.clone();
        thread::spawn(move || process.follow(&Cell::new(0)))
    };
    process.change(1);
    process.change(2);
    service.join().unwrap();
}

#[test]
fn a_lagging_follower_mixes_no_credential_changes() {
    a_second_change_comes_while_a_follower_reads();
}

#[test]
#[should_panic(expected = "an order is mixed with another")]
fn a_credential_change_read_without_acquire_is_read_in_part() {
    weaken(Edge::Change, Side::Acquire, a_second_change_comes_while_a_follower_reads);
}

#[test]
#[should_panic(expected = "an order is mixed with another")]
fn a_credential_change_published_without_release_is_read_in_part() {
    weaken(Edge::Change, Side::Release, a_second_change_comes_while_a_follower_reads);
}

/// When the changing thread reads a service thread's answer, it also sees the earlier stores of the
/// service thread.
fn an_acknowledgement_is_awaited() {
    loom::model(|| {
        let process = Process::new();
        let service = {
            let process = process.clone();
            thread::spawn(move || process.follower.answer(2, 1))
        };
        if let Some(state) = process.follower.state_after(2) {
            assert_eq!(state, 1, "an answer is seen before what it says");
        }
        service.join().unwrap();
    });
}

#[test]
fn an_acknowledgement_reports_the_followers_credentials() {
    an_acknowledgement_is_awaited();
}

#[test]
#[should_panic(expected = "an answer is seen before what it says")]
fn an_acknowledgement_without_release_is_seen_too_early() {
    weaken(Edge::Change, Side::Release, an_acknowledgement_is_awaited);
}
