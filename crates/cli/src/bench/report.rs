//! Shows a benchmark's result: a table for people, and JSON for programs.

use super::Benchmark;
use super::frame::{Bar, Case, Results, Row};
use super::paired::Figure;
use crate::{style, table};
use serde_json::{Map, Value, json};
use std::fmt;

/// The printed table.
pub struct Table<'a> {
    pub benchmark: &'a Benchmark,
    pub results: &'a Results,
    pub bars: &'a [Bar],
    pub is_quick: bool,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, priority) = (self.benchmark.name, self.results.priority);
        writeln!(f, "usring bench {name}: medians on {}, {priority}", machine_name())?;
        writeln!(f)?;
        let mut table = table::Table::new(self.head(), 4);
        self.results.rows.iter().for_each(|row| table.add(self.cells(row)));
        writeln!(f, "{table}")?;
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
    fn head(&self) -> Vec<String> {
        let mut head: Vec<String> = ["workload", "block", "depth", "system"].map(String::from).into();
        for metric in self.results.metrics {
            head.push(metric.name().into());
            if head.len() == 5 {
                head.extend(["quartiles".into(), format!("against {}", self.benchmark.rival)]);
            }
        }
        head
    }

    fn cells(&self, row: &Row) -> Vec<String> {
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
        for metric in self.results.metrics {
            let Some(Figure { median, quartiles: [low, high] }) = row.figure(*metric) else {
                cells.push(String::new());
                continue;
            };
            cells.push(metric.show(median));
            if cells.len() == 5 {
                // A single round has no quartiles.
                let is_single = row.samples.as_ref().is_ok_and(|samples| samples.len() == 1);
                cells.push(if is_single {
                    String::new()
                } else {
                    format!("{} – {}", metric.show(low), metric.show(high))
                });
                cells.push(self.against_rival(row).unwrap_or_default());
            }
        }
        cells
    }

    /// Returns how this row's first metric compares with that of the rival's row with the same
    /// parameters, round by round. `None` if there is no such row, or if this row is the rival's.
    fn against_rival(&self, row: &Row) -> Option<String> {
        let (metric, rival) = (self.results.metrics[0], self.benchmark.rival);
        let same = |other: &Case| other.workload == row.case.workload && other.parameters == row.case.parameters;
        let rival = self.results.rows.iter().find(|other| other.case.label == rival && same(&other.case))?;
        if rival.case.label == row.case.label {
            return None;
        }
        Some(format!("{:.2} ×", row.against(rival, metric)?.median))
    }
}

/// Returns the result as JSON; each row has a figure per metric.
pub fn json(benchmark: &Benchmark, results: &Results, bars: &[Bar]) -> String {
    let bar = |bar: &Bar| {
        json!({
            "name": bar.name, "value": bar.value, "interval": bar.interval, "target": bar.target, "unit": bar.unit,
            "comparison": bar.comparison.words(), "holds": bar.holds,
        })
    };
    let unit = |metric: &super::metric::Metric| (metric.name().to_owned(), json!(metric.unit()));
    let value = json!({
        "bench": benchmark.name,
        "machine": machine(),
        "priority": results.priority,
        "units": results.metrics.iter().map(unit).collect::<Map<_, _>>(),
        "rows": results.rows.iter().map(|row| row_value(results, row)).collect::<Vec<_>>(),
        "bars": bars.iter().map(bar).collect::<Vec<_>>(),
    });
    format!("{value:#}\n")
}

fn row_value(results: &Results, row: &Row) -> Value {
    let Case { workload, label, parameters, .. } = &row.case;
    let mut all = Map::from_iter([("workload".into(), json!(workload))]);
    all.extend(parameters.iter().map(|(name, value)| ((*name).into(), json!(value))));
    let (mut medians, mut quartiles) = (Map::new(), Map::new());
    for metric in results.metrics {
        if let Some(figure) = row.figure(*metric) {
            medians.insert(metric.name().into(), json!(figure.median));
            quartiles.insert(metric.name().into(), json!(figure.quartiles));
        }
    }
    let mut value = json!({ "system": label, "parameters": all, "medians": medians, "quartiles": quartiles });
    if let Err(why) = &row.samples {
        value["missing"] = json!(why);
    }
    value
}

fn machine() -> Value {
    json!({
        "kernel": read("/proc/sys/kernel/osrelease"),
        "processor": processor(),
        "processors": processors(),
    })
}

fn machine_name() -> String {
    format!("{} × {}, Linux {}", processors(), processor(), read("/proc/sys/kernel/osrelease"))
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn processor() -> String {
    let all = read("/proc/cpuinfo");
    let named = all.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    named.map_or("an unknown processor".into(), |(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::nop;
    use super::*;

    fn results() -> (Benchmark, Results) {
        let benchmark = nop::benchmark();
        let sample = |time: u64| serde_json::from_value(json!({ "operations": 10, "nanoseconds": time })).unwrap();
        let samples = || [480, 500, 530].map(sample).to_vec();
        let row = |case: &Case| Row { case: case.clone(), samples: Ok(samples()) };
        let rows = benchmark.cases.iter().map(row).collect();
        let metrics = benchmark.metrics;
        (benchmark, Results { metrics, rows, priority: "ordinary priority" })
    }

    #[test]
    fn the_json_report_has_the_fields_that_readers_rely_on() {
        let (benchmark, results) = results();
        let bars = (benchmark.bars)(&results);
        let value: Value = serde_json::from_str(&json(&benchmark, &results, &bars)).unwrap();
        assert_eq!(value["bench"], "nop");
        assert_eq!(value["units"]["time per operation"], "ns");
        assert_eq!(value["rows"][2]["system"], "kernel");
        assert_eq!(value["rows"][2]["parameters"]["queue depth"], 1);
        assert_eq!(value["rows"][2]["medians"]["time per operation"], 50.0);
        assert_eq!(value["rows"][2]["quartiles"]["time per operation"][1], 51.5);
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
        let bars = (benchmark.bars)(&results);
        assert_eq!(bars[2].holds, None);
        let table = Table { benchmark: &benchmark, results: &results, bars: &bars, is_quick: false }.to_string();
        assert!(table.contains("bar not measured here: page-cache reads"), "{table}");
        assert!(table.contains("no ring: Operation not permitted"), "{table}");
    }
}
