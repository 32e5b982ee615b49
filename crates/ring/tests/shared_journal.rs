//! Tests of the journal of a ring that two processes use, each by its own [`Journal`]. Only one
//! process at a time uses the journal, as under the ring's lock. A process "dies" between two calls
//! of its [`Journal`]: the test makes no further calls for it.
#![cfg(not(loom))]

use usring_ring::{CompletionQueue, Journal, JournalSlot, JournalTimer, Layout, Memory, OrphanFilter};
use usring_uapi::Cqe;

const FIRST: u32 = 2;
const SECOND: u32 = 3;

/// The SQ's head after the requests of these tests were taken from the SQ.
const TAKEN: u32 = 100;

fn halves() -> (Journal, Journal, CompletionQueue) {
    let memory = Memory::allocate(Layout::new(4, 8, 0)).unwrap();
    (memory.journal(FIRST), memory.journal(SECOND), CompletionQueue::new(&memory))
}

fn begin(journal: &mut Journal, user_data: u64) -> JournalSlot {
    let slot = journal.begin(user_data, 0).unwrap();
    journal.confirm(slot);
    slot
}

fn user_data(taken: Vec<(JournalSlot, u64)>) -> Vec<u64> {
    taken.into_iter().map(|(_, user_data)| user_data).collect()
}

#[test]
fn a_request_that_is_still_in_the_sq_was_not_taken() {
    let (mut first, mut second, cq) = halves();
    first.begin(1, TAKEN - 1).unwrap();
    second.mend(&cq, TAKEN);
    assert_eq!(user_data(second.take_orphans(|_| false)), [1], "its entry has left the SQ");
    first.begin(2, TAKEN).unwrap();
    second.mend(&cq, TAKEN);
    assert_eq!(user_data(second.take_orphans(|_| false)), [0; 0]);
}

#[test]
fn a_cqe_that_was_not_published_does_not_end_its_request() {
    let (mut first, mut second, mut cq) = halves();
    let [ended, lost] = [1, 2].map(|number| begin(&mut first, number));
    for (slot, number) in [(ended, 1), (lost, 2)] {
        first.end(slot, 1, &cq);
        cq.post(Cqe { user_data: number, res: 0, flags: 0 });
        if number == 1 {
            cq.publish();
        }
    }
    cq.catch_up();
    second.mend(&cq, TAKEN);
    assert_eq!(user_data(second.take_orphans(|_| false)), [2]);
}

/// A CQE in the backlog is published as soon as the process has added it. The process may die
/// before or after it adds the CQE.
#[test]
fn a_cqe_in_the_backlog_ends_its_request_once() {
    let (mut first, mut second, mut cq) = halves();
    while !cq.is_full() {
        cq.post(Cqe::default());
    }
    let [ended, lost, removed] = [1, 2, 3].map(|number| begin(&mut first, number));
    first.remove(removed);
    first.end(ended, 2, &cq);
    cq.post(Cqe::default());
    cq.post(Cqe::default());
    first.end(lost, 1, &cq);
    cq.catch_up();
    second.mend(&cq, TAKEN);
    assert_eq!(user_data(second.take_orphans(|_| false)), [2]);
}

/// The process has died between the two CQEs of a zero-copy send: after the first CQE, and before
/// the CQE of its notification.
#[test]
fn a_request_whose_last_cqe_is_missing_has_not_ended() {
    let (mut first, mut second, mut cq) = halves();
    while !cq.is_full() {
        cq.post(Cqe::default());
    }
    let slot = begin(&mut first, 1);
    first.end(slot, 2, &cq);
    cq.post(Cqe::default());
    cq.catch_up();
    second.mend(&cq, TAKEN);
    assert_eq!(user_data(second.take_orphans(|_| false)), [1]);
}

