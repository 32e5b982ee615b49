//! A benchmark's result: a table for people, JSON for machines.

use super::Benchmark;
use super::frame::{Bar, Case, Figure, Results, Row};
use serde_json::{Map, Value, json};
use std::fmt;

/// The label of the rows that others are compared with.
const RIVAL: &str = "kernel";

/// What is printed.
pub struct Table<'a> {
    pub benchmark: &'a Benchmark,
    pub results: &'a Results,
    pub bars: &'a [Bar],
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "usring bench {}: time per operation on {}", self.benchmark.name, machine_name())?;
        writeln!(f)?;
        let head =
            ["workload", "block", "depth", "system", "median", "quartiles", "time against kernel"].map(String::from);
        let mut lines = vec![head];
        lines.extend(self.results.0.iter().map(|row| cells(row, self.results)));
        let mut widths = [0; 7];
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for line in &lines {
            let padded: Vec<_> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "{}", padded.join("  ").trim_end())?;
        }
        writeln!(f)?;
        self.bars.iter().try_for_each(|bar| writeln!(f, "{bar}"))
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.holds {
            Some(true) => "holds:",
            Some(false) => "DOES NOT HOLD:",
            None => "not measured here:",
        };
        write!(f, "bar {verdict} {}, at most {} {}", self.name, self.target, self.unit)?;
        match self.value {
            Some(value) => write!(f, ", is {value:.2}"),
            None => Ok(()),
        }
    }
}

fn cells(row: &Row, results: &Results) -> [String; 7] {
    let parameter = |name: &str| {
        let found = row.case.parameters.iter().find(|(known, _)| *known == name);
        found.map_or(String::new(), |(_, value)| value.to_string())
    };
    let (median, quartiles) = match &row.figure {
        Ok(Figure { median, quartiles: [low, high] }) => (time(*median), format!("{} – {}", time(*low), time(*high))),
        Err(why) => ("none".into(), why.clone()),
    };
    let ratio = results.ratio(row.case.workload, row.case.label, RIVAL);
    [
        row.case.workload.into(),
        parameter("block size"),
        parameter("queue depth"),
        row.case.label.into(),
        median,
        quartiles,
        ratio.filter(|_| row.case.label != RIVAL).map_or(String::new(), |ratio| format!("{ratio:.2} ×")),
    ]
}

fn time(nanoseconds: f64) -> String {
    if nanoseconds < 10_000.0 { format!("{nanoseconds:.1} ns") } else { format!("{:.1} µs", nanoseconds / 1000.0) }
}

/// The same as JSON; each row has a figure per name, so that a benchmark may
/// measure more than one thing.
pub fn json(benchmark: &Benchmark, results: &Results, bars: &[Bar]) -> String {
    let bar = |bar: &Bar| {
        json!({
            "name": bar.name, "value": bar.value, "target": bar.target, "unit": bar.unit,
            "comparison": "at most", "holds": bar.holds,
        })
    };
    let value = json!({
        "bench": benchmark.name,
        "machine": machine(),
        "rows": results.0.iter().map(row).collect::<Vec<_>>(),
        "bars": bars.iter().map(bar).collect::<Vec<_>>(),
    });
    format!("{value:#}\n")
}

fn row(row: &Row) -> Value {
    const NAME: &str = "time per operation";
    let Case { workload, label, parameters, .. } = &row.case;
    let mut all = Map::from_iter([("workload".into(), json!(workload))]);
    all.extend(parameters.iter().map(|(name, value)| ((*name).into(), json!(value))));
    match &row.figure {
        Ok(figure) => json!({
            "system": label, "parameters": all, "unit": "ns",
            "medians": { NAME: figure.median }, "quartiles": { NAME: figure.quartiles },
        }),
        Err(why) => json!({
            "system": label, "parameters": all, "unit": "ns", "medians": {}, "quartiles": {}, "missing": why,
        }),
    }
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
    use super::super::Name;
    use super::*;

    fn results() -> (Benchmark, Results) {
        let benchmark = Name::Nop.benchmark();
        let figure = Figure { median: 50.0, quartiles: [49.0, 51.5] };
        let rows = benchmark.cases.iter().map(|case| Row { case: case.clone(), figure: Ok(figure) }).collect();
        (benchmark, Results(rows))
    }

    #[test]
    fn the_json_has_what_readers_rely_on() {
        let (benchmark, results) = results();
        let bars = (benchmark.bars)(&results);
        let value: Value = serde_json::from_str(&json(&benchmark, &results, &bars)).unwrap();
        assert_eq!(value["bench"], "nop");
        assert_eq!(value["rows"][2]["system"], "kernel");
        assert_eq!(value["rows"][2]["parameters"]["queue depth"], 1);
        assert_eq!(value["rows"][2]["medians"]["time per operation"], 50.0);
        assert_eq!(value["rows"][2]["quartiles"]["time per operation"][1], 51.5);
        assert_eq!(value["bars"][0]["holds"], true);
        assert_eq!(value["bars"][1]["holds"], false);
        assert_eq!(value["bars"][1]["target"], 25.0);
    }

    #[test]
    fn a_rival_that_is_missing_leaves_its_bar_open() {
        let (benchmark, mut results) = results();
        for row in results.0.iter_mut().filter(|row| row.case.label == RIVAL) {
            row.figure = Err("no ring: Operation not permitted".into());
        }
        let bars = (benchmark.bars)(&results);
        assert_eq!(bars[2].holds, None);
        let table = Table { benchmark: &benchmark, results: &results, bars: &bars }.to_string();
        assert!(table.contains("bar not measured here: page-cache reads"), "{table}");
        assert!(table.contains("no ring: Operation not permitted"), "{table}");
    }
}
