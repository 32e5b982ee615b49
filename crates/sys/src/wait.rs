//! System calls that sleep, and that a signal ends reliably.
//!
//! A thread that checks for a reason not to sleep, and then makes a system call, would miss a
//! signal that arrives between the two. So here the check and the `syscall` instruction are one
//! short stub with known addresses (as musl's cancellation points are). If a signal arrives inside
//! the stub, usring's handler moves the instruction pointer to the stub's exit ([`exit_address`]).
//! The call then ends as if it was interrupted.
//!
//! | user | word that forbids the sleep | signal that ends the call |
//! |---|---|---|
//! | a program's thread that waits for completions | [`signals::DEFERRED`] | the program's signals |
//! | a worker in a call that may block for ever ([`call_blocking`]) | the cancel word | SIGSYS |
//! | a thread in a call that hardly ever sleeps ([`call_briefly`]) | the cancel word | SIGSYS |

use crate::clock::{Clock, Nanoseconds, timespec};
use crate::epoll::Event;
use crate::perturbation::perturb_call;
use crate::signals::{self, ALWAYS_OPEN, DEFERRED, SignalSet};
use crate::{Errno, SystemCall, call_hook, pinned_memory, syscall, width};
use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use linux_raw_sys::general as linux;
use usring_uapi::Timespec;

// usring_wait(rdi: *const u32 reason, rsi: *const [u64; 6] arguments, edx: number) -> the kernel's
// answer, or ABORTED if `*reason` is not 0. From `start` to `syscall`, including `syscall` itself,
// the thread counts as not yet asleep. This also covers the restart of an interrupted call, for
// which the kernel sets the instruction pointer back to `syscall`.
global_asm!(
    ".pushsection .text.usring_wait,\"ax\",@progbits",
    ".balign 16",
    ".globl usring_wait",
    ".hidden usring_wait",
    ".type usring_wait,@function",
    "usring_wait:",
    ".cfi_startproc",
    "mov r11, rdi",
    "mov rcx, rsi",
    "mov eax, edx",
    "mov rdi, [rcx]",
    "mov rsi, [rcx + 8]",
    "mov rdx, [rcx + 16]",
    "mov r10, [rcx + 24]",
    "mov r8, [rcx + 32]",
    "mov r9, [rcx + 40]",
    ".globl usring_wait_start",
    ".hidden usring_wait_start",
    "usring_wait_start:",
    "cmp dword ptr [r11], 0",
    "jne usring_wait_exit",
    "syscall",
    ".globl usring_wait_end",
    ".hidden usring_wait_end",
    "usring_wait_end:",
    "xor r9d, r9d", // as in `syscall6`: no other call may carry the mark
    "ret",
    ".globl usring_wait_exit",
    ".hidden usring_wait_exit",
    "usring_wait_exit:",
    "xor r9d, r9d",
    "mov rax, -512",
    "ret",
    ".cfi_endproc",
    ".size usring_wait, . - usring_wait",
    ".popsection",
);

unsafe extern "C" {
    fn usring_wait(reason: *const u32, arguments: *const [u64; 6], number: u32) -> u64;
    static usring_wait_start: u8;
    static usring_wait_end: u8;
    static usring_wait_exit: u8;
}

/// The answer of `usring_wait` when no call was made: −ERESTARTSYS, which the kernel never returns
/// to user space.
const ABORTED: u64 = (-512i64).cast_unsigned();

/// Longest single sleep of a call that must have a time limit. A futex wait must have one: without
/// it, the kernel would restart the wait after a signal whose handler has SA_RESTART. The kernel
/// never restarts a wait on an epoll set (signal(7)), so such a wait needs no limit and no timer.
const MOST_SLEEP_NS: Nanoseconds = 3600 * 1_000_000_000;
static LONGEST_TIME: Timespec = timespec(MOST_SLEEP_NS);

/// Longest single sleep while *another* thread has a deferred signal. [`DEFERRED`] then does not
/// show whether this thread has one. So this thread wakes at least this often, and checks
/// [`signals::interrupted`].
const SIGNAL_CHECK_INTERVAL_NS: Nanoseconds = 1_000_000;

