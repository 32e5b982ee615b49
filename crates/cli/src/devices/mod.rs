//! `usring run --device PATH=SPEC`: the devices of a run.
//!
//! - [`placeholder`] makes the file by which the program names a device.
//! - [`policies`] is the page, shared by all processes, that says how threads wait for each device.
//! - [`socket`] is the Unix socket at which the program's processes and [`ctl`] ask questions.
//! - [`server`] answers these questions.

pub mod ctl;
mod placeholder;
mod policies;
mod server;
pub mod socket;

use super::{Failure, Outcome};
use crate::storage::{self, Daemons, Health, Storage};
use crate::system_error::words;
use placeholder::Placeholder;
use policies::Policies;
use socket::Socket;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use usring_device::driver::storage::needs_daemon;
use usring_device::driver::{file, vhost_user};
use usring_device::{Geometry, OwnSupply, Spec, Supply, control, spec};
use usring_sys::Errno;
use usring_sys::descriptor::{self, OwnedDescriptor};
use usring_vhost_user::VhostUser;

/// Smallest block size of a device, in bytes.
const BLOCK: u64 = 512;
/// Maximum number of devices of a run.
const MOST: usize = policies::ROOM;

/// A `PATH=SPEC` of the command line.
#[derive(Clone)]
pub struct DeviceOption {
    path: PathBuf,
    spec: Spec,
}

/// Parses `PATH=SPEC`. The error is one sentence for the user.
pub fn parse(text: &str) -> Result<DeviceOption, String> {
    let (path, spec) = text.split_once('=').ok_or("expected PATH=SPEC, for example /tmp/disk=ram:size=1G")?;
    if path.is_empty() {
        return Err("the PATH before '=' is empty".into());
    }
    let before = text.chars().count() - spec.chars().count();
    let spec = spec::parse(spec).map_err(|error| format!("{error}{}\n", error.caret(text, before)))?;
    if spec.is_for_swap() {
        return Err("overwrite= is for --swap; leave it out, because a device keeps the data of its file".into());
    }
    // The program's processes parse the SPEC again, each in a working directory of its own. So the
    // paths in the SPEC must be absolute.
    let spec = spec.with_paths(absolute)?;
    if needs_daemon(spec.device()) {
        storage::check(spec.device())?;
    }
    Ok(DeviceOption { path: path.into(), spec })
}

pub fn absolute(path: &str) -> Result<String, String> {
    let resolved = std::path::absolute(path).map_err(|error| format!("{path}: {error}", error = words(&error)))?;
    resolved
        .into_os_string()
        .into_string()
        .map_err(|_| format!("{path}: the path of the current directory is not UTF-8; use an absolute path"))
}

impl DeviceOption {
    /// Returns the text by which messages name the device: `--device PATH`.
    pub fn name(&self) -> String {
        format!("--device {}", self.path.display())
    }

    pub fn spec(&self) -> &Spec {
        &self.spec
    }
}

/// One device of the run.
pub struct RunDevice {
    /// Absolute path of the placeholder.
    path: PathBuf,
    spec: Spec,
    geometry: Geometry,
    placeholder: Placeholder,
    supply: Arc<dyn Supply>,
    /// The state of the storage daemon that serves the device. `None`: this run has started no
    /// daemon for the device.
    health: Option<Arc<Health>>,
}

/// The devices of a run. Dropping them removes the placeholders and the socket. The thread that
/// answers the questions of the program's processes continues until the launcher ends.
pub struct Devices {
    list: Arc<Vec<Arc<RunDevice>>>,
    /// The launcher's connections to the back ends, which last as long as the run. Only the
    /// launcher can reconnect to a back end, so a program that outlives the launcher gets EIO.
    _back_ends: Vec<VhostUser>,
    /// The storage daemons that this run has started. This field comes after `_back_ends`, so that
    /// the connections are closed before the daemons end.
    _daemons: Daemons,
    /// The interface to the back end of swapped memory. `None`: swapped memory has no back end.
    swap: Option<Arc<dyn Supply>>,
    policies: Arc<Policies>,
    socket: Socket,
    fallback: bool,
    /// The memory file with the run's rules for faults, if the run has any.
    faults: Option<Arc<OwnedDescriptor>>,
}

