//! `usring bench --report`: a result as one page of HTML. The page needs no network, no other file
//! and no JavaScript.
//!
//! - It is made from the JSON of [`super::document`] alone.
//! - [`markup`] writes the elements, and [`chart`] draws the plots as SVG.

mod chart;
mod markup;
mod scale;

use super::document::{self, list, text};
use super::frame::Comparison;
use super::metric::Metric;
use markup::Markup;
use serde_json::Value;

const STYLE: &str = include_str!("style.css");
/// Forbids the page to load anything, in case a text in it was escaped wrongly.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
/// The name, in the JSON's field `system`, of rows that measure the machine and not a ring.
const FLOOR: &str = "floor";

/// The metrics that can show a cost of the machine. The page shows the first of them that a row
/// has.
const COSTS: [Metric; 3] = [Metric::Time, Metric::ProcessorTime, Metric::Rate];

/// Returns the page of a result.
pub fn html(document: &Value) -> String {
    let mut page = Markup::new();
    let title = format!("usring bench {}", text(&document["bench"]));
    page.open("html", &[("lang", "en")]);
    page.open("head", &[]);
    page.empty("meta", &[("charset", "utf-8")]);
    page.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
    page.empty("meta", &[("http-equiv", "Content-Security-Policy"), ("content", POLICY)]);
    page.leaf("title", &[], &title);
    // The style has no character that must be escaped.
    page.leaf("style", &[], STYLE);
    page.close();
    page.open("body", &[]);
    page.leaf("h1", &[], &title);
    let results = document::parts(document);
    machine(&mut page, document, &results);
    contents(&mut page, document, &results);
    results.iter().for_each(|result| section(&mut page, result));
    foot(&mut page);
    page.finish()
}

/// Adds the description of the machine, and the costs of the machine itself, if a benchmark has
/// measured them.
fn machine(page: &mut Markup, document: &Value, results: &[&Value]) {
    page.leaf("p", &[], &document::machine_name(document));
    let mut costs: Vec<[String; 2]> = Vec::new();
    for result in results {
        for row in list(&result["rows"]).iter().filter(|row| row["system"] == FLOOR) {
            let name = document::parameter(row, "workload");
            let shown = |metric: Metric| row["medians"][metric.name()].as_f64().map(|median| metric.show(median));
            let cost = COSTS.into_iter().find_map(shown);
            if let Some(cost) = cost.filter(|_| !costs.iter().any(|[known, _]| *known == name)) {
                costs.push([name, cost]);
            }
        }
    }
    page.leaf("h3", &[], "Costs of the machine itself");
    if costs.is_empty() {
        return page.leaf("p", &[("class", "faint")], "This benchmark does not measure them; nop does.");
    }
    page.open("table", &[]);
    for [name, cost] in costs {
        page.open("tr", &[]);
        page.leaf("td", &[("class", "t w")], &name);
        page.leaf("td", &[], &cost);
        page.close();
    }
    page.close();
}

/// Adds a list of the benchmarks. The list says for each benchmark how many of its bars (the limits
/// of its figures) hold, or why it has no result.
fn contents(page: &mut Markup, document: &Value, results: &[&Value]) {
    if document["bench"] != document::ALL {
        return;
    }
    page.leaf("h3", &[], "Benchmarks");
    page.open("ul", &[]);
    for result in results {
        let name = text(&result["bench"]);
        page.open("li", &[]);
        page.leaf("a", &[("href", &format!("#{name}"))], name);
        page.leaf("span", &[("class", "faint")], &format!(" {}", bars_in_words(result)));
        page.close();
    }
    for (member, class, words) in [("failed", "bad", "failed"), ("not_run", "faint", "did not run")] {
        for one in list(&document[member]) {
            page.leaf("li", &[("class", class)], &format!("{} {words}: {}", text(&one["bench"]), text(&one["why"])));
        }
    }
    page.close();
}

fn bars_in_words(result: &Value) -> String {
    let bars = list(&result["bars"]);
    let count = |holds: Value| bars.iter().filter(|bar| bar["holds"] == holds).count();
    let unknown = count(Value::Null);
    let also = if unknown > 0 { format!(", {unknown} could not be measured") } else { String::new() };
    match bars.len() {
        0 => "no bars".into(),
        all => format!("{} of {all} bars hold{also}", count(Value::Bool(true))),
    }
}

/// Adds one benchmark.
fn section(page: &mut Markup, result: &Value) {
    let name = text(&result["bench"]);
    page.leaf("h2", &[("id", name)], name);
    page.leaf("p", &[], text(&result["description"]));
    let rival = text(&result["rival"]);
    let rounds = list(&result["rows"]).iter().filter_map(|row| row["rounds"].as_object()?.values().next());
    let rounds = rounds.map(|values| list(values).len()).max().unwrap_or_default();
    let priority = text(&result["priority"]);
    let how = format!("Ratios are against {rival}. Figures are medians of {rounds} rounds, measured {priority}.");
    page.leaf("p", &[("class", "faint")], &how);
    if result["quick"] == true {
        let rough = "Too rough to be quoted: --quick measures a few short rounds, and no bar counts.";
        page.leaf("p", &[("class", "bad")], rough);
    }
    page.leaf("h3", &[], &format!("Bars: {}", bars_in_words(result)));
    bars(page, result);
    page.leaf("h3", &[], "Plots");
    chart::draw(page, result);
    page.leaf("h3", &[], "Figures");
    figures(page, result);
}