/// Called by usring's signal handlers, with the instruction pointer at which the signal arrived. If
/// it lies inside the stub `usring_wait`, returns the stub's exit, and the handler then makes the
/// thread continue there.
pub fn exit_address(instruction_pointer: usize) -> Option<usize> {
    let start = &raw const usring_wait_start as usize;
    let end = &raw const usring_wait_end as usize;
    (start..end).contains(&instruction_pointer).then_some(&raw const usring_wait_exit as usize)
}

/// The result of a call through the stub `usring_wait`.
enum Ended {
    /// The kernel answered.
    Answered(Result<u64, Errno>),
    /// The call was not made, or it was interrupted and is not restarted.
    Aborted,
}

fn run(reason: &AtomicU32, call: &SystemCall) -> Ended {
    // SAFETY: 1. `reason` and `call.arguments` live across the call. 2. The kernel checks the
    // arguments, which are usring's or the program's (see "The program's numbers" at the head of
    // the crate). 3. `usring_wait` keeps the C ABI.
    let run = |call: &SystemCall| unsafe { usring_wait(reason.as_ptr(), &raw const call.arguments, call.number) };
    perturb_call();
    let answer = call_hook::call_through(call, |call| pinned_memory::call_pinned(call, run));
    perturb_call();
    match answer {
        ABORTED => Ended::Aborted,
        answer => Ended::Answered(syscall::check(answer)),
    }
}

/// A word for [`run`] that is always 0, so that the call is always made.
static NEVER_CANCELLED: AtomicU32 = AtomicU32::new(0);

/// Makes a system call that sleeps. Returns when the kernel answers, or when `timeout` is over.
/// Error: `EINTR` if a signal of this thread has been deferred. `build` builds the call. Its
/// argument is the call's time limit; `None`: no limit.
fn sleep(timeout: Option<Nanoseconds>, build: impl Fn(Option<&Timespec>) -> SleepCall) -> Result<u64, Errno> {
    let time = timeout.map(|timeout| timespec(timeout.min(MOST_SLEEP_NS)));
    let timeout = timeout.unwrap_or(Nanoseconds::MAX);
    let SleepCall { call, timed_out } = build(time.as_ref());
    let slept = match run(&DEFERRED, &call) {
        Ended::Answered(answer) if timeout <= MOST_SLEEP_NS || !timed_out(&answer) => return answer,
        Ended::Answered(_) => MOST_SLEEP_NS,
        Ended::Aborted if signals::interrupted() => return Err(Errno::EINTR),
        Ended::Aborted => 0,
    };
    sleep_on(Clock::Monotonic.now().saturating_add(timeout - slept), build)
}

/// Continues [`sleep`] after its first call. This happens in two rare cases: the time limit is
/// longer than one call may sleep ([`MOST_SLEEP_NS`]), or a deferred signal of another thread
/// stopped the call.
#[cold]
fn sleep_on(deadline: Nanoseconds, build: impl Fn(Option<&Timespec>) -> SleepCall) -> Result<u64, Errno> {
    loop {
        let left = deadline.saturating_sub(Clock::Monotonic.now());
        let (reason, slice) = if DEFERRED.load(Ordering::Relaxed) == 0 {
            (&DEFERRED, MOST_SLEEP_NS)
        } else if signals::interrupted() {
            return Err(Errno::EINTR);
        } else {
            // From here on, a signal for this thread does not stay unnoticed. Either its handler
            // finds the thread in the stub `usring_wait`, or this loop finds the deferred signal
            // after one `SIGNAL_CHECK_INTERVAL_NS`.
            (&NEVER_CANCELLED, SIGNAL_CHECK_INTERVAL_NS)
        };
        let time = timespec(left.min(slice));
        let SleepCall { call, timed_out } = build(Some(&time));
        match run(reason, &call) {
            Ended::Answered(answer) if left <= slice || !timed_out(&answer) => return answer,
            Ended::Answered(_) | Ended::Aborted => {}
        }
    }
}

/// Returns the address of a timespec, as an argument of a system call.
fn address_of(time: &Timespec) -> u64 {
    &raw const *time as u64
}

