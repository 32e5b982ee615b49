//! Signals: waits that a signal ends, signal masks, and signal handlers that use a ring.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use usring_uapi::io_uring as u;

use crate::files;
use crate::memory::zeroed;
use crate::ring::Ring;
use crate::sqe::{nop, poll, timeout};
use crate::syscalls;
use crate::time::milliseconds;
use crate::transcript::Transcript;

mod masks;

static HANDLED: AtomicU32 = AtomicU32::new(0);
static THE_RING: AtomicPtr<Ring> = AtomicPtr::new(std::ptr::null_mut());
static ANSWER: AtomicI32 = AtomicI32::new(0);

extern "C" fn count(_signal: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

pub fn handle(signal: i32, handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: the handler touches only atomics, and the ring that the case has stored for it.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Starts a thread that sends `signal` to the calling thread. The new thread sends the signal after
/// `milliseconds`, but not before the calling thread sleeps.
fn signal_later(signal: i32, milliseconds: u64) -> std::thread::JoinHandle<()> {
    // SAFETY: the call only returns this thread's id.
    let (target, number) = (unsafe { libc::pthread_self() }, crate::time::this_thread());
    std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        // On a busy machine, the calling thread may begin its wait later than expected.
        crate::time::until_asleep(number);
        // SAFETY: the target thread joins this thread, so the target thread still exists.
        unsafe { libc::pthread_kill(target, signal) };
    })
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = zeroed();
    for signal in signals {
        // SAFETY: the signal set is a variable of this function.
        unsafe { libc::sigaddset(&mut set, *signal) };
    }
    set
}

fn mask(how: i32, signals: &[i32]) {
    // SAFETY: the call changes only this thread's mask.
    unsafe { libc::pthread_sigmask(how, &set_of(signals), std::ptr::null_mut()) };
}

fn handled(t: &mut Transcript) {
    t.say(format_args!("handled {}", HANDLED.swap(0, Ordering::SeqCst)));
}

/// Waits in io_uring_enter(2) for a completion. The callers' rings get none, so only a signal ends
/// the wait.
fn wait_for_ever(ring: &Ring) -> i32 {
    ring.enter(0, 1, u::IORING_ENTER_GETEVENTS)
}

