//! Benchmark: fork(2) of a process that has many rings. The child exits at once.
//!
//! `workload-fork [--rings N] [--memory mapped|own] [--milliseconds N]`
//!
//! One operation of the benchmark consists of fork, _exit and waitpid. Parent and child touch no
//! ring. With `--memory own` all rings are in one shared mapping of the program (NO_MMAP), as in
//! PostgreSQL.

use io_uring::IoUring;
use std::io::Error;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::ptr;
use usring_uapi::io_uring as u;
use workloads::options::{self, Declared, Options, option};
use workloads::stopwatch;

/// Entries in each ring's SQ: the largest value that PostgreSQL chooses for its setting
/// `io_max_concurrency` if the user sets none.
const ENTRIES: u32 = 64;
const PAGE: usize = 4096;

const OPTIONS: &[Declared] = &[
    option("rings", "1000", "Rings of the process"),
    option("memory", "mapped", "Where the rings' memory is: mapped or own"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

fn workload(options: &Options) -> Result<(), String> {
    let count: usize = options.value("rings")?;
    let memory: String = options.value("memory")?;
    let span = options.span()?;
    stopwatch::pin();
    let (_mapped, _own): (Vec<IoUring>, Vec<OwnedFd>);
    match memory.as_str() {
        "mapped" => {
            let rings = (0..count).map(|_| IoUring::new(ENTRIES));
            _mapped = rings.collect::<Result<_, _>>().map_err(|error| format!("no ring: {error}"))?;
        }
        "own" => _own = rings_in_own_memory(count).map_err(|error| format!("no ring: {error}"))?,
        other => return Err(format!("{other} is neither mapped nor own")),
    }
    stopwatch::print(span, || fork_and_wait().map(|()| 1))
}

/// Makes rings in one shared mapping (NO_MMAP). Each ring has a page of SQEs, followed by a page
/// with its SQ and CQ.
fn rings_in_own_memory(count: usize) -> Result<Vec<OwnedFd>, Error> {
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping, which replaces no other.
    let memory = unsafe { libc::mmap(ptr::null_mut(), 2 * PAGE * count, access, shared, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    let ring = |index: usize| {
        let sqes = memory as usize + 2 * PAGE * index;
        // SAFETY: the structure consists of plain numbers, for which zero is valid.
        let mut parameters: u::io_uring_params = unsafe { std::mem::zeroed() };
        parameters.flags = u::IORING_SETUP_NO_MMAP | u::IORING_SETUP_NO_SQARRAY;
        parameters.sq_off.user_addr = sqes as u64;
        parameters.cq_off.user_addr = (sqes + PAGE) as u64;
        // SAFETY: the two pages belong to this ring alone, and the mapping is never removed.
        let number = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, &raw mut parameters) };
        // SAFETY: the descriptor is new, and nothing else owns it.
        if number < 0 { Err(Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(number as i32) }) }
    };
    (0..count).map(ring).collect()
}

fn fork_and_wait() -> Result<(), String> {
    // SAFETY: the child only exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the call ends the child, which runs no other code.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the call writes only `status`.
    if child < 0 || unsafe { libc::waitpid(child, &mut status, 0) } != child || status != 0 {
        return Err(format!("a child ended with status {status}: {}", Error::last_os_error()));
    }
    Ok(())
}
