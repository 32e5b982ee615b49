//! A process that has as many mappings as the kernel allows: alone in this binary, as all others would fail.
#![cfg(not(loom))]

use usring_sys::Errno;
use usring_sys::mapping::PAGE;
use usring_sys::paged_memory::PagedMemory;

#[test]
fn advice_that_the_kernel_has_no_mapping_for_is_refused_and_not_given_for_ever() {
    let window = PagedMemory::anonymous(64 * PAGE, None).unwrap();
    for protection in [libc::PROT_READ, libc::PROT_NONE].iter().cycle() {
        // SAFETY: new mappings, wherever there is room.
        let page = unsafe {
            libc::mmap(std::ptr::null_mut(), PAGE, *protection, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
        };
        if page == libc::MAP_FAILED {
            break;
        }
    }
    // In the middle of a mapping: it would be three.
    assert_eq!(window.memory().hand_down(8 * PAGE, PAGE, true), Err(Errno::ENOMEM));
    assert_eq!(window.memory().hand_down(0, 64 * PAGE, true), Ok(()));
}
