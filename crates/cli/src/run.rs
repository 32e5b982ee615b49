//! `usring run`: starts a program whose io_uring calls usring answers.
//!
//! If no option needs this process during the run, this process executes the program in place of
//! itself, so the program has this process's id. This process stays as the program's parent
//! ([`super::supervise`]) in these cases:
//!
//! - The user gives `--stats`, `--device`, `--inject`, `--order`, `--check` or `--trace`.
//! - The address space is limited.
//! - Swapped memory is on a back end.

use super::check::{CheckOption, Findings, SharedStacks};
use super::devices::{self, Connected, Devices};
use super::environment::Environment;
use super::executable::{self, Executable};
use super::export::{Destination, Export};
use super::inject::{self, Faults, InjectOption, Settings};
use super::statistics::StatisticsFile;
use super::storage::Daemons;
use super::supervise::{Ended, Supervisor};
use super::swap::{self, Checked, CountedFile, SwapOption};
use super::trace::{self, Trace, TraceOption};
use super::{Failure, Outcome, STATUS_NOT_EXECUTABLE, STATUS_NOT_FOUND, deny, library, limits, stores};
use crate::system_error::words;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use usring_engine::DEFAULT_SPIN_LIMIT;
use usring_inject::page::OrderSettings;
use usring_vhost_user::VhostUser;

const EXAMPLES: &str = "\
Examples:
  usring run -- node server.js
  usring run --deny-kernel --stats -- qemu-img bench -i io_uring -t none disk
  usring run --device disk=ram:size=1G -- \\
      fio --name=job --filename=disk --ioengine=io_uring --direct=1 --hipri
  usring run --inject fsync:error=EIO:when=3 -- my-database
  usring run --check -- my-server
  for n in $(seq 100); do usring run --order seed=$n -- ./test || break; done
  usring run --swap file:path=swap,size=8G,create=on,limit=256M -- sort huge.txt

Exit status: the program's own. If the program never started, a message says why, and the status is
125 if usring cannot serve it or an option is wrong, 126 if it cannot be executed, 127 if it was not
found.

The program must be dynamically linked for x86-64. usring also serves the programs that it starts.
usring needs no root: it works as user nobody, under no_new_privs, and in Docker's default profile.";

