//! REGISTER_NAPI and UNREGISTER_NAPI, which set how the ring polls network devices. Each call
//! returns the setting of the previous call.

use usring_uapi::io_uring as u;

use crate::memory::{BAD, zeroed};
use crate::ring::Ring;
use crate::transcript::Transcript;

const NAPI: u32 = 27;
const UNREGISTER_NAPI: u32 = 28;
const ADD: u8 = 1;
const DELETE: u8 = 2;
const STATIC: u32 = 1;

fn setting(time: u32, prefer: u8, opcode: u8, parameter: u32) -> u::io_uring_napi {
    let mut setting: u::io_uring_napi = zeroed();
    (setting.busy_poll_to, setting.prefer_busy_poll, setting.opcode, setting.op_param) =
        (time, prefer, opcode, parameter);
    setting
}

/// Makes the io_uring_register(2) call with `opcode` and `setting`. Prints its result, and the
/// setting that it returns.
fn call(t: &mut Transcript, ring: &Ring, opcode: u32, mut setting: u::io_uring_napi) {
    let answer = ring.register(opcode, &raw mut setting, 1);
    t.result(format_args!("register {opcode}"), answer);
    let u::io_uring_napi { busy_poll_to, prefer_busy_poll, opcode, op_param, .. } = setting;
    t.say(format_args!("before: {busy_poll_to} us, prefer {prefer_busy_poll}, {opcode}, tracking {op_param}"));
}

fn settings_are_replaced(t: &mut Transcript) {
    let ring = Ring::new(4);
    call(t, &ring, NAPI, setting(50, 1, 0, 0));
    call(t, &ring, NAPI, setting(70, 5, 0, STATIC));
    call(t, &ring, NAPI, setting(u32::MAX, 0, 0, 0));
    call(t, &ring, UNREGISTER_NAPI, setting(1, 2, 3, 4));
    call(t, &ring, NAPI, setting(0, 0, 0, 0));
}
case!(settings_are_replaced => "
    register 27 = 0
    before: 0 us, prefer 0, 0, tracking 255
    register 27 = 0
    before: 50 us, prefer 1, 0, tracking 0
    register 27 = 0
    before: 70 us, prefer 1, 0, tracking 1
    register 28 = 0
    before: 10000 us, prefer 0, 0, tracking 0
    register 27 = 0
    before: 0 us, prefer 0, 0, tracking 255
");

fn tracking(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.say("only where ids are named");
    call(t, &ring, NAPI, setting(0, 0, ADD, 1 << 20));
    call(t, &ring, NAPI, setting(10, 0, 0, 0));
    call(t, &ring, NAPI, setting(0, 0, ADD, 1 << 20));
    call(t, &ring, NAPI, setting(0, 0, DELETE, 1 << 20));
    t.say("named");
    call(t, &ring, NAPI, setting(20, 1, 0, STATIC));
    call(t, &ring, NAPI, setting(0, 0, ADD, 1 << 20));
    call(t, &ring, NAPI, setting(0, 0, ADD, 1 << 20));
    call(t, &ring, NAPI, setting(0, 0, ADD, 0));
    call(t, &ring, NAPI, setting(0, 0, DELETE, 1 << 20));
    call(t, &ring, NAPI, setting(0, 0, DELETE, 1 << 20));
    call(t, &ring, NAPI, setting(0, 0, DELETE, 0));
    call(t, &ring, NAPI, setting(0, 0, ADD, 1 << 21));
    t.say("forgotten with the setting");
    call(t, &ring, NAPI, setting(30, 0, 0, STATIC));
    call(t, &ring, NAPI, setting(0, 0, DELETE, 1 << 21));
}
case!(tracking => include_str!("napi/tracking.txt"));

fn refused(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.say("reserved fields");
    let mut wrong = setting(1, 0, 0, 0);
    wrong.resv = 1;
    call(t, &ring, NAPI, wrong);
    wrong = setting(1, 0, 0, 0);
    wrong.pad[1] = 1;
    call(t, &ring, NAPI, wrong);
    t.say("operation and tracking");
    call(t, &ring, NAPI, setting(1, 0, 3, 0));
    call(t, &ring, NAPI, setting(1, 0, 0, 2));
    call(t, &ring, NAPI, setting(1, 0, 0, 255));
    call(t, &ring, NAPI, setting(2, 0, 0, 0));
    t.say("argument and count");
    let good = setting(1, 0, 0, 0);
    t.result("two", ring.register(NAPI, &raw const good, 2));
    t.result("none", ring.register(NAPI, &raw const good, 0));
    t.result("nothing", ring.register::<u8>(NAPI, std::ptr::null(), 1));
    t.result("unmapped", ring.register(NAPI, BAD as *const u8, 1));
    t.say("polled ring");
    let ring = Ring::flags(4, u::IORING_SETUP_IOPOLL);
    call(t, &ring, NAPI, setting(1, 0, 0, 0));
    call(t, &ring, UNREGISTER_NAPI, setting(1, 0, 0, 0));
}
case!(refused => "
    reserved fields
    register 27 = -EINVAL
    before: 1 us, prefer 0, 0, tracking 0
    register 27 = -EINVAL
    before: 1 us, prefer 0, 0, tracking 0
    operation and tracking
    register 27 = -EINVAL
    before: 0 us, prefer 0, 0, tracking 255
    register 27 = -EINVAL
    before: 0 us, prefer 0, 0, tracking 255
    register 27 = -EINVAL
    before: 0 us, prefer 0, 0, tracking 255
    register 27 = 0
    before: 0 us, prefer 0, 0, tracking 255
    argument and count
    two = -EINVAL
    none = -EINVAL
    nothing = -EINVAL
    unmapped = -EFAULT
    polled ring
    register 27 = -EINVAL
    before: 1 us, prefer 0, 0, tracking 0
    register 28 = 0
    before: 0 us, prefer 0, 0, tracking 0
");

fn unregister(t: &mut Transcript) {
    let ring = Ring::new(4);
    call(t, &ring, UNREGISTER_NAPI, setting(9, 0, 0, 0));
    t.result("nothing to write to", ring.register::<u8>(UNREGISTER_NAPI, std::ptr::null(), 1));
    t.result("none", ring.register::<u8>(UNREGISTER_NAPI, std::ptr::null(), 0));
    t.result("two", ring.register::<u8>(UNREGISTER_NAPI, std::ptr::null(), 2));
    t.result("unmapped", ring.register(UNREGISTER_NAPI, BAD as *const u8, 1));
}
case!(unregister => "
    register 28 = 0
    before: 0 us, prefer 0, 0, tracking 0
    nothing to write to = 0
    none = -EINVAL
    two = -EINVAL
    unmapped = -EFAULT
");
