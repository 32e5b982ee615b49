//! The JSON of results. This module makes it from a benchmark's rows, and [`super::page`] and
//! [`super::compare`] read it. The page shows no figure that the JSON lacks.

use super::Benchmark;
use super::frame::{Bar, Case, Results, Row};
use super::metric::Metric;
use serde_json::{Map, Value, json};

/// The name of a document that has the results of several benchmarks.
pub const ALL: &str = "all";

/// Returns a benchmark's result as JSON. Each row has a figure per metric.
pub fn of(benchmark: &Benchmark, results: &Results, bars: &[Bar], is_quick: bool) -> Value {
    let bar = |bar: &Bar| {
        json!({
            "name": bar.name, "value": bar.value, "interval": bar.interval, "target": bar.target, "unit": bar.unit,
            "comparison": bar.comparison.words(), "holds": bar.holds,
        })
    };
    let unit = |metric: &Metric| (metric.name().to_owned(), json!(metric.unit()));
    json!({
        "bench": benchmark.name,
        "description": benchmark.description,
        "machine": machine(),
        "priority": results.priority,
        "quick": is_quick,
        "rival": benchmark.rival,
        // This list keeps the order of the metrics: an object of serde_json does not keep the order
        // of its members.
        "metrics": results.metrics.iter().map(|metric| metric.name()).collect::<Vec<_>>(),
        "units": results.metrics.iter().map(unit).collect::<Map<_, _>>(),
        "rows": results.rows.iter().map(|row| row_value(benchmark, results, row)).collect::<Vec<_>>(),
        "bars": bars.iter().map(bar).collect::<Vec<_>>(),
    })
}

/// Returns one document with the results of several benchmarks. `not_run` and `failed` have the
/// names of the benchmarks without a result, each with the reason.
pub fn of_all(results: &[Value], not_run: &[(String, String)], failed: &[(String, String)]) -> Value {
    let reasons = |list: &[(String, String)]| -> Vec<Value> {
        list.iter().map(|(name, why)| json!({ "bench": name, "why": why })).collect()
    };
    json!({
        "bench": ALL,
        "machine": machine(),
        "benchmarks": results,
        "not_run": reasons(not_run),
        "failed": reasons(failed),
    })
}

fn row_value(benchmark: &Benchmark, results: &Results, row: &Row) -> Value {
    let Case { workload, label, parameters, .. } = &row.case;
    let mut all = Map::from_iter([("workload".into(), json!(workload))]);
    all.extend(parameters.iter().map(|(name, value)| ((*name).into(), json!(value))));
    let (mut medians, mut quartiles, mut rounds) = (Map::new(), Map::new(), Map::new());
    for metric in results.metrics {
        if let (Some(figure), Some(values)) = (row.figure(*metric), row.values(*metric)) {
            medians.insert(metric.name().into(), json!(figure.median));
            quartiles.insert(metric.name().into(), json!(figure.quartiles));
            rounds.insert(metric.name().into(), json!(values));
        }
    }
    let mut value = json!({
        "system": label, "parameters": all, "medians": medians, "quartiles": quartiles, "rounds": rounds,
    });
    if let Some(ratio) = results.against(row, benchmark.rival) {
        value["against_rival"] = json!({ "median": ratio.median, "interval": ratio.interval });
    }
    if let Err(why) = &row.samples {
        value["missing"] = json!(why);
    }
    value
}

/// Returns the results of single benchmarks in a document. The document of one benchmark is itself
/// such a result. Empty if the document is no result.
pub fn parts(document: &Value) -> Vec<&Value> {
    match document["benchmarks"].as_array() {
        Some(parts) => parts.iter().collect(),
        None if document["bench"].is_string() && document["rows"].is_array() => vec![document],
        None => Vec::new(),
    }
}

/// Returns the members of an array, or none if the value is no array.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the text of a value, or an empty text if it is no string.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the metrics of a result in the order of the table's columns. An older usring wrote no
/// list `metrics` to the file. The metrics of such a file come in alphabetical order.
pub fn metrics(result: &Value) -> Vec<Metric> {
    let listed = list(&result["metrics"]).iter().map(text);
    let units = result["units"].as_object().into_iter().flat_map(|units| units.keys().map(String::as_str));
    let mut metrics: Vec<Metric> = listed.filter_map(Metric::named).collect();
    if metrics.is_empty() {
        metrics.extend(units.filter_map(Metric::named));
    }
    metrics
}

/// Returns the values of a metric in all rounds.
pub fn rounds(row: &Value, metric: Metric) -> Vec<f64> {
    list(&row["rounds"][metric.name()]).iter().filter_map(Value::as_f64).collect()
}

/// Returns the text of a row's parameter, or an empty text if the row lacks it.
pub fn parameter(row: &Value, name: &str) -> String {
    match &row["parameters"][name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn machine() -> Value {
    json!({
        "kernel": read("/proc/sys/kernel/osrelease"),
        "processor": processor(),
        "processors": processors(),
    })
}

/// Returns a phrase that describes the machine on which the results of a document were measured.
pub fn machine_name(document: &Value) -> String {
    let machine = &document["machine"];
    format!("{} × {}, Linux {}", machine["processors"], text(&machine["processor"]), text(&machine["kernel"]))
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
