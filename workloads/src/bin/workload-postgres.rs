//! Benchmark: PostgreSQL's server under one client that scans a table, or under 8 clients of
//! `pgbench -S`. Prints how many pages were read or transactions made, and the processor time of
//! the server's processes.
//!
//! `workload-postgres --programs FOLDER --folder FOLDER --work scan|select --method METHOD --direct
//! 0|1`
//!
//! The first run makes a cluster in `--folder`, which later runs use again. The table is four times
//! as large as the server's buffers. The server does not run as root: if this program does, the
//! server runs as the user `nobody`, and `--folder` becomes accessible to that user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use workloads::harness::is_root;
use workloads::options::{self, Declared, option};
use workloads::postgres::{Client, Postgres, Settings, children_of};
use workloads::stopwatch::Sample;

/// The user and group `nobody`.
const NOBODY: u32 = 65534;
/// Time limit for each step.
const LIMIT: Duration = Duration::from_secs(25);
/// A measurement lasts this many times as long as `--milliseconds` says, because a server warms up
/// slowly.
const DURATION_FACTOR: u32 = 5;
/// pgbench's scale factor. With 5, its largest table has 64 MiB.
const SCALE: u32 = 5;

const OPTIONS: &[Declared] = &[
    option("programs", "", "Folder of PostgreSQL's programs"),
    option("folder", "", "Folder of the cluster, and of the server's socket"),
    option("work", "scan", "scan: scan the table; select: pgbench -S"),
    option("method", "io_uring", "The server's io_method: sync, worker, io_uring"),
    option("direct", "0", "Whether data files are open with O_DIRECT (1) or not (0)"),
];

/// An SQL function that scans the table again and again for the given time. It returns the number
/// of scanned pages and the time in nanoseconds.
const SCANS: &str = "CREATE FUNCTION scans(milliseconds int) RETURNS text LANGUAGE plpgsql AS $$
    DECLARE
        start timestamptz := clock_timestamp();
        scanned bigint := 0;
        took interval;
    BEGIN
        LOOP
            PERFORM sum(abalance) FROM pgbench_accounts;
            scanned := scanned + 1;
            took := clock_timestamp() - start;
            EXIT WHEN extract(epoch FROM took) * 1000 >= milliseconds;
        END LOOP;
        RETURN scanned * pg_relation_size('pgbench_accounts') / 8192 || '|' || (extract(epoch FROM took) * 1e9)::bigint;
    END $$";

fn main() -> ExitCode {
    options::run(OPTIONS, |options| {
        let postgres = Postgres::at(&options.value::<PathBuf>("programs")?)?;
        let folder: PathBuf = options.value("folder")?;
        let settings = Settings { method: options.value("method")?, direct: options.flag("direct")? };
        let span = options.span()? * DURATION_FACTOR;
        let data = folder.join("data");
        let client = Client::new(&postgres, &folder);
        if !data.exists() {
            make_cluster(&postgres, &folder, &data)?;
        }
        let server = Server::start(&postgres, settings, &folder, &data)?;
        client.wait(LIMIT, || false).map_err(|why| format!("{why}\n{}", server.log()))?;
        if client.ask("SELECT to_regproc('scans')")?.is_empty() {
            client.pgbench(&format!("-i -q -s {SCALE}"), LIMIT)?;
            client.ask(SCANS)?;
            client.ask("VACUUM ANALYZE")?;
        }
        let sample = match &*options.value::<String>("work")? {
            "scan" => scan(&client, &server, span),
            "select" => select(&client, &server, span),
            other => Err(format!("--work cannot be {other}")),
        }?;
        server.stop()?;
        println!("{{{sample}}}");
        Ok(())
    })
}

fn scan(client: &Client, server: &Server, span: Duration) -> Result<Sample, String> {
    let statements = |span: Duration| {
        let milliseconds = span.as_millis();
        format!("SET max_parallel_workers_per_gather = 0; SELECT scans({milliseconds})")
    };
    client.ask(&statements(span / 5))?;
    let before = server.processor_time();
    let answer = client.ask(&statements(span))?;
    let processor = server.processor_time() - before;
    let (pages, time) = answer.split_once('|').ok_or_else(|| format!("the server answered {answer}"))?;
    let number = |text: &str| text.parse().map_err(|_| format!("the server answered {answer}"));
    Ok(Sample { operations: number(pages)?, time: Duration::from_nanos(number(time)?), processor, thread: None })
}

