//! Stays beside a program: passes signals on, stops and continues with it, and ends as it ended. To
//! the launcher's parent, the launcher looks like the program.

use super::run::Launch;
use super::{Failure, STATUS_FAILED};
use nix::libc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::sys::signalfd::SignalFd;
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};

/// How the program ended.
pub enum Ended {
    Exited(u8),
    Killed(i32),
}

/// Receives this process's signals by a descriptor.
pub struct Supervisor {
    /// Signal mask of this process at its start, which the program gets.
    program_mask: SigSet,
    program_sigchld: SigAction,
    signals: SignalFd,
}

fn failed(error: nix::errno::Errno) -> Failure {
    Failure::new(format!("cannot supervise a program ({error}); run it without --stats and --device"))
}

impl Supervisor {
    /// Blocks all signals. Must be called before any thread is made, so that each thread blocks
    /// them, and before the fork, so that no signal is lost between the two processes.
    pub fn begin() -> Result<Supervisor, Failure> {
        let program_mask = SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_SETMASK).map_err(failed)?;
        let program_sigchld = reset(Signal::SIGCHLD).map_err(failed)?;
        let signals =
            SignalFd::with_flags(&SigSet::all(), nix::sys::signalfd::SfdFlags::SFD_CLOEXEC).map_err(failed)?;
        Ok(Supervisor { program_mask, program_sigchld, signals })
    }

    /// Runs the program to its end. Calls `started` here when the program has been forked.
    pub fn run(&self, launch: &Launch, started: impl FnOnce() -> Result<(), Failure>) -> Result<Ended, Failure> {
        let launcher = getpid();
        // SAFETY: the child only makes system calls and allocates. libc's fork makes allocating
        // safe, and this process's other threads hold no other lock that the child needs.
        match unsafe { fork() }.map_err(failed)? {
            ForkResult::Child => {
                die_with(launcher);
                become_program(launch, &self.program_mask, &self.program_sigchld)
            }
            ForkResult::Parent { child } => {
                started().inspect_err(|_| send(child, libc::SIGKILL))?;
                wait(child, &self.signals)
            }
        }
    }
}

/// In the child: has the kernel kill it when the launcher dies, even by SIGKILL, because its
/// devices and its signals need the launcher. If the launcher died before this call, the child has
/// another parent and exits.
fn die_with(launcher: Pid) {
    let armed = set_pdeathsig(Signal::SIGKILL);
    if armed.is_ok() && getppid() != launcher {
        std::process::exit(STATUS_FAILED.into());
    }
}

/// In the child: restores signals as the launcher found them, and becomes the program.
fn become_program(launch: &Launch, mask: &SigSet, sigchld: &SigAction) -> ! {
    // SAFETY: `sigchld` is the action that the launcher found: SIG_DFL or SIG_IGN, because no
    // handler survives execve.
    let _ = unsafe { sigaction(Signal::SIGCHLD, sigchld) };
    let _ = mask.thread_set_mask();
    let Err(failure) = launch.execute();
    eprintln!("usring run: {}", failure.sentence);
    std::process::exit(failure.status.into());
}

/// Sets a signal to its default action and returns the action before.
fn reset(signal: Signal) -> nix::Result<SigAction> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed.
    unsafe { sigaction(signal, &default) }
}

fn wait(program: Pid, signals: &SignalFd) -> Result<Ended, Failure> {
    loop {
        let signal = match signals.read_signal() {
            Ok(Some(signal)) => signal,
            Ok(None) | Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(Failure::new(format!("cannot wait for the program ({error})"))),
        };
        if signal.ssi_signo == Signal::SIGCHLD as u32 {
            if let Some(ended) = look_after(program) {
                return Ok(ended);
            }
        } else if signal.ssi_code != libc::SI_KERNEL {
            // A signal from the kernel, as by a terminal (interrupt, hang-up), goes to the whole
            // process group: the program has it already.
            send(program, signal.ssi_signo as i32);
        }
    }
}

/// Handles what SIGCHLD reports. One SIGCHLD may stand for several changes.
fn look_after(program: Pid) -> Option<Ended> {
    loop {
        let mut status = 0;
        // SAFETY: waitpid may write to `status`. The program is a child of this process and has not
        // been reaped. (nix's waitpid does not know realtime signals.)
        let answer = unsafe { libc::waitpid(program.as_raw(), &mut status, libc::WUNTRACED | libc::WNOHANG) };
        if answer <= 0 {
            return None;
        }
        if libc::WIFEXITED(status) {
            return Some(Ended::Exited(libc::WEXITSTATUS(status) as u8));
        }
        if libc::WIFSIGNALED(status) {
            return Some(Ended::Killed(libc::WTERMSIG(status)));
        }
        // The program was stopped, so the launcher stops, too. The SIGCONT that continues it stays
        // pending in the signalfd, and is then passed on.
        let _ = raise(Signal::SIGSTOP);
    }
}

fn send(program: Pid, signal: i32) {
    // SAFETY: kill(2) touches no memory. The program is not reaped yet, so the id is still its own.
    // (nix's kill does not know realtime signals.)
    unsafe { libc::kill(program.as_raw(), signal) };
}

impl Ended {
    /// Ends as the program did. Returns only if the program exited by itself.
    pub fn mirror(self) -> u8 {
        match self {
            Ended::Exited(status) => status,
            Ended::Killed(signal) => die_by(signal),
        }
    }
}

fn die_by(signal: i32) -> u8 {
    // Only the program dumps core.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    if let Ok(named) = Signal::try_from(signal) {
        let _ = reset(named);
    }
    let _ = SigSet::empty().thread_set_mask();
    // SAFETY: raise(3) touches no memory. The default action of a signal that has just killed a
    // process is to kill.
    unsafe { libc::raise(signal) };
    u8::try_from(128 + signal).unwrap_or(STATUS_FAILED)
}
