//! Soak test: PostgreSQL 18 with `io_method=io_uring`. Its processes are killed under load, many
//! times.
//!
//! `workload-postgres-soak [--backend-kills N] [--postmaster-kills N] [--seconds N] [--lifetime N]
//! [--direct 0|1] [--kernel 0|1] [--scale N] [--programs FOLDER]`
//!
//! 1. pgbench loads the server, and recorders insert rows and remember which commits were reported.
//! 2. A child of the postmaster is killed by SIGKILL, mostly one that serves a client. The server
//!    must recover. This is repeated. At a recovery PostgreSQL makes new rings and does not close
//!    the old ones, so the server is restarted after some recoveries.
//! 3. The postmaster is killed by SIGKILL. All its children must end, and a new server must
//!    recover. This is repeated.
//! 4. pgbench runs for the given time without an error.
//! 5. All indexes and tables are checked, and the checksums of all pages.
//!
//! After each kill, all rows must be there whose commit the server had reported.

use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};
use workloads::harness::Stage;
use workloads::options::{self, Declared, Options, option};
use workloads::postgres::{Client, Cluster, Entry, Method, Postgres, Recorder, Server, Settings};

/// Time limit for steps that normally take seconds.
const LIMIT: Duration = Duration::from_secs(300);
/// Pause between two checks of the number of commits.
const PAUSE: Duration = Duration::from_millis(5);
/// Commits that all recorders together must see before the next kill. The number is random, so that
/// the kills hit the load at different points.
const COMMITS: std::ops::Range<usize> = 20..400;
const RECORDERS: u32 = 3;
/// Time between two progress messages in the run without kills.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);
/// If a kill's number is a multiple of this one, the child to kill is chosen from all children. So
/// it may be a writer or a checkpointer, too.
const ANY_CHILD: u32 = 10;

const OPTIONS: &[Declared] = &[
    option("backend-kills", "100", "How many times to kill a child of the postmaster"),
    option("postmaster-kills", "20", "How many times to kill the postmaster"),
    option("seconds", "600", "How long to run pgbench without kills"),
    option("lifetime", "5", "After how many recoveries to start a new postmaster; on the kernel 7 are too many"),
    option("direct", "1", "Whether data files are open with O_DIRECT (1) or not (0)"),
    option("kernel", "0", "Whether to use the kernel's io_uring (1) or usring (0)"),
    option("scale", "20", "pgbench's scale: each is 100,000 accounts"),
    option("programs", "", "Folder of PostgreSQL's programs; empty: the one of `cargo xtask packages`"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, |options| {
        let begin = Instant::now();
        let outcome = soak(options, begin);
        match &outcome {
            Ok(report) => println!("PASSED after {:.0?}: {report}", begin.elapsed()),
            Err(_) => println!("FAILED after {:.0?}", begin.elapsed()),
        }
        outcome.map(drop)
    })
}

fn soak(options: &Options, begin: Instant) -> Result<String, String> {
    let programs: String = options.value("programs")?;
    let postgres = if programs.is_empty() { Postgres::cached() } else { Postgres::at(Path::new(&programs)) }?;
    let entry = if options.flag("kernel")? { Entry::Kernel } else { Entry::Launcher };
    let settings = Settings { method: Method::IoUring, direct: options.flag("direct")? };
    let stage = Stage::with_release();
    let cluster = Cluster::new(&stage, &postgres, entry, settings)?;
    let server = cluster.start()?;
    let client = server.client();
    client.pgbench(&format!("-i -q -s {}", options.value::<u32>("scale")?), LIMIT)?;
    Recorder::make_table(&client)?;
    let recorders = (0..RECORDERS).map(|number| Recorder::start(&client, number)).collect();
    let mut run = Run { cluster: &cluster, client, recorders, begin, restarts: 0 };
    let server = run.kill_children(server, options.value("backend-kills")?, options.value("lifetime")?)?;
    let mut server = run.kill_postmasters(server, options.value("postmaster-kills")?)?;
    let seconds = options.value("seconds")?;
    run.without_kills(&mut server, Duration::from_secs(seconds))?;
    run.finish(server)
}

/// One run of the soak test, with the clients that live through all kills.
struct Run<'stage> {
    cluster: &'stage Cluster<'stage>,
    client: Client,
    recorders: Vec<Recorder>,
    begin: Instant,
    /// How many times the server has been restarted or has restarted its children.
    restarts: u32,
}

impl<'stage> Run<'stage> {
    fn say(&self, what: &str) {
        println!("{:>6.1} s  {what}; {} commits", self.begin.elapsed().as_secs_f64(), self.commits());
    }

    fn commits(&self) -> usize {
        self.recorders.iter().map(Recorder::count).sum()
    }