/// A system call that sleeps, and a function that decides whether its answer means a timeout.
struct SleepCall {
    call: SystemCall,
    timed_out: fn(&Result<u64, Errno>) -> bool,
}

/// Sleeps while `word` holds `expected`, for `timeout` at most. Several processes may share the
/// word: [`crate::futex::wake_shared`] wakes the sleeper.
///
/// Errors: `EAGAIN` if the word has another value; `ETIMEDOUT` when the time is over; `EINTR` if a
/// signal was deferred (its handler has not run yet). `Ok` does not mean that there was a wake-up,
/// so callers read the word again.
pub fn futex(word: &AtomicU32, expected: u32, timeout: Option<Nanoseconds>) -> Result<(), Errno> {
    let operation = u64::from(linux::FUTEX_WAIT);
    sleep(timeout, |time| SleepCall {
        call: SystemCall::new(
            linux::__NR_futex,
            [word.as_ptr() as u64, operation, u64::from(expected), address_of(time.unwrap_or(&LONGEST_TIME)), 0],
        ),
        timed_out: |answer| *answer == Err(Errno::ETIMEDOUT),
    })
    .map(drop)
}

/// Sleeps for `span`, as exactly as the thread's timer slack permits (see [`crate::timer_slack`]).
/// Errors: `EINTR` if a signal was deferred before the end.
pub fn nanosleep(span: Nanoseconds) -> Result<(), Errno> {
    let clock = u64::from(linux::CLOCK_MONOTONIC);
    sleep(Some(span), |time| SleepCall {
        call: SystemCall::new(linux::__NR_clock_nanosleep, [clock, 0, address_of(time.unwrap_or(&LONGEST_TIME)), 0, 0]),
        timed_out: |answer| *answer == Ok(0),
    })
    .map(drop)
}

/// Waits for events of an epoll set; `Ok(0)` when the time is over.
///
/// `mask` is in force during the sleep, atomically, as in epoll_pwait(2). Errors: `EINTR` if a
/// signal interrupted the sleep. The signal is deferred, and is then delivered under `mask`.
pub fn epoll(
    epoll_fd: i32,
    events: &mut [Event],
    timeout: Option<Nanoseconds>,
    mask: Option<SignalSet>,
) -> Result<usize, Errno> {
    let mask = mask.map(|mask| mask & !ALWAYS_OPEN);
    let mask_address = mask.as_ref().map_or(0, |mask| &raw const *mask as u64);
    let (address, room) = (events.as_mut_ptr() as u64, events.len() as u64);
    let timed_out = |answer: &Result<u64, Errno>| *answer == Ok(0);
    let call = |time: Option<&Timespec>| {
        let set = width::word(epoll_fd);
        if NO_EPOLL_PWAIT2.load(Ordering::Relaxed) {
            let arguments = [set, address, room, time.map_or(u64::MAX, milliseconds), mask_address, 8];
            SystemCall::with_six(linux::__NR_epoll_pwait, arguments)
        } else {
            let arguments = [set, address, room, time.map_or(0, address_of), mask_address, 8];
            SystemCall::with_six(linux::__NR_epoll_pwait2, arguments)
        }
    };
    let mut answer = sleep(timeout, |time| SleepCall { call: call(time), timed_out });
    // A sandbox may be older than epoll_pwait2(2) (Linux 5.11). It answers EPERM for an unknown
    // call.
    if matches!(answer, Err(Errno::ENOSYS | Errno::EPERM)) && !NO_EPOLL_PWAIT2.swap(true, Ordering::Relaxed) {
        answer = sleep(timeout, |time| SleepCall { call: call(time), timed_out });
    }
    // A seccomp filter of the program may deny epoll_pwait2(2) and epoll_pwait(2). If there is no
    // mask, epoll_wait(2) is enough.
    if matches!(answer, Err(Errno::ENOSYS | Errno::EPERM)) && mask.is_none() {
        answer = sleep(timeout, |time| {
            let time = time.map_or(u64::MAX, milliseconds);
            let arguments = [width::word(epoll_fd), address, room, time, 0];
            SleepCall { call: SystemCall::new(linux::__NR_epoll_wait, arguments), timed_out }
        });
    }
    if let (Err(Errno::EINTR), Some(mask)) = (&answer, mask) {
        signals::set_delivery_mask(mask);
    }
    answer.map(width::size)
}

