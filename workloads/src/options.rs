//! The workloads' options: each program declares its own, and clap parses them. An unknown option
//! is an error, and `--help` lists those that exist.

use clap::{Arg, ArgMatches, Command};
use std::str::FromStr;
use std::time::Duration;

/// An option `--name VALUE` of a workload.
pub struct Declared {
    name: &'static str,
    default: &'static str,
    help: &'static str,
}

/// Declares an option: its name, its default value and its meaning.
pub const fn option(name: &'static str, default: &'static str, help: &'static str) -> Declared {
    Declared { name, default, help }
}

/// Options that every workload has.
const COMMON: [Declared; 2] = [
    option("milliseconds", "200", "How long to measure"),
    option("server", "0", "Process id of a server whose processor time counts, too; 0: none"),
];

/// The arguments of this process.
pub struct Options(ArgMatches);

impl Options {
    /// Returns the value of a declared option. Fails if the text of the value is not a `T`.
    pub fn value<T: FromStr>(&self, name: &str) -> Result<T, String> {
        let value: &String = self.0.get_one(name).expect("the option is declared and has a default");
        value.parse().map_err(|_| format!("--{name} cannot be {value}"))
    }

    /// Returns the value of an option that is 0 or 1.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        self.value::<u8>(name).map(|value| value != 0)
    }

    /// Returns the duration to measure, from `--milliseconds`.
    pub fn span(&self) -> Result<Duration, String> {
        self.value("milliseconds").map(Duration::from_millis)
    }

    /// Returns the arguments after `--`.
    pub fn words(&self) -> Vec<String> {
        self.0.get_many(WORDS).unwrap_or_default().cloned().collect()
    }
}

const WORDS: &str = "words";

/// Runs the function `main` of a workload with the workload's options. If `main` fails, prints its
/// error and exits with status 1.
pub fn run(declared: &[Declared], main: impl FnOnce(&Options) -> Result<(), String>) -> std::process::ExitCode {
    let mut command = Command::new(env!("CARGO_PKG_NAME"));
    for Declared { name, default, help } in COMMON.iter().chain(declared) {
        command = command.arg(Arg::new(*name).long(*name).default_value(*default).help(*help));
    }
    command = command.arg(Arg::new(WORDS).last(true).num_args(0..).help("For workloads that start another program"));
    match main(&Options(command.get_matches())) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            std::process::ExitCode::FAILURE
        }
    }
}
