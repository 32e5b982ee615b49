//! Faults in the program's plain system calls (`usring run --inject`).
//!
//! The run's rules name the calls that trap ([`filter`]). Before such a call is served, it is
//! checked against the rules. A fault may replace the call: this module then answers, and the call
//! is not made. With any other fault, the call is made. The effects that come after the call
//! (another answer, a delay, flipped bits) are a `Change`, which [`after`] applies.
//!
//! The loader makes some of these calls, too, at a time when a trap would fail. If the filter
//! cannot distinguish the program's calls from the loader's, they do not trap. usring sees such
//! calls by the symbols of libc ([`is_for_symbols`]).

use crate::call::{CALL_SIZE, Call, Outcome};
use crate::filter;
use crate::process::environment;
use crate::recording;
use crate::runtime::message;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use usring_inject::calls::{self, Moves, PlainCall};
use usring_inject::damage::Flip;
use usring_inject::decide::{Call as Asked, Fault};
use usring_inject::names::OfCall;
use usring_inject::page::Page;
use usring_inject::rule::{Answer, Effect};
use usring_inject::{Kind, armed};
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::plain::IoVector;
use usring_sys::{Errno, SystemCall, UserAddress, file, signals, user_memory, wait, width};
use usring_uapi::general as linux;

/// Whether calls ask the rules.
static ARMED: AtomicBool = AtomicBool::new(false);

/// Number of the system call that [`crate::dispatch::serve_frequent`] serves directly, without
/// [`crate::dispatch::dispatch`]. The value is `u32::MAX`, which is no call's number, if the
/// process has fault rules or if [`crate::check::enter`] has to see each call.
pub static FREQUENT: AtomicU32 = AtomicU32::new(linux::__NR_io_uring_enter);

/// Returns whether this process checks its calls against rules.
#[inline(always)]
pub fn are_armed() -> bool {
    ARMED.load(Ordering::Relaxed)
}

/// Makes the most frequent call go through [`crate::dispatch::dispatch`], as all other calls do.
pub fn ask_for_each_call() {
    FREQUENT.store(u32::MAX, Ordering::Relaxed);
}

/// Connects a starting program to the run's fault rules, if the run has any.
///
/// Errors: a message of one sentence.
pub fn connect() -> Result<(), &'static str> {
    let Some(path) = environment::faults() else { return Ok(()) };
    let page = file::open_shared(path).and_then(|file| Page::open(&file));
    let page = match page {
        Ok(page) => page,
        Err(error) => {
            message::say(format_args!("cannot read the rules of --inject ({error})"));
            return Err("the rules of this run cannot be read; has `usring run` ended, or the user changed?");
        }
    };
    arm(page)
}

/// Applies the fault rules in `page` to the program's calls from now on.
fn arm(page: Page) -> Result<(), &'static str> {
    let traps = page.traps();
    armed::arm(page);
    ask_for_each_call();
    ARMED.store(true, Ordering::Relaxed);
    filter::check_symbols();
    filter::install_for_calls(
        &traps,
        "calls that rules name do not reach usring although the kernel accepted the seccomp filter",
    )
}

/// Adds a rule that the program itself has made, for `usring_inject_once`
/// (`include/usring_inject.h`). `address`: the address of the rule's text. With the address 0, the
/// function instead removes the rules that this process has added and that have made no fault yet.
///
/// Errors: `EINVAL` (a message on standard error has the reason); `EFAULT`; `ENOSPC` if there are
/// too many rules; `ENOMEM`; `EPERM` if the calls of the rule cannot be trapped.
pub fn add_once(address: u64) -> Result<u64, Errno> {
    /// Maximum length of a rule's text, in bytes, with its NUL.
    const MOST_TEXT_BYTES: usize = 4096;
    if address == 0 {
        armed::remove_all_once();
        return Ok(0);
    }
    let mut text = user_memory::read_c_string(UserAddress(address), MOST_TEXT_BYTES)?;
    text.pop();
    let text = String::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    let rule = usring_inject::parse(&text).map_err(|error| {
        message::say(format_args!("usring_inject_once: {error}"));
        Errno::EINVAL
    })?;
    if armed::page().is_none() {
        let page = Page::of_process(0, Clock::Monotonic.now())?;
        arm(page).map_err(|_| Errno::EPERM)?;
    }
    trap(&rule.set.calls())?;
    armed::add_once(&rule).ok_or(Errno::ENOSPC)?;
    Ok(0)
}

