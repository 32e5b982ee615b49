//! The command line. Each subcommand has a file or a folder.
//!
//! - `run`, with
//!   - `executable`, which decides whether a program can be served;
//!   - `library`, which finds `libusring.so`;
//!   - `environment`, which passes the options to the library;
//!   - `limits`, which checks the limits of open files and of address space;
//!   - `deny`, which denies the kernel's io_uring;
//!   - `supervise`, which stays beside the program;
//!   - `statistics`, which holds the counters, and `export`, which writes them for programs;
//!   - `inject`, which has the rules of `--inject`;
//!   - `trace`, which has the events of `--trace`, and prints them (`usring trace`);
//!   - `stores`, which checks the files of devices and swapped memory.
//! - `run --device` and `ctl`: `devices`, and `storage`, which starts a device's storage daemon.
//!   `run --swap`: `swap`.
//! - `stats`, which prints the counters of programs that run without the launcher.
//! - `ps` and `top`, which show what runs now: `watch`.
//! - `crash`, which tests what a power loss leaves.
//! - `doctor`, with `probe` and `swap_probe`.
//! - `demo` and `bench`.
//! - `table` formats all tables, and `system_error` all errors of system calls. `style` has the
//!   colours.
//! - `memory_file` makes memory that the launcher shares with the program. `signals` and `cleanup`
//!   act on ^C.
//!
//! `doctor`, `demo` and `bench` start `child` processes by the command line, as a user would.
//! Every failure is a [`Failure`]: one sentence that says what to do, and the exit status that
//! env(1) would have.

#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

/// Prints a line on standard output. Exits if that fails (see [`print()`]).
macro_rules! tell {
    ($($text:tt)*) => {
        $crate::print(format_args!("{}\n", format_args!($($text)*)))
    };
}

mod bench;
mod check;
mod child;
mod cleanup;
mod crash;
mod demo;
mod deny;
mod devices;
mod doctor;
mod environment;
mod executable;
mod export;
mod inject;
mod library;
mod limits;
mod memory_file;
mod probe;
mod run;
mod signals;
mod statistics;
mod stats;
mod storage;
mod stores;
mod style;
mod supervise;
mod swap;
mod swap_probe;
mod system_error;
mod table;
mod trace;
mod watch;

use crate::system_error::words;
use clap::{CommandFactory, Parser, Subcommand};
use std::io::Write;

/// Result of a subcommand: an exit status, or why the subcommand failed.
type Outcome = Result<u8, Failure>;

/// A sentence for the user, and the exit status that belongs to it.
#[derive(Debug)]
pub struct Failure {
    pub status: u8,
    pub sentence: String,
}

/// Exit status if usring itself failed or refused. env(1) gives 125, 126 and 127 the same meanings.
pub const STATUS_FAILED: u8 = 125;
/// Exit status if the program was found but cannot be executed.
pub const STATUS_NOT_EXECUTABLE: u8 = 126;
/// Exit status if the program was not found.
pub const STATUS_NOT_FOUND: u8 = 127;

impl Failure {
    pub fn new(sentence: impl Into<String>) -> Failure {
        Failure::with_status(STATUS_FAILED, sentence)
    }

    pub fn with_status(status: u8, sentence: impl Into<String>) -> Failure {
        Failure { status, sentence: sentence.into() }
    }
}

/// Prints to standard output. If that fails, for example on a full disk, reports the error and
/// exits.
fn print(text: std::fmt::Arguments<'_>) {
    if let Err(error) = std::io::stdout().write_fmt(text).and_then(|()| std::io::stdout().flush()) {
        std::process::exit(cannot_print(&error).into());
    }
}

fn cannot_print(error: &std::io::Error) -> u8 {
    let _ = writeln!(std::io::stderr(), "usring: cannot write to standard output ({error})", error = words(&error));
    STATUS_FAILED
}

const EXAMPLES: &str = "\
Examples:
  usring doctor
      Reports what works on this machine, and what blocks the rest.
  usring run -- fio --name=job --ioengine=io_uring --rw=randread --size=64m
      Answers fio's io_uring calls inside fio's own process.
  usring run --deny-kernel --stats -- mariadbd --datadir=/srv/db
      Denies MariaDB the kernel's io_uring, as Docker does. When MariaDB ends, usring prints a
      table of its requests.
  usring run --swap file:path=swap,size=8G,create=on,limit=256M -- sort huge.txt
      Keeps at most 256 MiB of sort's memory resident, and the rest in the file `swap`.
  usring demo
      Shows a program fail without io_uring, and then run under usring.";

