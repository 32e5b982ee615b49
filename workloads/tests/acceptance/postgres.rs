//! PostgreSQL 18 with `io_method=io_uring`: pgbench, scans, vacuum, checks of every page and index,
//! and crashes. Its processes share rings. One cluster's data files are open with O_DIRECT, so its
//! reads go to the disk. The other cluster's reads are mostly served from the page cache.

use std::time::Duration;
use workloads::harness::Stage;
use workloads::harness::skipped::skip;
use workloads::postgres::{Client, Cluster, Entry, Method, Postgres, Recorder, Server, Settings};

/// Time limit of a pgbench run.
const LIMIT: Duration = Duration::from_secs(180);
/// Commits that a recorder must see before and after a crash.
const COMMITS: usize = 50;

/// Runs a test's body, or skips the test if PostgreSQL 18 is not installed.
#[track_caller]
fn with_postgres(body: impl FnOnce(&Postgres) -> Result<(), String>) {
    match Postgres::cached() {
        Err(why) => skip(&why),
        Ok(postgres) => body(&postgres).unwrap_or_else(|why| panic!("{why}")),
    }
}

fn settings(direct: bool) -> Settings {
    Settings { method: Method::IoUring, direct }
}

/// Fails if the server has logged a message of one of these kinds.
fn has_not_logged(log: &str, kinds: &[&str]) -> Result<(), String> {
    let wrong = log.lines().find(|line| kinds.iter().any(|kind| line.contains(kind)));
    wrong.map_or(Ok(()), |line| Err(format!("{line}\n{log}")))
}

/// Makes pgbench's tables, and has 8 clients change and read them.
fn load(client: &Client) -> Result<(), String> {
    client.pgbench("-i -s 20 -q", LIMIT)?;
    client.pgbench("-n -c 8 -j 2 -T 10", LIMIT)?;
    client.pgbench("-n -c 8 -j 2 -T 10 -S", LIMIT)?;
    Ok(())
}

/// Fails if the sums of pgbench's tables differ. They must agree, because each transaction adds the
/// same number to a row of each table. Several clients scan all tables at once, and PostgreSQL uses
/// several processes for each scan.
fn sums_agree(client: &Client) -> Result<(), String> {
    const SCAN: &str = "SET max_parallel_workers_per_gather = 2;
        SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
        SET enable_indexonlyscan = off; SET enable_indexscan = off;
        SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
            (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history),
            (SELECT count(*) FROM pgbench_accounts)";
    std::thread::scope(|scope| {
        let scans: Vec<_> = (0..3).map(|_| scope.spawn(|| client.ask(SCAN))).collect();
        for scan in scans {
            let sums = scan.join().map_err(|_| "a client panicked".to_owned())??;
            let columns: Vec<_> = sums.split('|').collect();
            let agree = columns.len() == 5 && columns[..4].iter().all(|sum| *sum == columns[0]);
            if !agree || columns[4] != "2000000" {
                return Err(format!("the tables do not agree: {sums}"));
            }
        }
        Ok(())
    })
}

/// Checks all tables and indexes by pg_amcheck.
fn amcheck(client: &Client) -> Result<(), String> {
    let mut command = client.program("pg_amcheck", LIMIT);
    let output = command.args(["--install-missing", "--heapallindexed"]).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stdout).into_owned()) }
}

/// Stops the server, verifies the checksums of all pages, and returns how many reads usring
/// completed.
fn stop(cluster: &Cluster, server: Server) -> Result<Option<u64>, String> {
    let ended = server.stop()?;
    has_not_logged(&ended.stderr, &["PANIC", "ERROR", "was terminated by signal", "io_uring"])?;
    cluster.verify_checksums()?;
    cluster.reads(&ended)
}

fn serves(entry: Entry, direct: bool) {
    with_postgres(|postgres| {
        let stage = Stage::new();
        let cluster = Cluster::new(&stage, postgres, entry, settings(direct))?;
        let server = cluster.start()?;
        let client = server.client();
        if client.ask("SHOW io_method")? != "io_uring" {
            return Err("the server does not use io_uring".into());
        }
        load(&client)?;
        sums_agree(&client)?;
        client.ask("VACUUM")?;
        amcheck(&client)?;
        sums_agree(&client)?;
        let reads = stop(&cluster, server)?;
        // The scans read two million rows four times. That takes far more than this many reads.
        if reads.is_some_and(|reads| reads < 5000) {
            return Err(format!("usring has made only {reads:?} of the server's reads"));
        }
        Ok(())
    });
}

/// Waits until the recorder has seen more commits.
fn commits(recorder: &Recorder, more: usize) -> Result<(), String> {
    let (before, start) = (recorder.count(), std::time::Instant::now());
    while recorder.count() < before + more {
        if start.elapsed() > LIMIT {
            return Err(format!("{} commits in {LIMIT:?}", recorder.count() - before));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns the index of the first process that serves a client.
fn any_backend(children: &[String]) -> Option<usize> {
    children.iter().position(|name| name.starts_with("postgres: postgres postgres "))
}

fn survives_crashes(entry: Entry) {
    with_postgres(|postgres| {
        let stage = Stage::new();
        let cluster = Cluster::new(&stage, postgres, entry, settings(true))?;
        let mut server = cluster.start()?;
        let client = server.client();
        Recorder::make_table(&client)?;
        client.pgbench("-i -s 5 -q", LIMIT)?;
        let mut recorders: Vec<_> = (0..2).map(|number| Recorder::start(&client, number)).collect();
        for _ in 0..3 {
            commits(&recorders[0], COMMITS)?;
            server.kill_child(any_backend)?;
            recorders.iter_mut().try_for_each(Recorder::check)?;
        }
        commits(&recorders[0], COMMITS)?;
        server.kill_postmaster()?;
        let server = cluster.start()?;
        recorders.iter_mut().try_for_each(Recorder::check)?;
        commits(&recorders[0], COMMITS)?;
        for recorder in recorders {
            recorder.finish()?;
        }
        amcheck(&client)?;
        stop(&cluster, server).map(drop)
    });
}

#[test]
fn postgres_reads_its_files_through_the_page_cache() {
    serves(Entry::Launcher, false);
}

#[test]
fn postgres_reads_its_files_with_o_direct() {
    serves(Entry::Launcher, true);
}

#[test]
fn postgres_is_served_by_the_environment_alone() {
    serves(Entry::Preload, true);
}

#[test]
fn postgres_loses_no_committed_row_when_processes_are_killed() {
    survives_crashes(Entry::Launcher);
}
