//! Rings on devices that their program does not poll: seen in memory alone, told
//! by a descriptor, in chains, overflowing, and closed with requests out.

use crate::devices::is_tidy;
use workloads::harness::{LIBURING, Stage, World, require};

/// Done at once, done by the kernel, and done when a timer says so.
const DEVICES: [&str; 5] = [
    "ram:size=1M",
    "null:size=1M",
    "null:size=1M,latency=50us",
    "file:path=backing",
    "delay(ram:size=1M,read=uniform(1us,100us))",
];

#[test]
fn rings_on_devices_lose_no_completion_however_they_are_watched() {
    require(&LIBURING);
    let stage = Stage::new();
    stage.write("backing", vec![0; 1 << 20]);
    let program = stage.compile("device_rings.c", &["-luring"]);
    for spec in DEVICES {
        let devices = [&format!("disk={spec}"), "silent=error(ram:size=1M,never=1)"];
        let finished = stage.program_on_devices(World::Denied, &devices, &program).finish();
        assert!(finished.status.success(), "{spec}: {}", finished.report());
        assert_eq!(finished.stdout, "14 checks hold\n", "{spec}: {}", finished.report());
        is_tidy(&stage);
    }
}
