//! fork(2) of a process whose memory is swapped. The child has a copy of that, as of all
//! other memory; `usring_swap::heritage` says how.
//!
//! Here the call itself is made, with all signals closed: between the moment at which
//! everything is at rest and the one at which the parent goes on, or the child knows of
//! what is not there, no code of the program may run, nor libc's. So the filter traps the
//! call, and no handler of libc's (pthread_atfork) would do. A process that is made by other
//! calls (clone3 without CLONE_VM, clone with a stack of its own) does not have the memory: a touch ends it.

use crate::doors::door::{Call, Outcome};
use crate::message;
use crate::program::process;
use crate::swapped::managed;
use alloc::boxed::Box;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use usring_swap::heritage::{Held, Heritage};
use usring_swap::mappings::Mappings;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::syscall::{self, PASS_MARK, syscall6};
use usring_sys::{Errno, descriptor, kept_memory, thread};
use usring_uapi::general as linux;

/// What this process has inherited and not used yet.
static HERITAGE: AtomicPtr<Heritage> = AtomicPtr::new(core::ptr::null_mut());
/// Held while that is taken up.
static TAKING_UP: PerProcess<Mutex<()>> = PerProcess::new();
/// Held while a child is forked.
static FORKING: PerProcess<Mutex<()>> = PerProcess::new();
/// A child that is forked now inherits.
static HANDS_DOWN: AtomicBool = AtomicBool::new(false);
/// Which refusals have been told of, a bit each.
static TOLD: AtomicU32 = AtomicU32::new(0);

/// Whether a child that has just been forked will inherit.
pub fn hands_down() -> bool {
    HANDS_DOWN.load(Ordering::Relaxed)
}

/// Whether there is memory of which nothing was used yet.
pub fn is_heir() -> bool {
    !HERITAGE.load(Ordering::Relaxed).is_null()
}

/// Answers fork(2), and clone(2) that is no more than that. `None`: the kernel does.
pub fn fork(call: &Call) -> Option<Outcome> {
    if call.number as u32 == linux::__NR_clone && !is_fork(call.arguments) {
        return None;
    }
    let mappings = managed::mappings()?;
    // A vfork child borrows the memory and does not have its parent's threads.
    if !process::is_own() {
        return None;
    }
    let _one_at_a_time = FORKING.get_or_make(|| Mutex::new(())).lock();
    let _closed = thread::close_signals();
    let held = match mappings.hold() {
        Ok(held) => held,
        Err(error) => {
            refuse(error);
            return None;
        }
    };
    if !descriptor::hand_down(held.descriptors()) {
        return None;
    }
    HANDS_DOWN.store(true, Ordering::Relaxed);
    let [first, second, third, fourth, fifth, _] = call.arguments;
    // SAFETY: the program's own arguments; the child has a copy of this stack and goes on in it.
    let answer = unsafe { syscall6(call.number as u32, [first, second, third, fourth, fifth, PASS_MARK]) };
    if answer == 0 {
        begin(held);
    } else {
        drop(held);
    }
    HANDS_DOWN.store(false, Ordering::Relaxed);
    descriptor::hand_down(&[]);
    Some(syscall::check(answer).into())
}

/// Whether clone(2) makes a process that has nothing together with its parent, goes on where that stands,
/// and is not waited for.
fn is_fork([flags, stack, ..]: [u64; 6]) -> bool {
    flags & u64::from(linux::CLONE_VM | linux::CLONE_FILES | linux::CLONE_VFORK) == 0 && stack == 0
}

/// The child's first steps.
fn begin(held: Held) {
    process::current();
    match held.inherit() {
        Ok(heritage) => HERITAGE.store(Box::into_raw(Box::new(heritage)), Ordering::Release),
        Err(error) => {
            message::say(format_args!("swap: a forked child cannot have its parent's swapped memory ({error})"));
            managed::disown();
        }
    }
}

/// Says so, once for each reason. (What this mechanism or this backing store never gives is told of
/// when a child touches it: most execute another program.)
fn refuse(error: Errno) {
    let (bit, why) = match error {
        Errno::EOPNOTSUPP => return,
        Errno::EAGAIN => (1, "too many processes have copies already"),
        _ => (2, "the system does not give what that needs"),
    };
    if TOLD.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        message::say(format_args!(
            "swap: forked children of process {} do not have its swapped memory, and die of a touch: {why} ({error})",
            process::id()
        ));
    }
}

/// Takes up what was inherited, if that has not been done; `statistics` is the file to count in.
pub fn take_up(statistics: Option<&CStr>) -> Option<&'static Mappings> {
    if !is_heir() {
        return managed::known();
    }
    let _one_at_a_time = TAKING_UP.get_or_make(|| Mutex::new(())).lock();
    // What is done here is done on no swapped memory.
    let _exempt = kept_memory::exempt();
    let heritage = HERITAGE.load(Ordering::Acquire);
    if !heritage.is_null() {
        // SAFETY: `begin` gave it up, and only the holder of the lock takes it, once: what is
        // stored below is seen by the next.
        let heritage = unsafe { Box::from_raw(heritage) };
        match heritage.adopt(statistics) {
            Ok(mappings) => managed::publish(mappings),
            Err(error) => message::say(format_args!(
                "swap: process {} cannot have the memory that it inherited ({error}): it dies of a touch",
                process::id()
            )),
        }
        HERITAGE.store(core::ptr::null_mut(), Ordering::Release);
    }
    managed::known()
}