/// Run a program, and answer its io_uring and libaio calls inside the program's own process.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Deny the kernel's io_uring to the program: in the kernel, io_uring calls fail with EPERM, as
    /// under Docker's default profile.
    ///
    /// Use this option to be sure that usring answers the program's io_uring calls, and not the
    /// kernel. The option holds for the program and for every program that it starts.
    #[arg(long)]
    pub deny_kernel: bool,

    /// Count the program's requests. When the program has ended, print a table by opcode to
    /// standard error, or write the counts to FILE.
    ///
    /// For each opcode, the table has the submissions, completions and errors on all rings of the
    /// run, and how the requests were carried out. With --swap, a line follows for each process
    /// that had swapped memory.
    ///
    /// --stats=json:FILE and --stats=openmetrics:FILE write the counts to FILE in a format for
    /// other programs, and print no table.
    #[arg(
        long,
        value_name = "json:FILE|openmetrics:FILE",
        value_parser = Destination::parse,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "table"
    )]
    pub stats: Option<Destination>,

    /// Do not rewrite the program's code: each `syscall` instruction that usring serves raises a
    /// signal (a trap).
    ///
    /// A call then costs about 2 µs instead of some 20 ns. Use this option for programs that check
    /// their own code, and to find out whether a problem comes from the rewriting.
    #[arg(long)]
    pub no_patch: bool,

    /// Give the program a block device at PATH, which must not exist yet.
    ///
    /// The program sees PATH as a file of the device's size, until the run ends. The option may be
    /// repeated. docs/devices.md describes each SPEC with its options.
    ///
    /// SPEC is null:size=1T,latency=10us for a device without data, ram:size=1G for memory,
    /// file:path=FILE for a file or a block device, or vhost-user:socket=PATH for a vhost-user-blk
    /// back end.
    ///
    /// With file:path=FILE,size=1G the device is the first GiB of the file. usring refuses a
    /// shorter file, unless ,create=on follows: then usring lengthens the file, and makes a missing
    /// one.
    ///
    /// With nbd:uri=nbd://HOST/EXPORT for an NBD export, qcow2:path=FILE for a qcow2 image, or
    /// qemu:node=(OPTIONS) for anything that QEMU can open, usring starts qemu-storage-daemon.
    /// OPTIONS are those of the daemon's --blockdev. With ,reconnect=on usring starts the daemon
    /// again if it ends, and requests wait meanwhile.
    ///
    /// delay(SPEC,read=80us) makes a device slower, and error(SPEC,eio=1%) makes some requests
    /// fail. ,poll=POLICY at the end says how threads wait for completions. `usring ctl --help`
    /// lists the policies; the default is classic.
    #[arg(long = "device", value_name = "PATH=SPEC", value_parser = devices::parse)]
    pub devices: Vec<devices::DeviceOption>,

    /// Let polled rings (IOPOLL) wait for interrupts on devices with poll=interrupt.
    ///
    /// Without this option, requests of a polled ring on such a device fail with EOPNOTSUPP.
    #[arg(long)]
    pub iopoll_fallback: bool,

    /// Keep at most `limit` bytes of the program's large anonymous memory resident, and the rest in
    /// SPEC.
    ///
    /// This needs neither privileges nor the system's swap space. A thread that touches an evicted
    /// page reads the page back itself.
    ///
    /// SPEC is file:path=FILE, ram:size=1G, or vhost-user:socket=PATH (nbd, qcow2, qemu are
    /// refused). It must have room for all memory that may be evicted. With ,size=8G,create=on
    /// usring makes the file. A file that exists must be all zeroes or hold the swapped memory of
    /// an earlier run. With ,overwrite=on in SPEC, usring uses any file, and its data is lost.
    ///
    /// usring swaps memory that the program maps in pieces of at least `min` bytes (default 1M),
    /// which includes malloc's large blocks. The limit holds for each process of the run
    /// separately. --stats counts the pages.
    ///
    /// `usring doctor` lists the mechanisms and their costs. Without mechanism=, usring takes the
    /// first one that works.
    #[arg(long = "swap", value_name = "SPEC,limit=SIZE[,min=SIZE][,mechanism=NAME]", value_parser = swap::parse)]
    pub swap: Option<SwapOption>,

    /// Make io_getevents of libaio poll for events instead of sleeping.
    ///
    /// Unchanged libaio programs then get their events sooner, at the cost of processor time. This
    /// works for devices of the run and for files open with O_DIRECT, while no request in flight
    /// has an eventfd.
    #[arg(long)]
    pub aio_poll: bool,

    /// Poll for the completion of a single transfer if it is expected within SPAN.
    ///
    /// This concerns a thread that waits in io_uring_enter for the ring's only request in flight, a
    /// transfer of a file open with O_DIRECT. Within SPAN the thread polls instead of sleeping.
    ///
    /// SPAN is a number with ns, us, ms or s. The default is about the cost of a wake-up. A longer
    /// span saves the wake-up on slower disks, too, but may use up to a whole processor. With 0us
    /// the thread always sleeps.
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "15us")]
    pub spin: u64,

    /// Inject faults: make the calls in SET fail, or answer otherwise, as strace's --inject does.
    ///
    /// SET names opcodes of rings, system calls and libaio's commands. A name such as `read` means
    /// all three; ring:SET, call:SET or aio:SET means one of them. Classes are %file, %desc, %net,
    /// %sync, %rw and `all`, and !SET means all others. setup, enter and register are the calls of
    /// io_uring. `usring ctl inject names` lists all names.
    ///
    /// ACTION says what happens. With error=EIO or retval=N (also res=N) usring answers the call
    /// itself. The call is not made, unless effect=done or effect=partial follows. With effect=drop
    /// a sync loses its data, for `usring crash`. With short=N (or 50%, random) a transfer moves
    /// less. With delay=TIME the call waits before it is made, and with delay_exit=TIME afterwards.
    /// With signal=SIG usring sends a signal, and with flip=BITS it damages data that was read.
    /// Requests of rings and of libaio also have cancel and reorder=N, and those of rings have
    /// overflow and spurious.
    ///
    /// WHEN is when=3 for the third call, when=3+ for the third and all later calls, when=3..9 for
    /// a range, or when=3+2 for every second call from the third on. With p=1% the calls are a
    /// random share. The keys path=GLOB, fd=N, user_data=N, ring=N, tid=N, process=N, nth=N,
    /// after=TIME and by=inline|poll|worker restrict a rule further. usring counts the calls of
    /// each name in each process.
    ///
    /// The option may be repeated. If several rules match a call, only the last one acts. When the
    /// program has ended, usring prints which faults it has injected. @FILE reads rules from a
    /// file, one per line. With `none` the run begins without rules, and `usring ctl inject add`
    /// adds them. docs/testing-with-usring.md describes all this with examples.
    #[arg(long = "inject", value_name = "SET:ACTION[:WHEN]|@FILE|none", value_parser = inject::parse)]
    pub inject: Vec<InjectOption>,

    /// Make random faults with this seed, so that another run repeats them.
    ///
    /// Without this option each run has a seed of its own, which usring prints at the end.
    #[arg(long, value_name = "N", requires = "inject")]
    pub seed: Option<u64>,

    /// Write to FILE, for each injected fault, a rule that repeats it. `usring run --inject @FILE`
    /// injects these faults again.
    #[arg(long, value_name = "FILE", requires = "inject")]
    pub inject_log: Option<PathBuf>,

    /// Report where the program misuses its rings.
    ///
    /// usring watches each request until its completion, and reports only what is certainly wrong.
    /// While a request is in flight, its memory must not be freed or unmapped, and must not belong
    /// to a function that has returned. The memory of a write must not change. A file must not be
    /// closed before its request uses it.
    ///
    /// At the end usring reports writes that were still in flight, and completions of writes that
    /// the program never took from the CQ. If a short transfer has cancelled the rest of its chain,
    /// the program must submit that rest again.
    ///
    /// usring prints the findings when the program has ended. Each has the stacks of the submission
    /// and of the misuse, with file and line if the program has debug information (-g). With
    /// --check=abort the program gets SIGABRT at its first misuse.
    ///
    /// usring completes many requests at once, and such a request cannot be misused. To give
    /// requests the time of a slow disk, add --inject 'ring:write,read:delay_exit=1ms'.
    #[arg(
        long,
        value_name = "report|abort",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "report",
        hide_possible_values = true
    )]
    pub check: Option<CheckOption>,

    /// With --check, also report two requests in flight with the same user_data.
    ///
    /// Many programs use one user_data for several requests, such as 0 for all whose completions
    /// they need not distinguish. So equal user_data is a mistake only in a program that expects it
    /// to differ, for example because it is the address of an object.
    #[arg(long, requires = "check")]
    pub check_user_data: bool,

    /// Have completions come in another order that the kernel allows, chosen by seed N.
    ///
    /// The kernel often completes requests in the order of submission, and promises it only for
    /// links and drains. A program that relies on more than that fails rarely, and far from its
    /// mistake. This option carries requests out late, holds their completions back, and has
    /// several come at once. It also signals eventfds without a completion, lets SQ threads sleep
    /// early, and serves IPv4 and IPv6 sockets that are ready together in another order. If more
    /// requests are in flight than a CQ has room for, they may all complete at once, and the CQ
    /// overflows. With overflow=on the seed also chooses completions that find no room, as in a
    /// smaller CQ. None is lost: io_uring_enter fetches them, as in the kernel.
    ///
    /// A program with one thread that waits in io_uring_enter gets the same order again with the
    /// same seed. Other programs may not, which usring says at the end. Try many seeds: one of the
    /// examples is a loop.
    ///
    /// docs/testing-with-usring.md says which orders stay.
    #[arg(long, value_name = "seed=N[,overflow=on]", value_parser = inject::parse_order)]
    pub order: Option<OrderSettings>,

    /// Record each request in FILE, which `usring trace FILE` prints as strace would.
    ///
    /// The record has each step: submission, waits for other requests or for the file, workers and
    /// why they were needed, devices, completion. Programs that the program starts are recorded,
    /// too. An event takes some tens of nanoseconds and 64 bytes.
    ///
    /// usring writes FILE when the program has ended, also if SIGKILL has ended the program, and
    /// says how many events were lost.
    ///
    /// usring keeps the first events, up to size=SIZE (default 256M). With last=64M usring keeps
    /// the last events instead. With ring=N usring records only that ring of each process. usring
    /// makes FILE or overwrites an earlier trace, and refuses any other file.
    #[arg(long, value_name = "FILE[,ring=N][,size=SIZE|last=SIZE]", value_parser = trace::parse)]
    pub trace: Option<TraceOption>,

    /// Record the changes of files in this log, for `usring crash`.
    #[arg(long, value_name = "LOG", hide = true)]
    pub record: Option<PathBuf>,

    /// The program, which is looked up in PATH, and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"])]
    pub command: Vec<OsString>,
}