/// Makes the calls of a rule trap, except calls that trap already because of an earlier rule. Bit n
/// of `calls` stands for the system call with the number n.
fn trap(calls: &[u64; 8]) -> Result<(), Errno> {
    /// The calls in the rules that the program has added by `usring_inject_once`, one bit each.
    static TRAPPED: Mutex<[u64; 8]> = Mutex::new([0; 8]);
    let mut trapped = TRAPPED.lock();
    let of_run = armed::page().map_or([0; 8], Page::traps);
    let missing: [u64; 8] = core::array::from_fn(|word| calls[word] & !trapped[word] & !of_run[word]);
    filter::install_for_calls(&missing, "").map_err(|_| Errno::EPERM)?;
    *trapped = core::array::from_fn(|word| calls[word] | trapped[word]);
    Ok(())
}

/// Answers [`filter::FAULTS_PROBE`], the test call by which usring finds out whether the filter of
/// [`filter::install_for_calls`] is installed.
pub fn answer_probe() -> Outcome {
    Ok::<u64, Errno>(filter::CALLS_PROBE_ANSWER).into()
}

/// Returns whether the libc symbol of a call has to check the call against the rules. It must do so
/// if a rule may name the call, and the filter lets some calls with this number pass untrapped.
pub fn is_for_symbols(number: u32) -> bool {
    are_armed() && filter::spares_loader(number) && u16::try_from(number).is_ok_and(|it| armed::names(Kind::Call, it))
}

/// Checks a call against the rules, and injects the fault if a rule gives the call one. Otherwise
/// calls `serve`.
pub fn serve(call: &mut Call, serve: fn(&mut Call) -> Outcome) -> Outcome {
    let Some(plain) = calls::by_number(width::low(call.number)) else { return serve(call) };
    let arguments = call.arguments;
    let fault = armed::fault_of_call(&Asked {
        kind: Kind::Call,
        number: width::short(plain.number.into()),
        descriptor: plain.descriptor.map(|index| width::int(arguments[usize::from(index)])),
        user_data: None,
        ring: None,
        thread: signals::thread_id(),
        names: &OfCall { call: plain, arguments: &arguments },
        issue_path: None,
    });
    match fault {
        Some(fault) => inject(call, plain, &fault, serve),
        None => serve(call),
    }
}

#[cold]
fn inject(call: &mut Call, plain: &'static PlainCall, fault: &Fault, serve: fn(&mut Call) -> Outcome) -> Outcome {
    if let Some(signal) = fault.signal {
        let _ = signals::send_to_thread(signals::thread_id(), signal.into());
    }
    pause(fault.delay_enter);
    if let Some(answer) = fault.answer
        && !fault.makes_call()
    {
        pause(fault.delay_exit);
        if recording::is_on() && matches!(answer, Answer::Error(_)) {
            let made = SystemCall::with_six(plain.number, call.marked());
            usring_record::calls::note_failure(&made, fault.effect == Effect::Drop);
        }
        return answer_as(answer);
    }
    let arguments = call.arguments;
    let memory = if fault.flip.is_some() { memory_of(call, plain) } else { Vec::new() };
    let vector = shorten(call, plain, fault);
    let change = Change { plain, answer: fault.answer, delay: fault.delay_exit, vector, flip: fault.flip, memory };
    let outcome = serve(call);
    // The program's registers keep their values.
    call.arguments = arguments;
    if change.is_nothing() {
        return outcome;
    }
    match outcome.kind {
        Outcome::DONE => change.apply(outcome.answer),
        Outcome::FORWARD | Outcome::PINNED => {
            keep(core::ptr::from_ref(call) as usize, change);
            Outcome { answer: 0, kind: Outcome::PINNED }
        }
        _ => outcome,
    }
}

fn answer_as(answer: Answer) -> Outcome {
    let answer = match answer {
        Answer::Error(number) => i64::from(Errno::new(number.into()).negative()).cast_unsigned(),
        Answer::Value(value) => value.cast_unsigned(),
    };
    Outcome { answer, kind: Outcome::DONE }
}

/// Sleeps for the whole span. Signals that arrive during the sleep are deferred, as they are when
/// strace(1) delays a call.
fn pause(span: Nanoseconds) {
    let end = Clock::Monotonic.now().saturating_add(span);
    let mut left = span;
    while left != 0 {
        let _ = wait::nanosleep(left);
        left = end.saturating_sub(Clock::Monotonic.now());
    }
}

/// Maximum number of buffers in an `iovec` array.
const MOST_MEMBERS: usize = linux::UIO_MAXIOV as usize;

