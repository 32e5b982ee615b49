//! Entries change their type here: the `io-uring` crate's, which programs build
//! and read, and our own. Both are the kernel's layout, byte for byte.

use super::{cqueue, squeue};
use std::mem;
use usring_uapi::io_uring as abi;
use usring_uapi::{Cqe, Sqe};

/// The second 64 bytes of an SQE, the second 16 of a CQE.
pub(super) type SqeExtension = [u64; 8];
pub(super) type CqeExtension = [u64; 2];

pub(super) const fn is_wide_sqe<S: squeue::EntryMarker>() -> bool {
    S::BUILD_FLAGS & abi::IORING_SETUP_SQE128 != 0
}

pub(super) const fn is_wide_cqe<C: cqueue::EntryMarker>() -> bool {
    C::BUILD_FLAGS & abi::IORING_SETUP_CQE32 != 0
}

/// The SQE of an entry.
#[inline(always)]
pub(super) fn sqe<S: squeue::EntryMarker>(entry: &S) -> Sqe {
    const {
        assert!(mem::size_of::<S>() == if is_wide_sqe::<S>() { 128 } else { 64 });
        assert!(mem::align_of::<S>() >= mem::align_of::<Sqe>());
    }
    // SAFETY: 1. The trait is sealed: `S` is `Entry` or `Entry128`, which are
    // `repr(C)` and start with a `struct io_uring_sqe`. 2. So is `Sqe`, whose
    // size and offsets `uapi` asserts, and which any bytes make.
    unsafe { (&raw const *entry).cast::<Sqe>().read() }
}

/// The second half of a wide entry.
#[inline(always)]
pub(super) fn sqe_extension<S: squeue::EntryMarker>(entry: &S) -> SqeExtension {
    assert!(is_wide_sqe::<S>(), "only an entry of 128 bytes has a second half");
    // SAFETY: a wide entry is 128 bytes (asserted in `sqe`), `repr(C)`, and its
    // second 64 are plain bytes, aligned to 8 as the first are.
    unsafe { (&raw const *entry).cast::<SqeExtension>().add(1).read() }
}

/// An entry made of a CQE; the second half counts for wide ones only.
#[inline(always)]
pub(super) fn completion<C: cqueue::EntryMarker>(cqe: Cqe, extension: CqeExtension) -> C {
    #[repr(C)]
    struct Wide(Cqe, CqeExtension);
    const {
        assert!(mem::size_of::<C>() == if is_wide_cqe::<C>() { 32 } else { 16 });
        assert!(mem::size_of::<Wide>() == 32);
    }
    let wide = Wide(cqe, extension);
    // SAFETY: 1. The trait is sealed: `C` is `Entry` or `Entry32`, `repr(C)`
    // around a `struct io_uring_cqe` and, if wide, two 64-bit words: a prefix
    // of `Wide`. 2. Any bytes make one.
    unsafe { mem::transmute_copy::<Wide, C>(&wide) }
}
