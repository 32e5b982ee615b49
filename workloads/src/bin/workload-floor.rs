//! Benchmark: the machine's cost of three operations that every implementation needs: a system
//! call, a copy of a block, and a switch to a sleeping thread.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use workloads::options::{self, Declared, Options, option};
use workloads::stopwatch;

const BLOCK: usize = 4096;

const OPTIONS: &[Declared] = &[option("of", "system-call", "The measured operation: system-call, copy or hand-over")];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

fn workload(options: &Options) -> Result<(), String> {
    let of: String = options.value("of")?;
    let span = options.span()?;
    stopwatch::pin();
    match of.as_str() {
        "system-call" => stopwatch::print(span, || {
            // SAFETY: getppid(2) takes no arguments and touches no memory.
            black_box(unsafe { libc::syscall(libc::SYS_getppid) });
            Ok(1)
        }),
        "copy" => {
            let source = vec![1u8; BLOCK];
            let mut target = vec![0u8; BLOCK];
            stopwatch::print(span, || {
                black_box(&mut target[..]).copy_from_slice(black_box(&source[..]));
                Ok(1)
            })
        }
        "hand-over" => hand_over(span),
        other => Err(format!("--of cannot be {other}")),
    }
}

/// Measures futex wake-ups between two threads on one processor. The threads run in turn: each
/// wakes the other and goes to sleep.
fn hand_over(span: Duration) -> Result<(), String> {
    const OURS: u32 = 0;
    const THEIRS: u32 = 1;
    const OVER: u32 = 2;
    let turn = Arc::new(AtomicU32::new(OURS));
    let other = {
        let turn = turn.clone();
        std::thread::spawn(move || {
            loop {
                match turn.load(Ordering::Acquire) {
                    OVER => return,
                    THEIRS => pass(&turn, OURS),
                    _ => sleep(&turn, OURS),
                }
            }
        })
    };
    let printed = stopwatch::print(span, || {
        pass(&turn, THEIRS);
        while turn.load(Ordering::Acquire) == THEIRS {
            sleep(&turn, THEIRS);
        }
        Ok(2)
    });
    pass(&turn, OVER);
    other.join().map_err(|_| "the other thread has died".to_owned())?;
    printed
}

fn pass(turn: &AtomicU32, to: u32) {
    turn.store(to, Ordering::Release);
    futex(turn, libc::FUTEX_WAKE, 1);
}

fn sleep(turn: &AtomicU32, while_it_is: u32) {
    futex(turn, libc::FUTEX_WAIT, while_it_is);
}

fn futex(word: &AtomicU32, operation: i32, value: u32) {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: the word lives through the call, and the timeout is null.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG, value, none) };
}