impl Devices {
    /// Opens the devices and makes their placeholders. `daemons` is the first parameter, because
    /// Rust drops parameters in reverse order: if a device cannot be made, the daemons end last.
    /// `fallback`: polled rings may wait for interrupts. `swap`: the back end of swapped memory, if
    /// there is one. `faults`: the memory file with the run's rules for faults, if it has any.
    pub fn create<'a>(
        daemons: Daemons,
        options: impl ExactSizeIterator<Item = (&'a DeviceOption, Connected)>,
        fallback: bool,
        swap: Option<VhostUser>,
        faults: Option<Arc<OwnedDescriptor>>,
    ) -> Result<Devices, Failure> {
        if options.len() > MOST {
            return Err(Failure::new(format!("a run can have at most {MOST} devices")));
        }
        let (mut list, mut back_ends) = (Vec::new(), Vec::new());
        for (option, Connected { supply, back_end, health }) in options {
            back_ends.extend(back_end);
            list.push(Arc::new(RunDevice::create(option, supply, health)?));
        }
        let policies = Policies::create(list.iter().map(|device| device.spec.policy()))?;
        let (list, policies) = (Arc::new(list), Arc::new(policies));
        let supply = swap.as_ref().map(|back_end| Arc::from(back_end.supply()));
        back_ends.extend(swap);
        let socket = Socket::create()?;
        Ok(Devices { list, _back_ends: back_ends, _daemons: daemons, swap: supply, policies, socket, fallback, faults })
    }

    /// Returns the path of the socket at which the program's processes ask questions.
    pub fn socket_path(&self) -> &Path {
        self.socket.path()
    }

    /// Starts the thread that answers questions. Must be called after the launcher has forked the
    /// program, because a process with two threads should not fork.
    pub fn serve(&self) -> Result<(), Failure> {
        let server = server::Server {
            devices: self.list.clone(),
            swap: self.swap.clone(),
            policies: self.policies.clone(),
            listener: self.socket.listener()?,
            fallback: self.fallback,
            faults: self.faults.clone(),
        };
        let started = std::thread::Builder::new().name("usring-control".into()).spawn(move || server.run());
        started.map(drop).map_err(|error| {
            Failure::new(format!("cannot start the thread for devices ({error})", error = words(&error)))
        })
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        self.list.iter().for_each(|device| device.placeholder.remove());
    }
}

impl RunDevice {
    fn create(
        option: &DeviceOption,
        supply: Arc<dyn Supply>,
        health: Option<Arc<Health>>,
    ) -> Result<RunDevice, Failure> {
        let path = std::path::absolute(&option.path)
            .map_err(|error| Failure::new(format!("{}: {error}", option.path.display(), error = words(&error))))?;
        if option.spec.to_string().len() + path.as_os_str().len() > control::MOST_MESSAGE_BYTES / 2 {
            let most = control::MOST_MESSAGE_BYTES / 2;
            return Err(Failure::new(format!("SPEC and PATH of a device can have at most {most} bytes together")));
        }
        let driver = option.spec.open(Box::new(supply.clone())).map_err(|error| {
            let why = why_not_opened(&option.spec, error);
            Failure::new(format!("cannot open the device {} for {}: {why}", option.spec, path.display()))
        })?;
        let geometry = driver.geometry();
        say_if_rounded(&option.spec, geometry.size);
        let placeholder = Placeholder::create(&path, geometry.size)?;
        Ok(RunDevice { path, spec: option.spec.clone(), geometry, placeholder, supply, health })
    }
}

/// Prints a notice if the device lacks the last bytes of its file. A device consists of whole
/// blocks, so an incomplete block at the end of the file is no part of it.
fn say_if_rounded(spec: &Spec, size: u64) {
    let layer = spec.device();
    let path = layer.text("path").filter(|_| layer.kind() == file::KIND.name && layer.size("size").is_none());
    let Some(path) = path else { return };
    let length = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|found| found.len());
    if let Some(length) = length.filter(|length| *length != size) {
        let _ = writeln!(
            std::io::stderr(),
            "usring run: {path} has {length} bytes; a device has whole blocks, so it ends after the first {size} of them"
        );
    }
}

