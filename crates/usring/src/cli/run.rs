//! `usring run`: starts a program whose io_uring calls usring answers.
//!
//! Without `--stats` and `--device` this process becomes the program (same
//! process id, no second process); with them, it stays beside the program, see
//! [`super::supervise`].

use super::devices::{self, Connected, Devices};
use super::environment::Environment;
use super::executable::{self, Executable};
use super::statistics::StatisticsFile;
use super::supervise::{Ended, Supervisor};
use super::swap::{self, Checked, CountedFile, SwapOption};
use super::{Failure, Outcome, STATUS_NOT_EXECUTABLE, STATUS_NOT_FOUND, deny, library, limits, stores};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use usring::control::vhost_user::VhostUser;
use usring_engine::DEFAULT_SPIN_LIMIT;

const EXAMPLES: &str = "\
Examples:
  usring run -- node server.js
  usring run --deny-kernel --stats -- qemu-img bench -i io_uring -t none disk.img
  usring run --device disk=ram:size=1G -- \
      fio --name=job --filename=disk --ioengine=io_uring --direct=1 --hipri --rw=randread
  truncate -s 8G swap && usring run --swap file:path=swap,limit=256M --stats -- sort -S 2G huge.txt

Exit status: the program's own. If it never started: 125 if usring cannot serve it (it says why),
126 if it cannot be executed, 127 if it was not found.

The program must be dynamically linked for x86-64. What it starts in turn is served too.
Nothing needs root: this works as nobody, under no_new_privs and inside Docker's default profile.";

/// Start a program whose io_uring calls are answered by usring, in its own process.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Have the kernel's io_uring answer EPERM, as under Docker's default profile: nothing can fall through to it.
    #[arg(long)]
    pub deny_kernel: bool,

    /// When the program ends, print what was done, per opcode, to standard error.
    #[arg(long)]
    pub stats: bool,

    /// Leave the program's code as it is: every call goes through the trap (about 2 µs instead of some 20 ns).
    #[arg(long)]
    pub no_patch: bool,

    /// Give the program a block device: PATH, which must not exist yet, appears to it as a file of the device's size.
    /// SPEC is null:size=1T,latency=10us, ram:size=1G, file:path=FILE or vhost-user:socket=PATH, may stand in
    /// delay(SPEC,read=80us) or error(SPEC,eio=1%), and may end with ,poll=POLICY (`usring ctl --help` has the policies).
    #[arg(long = "device", value_name = "PATH=SPEC", value_parser = devices::parse)]
    pub devices: Vec<devices::DeviceOption>,

    /// On a device that does not poll (poll=interrupt), let polled rings wait for interrupts instead of refusing them.
    #[arg(long)]
    pub iopoll_fallback: bool,

    /// Keep at most `limit` of the program's large anonymous memory resident, and the rest in SPEC: file:path=FILE, a
    /// file that is there and as large as what may have to go (what it holds is overwritten), ram:size=1G, or another
    /// device as for --device.
    /// Without privileges, and without swap of the system's: who touches a page that is out reads it back.
    /// Memory that is mapped `min` bytes (1M) or more at a time is swapped, malloc's large blocks among it; what came
    /// and went, --stats tells. `usring doctor` lists mechanisms and their costs; the first that works is taken.
    #[arg(long = "swap", value_name = "SPEC,limit=SIZE[,min=SIZE][,mechanism=NAME]", value_parser = swap::parse)]
    pub swap: Option<SwapOption>,

    /// Have libaio's io_getevents poll devices, and files open with O_DIRECT, for events, as far as nothing else has
    /// to be told of them (no eventfd): programs on libaio then gain from polling without a change.
    #[arg(long)]
    pub aio_poll: bool,

    /// A thread that waits in io_uring_enter for a single transfer of a file open with O_DIRECT looks for its completion
    /// instead of sleeping, where such transfers are expected to take no longer than this. A longer span costs
    /// processor time and saves the microseconds that a wake-up takes; 0us: always sleep.
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "15us")]
    pub spin: u64,

    /// The program, looked up in PATH, and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"])]
    pub command: Vec<OsString>,
}

