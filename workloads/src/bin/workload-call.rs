//! Benchmark: the cost of a system call that has nothing to do with rings.
//!
//! `workload-call [--call getppid|read|close|fcntl|sigprocmask] [--filter none|empty]
//! [--milliseconds N]`
//!
//! With `--filter empty` the process has a seccomp filter that allows every call. The difference
//! from `--filter none` is the cost that any filter has in the kernel.

use std::fs::File;
use std::hint::black_box;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::process::ExitCode;
use std::time::Duration;
use workloads::options::{self, Declared, Options, option};
use workloads::stopwatch;

/// Calls between two readings of the clock.
const BATCH: u64 = 256;

const OPTIONS: &[Declared] = &[
    option("call", "getppid", "getppid, read, close, fcntl or sigprocmask"),
    option("filter", "none", "none, or empty: a seccomp filter that allows every call"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

fn workload(options: &Options) -> Result<(), String> {
    let call: String = options.value("call")?;
    let filter: String = options.value("filter")?;
    let span = options.span()?;
    if filter == "empty" {
        install_empty_filter()?;
    }
    stopwatch::pin();
    let zero = File::open("/dev/zero").map_err(|error| error.to_string())?;
    let number = zero.as_raw_fd();
    // `closed` is a number without an open file, so its close(2) measures only the entry and the
    // exit of the system call.
    let closed = zero.try_clone().map_err(|error| error.to_string())?.into_raw_fd();
    let mut byte = 0u8;
    // SAFETY: an all-zero set is empty. Each call gets arguments of its types. `closed` is not an
    // open descriptor.
    unsafe {
        libc::close(closed);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGUSR1);
        match call.as_str() {
            "getppid" => measure(span, || i64::from(libc::getppid())),
            "read" => measure(span, || libc::read(number, (&raw mut byte).cast(), 1) as i64),
            "close" => measure(span, || i64::from(libc::close(closed))),
            "fcntl" => measure(span, || i64::from(libc::fcntl(number, libc::F_GETFD))),
            "sigprocmask" => {
                measure(span, || i64::from(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut())))
            }
            other => Err(format!("--call cannot be {other}")),
        }
    }
}

fn measure(span: Duration, mut call: impl FnMut() -> i64) -> Result<(), String> {
    stopwatch::print(span, || {
        for _ in 0..BATCH {
            black_box(call());
        }
        Ok(BATCH)
    })
}

fn install_empty_filter() -> Result<(), String> {
    const RETURN: u16 = 0x06;
    let allow = libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    let program = libc::sock_fprog { len: 1, filter: &raw const allow as *mut _ };
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: the kernel copies the filter.
    let answer = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().to_string()) }
}
