//! The region of an unmodified program's swapped memory (`usring run --swap`, `USRING_SWAP`).
//!
//! The region serves mappings that are private, without a file, readable and writable, and large
//! enough. The kernel serves all other mappings. The region is made at the first mapping that it
//! can serve. So a process without such mappings takes no space in the backing store.
//! [`crate::swap::mapping_calls`] answers later calls on mappings.
//!
//! A forked child inherits a copy of the region ([`crate::swap::fork`]) and takes the copy over at
//! its first use. If the child cannot take it over, the child ends when it touches its parent's
//! swapped memory. A vfork child uses its parent's region and notices nothing.

use crate::process::{self, environment};
use crate::runtime::message;
use alloc::boxed::Box;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use usring_swap::Refusal;
use usring_swap::inheritance::Inheritance;
use usring_swap::mappings::{Mappings, Options};
use usring_swap::text::{self, SwapText};
use usring_sys::Errno;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::pinned_memory::{self, PinHook};
use usring_sys::set_once::SetOnce;

/// Whether this process's memory may be swapped.
pub static ON: AtomicBool = AtomicBool::new(false);
static MAPPINGS: AtomicPtr<Mappings> = AtomicPtr::new(null_mut());
/// Swapped memory that this process has inherited and not taken over yet. Null if there is none.
static INHERITANCE: AtomicPtr<Inheritance> = AtomicPtr::new(null_mut());
/// Whether a child that is forked now inherits the region. This is set before each fork.
static CHILD_INHERITS: AtomicBool = AtomicBool::new(false);
/// Held while a thread makes the region.
static MAKING_LOCK: PerProcess<Mutex<()>> = PerProcess::new();
/// Held while a thread takes the inherited memory over.
static TAKING_OVER: PerProcess<Mutex<()>> = PerProcess::new();
/// Pins memory for system calls that usring itself makes. Installed once the process has a region.
static HOOK: SetOnce<PinHook> = SetOnce::new();
/// Minimum length in bytes of a mapping that the region serves.
static MINIMUM: AtomicUsize = AtomicUsize::new(usize::MAX);

#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Returns the minimum length in bytes of a mapping that the region serves.
pub fn minimum() -> usize {
    MINIMUM.load(Ordering::Relaxed)
}

/// Returns whether this process has inherited a region and not taken it over yet.
fn has_inherited() -> bool {
    !INHERITANCE.load(Ordering::Relaxed).is_null()
}

/// Returns the region of this process; `None` if it has none. If this process has inherited a
/// region and not taken it over yet, takes it over now.
pub fn mappings() -> Option<&'static Mappings> {
    existing().or_else(|| if has_inherited() { take_over() } else { None })
}

/// Returns the region that this process has made or taken over. `None`: this process has not made a
/// region, nor taken one over.
fn existing() -> Option<&'static Mappings> {
    // SAFETY: a stored pointer comes from a box that is never freed.
    unsafe { MAPPINGS.load(Ordering::Acquire).as_ref() }
}

/// Returns whether this process has a region, perhaps one that it has inherited and not taken over
/// yet.
#[inline]
pub fn exists() -> bool {
    !MAPPINGS.load(Ordering::Relaxed).is_null() || has_inherited()
}

/// Makes `mappings` the process's region, and installs the pin hook.
fn publish(mappings: Mappings) {
    static FIRST_TOUCH: fn() -> bool = || {
        // If the child does not inherit the region, this call drops the child's reference to the
        // region.
        process::current();
        self::mappings().is_some()
    };
    mappings.region().set_first_touch(&FIRST_TOUCH);
    MAPPINGS.store(Box::into_raw(Box::new(mappings)), Ordering::Release);
    if let Some(hook) = HOOK.get() {
        pinned_memory::set_pin_hook(hook);
    }
}

/// The parsed text of `USRING_SWAP`. Not set if no memory is swapped.
static TEXT: SetOnce<SwapText> = SetOnce::new();

/// Returns the options of the region.
fn options() -> Option<Options<'static>> {
    let statistics = environment::swap_statistics();
    Some(Options { text: TEXT.get()?, statistics, socket: environment::swap_socket() })
}

/// Returns the minimum length in bytes of a mapping to swap, from `USRING_SWAP`. `None`: no memory
/// is swapped.
pub fn wanted_minimum() -> Option<usize> {
    TEXT.get().map(|text| text.minimum)
}

