//! Swapped memory of an unmodified program (`usring run --swap`): decides which of its mappings
//! come from a region of `usring_swap`.
//!
//! The region serves mappings that are private, without a file, readable and writable, and large
//! enough. It is made at the first such mapping, so that processes that need none leave the backing
//! store to those that do. All other mappings are the kernel's. [`crate::swapped::mapping_calls`]
//! answers later calls on mappings.
//!
//! A forked child has a copy of the region ([`forked`]). If that is not possible, a touch of its
//! parent's memory ends it. A vfork child borrows its parent's region and notices nothing.

use crate::doors::{patch, symbols};
use crate::process::{self, environment};
use crate::runtime::{libc, message};
use crate::swapped::{forked, guarded, swap_filter};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use usring_swap::Mechanism;
use usring_swap::Refusal;
use usring_swap::mappings::{Mappings, Options, WINDOW};
use usring_sys::Errno;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::pinned_memory;
use usring_uapi::general as linux;

/// Whether this process's memory may be swapped.
pub static ON: AtomicBool = AtomicBool::new(false);
static MAPPINGS: AtomicPtr<Mappings> = AtomicPtr::new(core::ptr::null_mut());
/// Lock for making the region.
static MAKING: PerProcess<Mutex<()>> = PerProcess::new();
/// Least length of a mapping from the region, in bytes.
pub static MINIMUM: AtomicUsize = AtomicUsize::new(usize::MAX);

#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Returns the region, if there is one. Inherited memory is taken over now.
pub fn mappings() -> Option<&'static Mappings> {
    known().or_else(|| if forked::is_heir() { take_up() } else { None })
}

/// Returns the region, if it was made.
pub fn known() -> Option<&'static Mappings> {
    // SAFETY: stored values are leaked, so they live for ever.
    unsafe { MAPPINGS.load(Ordering::Acquire).as_ref() }
}

/// Whether there is a region, also one that is inherited and not taken over yet.
#[inline]
pub fn has_region() -> bool {
    !MAPPINGS.load(Ordering::Relaxed).is_null() || forked::is_heir()
}

#[cold]
fn take_up() -> Option<&'static Mappings> {
    let (_, statistics) = options()?;
    forked::take_up(path_in(&statistics))
}

/// Publishes the process's region.
pub fn publish(mappings: Mappings) {
    static FIRST_TOUCH: fn() -> bool = || {
        // A child that does not inherit may have made no call to usring yet.
        process::current();
        self::mappings().is_some()
    };
    mappings.region().set_first_touch(&FIRST_TOUCH);
    MAPPINGS.store(alloc::boxed::Box::into_raw(alloc::boxed::Box::new(mappings)), Ordering::Release);
    pinned_memory::set_pin_hook(&guarded::PIN_HOOK);
}

/// Parses the launcher's text: `LIMIT MINIMUM MECHANISM STATISTICS BACKING`. The third and fourth
/// are `-` if there is none. If the fourth is a path, it ends with a NUL instead of a space.
fn options() -> Option<(Options<'static>, [u8; LONGEST_PATH])> {
    let text = core::str::from_utf8(environment::swap()?).ok()?;
    let mut words = text.splitn(5, ' ');
    let limit = words.next()?.parse().ok()?;
    let minimum = words.next()?.parse().ok()?;
    let mechanism = Mechanism::of_name(words.next()?);
    let path = words.next()?.as_bytes();
    let mut statistics = [0; LONGEST_PATH];
    if path != b"-" {
        statistics.get_mut(..path.len())?.copy_from_slice(path);
    }
    let backing = words.next()?;
    let socket = environment::swap_socket();
    Some((Options { backing, limit, minimum, mechanism, statistics: None, socket }, statistics))
}

/// `/proc/PID/fd/NUMBER`, with room to spare.
const LONGEST_PATH: usize = 64;