/// Returns in words why a device could not be opened.
fn why_not_opened(spec: &Spec, error: Errno) -> String {
    let found = spec.device().text("path").and_then(|path| std::fs::metadata(path).ok());
    match found {
        Some(found) if !found.is_dir() && !found.is_file() && !found.file_type().is_block_device() => {
            "it is neither a file nor a block device".into()
        }
        Some(found) if error == Errno::EINVAL && found.len() < BLOCK => "the file is smaller than a block".into(),
        Some(found) if error == Errno::ENOSPC && found.is_file() => format!(
            "the file has {} bytes, fewer than size= says; with create=on, usring makes the file longer",
            found.len()
        ),
        None if error == Errno::ENOENT => "the file does not exist; with size= and create=on, usring makes it".into(),
        _ => words(&error),
    }
}

/// The interface by which all processes of the run drive a device, and the connection to its back
/// end, if it has one.
pub struct Connected {
    supply: Arc<dyn Supply>,
    back_end: Option<VhostUser>,
    /// The state of the storage daemon that serves the device. `None`: this run has started no
    /// daemon for the device.
    health: Option<Arc<Health>>,
}

impl Connected {
    /// Connects to the back end of a device, if it has one. If the back end is a daemon that this
    /// run starts, adds it to `daemons`.
    pub fn to(option: &DeviceOption, daemons: &mut Daemons) -> Result<Connected, Failure> {
        let (layer, name) = (option.spec.device(), option.path.display().to_string());
        let storage = if needs_daemon(layer) { Some(daemons.add(start_daemon(option)?)) } else { None };
        let options = match storage {
            Some(storage) => Some(storage.options(layer)),
            None => vhost_user::Options::of(layer),
        };
        let Some(options) = options else {
            return Ok(Connected { supply: Arc::new(KeptSupply::default()), back_end: None, health: None });
        };
        let back_end = connect(&options, name)?;
        let health = storage.map(Storage::health);
        Ok(Connected { supply: Arc::from(back_end.supply()), back_end: Some(back_end), health })
    }
}

/// Starts the storage daemon of a device.
fn start_daemon(option: &DeviceOption) -> Result<Storage, Failure> {
    let name = option.path.display().to_string();
    Storage::start(option.spec.device(), name.clone()).map_err(|Failure { status, sentence }| {
        Failure::with_status(status, format!("cannot open the device {} for {name}: {sentence}", option.spec))
    })
}

/// Connects to the back end of a device or of swapped memory. Messages to the user begin with
/// `name`.
pub fn connect(options: &vhost_user::Options<'_>, name: String) -> Result<VhostUser, Failure> {
    // `writeln!` does not panic if standard error is closed; `eprintln!` would.
    let report = Box::new(move |what: std::fmt::Arguments<'_>| {
        let _ = writeln!(std::io::stderr(), "usring: {name}: {what}");
    });
    VhostUser::connect(options, report).map_err(Failure::new)
}

/// The [`Supply`] of a device in memory: makes the device's memory once, and passes it to every
/// process.
#[derive(Default)]
struct KeptSupply {
    memory: std::sync::Mutex<Option<OwnedDescriptor>>,
}

impl Supply for KeptSupply {
    fn memory(&self, size: u64) -> Result<OwnedDescriptor, Errno> {
        let mut memory = self.memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let kept = match memory.take() {
            Some(kept) => kept,
            None => OwnSupply.memory(size)?,
        };
        let duplicate = descriptor::duplicate_private(kept.number());
        *memory = Some(kept);
        duplicate
    }
}

/// Runs the subcommand `ctl`.
pub fn control(options: &ctl::Options) -> Outcome {
    match &options.command {
        Some(ctl::Command::Inject(inject)) => crate::inject::control::run(inject),
        Some(ctl::Command::Metrics(metrics)) => crate::watch::metrics::run(metrics),
        Some(ctl::Command::Requests(requests)) => crate::trace::live::list(requests),
        Some(ctl::Command::Trace(trace)) => crate::trace::live::write(trace),
        None => ctl::run(options),
    }
}