    fn check(&mut self) -> Result<(), String> {
        self.recorders.iter_mut().try_for_each(Recorder::check)
    }

    /// Waits until the recorders have seen more commits, which shows that the server works.
    fn wait_for_commits(&self) -> Result<(), String> {
        let (before, start, more) = (self.commits(), Instant::now(), fastrand::usize(COMMITS));
        while self.commits() < before + more {
            if start.elapsed() > LIMIT {
                return Err(format!("only {} commits in {LIMIT:?}", self.commits() - before));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn kill_children(
        &mut self,
        mut server: Server<'stage>,
        kills: u32,
        lifetime: usize,
    ) -> Result<Server<'stage>, String> {
        for kill in 1..=kills {
            if server.crashes() >= lifetime {
                server.stop()?;
                server = self.cluster.start()?;
            }
            let load = Load::start(&self.client)?;
            self.wait_for_commits()?;
            let killed = server.kill_child(|children| choose(children, kill))?;
            drop(load);
            self.check().map_err(|why| format!("{why}\n{}", server.log_tail()))?;
            self.restarts += 1;
            self.say(&format!("kill {kill} of {kills}: {killed}"));
        }
        Ok(server)
    }

    fn kill_postmasters(&mut self, mut server: Server<'stage>, kills: u32) -> Result<Server<'stage>, String> {
        for kill in 1..=kills {
            let load = Load::start(&self.client)?;
            self.wait_for_commits()?;
            server.kill_postmaster()?;
            drop(load);
            server = self.cluster.start()?;
            self.check().map_err(|why| format!("{why}\n{}", server.log_tail()))?;
            self.restarts += 1;
            self.say(&format!("kill {kill} of {kills}: the postmaster"));
        }
        Ok(server)
    }

    /// Runs pgbench for `span`. Fails at the first error of a client or of the server.
    fn without_kills(&mut self, server: &mut Server, span: Duration) -> Result<(), String> {
        let (begin, crashes) = (Instant::now(), server.crashes());
        let mut transactions = 0;
        while begin.elapsed() < span {
            let part = REPORT_INTERVAL.min(span - begin.elapsed()).as_secs().max(1);
            let work = format!("-n -c 8 -j 2 -T {part}");
            let report = self.client.pgbench(&work, LIMIT).map_err(|why| format!("{why}\n{}", server.log_tail()))?;
            let line = report.lines().find_map(|line| line.strip_prefix("number of transactions actually processed: "));
            transactions += line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
            self.check()?;
            self.say(&format!("{transactions} transactions of pgbench without an error"));
        }
        if server.crashes() == crashes {
            Ok(())
        } else {
            Err(format!("the server has crashed:\n{}", server.log_tail()))
        }
    }

    /// Checks everything that the server has stored, and stops the server.
    fn finish(self, server: Server) -> Result<String, String> {
        let restarts = self.restarts;
        let commits = self.recorders.into_iter().map(Recorder::finish).sum::<Result<usize, String>>()?;
        let mut amcheck = self.client.program("pg_amcheck", LIMIT);
        let output = amcheck.args(["--install-missing", "--heapallindexed"]).output();
        let output = output.map_err(|error| format!("cannot start pg_amcheck ({error})"))?;
        if !output.status.success() {
            return Err(format!("pg_amcheck: {}", String::from_utf8_lossy(&output.stdout)));
        }
        let ended = server.stop()?;
        self.cluster.verify_checksums()?;
        let reads = self.cluster.reads(&ended)?.map_or(String::new(), |reads| format!(", {reads} reads by usring"));
        Ok(format!("{restarts} recoveries, no row missing of {commits} whose commit was reported{reads}"))
    }
}

/// Chooses the child to kill: mostly one that serves a client of pgbench or a recorder.
fn choose(children: &[String], kill: u32) -> Option<usize> {
    if kill.is_multiple_of(ANY_CHILD) {
        return (!children.is_empty()).then(|| fastrand::usize(..children.len()));
    }
    let serving = |name: &String| name.starts_with("postgres: postgres postgres ");
    let backends: Vec<_> = (0..children.len()).filter(|index| serving(&children[*index])).collect();
    fastrand::choice(backends)
}

/// A pgbench that runs until it is dropped or the server crashes.
struct Load(Child);

impl Load {
    fn start(client: &Client) -> Result<Load, String> {
        let mut command = client.program("pgbench", LIMIT);
        command.args(["-n", "-c", "8", "-j", "2", "-T", "600"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Load).map_err(|error| format!("cannot start pgbench ({error})"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // pgbench ends once its connections are lost. If it still runs, its parent, the program
        // timeout(1), passes SIGTERM on to it.
        let process = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        let _ = nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM);
        let _ = self.0.wait();
    }
}