fn path_in(statistics: &[u8]) -> Option<&CStr> {
    CStr::from_bytes_until_nul(statistics).ok().filter(|path| !path.is_empty())
}

/// Prepares a program whose memory is to be swapped, at its start: lets calls that concern swapped
/// memory reach usring.
///
/// Errors: one sentence.
pub fn prepare() -> Result<(), &'static str> {
    if environment::swap().is_none() {
        return Ok(());
    }
    let (options, _) = options().ok_or("what the launcher says of swapped memory is not of this build")?;
    if libc::has_sanitizer() {
        // TSan tolerates no mapping in the window, and LSan reads memory from a process of its own.
        let process = process::id();
        message::say(format_args!(
            "swap: the memory of process {process} stays as it is: a sanitizer keeps account of it"
        ));
        return Ok(());
    }
    MINIMUM.store(options.minimum, Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
    if !traps(options.minimum) {
        swap_filter::install(options.minimum).map_err(|_| "the trap filter for swapped memory was refused")?;
        if !traps(options.minimum) {
            return Err("calls on swapped memory do not reach usring although the trap filter was accepted");
        }
    }
    libc::map_large_blocks(options.minimum);
    if let Some(writev) = symbols::libc_writev() {
        patch::rewrite_ahead(writev, linux::__NR_writev);
    }
    Ok(())
}

/// First argument and answer of the call that detects whether the filter is installed.
pub const PROBE_ARGUMENT: u64 = 0x7573_7377;
pub const PROBE_ANSWER: u64 = 0x7573_0002;

fn traps(minimum: usize) -> bool {
    let arguments = [PROBE_ARGUMENT, u64::from(swap_filter::size_for(minimum)), 0, 0, 0, 0];
    // SAFETY: the kernel has no such call, and usring reads no memory for it.
    unsafe { usring_sys::syscall::syscall6(swap_filter::PROBE, arguments) == PROBE_ANSWER }
}

/// Resets the state in a forked child, which may be about to inherit ([`forked`]).
pub fn begin_after_fork() {
    MAPPINGS.store(core::ptr::null_mut(), Ordering::Relaxed);
    forked::forget_inheritance();
    if !forked::hands_down() {
        disown();
    }
}

/// Gives up the region: this process will have none.
pub fn disown() {
    ON.store(false, Ordering::Relaxed);
    pinned_memory::forget_pin_hook();
}

/// Returns the region; makes it if there is none.
pub fn made() -> Option<&'static Mappings> {
    if let Some(mappings) = mappings() {
        return Some(mappings);
    }
    // In a vfork child its threads would be the child's.
    if !process::is_own() {
        return None;
    }
    let _one_at_a_time = MAKING.get_or_make(|| Mutex::new(())).lock();
    if let Some(mappings) = mappings() {
        return Some(mappings);
    }
    let (mut options, statistics) = options()?;
    options.statistics = path_in(&statistics);
    match Mappings::open(&options) {
        Ok(mappings) => {
            publish(mappings);
            known()
        }
        Err(refusal) => {
            ON.store(false, Ordering::Relaxed);
            let process = process::id();
            match refusal {
                Refusal::Failed(Errno::ENOMEM) => message::say(format_args!(
                    "swap: the memory of process {process} stays as it is: there are no addresses for four times what \
                     {} and the limit hold (ENOMEM); does a limit (ulimit -v) forbid it?",
                    options.backing
                )),
                refusal => message::say(format_args!(
                    "swap: the memory of process {process} stays as it is: {}",
                    refusal.of(&options.backing)
                )),
            }
            None
        }
    }
}

/// End of the region's addresses.
pub const WINDOW_END: usize = WINDOW.end;

/// Whether an address may belong to the region.
#[inline]
pub fn is_in_window(address: u64) -> bool {
    (WINDOW.start as u64..WINDOW.end as u64).contains(&address)
}

/// Number by which a [`Call`] announces a stack that the program has made.
pub const STACK: u32 = 0x7573_0200;
