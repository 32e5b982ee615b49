//! PostgreSQL 18, whose processes share rings. With `io_method=io_uring` the postmaster makes a
//! ring for each backend and then forks the backends. Each backend submits to its own ring, and any
//! process may wait for completions of any ring.
//!
//! - [`Postgres`] is an installation, and [`Settings`] are the options of its server.
//! - [`Cluster`] is a data folder on a test's stage, and [`Server`] is its running server.
//! - [`Recorder`] is a client that remembers which commits were reported to it.

#[path = "../../../xtask/src/cached.rs"]
#[allow(dead_code, reason = "for xtask")]
mod cached;
mod client;
mod cluster;
mod recorder;

pub use client::Client;
pub use cluster::{Cluster, Entry, Server, children_of};
pub use recorder::Recorder;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

/// The first version of PostgreSQL that uses io_uring.
const VERSION: u32 = 18;

/// The user and the database of every cluster.
const NAME: &str = "postgres";

/// An installation of PostgreSQL.
#[derive(Clone, Debug)]
pub struct Postgres {
    programs: PathBuf,
}

impl Postgres {
    /// Returns the installation whose programs are in the folder `programs`. The error says what is
    /// wrong with it.
    pub fn at(programs: &Path) -> Result<Postgres, String> {
        let postgres = Postgres { programs: programs.to_owned() };
        let path = postgres.program("postgres");
        let output = Command::new(&path).arg("--version").output();
        let output = output.map_err(|error| format!("{} cannot be started ({error})", path.display()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let version = said.split_whitespace().nth(2).and_then(|version| version.split(['.', 'b', 'r']).next());
        if version.and_then(|version| version.parse().ok()).is_some_and(|version: u32| version >= VERSION) {
            return Ok(postgres);
        }
        Err(format!("{} is not PostgreSQL {VERSION} or newer: {}", path.display(), said.trim()))
    }

    /// Returns the installation that `cargo xtask packages` has made.
    pub fn cached() -> Result<Postgres, String> {
        Postgres::at(&cached::postgres_programs())
            .map_err(|why| format!("no PostgreSQL {VERSION}: {why}; `cargo xtask packages` fetches it"))
    }

    /// Returns the path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Returns the arguments of initdb.
    pub fn initdb_arguments(data: &Path) -> Vec<String> {
        let data = format!("--pgdata={}", data.display());
        let user = format!("--username={NAME}");
        [&data, &user, "--no-locale", "--encoding=UTF8", "--auth=trust", "--no-sync"].map(str::to_owned).into()
    }
}

/// How the server reads files: its setting `io_method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Sync,
    Worker,
    IoUring,
}

impl Method {
    /// Returns the setting's value.
    pub fn name(self) -> &'static str {
        match self {
            Method::Sync => "sync",
            Method::Worker => "worker",
            Method::IoUring => "io_uring",
        }
    }
}

impl FromStr for Method {
    type Err = ();

    fn from_str(text: &str) -> Result<Method, ()> {
        [Method::Sync, Method::Worker, Method::IoUring].into_iter().find(|method| method.name() == text).ok_or(())
    }
}

/// The settings of a server that differ from test to test.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub method: Method,
    /// Whether data files are open with O_DIRECT. Without it the pages are mostly in the kernel's
    /// page cache, so a read seldom waits.
    pub direct: bool,
}

impl Settings {
    /// Returns the arguments of the server. The server's socket is in `sockets`. Its buffers are
    /// small, so the server has to read pages again.
    pub fn arguments(self, data: &Path, sockets: &Path) -> Vec<String> {
        let mut arguments = vec!["-D".to_owned(), data.display().to_string()];
        let values = [
            ("listen_addresses", String::new()),
            ("unix_socket_directories", sockets.display().to_string()),
            ("io_method", self.method.name().to_owned()),
            ("debug_io_direct", if self.direct { "data" } else { "" }.to_owned()),
            ("shared_buffers", "16MB".to_owned()),
        ];
        for (name, value) in values {
            arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
        }
        arguments
    }
}