#[test]
fn held_requests_of_both_processes_keep_their_order() {
    let (mut first, mut second, _) = halves();
    let own = begin(&mut first, 1);
    let other = begin(&mut second, 2);
    let member = begin(&mut second, 3);
    let place = second.last_position();
    second.hold_member(member, place);
    second.hold(other, place, true);
    let place = first.last_position();
    first.hold(own, place, false);
    assert!(!first.is_any_in_flight());
    let held = first.first_held().unwrap();
    assert_eq!((held.slot, held.owner, held.drains), (other, SECOND, true));
    first.release(&held);
    assert!(!second.is_held(other) && !second.is_held(member));
    let held = second.first_held().unwrap();
    assert_eq!((held.slot, held.owner, held.drains), (own, FIRST, false));
}

#[test]
fn held_requests_of_a_dead_process_stay_until_their_turn() {
    let (mut first, mut second, mut cq) = halves();
    let [head, member, armed] = [1, 2, 3].map(|number| begin(&mut first, number));
    let place = first.last_position();
    first.hold_member(member, place);
    first.hold(head, place, true);
    drop(first);
    assert_eq!(second.take_orphans(|_| false), [(armed, 3)]);
    second.end(armed, 1, &cq);
    cq.post(Cqe::default());
    let held = second.first_held().unwrap();
    assert_eq!(user_data(second.take_held(&held)), [1, 2]);
    assert_eq!(second.journaled(), 2);
}

/// The process dies while it marks the requests of a chain as held back. It has marked a later
/// request, and not yet the chain's first request.
#[test]
fn members_without_a_held_head_are_taken_from_a_dead_process() {
    let (mut first, mut second, _) = halves();
    let [head, member] = [1, 2].map(|number| begin(&mut first, number));
    first.hold_member(member, first.last_position());
    drop(first);
    assert_eq!(second.take_orphans(|_| false), [(head, 1), (member, 2)]);
    assert!(second.first_held().is_none());
}

/// Number of timers of a journal.
const TIMERS: u64 = 256;

fn at(at: u64) -> JournalTimer {
    JournalTimer { at, every: 7, repeats: 2, count: Some(0), next: None, flags: 5 }
}

#[test]
fn a_timeout_keeps_its_condition_when_its_process_dies() {
    let (mut first, mut second, _) = halves();
    let [timeout, other] = [1, 2].map(|number| begin(&mut first, number));
    first.time(timeout, at(100));
    first.time(timeout, at(200));
    assert!(first.is_any_in_flight());
    assert_eq!(second.take_orphans(|_| false), [(timeout, 1), (other, 2)]);
    assert_eq!((second.timer(timeout), second.timer(other)), (Some(at(200)), None));
    assert_eq!(second.take_orphans(|_| false), [], "both are the second process's now");
}

#[test]
fn requests_behind_a_timeout_stay_until_it_ends() {
    let (mut first, mut second, cq) = halves();
    let [third, timeout, other, next] = [3, 1, 4, 2].map(|number| begin(&mut first, number));
    first.link(&[next, third]);
    first.time(timeout, JournalTimer { next: Some(next), ..at(100) });
    assert_eq!(second.take_orphans(|_| false), [(timeout, 1), (other, 4)]);
    assert_eq!(second.take_chain(timeout), [(next, 2), (third, 3)]);
    let any = OrphanFilter { user_data: None, is_timeout: false };
    assert_eq!(first.take_one_orphan(any, |_| false), Some((timeout, 1)), "the second process has died, too");
    assert_eq!(first.take_chain(timeout), [(next, 2), (third, 3)]);
    first.end(timeout, 1, &cq);
    assert_eq!(first.take_chain(timeout), []);
    assert_eq!(second.take_orphans(|number| number == SECOND), [(third, 3), (next, 2)]);
}

#[test]
fn the_chain_of_an_ended_orphan_timeout_becomes_an_orphan() {
    let (mut first, mut second, cq) = halves();
    let [timeout, next] = [1, 2].map(|number| begin(&mut first, number));
    first.link(&[next]);
    first.time(timeout, JournalTimer { next: Some(next), ..at(100) });
    assert_eq!(second.take_orphans(|_| false), [(timeout, 1)]);
    second.end(timeout, 1, &cq);
    assert_eq!(second.take_orphans(|_| false), [(next, 2)]);
}