/// Sleeps for `span` with `mask` in force, as in ppoll(2). Errors: `EINTR` if a signal interrupted
/// the sleep. The signal is deferred. If `mask` does not block the signal, its handler runs before
/// the program's call returns.
pub fn under_mask(span: Nanoseconds, mask: SignalSet) -> Result<(), Errno> {
    let mask = mask & !ALWAYS_OPEN;
    let mask_address = &raw const mask as u64;
    let answer = sleep(Some(span), |time| SleepCall {
        call: SystemCall::new(linux::__NR_ppoll, [0, 0, time.map_or(0, address_of), mask_address, 8]),
        timed_out: |answer| *answer == Ok(0),
    });
    if answer == Err(Errno::EINTR) {
        signals::set_delivery_mask(mask);
    }
    answer.map(drop)
}

/// Sleeps until a kernel AIO context holds completions, and removes none of them. Returns at once
/// if the context holds any completion. Otherwise sleeps until the context holds `least`
/// completions; Linux before 6.3 wakes the thread for each completion.
///
/// io_getevents(2) cannot wait without removing completions. So this function passes an address
/// that no program can have. A completion that the kernel cannot copy stays in the ring, and the
/// kernel answers `EFAULT`.
///
/// Returns `Ok` when the time is over, too. Errors: `EINTR` if a signal was deferred.
pub fn aio_completions(context: u64, least: u32, timeout: Option<Nanoseconds>) -> Result<(), Errno> {
    const NOWHERE: u64 = !0xfff;
    let answer = sleep(timeout, |time| SleepCall {
        call: SystemCall::new(
            linux::__NR_io_getevents,
            [context, u64::from(least), u64::from(least), NOWHERE, time.map_or(0, address_of)],
        ),
        timed_out: |answer| *answer == Ok(0),
    });
    match answer {
        Ok(_) | Err(Errno::EFAULT) => Ok(()),
        Err(error) => Err(error),
    }
}

static NO_EPOLL_PWAIT2: AtomicBool = AtomicBool::new(false);

/// Converts a time to milliseconds, rounded up. A sleep that is a little too long does no harm; a
/// sleep that is too short would make the caller spin.
fn milliseconds(time: &Timespec) -> u64 {
    let whole = time.tv_sec.cast_unsigned().saturating_mul(1000);
    whole.saturating_add(time.tv_nsec.cast_unsigned().div_ceil(1_000_000)).min(i32::MAX as u64)
}

/// Makes a system call that may block for ever, on a worker thread. Returns when the kernel answers
/// or the call is cancelled. Error: `EINTR` only if the call was cancelled.
///
/// The canceller stores a value other than zero in `cancelled`, then sends SIGSYS to the worker by
/// [`interrupt_worker`]. The call ends whether the signal arrives before, during or after the
/// sleep. After any other interruption the call is made again.
pub fn call_blocking(call: &SystemCall, cancelled: &AtomicU32) -> Result<u64, Errno> {
    loop {
        let ended = run(cancelled, call);
        match ended {
            Ended::Answered(Err(Errno::EINTR)) | Ended::Aborted => {}
            Ended::Answered(answer) => return answer,
        }
        // Acquire: pairs with the canceller's store before the signal.
        if cancelled.load(Ordering::Acquire) != 0 {
            return Err(Errno::EINTR);
        }
    }
}

/// Makes, once, a system call that can sleep but hardly ever does. `None` if any signal interrupted
/// the call. [`interrupt_worker`] sends such a signal, after its caller has set `cancelled`.
pub fn call_briefly(call: &SystemCall, cancelled: &AtomicU32) -> Option<Result<u64, Errno>> {
    match run(cancelled, call) {
        Ended::Answered(Err(Errno::EINTR)) | Ended::Aborted => None,
        Ended::Answered(answer) => Some(answer),
    }
}

