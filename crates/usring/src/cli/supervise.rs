//! Stays beside a program: passes signals on, stops and goes on with it, and
//! ends as it ended. To whoever started us, we are the program.

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

/// Has taken over this process's signals: they come by a descriptor.
pub struct Supervisor {
    /// What the program is to find, as we found it.
    program_mask: SigSet,
    program_sigchld: SigAction,
    signals: SignalFd,
}

fn failed(error: nix::errno::Errno) -> Failure {
    Failure::new(format!("cannot supervise a program ({error}); run it without --stats and --device"))
}

impl Supervisor {
    /// Before any thread is made, so that each blocks all signals; and before
    /// the fork, so that none falls between the two of us.
    pub fn begin() -> Result<Supervisor, Failure> {
        let program_mask = SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_SETMASK).map_err(failed)?;
        let program_sigchld = reset(Signal::SIGCHLD).map_err(failed)?;
        let signals =
            SignalFd::with_flags(&SigSet::all(), nix::sys::signalfd::SfdFlags::SFD_CLOEXEC).map_err(failed)?;
        Ok(Supervisor { program_mask, program_sigchld, signals })
    }

    /// Runs the program to its end; `started` runs here once it has been started.
    pub fn run(&self, launch: &Launch, started: impl FnOnce() -> Result<(), Failure>) -> Result<Ended, Failure> {
        let launcher = getpid();
        // SAFETY: the child only makes system calls, and allocates, which
        // libc's fork provides for; our other threads hold nothing else of it.
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

/// In the child: it is killed when the launcher dies, also by SIGKILL, for nobody would serve its
/// devices any more, nor take its signals to it. The launcher may be dead already: then the child
/// has another parent.
fn die_with(launcher: Pid) {
    let armed = set_pdeathsig(Signal::SIGKILL);
    if armed.is_ok() && getppid() != launcher {
        std::process::exit(STATUS_FAILED.into());
    }
}

/// In the child: everything as our own parent left it, then the program.
fn become_program(launch: &Launch, mask: &SigSet, sigchld: &SigAction) -> ! {
    // SAFETY: `sigchld` is what stood there when we started: SIG_DFL or
    // SIG_IGN, for no handler survives execve.
    let _ = unsafe { sigaction(Signal::SIGCHLD, sigchld) };
    let _ = mask.thread_set_mask();
    let Err(failure) = launch.execute();
    eprintln!("usring run: {}", failure.sentence);
    std::process::exit(failure.status.into());
}

/// Back to the default; answers what stood there.
fn reset(signal: Signal) -> nix::Result<SigAction> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed, so none can do harm.
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
            // What the terminal sends (interrupt, hang-up) goes to the whole
            // process group: the program has it already.
            send(program, signal.ssi_signo as i32);
        }
    }
}

/// Takes in what SIGCHLD stands for. Several may have become one.
fn look_after(program: Pid) -> Option<Ended> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is where waitpid may write; the program is our
        // child and has not been reaped. (nix's own knows no realtime signals.)
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
        // It was stopped: so are we, until somebody sends SIGCONT, which then
        // waits for us in the signalfd.
        let _ = raise(Signal::SIGSTOP);
    }
}

fn send(program: Pid, signal: i32) {
    // SAFETY: kill(2) touches no memory; the program is not reaped yet, so the
    // id is still its own. (nix's own knows no realtime signals.)
    unsafe { libc::kill(program.as_raw(), signal) };
}

impl Ended {
    /// Ends as the program did; returns only if it exited by itself.
    pub fn mirror(self) -> u8 {
        match self {
            Ended::Exited(status) => status,
            Ended::Killed(signal) => die_by(signal),
        }
    }
}

fn die_by(signal: i32) -> u8 {
    // One core dump, the program's, is enough.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    if let Ok(named) = Signal::try_from(signal) {
        let _ = reset(named);
    }
    let _ = SigSet::empty().thread_set_mask();
    // SAFETY: raise(3) touches no memory; the default action of a signal that
    // has just killed a process is to kill.
    unsafe { libc::raise(signal) };
    u8::try_from(128 + signal).unwrap_or(STATUS_FAILED)
}
