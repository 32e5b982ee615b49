//! Tests the poll table with an epoll set and eventfds, without a ring.

use super::*;
use crate::request::pool::new_entry;
use usring_sys::{SystemCall, epoll, eventfd};
use usring_uapi::general::__NR_dup3;

const ONCE: Interest = Interest { events: epoll::IN, multishot: false };
const ALWAYS: Interest = Interest { events: epoll::IN, multishot: true };

fn table() -> PollTable {
    let mut table = PollTable::default();
    table.put_set(Epoll::new().unwrap());
    table
}

/// Makes a request wait for the program's descriptor `number`, and returns its slot's tag.
fn wait_for(table: &mut PollTable, number: i32, interest: Interest, user_data: u64) -> Tag {
    let mut request = new_entry();
    request.sqe.user_data = user_data;
    request.file.number = number;
    let assigned = table.attach(&mut request.file, interest, false).unwrap();
    table.push(assigned.tag, request, Purpose::Retry, TimeSlice::Over);
    assigned.tag
}

/// Returns the tags of the events in the set.
fn events(table: &PollTable) -> Vec<Tag> {
    let mut events = [epoll::Event::default(); 8];
    let count = table.set().unwrap().ready(&mut events).unwrap();
    events[..count].iter().map(|event| event.data).collect()
}

/// Wakes the requests of one event, and returns their user_data.
fn round(table: &mut PollTable, tag: Tag) -> Vec<u64> {
    if !table.begin_round(tag) {
        return Vec::new();
    }
    let woken = core::iter::from_fn(|| table.next_of_round(tag)).map(|waiter| waiter.request.sqe.user_data).collect();
    table.end_round(tag);
    woken
}

#[test]
fn requests_for_the_same_file_and_events_share_a_registration_and_are_called_in_order() {
    let (mut table, file) = (table(), eventfd::create().unwrap());
    let tag = wait_for(&mut table, file.number(), ONCE, 1);
    assert_eq!(wait_for(&mut table, file.number(), ONCE, 2), tag);
    assert_ne!(wait_for(&mut table, file.number(), ALWAYS, 3), tag);
    assert_eq!(table.armed(), 3);
    assert_eq!(events(&table), []);
    eventfd::signal(file.number());
    assert!(events(&table).contains(&tag));
    assert_eq!(round(&mut table, tag), [1, 2]);
    assert_eq!(table.armed(), 1);
}

#[test]
fn a_request_that_waits_again_during_a_round_is_not_called_in_that_round() {
    let (mut table, file) = (table(), eventfd::create_readable().unwrap());
    let tag = wait_for(&mut table, file.number(), ALWAYS, 1);
    assert_eq!(events(&table), [tag]);
    assert!(table.begin_round(tag));
    let waiter = table.next_of_round(tag).unwrap();
    table.wait_again(tag, waiter.request, TimeSlice::Over);
    assert!(table.next_of_round(tag).is_none());
    table.end_round(tag);
    assert_eq!(table.armed(), 1);
    assert_eq!(round(&mut table, tag), [1]);
}

#[test]
fn a_number_that_means_another_file_by_now_gets_a_registration_of_its_own() {
    let (mut table, first) = (table(), eventfd::create().unwrap());
    let number = first.number();
    let earlier = wait_for(&mut table, number, ONCE, 1);
    let second = eventfd::create_readable().unwrap();
    SystemCall::new(__NR_dup3, [second.number() as u64, number as u64, 0, 0, 0]).run().unwrap();
    let later = wait_for(&mut table, number, ONCE, 2);
    assert_ne!(earlier, later);
    assert_eq!(events(&table), [later]);
    assert_eq!(round(&mut table, later), [2]);
    assert_eq!(table.armed(), 1);
}

#[test]
fn the_last_request_takes_the_duplicate_with_it_and_an_event_for_its_tag_is_ignored() {
    let (mut table, file) = (table(), eventfd::create().unwrap());
    let tag = wait_for(&mut table, file.number(), ONCE, 1);
    let duplicate = table.slot(tag).unwrap().number();
    assert!(descriptor::same_file(duplicate, file.number()) == Some(true));
    assert_eq!(table.extract(|request| request.sqe.user_data == 1).map(|request| request.sqe.user_data), Some(1));
    assert_ne!(descriptor::same_file(duplicate, file.number()), Some(true));
    assert!(round(&mut table, tag).is_empty());
    let again = wait_for(&mut table, file.number(), ONCE, 2);
    assert_ne!(again, tag);
    eventfd::signal(file.number());
    assert_eq!(events(&table), [again]);
}

#[test]
fn only_a_runnable_request_is_called_without_an_event() {
    let (mut table, file) = (table(), eventfd::create().unwrap());
    let tag = wait_for(&mut table, file.number(), ALWAYS, 1);
    assert!(table.begin_slice().is_none());
    let mut request = new_entry();
    request.sqe.user_data = 2;
    request.file.number = file.number();
    assert_eq!(table.attach(&mut request.file, ALWAYS, false).unwrap().tag, tag);
    table.push(tag, request, Purpose::Retry, TimeSlice::Runnable);
    assert_eq!(table.runnable_count(), 1);
    let (found, waiter) = table.begin_slice().unwrap();
    assert_eq!((found, waiter.request.sqe.user_data), (tag, 2));
    table.end_round(found);
    assert!(!table.has_runnable());
}
