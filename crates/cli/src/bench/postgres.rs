//! `usring bench postgres`: PostgreSQL 18 with each `io_method` that it has. With
//! `io_method=io_uring` it runs on the kernel's rings and on usring's.
//!
//! - *scan* and *scan, O_DIRECT*: one client scans a table four times as large as the server's
//!   buffers. An operation is a page of 8 KiB.
//! - *pgbench -S*: 8 clients look up single rows. An operation is a transaction.
//!
//! The processor time counts all processes of the server, and none of the clients.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;
use std::path::Path;

const DESCRIPTION: &str = "\
    PostgreSQL 18 with each io_method. One client scans a table four times as large as the \
    server's buffers, and 8 clients look up single rows. Processor time is that of all \
    processes of the server.";

const KERNEL: &str = "io_uring, kernel";
const USRING: &str = "io_uring, usring";
const WORKER: &str = "worker";
const SYNC: &str = "sync";

const SCAN: &str = "scan";
const DIRECT_SCAN: &str = "scan, O_DIRECT";
const SELECT: &str = "pgbench -S";

/// Makes the benchmark for the installation whose programs are in this folder. The error is a
/// sentence for the user.
pub fn benchmark(programs: Option<&Path>) -> Result<Benchmark, String> {
    let programs = programs.ok_or("name the folder of the programs of PostgreSQL 18 by --postgres")?;
    let programs = programs.to_str().filter(|path| !path.contains(char::is_whitespace));
    let programs = programs.ok_or("the path of --postgres must not contain spaces")?;
    if !Path::new(programs).join("postgres").is_file() {
        return Err(format!("{programs} has no program `postgres`"));
    }
    let works = [SCAN, DIRECT_SCAN, SELECT];
    let cases =
        works.into_iter().flat_map(|work| [KERNEL, USRING, WORKER, SYNC].map(|label| case(work, label, programs)));
    Ok(Benchmark {
        name: "postgres",
        description: DESCRIPTION,
        metrics: &[Metric::Rate, Metric::ProcessorTime],
        rounds: 7,
        props: &[],
        rival: KERNEL,
        cases: cases.collect(),
        bars,
    })
}

fn case(workload: &str, label: &'static str, programs: &str) -> Case {
    let method = if label == WORKER || label == SYNC { label } else { "io_uring" };
    let work = if workload == SELECT { "select" } else { "scan" };
    let direct = u32::from(workload == DIRECT_SCAN);
    Case {
        workload: workload.into(),
        label,
        system: if label == USRING { System::Usring(&[]) } else { System::Kernel },
        device: None,
        environment: &[],
        program: "workload-postgres",
        arguments: format!(
            "--programs {programs} --folder {{folder}} --work {work} --method {method} --direct {direct}"
        ),
        clients: None,
        parameters: vec![],
    }
}

fn bars(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    for workload in [SCAN, DIRECT_SCAN, SELECT] {
        for (rival, target) in [(KERNEL, 0.95), (WORKER, 1.0)] {
            let ratio = results.ratio(Metric::Rate, workload, [USRING, rival], None);
            bars.push(Bar::times_at_least(format!("{workload}: rate against {rival}"), ratio, target));
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_is_asked_for() {
        assert!(benchmark(None).err().unwrap().contains("--postgres"));
        assert!(benchmark(Some(Path::new("/nowhere"))).err().unwrap().contains("no program"));
        assert!(benchmark(Some(Path::new("/a b"))).err().unwrap().contains("spaces"));
    }
}
