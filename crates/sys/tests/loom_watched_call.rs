//! Models of watched calls. They check two things: the watchdog's signal interrupts no other call
//! than the watched one, and the watchdog does not sleep while a thread is inside a call.
#![cfg(loom)]

use loom::cell::Cell;
use loom::thread;
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::sync::{Arc, Ordering};
use usring_sys::watched_call::{WatchdogStep, WatchedCalls, Watcher};

/// A caller, and the number of signals that were sent to its thread and not delivered yet. If the
/// watchdog accesses `signals` while the caller is outside a call, loom reports a conflict.
struct Caller {
    calls: WatchedCalls,
    signals: Cell<u32>,
}

fn a_caller_is_interrupted() {
    loom::model(|| {
        let caller = Arc::new(Caller { calls: WatchedCalls::default(), signals: Cell::new(0) });
        let watcher = {
            let caller = caller.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let seen = caller.calls.observe();
                    if seen.is_inside() {
                        caller.calls.interrupt(seen, |_| caller.signals.set(1));
                    }
                }
            })
        };
        for _ in 0..2 {
            assert_eq!(caller.calls.cancelled().load(Ordering::Relaxed), 0, "a call is broken off before it begins");
            let call = caller.calls.begin(1);
            caller.calls.end(call);
            // `end` returns only after the signal was delivered. So no signal is left that could
            // interrupt the thread's next call.
            caller.signals.set(0);
        }
        watcher.join().unwrap();
        assert_eq!(caller.signals.get(), 0);
    });
}

#[test]
fn an_interrupting_signal_hits_only_its_own_call() {
    a_caller_is_interrupted();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_signal_sent_without_release_hits_a_later_call() {
    weaken(Edge::Interrupt, Side::Release, a_caller_is_interrupted);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_caller_that_leaves_without_acquire_is_hit_by_the_signal_later() {
    weaken(Edge::Interrupt, Side::Acquire, a_caller_is_interrupted);
}

fn a_call_begins_while_the_watchdog_goes_to_sleep() {
    loom::model(|| {
        let calls = Arc::new(WatchedCalls::default());
        let watcher = Arc::new(Watcher::default());
        assert_eq!(watcher.ensure_checking(), WatchdogStep::Start { first: true });
        assert!(watcher.begin());
        let nothing = calls.observe();
        let caller = {
            let (calls, watcher) = (calls.clone(), watcher.clone());
            thread::spawn(move || {
                let call = calls.begin(1);
                if !watcher.is_checking() {
                    watcher.ensure_checking();
                }
                calls.end(call);
            })
        };
        watcher.prepare_sleep(|| calls.observe() != nothing);
        caller.join().unwrap();
        assert!(watcher.is_checking(), "nobody watches a call");
    });
}

#[test]
fn every_call_is_watched() {
    a_call_begins_while_the_watchdog_goes_to_sleep();
}

#[test]
#[should_panic(expected = "nobody watches a call")]
fn a_watchdog_that_goes_to_sleep_without_barrier_misses_a_call() {
    weaken(Edge::Watch, Side::Sleeper, a_call_begins_while_the_watchdog_goes_to_sleep);
}

#[test]
#[should_panic(expected = "nobody watches a call")]
fn a_call_without_barrier_does_not_wake_the_watchdog() {
    weaken(Edge::Watch, Side::Waker, a_call_begins_while_the_watchdog_goes_to_sleep);
}
