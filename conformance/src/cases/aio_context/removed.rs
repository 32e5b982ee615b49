//! The program removes an event from its context's event ring, by overwriting the ring's tail.

use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};

use usring_uapi::aio::IoEvent;

use super::super::signals;
use crate::aio::{self, Context};
use crate::transcript::Transcript;
use crate::{files, process, time};

extern "C" fn ignore(_: i32) {}

/// The program removes the only event from the ring: it overwrites the ring's tail with the head.
/// io_getevents then sleeps without using processor time, until a signal ends the sleep.
fn event_that_the_program_has_removed(t: &mut Transcript) {
    let waiter = process::start(|| {
        let context = Context::new(8);
        let file = files::memory_file(b"some content");
        let is_there = context.submit(&mut [aio::sync(file.as_raw_fd(), 1)]) == 1
            && time::until(|| context.header().tail != context.header().head);
        context.set_tail(context.header().head);
        let mut event = IoEvent::default();
        signals::handle(libc::SIGALRM, ignore, 0);
        let interval = libc::timeval { tv_sec: 0, tv_usec: 200_000 };
        let timer = libc::itimerval { it_interval: interval, it_value: interval };
        // SAFETY: the call reads only the timer.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, null_mut()) };
        let before = time::on_clock(libc::CLOCK_PROCESS_CPUTIME_ID, 100);
        let answer = aio::get(context.0, 1, 1, &mut event, null());
        let after = time::on_clock(libc::CLOCK_PROCESS_CPUTIME_ID, 0);
        let slept = (after.tv_sec, after.tv_nsec) < (before.tv_sec, before.tv_nsec);
        i32::from(!is_there || answer != -libc::EINTR || !slept)
    });
    if !time::until(|| time::process_state(waiter) == Some('Z')) {
        // SAFETY: the call touches no memory.
        unsafe { libc::kill(waiter, libc::SIGKILL) };
    }
    t.say(process::ending(waiter));
}
case!(event_that_the_program_has_removed => "exit 0");
