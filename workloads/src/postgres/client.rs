//! The clients psql and pgbench. They run without usring.

use super::{NAME, Postgres};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Time limit for a statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(180);
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// A server's address, and the client programs that connect to it.
#[derive(Clone, Debug)]
pub struct Client {
    postgres: Postgres,
    sockets: PathBuf,
}

impl Client {
    /// Returns a client for the server whose socket is in the folder `sockets`.
    pub fn new(postgres: &Postgres, sockets: &Path) -> Client {
        Client { postgres: postgres.clone(), sockets: sockets.to_owned() }
    }

    /// Prepares a program that connects to the server and is killed after `limit`.
    pub fn program(&self, name: &str, limit: Duration) -> Command {
        let mut command = Command::new("timeout");
        command.arg(limit.as_secs().to_string()).arg(self.postgres.program(name));
        command.env("PGHOST", &self.sockets).env("PGUSER", NAME).env("PGDATABASE", NAME).env("LC_ALL", "C");
        command
    }

    /// Prepares psql. It prints only rows, and exits at the first error.
    pub fn psql(&self, limit: Duration) -> Command {
        let mut command = self.program("psql", limit);
        command.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1"]);
        command
    }

    /// Runs statements and returns their rows. Columns are separated by `|`.
    pub fn ask(&self, statements: &str) -> Result<String, String> {
        let output = self.psql(STATEMENT_TIMEOUT).args(["--command", statements]).output();
        let output = finished(output).map_err(|why| format!("{statements}: {why}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// Runs pgbench with these arguments, separated by spaces, and returns its report. Fails if a
    /// transaction failed.
    pub fn pgbench(&self, arguments: &str, limit: Duration) -> Result<String, String> {
        let output = self.program("pgbench", limit).args(arguments.split_whitespace()).output();
        let output = finished(output).map_err(|why| format!("pgbench {arguments}: {why}"))?;
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        let failed = report.lines().find_map(|line| line.strip_prefix("number of failed transactions: "));
        match failed {
            Some(failed) if !failed.starts_with("0 ") => Err(format!("pgbench {arguments}: {report}")),
            _ => Ok(report),
        }
    }

    /// Waits until the server answers. Fails after `limit`, or when `has_ended` returns true.
    pub fn wait(&self, limit: Duration, mut has_ended: impl FnMut() -> bool) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let Err(why) = self.ask("SELECT 1") else { return Ok(()) };
            if has_ended() {
                return Err(format!("the server has ended: {why}"));
            }
            if start.elapsed() > limit {
                return Err(format!("the server does not answer within {limit:?}: {why}"));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Returns the output of a program that exited with status 0. Otherwise fails with what the program
/// printed.
pub fn finished(output: std::io::Result<Output>) -> Result<Output, String> {
    let output = output.map_err(|error| format!("cannot start ({error})"))?;
    if output.status.success() {
        return Ok(output);
    }
    let [out, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    Err(format!("{}\n{out}{error}", output.status))
}
