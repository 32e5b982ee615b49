//! Tests the memory of rings: many rings share few mappings, and no two rings share a byte.
#![cfg(not(loom))]

use std::collections::BTreeSet;
use usring_ring::{Layout, Memory};
use usring_sys::UserAddress;
use usring_sys::mapping::{Mapping, PAGE};
use usring_sys::process_maps::Maps;
use usring_sys::user_memory::install_fault_handler;

const RINGS: usize = 256;
/// Maximum number of mappings in which the rings of all tests of this file lie together. The tests
/// run at the same time and share the mappings.
const MOST_MAPPINGS: usize = RINGS / 2;

fn layout() -> Layout {
    Layout::new(64, 128, 0)
}

/// Returns the number of mappings in which these addresses lie.
fn mappings(addresses: impl Iterator<Item = usize>) -> usize {
    let maps = Maps::open().unwrap();
    let start = |address| maps.area_of(address).unwrap().range.start;
    addresses.map(start).collect::<BTreeSet<usize>>().len()
}

/// Writes a different number to each part of each ring, and checks that the parts still hold their
/// numbers at the end.
fn assert_distinct(rings: &[Memory]) {
    let numbered = || rings.iter().flat_map(Memory::parts).zip(1..);
    let last_word = |length: usize| length - 4;
    for (part, _) in numbered() {
        assert_eq!(part.read::<u32>(last_word(part.length())), 0, "fresh memory is zero");
    }
    for (part, number) in numbered() {
        part.write::<u32>(last_word(part.length()), number);
    }
    // In a ring that usring has allocated, the second and the third part are one range. This range
    // holds the number of the third part, which was written last.
    let is_kept = |(part, number): (&usring_sys::shared::SharedMemory, u32)| {
        let found = part.read::<u32>(last_word(part.length()));
        found == number || (number % 3 == 2 && found == number + 1)
    };
    assert!(numbered().all(is_kept));
}

#[test]
fn many_rings_share_few_mappings() {
    let rings: Vec<Memory> = (0..RINGS).map(|_| Memory::allocate(layout()).unwrap()).collect();
    assert_distinct(&rings);
    let parts = rings.iter().flat_map(Memory::parts);
    assert!(mappings(parts.map(|part| part.address())) <= MOST_MAPPINGS);
}

#[test]
fn adjacent_rings_in_the_programs_memory_share_few_mappings() {
    install_fault_handler();
    let (sqes, queues) =
        (layout().sqes_length().next_multiple_of(PAGE), layout().rings_length().next_multiple_of(PAGE));
    let program = Mapping::shared(RINGS * (sqes + queues)).unwrap();
    let at = |offset: usize| UserAddress((program.address() + offset) as u64);
    let ring = |index: usize| {
        let start = index * (sqes + queues);
        Memory::of_program(at(start + sqes), at(start), layout()).unwrap()
    };
    let rings: Vec<Memory> = (0..RINGS).map(ring).collect();
    assert_distinct(&rings);
    let pages = (0..program.length()).step_by(PAGE).map(|offset| program.address() + offset);
    assert!(mappings(pages) <= MOST_MAPPINGS);
    let parts = rings.iter().flat_map(Memory::parts);
    assert!(mappings(parts.map(|part| part.address())) <= MOST_MAPPINGS);
}

#[test]
fn the_programs_duplicates_of_a_ring_are_one_mapping_in_either_order() {
    let rings: Vec<Memory> = (0..RINGS).map(|_| Memory::allocate(layout()).unwrap()).collect();
    let (sqes, queues) = (layout().sqes_length(), layout().rings_length());
    let duplicates = rings.iter().zip([false, true].into_iter().cycle()).flat_map(|(ring, queues_first)| {
        if queues_first {
            return [ring.rings().duplicate(queues, 0).unwrap(), ring.sqes().duplicate(sqes, queues).unwrap()];
        }
        let sqes = ring.sqes().duplicate(sqes, queues).unwrap();
        [sqes, ring.rings().duplicate(queues, 0).unwrap()]
    });
    // Duplicates with adjacent addresses share a mapping. If a mapping of another test lies between
    // two duplicates, they are separate mappings.
    assert!(mappings(duplicates.collect::<Vec<usize>>().into_iter()) <= RINGS + RINGS / 8);
}
