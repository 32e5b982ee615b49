//! Which descriptor numbers stand for devices of the run.
//!
//! What open(2) gives the program for a device lies in the reserved range, so
//! that the filter sees it closed and duplicated. By dup2, by inheritance, or sent
//! from another process, a device may have a lower number, too.
//!
//! What a number stands for is found out by the file's inode when it is first
//! used, and remembered until the number is closed or becomes a duplicate of
//! another. Low numbers are opened and closed unseen; so a low one is looked at
//! each time. To forget too much does no harm.

use crate::doors::door::{Call, Outcome};
use crate::doors::filter;
use crate::files::descriptors::{self, NUMBERS};
use crate::message;
use crate::program::{environment, process};
use alloc::sync::Arc;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use usring_engine::{OpenDevice, devices};
use usring_sys::descriptor::{self, OwnedDescriptor, RESERVED_BASE};
use usring_sys::{Errno, hazard};

/// Instead of a pointer: not looked at since it was last closed.
const UNKNOWN: usize = 0;
/// Instead of a pointer: a file of the kernel's.
const OTHER: usize = 1;

/// Each entry is [`UNKNOWN`], [`OTHER`], or an `Arc<OpenDevice>` given up by
/// `into_raw`.
static TABLE: [AtomicUsize; NUMBERS] = [const { AtomicUsize::new(UNKNOWN) }; NUMBERS];

/// One more than the highest number that was ever entered.
static END: AtomicU32 = AtomicU32::new(0);

/// How often something was forgotten; changes under the table's lock. Who looks a
/// number up while it is being closed finds what it was, and must not note it.
static FORGOTTEN: AtomicU64 = AtomicU64::new(0);

/// Whether the run has devices.
pub static EXIST: AtomicBool = AtomicBool::new(false);

/// Whether the run has devices.
#[inline]
pub fn exist() -> bool {
    EXIST.load(Ordering::Relaxed)
}

/// At the start of a program: learns the devices of its run, if it has any.
///
/// Errors: one sentence.
pub fn learn() -> Result<(), &'static str> {
    let Some(socket) = environment::devices() else { return Ok(()) };
    devices::connect(socket).map_err(|error| {
        message::say(format_args!("asking for the devices of this run: {error}"));
        "the devices of this run cannot be reached; has `usring run` ended, or the user changed?"
    })?;
    hazard::prepare();
    EXIST.store(true, Ordering::Relaxed);
    if !traps() {
        filter::install_for_devices().map_err(|_| "the trap filter for devices was refused")?;
        if !traps() {
            return Err("calls on files do not reach usring although the trap filter was accepted");
        }
    }
    Ok(())
}

/// First argument and answer of the call by which the filter for devices is found in place.
const PROBE_ARGUMENT: u64 = 0x7573_6465;
const PROBE_ANSWER: u64 = 0x7573_0001;

/// Whether calls on files reach us.
fn traps() -> bool {
    // SAFETY: the kernel has no such call, and we read no memory for it.
    unsafe { usring_sys::syscall::syscall6(filter::PROBE, [PROBE_ARGUMENT, 0, 0, 0, 0, 0]) == PROBE_ANSWER }
}

/// Answers [`traps`].
pub fn answer_probe(call: &mut Call) -> Outcome {
    if call.arguments[0] == PROBE_ARGUMENT { Ok::<u64, Errno>(PROBE_ANSWER).into() } else { call.pass() }
}

fn entry(number: i32) -> Option<&'static AtomicUsize> {
    TABLE.get(number as usize)
}

/// The device that a number stands for, for the engine.
pub fn get(number: i32) -> Option<Arc<OpenDevice>> {
    with(number, Arc::clone)
}

