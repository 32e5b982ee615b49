//! `usring stats FILE`: prints the table of a statistics file (`USRING_STATS`).

use super::statistics::StatisticsFile;
use super::{Failure, Outcome};
use crate::system_error::words;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  USRING_STATS=/run/db.stats LD_PRELOAD=/opt/usring/libusring.so my-server
  usring stats /run/db.stats
      Prints the requests of my-server so far, while it runs or after its end.

Exit status: 0 if the table was printed, 125 if FILE cannot be read or has another layout.";

/// Print the counts of requests in the file that USRING_STATS names
///
/// A program that loads libusring.so without the launcher counts its requests in the file that the
/// variable USRING_STATS names. The first process makes the file. Further processes, and later
/// runs, add to it. Remove the file to begin anew.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The file that USRING_STATS named when the programs started.
    file: PathBuf,
}

/// Runs the subcommand.
pub fn run(options: &Options) -> Outcome {
    let file = options.file.display();
    let failed = |error| Failure::new(format!("cannot read {file} ({error})", error = words(&error)));
    let opened = StatisticsFile::open(&options.file).map_err(failed)?;
    if !opened.is_valid().map_err(failed)? {
        return Err(Failure::new(format!(
            "{file} is not a statistics file of this build of usring; use the usring and libusring.so of one build"
        )));
    }
    let snapshot = opened.read().map_err(failed)?;
    tell!("{}", snapshot.to_string().trim_end());
    Ok(0)
}
