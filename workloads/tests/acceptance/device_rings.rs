//! Rings on devices of the run, without IOPOLL. The program watches the CQ in memory, waits on a
//! descriptor, uses chains, overflows the CQ, and closes rings with requests in flight.

use crate::devices::is_tidy;
use workloads::harness::{LIBURING, Stage, World, require};

/// SPECs of devices. Some complete a request at once, others by a system call or by a timer.
const DEVICES: [&str; 5] = [
    "ram:size=1M",
    "null:size=1M",
    "null:size=1M,latency=50us",
    "file:path=backing",
    "delay(ram:size=1M,read=uniform(1us,100us))",
];

/// The SPEC of a device with poll=interrupt. With --iopoll-fallback, a polled ring on that device
/// waits for interrupts.
const INTERRUPT_DEVICE: &str = "delay(ram:size=1M,read=uniform(1us,100us)),poll=interrupt";

#[test]
fn rings_on_devices_lose_no_completion_however_the_program_waits() {
    require(&LIBURING);
    let stage = Stage::new();
    stage.write("backing", vec![0; 1 << 20]);
    let program = stage.compile("device_rings.c", &["-luring"]);
    for (spec, falls_back) in DEVICES.into_iter().map(|spec| (spec, false)).chain([(INTERRUPT_DEVICE, true)]) {
        let mut options = vec![format!("--device=disk={spec}"), "--device=silent=error(ram:size=1M,never=1)".into()];
        options.extend(falls_back.then(|| "--iopoll-fallback".to_owned()));
        let finished = stage.program_with(World::Denied, &options, &program).finish();
        assert!(finished.status.success(), "{spec}: {}", finished.report());
        assert_eq!(finished.stdout, "19 checks hold\n", "{spec}: {}", finished.report());
        is_tidy(&stage);
    }
}

/// A device that does not answer must not delay the other rings. All rings of a process share one
/// ring watcher, a thread that polls each ring while no other thread drives it.
#[test]
fn a_stalled_device_does_not_delay_other_rings() {
    require(&LIBURING);
    let stage = Stage::new();
    stage.write("backing", vec![0; 1 << 20]);
    let program = stage.compile("standing_device.c", &["-luring"]);
    let options = ["--device=disk=file:path=backing".to_owned()];
    let finished = stage.program_with(World::Denied, &options, &program).finish();
    assert!(finished.status.success(), "{}", finished.report());
    let known = ["6 checks hold\n", "the system has no userfaultfd for us\n"];
    assert!(known.contains(&&*finished.stdout), "{}", finished.report());
    is_tidy(&stage);
}
