//! Prints a benchmark's result as tables of at most 80 columns. [`super::document`] has the JSON.

use super::Benchmark;
use super::document;
use super::frame::{Bar, Results, Row};
use super::metric::Metric;
use super::paired::Figure;
use crate::{style, table};
use serde_json::Value;
use std::fmt;

/// Columns of metrics in each further table.
const MORE: usize = 3;

/// The printed table.
pub struct Table<'a> {
    pub benchmark: &'a Benchmark,
    pub results: &'a Results,
    pub bars: &'a [Bar],
    pub document: &'a Value,
    pub is_quick: bool,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, priority) = (self.benchmark.name, self.results.priority);
        writeln!(f, "usring bench {name}: medians on {}, {priority}", document::machine_name(self.document))?;
        writeln!(f)?;
        // The first metric has a table of its own, because one table of all metrics would be wider
        // than a terminal.
        let (first, more) = self.results.metrics.split_at(1);
        for metrics in std::iter::once(first).chain(more.chunks(MORE)) {
            let mut table = table::Table::new(self.head(metrics), 4).within_columns();
            let rows = self.results.rows.iter().filter(|row| metrics == first || row.samples.is_ok());
            rows.for_each(|row| table.add(self.cells(row, metrics)));
            writeln!(f, "{table}")?;
        }
        if self.is_quick {
            writeln!(f, "too rough to be quoted: --quick measures a few short rounds, and no bar counts")?;
        }
        self.bars.iter().try_for_each(|bar| writeln!(f, "{bar}"))
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.holds {
            Some(true) => style::verdict(true, "holds:"),
            Some(false) => style::verdict(false, "DOES NOT HOLD:"),
            None => "not measured here:".into(),
        };
        write!(f, "bar {verdict} {}, {} {} {}", self.name, self.comparison.words(), self.target, self.unit)?;
        match self.value {
            Some(value) => write!(f, ", is {value:.2}")?,
            None => return Ok(()),
        }
        match self.interval {
            Some([low, high]) => write!(f, " ({low:.2} – {high:.2})"),
            None => Ok(()),
        }
    }
}

impl Table<'_> {
    fn is_first(&self, metric: Metric) -> bool {
        self.results.metrics.first() == Some(&metric)
    }

    fn head(&self, metrics: &[Metric]) -> Vec<String> {
        let mut head: Vec<String> = ["workload", "block", "depth", "system"].map(String::from).into();
        for metric in metrics {
            head.push(metric.name().into());
            if self.is_first(*metric) {
                head.extend(["quartiles".into(), format!("against {}", self.benchmark.rival)]);
            }
        }
        head
    }

    fn cells(&self, row: &Row, metrics: &[Metric]) -> Vec<String> {
        let parameter = |name: &str| {
            let found = row.case.parameters.iter().find(|(known, _)| *known == name);
            found.map_or(String::new(), |(_, value)| value.to_string())
        };
        let (block, depth) = (parameter("block size"), parameter("queue depth"));
        let mut cells = vec![row.case.workload.clone(), block, depth, row.case.label.into()];
        if let Err(why) = &row.samples {
            cells.extend(["none".into(), why.clone()]);
            return cells;
        }
        for metric in metrics {
            let Some(Figure { median, quartiles }) = row.figure(*metric) else {
                cells.push(String::new());
                continue;
            };
            cells.push(metric.show(median));
            if self.is_first(*metric) {
                // A single round has no quartiles.
                let is_single = row.samples.as_ref().is_ok_and(|samples| samples.len() == 1);
                cells.push(if is_single { String::new() } else { metric.quartiles(median, quartiles) });
                let ratio = self.results.against(row, self.benchmark.rival);
                cells.push(ratio.map_or(String::new(), |ratio| format!("{:.2} ×", ratio.median)));
            }
        }
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Case;
    use super::super::nop;
    use super::*;
    use serde_json::json;

    fn results() -> (Benchmark, Results) {
        let benchmark = nop::benchmark();
        let sample = |time: u64| serde_json::from_value(json!({ "operations": 10, "nanoseconds": time })).unwrap();
        let samples = || [480, 500, 530].map(sample).to_vec();
        let row = |case: &Case| Row { case: case.clone(), samples: Ok(samples()) };
        let rows = benchmark.cases.iter().map(row).collect();
        let metrics = benchmark.metrics;
        (benchmark, Results { metrics, rows, priority: "ordinary priority" })
    }

    fn shown(benchmark: &Benchmark, results: &Results) -> String {
        let bars = (benchmark.bars)(results);
        let document = document::of(benchmark, results, &bars, false);
        Table { benchmark, results, bars: &bars, document: &document, is_quick: false }.to_string()
    }

    #[test]
    fn the_json_report_has_the_fields_that_readers_rely_on() {
        let (benchmark, results) = results();
        let bars = (benchmark.bars)(&results);
        let value: Value = serde_json::from_str(&document::of(&benchmark, &results, &bars, false).to_string()).unwrap();
        assert_eq!(value["bench"], "nop");
        assert_eq!(value["units"]["time per operation"], "ns");
        assert_eq!(value["rows"][2]["system"], "kernel");
        assert_eq!(value["rows"][2]["parameters"]["queue depth"], 1);
        assert_eq!(value["rows"][2]["medians"]["time per operation"], 50.0);
        assert_eq!(value["rows"][2]["quartiles"]["time per operation"][1], 51.5);
        assert_eq!(value["rows"][2]["rounds"]["time per operation"], json!([48.0, 50.0, 53.0]));
        assert_eq!(value["rows"][3]["against_rival"]["median"], 1.0);
        assert!(value["rows"][2].get("against_rival").is_none(), "{value:#}");
        assert_eq!(value["bars"][0]["holds"], true);
        assert_eq!(value["bars"][1]["holds"], false);
        assert_eq!(value["bars"][1]["target"], 25.0);
    }

    #[test]
    fn a_missing_rival_leaves_its_bar_undecided() {
        let (benchmark, mut results) = results();
        for row in results.rows.iter_mut().filter(|row| row.case.label == nop::KERNEL) {
            row.samples = Err("no ring: Operation not permitted".into());
        }
        assert_eq!((benchmark.bars)(&results)[2].holds, None);
        let text = shown(&benchmark, &results);
        assert!(text.contains("bar not measured here: page-cache reads"), "{text}");
        assert!(text.contains("no ring:"), "{text}");
    }

    #[test]
    fn every_table_fits_80_columns() {
        for benchmark in [nop::benchmark(), super::super::task_work::benchmark(), super::super::echo::benchmark()] {
            let sample = json!({
                "operations": 10, "nanoseconds": 123_456, "processor": 123_456, "p50": 12_345_678, "p95": 23_456_789,
                "p99": 34_567_890, "within": [0.5, 0.75, 1.0], "wakes": 3, "completions": 12,
            });
            let samples = || vec![serde_json::from_value(sample.clone()).unwrap(); 3];
            let row = |case: &Case| Row { case: case.clone(), samples: Ok(samples()) };
            let rows = benchmark.cases.iter().map(row).collect();
            let results = Results { metrics: benchmark.metrics, rows, priority: "at ordinary priority" };
            let text = shown(&benchmark, &results);
            // The head and the bars are sentences, not tables.
            let table = text.lines().skip(1).filter(|line| !line.starts_with("bar "));
            table.for_each(|line| assert!(line.chars().count() <= 80, "{line}\n{text}"));
        }
    }
}
