//! `usring bench compare`: two results of `--json` side by side. Rows are paired by their system
//! and parameters. [`paired::unpaired_interval`] decides whether two rows differ by more than the
//! rounds of one row vary.

use super::document::{self, list, text};
use super::metric::Metric;
use super::paired;
use crate::system_error::words;
use crate::{Failure, Outcome, table};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Least number of rounds in both of two rows that are compared. If one of them has fewer, the
/// comparison makes no statement about their difference.
const LEAST_ROUNDS: usize = 5;

const EXAMPLES: &str = "\
Examples:
  usring bench nop --json before.json
  usring bench nop --json after.json
  usring bench compare before.json after.json

`better` or `worse` says how the second result differs from the first: the 95 % confidence interval
of the ratio of the medians lies on one side of 1. `no difference` means that the interval contains
1. The command says nothing about results with fewer than five rounds.

Exit status: 0 if the results were compared, 125 if they cannot be.";

/// Compare two results of one benchmark that --json has written..
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The first result, with which the second is compared.
    #[arg(value_name = "A.json")]
    first: PathBuf,

    /// The second result.
    #[arg(value_name = "B.json")]
    second: PathBuf,
}

/// Runs the subcommand.
pub fn run(options: &Options) -> Outcome {
    let [first, second] = [&options.first, &options.second].map(|path| read(path).map_err(Failure::new));
    crate::print(format_args!("{}", compare(&first?, &second?).map_err(Failure::new)?));
    Ok(0)
}

/// Reads a result. The error is a sentence for the user.
fn read(path: &Path) -> Result<Value, String> {
    let shown = path.display();
    let content =
        std::fs::read(path).map_err(|error| format!("cannot read {shown} ({error})", error = words(&error)))?;
    let document = serde_json::from_slice::<Value>(&content).unwrap_or_default();
    if document::parts(&document).is_empty() {
        return Err(format!("{shown} is no result of a benchmark; `usring bench NAME --json {shown}` writes one"));
    }
    Ok(document)
}

/// Returns the comparison as text. The error is a sentence for the user.
fn compare(first: &Value, second: &Value) -> Result<String, String> {
    let machine =
        |document: &Value| (document["machine"]["processor"].clone(), document["machine"]["processors"].clone());
    let of = |document: &Value| text(&document["bench"]).to_owned();
    if machine(first) != machine(second) {
        let names = [first, second].map(document::machine_name);
        return Err(format!(
            "the results are of different machines, so their figures cannot be compared: {}; and {}",
            names[0], names[1]
        ));
    }
    if of(first) != of(second) {
        return Err(format!(
            "the results are of different benchmarks: {} and {}; compare two results of one benchmark",
            of(first),
            of(second)
        ));
    }
    let mut shown = format!("usring bench compare: A and B are results of {}\n", of(first));
    for (name, document) in [("A", first), ("B", second)] {
        let _ = writeln!(shown, "{name}: {}", document::machine_name(document));
    }
    for (a, b) in pairs(first, second) {
        match (a, b) {
            (Some(a), Some(b)) => results(&mut shown, a, b),
            (Some(only), None) => drop(writeln!(shown, "\n{} is only in A", of(only))),
            (None, Some(only)) => drop(writeln!(shown, "\n{} is only in B", of(only))),
            (None, None) => {}
        }
    }
    Ok(shown)
}

/// Returns a pair for each benchmark: its result in `first`, and its result in `second`. A document
/// without a result of the benchmark contributes `None`.
fn pairs<'a>(first: &'a Value, second: &'a Value) -> Vec<(Option<&'a Value>, Option<&'a Value>)> {
    let [these, those] = [document::parts(first), document::parts(second)];
    let like = |all: &[&'a Value], one: &Value| all.iter().copied().find(|other| other["bench"] == one["bench"]);
    let mut pairs: Vec<_> = these.iter().map(|a| (Some(*a), like(&those, a))).collect();
    pairs.extend(those.iter().filter(|b| like(&these, b).is_none()).map(|b| (None, Some(*b))));
    pairs
}

/// Adds the tables of one benchmark: one for each metric.
fn results(shown: &mut String, a: &Value, b: &Value) {
    let metrics = document::metrics(a);
    let mut is_floor_different = false;
    for metric in metrics.iter().copied() {
        let _ = writeln!(shown, "\n{}: {}", text(&a["bench"]), metric.name());
        let head = ["workload", "block", "depth", "system", "A", "B", "B / A", "B is"];
        let mut table = table::Table::new(head, 4).within_columns();
        for row in list(&a["rows"]) {
            let cells = cells(metric, row, same(b, row));
            is_floor_different |= text(&row["system"]) == "floor" && ["better", "worse"].contains(&&*cells[7]);
            table.add(cells);
        }
        let new = list(&b["rows"]).iter().filter(|row| same(a, row).is_none());
        new.for_each(|row| table.add(of_second_only(metric, row)));
        let _ = write!(shown, "{table}");
    }
    for (is_so, note) in [
        (a["quick"] == true || b["quick"] == true, "A result of --quick is too rough for a statement."),
        (a["priority"] != b["priority"], "The results were measured at different priorities."),
        (is_floor_different, "The machine's own costs differ (system `floor`), so other rows may differ, too."),
    ] {
        if is_so {
            let _ = writeln!(shown, "{note}");
        }
    }
}