impl Options {
    /// Returns whether an option other than `--swap` needs the launcher as the program's parent;
    /// `--swap` needs it only if the store is a back end. If the address space is limited, the
    /// launcher stays, too, to find out whether the program has loaded the library.
    fn needs_launcher(&self) -> bool {
        let reports = self.stats.is_some() || self.check.is_some() || self.trace.is_some();
        reports || !self.devices.is_empty() || has_faults(self) || limits::addresses_are_limited()
    }

    /// Returns whether usring denies the kernel's io_uring to the program: if the user asks for it,
    /// or if the program may start without the library.
    fn denies_kernel(&self) -> bool {
        self.deny_kernel || limits::addresses_are_limited()
    }
}

/// Arguments of the hidden subcommand `denied`.
#[derive(clap::Args)]
pub struct DeniedOptions {
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// A program that is ready to be executed.
pub struct Launch {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    needs_shell: bool,
    deny_kernel: bool,
}

fn parse_span(text: &str) -> Result<u64, String> {
    usring_device::span::parse(text).ok_or_else(|| "a span is a number with ns, us, ms or s, such as 15us".into())
}

/// Runs the subcommand. If this process executes the program in place of itself, returns only on
/// failure.
pub fn run(options: &Options) -> Outcome {
    let (executable, mut environment) = prepare(options)?;
    let probe = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK)
        .map_err(|error| Failure::new(format!("cannot make an eventfd ({error})", error = words(&error))))?;
    environment.probe(probe.as_fd().as_raw_fd());
    // The check of some swap mechanisms raises signals, so it must come before signals are blocked.
    let checked = options.swap.as_ref().map(SwapOption::check).transpose()?;
    if let Some(swap) = &options.swap {
        environment.swap(&swap.text());
    }
    let is_remote = checked.as_ref().is_some_and(|checked| checked.is_remote);
    if !options.needs_launcher() && !is_remote {
        let launch = Launch::new(&options.command, executable, environment, options.denies_kernel())?;
        return launch.execute().map(|never| match never {});
    }
    // The connections are made before signals are blocked, so that the user can interrupt the wait
    // for a back end that does not answer.
    let back_ends = BackEnds::connect(options, checked.as_ref().filter(|_| is_remote))?;
    let supervisor = Supervisor::begin()?;
    let faults = faults_of(options, &mut environment)?;
    let devices = devices_of(options, back_ends, faults.as_ref(), &mut environment)?;
    let counted = if options.stats.is_some() && options.swap.is_some() { Some(CountedFile::create()?) } else { None };
    if let Some(counted) = &counted {
        environment.swap_statistics(&counted.path());
    }
    // Opens the FILE of `--stats` before the program starts, so that usring reports at once if it
    // cannot write FILE.
    let export = options.stats.as_ref().map(Destination::open).transpose()?;
    let statistics = if options.stats.is_some() { Some(StatisticsFile::create()?) } else { None };
    if let Some(statistics) = &statistics {
        environment.statistics(&statistics.path());
    }
    let Observed { findings, trace, _stacks } = Observed::create(options, &mut environment)?;
    let launch = Launch::new(&options.command, executable, environment, options.denies_kernel())?;
    let mut process = 0;
    let ended = supervisor.run(&launch, |program| {
        process = program;
        devices.as_ref().map_or(Ok(()), Devices::serve)
    })?;
    // Removes the devices' placeholder files now, because the code below may end this process. A
    // message to a closed standard error would end this process. So would `mirror`, which raises
    // the signal that ended the program.
    drop(devices);
    trace.iter().for_each(Trace::finish);
    let was_served = probe.read().is_ok();
    if let (false, Ended::Exited(0)) = (was_served, &ended) {
        return Err(Failure::new("the program was not served: it ended before libusring.so had been loaded"));
    }
    if let Some(statistics) = &statistics {
        report(statistics, export.as_ref(), was_served);
    }
    if let Some(counted) = &counted {
        report_swap(counted);
    }
    faults.iter().for_each(Faults::report);
    findings.into_iter().for_each(|findings| findings.report(process, &ended));
    Ok(ended.mirror())
}

