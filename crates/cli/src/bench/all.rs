//! `usring bench all`: runs every benchmark that can run here. A benchmark that fails does not stop
//! the others.

use super::child;
use super::document;
use super::frame;
use super::{Benchmark, Name, Options, STATUS_BAR};
use crate::{Outcome, STATUS_FAILED};
use clap::ValueEnum;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The results that a run of all benchmarks has produced so far.
#[derive(Default)]
struct Run {
    results: Vec<Value>,
    /// Benchmarks that cannot run here, and those that failed, with the reasons.
    not_run: Vec<(String, String)>,
    failed: Vec<(String, String)>,
    bar_fails: bool,
}

/// Runs the benchmarks. After each, writes the files that the options name, so that an interrupt
/// loses only one benchmark.
pub fn run(options: &Options) -> Outcome {
    super::check_outputs(options)?;
    let names: Vec<Name> = Name::value_variants().iter().copied().filter(|name| *name != Name::All).collect();
    let (start, mut run) = (Instant::now(), Run::default());
    for (index, name) in names.iter().enumerate() {
        let known = name.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        let (minutes, seconds) = (start.elapsed().as_secs() / 60, start.elapsed().as_secs() % 60);
        eprintln!("usring bench: {known}, {} of {}, {minutes}:{seconds:02} so far", index + 1, names.len());
        match name.benchmark(options.postgres.as_deref()).and_then(can_run) {
            Ok(benchmark) => run.measure(&benchmark, options.quick),
            Err(why) => run.not_run.push((known, why)),
        }
        super::write(options, &run.document())?;
    }
    for (list, words) in [(&run.not_run, "did not run"), (&run.failed, "FAILED")] {
        list.iter().for_each(|(name, why)| eprintln!("usring bench: {name} {words}: {why}"));
    }
    Ok(run.status())
}

/// Checks that a benchmark can run here, and returns it. Error: a program that measures usring in
/// this benchmark is missing; the error names the program. If a rival's program is missing, the
/// benchmark still runs, without figures for the rival.
fn can_run(benchmark: Benchmark) -> Result<Benchmark, String> {
    let folder = child::ourselves()?.parent().map(PathBuf::from).unwrap_or_default();
    for case in benchmark.cases.iter().filter(|case| frame::is_ours(case)) {
        frame::beside_us(Path::new(&folder), case.program)?;
    }
    Ok(benchmark)
}

impl Run {
    fn measure(&mut self, benchmark: &Benchmark, is_quick: bool) {
        let name = benchmark.name.to_owned();
        match super::measure(benchmark, is_quick) {
            Ok((document, status)) => {
                if let Some(why) = without_figures(&document) {
                    self.not_run.push((name, why));
                } else {
                    self.results.push(document);
                    self.bar_fails |= status == STATUS_BAR;
                }
            }
            Err(why) => {
                eprintln!("usring bench: {name} failed: {why}");
                self.failed.push((name, why));
            }
        }
    }

    fn document(&self) -> Value {
        document::of_all(&self.results, &self.not_run, &self.failed)
    }

    fn status(&self) -> u8 {
        match self {
            Run { failed, results, .. } if !failed.is_empty() || results.is_empty() => STATUS_FAILED,
            Run { bar_fails: true, .. } => STATUS_BAR,
            Run { .. } => 0,
        }
    }
}

/// Returns why no row of a benchmark's result has figures. `None` if at least one row has figures.
fn without_figures(document: &Value) -> Option<String> {
    let rows = document::list(&document["rows"]);
    let is_missing = |row: &Value| row.get("missing").is_some();
    let first = rows.first().filter(|_| rows.iter().all(is_missing))?;
    Some(document::text(&first["missing"]).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_failed_benchmark_outweighs_a_bar_and_a_bar_outweighs_success() {
        let pair = || vec![("nop".to_owned(), "why".to_owned())];
        let mut run = Run { results: vec![json!({})], not_run: pair(), ..Run::default() };
        assert_eq!(run.status(), 0);
        run.bar_fails = true;
        assert_eq!(run.status(), STATUS_BAR);
        run.failed = pair();
        assert_eq!(run.status(), STATUS_FAILED);
        assert_eq!(Run { not_run: pair(), ..Run::default() }.status(), STATUS_FAILED);
        assert_eq!(run.document()["failed"][0]["why"], "why");
    }

    #[test]
    fn a_result_without_a_single_figure_says_why() {
        let rows = |rows: Value| json!({ "rows": rows });
        let none = rows(json!([{ "missing": "no daemon" }, { "missing": "no ring" }]));
        assert_eq!(without_figures(&none).as_deref(), Some("no daemon"));
        assert_eq!(without_figures(&rows(json!([{ "missing": "no ring" }, {}]))), None);
    }
}
