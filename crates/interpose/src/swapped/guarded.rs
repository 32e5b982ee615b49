//! System calls on swapped memory, by the program or by usring for it: the memory that they name is
//! brought in first, and stays pinned until the kernel has answered.
//!
//! For a page that is out the kernel's own answer is EFAULT, and a datagram that was to be received
//! there is lost. So no call is tried before its memory is pinned.
//!
//! - Structures, names and small data are pinned regardless of the limit.
//! - Large data is transferred separately ([`super::transfer`]).
//! - A call that names more than half of the limit, and not as data, is answered ENOMEM.
//! - A word that threads sleep on is not pinned: it is in memory when the kernel first reads it.
//!   After an EFAULT it is pinned, and the kernel reads it again.
//!
//! The entry point makes the call in its own place ([`Outcome::GUARDED`]), so that signals
//! interrupt it as they would interrupt the program's. It then calls [`after`].

use crate::call::{Call, Outcome};
use crate::runtime::message;
use crate::swapped::data::{self, Data};
use crate::swapped::pointers::{self, Span, Spans};
use crate::swapped::transfer::{Pinned, Transfer};
use crate::swapped::{managed, outstanding};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, Ordering};
use usring_swap::mappings::{Mappings, Pins, WINDOW};
use usring_sys::pinned_memory::{self, PinHook};
use usring_sys::{Errno, SystemCall, signals};
use usring_uapi::general as linux;

/// The pin hook for the system calls that the engine makes.
pub static PIN_HOOK: PinHook = PinHook { prepare, finish, window: WINDOW.start as u64..WINDOW.end as u64 };

fn prepare(call: &mut SystemCall) -> Result<usize, Errno> {
    if !managed::has_region() {
        return Ok(0);
    }
    // A ring makes no call that names memory in another way. (The calls of a pager name the region
    // directly, on a thread that has taken a page.)
    let is_direct = || call.arguments.iter().any(|argument| managed::is_in_window(*argument));
    if !(is_direct() || data::is_indirect(call.number)) || pinned_memory::is_exempt() || is_execution(call.number) {
        return Ok(0);
    }
    Ok(Guarded::new(call)?.map_or(0, |guarded| Box::into_raw(Box::new(guarded)) as usize))
}

fn finish(kept: usize, call: &mut SystemCall, answer: u64) -> Option<u64> {
    // SAFETY: the number comes from `prepare` or from this function, which released the box.
    let mut guarded = unsafe { Box::from_raw(kept as *mut Guarded) };
    let answer = guarded.proceed(call, answer);
    if answer.is_none() {
        let _ = Box::into_raw(guarded);
    }
    answer
}

static EFAULT_TOLD: AtomicBool = AtomicBool::new(false);

/// The pinned memory and buffers of a call in flight.
pub struct Guarded {
    mappings: &'static Mappings,
    pinned: Option<Pinned>,
    transfer: Option<Box<Transfer>>,
    /// For a call that is made again after EFAULT: the memory that it names.
    sought: Option<Box<Spans>>,
}

impl Guarded {
    /// Pins the memory of a call. `None`: the call names no swapped memory.
    fn new(call: &mut SystemCall) -> Result<Option<Guarded>, Errno> {
        let mut spans = pointers::of(call.number, &call.arguments);
        let data = Data::of(call.number, &call.arguments, &mut spans);
        if spans.is_empty() && data.is_none() {
            return Ok(None);
        }
        let Some(mappings) = managed::mappings() else { return Ok(None) };
        let most = mappings.most_pinned().1;
        if spans.iter().any(|span| span.length > most && is_longer(mappings, span, most)) && !is_execution(call.number)
        {
            return Err(Errno::ENOMEM);
        }
        let mut pinned = Some(Pinned::new(mappings, &spans, Pins::Needed)?);
        let mut sought = None;
        if is_sleep(call) {
            (pinned, sought) = (None, Some(Box::new(spans)));
        }
        let mut transfer = data.and_then(|data| Transfer::of(data, call, mappings)).map(Box::new);
        if let Some(transfer) = &mut transfer {
            transfer.begin(call, mappings)?;
        }
        Ok(Some(Guarded { mappings, pinned, transfer, sought }))
    }

