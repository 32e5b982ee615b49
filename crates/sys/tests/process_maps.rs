//! Checks that the two ways to read the list of mappings agree: the query of one mapping, and the
//! text.

use usring_sys::process_maps::{Area, Line, Maps};

/// Returns all mappings and their names, from the text of the list.
fn listed(maps: &Maps) -> Vec<(Area, Vec<u8>)> {
    let mut all = Vec::new();
    let mut lines = maps.lines();
    while let Some(line) = lines.next() {
        let line = Line::parse(line).expect("a line of the kernel's");
        all.push((line.area.clone(), line.name.to_vec()));
    }
    all
}

#[test]
fn a_mapping_looked_up_alone_agrees_with_its_line_in_the_list() {
    let maps = Maps::open().expect("/proc is mounted");
    let program = std::env::current_exe().unwrap().into_os_string().into_encoded_bytes();
    let all = listed(&maps);
    let mut of_program = 0;
    for (area, name) in all.iter().filter(|(_, name)| *name == program) {
        assert_eq!(maps.area_of(area.range.start), Some(area.clone()));
        assert_eq!(maps.area_of(area.range.end - 1), Some(area.clone()));
        assert_eq!(maps.name_of(area.range.start), Some(name.clone()));
        assert!(!area.is_shared && area.inode != 0);
        of_program += 1;
    }
    assert!(of_program >= 2, "code and data of {}", String::from_utf8_lossy(&program));
    assert_eq!(maps.area_of(0), None);
}

#[test]
fn are_same_holds_for_two_mappings_of_one_page_only() {
    let maps = Maps::open().expect("/proc is mounted");
    let memory = usring_sys::mapping::Mapping::shared(2 * 4096).unwrap();
    let again = memory.duplicate(0..2 * 4096, 2 * 4096, 0).unwrap();
    let first = memory.address();
    assert!(maps.are_same(first, again));
    assert!(maps.are_same(first + 4096 + 7, again + 4096 + 7));
    assert!(!maps.are_same(first, again + 4096));
    let other = usring_sys::mapping::Mapping::shared(4096).unwrap();
    assert!(!maps.are_same(first, other.address()));
    // For `are_same`, private memory without a file never equals any memory, not even itself.
    let private = [0u8; 64];
    assert!(!maps.are_same(private.as_ptr() as usize, private.as_ptr() as usize));
}
