//! Waits in io_uring_enter: counts, timeouts, signal masks, signals, eventfds.

use crate::ring::{EnterFlags, IoUring, types};
use crate::support::*;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use types::SubmitArgs;

fn ring() -> IoUring {
    IoUring::new(16).unwrap()
}

#[track_caller]
fn error_of<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> i32 {
    outcome.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn a_wait_counts_completions_that_are_in_the_cq_already() {
    bounded(|| {
        let mut ring = ring();
        submit(&mut ring, &[nop(1), nop(2)]);
        push(&mut ring, &[nop(3)]);
        assert_eq!(ring.submit_and_wait(3).unwrap(), 1);
        assert_eq!(ring.completion().len(), 3);
        assert_eq!(ring.submit_and_wait(3).unwrap(), 0, "the CQ still has three completions, so there is no wait");
    });
}

#[test]
fn a_wait_ends_at_its_timeout() {
    bounded(|| {
        let (ring, time) = (ring(), timespec(Duration::from_millis(30)));
        let before = Instant::now();
        let args = SubmitArgs::new().timespec(&time);
        assert_eq!(error_of(ring.submitter().submit_with_args(1, &args)), libc::ETIME);
        assert!(before.elapsed() >= Duration::from_millis(30));
        let none = timespec(Duration::ZERO);
        assert_eq!(error_of(ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&none))), libc::ETIME);
        let past = types::Timespec::new().sec(u64::MAX);
        assert_eq!(error_of(ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&past))), libc::ETIME);
    });
}

#[test]
fn a_wait_for_too_many_completions_times_out_without_an_error() {
    bounded(|| {
        let (mut ring, time) = (ring(), timespec(Duration::from_millis(10)));
        push(&mut ring, &[nop(1)]);
        let args = SubmitArgs::new().timespec(&time);
        assert_eq!(ring.submitter().submit_with_args(2, &args).unwrap(), 1);
        assert_eq!(ring.completion().len(), 1);
    });
}

#[test]
fn a_wait_ends_at_an_absolute_time() {
    bounded(|| {
        let ring = ring();
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes the structure.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
        let at = Duration::new(now.tv_sec as u64, now.tv_nsec as u32) + Duration::from_millis(20);
        let (time, before) = (timespec(at), Instant::now());
        let args = SubmitArgs::new().timespec(&time);
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG | EnterFlags::ABS_TIMER;
        // SAFETY: the argument is of the type that the flags say.
        let outcome = unsafe { ring.submitter().enter(0, 1, flags.bits(), Some(&args)) };
        assert_eq!(error_of(outcome), libc::ETIME);
        assert!(before.elapsed() >= Duration::from_millis(19), "{:?}", before.elapsed());
    });
}

#[test]
fn after_the_minimum_time_one_completion_is_enough() {
    bounded(|| {
        let (mut ring, time, (reader, writer)) = (ring(), timespec(Duration::from_secs(50)), pipe());
        let mut buffer = [0; 4];
        push(&mut ring, &[read(&reader, &mut buffer)]);
        let before = Instant::now();
        let other = std::thread::spawn(move || put(&writer, b"data"));
        let args = SubmitArgs::new().timespec(&time).min_wait_usec(40_000);
        assert_eq!(ring.submitter().submit_with_args(8, &args).unwrap(), 1);
        other.join().unwrap();
        let passed = before.elapsed();
        assert!((Duration::from_millis(39)..Duration::from_secs(40)).contains(&passed), "{passed:?}");
        assert_eq!(ring.completion().len(), 1);
    });
}

#[test]
fn a_completion_caused_by_another_thread_ends_the_wait() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let mut buffer = [0; 4];
        submit(&mut ring, &[read(&reader, &mut buffer)]);
        let other = std::thread::spawn(move || {
            // After this pause the first thread most likely sleeps. If it does not, the test passes
            // without checking a thread that sleeps.
            std::thread::sleep(Duration::from_millis(20));
            put(&writer, b"data");
            writer
        });
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), 4);
        other.join().unwrap();
    });
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

pub fn handle(signal: i32, flags: i32) {
    // SAFETY: an all-zero `sigaction` is valid. Its handler is set below.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_signal as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Sends `signal` to the calling thread repeatedly until `body` has returned.
pub fn with_signals<T>(signal: i32, body: impl FnOnce() -> T) -> T {
    use std::sync::atomic::AtomicBool;
    let ended = AtomicBool::new(false);
    // SAFETY: this thread outlives the scope.
    let target = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                // SAFETY: the target thread exists until the scope ends.
                unsafe { libc::pthread_kill(target, signal) };
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let outcome = body();
        ended.store(true, Ordering::SeqCst);
        outcome
    })
}