/// Finds the program's file, and makes its environment. Fails if usring cannot serve the program,
/// as far as that can be seen before the program runs.
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
    environment.refuse_unserved();
    if executable.path.file_name().is_some_and(|name| name == "valgrind") {
        environment.of_valgrind();
    }
    if options.no_patch {
        environment.forbid_patching();
    }
    if options.aio_poll {
        environment.poll_for_aio();
    }
    if options.spin != DEFAULT_SPIN_LIMIT {
        environment.spin(options.spin);
    }
    options.record.iter().for_each(|log| environment.record(log));
    Ok((executable, environment))
}

/// Connections to the processes that serve devices and swapped memory.
struct BackEnds {
    devices: Vec<Connected>,
    swap: Option<VhostUser>,
    /// The storage daemons that this run has started. They are the last field, so that the
    /// connections are closed before the daemons end.
    daemons: Daemons,
}

impl BackEnds {
    fn connect(options: &Options, remote_swap: Option<&Checked>) -> Result<BackEnds, Failure> {
        // Declared first, because Rust drops variables in reverse order: if a connection fails, the
        // other connections are closed before the daemons end.
        let mut daemons = Daemons::default();
        let connected = options.devices.iter().map(|option| Connected::to(option, &mut daemons));
        let devices = connected.collect::<Result<_, _>>()?;
        let swap = match (&options.swap, remote_swap) {
            (Some(swap), Some(checked)) => swap.connect(checked)?,
            _ => None,
        };
        Ok(BackEnds { devices, swap, daemons })
    }
}

