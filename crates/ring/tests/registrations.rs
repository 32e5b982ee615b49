//! Tests of the registrations of a ring that two processes use. Each process has its own
//! [`Registrations`]. Only one process at a time uses the registrations, as under the ring's lock.
#![cfg(not(loom))]

use usring_ring::{Layout, Memory, Origin, ProvidedBuffer, Registrations, SharedBuffer, SharedBufferRing, SharedGroup};

/// How many groups, provided buffers, and slots of the buffer table a ring's registrations can
/// hold.
const GROUPS: u16 = 64;
const PROVIDED: usize = 1024;
const TABLE: usize = 1024;

fn views() -> (Registrations, Registrations) {
    let memory = Memory::allocate(Layout::new(4, 8, 0)).unwrap();
    (memory.registrations().unwrap(), memory.registrations().unwrap())
}

fn provided(ids: std::ops::Range<u16>) -> impl Iterator<Item = ProvidedBuffer> {
    ids.map(|id| ProvidedBuffer { id, address: 16 * u64::from(id), length: 16 })
}

fn take_all(registrations: &Registrations, group: u16) -> Vec<u16> {
    core::iter::from_fn(|| registrations.take_provided(group)).map(|buffer| buffer.id).collect()
}

#[test]
fn provided_buffers_of_a_group_keep_their_order() {
    let (first, second) = views();
    first.provide(3, provided(0..3));
    second.provide(4, provided(10..12));
    second.provide(3, provided(3..5));
    assert_eq!(first.count_provided(3), 5);
    let taken = second.take_provided(3).unwrap();
    assert_eq!(taken, ProvidedBuffer { id: 0, address: 0, length: 16 });
    assert_eq!(take_all(&first, 3), [1, 2, 3, 4]);
    second.give_back_provided(3, taken);
    assert_eq!(first.first_provided(3), Some(taken));
    assert_eq!(take_all(&second, 4), [10, 11]);
}

#[test]
fn a_buffer_that_is_given_back_comes_before_the_others() {
    let (first, second) = views();
    first.provide(0, provided(0..4));
    let taken = [first.take_provided(0).unwrap(), first.take_provided(0).unwrap()];
    second.give_back_provided(0, taken[1]);
    second.give_back_provided(0, taken[0]);
    assert_eq!(take_all(&first, 0), [0, 1, 2, 3]);
}

#[test]
fn a_new_buffer_comes_last_although_its_place_is_before_the_others() {
    let (first, second) = views();
    first.provide(0, provided(0..2));
    assert_eq!(second.take_provided(0).unwrap().id, 0);
    second.provide(0, provided(2..3));
    assert_eq!(take_all(&first, 0), [1, 2]);
}

/// A buffer that is given back to an empty group takes the position before the next new position.
/// On a new ring the next new position is 0. The position before it is the largest number, so the
/// order of positions has to wrap around.
#[test]
fn a_buffer_that_is_given_back_to_an_empty_group_comes_before_later_ones() {
    let (first, second) = views();
    let [returned, later] = [1, 2].map(|id| ProvidedBuffer { id, address: 0, length: 16 });
    first.give_back_provided(0, returned);
    second.provide(0, [later]);
    assert_eq!(take_all(&first, 0), [1, 2]);
    first.provide(7, provided(0..1));
    first.give_back_provided(0, returned);
    second.clear_provided(7);
    second.provide(0, [later]);
    assert_eq!(take_all(&first, 0), [1, 2], "the later one has the earlier place");
}

#[test]
fn places_of_buffers_are_used_again() {
    let (first, second) = views();
    for round in 0..3 {
        first.provide(1, provided(0..PROVIDED as u16));
        assert_eq!((second.room_for_provided(), second.count_provided(1)), (0, PROVIDED), "round {round}");
        assert_eq!(take_all(&second, 1).len(), PROVIDED);
    }
    first.provide(1, provided(0..9));
    first.clear_provided(1);
    assert_eq!(second.room_for_provided(), PROVIDED);
}

fn ring_at(address: u64) -> SharedGroup {
    let origin = Origin { owner: 2, number: 7 };
    SharedGroup::Ring(SharedBufferRing { origin, address, entries: 8, is_incremental: true })
}

#[test]
fn all_processes_see_a_group_and_its_head() {
    let (first, second) = views();
    let slot = first.enter_group(u16::MAX, ring_at(4096), 5).unwrap();
    let (found, group) = second.find_group(u16::MAX).unwrap();
    assert_eq!((found, group, second.head(found)), (slot, ring_at(4096), 5));
    second.set_head(found, u16::MAX);
    assert_eq!(first.head(slot), u16::MAX);
    first.enter_group(0, SharedGroup::Classic, 0).unwrap();
    assert_eq!(second.groups().map(|(_, id, _)| id).collect::<Vec<_>>(), [u16::MAX, 0]);
    second.remove_group(found);
    assert_eq!(first.find_group(u16::MAX), None);
}

#[test]
fn a_group_replaces_the_one_with_its_id_although_there_is_no_other_room() {
    let (first, second) = views();
    for id in 0..GROUPS {
        first.enter_group(id, SharedGroup::Classic, 0).unwrap();
    }
    assert_eq!(second.enter_group(GROUPS, SharedGroup::Classic, 0), None);
    assert!(second.enter_group(9, ring_at(64), 0).is_some());
    assert_eq!(first.find_group(9).unwrap().1, ring_at(64));
    assert_eq!(first.groups().count(), usize::from(GROUPS));
}

fn buffer(address: u64) -> Option<SharedBuffer> {
    Some(SharedBuffer { origin: Origin { owner: 3, number: 1 }, address, length: 9, tag: address + 1 })
}

#[test]
fn all_processes_see_the_table_of_buffers() {
    let (first, second) = views();
    assert_eq!(second.buffers(), None);
    let table = vec![buffer(1), None, buffer(3)];
    first.set_buffers(Some(3), table.iter().copied());
    assert_eq!(second.buffers(), Some(table));
    second.set_buffers(Some(3), [None, buffer(2), None].into_iter());
    assert_eq!(first.buffers(), Some(vec![None, buffer(2), None]), "no slot keeps its earlier buffer");
    second.set_buffers(Some(1), [buffer(8)].into_iter());
    assert_eq!(first.buffers(), Some(vec![buffer(8)]));
    first.set_buffers(None, [].into_iter());
    assert_eq!(second.buffers(), None);
}

#[test]
fn a_table_of_buffers_that_is_too_large_shows_no_slot() {
    let (first, second) = views();
    first.set_buffers(Some(TABLE), (0..TABLE as u64).map(buffer));
    assert_eq!(second.buffers().unwrap().len(), TABLE);
    first.set_buffers(Some(TABLE + 1), (0..TABLE as u64 + 1).map(buffer));
    assert_eq!(second.buffers(), Some(vec![]));
}

#[test]
fn changes_and_registrations_are_counted() {
    let (first, second) = views();
    assert_eq!(second.generation(), 0);
    assert_eq!((first.count_change(), second.count_change()), (1, 2));
    assert_eq!((first.new_number(), second.new_number()), (1, 2));
    assert_eq!(first.generation(), 2);
}

#[test]
fn all_processes_see_the_restrictions() {
    let (first, second) = views();
    assert_eq!(second.restrictions(), (0, [0; 6]));
    first.set_restrictions(2, [1, 2, 3, 4, 5, 6]);
    assert_eq!(second.restrictions(), (2, [1, 2, 3, 4, 5, 6]));
}
