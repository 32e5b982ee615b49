//! Tests ranges of memory whose page faults a server serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use usring_sys::mapping::PAGE;
use usring_sys::page_fault::{Cause, Fault, FaultServer, Served, register};
use usring_sys::paged_memory::PagedMemory;
use usring_sys::{Errno, UserAddress, user_memory};

/// A server that counts its faults and refuses them.
#[derive(Default)]
struct Server(AtomicU64);

impl FaultServer for Server {
    fn serve(&self, fault: Fault) -> Served {
        assert_eq!(fault.cause, Cause::Forbidden);
        self.0.fetch_add(1, Ordering::Relaxed);
        Served::Refused
    }
}

/// The table has two ranges with equal addresses. The newer range gets the faults at these
/// addresses. (This happens in a forked child, where the older range is one of the parent's.)
#[test]
fn the_newer_of_two_ranges_at_one_address_serves_its_faults() {
    user_memory::install_fault_handler();
    let window = PagedMemory::aliased(4 * PAGE, None).unwrap();
    window.memory().set_permitted(0, 4 * PAGE, false).unwrap();
    let start = window.memory().address();
    let touch = |page: usize| {
        let answer = user_memory::read::<u64>(UserAddress((start + page * PAGE) as u64));
        assert_eq!(answer, Err(Errno::EFAULT));
    };
    for newer_goes_first in [false, true] {
        let servers = [Arc::new(Server::default()), Arc::new(Server::default())];
        let counts = || [0, 1].map(|server: usize| servers[server].0.load(Ordering::Relaxed));
        let old = register(start..start + 4 * PAGE, servers[0].clone()).unwrap();
        touch(1);
        assert_eq!(counts(), [1, 0]);
        let new = register(start + PAGE..start + 2 * PAGE, servers[1].clone()).unwrap();
        touch(1);
        assert_eq!(counts(), [1, 1]);
        if newer_goes_first {
            drop(new);
            touch(1);
            drop(old);
        } else {
            drop(old);
            touch(1);
            drop(new);
        }
        touch(1);
        assert_eq!(counts(), [1, if newer_goes_first { 1 } else { 2 }]);
        assert!(servers.iter().all(|server| Arc::strong_count(server) == 1));
    }
}
