//! `usring top`: shows how many requests the served processes make per second.

use super::counts::Files;
use super::processes;
use super::rates::{ProcessRates, Rates, Sample, percent};
use super::screen::Screen;
use crate::export::key;
use crate::table::Table;
use crate::{Failure, Outcome, signals};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::{IsTerminal, Read, stdin};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use usring_engine::statistics::{COLUMNS, Column};

const EXAMPLES: &str = "\
Examples:
  usring run --stats -- my-server &
  usring top
  usring top 4711 --interval 5
  usring top --once --json > rates.json

Keys: q ends. Exit status: 0, or 1 if no process is served.";

/// Show what the rings of served processes do, like top(1)
///
/// Shows the requests per second of each process that usring serves, and of each opcode. The last
/// columns are shares of the requests: those that finished inline, waited for their file (polled),
/// or were carried out by a worker. Requests are counted in programs that were started by
/// `usring run --stats`, or with the variable USRING_STATS.
/// On a terminal the display is renewed after each interval. A file or a pipe gets one text after
/// the other.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Show only this process.
    pid: Option<u32>,

    /// Seconds between two displays, 0.1 to 3600.
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,

    /// Print the rates of one interval, and end.
    #[arg(long)]
    once: bool,

    /// Print a JSON object per line and interval.
    #[arg(long)]
    json: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected a number of seconds from 0.1 to 3600".into())
}

/// Runs the subcommand.
pub fn run(options: &Options) -> Outcome {
    let mut files = Files::default();
    let mut before = sample(&mut files, options)?;
    let screen = if options.once || options.json { None } else { Screen::take_over() };
    if let Some(screen) = screen.clone() {
        signals::watch(move |signal, _| {
            screen.restore();
            std::process::exit(128 + signal as i32);
        });
    }
    loop {
        if wait(options.interval, screen.is_some()) {
            break;
        }
        let after = match sample(&mut files, options) {
            Ok(after) => after,
            Err(failure) => {
                restore(screen.as_ref());
                return Err(failure);
            }
        };
        let rates = Rates::between(&before, &after, options.pid);
        match &screen {
            Some(screen) => screen.show(&text(&rates)),
            None if options.json => tell!("{}", object(&rates)),
            None => tell!("{}", text(&rates)),
        }
        before = after;
        if options.once {
            break;
        }
    }
    restore(screen.as_ref());
    Ok(0)
}

fn restore(screen: Option<&Screen>) {
    if let Some(screen) = screen {
        screen.restore();
    }
}

/// Reads all counters. Fails if no process is there to be shown.
fn sample(files: &mut Files, options: &Options) -> Result<Sample, Failure> {
    let processes = processes::find();
    let found = match options.pid {
        Some(pid) => processes.iter().any(|process| process.id == pid),
        None => !processes.is_empty(),
    };
    if !found {
        let what = options.pid.map_or("no process that you may look into".into(), |pid| format!("no process {pid}"));
        return Err(Failure::with_status(1, format!("{what} is served by usring; `usring ps` lists those that are")));
    }
    files.update(&processes);
    Ok(Sample { at: Instant::now(), processes, readings: files.read() })
}

/// Waits for an interval. Returns whether the user has pressed `q` meanwhile.
fn wait(interval: Duration, keys: bool) -> bool {
    let end = Instant::now() + interval;
    let mut keys = keys && stdin().is_terminal();
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if !keys {
            std::thread::sleep(left);
            return false;
        }
        let input = stdin();
        let mut set = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        if poll(&mut set, limit).is_ok_and(|ready| ready > 0) {
            let mut key = [0; 1];
            match input.lock().read(&mut key) {
                Ok(1) if matches!(key[0], b'q' | b'Q') => return true,
                Ok(1) => {}
                // The terminal is gone.
                _ => keys = false,
            }
        }
    }
    false
}

fn text(rates: &Rates) -> String {
    let rings: usize = rates.processes.iter().filter_map(|shown| shown.counts).map(|(rings, _)| rings).sum();
    let mut text = format!("usring top: {}, {}\n\n", plural(rates.processes.len(), "process"), plural(rings, "ring"));
    let heads = ["REQ/S", "CQE/S", "ERR/S", "INLINE", "POLLED", "WORKER"];
    let mut table = Table::new(["PROGRAM", "PID", "CPU", "RINGS"].into_iter().chain(heads), 1).without_wrapping();
    for ProcessRates { process, processor_percent, counts } in &rates.processes {
        let mut cells = vec![process.name.clone(), process.id.to_string(), format!("{processor_percent:.0} %")];
        match counts {
            Some((rings, row)) => {
                cells.push(rings.to_string());
                cells.extend(numbers(rates, row));
            }
            None => cells.extend(std::iter::repeat_n("-".to_owned(), 1 + heads.len())),
        }
        table.add(cells);
    }
    let _ = writeln!(text, "{table}");
    if !rates.opcodes.is_empty() {
        let mut table = Table::new(["OPCODE"].into_iter().chain(heads), 1).without_wrapping();
        for (name, row) in &rates.opcodes {
            table.add([(*name).to_owned()].into_iter().chain(numbers(rates, row)));
        }
        let _ = writeln!(text, "{table}");
    }
    if rates.processes.iter().any(|shown| shown.counts.is_none()) {
        text.push_str("-  not counted: start the program by `usring run --stats`, or set USRING_STATS\n");
    }
    text
}

fn plural(number: usize, noun: &str) -> String {
    let ending = match number {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

/// Returns the cells of a row of counts: three rates, and the shares of the requests.
fn numbers(rates: &Rates, row: &[u64; COLUMNS]) -> [String; 6] {
    let rate = |column: Column| format!("{:.0}", rates.per_second(row[column as usize]));
    let share = |column: Column| {
        let percent = percent(row[column as usize], row[Column::Submitted as usize]);
        percent.map_or("-".to_owned(), |percent| format!("{percent} %"))
    };
    [
        rate(Column::Submitted),
        rate(Column::Completed),
        rate(Column::Errors),
        share(Column::Inline),
        share(Column::Polled),
        share(Column::Worker),
    ]
}

fn object(rates: &Rates) -> Value {
    let counts = |row: &[u64; COLUMNS]| -> Map<String, Value> {
        Column::ALL.iter().map(|column| (key(*column).to_owned(), json!(row[*column as usize]))).collect()
    };
    let process = |shown: &ProcessRates| {
        json!({
            "pid": shown.process.id,
            "program": shown.process.name,
            "cpu_percent": shown.processor_percent,
            "rings": shown.counts.map(|(rings, _)| rings),
            "counts": shown.counts.as_ref().map(|(_, row)| counts(row)),
        })
    };
    let opcodes = rates.opcodes.iter().map(|(name, row)| ((*name).to_owned(), Value::Object(counts(row))));
    json!({
        "seconds": rates.time.as_secs_f64(),
        "processes": rates.processes.iter().map(process).collect::<Vec<_>>(),
        "opcodes": opcodes.collect::<Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "0", "nan", "-1", "1s", "1e9"] {
            assert!(parse_interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn plurals_are_formed() {
        let texts = [plural(1, "process"), plural(0, "process"), plural(2, "ring")];
        assert_eq!(texts, ["1 process", "0 processes", "2 rings"]);
    }
}
