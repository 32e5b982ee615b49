//! The devices of a run (`usring run --device`) in one of the run's processes: the files that stand
//! for the devices, and the drivers. Each process makes its own drivers, because a queue pair and a
//! kernel AIO context belong to the process that opened them. One more device, `kernel_files`,
//! stands for all ordinary files.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use usring_device::control::{Control, FALLBACK, QuestionKind, RemoteSupply};
use usring_device::driver::file::KernelFiles;
use usring_device::driver::gone::Gone;
use usring_device::{Device, Geometry, OpenDevice, PolicyWord, PollPolicy, spec};
use usring_sys::descriptor::{self, FileIdentity};
use usring_sys::per_process::PerProcess;
use usring_sys::plain::IoVector;
use usring_sys::set_once::SetOnce;
use usring_sys::{Errno, UserAddress, mapping, width};
use usring_uapi::general as linux;

/// A process's view of the run's devices.
struct RunDevices {
    list: Vec<RunDevice>,
}

struct RunDevice {
    identity: Identity,
    device: Arc<Device>,
}

static CONTROL: SetOnce<Control> = SetOnce::new();
static DEVICES: PerProcess<RunDevices> = PerProcess::new();

/// The files that stand for the run's devices, with each device's geometry. A child process that
/// can no longer reach the run's launcher makes its devices from this list. Every transfer on such
/// a device fails.
static GEOMETRIES: SetOnce<Vec<(Identity, Geometry)>> = SetOnce::new();

/// Whether `usring run --device` gave this run a device. While this is `false`, no file that the
/// program opens needs to be compared with the files that stand for devices.
static HAS_DEVICES: AtomicBool = AtomicBool::new(false);

/// Returns whether `usring run --device` gave this run a device.
#[inline(always)]
pub(crate) fn are_any() -> bool {
    HAS_DEVICES.load(Ordering::Relaxed)
}

/// `st_dev` and `st_ino` of the file that stands for a device.
type Identity = (u64, u64);

/// This process's instance of the device that stands for all ordinary files.
static KERNEL_FILES: PerProcess<Arc<Device>> = PerProcess::new();

/// Returns the device that stands for all ordinary files, which the kernel serves.
pub(crate) fn kernel_files() -> &'static Arc<Device> {
    static POLICY: AtomicU64 = AtomicU64::new(PollPolicy::Classic.to_word());
    KERNEL_FILES.get_or_make(|| Arc::new(Device::new(Box::new(KernelFiles), PolicyWord::at(&POLICY), false)))
}

/// Opens the run's devices, which the launcher lists at the socket with this path.
///
/// Errors: the errors of [`Control::ask`] for the socket and its answers, and the errors of the
/// devices' drivers.
pub fn connect(socket: &[u8]) -> Result<(), Errno> {
    CONTROL.set(Box::leak(Box::new(Control::at(socket))));
    let devices = open_all()?;
    let shapes = devices.list.iter().map(|known| (known.identity, *known.device.geometry())).collect();
    GEOMETRIES.set(Box::leak(Box::new(shapes)));
    DEVICES.get_or_make(|| devices);
    HAS_DEVICES.store(true, Ordering::Relaxed);
    Ok(())
}

fn open_all() -> Result<RunDevices, Errno> {
    let Some(control) = CONTROL.get() else { return Ok(RunDevices { list: Vec::new() }) };
    let answered = control.ask(QuestionKind::List, 0, [0; 4], None)?;
    let page = answered.descriptors.first().ok_or(Errno::EINVAL)?;
    let policies = mapping::shared_words(page)?;
    let list =
        (0..width::low(answered.values[0])).map(|index| open(control, index, policies)).collect::<Result<_, _>>()?;
    Ok(RunDevices { list })
}