/// Returns the row of `result` that has the system and the parameters of `row`.
fn same<'a>(result: &'a Value, row: &Value) -> Option<&'a Value> {
    list(&result["rows"])
        .iter()
        .find(|other| other["system"] == row["system"] && other["parameters"] == row["parameters"])
}

fn names(row: &Value) -> Vec<String> {
    let parameter = |name| document::parameter(row, name);
    vec![parameter("workload"), parameter("block size"), parameter("queue depth"), text(&row["system"]).into()]
}

fn shown(metric: Metric, row: &Value) -> String {
    row["medians"][metric.name()].as_f64().map_or("none".into(), |median| metric.show(median))
}

fn of_second_only(metric: Metric, row: &Value) -> Vec<String> {
    let mut cells = names(row);
    cells.extend(["none".into(), shown(metric, row), String::new(), String::new()]);
    cells
}

fn cells(metric: Metric, a: &Value, b: Option<&Value>) -> Vec<String> {
    let mut cells = names(a);
    cells.push(shown(metric, a));
    cells.push(b.map_or("none".into(), |b| shown(metric, b)));
    let median = |row: &Value| row["medians"][metric.name()].as_f64();
    let both = median(a).zip(b.and_then(median)).filter(|(a, _)| *a != 0.0);
    cells.push(both.map_or(String::new(), |(a, b)| format!("{:.2} ×", b / a)));
    cells.push(b.and_then(|b| statement(metric, a, b)).unwrap_or_default().to_owned());
    cells
}

/// Returns whether row `b` is better or worse than row `a`, or not different. `None` if the rows
/// have too few rounds.
fn statement(metric: Metric, a: &Value, b: &Value) -> Option<&'static str> {
    let [these, those] = [b, a].map(|row| document::rounds(row, metric));
    if these.len().min(those.len()) < LEAST_ROUNDS {
        return None;
    }
    let [low, high] = paired::unpaired_interval(&these, &those)?;
    Some(match (low > 1.0, high < 1.0) {
        (false, false) => "no difference",
        (is_more, _) if is_more == metric.less_is_better() => "worse",
        _ => "better",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &[u8] = include_bytes!("fixtures/before.json");
    const AFTER: &[u8] = include_bytes!("fixtures/after.json");

    fn fixtures() -> [Value; 2] {
        [BEFORE, AFTER].map(|text| serde_json::from_slice(text).unwrap())
    }

    /// Returns the line whose columns begin with this text.
    fn line<'a>(text: &'a str, beginning: &str) -> &'a str {
        text.lines().find(|line| line.starts_with(beginning)).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn rows_are_paired_and_judged_by_the_spread_of_their_rounds() {
        let [before, after] = fixtures();
        let text = compare(&before, &after).unwrap();
        assert!(line(&text, "one by one").ends_with("100.0 ns   80.0 ns  0.80 ×         better"), "{text}");
        assert!(line(&text, "in batches").ends_with("20.0 ns   25.0 ns  1.25 ×          worse"), "{text}");
        assert!(line(&text, "reads").ends_with("300.0 ns  301.0 ns  1.00 ×  no difference"), "{text}");
        assert!(line(&text, "bare").ends_with("80.0 ns   80.0 ns  1.00 ×  no difference"), "{text}");
        // Three rounds are too few for a statement.
        assert!(line(&text, "few rounds").ends_with("10.0 ns   99.0 ns  9.90 ×"), "{text}");
        assert!(line(&text, "gone").ends_with("70.0 ns      none"), "{text}");
        assert!(line(&text, "new").ends_with("none   71.0 ns"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn a_changed_cost_of_the_machine_is_noted() {
        let [before, mut after] = fixtures();
        after["rows"][0]["rounds"]["time per operation"] = serde_json::json!([90, 91, 92, 93, 94]);
        assert!(compare(&before, &after).unwrap().contains("The machine's own costs differ"));
        assert!(!compare(&before, &before).unwrap().contains("The machine's own costs differ"));
    }

    #[test]
    fn results_that_cannot_be_compared_say_why() {
        let [before, after] = fixtures();
        let with = |member: &str, value: &str| {
            let mut other = after.clone();
            *other.pointer_mut(member).unwrap() = value.into();
            compare(&before, &other).unwrap_err()
        };
        let error = with("/bench", "file");
        assert!(error.contains("different benchmarks: nop and file"), "{error}");
        let error = with("/machine/processor", "another");
        assert!(error.contains("different machines") && error.contains("2 × another, Linux 6.18"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        for content in ["", "{}", "no JSON", "[1]", r#"{"bench": "nop"}"#] {
            let path = folder.path().join("file.json");
            std::fs::write(&path, content).unwrap();
            let error = read(&path).unwrap_err();
            assert!(error.contains("is no result of a benchmark; `usring bench NAME --json"), "{error}");
        }
        assert!(read(Path::new("/no/such/file")).unwrap_err().contains("ENOENT"));
    }

    #[test]
    fn results_of_all_benchmarks_are_compared_one_by_one() {
        let [before, after] = fixtures();
        let mut other = before.clone();
        other["bench"] = "call".into();
        let first = document::of_all(&[before, other.clone()], &[], &[]);
        let second = document::of_all(&[after], &[], &[]);
        let text = compare(&first, &second).unwrap();
        assert!(text.contains("nop: time per operation") && text.contains("call is only in A"), "{text}");
    }
}
