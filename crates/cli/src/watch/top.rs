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
use std::io::{IsTerminal, stdin};
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

/// Show the requests per second of the processes that usring serves, like top(1).
///
/// The first table has a row for each process, the second one for each opcode. The columns INLINE,
/// POLLED and WORKER are shares of the requests: those that finished at once, waited for their
/// file, or were carried out by a worker. usring counts the requests of programs that were started
/// by `usring run --stats` or with the variable USRING_STATS.
///
/// On a terminal, each interval's tables replace the last ones. Otherwise they follow each other.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Process id: show only this process.
    pid: Option<u32>,

    /// Seconds between two displays, 0.1 to 3600.
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,

    /// Print the tables of one interval, and end.
    #[arg(long)]
    once: bool,

    /// Print one JSON object per interval, each on one line.
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
    let first = sample(&mut files, options)?;
    let Some(screen) = Screen::of_output().filter(|_| !options.once && !options.json) else {
        return print(options, &mut files, first);
    };
    let of_signals = screen.clone();
    // Starts to handle signals before this process takes over the terminal. If a signal ended the
    // process in between, the terminal would stay changed.
    signals::watch(move |signal, _| {
        of_signals.restore();
        std::process::exit(128 + signal as i32);
    });
    screen.take_over();
    let outcome = draw(options, &screen, &mut files, first);
    screen.restore();
    outcome
}

/// Prints the rates after each interval.
fn print(options: &Options, files: &mut Files, first: Sample) -> Outcome {
    let mut before = first;
    loop {
        std::thread::sleep(options.interval);
        let after = sample(files, options)?;
        let rates = Rates::between(&before, &after, options.pid);
        if options.json {
            tell!("{}", object(&rates));
        } else {
            tell!("{}", text(&rates));
        }
        if options.once {
            return Ok(0);
        }
        before = after;
    }
}

/// Draws the processes at once, and the rates after each interval, until the user presses `q` or
/// the terminal is gone. A terminal that is not the controlling one goes away without SIGHUP.
fn draw(options: &Options, screen: &Screen, files: &mut Files, first: Sample) -> Outcome {
    let mut rates = Rates::between(&first, &first, options.pid);
    let mut before = first;
    while screen.show(&text(&rates)).is_ok() && !is_quit_within(options.interval) {
        let after = sample(files, options)?;
        rates = Rates::between(&before, &after, options.pid);
        before = after;
    }
    Ok(0)
}

/// Reads all counters. Fails if no process is there to be shown.
fn sample(files: &mut Files, options: &Options) -> Result<Sample, Failure> {
    let processes = processes::find();
    let found = match options.pid {
        Some(pid) => processes.iter().any(|process| process.id == pid),
        None => !processes.is_empty(),
    };
    if !found {
        let sentence = match options.pid {
            Some(pid) => format!("process {pid} is not served by usring; `usring ps` lists those that are"),
            None => "usring serves no process that you may inspect".into(),
        };
        return Err(Failure::with_status(1, sentence));
    }
    files.update(&processes);
    Ok(Sample { at: Instant::now(), processes, readings: files.read() })
}

/// Maximum number of keys that are read at a time.
const MOST_KEYS: usize = 64;

/// Waits for an interval, or until the user presses `q`. Returns whether the user has pressed it.
fn is_quit_within(interval: Duration) -> bool {
    let end = Instant::now() + interval;
    let mut keys = stdin().is_terminal();
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if !keys {
            std::thread::sleep(left);
            return false;
        }
        let input = stdin();
        let mut set = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        if poll(&mut set, limit).is_ok_and(|ready| ready > 0) {
            let mut pressed = [0; MOST_KEYS];
            // Reads standard input without a buffer in this process, because poll(2) does not see
            // keys that are already in such a buffer.
            match nix::unistd::read(&input, &mut pressed) {
                Ok(count @ 1..) if pressed[..count].iter().any(|key| matches!(key, b'q' | b'Q')) => return true,
                Ok(1..) => {}
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
        let mut cells = vec![process.name.clone(), process.id.to_string(), number(*processor_percent, " %")];
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

/// Returns a whole number with its unit, or `-` for no number.
fn number(number: Option<f64>, unit: &str) -> String {
    number.map_or("-".to_owned(), |number| format!("{number:.0}{unit}"))
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
    let rate = |column: Column| number(rates.per_second(row[column as usize]), "");
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
