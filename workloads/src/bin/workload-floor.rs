//! What this machine charges for what nobody can do without: a system call,
//! and copying a block.
//!
//! `workload-floor [--of system-call|copy] [--milliseconds N]`

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;
use workloads::options::{self, Options};
use workloads::stopwatch;

const BLOCK: usize = 4096;

fn main() -> ExitCode {
    options::run(workload)
}

fn workload(options: &Options) -> Result<(), String> {
    let of: String = options.value("of", "system-call".to_owned())?;
    let span = Duration::from_millis(options.value("milliseconds", 200)?);
    stopwatch::pin();
    match of.as_str() {
        "system-call" => stopwatch::print(span, || {
            // SAFETY: getppid(2) takes nothing and touches nothing.
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
        other => Err(format!("--of cannot be {other}")),
    }
}