/// Returns devices on which every transfer fails, for a child of a run whose launcher has ended.
fn all_failing() -> RunDevices {
    static POLICY: AtomicU64 = AtomicU64::new(PollPolicy::Classic.to_word());
    let gone = |(identity, geometry): &(Identity, Geometry)| RunDevice {
        identity: *identity,
        device: Arc::new(Device::new(Box::new(Gone(*geometry)), PolicyWord::at(&POLICY), false)),
    };
    RunDevices { list: GEOMETRIES.get().map_or(Vec::new(), |shapes| shapes.iter().map(gone).collect()) }
}

fn open(control: &Control, index: u32, policies: &'static [AtomicU64]) -> Result<RunDevice, Errno> {
    let described = control.ask(QuestionKind::Describe, index, [0; 4], None)?;
    let [st_dev, st_ino, flags, _] = described.values;
    let text = described.text.split(|byte| *byte == 0).next().unwrap_or(&[]);
    let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    let spec = spec::parse(text).map_err(|_| Errno::EINVAL)?;
    let driver = spec.open(Box::new(RemoteSupply::new(control.clone(), index)))?;
    let policy = PolicyWord::at(policies.get(index as usize).ok_or(Errno::EINVAL)?);
    let device = Arc::new(Device::new(driver, policy, flags & FALLBACK != 0));
    Ok(RunDevice { identity: (st_dev, st_ino), device })
}

/// Shares registered memory of the program with the back ends of the devices. Skips a device whose
/// back end cannot map the memory.
pub(crate) fn share(memory: &[IoVector]) {
    let devices = DEVICES.get().map_or(&[][..], |devices| &devices.list);
    devices.iter().for_each(|known| memory.iter().for_each(|part| known.device.driver().share_memory(*part)));
}

/// Ends the sharing that [`share`] began.
pub(crate) fn unshare(memory: &[IoVector]) {
    let devices = DEVICES.get().map_or(&[][..], |devices| &devices.list);
    devices.iter().for_each(|known| memory.iter().for_each(|part| known.device.driver().unshare_memory(*part)));
}

/// Ends the sharing of old memory with the devices' back ends, after the program has mapped other
/// memory at the same addresses. The caller shares the new memory by [`share`] first.
pub(crate) fn unshare_replaced(memory: &[IoVector]) {
    let devices = DEVICES.get().map_or(&[][..], |devices| &devices.list);
    devices.iter().for_each(|known| memory.iter().for_each(|part| known.device.driver().unshare_replaced(*part)));
}

/// Returns the device that a path leads to. A relative path starts at the descriptor `directory`.
pub fn of_path(directory: i32, path: UserAddress) -> Option<OpenDevice> {
    let known = find(&descriptor::identity_of_path(directory, path).ok()?)?;
    Some(OpenDevice::new(known.device.clone(), linux::O_RDWR))
}

/// Returns whether a descriptor number still stands for the device of `file`.
pub fn is_still(file: &OpenDevice, number: i32) -> bool {
    let found = descriptor::identity(number).ok().and_then(|identity| find(&identity));
    found.is_some_and(|known| Arc::ptr_eq(&known.device, file.device()))
}

fn find(identity: &FileIdentity) -> Option<&'static RunDevice> {
    let devices = match DEVICES.get() {
        Some(devices) => devices,
        None => {
            let opened = open_all().unwrap_or_else(|_| all_failing());
            DEVICES.get_or_make(|| opened)
        }
    };
    devices.list.iter().find(|known| known.identity == (identity.device, identity.inode))
}

/// Returns the device that an open file stands for, whichever process opened the file. A file that
/// was opened with O_PATH stands for no device: the kernel answers calls on it.
pub fn recognise(number: i32) -> Option<Arc<OpenDevice>> {
    let known = find(&descriptor::identity(number).ok()?)?;
    let flags = descriptor::status_flags(number).ok().filter(|flags| flags & linux::O_PATH == 0)?;
    Some(Arc::new(OpenDevice::new(known.device.clone(), flags)))
}