#[test]
fn forgotten_timers_leave_ordinary_requests() {
    let (mut first, mut second, _) = halves();
    let timeout = begin(&mut first, 1);
    first.time(timeout, at(100));
    second.forget_timers();
    assert_eq!(second.timer(timeout), Some(at(100)), "it is the first process's");
    first.forget_timers();
    assert_eq!(second.timer(timeout), None);
    assert_eq!(second.take_orphans(|_| false), [(timeout, 1)]);
}

#[test]
fn timers_of_ended_timeouts_are_used_again() {
    let (mut first, second, mut cq) = halves();
    for round in 0..2 {
        let slots: Vec<JournalSlot> = (0..=TIMERS).map(|number| begin(&mut first, number)).collect();
        for (number, slot) in (0..).zip(&slots) {
            first.time(*slot, JournalTimer { count: None, ..at(number) });
        }
        let conditions = slots.iter().map(|slot| second.timer(*slot).map(|timer| timer.at));
        let expected: Vec<Option<u64>> = (0..=TIMERS).map(|number| (number < TIMERS).then_some(number)).collect();
        assert_eq!(conditions.collect::<Vec<_>>(), expected, "round {round}: the last one has no timer");
        slots.into_iter().for_each(|slot| first.end(slot, 1, &cq));
        cq.publish();
        first.clear_published();
    }
}

#[test]
fn one_request_of_a_dead_process_is_taken_over_by_its_user_data() {
    let (mut first, mut second, _) = halves();
    let [one, timeout] = [1, 2].map(|number| begin(&mut first, number));
    first.time(timeout, at(100));
    let of = |number| OrphanFilter { user_data: Some(number), is_timeout: false };
    assert_eq!(second.take_one_orphan(of(1), |_| true), None, "its process is alive");
    assert_eq!(second.take_one_orphan(of(3), |_| false), None);
    let any_timeout = OrphanFilter { user_data: None, is_timeout: true };
    assert_eq!(second.take_one_orphan(any_timeout, |_| false), Some((timeout, 2)));
    assert_eq!(second.take_one_orphan(OrphanFilter { is_timeout: true, ..of(1) }, |_| false), None);
    assert_eq!(second.take_one_orphan(of(1), |_| false), Some((one, 1)));
}

/// Number of slots of the journal in these tests.
const SLOTS: u64 = 1024;

#[test]
fn slots_that_another_process_has_freed_are_used_again() {
    let (mut first, mut second, mut cq) = halves();
    for number in 0..SLOTS {
        begin(&mut first, number);
    }
    assert_eq!(first.begin(SLOTS, 0), None, "the journal is full");
    let (slot, _) = second.take_one_orphan(OrphanFilter { user_data: Some(5), is_timeout: false }, |_| false).unwrap();
    second.end(slot, 1, &cq);
    cq.post(Cqe::default());
    cq.publish();
    second.clear_published();
    assert_eq!(first.begin(SLOTS, 0), Some(slot));
}

#[test]
fn requests_are_counted_until_they_end_or_are_removed() {
    let (mut first, second, cq) = halves();
    let [ended, removed, left] = [1, 2, 3].map(|number| begin(&mut first, number));
    assert_eq!((first.journaled(), second.journaled()), (3, 0));
    first.end(ended, 1, &cq);
    first.remove(removed);
    assert_eq!(first.journaled(), 1);
    first.remove(left);
    assert_eq!(first.journaled(), 0);
}

#[test]
fn a_request_is_in_the_journal_until_its_cqe_is_published() {
    let (mut first, second, mut cq) = halves();
    let slot = begin(&mut first, 1);
    assert!(second.has_others() && !first.has_others());
    first.end(slot, 1, &cq);
    cq.post(Cqe::default());
    assert!(second.has_others(), "the CQE is not published");
    assert!(!second.is_any_in_flight());
    cq.publish();
    first.clear_published();
    assert!(!second.has_others());
}

