//! Helpers for the tests of regions.

use crate::skipped::skip;
use std::ffi::c_void;
use std::process::{Command, Output};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Once};
use usring_device::{Device, OwnSupply, PolicyWord};
use usring_swap::{Builder, Mechanism, SwapRegion, probe};
use usring_sys::{Errno, thread};

pub const MIB: usize = 1 << 20;
pub const PAGE: usize = 4096;

struct Argument(*mut c_void);

// SAFETY: only the new thread uses the argument, which is moved to that thread.
unsafe impl Send for Argument {}

impl Argument {
    fn into_inner(self) -> *mut c_void {
        self.0
    }
}

fn spawn(entry: extern "C" fn(*mut c_void), argument: *mut c_void) -> Result<(), Errno> {
    let argument = Argument(argument);
    std::thread::spawn(move || entry(argument.into_inner()));
    Ok(())
}

/// Makes usring start its threads through the standard library. Only the first call has an effect.
pub fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| thread::set_spawner(spawn));
}

/// Returns a builder of a region. The SPEC `backing` describes the region's device.
pub fn region(size: usize, limit: usize, backing: &str) -> Builder {
    prepare();
    SwapRegion::builder().size(size).limit(limit).backing(backing).expect("a SPEC")
}

/// Returns the mechanisms that work on this system. Panics if `mprotect` does not work, because it
/// needs no privilege.
pub fn mechanisms() -> Vec<Mechanism> {
    prepare();
    usring_sys::user_memory::install_fault_handler();
    let (works, others): (Vec<_>, Vec<_>) = Mechanism::ALL.into_iter().partition(|kind| probe(*kind).is_ok());
    for other in others {
        skip(&format!("the mechanism {other} does not work here"));
    }
    assert!(works.contains(&Mechanism::Protect), "{works:?}");
    works
}

/// Returns the factor by which a test multiplies a region's size and limit. It is above 1 for
/// `mprotect`, which has larger units, and therefore a higher minimum limit.
pub fn factor(mechanism: Mechanism) -> usize {
    if mechanism == Mechanism::Protect { 16 } else { 1 }
}

/// Returns the word at a byte offset of a region.
pub fn word(region: &SwapRegion, offset: usize) -> &AtomicU64 {
    assert!(offset + 8 <= region.size() && offset.is_multiple_of(8));
    // SAFETY: the 8 bytes are aligned, and lie within the region, which is mapped while it is
    // borrowed. Tests that share a region access it only by atomic operations.
    unsafe { &*region.as_ptr().add(offset).cast() }
}

/// Opens the device that the SPEC `text` describes. Returns the device and its polling policy.
pub fn device(text: &str) -> (Arc<Device>, PolicyWord) {
    let spec = usring_device::spec::parse(text).expect("a SPEC");
    let policy = PolicyWord::leaked(spec.policy());
    let driver = spec.open(Box::new(OwnSupply)).expect("the device opens");
    prepare();
    (Arc::new(Device::new(driver, policy, true)), policy)
}

/// Runs a test of this binary in a new process, where [`is_child`] returns true.
pub fn run_child(test: &str, prepare: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    prepare(&mut command);
    command.output().expect("a child")
}

pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

const CHILD: &str = "USRING_SWAP_TEST_CHILD";