/// Runs `work` on the device that a number stands for. One look at the table
/// where it is none.
#[inline]
pub fn with<T>(number: i32, work: impl FnOnce(&Arc<OpenDevice>) -> T) -> Option<T> {
    let entry = entry(number)?;
    match entry.load(Ordering::Acquire) {
        OTHER if number >= RESERVED_BASE => None,
        OTHER | UNKNOWN => with_recognised(number, work),
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
    // A vfork child has numbers of its own, and this table is its parent's.
    if process::is_own() {
        remember(number, device.as_ref(), forgotten);
    }
    device.as_ref().map(work)
}

#[inline(never)]
fn with_known<T>(entry: &'static AtomicUsize, work: impl FnOnce(&Arc<OpenDevice>) -> T) -> Option<T> {
    if let Some((object, held)) = hazard::protect(|| entry.load(Ordering::Acquire)) {
        if object <= OTHER {
            return None;
        }
        // SAFETY: it came from `Arc::into_raw`, and whoever takes it out of the
        // table does not drop it while `held` lives.
        let file = ManuallyDrop::new(unsafe { Arc::from_raw(object as *const OpenDevice) });
        let answer = work(&file);
        // The engine asks with a ring's lock held.
        if let Some(held) = held {
            descriptors::end_inside(held);
        }
        return Some(answer);
    }
    let file = {
        let _removers_wait = process::current().descriptors.lock();
        match entry.load(Ordering::Acquire) {
            UNKNOWN | OTHER => return None,
            // SAFETY: as above; it stays in the table while the lock is held.
            object => Arc::clone(&ManuallyDrop::new(unsafe { Arc::from_raw(object as *const OpenDevice) })),
        }
    };
    Some(work(&file))
}

/// Whether a number is still the device that it was; a low one may have ceased
/// to be.
#[inline]
fn is_still(file: &OpenDevice, number: i32) -> bool {
    number >= RESERVED_BASE || devices::is_still(file, number)
}

/// Whether a number stands for a device.
pub fn is_device(number: i32) -> bool {
    with(number, |_| ()).is_some()
}

/// Whether something is remembered of a number.
pub fn is_remembered(number: i32) -> bool {
    entry(number).is_some_and(|entry| entry.load(Ordering::Relaxed) != UNKNOWN)
}

/// A number is about to be closed, or to become a duplicate of another; and once
/// more when it is, for it may have been looked up meanwhile.
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
    give_up(old);
}

/// Leaves a device's new number to the program.
pub fn enter(number: OwnedDescriptor) -> i32 {
    let number = number.into_raw();
    forget(number);
    number
}

/// The same for every number from `first` to `last`.
pub fn forget_between(first: u32, last: u32) {
    let end = END.load(Ordering::Relaxed).min(last.saturating_add(1));
    (first..end).for_each(|number| forget(number as i32));
}

/// Notes what a number was found to stand for, unless something has been
/// forgotten since then.
fn remember(number: i32, device: Option<&Arc<OpenDevice>>, forgotten: u64) {
    let Some(entry) = entry(number) else { return };
    END.fetch_max(number as u32 + 1, Ordering::Relaxed);
    let old = {
        let _one_at_a_time = process::current().descriptors.lock();
        if FORGOTTEN.load(Ordering::Relaxed) != forgotten {
            return;
        }
        entry.swap(device.map_or(OTHER, |device| Arc::into_raw(device.clone()) as usize), Ordering::AcqRel)
    };
    give_up(old);
}

/// Lets go of what has been taken out of the table.
fn give_up(old: usize) {
    if old > OTHER {
        // SAFETY: it came from `Arc::into_raw`; the table's share in it is now
        // ours, to be dropped once, and nobody finds it any more.
        unsafe { hazard::retire(old, drop_share) };
    }
}

/// # Safety
/// `object` came from `Arc::into_raw`, and this share in it is the caller's.
unsafe fn drop_share(object: usize) {
    // SAFETY: as the caller says.
    drop(unsafe { Arc::from_raw(object as *const OpenDevice) });
}

/// In a forked child: the devices' queue pairs are the parent's. They are left
/// as they lie, and the devices opened anew when they are used.
pub fn disown() {
    for entry in &TABLE[..END.load(Ordering::Relaxed) as usize] {
        if entry.load(Ordering::Relaxed) != UNKNOWN {
            entry.store(UNKNOWN, Ordering::Relaxed);
        }
    }
}

/// fcntl(2) F_SETFL has changed a file's status flags.
pub fn flags_changed(number: i32) {
    with(number, |file| {
        if let Ok(flags) = descriptor::status_flags(number) {
            file.set_status_flags(flags);
        }
    });
}