    /// Handles the kernel's answer to the call. `None`: the changed call must be made, too.
    fn proceed(&mut self, call: &mut SystemCall, answer: u64) -> Option<u64> {
        if answer == error(Errno::EFAULT)
            && let Some(spans) = self.sought.take()
        {
            return self.seek(&spans);
        }
        if answer == error(Errno::EFAULT)
            && pointers::is_guess(call.number)
            && !EFAULT_TOLD.swap(true, Ordering::Relaxed)
        {
            message::say(format_args!(
                "swap: system call {} answers EFAULT: it may name swapped memory by way of other memory in a way \
                 that is not known",
                call.number
            ));
        }
        let Some(transfer) = &mut self.transfer else { return Some(answer) };
        match transfer.goes_on(answer) {
            Ok(true) => {}
            Ok(false) => return Some(transfer.result(answer)),
            Err(failed) => return Some(error(failed)),
        }
        // The kernel, too, returns the bytes done so far when a signal interrupts it.
        if transfer.begin(call, self.mappings).is_err() || signals::interrupted() {
            return Some(transfer.break_off());
        }
        None
    }

    /// Pins the memory again in a forked child, which goes on with the call.
    pub fn inherit(&mut self, mappings: &'static Mappings) {
        self.mappings = mappings;
        if let Some(pinned) = &mut self.pinned {
            pinned.inherit(mappings);
        }
        if let Some(transfer) = &mut self.transfer {
            transfer.inherit(mappings);
        }
    }

    /// Brings in evicted pages again, and pins them this time.
    fn seek(&mut self, spans: &Spans) -> Option<u64> {
        match Pinned::new(self.mappings, spans, Pins::Needed) {
            Ok(pinned) => {
                self.pinned = Some(pinned);
                None
            }
            Err(failed) => Some(error(failed)),
        }
    }
}

fn error(error: Errno) -> u64 {
    i64::from(error.negative()) as u64
}

/// Whether more than `most` bytes of a span are mapped.
fn is_longer(mappings: &Mappings, span: &Span, most: usize) -> bool {
    mappings.around(span.start).is_some_and(|around| around.end - span.start > most)
}

fn is_execution(number: u32) -> bool {
    matches!(number, linux::__NR_execve | linux::__NR_execveat)
}

/// Whether the call only sleeps until a word changes. EFAULT then means that nothing has happened.
fn is_sleep(call: &SystemCall) -> bool {
    let operation = call.arguments[1] as u32 & !(linux::FUTEX_PRIVATE_FLAG | linux::FUTEX_CLOCK_REALTIME);
    match call.number {
        linux::__NR_futex => matches!(operation, linux::FUTEX_WAIT | linux::FUTEX_WAIT_BITSET),
        linux::__NR_futex_wait | linux::__NR_futex_waitv => true,
        _ => false,
    }
}

/// Serves a call. If the kernel is to answer the call, its memory is pinned first.
pub fn guard(call: &mut Call, serve: fn(&mut Call) -> Outcome) -> Outcome {
    if !managed::has_region() {
        return serve(call);
    }
    if !is_execution(call.number as u32) {
        let outcome = serve(call);
        return if outcome.kind == Outcome::FORWARD { hold(call) } else { outcome };
    }
    // An exec returns only if it fails.
    let mut execution = SystemCall::with_six(call.number as u32, call.arguments);
    let place = core::ptr::from_ref(call) as usize;
    match Guarded::new(&mut execution) {
        Ok(guarded) => {
            let is_kept = guarded.map(|guarded| outstanding::keep(place, guarded)).is_some();
            let outcome = serve(call);
            if is_kept {
                drop(outstanding::take(place));
            }
            outcome
        }
        Err(error) => Err::<u64, _>(error).into(),
    }
}

const FORWARD: Outcome = Outcome { answer: 0, kind: Outcome::FORWARD };
const GUARDED: Outcome = Outcome { answer: 0, kind: Outcome::GUARDED };

fn hold(call: &mut Call) -> Outcome {
    let mut forward = SystemCall::with_six(call.forward.number as u32, call.forward.arguments);
    match Guarded::new(&mut forward) {
        Ok(None) => FORWARD,
        Ok(Some(guarded)) => {
            outstanding::keep(core::ptr::from_ref(call) as usize, guarded);
            call.forward_to(forward.number.into(), forward.arguments);
            GUARDED
        }
        Err(error) => Err::<u64, _>(error).into(),
    }
}

/// For the entry point: handles the kernel's answer to a call that is [`Outcome::GUARDED`].
pub extern "C" fn after(call: &mut Call, answer: u64) -> Outcome {
    let place = core::ptr::from_ref(call) as usize;
    let done = |answer| Outcome { answer, kind: Outcome::DONE };
    let Some(mut guarded) = outstanding::take(place) else { return done(answer) };
    let mut forward = SystemCall::with_six(call.forward.number as u32, call.forward.arguments);
    match guarded.proceed(&mut forward, answer) {
        Some(answer) => done(answer),
        None => {
            outstanding::keep(place, guarded);
            call.forward_to(forward.number.into(), forward.arguments);
            GUARDED
        }
    }
}
