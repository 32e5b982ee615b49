//! System calls of the program, and ours for it, on memory that is swapped: what they
//! name is brought in first, and stays until the kernel has answered.
//!
//! The kernel's own answer for a page that is out is EFAULT, and a datagram that was to
//! be received there is lost; so nothing is tried first. Structures, names and a little data are
//! kept in memory whatever the limit; much data have ways of their own ([`super::transfer`]). What a call names that is more than
//! half of the limit, and no data, is answered ENOMEM.
//!
//! Nobody keeps a word that threads sleep on: it is there when the kernel looks at it, and where it has just
//! gone again, the kernel looks again.
//!
//! The door makes the call in its own place ([`Outcome::GUARDED`]), so that signals meet
//! it as they would meet the program's, and then asks [`after`].

use crate::doors::door::{Call, Outcome};
use crate::message;
use crate::swapped::data::{self, Data};
use crate::swapped::managed;
use crate::swapped::outstanding;
use crate::swapped::pointers::{self, Span, Spans};
use crate::swapped::transfer::{Pinned, Transfer};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, Ordering};
use usring_swap::mappings::{Mappings, Pins, WINDOW};
use usring_sys::kept_memory::{self, Keeper};
use usring_sys::{Errno, SystemCall, signals};
use usring_uapi::general as linux;

/// Looks at the system calls that the engine makes.
pub static KEEPER: Keeper = Keeper { prepare, finish, window: WINDOW.start as u64..WINDOW.end as u64 };

fn prepare(call: &mut SystemCall) -> Result<usize, Errno> {
    if !managed::has_region() {
        return Ok(0);
    }
    // Nothing that is named otherwise is asked for by way of a ring. (A pager's calls, in a
    // thread that has a page in its hand, name the region so.)
    let is_direct = || call.arguments.iter().any(|argument| managed::is_in_window(*argument));
    if !(is_direct() || data::is_indirect(call.number)) || kept_memory::is_exempt() || is_execution(call.number) {
        return Ok(0);
    }
    Ok(Guarded::new(call)?.map_or(0, |guarded| Box::into_raw(Box::new(guarded)) as usize))
}

fn finish(kept: usize, call: &mut SystemCall, answer: u64) -> Option<u64> {
    // SAFETY: the number is `prepare`'s or this function's own, which gave the box up.
    let mut guarded = unsafe { Box::from_raw(kept as *mut Guarded) };
    let answer = guarded.proceed(call, answer);
    if answer.is_none() {
        let _ = Box::into_raw(guarded);
    }
    answer
}

static EFAULT_TOLD: AtomicBool = AtomicBool::new(false);

/// What is kept for a call that is out.
pub struct Guarded {
    mappings: &'static Mappings,
    pinned: Option<Pinned>,
    transfer: Option<Box<Transfer>>,
    /// Of a call that is made again where something was out: what it names.
    sought: Option<Box<Spans>>,
}

impl Guarded {
    /// `None`: the kernel finds everything.
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

    /// The kernel has answered the call. `None`: it is to answer the call as it stands
    /// now, too.
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
        // The kernel, too, answers what is done where a signal meets it under way.
        if transfer.begin(call, self.mappings).is_err() || signals::interrupted() {
            return Some(transfer.break_off());
        }
        None
    }

    /// In a forked child, which goes on with the call: keeps the same in its own memory.
    pub fn inherit(&mut self, mappings: &'static Mappings) {
        self.mappings = mappings;
        if let Some(pinned) = &mut self.pinned {
            pinned.inherit(mappings);
        }
        if let Some(transfer) = &mut self.transfer {
            transfer.inherit(mappings);
        }
    }

    /// Brings in again what has gone; and keeps it now.
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

/// Whether more of a span than this is mapped.
fn is_longer(mappings: &Mappings, span: &Span, most: usize) -> bool {
    mappings.around(span.start).is_some_and(|around| around.end - span.start > most)
}

fn is_execution(number: u32) -> bool {
    matches!(number, linux::__NR_execve | linux::__NR_execveat)
}

/// Whether the call does nothing but sleep until a word is changed: EFAULT says that nothing
/// has happened.
fn is_sleep(call: &SystemCall) -> bool {
    let operation = call.arguments[1] as u32 & !(linux::FUTEX_PRIVATE_FLAG | linux::FUTEX_CLOCK_REALTIME);
    match call.number {
        linux::__NR_futex => matches!(operation, linux::FUTEX_WAIT | linux::FUTEX_WAIT_BITSET),
        linux::__NR_futex_wait | linux::__NR_futex_waitv => true,
        _ => false,
    }
}

/// Serves a call; one that the kernel is to answer finds its memory.
pub fn guard(call: &mut Call, serve: fn(&mut Call) -> Outcome) -> Outcome {
    if !managed::has_region() {
        return serve(call);
    }
    if !is_execution(call.number as u32) {
        let outcome = serve(call);
        return if outcome.kind == Outcome::FORWARD { hold(call) } else { outcome };
    }
    // It comes back only if it fails.
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

/// For the door: the kernel has answered a call that is [`Outcome::GUARDED`].
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
