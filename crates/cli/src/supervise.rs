//! Runs a program as a child. To the launcher's parent, the launcher looks like the program: it
//! passes signals on, stops and continues with the program, and ends as the program ended.

use super::run::Launch;
use super::{Failure, STATUS_FAILED};
use crate::system_error::words;
use nix::libc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::sys::signalfd::SignalFd;
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, write};
use usring_sys::width;

/// How the program ended.
pub enum Ended {
    Exited(u8),
    Killed(i32),
}

/// Blocks this process's signals and receives them by a signalfd.
pub struct Supervisor {
    /// Signal mask of this process at its start. The program starts with this mask.
    program_mask: SigSet,
    program_sigchld: SigAction,
    signals: SignalFd,
}

fn failed(error: nix::errno::Errno) -> Failure {
    Failure::new(format!(
        "cannot run the program as a child process ({error}); run it without --stats, --device, --inject, --order, --check and \
         --trace",
        error = words(&error)
    ))
}

impl Supervisor {
    /// Blocks all signals. Must be called before any thread is made, so that each thread inherits
    /// the mask, and before the fork, so that no signal is lost in between.
    pub fn begin() -> Result<Supervisor, Failure> {
        let program_mask = SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_SETMASK).map_err(failed)?;
        let program_sigchld = reset(Signal::SIGCHLD).map_err(failed)?;
        let signals =
            SignalFd::with_flags(&SigSet::all(), nix::sys::signalfd::SfdFlags::SFD_CLOEXEC).map_err(failed)?;
        Ok(Supervisor { program_mask, program_sigchld, signals })
    }

    /// Runs the program to its end. Right after the fork, calls `started` in this process, with the
    /// program's process id.
    pub fn run(&self, launch: &Launch, started: impl FnOnce(u32) -> Result<(), Failure>) -> Result<Ended, Failure> {
        let launcher = getpid();
        // SAFETY: the child only makes system calls and allocates, and libc's fork makes allocating
        // safe. The child takes no lock: a thread of a storage daemon may have had the lock of
        // standard error at the fork.
        match unsafe { fork() }.map_err(failed)? {
            ForkResult::Child => {
                if !die_with(launcher) {
                    std::process::exit(STATUS_FAILED.into());
                }
                become_program(launch, &self.program_mask, &self.program_sigchld)
            }
            ForkResult::Parent { child } => {
                started(child.as_raw().cast_unsigned()).inspect_err(|_| send(child, libc::SIGKILL))?;
                wait(child, &self.signals)
            }
        }
    }
}

/// Runs in the child. Has the kernel kill the child when the thread that made the child ends, even
/// by SIGKILL. Returns `false` if `parent` has already ended: the child then has another parent,
/// and the kernel will not kill it. Returns `true` if the kernel refuses the request; the child
/// then runs on without it.
pub fn die_with(parent: Pid) -> bool {
    set_pdeathsig(Signal::SIGKILL).is_err() || getppid() == parent
}

/// Runs in the child. Restores the signal mask and SIGCHLD's action that the launcher had at its
/// start, and executes the program.
fn become_program(launch: &Launch, mask: &SigSet, sigchld: &SigAction) -> ! {
    // SAFETY: `sigchld` is the action that the launcher found at its start. It is SIG_DFL or
    // SIG_IGN, because no handler survives execve.
    let _ = unsafe { sigaction(Signal::SIGCHLD, sigchld) };
    let _ = mask.thread_set_mask();
    let Err(failure) = launch.execute();
    // Writes without the lock of `std::io::stderr`, which another thread may have had at the fork.
    let _ = write(std::io::stderr(), format!("usring run: {}\n", failure.sentence).as_bytes());
    std::process::exit(failure.status.into());
}

/// Sets a signal's default action, and returns the previous action.
fn reset(signal: Signal) -> nix::Result<SigAction> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action is no function, so no handler can run.
    unsafe { sigaction(signal, &default) }
}

fn wait(program: Pid, signals: &SignalFd) -> Result<Ended, Failure> {
    loop {
        let signal = match signals.read_signal() {
            Ok(Some(signal)) => signal,
            Ok(None) | Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => {
                return Err(Failure::new(format!("cannot wait for the program ({error})", error = words(&error))));
            }
        };
        if signal.ssi_signo == Signal::SIGCHLD as u32 {
            if let Some(ended) = reap(program) {
                return Ok(ended);
            }
        } else if signal.ssi_code != libc::SI_KERNEL {
            // Passes the signal on, unless it comes from the terminal (SI_KERNEL). The kernel sends
            // those signals (interrupt, hang-up) to the whole process group, so the program has
            // already received them.
            send(program, signal.ssi_signo.cast_signed());
        }
    }
}

/// Reaps the program if it has ended, or stops this process if the program has stopped. Returns how
/// the program ended, or `None` if it still runs. One SIGCHLD may stand for several changes of
/// state, so this function loops.
fn reap(program: Pid) -> Option<Ended> {
    loop {
        let mut status = 0;
        // SAFETY: waitpid may write to `status`. The program is a child of this process and was not
        // reaped. (nix's waitpid does not support realtime signals.)
        let answer = unsafe { libc::waitpid(program.as_raw(), &mut status, libc::WUNTRACED | libc::WNOHANG) };
        if answer <= 0 {
            return None;
        }
        if libc::WIFEXITED(status) {
            return Some(Ended::Exited(width::byte(width::word(libc::WEXITSTATUS(status)))));
        }
        if libc::WIFSIGNALED(status) {
            return Some(Ended::Killed(libc::WTERMSIG(status)));
        }
        // The program has stopped, so the launcher stops itself, too. When SIGCONT continues the
        // launcher, SIGCONT also stays readable in the signalfd, and `wait` passes it on to the
        // program.
        let _ = raise(Signal::SIGSTOP);
    }
}

fn send(program: Pid, signal: i32) {
    // SAFETY: kill(2) accesses no memory. The program was not reaped, so its process id cannot
    // belong to another process. (nix's kill does not support realtime signals.)
    unsafe { libc::kill(program.as_raw(), signal) };
}

impl Ended {
    /// Ends this process by the signal that ended the program. If the program exited instead,
    /// returns its exit status.
    pub fn mirror(self) -> u8 {
        match self {
            Ended::Exited(status) => status,
            Ended::Killed(signal) => die_by(signal),
        }
    }
}

fn die_by(signal: i32) -> u8 {
    // The program may have dumped core at this signal. The launcher raises the signal for itself,
    // and must not dump core, too.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    if let Ok(named) = Signal::try_from(signal) {
        let _ = reset(named);
    }
    let _ = SigSet::empty().thread_set_mask();
    // SAFETY: raise(3) accesses no memory. The signal has just killed a process by its default
    // action, so it ends this process, too.
    unsafe { libc::raise(signal) };
    u8::try_from(128 + signal).unwrap_or(STATUS_FAILED)
}
