//! Swap regions whose backing is a vhost-user back end in another process.

use crate::MEGABYTE;
use crate::backend::Backend;
use usring::swap::SwapRegion;

const PAGE: usize = 4096;

#[test]
fn pages_of_a_swap_region_go_to_a_back_end_and_come_back() {
    let backend = Backend::start("raw", 16 * MEGABYTE, 4);
    for policy in ["classic", "interrupt"] {
        let text = format!("vhost-user:socket={},poll={policy}", backend.socket());
        let builder = SwapRegion::builder().size(8 << 20).limit(1 << 20).backing(&text).unwrap();
        let mut region = builder.build().unwrap();
        for (number, page) in region.as_mut_slice().chunks_mut(PAGE).enumerate() {
            page[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
        }
        for (number, page) in region.as_slice().chunks(PAGE).enumerate() {
            assert_eq!(page[..8], (number as u64 + 1).to_le_bytes(), "page {number}, {policy}");
        }
        let found = region.statistics();
        assert!(found.swap_ins + found.read_ahead > 1000 && found.over_limit == 0, "{found:?}");
    }
}

#[test]
fn a_region_without_a_back_end_names_the_missing_socket() {
    let error = SwapRegion::builder().backing("vhost-user:socket=/nowhere").err().unwrap();
    assert!(error.to_string().contains("/nowhere"), "{error}");
    // The region's evictor thread and its reader thread take the two queues. So no queue is left
    // for threads that fault.
    let backend = Backend::start("raw", 2 * MEGABYTE, 2);
    let text = format!("vhost-user:socket={}", backend.socket());
    let builder = SwapRegion::builder().size(1 << 20).limit(1 << 20).backing(&text).unwrap();
    assert_eq!(builder.build().err().unwrap().raw_os_error(), Some(libc::EBUSY));
}
