//! System calls on swapped memory: usring pins their memory, or passes the kernel a copy.

use std::os::fd::AsRawFd;
use usring_call_memory::{PinnedCall, is_in_window, may_name_memory};
use usring_swap::mappings::{Mappings, Options};
use usring_swap::text;
use usring_sys::SystemCall;
use usring_uapi::general as linux;

const MIB: usize = 1 << 20;

/// Makes the region of swapped memory. A process can have only one.
fn region(folder: &tempfile::TempDir) -> &'static Mappings {
    let path = folder.path().join("store");
    std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let text = text::parse(&format!("file:path={},limit=8M", path.display())).unwrap();
    let options = Options { text: &text, statistics: None, socket: None };
    Box::leak(Box::new(Mappings::open(&options).unwrap_or_else(|refusal| panic!("{}", refusal.message(&text)))))
}

fn pinned_pages(mappings: &Mappings) -> u64 {
    mappings.region().statistics().pinned
}

#[test]
fn a_call_that_names_no_swapped_memory_is_left_alone_and_makes_no_region() {
    let time = [0u64, 1];
    let arguments = [time.as_ptr() as u64, 0, 0, 0, 0];
    let mut call = SystemCall::new(linux::__NR_nanosleep, arguments);
    assert!(!may_name_memory(&call));
    let pinned = PinnedCall::new(&mut call, || unreachable!("no region is needed"));
    assert!(pinned.unwrap().is_none());
    assert_eq!(call.arguments[..5], arguments);
}

#[test]
fn the_memory_of_a_call_is_pinned_and_much_data_for_a_pipe_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let mappings = region(&folder);
    let start = mappings.change().map(4 * MIB).unwrap() as u64;
    assert!(is_in_window(start));
    let before = pinned_pages(mappings);

    // A structure that a call names is pinned in place until the call is over.
    let mut call = SystemCall::new(linux::__NR_nanosleep, [start, 0, 0, 0, 0]);
    let pinned = PinnedCall::new(&mut call, || Some(mappings)).unwrap();
    assert_eq!(call.arguments[0], start);
    assert!(pinned_pages(mappings) > before);
    drop(pinned);
    assert_eq!(pinned_pages(mappings), before);

    // A write to a pipe may wait for ever, so the kernel gets a copy of the data and nothing is
    // pinned.
    let (_reader, writer) = std::io::pipe().unwrap();
    let arguments = [writer.as_raw_fd() as u64, start, MIB as u64, 0, 0];
    let mut call = SystemCall::new(linux::__NR_write, arguments);
    let copied = PinnedCall::new(&mut call, || Some(mappings)).unwrap();
    assert!(copied.is_some() && !is_in_window(call.arguments[1]));
    assert_eq!(pinned_pages(mappings), before);
}
