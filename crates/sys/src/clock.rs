//! Clocks, read by system calls, not through the vDSO. While the engine runs, the instruction
//! pointer must lie in usring's own text: usring's signal handler recognises by this that the
//! signal has to wait. The vDSO is used, with signals blocked, only if the program's own filter
//! denies the system call.

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

/// A point on a clock, or a span, in nanoseconds.
pub type Nanoseconds = u64;

impl Clock {
    /// Returns the time on this clock, in nanoseconds.
    pub fn now(self) -> Nanoseconds {
        read(self as u32)
    }
}

/// Returns the processor time that the calling thread has used.
pub fn thread_time() -> Nanoseconds {
    read(linux::CLOCK_THREAD_CPUTIME_ID)
}

/// clock_gettime(2), as a function.
pub type Reader = unsafe extern "C" fn(clock: u32, time: *mut Timespec) -> i32;

static VDSO: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the vDSO's clock_gettime.
///
/// # Safety
/// The function must stay mapped, be callable at any time on any thread, and write one timespec.
pub unsafe fn set_vdso(reader: Reader) {
    VDSO.store(reader as *mut (), Ordering::Release);
}

/// Reads a clock that always exists, so there is no error to report. Returns 0 if the system call
/// is denied and there is no vDSO.
fn read(clock: u32) -> Nanoseconds {
    let mut time = Timespec::default();
    let arguments = [clock.into(), &raw mut time as u64, 0, 0, 0];
    if SystemCall::new(linux::__NR_clock_gettime, arguments).run().is_err() {
        read_by_vdso(clock, &mut time);
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Reads the clock through the vDSO, because the program's own filter denies the system call.
#[cold]
fn read_by_vdso(clock: u32, time: &mut Timespec) {
    let reader = VDSO.load(Ordering::Acquire);
    if reader.is_null() {
        return;
    }
    // The instruction pointer leaves usring's text here, so a signal handler would mistake the
    // engine for the program. Signals are blocked until the call returns.
    let signals = thread::close_signals();
    // SAFETY: only `set_vdso` stores here. It stores a `Reader`, which its caller guaranteed.
    unsafe { core::mem::transmute::<*mut (), Reader>(reader)(clock, time) };
    drop(signals);
}

/// Converts a timespec to nanoseconds; saturates. 10⁹ nanoseconds and more are accepted: io_uring
/// has always taken them. Errors: `EINVAL` for negative parts.
pub fn nanoseconds(time: Timespec) -> Result<Nanoseconds, Errno> {
    if time.tv_sec < 0 || time.tv_nsec < 0 {
        return Err(Errno::EINVAL);
    }
    Ok((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}

/// Converts the time limit of a call to nanoseconds. A negative limit is over at once: 0.
pub fn limit(time: Timespec) -> Nanoseconds {
    let span = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    u64::try_from(span).unwrap_or(0)
}

/// Converts a span to a timespec.
pub const fn timespec(span: Nanoseconds) -> Timespec {
    Timespec { tv_sec: (span / 1_000_000_000) as i64, tv_nsec: (span % 1_000_000_000) as i64 }
}