/// Parses `USRING_SWAP`, if the environment has it.
///
/// Errors: a message of one sentence.
pub fn read_environment() -> Result<(), &'static str> {
    let Some(bytes) = environment::swap() else { return Ok(()) };
    let parsed = core::str::from_utf8(bytes).map_err(|_| "USRING_SWAP is not UTF-8")?;
    let parsed = text::parse(parsed).map_err(|why| {
        message::say(format_args!("USRING_SWAP: {why}"));
        "USRING_SWAP is wrong, as the line before says"
    })?;
    let device = parsed.spec.device();
    if device.text("socket").is_some() && environment::swap_socket().is_none() {
        return Err(
            "swapped memory on a back end needs the launcher: use `usring run --swap SPEC,limit=SIZE -- PROGRAM`",
        );
    }
    if device.text("path").is_some_and(|path| !path.starts_with('/')) {
        return Err("the path in USRING_SWAP must begin with /, because each process has its own current folder");
    }
    TEXT.set(Box::leak(Box::new(parsed)));
    Ok(())
}

/// Switches swapping on: from now on, a region serves mappings of at least `minimum` bytes. `hook`
/// pins the region's memory for the system calls that usring makes.
pub fn switch_on(minimum: usize, hook: &'static PinHook) {
    HOOK.set(hook);
    MINIMUM.store(minimum, Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
}

/// Sets whether a child that is forked now inherits the region.
pub fn set_child_inherits(inherits: bool) {
    CHILD_INHERITS.store(inherits, Ordering::Relaxed);
}

/// Resets this module's state in a forked child. The child may call [`inherit`] afterwards.
pub fn begin_after_fork() {
    MAPPINGS.store(null_mut(), Ordering::Relaxed);
    // This process's parent may have inherited memory and not taken it over yet. This child does
    // not get that memory.
    INHERITANCE.store(null_mut(), Ordering::Relaxed);
    if !CHILD_INHERITS.load(Ordering::Relaxed) {
        switch_off();
    }
}

/// Switches swapping off: this process will have no region.
pub fn switch_off() {
    ON.store(false, Ordering::Relaxed);
    pinned_memory::forget_pin_hook();
}

/// Keeps the memory that this process has inherited, until the process first uses it.
pub fn inherit(inheritance: Inheritance) {
    INHERITANCE.store(Box::into_raw(Box::new(inheritance)), Ordering::Release);
}

/// Takes over the memory that this process has inherited, unless it has done so already. Returns
/// the process's region. `None`: the process has no region, or cannot take over its inheritance.
#[cold]
fn take_over() -> Option<&'static Mappings> {
    let statistics = options()?.statistics;
    if !has_inherited() {
        return existing();
    }
    if !process::is_own() {
        static IS_REPORTED: AtomicBool = AtomicBool::new(false);
        if !IS_REPORTED.swap(true, Ordering::Relaxed) {
            message::say(format_args!(
                "swap: process {} shares the memory of a forked child that has not used its inherited swapped memory: \
                 touching that memory ends the process",
                process::id()
            ));
        }
        return None;
    }
    let _one_at_a_time = TAKING_OVER.get_or_make(|| Mutex::new(())).lock();
    // The system calls below name no swapped memory, so none is pinned for them.
    let _exempt = pinned_memory::exempt();
    let inheritance = INHERITANCE.load(Ordering::Acquire);
    if !inheritance.is_null() {
        // SAFETY: the pointer comes from `Box::into_raw` in `inherit`. Only the holder of
        // `TAKING_OVER` frees it, and replaces it by null below.
        let inheritance = unsafe { Box::from_raw(inheritance) };
        match inheritance.adopt(statistics) {
            Ok(mappings) => publish(mappings),
            Err(error) => message::say(format_args!(
                "swap: process {} cannot use the swapped memory that it inherited ({error}): touching it ends the process",
                process::id()
            )),
        }
        INHERITANCE.store(null_mut(), Ordering::Release);
    }
    existing()
}

/// Returns the region; makes it if there is none. `None`: it cannot be made, or this is a vfork
/// child and its parent has no region.
pub fn get_or_make() -> Option<&'static Mappings> {
    if let Some(mappings) = mappings() {
        return Some(mappings);
    }
    // A vfork child makes no region. The region's threads would belong to the child and end with
    // it.
    if !process::is_own() {
        return None;
    }
    let _one_at_a_time = MAKING_LOCK.get_or_make(|| Mutex::new(())).lock();
    if let Some(mappings) = mappings() {
        return Some(mappings);
    }
    let options = options()?;
    match Mappings::open(&options) {
        Ok(mappings) => {
            publish(mappings);
            existing()
        }
        Err(refusal) => {
            ON.store(false, Ordering::Relaxed);
            let process = process::id();
            match refusal {
                Refusal::Failed(Errno::ENOMEM) => message::say(format_args!(
                    "swap: usring does not swap the memory of process {process}: the address space has no room for \
                     four times what {} and the limit hold (ENOMEM); does `ulimit -v` limit it?",
                    options.text.spec
                )),
                refusal => message::say(format_args!(
                    "swap: usring does not swap the memory of process {process}: {}",
                    refusal.message(&options.text.spec)
                )),
            }
            None
        }
    }
}
