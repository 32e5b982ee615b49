//! Begins to record the program's requests (`usring run --trace`). [`usring_trace`] does all other
//! work.
//!
//! The recorder remembers the names of files by descriptor. So it must be notified when a
//! descriptor begins to refer to another file. [`note`] gets each call of a libc symbol that closes
//! or replaces a descriptor.

use crate::call::Call;
use crate::filter;
use crate::process::{self, environment};
use crate::runtime::message;
use core::sync::atomic::{AtomicBool, Ordering};
use usring_engine::observers;
use usring_sys::{file, width};
use usring_trace::page::Page;
use usring_uapi::general as linux;

static ON: AtomicBool = AtomicBool::new(false);

/// Returns whether the program is traced.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Begins to record when a program starts, if it runs under `usring run --trace`. A program that
/// runs as another user than the launcher may be unable to open the trace. Such a program is not
/// traced.
///
/// Errors: a message of one sentence.
pub fn connect() -> Result<(), &'static str> {
    let Some(path) = environment::trace() else { return Ok(()) };
    match file::open_shared(path).and_then(|file| Page::open(&file)) {
        Ok(page) => usring_trace::start(page),
        Err(error) => {
            let process = process::id();
            message::say(format_args!("process {process} is not traced: cannot open the memory of --trace ({error})"));
            return Ok(());
        }
    }
    if !observers::add(&usring_trace::OBSERVER) {
        return Err("there are too many observers of requests");
    }
    ON.store(true, Ordering::Relaxed);
    filter::DESCRIPTORS_CHECK.store(true, Ordering::Relaxed);
    Ok(())
}

/// Notifies the recorder of a call that may close or replace a descriptor.
pub fn note(call: &Call) {
    let [first, second, ..] = call.arguments;
    match width::low(call.number) {
        linux::__NR_close => usring_trace::forget_descriptor(width::int(first)),
        linux::__NR_dup2 | linux::__NR_dup3 => usring_trace::forget_descriptor(width::int(second)),
        _ => {}
    }
}
