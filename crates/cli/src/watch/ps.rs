//! `usring ps`: lists the processes that usring serves.

use super::counts::{Files, Reading};
use super::processes::{self, Process, ancestors};
use crate::Outcome;
use crate::table::Table;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use usring_engine::statistics::Column;

const EXAMPLES: &str = "\
Examples:
  usring ps
  usring ps --json | jq '.[].pid'

Exit status: 0 if a process is served, 1 if none is.";

/// List the processes that usring serves.
///
/// Shows each process into which `usring run` or LD_PRELOAD has loaded libusring.so. The columns
/// RINGS and REQUESTS have numbers for programs that were started by `usring run --stats` or with
/// the variable USRING_STATS. RUN is the process id of `usring run`, if it stays as a parent of the
/// process. Without privileges you see your own processes only.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Print a JSON array with an object for each process.
    #[arg(long)]
    json: bool,
}

/// A row of the list.
struct Row {
    process: Process,
    /// Process id of the process's nearest ancestor that is a `usring run`. `None`: no ancestor is
    /// one.
    launcher: Option<u32>,
    /// Number of open rings, and of the requests submitted to them. `None`: not counted.
    counts: Option<(usize, u64)>,
}

/// Runs the subcommand.
pub fn run(options: &Options) -> Outcome {
    let processes = processes::find();
    let mut files = Files::default();
    files.update(&processes);
    let readings = files.read();
    let rows: Vec<Row> = processes.into_iter().map(|process| row(process, &readings)).collect();
    if options.json {
        tell!("{:#}", Value::from_iter(rows.iter().map(object)));
    } else if rows.is_empty() {
        tell!("usring serves no process that you may inspect");
    } else {
        show(&rows);
    }
    Ok(rows.is_empty().into())
}

fn row(process: Process, readings: &BTreeMap<String, Reading>) -> Row {
    let reading = process.statistics.as_ref().and_then(|mapping| readings.get(&mapping.file));
    let counts = reading.map(|reading| {
        let mine = reading.rings.iter().filter(|ring| ring.process == u64::from(process.inner_id));
        mine.fold((0, 0u64), |(rings, sum), ring| {
            let submitted = ring.rows.iter().map(|row| row[Column::Submitted as usize]);
            (rings + 1, submitted.fold(sum, u64::saturating_add))
        })
    });
    let launcher = ancestors(process.id).find(|ancestor| is_launcher(*ancestor));
    Row { process, launcher, counts }
}

/// Returns whether the process is a `usring run` that is not served itself.
fn is_launcher(id: u32) -> bool {
    let text = |name: &str| std::fs::read(format!("/proc/{id}/{name}")).unwrap_or_default();
    text("comm").trim_ascii_end() == b"usring" && has_run(&text("cmdline")) && processes::read(id).is_none()
}

/// Returns whether the first argument in the text of /proc/PID/cmdline is `run`. Only this
/// subcommand of usring stays as the parent of a served program.
fn has_run(cmdline: &[u8]) -> bool {
    cmdline.split(|byte| *byte == 0).nth(1) == Some(b"run")
}

fn show(rows: &[Row]) {
    let mut table = Table::new(["PROGRAM", "PID", "RUN", "CPU TIME", "RINGS", "REQUESTS"], 1);
    let text = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    for Row { process, launcher, counts } in rows {
        table.add([
            process.name.clone(),
            process.id.to_string(),
            text(launcher.map(Into::into)),
            clock(process.processor_time()),
            text(counts.map(|(rings, _)| rings as u64)),
            text(counts.map(|(_, requests)| requests)),
        ]);
    }
    crate::print(format_args!("{table}"));
    if rows.iter().any(|row| row.counts.is_none()) {
        tell!("-  not counted: start the program by `usring run --stats`, or set USRING_STATS");
    }
}

/// Returns a time as top(1) shows it: minutes, seconds and hundredths.
fn clock(time: Duration) -> String {
    format!("{}:{:02}.{:02}", time.as_secs() / 60, time.as_secs() % 60, time.subsec_millis() / 10)
}

fn object(row: &Row) -> Value {
    let Row { process, launcher, counts } = row;
    json!({
        "pid": process.id,
        "program": process.name,
        "library": process.library,
        "run": launcher,
        "cpu_seconds": process.processor_time().as_secs_f64(),
        "rings": counts.map(|(rings, _)| rings),
        "requests": counts.map(|(_, requests)| requests),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_is_a_usring_with_the_argument_run() {
        assert!(has_run(b"/usr/bin/usring\0run\0--stats\0fio\0"));
        for other in [&b"usring\0bench\0run\0"[..], b"usring\0runs\0", b"usring\0", b""] {
            assert!(!has_run(other), "{other:?}");
        }
    }

    #[test]
    fn processor_times_have_minutes_and_hundredths() {
        assert_eq!(clock(Duration::from_millis(61_250)), "1:01.25");
    }
}