#[test]
fn a_signal_interrupts_the_wait_also_with_sa_restart() {
    bounded(|| {
        let ring = ring();
        handle(libc::SIGUSR1, libc::SA_RESTART);
        let outcome = with_signals(libc::SIGUSR1, || ring.submit_and_wait(1));
        assert_eq!(error_of(outcome), libc::EINTR);
        assert!(SIGNALS.load(Ordering::SeqCst) > 0);
        let time = timespec(Duration::from_secs(100));
        let args = SubmitArgs::new().timespec(&time);
        let outcome = with_signals(libc::SIGUSR1, || ring.submitter().submit_with_args(1, &args));
        assert_eq!(error_of(outcome), libc::EINTR);
    });
}

#[test]
fn a_signal_interrupts_the_wait_for_a_file_also_with_sa_restart() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let mut buffer = [0; 4];
        handle(libc::SIGUSR1, libc::SA_RESTART);
        submit(&mut ring, &[read(&reader, &mut buffer)]);
        let outcome = with_signals(libc::SIGUSR1, || ring.submit_and_wait(1));
        assert_eq!(error_of(outcome), libc::EINTR);
        put(&writer, b"data");
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), 4);
    });
}

#[test]
fn completions_signal_an_eventfd() {
    bounded(|| {
        let (mut ring, event) = (ring(), event());
        ring.submitter().register_eventfd(event.as_raw_fd()).unwrap();
        assert_eq!(error_of(ring.submitter().register_eventfd(event.as_raw_fd())), libc::EBUSY);
        run(&mut ring, &[nop(1)]);
        assert!(count(&event) > 0);
        ring.completion().disable_eventfd();
        assert!(ring.completion().eventfd_disabled());
        run(&mut ring, &[nop(1)]);
        assert_eq!(count(&event), 0);
        ring.completion().enable_eventfd();
        run(&mut ring, &[nop(1)]);
        assert!(count(&event) > 0);
        ring.submitter().unregister_eventfd().unwrap();
        run(&mut ring, &[nop(1)]);
        assert_eq!(count(&event), 0);
        assert_eq!(error_of(ring.submitter().unregister_eventfd()), libc::ENXIO);
    });
}

#[test]
fn inline_completions_do_not_signal_an_async_eventfd() {
    bounded(|| {
        let (mut ring, event, (reader, writer)) = (ring(), event(), pipe());
        ring.submitter().register_eventfd_async(event.as_raw_fd()).unwrap();
        run(&mut ring, &[nop(1)]);
        assert_eq!(count(&event), 0);
        let mut buffer = [0; 4];
        submit(&mut ring, &[read(&reader, &mut buffer).flags(crate::ring::squeue::Flags::ASYNC)]);
        put(&writer, b"data");
        collect(&mut ring, 1);
        eventually("the eventfd is counted up", || count(&event) > 0);
    });
}

#[test]
fn an_eventfd_signals_completions_while_no_thread_is_in_enter() {
    bounded(|| {
        let (mut ring, event, (reader, writer)) = (ring(), event(), pipe());
        ring.submitter().register_eventfd(event.as_raw_fd()).unwrap();
        let mut buffer = [0; 4];
        submit(&mut ring, &[read(&reader, &mut buffer)]);
        assert_eq!(count(&event), 0);
        put(&writer, b"data");
        eventually("the eventfd is counted up", || count(&event) > 0);
        assert_eq!(ring.completion().next().unwrap().result(), 4);
    });
}

#[test]
fn invalid_arguments_are_refused() {
    bounded(|| {
        let ring = ring();
        let enter = |flags: u32, argument: Option<&[u8; 5]>| {
            // SAFETY: the ring refuses the call before it uses the argument.
            error_of(unsafe { ring.submitter().enter(0, 1, flags, argument) })
        };
        assert_eq!(enter(1 << 20, None), libc::EINVAL);
        assert_eq!(enter(EnterFlags::GETEVENTS.bits() | EnterFlags::EXT_ARG.bits(), Some(&[0; 5])), libc::EINVAL);
        assert_eq!(enter(EnterFlags::GETEVENTS.bits(), Some(&[0; 5])), libc::EINVAL);
        assert_eq!(ring.submit().unwrap(), 0);
    });
}
