//! Reads clocks by system calls, not through the vDSO. While the engine runs, usring's signal
//! handler has to defer each signal until the engine has returned. The handler recognises the
//! engine by the instruction pointer, which lies in usring's own text, and not in the vDSO. The
//! vDSO is used only if a filter of the program denies the system call. Signals are blocked during
//! such a call.

use crate::{Errno, SystemCall, thread};
use core::sync::atomic::{AtomicPtr, Ordering};
use linux_raw_sys::general as linux;
use usring_uapi::Timespec;

/// The clocks that a timeout may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Clock {
    #[default]
    Monotonic = linux::CLOCK_MONOTONIC,
    Realtime = linux::CLOCK_REALTIME,
    Boottime = linux::CLOCK_BOOTTIME,
}

/// A point in time on a clock, or a span of time, in nanoseconds.
pub type Nanoseconds = u64;

impl Clock {
    /// Returns the time on this clock, in nanoseconds.
    pub fn now(self) -> Nanoseconds {
        read(self as u32)
    }
}

/// Returns the processor time that the calling thread has used, in nanoseconds.
pub fn thread_time() -> Nanoseconds {
    read(linux::CLOCK_THREAD_CPUTIME_ID)
}

/// A function with the signature of clock_gettime(2).
pub type Reader = unsafe extern "C" fn(clock: u32, time: *mut Timespec) -> i32;

static VDSO: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Stores the address of the vDSO's clock_gettime. It is called only if a filter denies the system
/// call.
///
/// # Safety
/// `reader` must stay mapped and be callable at any time on any thread. It must write one timespec
/// at most, to its second argument.
pub unsafe fn set_vdso(reader: Reader) {
    VDSO.store(reader as *mut (), Ordering::Release);
}

/// Returns the time in nanoseconds. `clock` is a clock that every kernel has. Returns 0 if the
/// system call is denied and there is no vDSO.
fn read(clock: u32) -> Nanoseconds {
    let mut time = Timespec::default();
    let arguments = [clock.into(), &raw mut time as u64, 0, 0, 0];
    if SystemCall::new(linux::__NR_clock_gettime, arguments).run().is_err() {
        read_by_vdso(clock, &mut time);
    }
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Reads the clock through the vDSO, because the program's own filter denies the system call.
#[cold]
fn read_by_vdso(clock: u32, time: &mut Timespec) {
    let reader = VDSO.load(Ordering::Acquire);
    if reader.is_null() {
        return;
    }
    // In the vDSO the instruction pointer is outside usring's text. usring's signal handler would
    // not recognise the engine there, and would not defer the signal. So signals are blocked until
    // the vDSO's function returns.
    let signals = thread::close_signals();
    // SAFETY: a non-null `VDSO` was stored by `set_vdso`, whose caller guaranteed a `Reader` that
    // can be called here.
    unsafe { core::mem::transmute::<*mut (), Reader>(reader)(clock, time) };
    drop(signals);
}

/// Converts a timespec to nanoseconds. A sum that is too large becomes the maximum. A `tv_nsec` of
/// 10⁹ or more is accepted, as io_uring accepts it. Errors: `EINVAL` if a field is negative.
pub fn nanoseconds(time: Timespec) -> Result<Nanoseconds, Errno> {
    if time.tv_sec < 0 || time.tv_nsec < 0 {
        return Err(Errno::EINVAL);
    }
    Ok(time.tv_sec.cast_unsigned().saturating_mul(1_000_000_000).saturating_add(time.tv_nsec.cast_unsigned()))
}

/// Converts the time limit of a system call to nanoseconds. A negative limit becomes 0: its time is
/// over at once.
pub fn limit(time: Timespec) -> Nanoseconds {
    let span = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    u64::try_from(span).unwrap_or(0)
}

/// Converts nanoseconds to a timespec.
pub const fn timespec(span: Nanoseconds) -> Timespec {
    Timespec { tv_sec: (span / 1_000_000_000).cast_signed(), tv_nsec: (span % 1_000_000_000).cast_signed() }
}
