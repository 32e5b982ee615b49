//! Detects how the program misuses its rings (`usring run --check`). Notifies the checker
//! [`usring_check`] of these calls and events of the program:
//!
//! - io_uring_enter, whose callers submit requests;
//! - functions of libc that free or unmap memory, close files, or end the process ([`hooks`]);
//! - errors that AddressSanitizer finds ([`asan`]);
//! - the end of the process.

mod asan;
mod hooks;
mod liburing;

use crate::call::{Call, Outcome};
use crate::files::{descriptors, rings};
use crate::process;
use crate::process::environment::{self, Checking};
use crate::runtime::message;
use crate::{memcheck, tsan};
use core::sync::atomic::{AtomicBool, Ordering};
use usring_check::stacks::MEMORY_BYTES;
use usring_check::{Mode, Registers};
use usring_engine::observers;
use usring_sys::{UserAddress, file, mapping, user_memory};

static ON: AtomicBool = AtomicBool::new(false);
/// Whether [`enter`] serves the program's io_uring_enter calls.
static SEES_ENTER: AtomicBool = AtomicBool::new(false);

/// Returns whether the program is checked.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Returns whether [`enter`] serves the program's io_uring_enter calls.
#[inline(always)]
pub fn sees_enter() -> bool {
    SEES_ENTER.load(Ordering::Relaxed)
}

/// Makes [`enter`] serve the program's io_uring_enter calls.
fn see_enter() {
    SEES_ENTER.store(true, Ordering::Relaxed);
    crate::faults::ask_for_each_call();
}

/// Begins to check the program when it starts, if it runs under `usring run --check`. Also begins
/// to notify Valgrind and ThreadSanitizer, if the process has them.
///
/// Errors: a message of one sentence.
pub fn connect() -> Result<(), &'static str> {
    let has_tsan = tsan::connect()?;
    if memcheck::connect()? || has_tsan {
        see_enter();
    }
    if has_tsan || environment::checking().is_some() {
        liburing::install();
    }
    let Some(Checking { path, aborts, unique_user_data }) = environment::checking() else { return Ok(()) };
    let mode = if aborts { Mode::Abort } else { Mode::Report };
    if let Err(error) = usring_check::start(path, mode, unique_user_data) {
        message::say(format_args!("cannot open the file for the findings of --check ({error})"));
        return Err("the findings of --check cannot be written; has `usring run` ended, or the user changed?");
    }
    if let Some(path) = environment::stacks()
        && let Ok(memory) = file::open_shared(path).and_then(|file| mapping::shared_pages_of_words(&file, MEMORY_BYTES))
    {
        usring_check::stacks::start(memory, process::id());
    }
    if !observers::add(&usring_check::OBSERVER) {
        return Err("there are too many observers of requests");
    }
    ON.store(true, Ordering::Relaxed);
    see_enter();
    hooks::install();
    asan::connect();
    Ok(())
}

/// Serves io_uring_enter.
#[cold]
#[inline(never)]
pub fn enter(call: &mut Call) -> Outcome {
    let object = tsan::begin(call);
    let outcome = memcheck::around(|| {
        if !is_on() {
            return rings::enter(call).into();
        }
        usring_check::begin_call(registers_of(call));
        let outcome = rings::enter(call).into();
        usring_check::end_call();
        outcome
    });
    tsan::end(object);
    outcome
}

/// Bytes from an entry point's frame up to the program's stack pointer at the call. If the call
/// came from a `syscall` instruction, they hold saved registers, the return address and the red
/// zone. If it came from a replaced function of libc, there is no red zone.
const FRAME_OF_INSTRUCTION: u64 = 144;
const FRAME_OF_FUNCTION: u64 = 16;

fn registers_of(call: &Call) -> Registers {
    let word = |offset| user_memory::read::<u64>(UserAddress(call.frame).offset(offset)).unwrap_or(0);
    let (frame, instruction) = (word(0), word(8));
    let length = if call.return_address == 0 { FRAME_OF_FUNCTION } else { FRAME_OF_INSTRUCTION };
    Registers { instruction, stack: call.frame + length, frame }
}

/// Undoes, in a forked child, the changes that the checker has made to memory that the child has
/// inherited. Called at the child's beginning, before other code of the program runs there.
pub fn begin_child() {
    usring_check::shadow::forget_after_fork();
}

/// Notifies the checker that the process ends. Does nothing in a vfork child, which borrows its
/// parent's memory.
fn end() {
    process::current();
    if !process::is_own() {
        return;
    }
    for number in descriptors::in_use() {
        descriptors::with(number, |file| file.ring.end_observation());
    }
    usring_check::ends_process();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destroy;

extern "C" fn destroy() {
    if is_on() {
        end();
    }
}
