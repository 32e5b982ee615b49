//! Tests a process that has as many mappings as the kernel allows. The test has a binary of its
//! own, because this limit would make other tests in its process fail.
#![cfg(not(loom))]

use usring_sys::Errno;
use usring_sys::mapping::PAGE;
use usring_sys::paged_memory::PagedMemory;

#[test]
fn madvise_without_free_mappings_fails_with_enomem_and_is_not_retried() {
    let window = PagedMemory::anonymous(64 * PAGE, None).unwrap();
    use_up_mappings();
    // The part lies in the middle of a mapping, which madvise(2) would have to split into three.
    assert_eq!(window.memory().set_inherited(8 * PAGE, PAGE, true), Err(Errno::ENOMEM));
    assert_eq!(window.memory().set_inherited(0, 64 * PAGE, true), Ok(()));
}

/// Uses up the kernel's limit of mappings. Changes the protection of every other page of a range of
/// reserved addresses, so that each page is a mapping of its own. The pages take no memory.
fn use_up_mappings() {
    const PAGES: usize = 1 << 24;
    let (length, flags) = (PAGES * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: mmap(2) without an address replaces no existing mapping. The memory is never
    // accessed.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    let refused = (0..PAGES).step_by(2).any(|page| {
        // SAFETY: the page lies in the mapping above, which is never accessed.
        unsafe { libc::mprotect(start.byte_add(page * PAGE), PAGE, libc::PROT_READ) != 0 }
    });
    assert!(refused, "the kernel allows more mappings than can be made here");
    // SAFETY: the page lies in the mapping above, which is never accessed. (This call uses up the
    // last free mapping.)
    unsafe { libc::mprotect(start.byte_add(length - PAGE), PAGE, libc::PROT_READ) };
}
