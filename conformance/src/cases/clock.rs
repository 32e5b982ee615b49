//! REGISTER_CLOCK selects the clock that measures the timeouts of io_uring_enter(2).

use usring_uapi::io_uring as u;

use super::reg;
use crate::memory::{BAD, zeroed};
use crate::ring::Ring;
use crate::time::on_clock;
use crate::transcript::{Transcript, timed};

fn register(ring: &Ring, clock: u32) -> i32 {
    let mut wanted: u::io_uring_clock_register = zeroed();
    wanted.clockid = clock;
    ring.register(reg::CLOCK, &raw const wanted, 0)
}

fn choose_clock(t: &mut Transcript) {
    let ring = Ring::new(4);
    for (name, clock) in [
        ("realtime", libc::CLOCK_REALTIME),
        ("monotonic", libc::CLOCK_MONOTONIC),
        ("process", libc::CLOCK_PROCESS_CPUTIME_ID),
        ("monotonic raw", libc::CLOCK_MONOTONIC_RAW),
        ("boottime", libc::CLOCK_BOOTTIME),
        ("TAI", libc::CLOCK_TAI),
        ("unknown", 77),
    ] {
        t.result(name, register(&ring, clock as u32));
    }
}
case!(choose_clock => "
    realtime = -EINVAL
    monotonic = 0
    process = -EINVAL
    monotonic raw = -EINVAL
    boottime = 0
    TAI = -EINVAL
    unknown = -EINVAL
");

fn absolute_on_boottime(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.result("boottime", register(&ring, libc::CLOCK_BOOTTIME as u32));
    let time = on_clock(libc::CLOCK_BOOTTIME, 30);
    let mut argument: u::io_uring_getevents_arg = zeroed();
    argument.ts = &raw const time as u64;
    let flags = u::IORING_ENTER_GETEVENTS | u::IORING_ENTER_EXT_ARG | u::IORING_ENTER_ABS_TIMER;
    let (answer, waited) = timed(|| ring.enter_with(0, 1, flags, (&raw const argument).cast(), size_of_val(&argument)));
    t.result("wait", answer);
    t.between("waited", waited, 0, 30_000);
    t.reached(libc::CLOCK_BOOTTIME, &time);
}
case!(absolute_on_boottime => "
    boottime = 0
    wait = -ETIME
    waited: after 0 to 30000 ms
    the time has come: true
");

fn wrong(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut wanted: u::io_uring_clock_register = zeroed();
    wanted.clockid = libc::CLOCK_MONOTONIC as u32;
    t.result("count 1", ring.register(reg::CLOCK, &raw const wanted, 1));
    t.result("null", ring.register::<u8>(reg::CLOCK, std::ptr::null(), 0));
    t.result("unmapped", ring.register(reg::CLOCK, BAD as *const u8, 0));
    wanted.__resv[2] = 1;
    t.result("reserved", ring.register(reg::CLOCK, &raw const wanted, 0));
}
case!(wrong => "
    count 1 = -EINVAL
    null = -EINVAL
    unmapped = -EFAULT
    reserved = -EINVAL
");