/// Makes the run's devices, and passes the path of their socket to the program's processes. Returns
/// `None` if the run has no devices, no back end for swapped memory, and no rules for faults.
fn devices_of(
    options: &Options,
    back_ends: BackEnds,
    faults: Option<&Faults>,
    environment: &mut Environment,
) -> Result<Option<Devices>, Failure> {
    let BackEnds { daemons, devices, swap } = back_ends;
    let (has_devices, has_back_end) = (!options.devices.is_empty(), swap.is_some());
    if !has_devices && !has_back_end && faults.is_none() {
        return Ok(None);
    }
    let connected = options.devices.iter().zip(devices);
    let devices = Devices::create(daemons, connected, options.iopoll_fallback, swap, faults.map(Faults::file))?;
    if has_devices {
        environment.devices(devices.socket_path());
    }
    if has_back_end {
        environment.swap_socket(devices.socket_path());
    }
    Ok(Some(devices))
}

/// Returns whether the run needs the page with the rules for faults. The option `--order` uses this
/// page, too.
fn has_faults(options: &Options) -> bool {
    !options.inject.is_empty() || options.order.is_some()
}

/// Makes the page of the run's rules for faults, and passes its path to the program's processes.
/// Returns `None` if the run has no rules.
fn faults_of(options: &Options, environment: &mut Environment) -> Result<Option<Faults>, Failure> {
    if !has_faults(options) {
        return Ok(None);
    }
    let Options { inject, seed, inject_log, order, .. } = options;
    let settings = Settings { options: inject, seed: *seed, log: inject_log.as_deref(), order: *order };
    let faults = Faults::create(&settings)?;
    environment.faults(&faults.path());
    Ok(Some(faults))
}