/// The `si_value` of the SIGSYS that [`interrupt_worker`] sends: "usringwk".
const INTERRUPT: u64 = u64::from_le_bytes(*b"usringwk");

/// The `si_value` of the SIGSYS that announces a change of credentials ([`crate::credentials`]):
/// "usringcr".
const FOLLOW: u64 = u64::from_le_bytes(*b"usringcr");

/// A `siginfo_t`, with names for the fields that usring reads.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct SignalInformation {
    pub signal: i32,
    /// For a SIGSYS that seccomp raised: the data of the filter's answer (SECCOMP_RET_DATA).
    pub data: i32,
    pub code: i32,
    pad: i32,
    pub process: i32,
    pub user: u32,
    pub value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<SignalInformation>() == 128);

/// `si_code` of a signal that comes with a value (SI_QUEUE).
const QUEUED: i32 = -1;

impl SignalInformation {
    /// Returns whether a thread of usring has sent this SIGSYS. The signal's value alone does not
    /// show this reliably. The kernel merges pending SIGSYS signals, and drops the value when the
    /// process has reached its limit of queued signals.
    pub fn is_ours(&self) -> bool {
        let is_queued = self.code == QUEUED && matches!(self.value, INTERRUPT | FOLLOW);
        self.signal == linux::SIGSYS.cast_signed() && (is_queued || self.code == 0 && self.process == 0)
    }

    /// Builds the signal that makes a service thread (a thread of usring) repeat a change of
    /// credentials.
    pub(crate) fn follow() -> SignalInformation {
        SignalInformation { value: FOLLOW, ..Default::default() }
    }

    /// Sends the signal as SIGSYS to a thread of this process, unless the thread has ended.
    pub(crate) fn send_to(mut self, thread: u32) {
        let Ok(process) = SystemCall::new(linux::__NR_getpid, [0; 5]).run_once() else { return };
        (self.signal, self.code, self.process) = (linux::SIGSYS.cast_signed(), QUEUED, width::int(process));
        let arguments = [process, u64::from(thread), u64::from(linux::SIGSYS), &raw const self as u64, 0];
        let _ = SystemCall::new(linux::__NR_rt_tgsigqueueinfo, arguments).run_once();
    }
}

/// Interrupts another thread's [`call_blocking`] or [`call_briefly`]. The caller must have set that
/// call's `cancelled` word.
pub fn interrupt_worker(thread: u32) {
    SignalInformation { value: INTERRUPT, ..Default::default() }.send_to(thread);
}

/// Installs the SIGSYS handler that [`interrupt_worker`] needs, in a process without `interpose`.
/// (`interpose` has a SIGSYS handler of its own, which also serves for this.) Returns `false` if
/// the program already has a handler, which stays installed.
pub fn catch_worker_interrupts() -> bool {
    let ours = KernelAction {
        handler: on_interrupt as *const () as usize as u64,
        flags: u64::from(linux::SA_SIGINFO | linux::SA_RESTART | linux::SA_ONSTACK) | SA_RESTORER,
        restorer: &raw const usring_wait_restorer as u64,
        mask: 0,
    };
    let mut old = KernelAction::default();
    let change = |new: u64, old: u64| {
        let arguments = [u64::from(linux::SIGSYS), new, old, 8, 0, 0];
        // This call carries no pass mark, so `interpose` sees it if it is loaded as well. The
        // process then has two engines, and `interpose` treats this handler as any handler of the
        // program.
        SystemCall::with_six(linux::__NR_rt_sigaction, arguments).run_once()
    };
    const DEFAULT: u64 = 0;
    change(0, &raw mut old as u64).is_ok() && old.handler == DEFAULT && change(&raw const ours as u64, 0).is_ok()
}

/// The kernel's `struct sigaction`.
#[derive(Default)]
#[repr(C)]
struct KernelAction {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: SignalSet,
}

const SA_RESTORER: u64 = 0x0400_0000;

/// Offset of the interrupted instruction pointer in a `ucontext_t`.
pub const CONTEXT_INSTRUCTION_POINTER: usize = 168;

