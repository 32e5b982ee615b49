//! The signal mask that io_uring_enter(2) sets for the duration of its wait.

use super::{count, handle, handled, mask, set_of, signal_later};
use crate::memory::zeroed;
use crate::ring::Ring;
use crate::sqe::{nop, timeout, timeout_remove};
use crate::time::{LONG, milliseconds};
use crate::transcript::Transcript;
use usring_uapi::io_uring as u;

fn is_blocked(signal: i32) -> bool {
    let mut now: libc::sigset_t = zeroed();
    // SAFETY: the call writes the mask of this thread to a variable of this function.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut now);
        libc::sigismember(&now, signal) == 1
    }
}

/// Waits in io_uring_enter(2) for a completion. The call's argument is a signal mask that contains
/// `signals`.
fn wait_with_mask(ring: &Ring, signals: &[i32]) -> i32 {
    let set = set_of(signals);
    ring.enter_with(0, 1, u::IORING_ENTER_GETEVENTS, (&raw const set).cast(), 8)
}

fn mask_argument_unblocks(t: &mut Transcript) {
    let ring = Ring::new(4);
    handle(libc::SIGUSR1, count, 0);
    mask(libc::SIG_BLOCK, &[libc::SIGUSR1]);
    let thread = signal_later(libc::SIGUSR1, 20);
    t.result("wait", wait_with_mask(&ring, &[]));
    handled(t);
    t.say(format_args!("blocked again {}", is_blocked(libc::SIGUSR1)));
    let _ = thread.join();
}
case!(mask_argument_unblocks => "
    wait = -EINTR
    handled 1
    blocked again true
");

fn mask_argument_blocks(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    handle(libc::SIGUSR1, count, 0);
    let time = milliseconds(1000);
    ring.push(timeout(&time, 0, 0, 1));
    ring.submit();
    let thread = signal_later(libc::SIGUSR1, 20);
    t.result("wait", wait_with_mask(&ring, &[libc::SIGUSR1]));
    // The handler ran before enter returned.
    handled(t);
    t.say(format_args!("blocked {}", is_blocked(libc::SIGUSR1)));
    t.in_order(&ring.reap());
    let _ = thread.join();
}
case!(mask_argument_blocks => "
    wait = 0
    handled 1
    blocked false
    cqe 1: -ETIME
");

/// SIGUSR1 is blocked and pending. io_uring_enter(2) unblocks it by its signal mask, and the signal
/// ends the wait at once.
fn pending_and_mask_argument(t: &mut Transcript) {
    let ring = Ring::new(4);
    handle(libc::SIGUSR1, count, 0);
    mask(libc::SIG_BLOCK, &[libc::SIGUSR1]);
    // SAFETY: the signal goes to this thread.
    unsafe { libc::raise(libc::SIGUSR1) };
    handled(t);
    t.result("wait", wait_with_mask(&ring, &[]));
    handled(t);
    // The CQ already contains a CQE, so io_uring_enter(2) returns without an error. When it
    // returns, SIGUSR1 is blocked again, as before the call.
    let mut ring = Ring::new(4);
    ring.push(nop(1));
    ring.submit();
    t.result("wait, one is there", wait_with_mask(&ring, &[]));
    t.say(format_args!("blocked {}", is_blocked(libc::SIGUSR1)));
}
case!(pending_and_mask_argument => "
    handled 0
    wait = -EINTR
    handled 1
    wait, one is there = 0
    blocked true
");

fn mask_is_restored(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    mask(libc::SIG_BLOCK, &[libc::SIGUSR2]);
    ring.push(nop(1));
    ring.submit();
    t.result("wait", wait_with_mask(&ring, &[libc::SIGUSR1, libc::SIGTERM]));
    t.say(format_args!(
        "blocked USR1 {} USR2 {} TERM {}",
        is_blocked(libc::SIGUSR1),
        is_blocked(libc::SIGUSR2),
        is_blocked(libc::SIGTERM)
    ));
}
case!(mask_is_restored => "
    wait = 0
    blocked USR1 false USR2 true TERM false
");

fn bad_masks(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let flags = u::IORING_ENTER_GETEVENTS;
    let (soon, late) = (milliseconds(5), milliseconds(30_000));
    let set = set_of(&[]);
    // The CQ is empty before each call. The call with the valid size waits until the shorter
    // timeout expires. If a call with an invalid size waited, one of the timeouts would end it.
    ring.push(timeout(&late, 0, 0, 1));
    ring.submit();
    for size in [0, 4, 8, 16, 128] {
        if size == 8 {
            ring.push(timeout(&soon, 0, 0, 2));
            ring.submit();
        }
        let answer = ring.enter_with(0, 1, flags, (&raw const set).cast(), size);
        t.result(format_args!("{size} bytes"), answer);
        ring.reap();
    }
    t.result("unmapped", ring.enter_with(0, 1, flags, 16 as *const _, 8));
    ring.push(timeout_remove(1, 3));
    ring.submit();
    ring.wait(2);
    // The CQ already contains enough CQEs. So io_uring_enter(2) does not wait, and does not read
    // the signal mask at the bad address.
    ring.push(nop(1));
    ring.submit();
    t.result("unmapped, one is there", ring.enter_with(0, 1, flags, 16 as *const _, 8));
}
case!(bad_masks => "
    0 bytes = -EINVAL
    4 bytes = -EINVAL
    8 bytes = 0
    16 bytes = -EINVAL
    128 bytes = -EINVAL
    unmapped = -EFAULT
    unmapped, one is there = 0
");

fn extended_mask_argument(t: &mut Transcript) {
    let ring = Ring::new(4);
    handle(libc::SIGUSR1, count, 0);
    mask(libc::SIG_BLOCK, &[libc::SIGUSR1]);
    let set = set_of(&[]);
    let time = LONG;
    let mut argument: u::io_uring_getevents_arg = zeroed();
    argument.sigmask = &raw const set as u64;
    argument.sigmask_sz = 8;
    argument.ts = &raw const time as u64;
    let thread = signal_later(libc::SIGUSR1, 20);
    let flags = u::IORING_ENTER_GETEVENTS | u::IORING_ENTER_EXT_ARG;
    let size = size_of_val(&argument);
    let answer = ring.enter_with(0, 1, flags, (&raw const argument).cast(), size);
    t.result("wait", answer);
    handled(t);
    t.say(format_args!("blocked again {}", is_blocked(libc::SIGUSR1)));
    let _ = thread.join();
}
case!(extended_mask_argument => "
    wait = -EINTR
    handled 1
    blocked again true
");
