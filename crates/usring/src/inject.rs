//! Faults on demand, for a program's own tests: the next request that a rule names gets a fault.
//!
//! A rule has the syntax of `usring run --inject`, and concerns the requests of this process:
//! rings, and the contexts of [`aio`](crate::aio). Random choices of a rule are the same in each
//! run.
//!
//! ```
//! use usring::{IoUring, inject, opcode};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut ring = IoUring::new(4)?;
//! let fault = inject::once("nop:error=EIO:user_data=7")?;
//! let nop = opcode::Nop::new().build().user_data(7);
//! // SAFETY: a NOP names no memory.
//! unsafe { ring.submission().push(&nop).expect("a ring of 4 has room for one") };
//! ring.submit_and_wait(1)?;
//! assert_eq!(ring.completion().next().expect("it was waited for").result(), -5);
//! assert!(fault.has_fired());
//! # Ok(())
//! # }
//! ```
//!
//! A rule means the requests of all threads. Tests that run at the same time in one process name
//! their requests by `user_data=`, `fd=`, `path=` or `tid=`.

use std::io::{self, ErrorKind};
use std::sync::Mutex;
use usring_inject::armed;
use usring_inject::page::Page;
use usring_inject::rule::requests;
use usring_sys::clock::Clock;

/// A rule that makes one fault. Dropping it removes the rule.
#[derive(Debug)]
#[must_use = "dropping it removes the rule"]
pub struct Once(u16);

/// Adds a rule for the requests of this process. The rule makes one fault.
///
/// Errors:
/// - `InvalidInput`: the rule has a mistake, which the error explains.
/// - `Unsupported`: the rule names only plain system calls. These do not pass through the Rust API.
/// - `ENOSPC`: this rule is longer than 8 KiB, or the process has added 8,192 rules (or 1 MiB of
///   text), removed rules included.
/// - `ENOMEM`.
pub fn once(rule: &str) -> io::Result<Once> {
    static ARMING: Mutex<()> = Mutex::new(());
    let rule =
        usring_inject::parse(rule).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error.to_string()))?;
    if rule.set.intersection(&requests()).is_empty() {
        let reason = "the rule names only plain system calls, which the Rust API does not see";
        return Err(io::Error::new(ErrorKind::Unsupported, reason));
    }
    {
        let _arming = ARMING.lock();
        if armed::page().is_none() {
            armed::arm(Page::of_process(0, Clock::Monotonic.now()).map_err(crate::api::os_error)?);
        }
    }
    armed::add_once(&rule).map(Once).ok_or_else(|| crate::api::os_error(usring_sys::Errno::ENOSPC))
}

impl Once {
    /// Returns whether the rule has made its fault.
    pub fn has_fired(&self) -> bool {
        !armed::is_active(self.0)
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        armed::remove_once(self.0);
    }
}

/// Returns how many faults this process has made. A forked child begins with the count of its
/// parent.
pub fn injected() -> u64 {
    armed::made()
}
