//! The project's tasks, as `cargo xtask NAME`: building the command and the library, checking the
//! project's rules, and running everything that CI runs.

mod cached;
mod check;
mod debian;
mod layers;
mod loom;
mod package;
mod packages;
mod postgres;
mod product;
mod prose;
mod size;
mod skipped;
#[path = "../../crates/interpose/soname.rs"]
mod soname;
mod step;
mod toolchain;

use clap::{Parser, Subcommand};
use package::Purpose;
use std::ffi::OsString;
use std::process::ExitCode;

/// Result of a task. The error says in words why the task failed.
type Outcome = Result<(), String>;

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Build, check and measure usring")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Build libusring.so and everything else, into target/debug or target/release
    Build {
        /// Build the release profile, which is shipped and measured
        #[arg(long)]
        release: bool,
    },
    /// Run everything that CI runs: format, lints, layers, sizes, builds, tests, documentation,
    /// models
    Check,
    /// Test a change of the engine: build the debug product, run the unit tests of ring, engine and
    /// aio, and the conformance cases of some groups
    Quick {
        /// Run the groups of cases whose names contain one of these texts (default: nop, link,
        /// drain, timeout, poll)
        groups: Vec<String>,
    },
    /// Fail if a crate depends on one that its layer may not use, has more uses of higher modules,
    /// or has a longer cycle of files than xtask/arrow-limits allows
    Layers {
        /// Also print each pair of files in which one uses a higher module, and the files of each
        /// cycle
        #[arg(long)]
        list: bool,
        /// Lower the limits in xtask/arrow-limits to the present counts
        #[arg(long)]
        tighten: bool,
    },
    /// Fail if a file has more than 600 lines or a function more than 60, and xtask/size-exceptions
    /// does not allow it
    Size,
    /// Fail if comments, messages or documents break more rules of docs/style.md than
    /// xtask/prose-limits allows
    Prose {
        /// Print the findings in PART instead of failing: a crate's folder, `documents`, or `all`
        #[arg(long, value_name = "PART")]
        list: Option<String>,
        /// Lower the limits in xtask/prose-limits to the present findings
        #[arg(long)]
        tighten: bool,
    },
    /// Fail if scripts/toolchain.sh and Cargo.toml name different releases of Rust as the oldest
    /// that builds usring
    Toolchain,
    /// Run the loom models of words that threads share
    Loom,
    /// Make the files of a release in target/package: a tarball, a .deb, an .rpm and an OCI image
    Package {
        /// Package the debug build, for tests, in target/package-debug
        #[arg(long)]
        debug: bool,
    },
    /// Install the Debian packages that the tests use, or name the missing ones
    Packages,
    /// Build and run `usring demo`
    Demo {
        /// Arguments of `usring demo`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Run tests that take long or have random results
    Soak {
        #[command(subcommand)]
        what: Soak,
    },
    /// Build and run `usring bench`
    Bench {
        /// Arguments of `usring bench`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

#[derive(Subcommand)]
enum Soak {
    /// Run the conformance cases several times, in a build that delays threads at random at the
    /// steps of their protocols
    Interleavings {
        /// How often each case runs
        #[arg(long, default_value_t = 5)]
        rounds: u32,
        /// Run only the groups of cases whose names contain this text (default: all groups)
        #[arg(default_value = "")]
        groups: String,
    },
    /// Let processes share rings while some of them are killed at random, and count what is lost
    SharedRings {
        /// Duration in seconds
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Processes at the same time
        #[arg(long, default_value_t = 8)]
        processes: u32,
        /// Rings that the processes share
        #[arg(long, default_value_t = 16)]
        rings: u32,
        /// Use the kernel's rings, for comparison
        #[arg(long)]
        kernel: bool,
    },
    /// Search for power losses in which MariaDB, PostgreSQL 18, LevelDB and RocksDB lose data that
    /// they promised to keep
    Crash,
    /// Kill the storage daemon and its NBD server again and again while fio writes
    Storage,
    /// Run the swap tests that take minutes: unmodified programs with a GiB of memory
    Swap,
    /// Kill processes of PostgreSQL 18 under load, many times. Then load the server without kills.
    /// `cargo xtask soak postgres -- --help` lists the options, such as the number of kills, the
    /// duration of the load, and whether PostgreSQL uses the kernel's io_uring
    Postgres {
        /// Options of the workload program
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Put load on the echo server on usring, with the kernel's io_uring denied: many short
    /// connections, and clients that reset, stall and send garbage
    Sockets {
        /// Duration in seconds
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Connections at the same time
        #[arg(long, default_value_t = 5000)]
        connections: u32,
        /// Options of the server
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        server: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().chore {
        Chore::Build { release } => product::build(release),
        Chore::Check => return if check::run() { ExitCode::SUCCESS } else { ExitCode::FAILURE },
        Chore::Quick { groups } => product::quick(&groups),
        Chore::Layers { list, tighten } => layers::run(list, tighten),
        Chore::Size => size::run(),
        Chore::Prose { list, tighten } => prose::run(list.as_deref(), tighten),
        Chore::Toolchain => toolchain::run(),
        Chore::Loom => loom::run(),
        Chore::Package { debug } => package::run(if debug { Purpose::DebugTests } else { Purpose::Download }),
        Chore::Packages => packages::provide(),
        Chore::Soak { what: Soak::Sockets { seconds, connections, server } } => {
            product::soak_sockets(seconds, connections, &server)
        }
        Chore::Soak { what: Soak::SharedRings { seconds, processes, rings, kernel } } => {
            product::soak_shared_rings([processes, rings, seconds], kernel)
        }
        Chore::Soak { what: Soak::Postgres { options } } => product::soak_postgres(&options),
        Chore::Soak { what: Soak::Crash } => product::soak_ignored("crash", "databases::"),
        Chore::Soak { what: Soak::Storage } => product::soak_ignored("acceptance", "storage::"),
        Chore::Soak { what: Soak::Swap } => product::soak_ignored("acceptance", "swap_run::"),
        Chore::Soak { what: Soak::Interleavings { rounds, groups } } => product::soak_interleavings(rounds, &groups),
        Chore::Demo { arguments } => return product::run("demo", &["usring"], &[], &arguments),
        Chore::Bench { arguments } => {
            return product::run("bench", &["usring", "workloads"], &["workloads/blkio"], &arguments);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