/// io_uring in user space: runs programs that were written for the kernel's io_uring, also on
/// systems where the kernel's io_uring is blocked or missing.
#[derive(Parser)]
#[command(name = "usring", version, after_help = EXAMPLES, max_term_width = 100, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Options),
    Crash(crash::Options),
    Doctor(doctor::Options),
    Demo(demo::Options),
    Bench(bench::Options),
    Ctl(devices::ctl::Options),
    Stats(stats::Options),
    Trace(trace::show::Options),
    Ps(watch::ps::Options),
    Top(watch::top::Options),
    /// Runs a program for which io_uring is denied and usring is not loaded.
    #[command(hide = true)]
    Denied(run::DeniedOptions),
    /// The program that `demo` runs.
    #[command(hide = true)]
    DemoProgram(demo::program::Options),
    /// The program that `doctor` runs.
    #[command(hide = true)]
    Probe,
    /// The program that `doctor` runs to test swap. Its argument names what it tests: a mechanism
    /// that catches page faults (such as userfaultfd), or `program`, a program's ordinary memory.
    #[command(hide = true)]
    SwapProbe(swap_probe::Options),
}

/// Returns the description of the command line, of which manual pages and completions are made.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Parses the command line and runs the subcommand.
pub fn main() -> u8 {
    let status = match Arguments::try_parse() {
        Ok(arguments) => dispatch(arguments.command),
        Err(error) => {
            if let (false, Err(failed)) = (error.use_stderr(), error.print().and_then(|()| std::io::stdout().flush())) {
                return cannot_print(&failed);
            }
            usage_status(&error)
        }
    };
    // A Rust `main` would flush standard output at exit. This executable has none (see its
    // `main.rs`), so the flush is here.
    let _ = std::io::stdout().flush();
    status
}

fn dispatch(command: Command) -> u8 {
    let (name, outcome) = match command {
        Command::Run(options) => ("run", run::run(&options)),
        Command::Crash(options) => ("crash", crash::run(&options)),
        Command::Doctor(options) => ("doctor", doctor::run(&options)),
        Command::Demo(options) => ("demo", demo::run(&options)),
        Command::DemoProgram(options) => ("demo-program", demo::program::run(&options)),
        Command::Bench(options) => ("bench", bench::run(&options)),
        Command::Ctl(options) => ("ctl", devices::control(&options)),
        Command::Stats(options) => ("stats", stats::run(&options)),
        Command::Trace(options) => ("trace", trace::show::run(&options)),
        Command::Ps(options) => ("ps", watch::ps::run(&options)),
        Command::Top(options) => ("top", watch::top::run(&options)),
        Command::Denied(options) => ("denied", run::denied(&options)),
        Command::Probe => ("probe", probe::run()),
        Command::SwapProbe(options) => ("swap-probe", swap_probe::run(&options)),
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("usring {name}: {}", failure.sentence);
        failure.status
    })
}

/// Returns the exit status for a wrong command line. `usring run` has a status of its own for that,
/// so that a script can distinguish it from a status of the program.
fn usage_status(error: &clap::Error) -> u8 {
    let is = |name: &str| std::env::args_os().nth(1).is_some_and(|argument| argument == name);
    match error.exit_code() {
        0 => 0,
        _ if is("run") => STATUS_FAILED,
        _ if is("crash") => crash::STATUS_NOT_RUN,
        other => u8::try_from(other).unwrap_or(STATUS_FAILED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Widths of terminals: the smallest common one, and the widest for which clap wraps.
    const WIDTHS: [usize; 2] = [80, 100];

    /// Returns whether a line of the examples is a command that a user can paste.
    fn is_command(line: &str) -> bool {
        let first = line.strip_prefix("  ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        first == "usring" || first.starts_with("USRING_") && first.contains('=')
    }

    fn check(command: &clap::Command) {
        let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for width in WIDTHS {
            let shown = command.clone().term_width(width).render_long_help().to_string();
            let mut continues = false;
            for line in examples.lines() {
                let is_command = continues || is_command(line);
                continues = line.ends_with('\\');
                assert!(
                    !is_command || shown.lines().any(|shown| shown == line),
                    "{}: {width} columns: {line}",
                    command.get_name()
                );
            }
        }
        command.get_subcommands().for_each(check);
    }

    #[test]
    fn commands_in_the_help_are_not_wrapped() {
        check(&command());
    }
}
