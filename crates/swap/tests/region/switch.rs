//! A device whose reads or writes a test can make fail or wait, from any moment on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use usring_device::{
    Completions, Device, DeviceRequest, Driver, Geometry, Operation, OwnSupply, PolicyWord, QueueOptions, QueuePair,
    Submission,
};
use usring_sys::Errno;

#[derive(Default)]
pub struct Switch {
    pub fails_reads: AtomicBool,
    pub fails_writes: AtomicBool,
    /// Every n-th write fails. 0: no write fails.
    pub fails_each: AtomicU64,
    pub stalls_writes: AtomicBool,
    /// Number of writes that are delayed at this moment.
    pub stalled: AtomicU64,
    writes: AtomicU64,
    pub reads: AtomicU64,
}

impl Switch {
    fn refuses(&self, operation: Operation) -> bool {
        match operation {
            Operation::Read => {
                self.reads.fetch_add(1, Ordering::Relaxed);
                self.fails_reads.load(Ordering::Relaxed)
            }
            Operation::Write => {
                if self.stalls_writes.load(Ordering::Relaxed) {
                    self.stalled.fetch_add(1, Ordering::Relaxed);
                    while self.stalls_writes.load(Ordering::Relaxed) {
                        // The thread sleeps by usring's own system call, because libc may not know
                        // this thread.
                        let _ = usring_sys::wait::nanosleep(1_000_000);
                    }
                    self.stalled.fetch_sub(1, Ordering::Relaxed);
                }
                let count = self.writes.fetch_add(1, Ordering::Relaxed);
                let each = self.fails_each.load(Ordering::Relaxed);
                self.fails_writes.load(Ordering::Relaxed) || (each != 0 && count % each == each - 1)
            }
            _ => false,
        }
    }
}

struct Switched {
    switch: Arc<Switch>,
    inner: Box<dyn Driver>,
}

struct SwitchedQueue {
    switch: Arc<Switch>,
    inner: Box<dyn QueuePair>,
}

/// Returns a RAM device of `bytes` bytes, and the switch that makes it fail or wait.
pub fn device(bytes: usize) -> (Arc<Device>, Arc<Switch>) {
    crate::common::prepare();
    let switch = Arc::new(Switch::default());
    let inner = usring_device::spec::parse(&format!("ram:size={bytes}")).unwrap().open(Box::new(OwnSupply)).unwrap();
    let driver = Switched { switch: switch.clone(), inner };
    let policy = PolicyWord::leaked(Default::default());
    (Arc::new(Device::new(Box::new(driver), policy, true)), switch)
}

impl Driver for Switched {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno> {
        Ok(Box::new(SwitchedQueue { switch: self.switch.clone(), inner: self.inner.open_queue(options)? }))
    }

    /// Makes a forked child inherit regions on this device. The child gets its own copy of the RAM
    /// device's content. So `true` is right only for tests whose children read nothing from the
    /// device.
    fn keep_after_fork(&self, _: &mut dyn FnMut(i32)) -> bool {
        true
    }
}

impl QueuePair for SwitchedQueue {
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        if self.switch.refuses(request.operation) {
            return Submission::Refused(Errno::EIO);
        }
        self.inner.submit(request)
    }

    fn ring_doorbell(&mut self) {
        self.inner.ring_doorbell();
    }

    fn poll(&mut self, completions: &mut Completions) {
        self.inner.poll(completions);
    }

    fn interrupt(&self) -> Option<i32> {
        self.inner.interrupt()
    }

    fn arm_interrupt(&mut self) -> bool {
        self.inner.arm_interrupt()
    }
}