/// What the hidden `denied` takes.
#[derive(clap::Args)]
pub struct DeniedOptions {
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// A program, ready to be executed.
pub struct Launch {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    needs_shell: bool,
    deny_kernel: bool,
}

fn parse_span(text: &str) -> Result<u64, String> {
    usring_device::span::parse(text).ok_or_else(|| "a span is a number with ns, us, ms or s".into())
}

/// The subcommand. Without `--stats` it only returns if something failed.
pub fn run(options: &Options) -> Outcome {
    let (executable, mut environment) = prepare(options)?;
    let probe = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK)
        .map_err(|error| Failure::new(format!("cannot make an eventfd ({error})")))?;
    environment.probe(probe.as_fd().as_raw_fd());
    // Before signals are blocked: a mechanism is tried by what it raises.
    let checked = options.swap.as_ref().map(SwapOption::check).transpose()?;
    if let (Some(swap), false) = (&options.swap, options.stats) {
        environment.swap(&swap.text(None));
    }
    let is_remote = checked.as_ref().is_some_and(|checked| checked.is_remote);
    if !options.stats && options.devices.is_empty() && !is_remote {
        let launch = Launch::new(&options.command, executable, environment, options.deny_kernel)?;
        return launch.execute().map(|never| match never {});
    }
    // A back end that does not answer is waited for with signals open: an interrupt ends that.
    let back_ends = BackEnds::connect(options, checked.as_ref().filter(|_| is_remote))?;
    let supervisor = Supervisor::begin()?;
    let devices = devices_of(options, back_ends, &mut environment)?;
    let counted = match &options.swap {
        Some(swap) if options.stats => {
            let counted = CountedFile::create()?;
            environment.swap(&swap.text(Some(&counted)));
            Some(counted)
        }
        _ => None,
    };
    let statistics = if options.stats { Some(StatisticsFile::create()?) } else { None };
    if let Some(statistics) = &statistics {
        environment.statistics(&statistics.path());
    }
    let launch = Launch::new(&options.command, executable, environment, options.deny_kernel)?;
    let ended = supervisor.run(&launch, || devices.as_ref().map_or(Ok(()), Devices::serve))?;
    // Before anything that may end us: a closed standard error, or the signal
    // by which the program ended.
    drop(devices);
    let was_served = probe.read().is_ok();
    if let (false, Ended::Exited(0)) = (was_served, &ended) {
        return Err(Failure::new("the program was not served: it ended before libusring.so had been loaded"));
    }
    if let Some(statistics) = &statistics {
        report(statistics, was_served);
    }
    if let Some(counted) = &counted {
        report_swap(counted);
    }
    Ok(ended.mirror())
}

/// Refuses what cannot be served, as far as that is seen from outside; answers the program's file
/// and its environment.
fn prepare(options: &Options) -> Result<(Executable, Environment), Failure> {
    let library = library::find()?;
    if let Some(sentence) = limits::too_low() {
        return Err(Failure::new(sentence));
    }
    let new_privileges = !options.deny_kernel && !nix::sys::prctl::get_no_new_privs().unwrap_or(false);
    let executable = executable::find(&options.command[0], new_privileges)?;
    stores::check_distinct(&options.devices, options.swap.as_ref())?;
    options.swap.iter().for_each(stores::warn_of_modes);
    let mut environment = Environment::inherited();
    environment.preload(&library, executable.runtime.as_deref());
    if options.no_patch {
        environment.forbid_patching();
    }
    if options.aio_poll {
        environment.poll_for_aio();
    }
    if options.spin != DEFAULT_SPIN_LIMIT {
        environment.spin(options.spin);
    }
    Ok((executable, environment))
}

/// What serves devices and swapped memory in other processes.
struct BackEnds {
    devices: Vec<Connected>,
    swap: Option<VhostUser>,
}

