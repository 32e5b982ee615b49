//! The program that `usring doctor` runs: an ordinary io_uring program that reports whether a ring
//! works and what a call costs. Its only code for usring checks whether one of its call sites was
//! rewritten.

use io_uring::{IoUring, opcode};
use nix::libc;
use serde::{Deserialize, Serialize};
use std::arch::asm;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const ROUNDS: usize = 15;
const CALLS: u32 = 2000;
/// The instructions `mov $426, %eax` and `syscall`, as [`enter_inline`] contains them.
const ORIGINAL_SITE: [u8; 7] = [0xb8, 0xaa, 0x01, 0x00, 0x00, 0x0f, 0x05];

/// The figures that the probe prints.
#[derive(Debug, Deserialize, Serialize)]
pub struct Findings {
    /// Median time of an io_uring_enter without work, called by a `syscall` instruction of the
    /// program, in nanoseconds.
    pub inline: f64,
    /// Median time of an io_uring_enter without work, called by libc's `syscall()`, in nanoseconds.
    pub libc: f64,
    /// Whether usring has rewritten the program's `syscall` instruction.
    pub patched: bool,
}

/// The probe's output, as one line of JSON: its findings, or the errno if no ring could be made.
#[derive(Debug, Deserialize, Serialize)]
pub enum ProbeResult {
    Works(Findings),
    Fails(i32),
}

/// Runs the hidden subcommand.
pub fn run() -> super::Outcome {
    let answer = match probe() {
        Ok(findings) => ProbeResult::Works(findings),
        Err(error) => ProbeResult::Fails(error.raw_os_error().unwrap_or(libc::EIO)),
    };
    let line = serde_json::to_string(&answer).map_err(|error| super::Failure::new(error.to_string()))?;
    println!("{line}");
    Ok(0)
}

fn probe() -> std::io::Result<Findings> {
    let mut ring = IoUring::new(8)?;
    submit_nop(&mut ring)?;
    let number = ring.as_raw_fd();
    let site = enter_inline(number);
    let inline = median(|| enter_inline(number));
    Ok(Findings { inline, libc: median(|| enter_by_libc(number)), patched: is_rewritten(site) })
}

/// Submits a NOP and reaps its completion, because a descriptor alone does not prove that a ring
/// works.
fn submit_nop(ring: &mut IoUring) -> std::io::Result<()> {
    const MARK: u64 = 0x5eed;
    let nop = opcode::Nop::new().build().user_data(MARK);
    // SAFETY: a NOP names no memory.
    unsafe { ring.submission().push(&nop) }.map_err(std::io::Error::other)?;
    ring.submit_and_wait(1)?;
    let completion = ring.completion().next().ok_or(libc::ENODATA);
    match completion.map(|entry| (entry.user_data(), entry.result())) {
        Ok((MARK, 0)) => Ok(()),
        _ => Err(std::io::Error::from_raw_os_error(libc::EPROTO)),
    }
}

/// Measures several rounds of calls, and returns the median in nanoseconds per call.
fn median<T>(call: impl Fn() -> T) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                std::hint::black_box(call());
            }
            start.elapsed().as_nanos() as f64 / f64::from(CALLS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// Returns whether the code at `site` differs from what the compiler has made. Reads the code
/// through /proc/self/mem, because the compiler could optimise a direct read away. If this read of
/// /proc/self/mem fails, returns `false`: usring cannot have rewritten the code either.
fn is_rewritten(site: u64) -> bool {
    let mut bytes = ORIGINAL_SITE;
    let read = File::open("/proc/self/mem").and_then(|memory| memory.read_exact_at(&mut bytes, site));
    read.is_ok() && bytes != ORIGINAL_SITE
}

/// Calls `io_uring_enter(number, 0, 0, 0, NULL, 0)` by an inline `syscall` instruction, as liburing
/// does. Returns the address of the call site.
#[inline(never)]
fn enter_inline(number: i32) -> u64 {
    let site: u64;
    // SAFETY: 1. The call names no memory. 2. The clobbers are those of the
    // x86-64 system call convention.
    unsafe {
        asm!(
            "lea {site}, [rip + 2f]",
            "2:",
            "mov eax, {call}",
            "syscall",
            call = const libc::SYS_io_uring_enter,
            site = out(reg) site,
            out("rax") _,
            in("rdi") i64::from(number),
            in("rsi") 0,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            in("r9") 0,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    site
}

fn enter_by_libc(number: i32) -> i64 {
    // SAFETY: the call names no memory.
    unsafe { libc::syscall(libc::SYS_io_uring_enter, number, 0, 0, 0, 0, 0) }
}