fn head(page: &mut Markup, left: usize, names: &[String]) {
    page.open("tr", &[]);
    for (index, name) in names.iter().enumerate() {
        page.leaf("th", &[("class", if index < left { "t" } else { "" })], name);
    }
    page.close();
}

fn bars(page: &mut Markup, result: &Value) {
    if list(&result["bars"]).is_empty() {
        return;
    }
    page.open("div", &[("class", "scroll")]);
    page.open("table", &[]);
    head(page, 2, &["", "figure", "target", "measured", "95 % interval"].map(String::from));
    for bar in list(&result["bars"]) {
        page.open("tr", &[]);
        let (class, verdict) = match bar["holds"].as_bool() {
            Some(true) => ("t v good", "holds"),
            Some(false) => ("t v bad", "does not hold"),
            None => ("t v faint", "not measured"),
        };
        page.leaf("td", &[("class", class)], verdict);
        let sign = if bar["comparison"] == Comparison::AtMost.words() { "≤" } else { "≥" };
        page.leaf("td", &[("class", "t w")], text(&bar["name"]));
        page.leaf("td", &[], &format!("{sign} {} {}", bar["target"], text(&bar["unit"])));
        let value = bar["value"].as_f64().map_or("none".into(), |value| format!("{value:.2}"));
        page.leaf("td", &[], &value);
        let interval: Vec<f64> = list(&bar["interval"]).iter().filter_map(Value::as_f64).collect();
        let interval = if let [low, high] = interval[..] { format!("{low:.2} – {high:.2}") } else { String::new() };
        page.leaf("td", &[], &interval);
        page.close();
    }
    page.close();
    page.close();
}

/// Adds the table of all rows.
fn figures(page: &mut Markup, result: &Value) {
    let metrics = document::metrics(result);
    let mut names: Vec<String> = ["workload", "block", "depth", "system"].map(String::from).into();
    for (index, metric) in metrics.iter().enumerate() {
        names.push(metric.name().into());
        if index == 0 {
            names.extend(["quartiles".into(), format!("against {}", text(&result["rival"]))]);
        }
    }
    page.open("div", &[("class", "scroll")]);
    page.open("table", &[]);
    head(page, 4, &names);
    for row in list(&result["rows"]) {
        page.open("tr", &[]);
        page.leaf("td", &[("class", "t w")], &document::parameter(row, "workload"));
        page.leaf("td", &[("class", "t")], &document::parameter(row, "block size"));
        page.leaf("td", &[("class", "t")], &document::parameter(row, "queue depth"));
        page.leaf("td", &[("class", "t")], text(&row["system"]));
        if row.get("missing").is_some() {
            let all = (names.len() - 4).to_string();
            page.leaf("td", &[("class", "t faint"), ("colspan", &all)], &format!("none: {}", text(&row["missing"])));
        } else {
            metrics.iter().enumerate().for_each(|(index, metric)| cells(page, row, *metric, index == 0));
        }
        page.close();
    }
    page.close();
    page.close();
}

fn cells(page: &mut Markup, row: &Value, metric: Metric, is_first: bool) {
    let shown = |value: &Value| value.as_f64().map_or(String::new(), |value| metric.show(value));
    page.leaf("td", &[], &shown(&row["medians"][metric.name()]));
    if is_first {
        let quartiles = &row["quartiles"][metric.name()];
        let range = quartiles[0].as_f64().zip(quartiles[1].as_f64()).map(|(low, high)| metric.range(low, high));
        page.leaf("td", &[], &range.unwrap_or_default());
        let ratio = row["against_rival"]["median"].as_f64();
        page.leaf("td", &[], &ratio.map_or(String::new(), |ratio| format!("{ratio:.2} ×")));
    }
}

fn foot(page: &mut Markup) {
    let version = env!("CARGO_PKG_VERSION");
    page.leaf("h2", &[], "How to read this page");
    for sentence in [
        "All programs of a benchmark run in turn, round by round, in another order each time. A ratio is the median \
         of the rounds' ratios. A bar is the target of a figure.",
        "In plots, a thin line spans the first and the third quartile of the rounds. A dashed line is a limit of the \
         machine. A distribution shows the 50th percentile as a dot, and the 95th and 99th as strokes.",
    ] {
        page.leaf("p", &[], sentence);
    }
    page.leaf("p", &[("class", "faint")], &format!("Made by usring {version}."));
}

#[cfg(test)]
mod tests;