/// The files in which the program's processes record what they observe of their requests.
struct Observed {
    findings: Option<Findings>,
    trace: Option<Trace>,
    /// The memory of shared stacks. `usring ctl requests` reads it, so the launcher keeps it until
    /// the end of the run.
    _stacks: Option<SharedStacks>,
}

impl Observed {
    /// Makes the files that the options need, and passes their paths to the program's processes.
    fn create(options: &Options, environment: &mut Environment) -> Result<Observed, Failure> {
        let findings = options.check.map(|check| Findings::create(check, options.check_user_data)).transpose()?;
        findings.iter().for_each(|findings| environment.check(&findings.text()));
        let trace = options.trace.as_ref().map(Trace::create).transpose()?;
        trace.iter().for_each(|trace| environment.trace(&trace.text()));
        // Only `usring ctl requests` reads the shared stacks, and that command needs a trace.
        let shares_stacks = findings.is_some() && trace.is_some();
        let stacks = shares_stacks.then(SharedStacks::create).transpose()?;
        stacks.iter().for_each(|stacks| environment.stacks(&stacks.path()));
        Ok(Observed { findings, trace, _stacks: stacks })
    }
}

/// Runs the hidden subcommand `denied`: executes a program for which io_uring is denied.
pub fn denied(options: &DeniedOptions) -> Outcome {
    let executable = executable::find(&options.command[0], false)?;
    let launch = Launch::new(&options.command, executable, Environment::inherited(), true)?;
    launch.execute().map(|never| match never {})
}

fn report(statistics: &StatisticsFile, export: Option<&Export>, was_served: bool) {
    let mut errors = std::io::stderr();
    // A failed write to standard error must not change the exit status, which is the program's, so
    // errors are ignored.
    let _ = match statistics.read() {
        Ok(snapshot) if !was_served && !snapshot.was_used() => {
            writeln!(errors, "usring: the program ended before libusring.so had been loaded")
        }
        Ok(snapshot) => {
            let written = match export {
                Some(export) => export.write(&snapshot, &mut errors),
                None => Ok(()),
            };
            written.and_then(|()| write!(errors, "{}", snapshot.still_running()))
        }
        Err(error) => writeln!(errors, "usring: cannot read the counts of --stats ({error})", error = words(&error)),
    };
}

fn report_swap(counted: &CountedFile) {
    let mut errors = std::io::stderr();
    let _ = match counted.read() {
        Ok(report) => write!(errors, "{report}"),
        Err(error) => {
            writeln!(errors, "usring: cannot read the counts of swapped memory ({error})", error = words(&error))
        }
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
                .map_err(|_| Failure::new("an argument contains a NUL byte, which execve(2) cannot pass"))
        };
        Ok(Launch {
            path: text(executable.path.as_os_str().as_bytes())?,
            arguments: command.iter().map(|argument| text(argument.as_bytes())).collect::<Result<_, _>>()?,
            environment: environment.strings(),
            needs_shell: executable.needs_shell,
            deny_kernel,
        })
    }

    /// Executes the program in place of this process. Returns only on failure.
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
        let sentence = format!("cannot execute {} ({})", self.path.to_string_lossy(), words(&error));
        Err(Failure::with_status(status, sentence))
    }

    /// Makes /bin/sh run a script without a `#!` line, as execvp(3) does.
    fn execute_by_shell(&self) -> Errno {
        let mut arguments = vec![c"sh".to_owned(), self.path.clone()];
        arguments.extend_from_slice(&self.arguments[1..]);
        match nix::unistd::execve(c"/bin/sh", &arguments, &self.environment) {
            Err(error) => error,
            Ok(never) => match never {},
        }
    }
}