fn interrupt_wait(t: &mut Transcript) {
    let ring = Ring::new(4);
    handle(libc::SIGUSR1, count, 0);
    let thread = signal_later(libc::SIGUSR1, 20);
    t.result("wait", wait_for_ever(&ring));
    handled(t);
    let _ = thread.join();
}
case!(interrupt_wait => "
    wait = -EINTR
    handled 1
");

/// A signal whose handler has SA_RESTART also ends the wait. The kernel does not restart
/// io_uring_enter(2).
fn interrupt_wait_with_restart(t: &mut Transcript) {
    let ring = Ring::new(4);
    handle(libc::SIGUSR1, count, libc::SA_RESTART);
    let thread = signal_later(libc::SIGUSR1, 20);
    t.result("wait", wait_for_ever(&ring));
    handled(t);
    let _ = thread.join();
}
case!(interrupt_wait_with_restart => "
    wait = -EINTR
    handled 1
");

/// Waits in io_uring_enter(2) for 60 ms, and gets `signal` after 20 ms. Returns the result of the
/// call.
fn wait_through(ring: &Ring, signal: i32) -> i32 {
    let thread = signal_later(signal, 20);
    let answer = ring.enter_for(0, 1, std::time::Duration::from_millis(60));
    let _ = thread.join();
    answer
}

fn ignored_does_not_interrupt(t: &mut Transcript) {
    let ring = Ring::new(4);
    // SAFETY: the call changes only this process's signal disposition.
    unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
    t.result("wait", wait_through(&ring, libc::SIGUSR1));
    // The default action of SIGCHLD is to ignore it, so it does not end the wait.
    t.result("wait", wait_through(&ring, libc::SIGCHLD));
}
case!(ignored_does_not_interrupt => "
    wait = -ETIME
    wait = -ETIME
");

fn blocked_does_not_interrupt(t: &mut Transcript) {
    let ring = Ring::new(4);
    handle(libc::SIGUSR1, count, 0);
    mask(libc::SIG_BLOCK, &[libc::SIGUSR1]);
    t.result("wait", wait_through(&ring, libc::SIGUSR1));
    handled(t);
    mask(libc::SIG_UNBLOCK, &[libc::SIGUSR1]);
    handled(t);
}
case!(blocked_does_not_interrupt => "
    wait = -ETIME
    handled 0
    handled 1
");

/// A call submits SQEs, and a signal interrupts its wait. The result is the number of submitted
/// SQEs, not -EINTR.
fn submitted_before_interrupt(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    handle(libc::SIGUSR1, count, 0);
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    let thread = signal_later(libc::SIGUSR1, 20);
    t.result("submit and wait", ring.submit_and_wait(1));
    handled(t);
    let _ = thread.join();
}
case!(submitted_before_interrupt => "
    submit and wait = 1
    handled 1
");

fn completion_and_signal(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    handle(libc::SIGUSR1, count, 0);
    ring.push(nop(1));
    ring.submit();
    // SAFETY: the signal goes to this thread. Its handler has run when raise(3) returns.
    unsafe { libc::raise(libc::SIGUSR1) };
    t.result("wait, one is there", wait_for_ever(&ring));
    handled(t);
    t.in_order(&ring.reap());
}
case!(completion_and_signal => "
    wait, one is there = 0
    handled 1
    cqe 1: 0
");

/// Signal handler that submits a NOP to the ring on which the interrupted thread waits.
extern "C" fn submit_in_handler(_signal: i32) {
    let ring = THE_RING.load(Ordering::SeqCst);
    if ring.is_null() {
        return;
    }
    // SAFETY: while the signal can arrive, the case itself uses only the ring's descriptor number.
    // So no other reference to the `Ring` object is in use.
    let ring = unsafe { &mut *ring };
    ring.push(nop(1000));
    ANSWER.store(ring.submit(), Ordering::SeqCst);
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

fn handler_enters_same_ring(t: &mut Transcript) {
    let mut ring = Ring::new(16);
    THE_RING.store(&mut ring, Ordering::SeqCst);
    handle(libc::SIGUSR1, submit_in_handler, 0);
    let thread = signal_later(libc::SIGUSR1, 20);
    let fd = ring.fd;
    let answer = syscalls::enter(fd, 0, 1, u::IORING_ENTER_GETEVENTS, std::ptr::null(), 0);
    // Either the signal ends the wait (-EINTR), or the CQE of the handler's NOP does (0).
    t.say(format_args!("-EINTR or 0: {}", [0, -libc::EINTR].contains(&answer)));
    let _ = thread.join();
    t.result("the handler's submit", ANSWER.load(Ordering::SeqCst));
    handled(t);
    THE_RING.store(std::ptr::null_mut(), Ordering::SeqCst);
    t.in_order(&ring.reap());
}
case!(handler_enters_same_ring => "
    -EINTR or 0: true
    the handler's submit = 1
    handled 1
    cqe 1000: 0
");

extern "C" fn enter_in_handler(_signal: i32) {
    let fd = ANSWER.load(Ordering::SeqCst);
    syscalls::enter(fd, 0, 0, u::IORING_ENTER_GETEVENTS, std::ptr::null(), 0);
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

fn every_millisecond(signal: i32) -> libc::timer_t {
    // SAFETY: the timer and its event are variables of this function. The timer exists until the
    // case deletes it or the process ends.
    unsafe {
        let mut event: libc::sigevent = zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        let mut time: libc::itimerspec = zeroed();
        time.it_interval.tv_nsec = 300_000;
        time.it_value.tv_nsec = 300_000;
        libc::timer_settime(timer, 0, &time, std::ptr::null_mut());
        timer
    }
}

/// A signal handler calls io_uring_enter(2). It interrupts the thread at any point, also inside a
/// call on that ring.
fn handler_enters_while_busy(t: &mut Transcript) {
    let mut ring = Ring::new(16);
    ANSWER.store(ring.fd, Ordering::SeqCst);
    handle(libc::SIGUSR1, enter_in_handler, libc::SA_RESTART);
    let timer = every_millisecond(libc::SIGUSR1);
    let deadline = std::time::Instant::now() + std::time::Duration::from_millis(400);
    let (mut sent, mut lost) = (0u64, 0);
    while std::time::Instant::now() < deadline {
        for slot in 0..8 {
            ring.push(nop(sent + slot));
        }
        let mut left = ring.forget_pending();
        while left > 0 {
            let answer = ring.enter(left, 0, 0);
            left -= answer.max(0) as u32;
        }
        let entries = ring.reap();
        lost += u32::from(entries.len() != 8);
        sent += 8;
    }
    // SAFETY: this function made the timer, and deletes it once.
    unsafe { libc::timer_delete(timer) };
    t.say(format_args!("batches with a loss {lost}"));
    t.say(format_args!("handler ran {}", HANDLED.swap(0, Ordering::SeqCst) > 10));
}
case!(handler_enters_while_busy => "
    batches with a loss 0
    handler ran true
");

extern "C" fn make_in_handler(_signal: i32) {
    let mut ring = Ring::new(4);
    let entry = ring.one(nop(1));
    ANSWER.store(entry.res, Ordering::SeqCst);
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

fn handler_makes_a_ring(t: &mut Transcript) {
    let ring = Ring::new(4);
    handle(libc::SIGUSR1, make_in_handler, 0);
    let thread = signal_later(libc::SIGUSR1, 20);
    t.result("wait", wait_for_ever(&ring));
    handled(t);
    t.result("the handler's nop", ANSWER.load(Ordering::SeqCst));
    let _ = thread.join();
}
case!(handler_makes_a_ring => "
    wait = -EINTR
    handled 1
    the handler's nop = 0
");

/// Memory for sigsetjmp, larger than any libc needs.
#[repr(C, align(16))]
struct Jump([u64; 64]);

static mut JUMP: Jump = Jump([0; 64]);

unsafe extern "C" {
    #[link_name = "__sigsetjmp"]
    fn sigsetjmp(place: *mut Jump, save: i32) -> i32;
    fn siglongjmp(place: *mut Jump, value: i32) -> !;
}

extern "C" fn jump(_signal: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the frame that called sigsetjmp(3) still exists, because it waits in
    // io_uring_enter(2).
    unsafe { siglongjmp(&raw mut JUMP, 1) }
}

/// A signal handler leaves a wait in io_uring_enter(2) by siglongjmp(3). The ring works afterwards.
fn handler_jumps_out(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    handle(libc::SIGUSR1, jump, 0);
    for _ in 0..3 {
        let thread = signal_later(libc::SIGUSR1, 10);
        // SAFETY: between sigsetjmp(3) and the jump, no value with a destructor is made.
        let back = unsafe { sigsetjmp(&raw mut JUMP, 1) };
        if back == 0 {
            wait_for_ever(&ring);
        }
        t.say(format_args!("jumped {back}"));
        let _ = thread.join();
        t.entry(&ring.one(nop(1)));
    }
    handled(t);
}
case!(handler_jumps_out => "
    jumped 1
    cqe 1: 0
    jumped 1
    cqe 1: 0
    jumped 1
    cqe 1: 0
    handled 3
");

fn storm(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    handle(libc::SIGUSR1, count, libc::SA_RESTART);
    let timer = every_millisecond(libc::SIGUSR1);
    let time = milliseconds(1);
    let mut found = 0;
    for round in 0..200 {
        ring.push(timeout(&time, 0, 0, round));
        // A signal may interrupt the call before or after it has submitted the SQE. The loop
        // submits each timeout exactly once.
        let mut left = ring.forget_pending();
        while left > 0 {
            left -= ring.enter(left, 1, u::IORING_ENTER_GETEVENTS).max(0) as u32;
        }
        found += ring.wait(1).len();
    }
    // SAFETY: this function made the timer, and deletes it once.
    unsafe { libc::timer_delete(timer) };
    t.say(format_args!("found {found}"));
    t.say(format_args!("handler ran {}", HANDLED.swap(0, Ordering::SeqCst) > 10));
}
case!(storm => "
    found 200
    handler ran true
");

/// A thread that has blocked all signals, as threads of servers do, can make a ring and use it.
fn all_blocked_thread(t: &mut Transcript) {
    let answers = std::thread::spawn(|| {
        // SAFETY: the call changes only this thread's mask.
        unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigfillset(&mut set);
            libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        }
        let mut ring = Ring::new(4);
        let time = milliseconds(5);
        ring.run(&[nop(1), timeout(&time, 0, 0, 2)])
    });
    t.sorted(&answers.join().unwrap_or_default());
}
case!(all_blocked_thread => "
    cqe 1: 0
    cqe 2: -ETIME
");

fn interval_timer(t: &mut Transcript) {
    let ring = Ring::new(4);
    handle(libc::SIGALRM, count, 0);
    // SAFETY: the timer belongs to this process.
    unsafe {
        let mut time: libc::itimerval = zeroed();
        time.it_value.tv_usec = 20_000;
        libc::setitimer(libc::ITIMER_REAL, &time, std::ptr::null_mut());
    }
    t.result("wait", wait_for_ever(&ring));
    handled(t);
}
case!(interval_timer => "
    wait = -EINTR
    handled 1
");

fn handler_on_other_stack(t: &mut Transcript) {
    let ring = Ring::new(4);
    let stack = crate::memory::Pages::new(4);
    // SAFETY: the memory of the signal stack belongs to this case, which frees it only after the
    // thread has disabled the signal stack.
    unsafe {
        let place = libc::stack_t { ss_sp: stack.address.cast(), ss_flags: 0, ss_size: stack.length };
        assert_eq!(libc::sigaltstack(&place, std::ptr::null_mut()), 0);
    }
    handle(libc::SIGUSR1, make_in_handler, libc::SA_ONSTACK);
    let thread = signal_later(libc::SIGUSR1, 20);
    t.result("wait", wait_for_ever(&ring));
    handled(t);
    t.result("the handler's nop", ANSWER.load(Ordering::SeqCst));
    let _ = thread.join();
    // SAFETY: the call disables the signal stack before the case frees its memory.
    unsafe {
        let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        libc::sigaltstack(&none, std::ptr::null_mut());
    }
}
case!(handler_on_other_stack => "
    wait = -EINTR
    handled 1
    the handler's nop = 0
");

/// sigaction(2) returns the handler that the program has set. usring's own handlers must not show.
fn sigaction_comes_back(t: &mut Transcript) {
    let _ring = Ring::new(4);
    handle(libc::SIGUSR1, count, libc::SA_RESTART | libc::SA_NODEFER);
    let mut now: libc::sigaction = zeroed();
    // SAFETY: the call writes to a variable of this function.
    unsafe { libc::sigaction(libc::SIGUSR1, std::ptr::null(), &mut now) };
    t.say(format_args!("handler {}", now.sa_sigaction == count as *const () as usize));
    let flags = libc::SA_RESTART | libc::SA_NODEFER | libc::SA_RESETHAND | libc::SA_ONSTACK;
    t.say(format_args!("flags {}", now.sa_flags & flags == libc::SA_RESTART | libc::SA_NODEFER));
    // SAFETY: the call sets the default disposition.
    let before = unsafe { libc::signal(libc::SIGUSR1, libc::SIG_DFL) };
    t.say(format_args!("before {}", before == count as *const () as usize));
    // SAFETY: the call sets the default disposition.
    let before = unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
    t.say(format_args!("then default {}", before == libc::SIG_DFL));
}
case!(sigaction_comes_back => "
    handler true
    flags true
    before true
    then default true
");

/// A handler with SA_RESETHAND runs once, for the first signal. The second signal ends the process.
fn one_shot_handler(t: &mut Transcript) {
    let ending = crate::process::forked(|| {
        let ring = Ring::new(4);
        handle(libc::SIGUSR1, count, libc::SA_RESETHAND);
        // SAFETY: the signal goes to this process.
        unsafe { libc::raise(libc::SIGUSR1) };
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        // SAFETY: the signal has no handler any more, so it ends this process.
        unsafe { libc::raise(libc::SIGUSR1) };
        HANDLED.load(Ordering::SeqCst) as i32
    });
    t.say(format_args!("child: {ending}"));
}
case!(one_shot_handler => "child: signal 10");

/// A signal to the process is handled by a thread of the program. No worker and no thread of usring
/// handles it.
fn not_taken_by_workers(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    // The request may start worker threads.
    let busy = crate::sqe::read(reader.as_raw_fd(), &mut byte, 0, 1);
    ring.push(crate::sqe::Change::forced_async(busy));
    ring.submit();
    crate::time::long_enough_to_notice();
    handle(libc::SIGUSR1, count, 0);
    mask(libc::SIG_BLOCK, &[libc::SIGUSR1]);
    // SAFETY: the signal goes to this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) };
    crate::time::long_enough_to_notice();
    handled(t);
    mask(libc::SIG_UNBLOCK, &[libc::SIGUSR1]);
    handled(t);
}
case!(not_taken_by_workers => "
    handled 0
    handled 1
");
