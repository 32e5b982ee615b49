//! Guards system calls on swapped memory. The program makes such calls, and so does usring for the
//! program. Pins the memory that a call names until the kernel has answered the call
//! ([`usring_call_memory`]).
//!
//! For a call of the program, `guard` only pins the memory. The entry point then makes the call
//! ([`Outcome::PINNED`]), so that a signal interrupts it as it would without usring. Afterwards,
//! `dispatch` calls [`after`].

use crate::call::{Call, Outcome};
use crate::runtime::message;
use crate::swap::{in_flight, region};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, Ordering};
use usring_call_memory::{self as call_memory, PinnedCall, is_execution};
use usring_swap::mappings::WINDOW;
use usring_sys::pinned_memory::{self, PinHook};
use usring_sys::{Errno, SystemCall, width};

/// The hook that pins memory for the system calls that the engine makes.
pub static PIN_HOOK: PinHook = PinHook { prepare, finish, window: WINDOW.start as u64..WINDOW.end as u64 };

fn prepare(call: &mut SystemCall) -> Result<usize, Errno> {
    if !region::exists() {
        return Ok(0);
    }
    // The engine's calls name memory by an argument, an `iovec` array or a message, so this check
    // finds all of them. A thread that moves a swapped page is exempt. It owns the page until the
    // move is done, and to pin the page it would wait for the owner.
    if !call_memory::may_name_memory(call) || pinned_memory::is_exempt() || is_execution(call.number) {
        return Ok(0);
    }
    let pinned = PinnedCall::new(call, region::mappings)?;
    Ok(pinned.map_or(0, |pinned| Box::into_raw(Box::new(pinned)) as usize))
}

fn finish(kept: usize, call: &mut SystemCall, answer: u64) -> Option<u64> {
    // SAFETY: `kept` comes from `Box::into_raw` in `prepare` or below, and each value is used only
    // once.
    let mut pinned = unsafe { Box::from_raw(kept as *mut PinnedCall) };
    let answer = proceed(&mut pinned, call, answer);
    if answer.is_none() {
        let _ = Box::into_raw(pinned);
    }
    answer
}

/// Handles the kernel's answer to `call`, and returns the answer for the program. `None`: the
/// caller must make `call` once more, for the next part of its data or after an EFAULT.
fn proceed(pinned: &mut PinnedCall, call: &mut SystemCall, answer: u64) -> Option<u64> {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    let is_fault = answer == i64::from(Errno::EFAULT.negative()).cast_unsigned();
    if is_fault && call_memory::is_guess(call.number) && !IS_REPORTED.swap(true, Ordering::Relaxed) {
        message::say(format_args!(
            "swap: system call {} answers EFAULT: it may name swapped memory in a structure that usring \
             does not know",
            call.number
        ));
    }
    pinned.proceed(call, answer)
}

/// Serves a call by `serve`. If `serve` leaves the call to the kernel, pins the memory that the
/// call names.
pub fn guard(call: &mut Call, serve: fn(&mut Call) -> Outcome) -> Outcome {
    if !region::exists() {
        return serve(call);
    }
    if !is_execution(width::low(call.number)) {
        let outcome = serve(call);
        return if outcome.kind == Outcome::FORWARD { hold(call) } else { outcome };
    }
    // An exec returns only if it fails.
    let mut execution = SystemCall::with_six(width::low(call.number), call.arguments);
    let address = core::ptr::from_ref(call) as usize;
    match PinnedCall::new(&mut execution, region::mappings) {
        Ok(pinned) => {
            let is_kept = pinned.map(|pinned| in_flight::keep(address, pinned)).is_some();
            let outcome = serve(call);
            if is_kept {
                drop(in_flight::take(address));
            }
            outcome
        }
        Err(error) => Err::<u64, _>(error).into(),
    }
}

const FORWARD: Outcome = Outcome { answer: 0, kind: Outcome::FORWARD };
const PINNED: Outcome = Outcome { answer: 0, kind: Outcome::PINNED };

fn hold(call: &mut Call) -> Outcome {
    let mut forward = SystemCall::with_six(width::low(call.forward.number), call.forward.arguments);
    match PinnedCall::new(&mut forward, region::mappings) {
        Ok(None) => FORWARD,
        Ok(Some(pinned)) => {
            in_flight::keep(core::ptr::from_ref(call) as usize, pinned);
            call.forward_to(forward.number.into(), forward.arguments);
            PINNED
        }
        Err(error) => Err::<u64, _>(error).into(),
    }
}

/// Handles the kernel's answer to a call whose outcome was [`Outcome::PINNED`].
pub fn after(call: &mut Call, answer: u64) -> Outcome {
    let address = core::ptr::from_ref(call) as usize;
    let done = |answer| Outcome { answer, kind: Outcome::DONE };
    let Some(mut pinned) = in_flight::take(address) else { return done(answer) };
    let mut forward = SystemCall::with_six(width::low(call.forward.number), call.forward.arguments);
    match proceed(&mut pinned, &mut forward, answer) {
        Some(answer) => done(answer),
        None => {
            in_flight::keep(address, pinned);
            call.forward_to(forward.number.into(), forward.arguments);
            PINNED
        }
    }
}