/// Shortens a transfer: limits the byte count in `call.arguments`, if the fault asks for this. For
/// a call with an `iovec` array, returns a shortened copy of the array. The arguments then point to
/// this copy, so it must outlive the call.
fn shorten(call: &mut Call, plain: &PlainCall, fault: &Fault) -> Option<Vec<IoVector>> {
    fault.short?;
    match plain.moves {
        Moves::Nothing => None,
        Moves::Bytes { length, .. } => {
            let length = &mut call.arguments[usize::from(length)];
            *length = fault.limit(*length).unwrap_or(*length);
            None
        }
        Moves::Vector { address, count } => {
            let [address, count] = [usize::from(address), usize::from(count)];
            let from = UserAddress(call.arguments[address]);
            let most = usize::try_from(call.arguments[count]).ok().filter(|count| *count <= MOST_MEMBERS)?;
            let mut members = user_memory::read_array::<IoVector>(from, most).ok()?;
            let total = members.iter().fold(0u64, |sum, member| sum.saturating_add(member.length));
            let mut left = fault.limit(total)?;
            for member in &mut members {
                member.length = member.length.min(left);
                left -= member.length;
            }
            call.arguments[address] = members.as_ptr() as u64;
            Some(members)
        }
    }
}

/// Returns the memory that a transfer names.
fn memory_of(call: &Call, plain: &PlainCall) -> Vec<IoVector> {
    let argument = |index: u8| call.arguments[usize::from(index)];
    match plain.moves {
        Moves::Bytes { address: Some(address), length } => {
            alloc::vec![IoVector { base: argument(address), length: argument(length) }]
        }
        Moves::Vector { address, count } => {
            let count = usize::try_from(argument(count)).unwrap_or(0).min(MOST_MEMBERS);
            user_memory::read_array(UserAddress(argument(address)), count).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// The part of a fault that takes effect after the call was made.
struct Change {
    plain: &'static PlainCall,
    answer: Option<Answer>,
    delay: Nanoseconds,
    /// The shortened `iovec` array to which the call's arguments point.
    vector: Option<Vec<IoVector>>,
    flip: Option<Flip>,
    /// The memory into which the call reads, if the fault flips bits of the data. Otherwise empty.
    memory: Vec<IoVector>,
}

impl Change {
    fn is_nothing(&self) -> bool {
        self.answer.is_none() && self.delay == 0 && self.vector.is_none() && self.flip.is_none()
    }

    /// Applies the change after the call was made. `answer`: the call's answer without the fault.
    /// Returns the answer for the program.
    fn apply(self, answer: u64) -> Outcome {
        if let Some(flip) = self.flip
            && answer <= i64::MAX as u64
        {
            flip.apply(&self.memory, answer);
        }
        pause(self.delay);
        let Some(injected) = self.answer else { return Outcome { answer, kind: Outcome::DONE } };
        if makes_descriptor(self.plain.number) && answer <= i32::MAX as u64 {
            // The program gets the injected answer in place of this descriptor number. So only
            // usring can close the descriptor.
            let _ = SystemCall::new(linux::__NR_close, [answer, 0, 0, 0, 0]).run_once();
        }
        answer_as(injected)
    }
}

fn makes_descriptor(number: u32) -> bool {
    const MAKERS: [u32; 8] = [
        linux::__NR_open,
        linux::__NR_openat,
        linux::__NR_openat2,
        linux::__NR_creat,
        linux::__NR_socket,
        linux::__NR_accept,
        linux::__NR_accept4,
        linux::__NR_eventfd2,
    ];
    MAKERS.contains(&number)
}

/// The changes of calls that have not returned yet. Their key is the address of the [`Call`], which
/// the entry point keeps on the program's stack. If the [`Call`] of a later call overlaps an
/// entry's address, the entry's call can no longer return, and the entry is dropped.
static PENDING: PerProcess<Mutex<Pending>> = PerProcess::new();

type Pending = Vec<(usize, Box<Change>)>;

fn keep(address: usize, change: Change) {
    let mut pending = PENDING.get_or_make(|| Mutex::new(Vec::new())).lock();
    pending.retain(|(other, _)| other.abs_diff(address) >= CALL_SIZE);
    pending.push((address, Box::new(change)));
}

/// Handles the kernel's answer to a call: applies the change that is pending for the call, if there
/// is one.
pub fn after(call: &Call, answer: u64) -> Outcome {
    let unchanged = Outcome { answer, kind: Outcome::DONE };
    let Some(pending) = PENDING.get() else { return unchanged };
    let address = core::ptr::from_ref(call) as usize;
    let found = {
        let mut pending = pending.lock();
        let index = pending.iter().position(|(other, _)| *other == address);
        index.map(|index| pending.swap_remove(index).1)
    };
    found.map_or(unchanged, |change| change.apply(answer))
}
