//! Messages to rings with deferred task work.

use super::message;
use crate::names;
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop};
use crate::transcript::Transcript;
use usring_uapi::{io_uring as u, sqe_flags};

fn deferred_flag(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    for flags in
        [ring::DEFER | u::IORING_SETUP_TASKRUN_FLAG, u::IORING_SETUP_COOP_TASKRUN | u::IORING_SETUP_TASKRUN_FLAG]
    {
        let target = Ring::flags(8, flags);
        t.entry(&sender.one(message(target.fd, 1, 0, 1)));
        t.say(format_args!("ready {}, flags {}", target.ready(), names::sq_flags(target.sq_flags())));
        t.result("enter(0, 0, 0)", target.enter(0, 0, 0));
        t.say(format_args!("ready {}, flags {}", target.ready(), names::sq_flags(target.sq_flags())));
        t.result("get events", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.say(format_args!("ready {}, flags {}", target.ready(), names::sq_flags(target.sq_flags())));
    }
}
case!(deferred_flag => "
    cqe 1: 0
    ready 0, flags TASKRUN
    enter(0, 0, 0) = 0
    ready 0, flags TASKRUN
    get events = 0
    ready 1, flags -
    cqe 1: 0
    ready 1, flags -
    enter(0, 0, 0) = 0
    ready 1, flags -
    get events = 0
    ready 1, flags -
");

fn send_many(sender: &mut Ring, target: &Ring, count: u64) {
    for number in 0..count {
        sender.push(message(target.fd, number, 0, 0).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    }
    sender.submit();
}

/// One io_uring_enter(2) runs at most 20 items of deferred task work. If the call waits for more
/// than 20 completions, it runs at most that many items.
fn deferred_run_is_limited(t: &mut Transcript) {
    let mut sender = Ring::new(128);
    for wanted in [0, 1, 5, 20, 25, 40] {
        let mut target = Ring::flags(128, ring::DEFER | u::IORING_SETUP_TASKRUN_FLAG);
        send_many(&mut sender, &target, 100);
        t.result(format_args!("wait for {wanted}"), target.enter(0, wanted, u::IORING_ENTER_GETEVENTS));
        t.say(format_args!("ready {}, flags {}", target.ready(), names::sq_flags(target.sq_flags())));
        t.result("again", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.say(format_args!("ready {}, flags {}", target.ready(), names::sq_flags(target.sq_flags())));
        t.result("for all", target.enter(0, 100, u::IORING_ENTER_GETEVENTS));
        let in_order = target.reap().iter().map(|entry| entry.user_data).eq(0..100);
        t.say(format_args!("all, in order: {in_order}, flags {}", names::sq_flags(target.sq_flags())));
    }
}
case!(deferred_run_is_limited => include_str!("deferred_run_is_limited.txt"));

/// An io_uring_enter(2) that submits and waits runs deferred task work twice. Each time it runs at
/// most 20 items, or as many as it waits for, if these are more.
fn deferred_run_for_many(t: &mut Transcript) {
    let mut sender = Ring::new(128);
    for wanted in [1, 2, 30] {
        let mut target = Ring::flags(128, ring::DEFER);
        send_many(&mut sender, &target, 100);
        target.push(nop(1000));
        t.result(format_args!("submit and wait for {wanted}"), target.submit_and_wait(wanted));
        t.say(format_args!("ready {}", target.ready()));
        target.push(nop(1001));
        t.result("submit", target.submit());
        t.say(format_args!("ready {}", target.ready()));
    }
}
case!(deferred_run_for_many => "
    submit and wait for 1 = 1
    ready 41
    submit = 1
    ready 42
    submit and wait for 2 = 1
    ready 41
    submit = 1
    ready 42
    submit and wait for 30 = 1
    ready 61
    submit = 1
    ready 62
");

/// Messages whose CQEs the target has never received are freed when the target ring ends.
fn deferred_teardown(t: &mut Transcript) {
    let mut sender = Ring::new(64);
    for _ in 0..20 {
        let target = Ring::flags(8, ring::DEFER);
        send_many(&mut sender, &target, 50);
        drop(target);
    }
    t.entry(&sender.one(nop(1)));
}
case!(deferred_teardown => "cqe 1: 0");