fn select(client: &Client, server: &Server, span: Duration) -> Result<Sample, String> {
    let seconds = span.as_secs().max(1);
    let before = server.processor_time();
    let report = client.pgbench(&format!("-n -S -c 8 -j 2 -T {seconds}"), LIMIT)?;
    let processor = server.processor_time() - before;
    let behind = |words: &str| {
        let number = report.lines().find_map(|line| line.strip_prefix(words)?.split_whitespace().next());
        number.and_then(|number| number.parse::<f64>().ok()).ok_or_else(|| format!("pgbench did not report: {report}"))
    };
    let transactions = behind("number of transactions actually processed: ")?;
    let time = Duration::from_secs_f64(transactions / behind("tps = ")?);
    Ok(Sample { operations: transactions as u64, time, processor, thread: None })
}

/// Makes the command run as the user `nobody` if this program runs as root, which PostgreSQL
/// refuses.
fn as_user(command: &mut Command) -> &mut Command {
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.stdin(Stdio::null()).env("LC_ALL", "C")
}

fn make_cluster(postgres: &Postgres, folder: &Path, data: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot use {} ({error})", folder.display());
    if is_root() {
        chown(folder, Some(NOBODY), Some(NOBODY)).map_err(failed)?;
        fs::set_permissions(folder, Permissions::from_mode(0o711)).map_err(failed)?;
    }
    let mut initdb = Command::new(postgres.program("initdb"));
    let output = as_user(&mut initdb).current_dir(folder).args(Postgres::initdb_arguments(data)).output();
    let output = output.map_err(|error| format!("cannot start initdb ({error})"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// A running server. Dropping it kills the postmaster, whose children then end, too.
struct Server {
    postmaster: Child,
    log: PathBuf,
}

impl Server {
    fn start(postgres: &Postgres, settings: Settings, folder: &Path, data: &Path) -> Result<Server, String> {
        let log = folder.join("log");
        let file = fs::File::create(&log).map_err(|error| format!("cannot make {} ({error})", log.display()))?;
        let mut command = Command::new(postgres.program("postgres"));
        as_user(&mut command).current_dir(folder).args(settings.arguments(data, folder)).stdout(Stdio::null());
        let postmaster = command.stderr(file).spawn().map_err(|error| format!("cannot start postgres ({error})"))?;
        Ok(Server { postmaster, log })
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns the processor time of the postmaster and of all its children, including those that
    /// have ended.
    fn processor_time(&self) -> Duration {
        let postmaster = self.postmaster.id().cast_signed();
        let ticks = loop {
            let children = children_of(postmaster);
            let running: u64 = children.iter().map(|child| ticks(*child, &[11, 12])).sum();
            let ended = ticks(postmaster, &[11, 12, 13, 14]);
            // When a child ends, its processor time is added to that of the postmaster. So if the
            // list of children has changed meanwhile, all times must be read again.
            if children_of(postmaster) == children {
                break running + ended;
            }
        };
        // SAFETY: the call has no preconditions.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Duration::from_secs_f64(ticks as f64 / per_second.max(1) as f64)
    }

    /// Stops the server as an operator does.
    fn stop(mut self) -> Result<(), String> {
        let process = nix::unistd::Pid::from_raw(self.postmaster.id().cast_signed());
        let _ = nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGINT);
        let status = self.postmaster.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status}\n{}", self.log())) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.postmaster.kill();
        let _ = self.postmaster.wait();
    }
}

/// Returns the sum of some fields of `/proc/PROCESS/stat`. Field 0 is the one after the process's
/// name. For a process that has ended the sum is 0.
fn ticks(process: i32, fields: &[usize]) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let rest: Vec<_> = stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
    fields.iter().filter_map(|field| rest.get(*field)?.parse::<u64>().ok()).sum()
}
