//! `usring run --check`: the file in which the program's processes record how they misuse their
//! rings, and the report at the end of the run.

mod report;
pub mod stacks;

use super::Failure;
use super::supervise::Ended;
use crate::memory_file;
use crate::system_error::words;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use usring_check::stacks::MEMORY_BYTES;

/// A value of `--check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckOption {
    /// Report each misuse at the end.
    Report,
    /// Send SIGABRT to the program at its first misuse.
    Abort,
}

/// Name of the memory file of [`SharedStacks`], as the link in the launcher's /proc/PID/fd shows
/// it.
pub const STACKS_FILE: &str = "/memfd:usring-stacks (deleted)";

/// The memory in which a run's processes share the stacks of their requests in flight.
pub struct SharedStacks(File);

impl SharedStacks {
    pub fn create() -> Result<SharedStacks, Failure> {
        let file = memory_file::sealed(c"usring-stacks", MEMORY_BYTES as u64);
        file.map(SharedStacks).map_err(|error| {
            Failure::new(format!("cannot make the memory for stacks ({error})", error = words(&error)))
        })
    }

    /// Returns the path in /proc by which the program's processes open the memory of shared stacks.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// The file of a run's findings. It is a memory file (memfd), which disappears with its last user.
pub struct Findings {
    file: File,
    option: CheckOption,
    /// Whether the user promises that no two requests in flight of a ring have the same user_data.
    unique_user_data: bool,
}

impl Findings {
    pub fn create(option: CheckOption, unique_user_data: bool) -> Result<Findings, Failure> {
        let file = memfd_create(c"usring-findings", MFdFlags::MFD_CLOEXEC).map_err(|error| {
            Failure::new(format!("cannot make the file for --check ({error})", error = words(&error)))
        })?;
        Ok(Findings { file: File::from(file), option, unique_user_data })
    }

    /// Returns the value of `USRING_CHECK`: the mode, and the path in /proc by which the program's
    /// processes open the file of findings.
    pub fn text(&self) -> String {
        let mode = match self.option {
            CheckOption::Report => "report",
            CheckOption::Abort => "abort",
        };
        let promise = if self.unique_user_data { "+user-data" } else { "" };
        format!("{mode}{promise}:/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Prints the findings of `--check` on standard error. `process`: the program's first process.
    /// `ended`: how that process ended.
    pub fn report(mut self, process: u32, ended: &Ended) {
        let mut bytes = Vec::new();
        let read = self.file.rewind().and_then(|()| std::io::Read::read_to_end(&mut self.file, &mut bytes));
        let text = match read {
            Ok(_) => report::text(&bytes, (!matches!(ended, Ended::Exited(0))).then_some(process)),
            Err(error) => format!("usring: cannot read the findings of --check ({error})\n", error = words(&error)),
        };
        // A failed write must not change the exit status, which is the program's, so errors are
        // ignored.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}
