//! Tests of sizes and offsets. They are compared with fixed values of the kernel's layout, and with
//! the answers of this machine's kernel.
#![cfg(not(loom))]

#[path = "../../../xtask/src/skipped.rs"]
mod skipped;

use skipped::skip;
use usring_ring::Layout;
use usring_ring::layout::{COMPLETION_ENTRIES_MAX, ENTRIES_MAX, entries};
use usring_sys::{Errno, SystemCall, descriptor};
use usring_uapi::general::__NR_io_uring_setup;
use usring_uapi::io_uring::{
    IORING_SETUP_CLAMP, IORING_SETUP_CQE32, IORING_SETUP_CQSIZE, IORING_SETUP_NO_SQARRAY, IORING_SETUP_SQE128,
    io_cqring_offsets, io_sqring_offsets, io_uring_params,
};

fn words(sq: io_sqring_offsets, cq: io_cqring_offsets) -> [u32; 14] {
    [
        sq.head,
        sq.tail,
        sq.ring_mask,
        sq.ring_entries,
        sq.flags,
        sq.dropped,
        sq.array,
        cq.head,
        cq.tail,
        cq.ring_mask,
        cq.ring_entries,
        cq.overflow,
        cq.cqes,
        cq.flags,
    ]
}

#[test]
fn offsets_are_those_that_programs_were_built_for() {
    let layout = Layout::new(8, 16, 0);
    let expected = [0, 4, 16, 24, 36, 32, 320, 8, 12, 20, 28, 44, 64, 40];
    assert_eq!(words(layout.sq_offsets(0), layout.cq_offsets(0)), expected);
    assert_eq!((layout.rings_length(), layout.sqes_length()), (320 + 32, 512));
}

#[test]
fn flags_move_the_index_array_and_widen_the_entries() {
    let array = |cq_entries, flags| Layout::new(1, cq_entries, flags).sq_offsets(0).array;
    assert_eq!((array(2, 0), array(128, 0)), (128, 2112), "the array begins at a cache line behind the CQEs");
    assert_eq!((array(2, IORING_SETUP_CQE32), array(32, IORING_SETUP_CQE32)), (192, 1152));
    let bare = Layout::new(8, 16, IORING_SETUP_NO_SQARRAY);
    assert_eq!((bare.sq_offsets(0).array, bare.rings_length()), (0, 320));
    let wide = Layout::new(8, 16, IORING_SETUP_SQE128 | IORING_SETUP_CQE32);
    assert!(wide.has_wide_sqes() && wide.has_wide_cqes());
    assert_eq!((wide.sqes_length(), wide.rings_length()), (1024, 640 + 32));
}

#[test]
fn an_address_from_the_program_is_returned_in_the_offsets() {
    let layout = Layout::new(8, 16, 0);
    assert_eq!((layout.sq_offsets(5).user_addr, layout.cq_offsets(6).user_addr), (5, 6));
}

#[test]
fn entries_are_rounded_up_bounded_and_clamped() {
    assert_eq!(entries(1, 0, 0), Ok((1, 2)));
    assert_eq!(entries(100, 0, 0), Ok((128, 256)));
    assert_eq!(entries(ENTRIES_MAX, 0, 0), Ok((ENTRIES_MAX, COMPLETION_ENTRIES_MAX)));
    assert_eq!(entries(0, 0, 0), Err(Errno::EINVAL));
    assert_eq!(entries(0, 0, IORING_SETUP_CLAMP), Err(Errno::EINVAL));
    for too_many in [ENTRIES_MAX + 1, 1 << 31, u32::MAX] {
        assert_eq!(entries(too_many, 0, 0), Err(Errno::EINVAL));
        assert_eq!(entries(too_many, 0, IORING_SETUP_CLAMP), Ok((ENTRIES_MAX, COMPLETION_ENTRIES_MAX)));
    }
}

#[test]
fn a_cq_of_its_own_size_is_at_least_as_big_as_the_sq() {
    const OWN: u32 = IORING_SETUP_CQSIZE;
    assert_eq!(entries(4, 100, OWN), Ok((4, 128)));
    assert_eq!(entries(4, 4, OWN), Ok((4, 4)));
    assert_eq!(entries(4, 3, OWN), Ok((4, 4)), "the CQ size is rounded up before the comparison");
    assert_eq!(entries(4, 2, OWN), Err(Errno::EINVAL));
    assert_eq!(entries(4, 0, OWN), Err(Errno::EINVAL));
    assert_eq!(entries(4, COMPLETION_ENTRIES_MAX + 1, OWN), Err(Errno::EINVAL));
    assert_eq!(entries(4, u32::MAX, OWN | IORING_SETUP_CLAMP), Ok((4, COMPLETION_ENTRIES_MAX)));
}

/// Calls io_uring_setup(2) of this machine's kernel.
fn ask_the_kernel(requested: u32, cq_requested: u32, flags: u32) -> Result<io_uring_params, Errno> {
    // SAFETY: `io_uring_params` consists of integers only, so all-zero bytes are a valid value.
    let mut params: io_uring_params = unsafe { std::mem::zeroed() };
    params.flags = flags;
    params.cq_entries = cq_requested;
    let arguments = [u64::from(requested), &raw mut params as u64, 0, 0, 0];
    let number = SystemCall::new(__NR_io_uring_setup, arguments).run()?;
    drop(descriptor::OwnedDescriptor::from_raw(number as i32));
    Ok(params)
}

#[test]
fn the_layout_matches_this_machines_kernel() {
    if ask_the_kernel(1, 0, 0).is_err() {
        return skip("this machine's kernel refuses io_uring_setup");
    }
    const CLAMP: u32 = IORING_SETUP_CLAMP;
    const OWN: u32 = IORING_SETUP_CQSIZE;
    let kinds = [0, IORING_SETUP_SQE128, IORING_SETUP_CQE32, IORING_SETUP_NO_SQARRAY, CLAMP, OWN, OWN | CLAMP];
    for flags in kinds {
        for requested in [0, 1, 3, 8, 100, 1024, 40_000] {
            for cq_requested in [0, 2, 9, 2048, 70_000] {
                let theirs = ask_the_kernel(requested, cq_requested, flags);
                let case = format!("{requested} and {cq_requested} entries, flags {flags:#x}");
                // These flags are newer than the others. If this machine's kernel is older and
                // refuses them, the refusal says nothing about this crate.
                let is_new = flags & (IORING_SETUP_SQE128 | IORING_SETUP_CQE32 | IORING_SETUP_NO_SQARRAY) != 0;
                let ours = entries(requested, cq_requested, flags);
                match (ours, theirs) {
                    (Ok((sq_entries, cq_entries)), Ok(theirs)) => {
                        assert_eq!((sq_entries, cq_entries), (theirs.sq_entries, theirs.cq_entries), "{case}");
                        let layout = Layout::new(sq_entries, cq_entries, flags);
                        let ours = words(layout.sq_offsets(0), layout.cq_offsets(0));
                        assert_eq!(ours, words(theirs.sq_off, theirs.cq_off), "{case}");
                    }
                    (Err(ours), Err(theirs)) => assert_eq!(ours, theirs, "{case}"),
                    (Ok(_), Err(Errno::EINVAL)) if is_new => {}
                    (Ok(_), Err(Errno::ENOMEM | Errno::EPERM)) => {}
                    (ours, theirs) => panic!("{case}: {ours:?} and {:?}", theirs.err()),
                }
            }
        }
    }
}
