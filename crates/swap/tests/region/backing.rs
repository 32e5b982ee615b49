//! Which backing stores a region accepts. A store must keep the data that is written to it, and
//! must be as large as the region. It must hold no data that usring did not write.

use crate::common::{MIB, PAGE, region, word};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use tempfile::TempDir;
use usring_swap::{Refusal, SwapRegion};
use usring_sys::Errno;

const SIZE: usize = 2 * MIB;
const LIMIT: usize = MIB;
/// Size of a store in bytes: the size of the region and of the header.
const ROOM: usize = SIZE + PAGE;

struct Store(TempDir);

impl Store {
    /// Creates a sparse file of zeroes, as truncate(1) does.
    fn new() -> Store {
        let store = Store(tempfile::tempdir().unwrap());
        File::create(store.path()).unwrap().set_len(ROOM as u64).unwrap();
        store
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("store")
    }

    fn write(&self, bytes: &[u8], offset: u64) {
        File::options().write(true).open(self.path()).unwrap().write_all_at(bytes, offset).unwrap();
    }

    fn text(&self) -> String {
        format!("file:path={}", self.path().display())
    }
}

fn build(backing: &str) -> Result<SwapRegion, Refusal> {
    region(SIZE, LIMIT, backing).build()
}

fn refused(backing: &str) -> Refusal {
    build(backing).err().unwrap_or_else(|| panic!("{backing} is accepted"))
}

/// Writes a number to each page of the region. Then checks that each page still holds its number.
fn use_all(region: &SwapRegion) {
    for offset in (0..SIZE).step_by(PAGE) {
        word(region, offset).store(offset as u64 + 1, Ordering::Relaxed);
    }
    for offset in (0..SIZE).step_by(PAGE) {
        assert_eq!(word(region, offset).load(Ordering::Relaxed), offset as u64 + 1, "{:?}", region.statistics());
    }
    assert!(region.statistics().evicted > 0 && region.statistics().over_limit == 0, "{:?}", region.statistics());
}

#[test]
fn a_store_that_keeps_no_data_is_refused_in_any_wrapper() {
    for backing in ["null:size=1G", "delay(null:size=1G,read=1us)", "error(delay(null:size=1G),eio=1%)"] {
        assert_eq!(refused(backing), Refusal::KeepsNothing, "{backing}");
    }
    assert!(Refusal::KeepsNothing.to_string().contains("keeps no data"));
    assert_eq!(Refusal::KeepsNothing.errno(), Errno::ENODATA);
}

#[test]
fn a_store_smaller_than_the_region_is_refused() {
    let found = SIZE as u64 - PAGE as u64;
    let backing = format!("ram:size={found}");
    let refusal = refused(&backing);
    assert_eq!(refusal, Refusal::TooSmall { needed: SIZE as u64, found });
    assert_eq!(refusal.errno(), Errno::ENOSPC);
    assert!(refused(&format!("delay({backing})")).to_string().contains("above the limit"));
    let store = Store::new();
    File::options().write(true).open(store.path()).unwrap().set_len(SIZE as u64).unwrap();
    assert_eq!(refused(&store.text()), Refusal::TooSmall { needed: ROOM as u64, found: SIZE as u64 });
}

#[test]
fn a_read_only_store_is_refused() {
    let store = Store::new();
    assert_eq!(refused(&format!("{},read-only=on", store.text())), Refusal::ReadOnly);
}

#[test]
fn a_file_of_zeroes_is_accepted_and_later_recognised_by_its_header() {
    let store = Store::new();
    // The test's file has zeroes and no holes, as if dd(1) had made it.
    store.write(&vec![0; ROOM], 0);
    use_all(&build(&store.text()).unwrap());
    let left = std::fs::read(store.path()).unwrap();
    assert!(left.starts_with(b"usring swap store"), "no header");
    assert!(left[PAGE..].iter().any(|byte| *byte != 0), "nothing was swapped");
    // A store may hold the pages of an earlier run. It is accepted, even if that run was killed.
    use_all(&build(&store.text()).unwrap());
}

#[test]
fn a_store_that_holds_data_is_refused_and_left_unchanged() {
    for offset in [0, 4096, MIB as u64 + 1, ROOM as u64 - 1] {
        let store = Store::new();
        store.write(b"x", offset);
        let before = std::fs::read(store.path()).unwrap();
        let refusal = refused(&store.text());
        assert_eq!(refusal, Refusal::HoldsData(offset));
        assert!(refusal.to_string().contains("overwrite=on"), "{refusal}");
        assert_eq!(refusal.errno(), Errno::EEXIST);
        assert!(std::fs::read(store.path()).unwrap() == before, "the refused store was changed");
        use_all(&build(&format!("{},overwrite=on", store.text())).unwrap());
        use_all(&build(&store.text()).unwrap());
    }
}

#[test]
fn a_refused_file_does_not_grow() {
    let store = Store::new();
    std::fs::write(store.path(), "notes").unwrap();
    assert_eq!(refused(&format!("{},size=4M", store.text())), Refusal::HoldsData(0));
    assert_eq!(std::fs::metadata(store.path()).unwrap().size(), 5);
    std::fs::write(store.path(), "").unwrap();
    assert!(build(&format!("{},size=4M", store.text())).is_err(), "an empty file has grown unasked");
    assert_eq!(std::fs::metadata(store.path()).unwrap().size(), 0);
    use_all(&build(&format!("{},size=4M,create=on", store.text())).unwrap());
}

#[test]
fn the_kernels_swap_space_is_refused() {
    let store = Store::new();
    store.write(b"SWAPSPACE2", 4086);
    assert_eq!(refused(&store.text()), Refusal::KernelSwap);
    assert!(Refusal::KernelSwap.to_string().contains("swapoff"));
    use_all(&build(&format!("{},overwrite=on", store.text())).unwrap());
}

#[test]
fn two_regions_never_share_a_store() {
    let store = Store::new();
    let first = build(&store.text()).unwrap();
    assert_eq!(refused(&store.text()), Refusal::InUse);
    let other_name = Path::new(&store.path()).with_extension("link");
    std::fs::hard_link(store.path(), &other_name).unwrap();
    assert_eq!(refused(&format!("file:path={}", other_name.display())), Refusal::InUse);
    use_all(&first);
    drop(first);
    use_all(&build(&store.text()).unwrap());
}
