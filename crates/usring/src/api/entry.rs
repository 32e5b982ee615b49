//! Converts queue entries between the `io-uring` crate's types, which programs use, and the
//! engine's types. Both have the kernel's layout, byte for byte.

use super::{cqueue, squeue};
use std::mem;
use usring_uapi::io_uring as abi;
use usring_uapi::{Cqe, Sqe};

/// The second half of a wide entry: the second 64 bytes of an SQE, or the second 16 bytes of a CQE.
pub(super) type SqeExtension = [u64; 8];
pub(super) type CqeExtension = [u64; 2];

pub(super) const fn is_wide_sqe<S: squeue::EntryMarker>() -> bool {
    S::BUILD_FLAGS & abi::IORING_SETUP_SQE128 != 0
}

pub(super) const fn is_wide_cqe<C: cqueue::EntryMarker>() -> bool {
    C::BUILD_FLAGS & abi::IORING_SETUP_CQE32 != 0
}

/// Returns an entry as the engine's SQE. For a wide entry that is the first half.
#[inline(always)]
pub(super) fn sqe<S: squeue::EntryMarker>(entry: &S) -> Sqe {
    const {
        assert!(mem::size_of::<S>() == if is_wide_sqe::<S>() { 128 } else { 64 });
        assert!(mem::align_of::<S>() >= mem::align_of::<Sqe>());
    }
    // SAFETY: 1. The trait is sealed: `S` is `Entry` or `Entry128`, which are `repr(C)` and start
    // with a `struct io_uring_sqe`. 2. `Sqe` has that layout, too: `uapi` asserts its size and
    // offsets. Any bytes are a valid `Sqe`.
    unsafe { (&raw const *entry).cast::<Sqe>().read() }
}

/// Returns the second half of a wide entry. Panics if the entry is not wide.
#[inline(always)]
pub(super) fn sqe_extension<S: squeue::EntryMarker>(entry: &S) -> SqeExtension {
    assert!(is_wide_sqe::<S>(), "only an entry of 128 bytes has a second half");
    // SAFETY: a wide entry is 128 bytes (asserted in `sqe`) and `repr(C)`. Its second 64 bytes are
    // plain bytes, aligned to 8 like the first.
    unsafe { (&raw const *entry).cast::<SqeExtension>().add(1).read() }
}

/// Returns a CQE as an entry of type `C`. `extension` is used only if `C` is a wide entry.
#[inline(always)]
pub(super) fn completion<C: cqueue::EntryMarker>(cqe: Cqe, extension: CqeExtension) -> C {
    #[repr(C)]
    struct Wide(Cqe, CqeExtension);
    const {
        assert!(mem::size_of::<C>() == if is_wide_cqe::<C>() { 32 } else { 16 });
        assert!(mem::size_of::<Wide>() == 32);
    }
    let wide = Wide(cqe, extension);
    // SAFETY: 1. The trait is sealed: `C` is `Entry` or `Entry32`, `repr(C)` around a `struct
    // io_uring_cqe` and, if wide, two 64-bit words. So it is a prefix of `Wide`. 2. Any bytes are a
    // valid `C`.
    unsafe { mem::transmute_copy::<Wide, C>(&wide) }
}
