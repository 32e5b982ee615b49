//! Parser for the `--name value` arguments of the workloads.

use std::str::FromStr;

/// The arguments of this process.
pub struct Options(Vec<String>);

impl Options {
    pub fn from_arguments() -> Options {
        Options(std::env::args().skip(1).collect())
    }

    /// Returns the value after `--name`, or `default` if the argument is absent.
    pub fn value<T: FromStr>(&self, name: &str, default: T) -> Result<T, String> {
        let flag = format!("--{name}");
        let Some(position) = self.0.iter().position(|argument| *argument == flag) else { return Ok(default) };
        let value = self.0.get(position + 1).ok_or_else(|| format!("{flag} wants a value"))?;
        value.parse().map_err(|_| format!("{flag} cannot be {value}"))
    }
}

/// Runs a workload's `main`. Prints its error and exits with status 1 if it fails.
pub fn run(main: impl FnOnce(&Options) -> Result<(), String>) -> std::process::ExitCode {
    match main(&Options::from_arguments()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            std::process::ExitCode::FAILURE
        }
    }
}