#[test]
fn the_other_processes_with_requests_are_listed_once() {
    let (mut first, mut second, cq) = halves();
    let [ended, ..] = [1, 2, 2].map(|number| begin(&mut first, number));
    begin(&mut second, 3);
    assert_eq!((first.others(None), second.others(None)), (vec![SECOND], vec![FIRST]));
    assert_eq!((second.others(Some(1)), second.others(Some(2))), (vec![FIRST], vec![FIRST]));
    assert_eq!(second.others(Some(3)), [0; 0], "this is a request of the process that asks");
    first.end(ended, 1, &cq);
    assert_eq!(second.others(Some(1)), [0; 0], "the request has ended");
}

#[test]
fn a_held_or_ended_request_of_a_dead_process_is_not_taken_over_alone() {
    let (mut first, mut second, cq) = halves();
    let [held, ended] = [1, 2].map(|number| begin(&mut first, number));
    first.hold(held, first.last_position(), true);
    first.end(ended, 1, &cq);
    let any = OrphanFilter { user_data: None, is_timeout: false };
    assert_eq!(second.take_one_orphan(any, |_| false), None);
    first.confirm(held);
    assert_eq!(second.take_one_orphan(any, |_| false), Some((held, 1)));
    assert_eq!(second.take_one_orphan(any, |_| false), None, "the request is the second process's");
}

/// The order in which held requests are released.
fn held_order(journal: &Journal) -> Vec<JournalSlot> {
    let release = |held| {
        journal.release(&held);
        held.slot
    };
    core::iter::from_fn(|| journal.first_held().map(release)).collect()
}

#[test]
fn first_positions_are_before_all_held_requests() {
    let (mut first, second, _) = halves();
    for is_any_held in [false, true] {
        let [last, c, b, a, later] = [1, 2, 3, 4, 5].map(|number| begin(&mut first, number));
        let mut order = vec![a, b, c];
        if is_any_held {
            second.hold(last, second.last_position(), false);
            order.push(last);
        }
        let positions: Vec<u32> = first.first_positions(3).collect();
        for (slot, position) in [c, b, a].into_iter().zip(positions.into_iter().rev()) {
            first.hold(slot, position, false);
        }
        first.hold(later, first.last_position(), false);
        order.push(later);
        assert_eq!(held_order(&first), order, "held before: {is_any_held}");
        [last, a, b, c, later].into_iter().for_each(|slot| first.remove(slot));
    }
}

#[test]
fn a_timeout_that_finds_no_timer_loses_its_old_condition() {
    let (mut first, mut second, _) = halves();
    let slots: Vec<JournalSlot> = (0..TIMERS).map(|number| begin(&mut first, number)).collect();
    slots.iter().for_each(|slot| first.time(*slot, at(100)));
    first.time(slots[7], at(200));
    assert_eq!((second.timer(slots[7]), second.timer(slots[8])), (None, Some(at(100))));
    assert_eq!(second.take_orphans(|_| false).len(), slots.len());
}

#[test]
fn a_marked_request_is_cancelled_by_its_process_or_is_an_orphan() {
    let (mut first, mut second, cq) = halves();
    let [one, timeout, other] = [1, 2, 1].map(|number| begin(&mut first, number));
    first.time(timeout, at(100));
    let of = |user_data| OrphanFilter { user_data: Some(user_data), is_timeout: false };
    assert_eq!(second.mark_cancelled(FIRST, OrphanFilter { is_timeout: true, ..of(1) }, true), 0);
    assert_eq!(second.mark_cancelled(FIRST, of(1), false), 1);
    assert_eq!(first.own_cancelled(), [one]);
    assert_eq!(second.mark_cancelled(FIRST, of(1), true), 1, "each request is cancelled once");
    assert_eq!(second.others(Some(1)), [0; 0]);
    assert_eq!(second.mark_cancelled(FIRST, of(2), false), 1);
    first.end(one, 1, &cq);
    assert_eq!(first.own_cancelled(), [timeout, other]);
    assert_eq!(second.take_orphans(|_| false), [(timeout, 2), (other, 1)]);
    assert_eq!(second.timer(timeout), None, "a cancelled timeout does not go on");
}
