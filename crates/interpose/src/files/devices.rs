//! The descriptor numbers of the run's devices.
//!
//! open(2) of a device returns a number in the reserved range. By that range, the filter recognises
//! calls that close or duplicate the number. A device may also have a lower number: by dup2(2), by
//! inheritance, or from another process.
//!
//! When the program first uses a number, the inode of the number's file shows whether the file is a
//! device. The table remembers the result until the number is closed or replaced by a duplicate.
//! usring does not see all calls that open and close numbers below the reserved range. So it checks
//! such numbers at each use. A dropped entry does no harm: the next use examines the file again.

use crate::call::{Call, Outcome};
use crate::files::numbers::{self, NUMBERS};
use crate::filter;
use crate::process::{self, environment};
use crate::runtime::message;
use alloc::sync::Arc;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use usring_engine::{OpenDevice, devices};
use usring_sys::descriptor::{self, OwnedDescriptor, RESERVED_BASE};
use usring_sys::{Errno, hazard, width};

/// Table entry of a number whose file was not examined since the number was last closed.
const UNKNOWN: usize = 0;
/// Table entry of a number that refers to an ordinary file and not to a device.
const NO_DEVICE: usize = 1;

/// Each table entry is [`UNKNOWN`], [`NO_DEVICE`], or an `Arc<OpenDevice>` from `into_raw`.
static TABLE: [AtomicUsize; NUMBERS] = [const { AtomicUsize::new(UNKNOWN) }; NUMBERS];

/// The highest descriptor number that ever had an entry in the table of devices, plus 1.
static USED_END: AtomicU32 = AtomicU32::new(0);

/// Number of table entries dropped so far. It changes under the lock `descriptors`. While one
/// thread closes a number, another thread may look the number up and find its old file. The second
/// thread records the file only if this count has not changed since the look-up began.
static FORGOTTEN: AtomicU64 = AtomicU64::new(0);

/// Whether the run has devices.
pub static RUN_HAS_DEVICES: AtomicBool = AtomicBool::new(false);

/// Returns whether the run has devices.
#[inline]
pub fn exist() -> bool {
    RUN_HAS_DEVICES.load(Ordering::Relaxed)
}

/// Connects a starting program to the run's devices, if the run has any.
///
/// Errors: a message of one sentence.
pub fn connect() -> Result<(), &'static str> {
    let Some(socket) = environment::devices() else { return Ok(()) };
    devices::connect(socket).map_err(|error| {
        message::say(format_args!("cannot ask `usring run` for the devices of this run ({error})"));
        "the devices of this run cannot be reached; has `usring run` ended, or the user changed?"
    })?;
    hazard::prepare();
    RUN_HAS_DEVICES.store(true, Ordering::Relaxed);
    filter::check_symbols();
    if !traps() {
        filter::install_for_devices()
            .map_err(|_| "the kernel refuses the seccomp filter that traps calls on devices")?;
        if !traps() {
            return Err("calls on files do not reach usring although the kernel accepted the seccomp filter");
        }
    }
    Ok(())
}

/// First argument of the call that tests whether the filter for devices is installed. If it is
/// installed, the answer is [`PROBE_ANSWER`].
const PROBE_ARGUMENT: u64 = 0x7573_6465;
const PROBE_ANSWER: u64 = 0x7573_0001;

/// Returns whether the filter for devices is installed and its traps reach usring.
fn traps() -> bool {
    // SAFETY: the kernel has no such call, and usring's answer to it accesses no memory.
    unsafe { usring_sys::syscall::syscall6(filter::PROBE, [PROBE_ARGUMENT, 0, 0, 0, 0, 0]) == PROBE_ANSWER }
}

/// Answers the test call of [`traps`].
pub fn answer_probe(call: &mut Call) -> Outcome {
    if call.arguments[0] == PROBE_ARGUMENT { Ok::<u64, Errno>(PROBE_ANSWER).into() } else { call.pass() }
}

fn entry(number: i32) -> Option<&'static AtomicUsize> {
    TABLE.get(width::index(number))
}

/// Returns the device that `number` refers to, for the engine. `None`: the number does not refer to
/// a device.
pub fn get(number: i32) -> Option<Arc<OpenDevice>> {
    with(number, Arc::clone)
}

/// Runs `work` on the device that `number` refers to. `None`: the number does not refer to a
/// device. If the number is in the reserved range and is known to be no device, the call costs one
/// read of the table.
#[inline]
pub fn with<T>(number: i32, work: impl FnOnce(&Arc<OpenDevice>) -> T) -> Option<T> {
    let entry = entry(number)?;
    match entry.load(Ordering::Acquire) {
        NO_DEVICE if number >= RESERVED_BASE => None,
        NO_DEVICE | UNKNOWN => with_recognised(number, work),
        _ => {
            let answer = with_known(entry, |file| is_still(file, number).then(|| work(file)));
            if let Some(None) = answer {
                forget(number);
            }
            answer.flatten()
        }
    }
}

#[inline(never)]
fn with_recognised<T>(number: i32, work: impl FnOnce(&Arc<OpenDevice>) -> T) -> Option<T> {
    if !exist() {
        return None;
    }
    let forgotten = FORGOTTEN.load(Ordering::Acquire);
    let device = devices::recognise(number);
    // A vfork child has descriptors of its own, but this table is its parent's. So a vfork child
    // records nothing in the table.
    if process::is_own() {
        remember(number, device.as_ref(), forgotten);
    }
    device.as_ref().map(work)
}