impl BackEnds {
    fn connect(options: &Options, remote_swap: Option<&Checked>) -> Result<BackEnds, Failure> {
        let devices = options.devices.iter().map(Connected::to).collect::<Result<_, _>>()?;
        let swap = match (&options.swap, remote_swap) {
            (Some(swap), Some(checked)) => swap.connect(checked)?,
            _ => None,
        };
        Ok(BackEnds { devices, swap })
    }
}

/// What the program's processes will ask us for: devices, and a back end for swapped memory.
fn devices_of(
    options: &Options,
    back_ends: BackEnds,
    environment: &mut Environment,
) -> Result<Option<Devices>, Failure> {
    let (has_devices, has_back_end) = (!options.devices.is_empty(), back_ends.swap.is_some());
    if !has_devices && !has_back_end {
        return Ok(None);
    }
    let connected = options.devices.iter().zip(back_ends.devices);
    let devices = Devices::create(connected, options.iopoll_fallback, back_ends.swap)?;
    if has_devices {
        environment.devices(devices.socket_path());
    }
    if has_back_end {
        environment.swap_socket(devices.socket_path());
    }
    Ok(Some(devices))
}

/// The hidden subcommand: what a program meets that is denied io_uring.
pub fn denied(options: &DeniedOptions) -> Outcome {
    let executable = executable::find(&options.command[0], false)?;
    let launch = Launch::new(&options.command, executable, Environment::inherited(), true)?;
    launch.execute().map(|never| match never {})
}

fn report(statistics: &StatisticsFile, was_served: bool) {
    let mut errors = std::io::stderr();
    // Beyond this point nothing may change the program's exit status, so who
    // has closed standard error is told nothing.
    let _ = match statistics.read() {
        Ok(snapshot) if !was_served && !snapshot.was_used() => {
            writeln!(errors, "usring: the program ended before libusring.so had been loaded")
        }
        Ok(snapshot) => write!(errors, "{snapshot}"),
        Err(error) => writeln!(errors, "usring: cannot read the statistics ({error})"),
    };
}

fn report_swap(counted: &CountedFile) {
    let mut errors = std::io::stderr();
    let _ = match counted.read() {
        Ok(report) => write!(errors, "{report}"),
        Err(error) => writeln!(errors, "usring: cannot read the statistics of swap ({error})"),
    };
}

impl Launch {
    fn new(
        command: &[OsString],
        executable: Executable,
        environment: Environment,
        deny_kernel: bool,
    ) -> Result<Launch, Failure> {
        let text = |bytes: &[u8]| {
            CString::new(bytes)
                .map_err(|_| Failure::new("an argument contains a NUL byte, which no program can be given"))
        };
        Ok(Launch {
            path: text(executable.path.as_os_str().as_bytes())?,
            arguments: command.iter().map(|argument| text(argument.as_bytes())).collect::<Result<_, _>>()?,
            environment: environment.strings(),
            needs_shell: executable.needs_shell,
            deny_kernel,
        })
    }

    /// Becomes the program.
    pub fn execute(&self) -> Result<Infallible, Failure> {
        if self.deny_kernel {
            deny::install()?;
        }
        let error = match nix::unistd::execve(&self.path, &self.arguments, &self.environment) {
            Err(Errno::ENOEXEC) if self.needs_shell => self.execute_by_shell(),
            Err(error) => error,
            Ok(never) => match never {},
        };
        let status = if error == Errno::ENOENT { STATUS_NOT_FOUND } else { STATUS_NOT_EXECUTABLE };
        let sentence = format!("cannot execute {}: {}", self.path.to_string_lossy(), error.desc());
        Err(Failure::with_status(status, sentence))
    }

    /// A script that does not say so: as execvp(3) has it.
    fn execute_by_shell(&self) -> Errno {
        let mut arguments = vec![c"sh".to_owned(), self.path.clone()];
        arguments.extend_from_slice(&self.arguments[1..]);
        match nix::unistd::execve(c"/bin/sh", &arguments, &self.environment) {
            Err(error) => error,
            Ok(never) => match never {},
        }
    }
}