extern "C" fn on_interrupt(_signal: i32, _information: *const u8, context: *mut u8) {
    // SAFETY: `context` is the ucontext_t that the kernel passes to every handler. It is writable
    // and 8-byte aligned, and the kernel reads the instruction pointer back from it.
    unsafe {
        let instruction_pointer = context.add(CONTEXT_INSTRUCTION_POINTER).cast::<u64>();
        if let Some(exit_address) = exit_address(width::size(*instruction_pointer)) {
            *instruction_pointer = exit_address as u64;
        }
    }
}

// The signal restorer, to which a handler returns. It calls rt_sigreturn(2). Its bytes equal those
// of libc's restorer, because debuggers recognise a signal frame by them.
global_asm!(
    ".pushsection .text.usring_wait,\"ax\",@progbits",
    ".balign 16",
    "nop",
    ".globl usring_wait_restorer",
    ".hidden usring_wait_restorer",
    ".type usring_wait_restorer,@function",
    "usring_wait_restorer:",
    "mov rax, {rt_sigreturn}",
    "syscall",
    ".size usring_wait_restorer, . - usring_wait_restorer",
    ".popsection",
    rt_sigreturn = const linux::__NR_rt_sigreturn,
);

unsafe extern "C" {
    static usring_wait_restorer: u8;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::epoll::Epoll;
    use crate::eventfd;
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::thread;

    const MILLISECOND: Nanoseconds = 1_000_000;

    #[test]
    fn futex_distinguishes_a_changed_word_from_a_timeout() {
        let word = AtomicU32::new(7);
        assert_eq!(futex(&word, 8, None), Err(Errno::EAGAIN));
        assert_eq!(futex(&word, 7, Some(MILLISECOND)), Err(Errno::ETIMEDOUT));
    }

    #[test]
    fn epoll_waits_for_its_timeout_and_returns_events() {
        let set = Epoll::new().unwrap();
        let event = eventfd::create().unwrap();
        set.add(event.number(), crate::epoll::IN, 42).unwrap();
        let mut events = [Event::default(); 4];
        let before = Clock::Monotonic.now();
        assert_eq!(super::epoll(set.number(), &mut events, Some(3 * MILLISECOND), Some(0)), Ok(0));
        assert!(Clock::Monotonic.now() - before >= 3 * MILLISECOND);
        eventfd::signal(event.number());
        assert_eq!(super::epoll(set.number(), &mut events, None, None), Ok(1));
        assert_eq!({ events[0].data }, 42);
    }

    /// Interrupts a worker's endless read 20,000 times, each time after a different delay. Checks
    /// that every interruption ends the read.
    #[test]
    fn a_blocked_worker_is_always_interrupted() {
        assert!(catch_worker_interrupts());
        let never = eventfd::create().unwrap();
        let flags = [never.number() as u64, u64::from(linux::F_SETFL), 0, 0, 0];
        SystemCall::new(linux::__NR_fcntl, flags).run().unwrap();
        let cancelled = Arc::new(AtomicU32::new(0));
        let (sender, receiver) = mpsc::channel();
        let (done, ended) = mpsc::channel();
        let word = cancelled.clone();
        let worker = thread::spawn(move || {
            sender.send(signals::thread_id()).unwrap();
            let mut buffer = 0u64;
            let arguments = [never.number() as u64, &raw mut buffer as u64, 8, 0, 0];
            while call_blocking(&SystemCall::new(linux::__NR_read, arguments), &word) == Err(Errno::EINTR) {
                let round = word.swap(0, Ordering::AcqRel);
                done.send(round).unwrap();
                if round == ROUNDS {
                    break;
                }
            }
        });
        let thread = receiver.recv().unwrap();
        const ROUNDS: u32 = 20_000;
        for round in 1..=ROUNDS {
            for _ in 0..round % 64 {
                core::hint::spin_loop();
            }
            cancelled.store(round, Ordering::Release);
            interrupt_worker(thread);
            assert_eq!(ended.recv_timeout(core::time::Duration::from_secs(60)), Ok(round), "an interruption was lost");
        }
        worker.join().unwrap();
    }
}