#[inline(never)]
fn with_known<T>(entry: &'static AtomicUsize, work: impl FnOnce(&Arc<OpenDevice>) -> T) -> Option<T> {
    if let Some((object, held)) = hazard::protect(|| entry.load(Ordering::Acquire)) {
        let answer = (object > NO_DEVICE).then(|| {
            // SAFETY: the pointer comes from `Arc::into_raw`. If a thread removes it from the
            // table, it does not drop the reference while `held` lives.
            let file = ManuallyDrop::new(unsafe { Arc::from_raw(object as *const OpenDevice) });
            work(&file)
        });
        // The engine may call this function while it holds the lock of a ring. If this was the
        // device's last use, the device must not be freed under that lock. So it is freed later.
        if let Some(held) = held {
            numbers::end_inside(held);
        }
        return answer;
    }
    let file = {
        let _removers_wait = process::current().descriptors.lock();
        match entry.load(Ordering::Acquire) {
            UNKNOWN | NO_DEVICE => return None,
            // SAFETY: the pointer comes from `Arc::into_raw`, and stays in the table while the lock
            // is held.
            object => Arc::clone(&ManuallyDrop::new(unsafe { Arc::from_raw(object as *const OpenDevice) })),
        }
    };
    Some(work(&file))
}

/// Returns whether a number still refers to the device. usring does not see all calls that close a
/// number below the reserved range. So this function examines the file of such a number.
#[inline]
fn is_still(file: &OpenDevice, number: i32) -> bool {
    number >= RESERVED_BASE || devices::is_still(file, number)
}

/// Returns whether a number is a device.
pub fn is_device(number: i32) -> bool {
    with(number, |_| ()).is_some()
}

/// Returns whether the table of devices has an entry for a number.
pub fn is_remembered(number: i32) -> bool {
    entry(number).is_some_and(|entry| entry.load(Ordering::Relaxed) != UNKNOWN)
}

/// Drops the table entry of a number. A caller that closes or replaces the number calls this
/// function before and after that. In between, another thread that looks the number up may have
/// recorded the old file.
#[inline]
pub fn forget(number: i32) {
    if exist()
        && let Some(entry) = entry(number)
    {
        forget_entry(entry);
    }
}

#[inline(never)]
fn forget_entry(entry: &'static AtomicUsize) {
    let old = {
        let _one_at_a_time = process::current().descriptors.lock();
        FORGOTTEN.fetch_add(1, Ordering::AcqRel);
        entry.swap(UNKNOWN, Ordering::AcqRel)
    };
    release_entry(old);
}

/// Passes the ownership of a device's new descriptor to the program. Drops the old table entry of
/// the descriptor's number, and returns the number.
pub fn give_to_program(number: OwnedDescriptor) -> i32 {
    let number = number.into_raw();
    forget(number);
    number
}

/// Drops the entries of the numbers from `first` to `last` from the table of devices.
pub fn forget_between(first: u32, last: u32) {
    let end = USED_END.load(Ordering::Relaxed).min(last.saturating_add(1));
    (first..end).for_each(|number| forget(number.cast_signed()));
}

/// Records in the table which device `number` refers to. Records nothing if an entry was dropped
/// since the caller read `forgotten`.
fn remember(number: i32, device: Option<&Arc<OpenDevice>>, forgotten: u64) {
    let Some(entry) = entry(number) else { return };
    USED_END.fetch_max(number.cast_unsigned() + 1, Ordering::Relaxed);
    let old = {
        let _one_at_a_time = process::current().descriptors.lock();
        if FORGOTTEN.load(Ordering::Relaxed) != forgotten {
            return;
        }
        entry.swap(device.map_or(NO_DEVICE, |device| Arc::into_raw(device.clone()) as usize), Ordering::AcqRel)
    };
    release_entry(old);
}

/// Releases the device of an entry that was taken out of the table of devices.
fn release_entry(old: usize) {
    if old > NO_DEVICE {
        // SAFETY: 1. The pointer comes from `Arc::into_raw`, and this function owns the table's
        // reference, which `retire` drops once. 2. The entry is replaced, so no thread can find the
        // pointer any more.
        unsafe { hazard::retire(old, drop_share) };
    }
}

/// Drops a reference to a device.
///
/// # Safety
/// `object` must come from `Arc::into_raw`, and the caller must own that reference.
unsafe fn drop_share(object: usize) {
    // SAFETY: the caller owns this reference.
    drop(unsafe { Arc::from_raw(object as *const OpenDevice) });
}

/// Clears the table in a forked child. The devices in it have queue pairs of the parent, which the
/// child must not touch. The child opens a device again when it uses the device.
pub fn reset_in_child() {
    for entry in &TABLE[..USED_END.load(Ordering::Relaxed) as usize] {
        if entry.load(Ordering::Relaxed) != UNKNOWN {
            entry.store(UNKNOWN, Ordering::Relaxed);
        }
    }
}

/// Updates the flags that usring keeps for a device, after fcntl(2) with F_SETFL has changed them.
pub fn flags_changed(number: i32) {
    with(number, |file| {
        if let Ok(flags) = descriptor::status_flags(number) {
            file.set_status_flags(flags);
        }
    });
}
