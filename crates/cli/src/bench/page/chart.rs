//! The plots of a benchmark, as SVG:
//!
//! - If a workload is measured at several queue depths: its first metric over the queue depth, and
//!   beside this plot the processor time.
//! - Otherwise: a bar for each row, with the quartiles and the limits of the machine.
//! - If the benchmark measures percentiles: the distribution of latencies.
//!
//! A plot is 360 units wide, so that its text keeps its size on a narrow screen.

use super::super::document::{self, list, text};
use super::super::metric::Metric;
use super::FLOOR;
use super::markup::Markup;
use super::scale::{short, step};
use serde_json::Value;

const WIDTH: f64 = 360.0;
/// Height of a plot over the depth.
const HEIGHT: f64 = 210.0;
/// Edges of the drawing area of a plot over the queue depth, in units of the SVG.
const LEFT: f64 = 58.0;
const RIGHT: f64 = 344.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 176.0;
/// Height of a row of a bar chart: a line of text, and the bar below it.
const ROW: f64 = 34.0;
const BAR: f64 = 10.0;
/// Colours of style.css.
const COLOURS: usize = 8;
/// The systems of the first colours.
const FIXED: [&str; 2] = ["kernel", "usring"];
/// A plot shows a limit of the machine only if the limit is at most this many times the value of
/// the longest bar. A higher limit would leave the bars very short, so the text below the plot
/// names it instead.
const MOST_ABOVE: f64 = 1.25;

/// Draws the plots of a benchmark.
pub fn draw(page: &mut Markup, result: &Value) {
    let rows: Vec<&Value> = list(&result["rows"]).iter().filter(|row| row.get("missing").is_none()).collect();
    let (limits, rows): (Vec<&Value>, Vec<&Value>) = rows.into_iter().partition(|row| row["system"] == FLOOR);
    let metrics = document::metrics(result);
    let Some(first) = metrics.first().copied().filter(|_| !rows.is_empty()) else {
        return page.leaf("p", &[("class", "faint")], "No row has figures.");
    };
    let systems = distinct(rows.iter().map(|row| text(&row["system"]).to_owned()));
    let chart = Chart { rows: &rows, limits: &limits, systems };
    let has_depths = chart.workloads().iter().any(|workload| chart.has_depths(workload));
    if has_depths {
        chart.legend(page);
    }
    page.open("div", &[("class", "charts")]);
    if has_depths {
        let wanted = [Metric::ProcessorTime, Metric::Thread, Metric::Processor];
        let processor = wanted.into_iter().find(|metric| metrics.contains(metric) && *metric != first);
        for workload in chart.workloads() {
            chart.over_depth(page, &workload, first);
            processor.iter().for_each(|metric| chart.over_depth(page, &workload, *metric));
        }
    } else {
        chart.bars(page, first);
    }
    if metrics.contains(&Metric::Median) && metrics.contains(&Metric::Tail) {
        chart.workloads().iter().for_each(|workload| chart.distribution(page, workload));
    }
    page.close();
}

fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    values.for_each(|value| {
        if !found.contains(&value) {
            found.push(value);
        }
    });
    found
}

fn median(row: &Value, metric: Metric) -> Option<f64> {
    row["medians"][metric.name()].as_f64()
}

fn quartiles(row: &Value, metric: Metric) -> Option<[f64; 2]> {
    let both = &row["quartiles"][metric.name()];
    Some([both[0].as_f64()?, both[1].as_f64()?])
}

fn workload(row: &Value) -> &str {
    text(&row["parameters"]["workload"])
}

fn depth(row: &Value) -> Option<f64> {
    row["parameters"]["queue depth"].as_f64().filter(|depth| *depth >= 1.0)
}

/// Opens a figure with its caption, and the SVG drawing in it. The caller closes the drawing and
/// the figure.
fn open(page: &mut Markup, caption: &str, height: f64) {
    page.open("figure", &[]);
    page.leaf("figcaption", &[], caption);
    let view = format!("0 0 {WIDTH} {height:.0}");
    page.open("svg", &[("viewBox", &view), ("role", "img"), ("aria-label", caption)]);
}

fn close(page: &mut Markup) {
    page.close();
    page.close();
}

fn line(page: &mut Markup, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
    page.shape("line", class, &[("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2)]);
}

/// The rows of a benchmark that have figures, without the rows that measure the machine.
struct Chart<'a> {
    rows: &'a [&'a Value],
    /// Rows of the machine's own costs.
    limits: &'a [&'a Value],
    systems: Vec<String>,
}

impl Chart<'_> {
    fn workloads(&self) -> Vec<String> {
        distinct(self.rows.iter().map(|row| workload(row).to_owned()))
    }

    fn of<'a>(&'a self, wanted: &'a str) -> impl Iterator<Item = &'a Value> {
        self.rows.iter().copied().filter(move |row| workload(row) == wanted)
    }

    fn depths(&self, workload: &str) -> Vec<f64> {
        let mut depths = distinct(self.of(workload).filter_map(depth));
        depths.sort_by(f64::total_cmp);
        depths
    }

    /// Returns whether a system is measured at several depths.
    fn has_depths(&self, workload: &str) -> bool {
        let is_of = |row: &&Value, system: &str| text(&row["system"]) == system;
        let depths = |system: &String| distinct(self.of(workload).filter(|row| is_of(row, system)).filter_map(depth));
        self.systems.iter().any(|system| depths(system).len() > 1)
    }

    /// Returns the number of a system's colour. The kernel and usring have the same colours in all
    /// plots.
    fn colour(&self, system: &str) -> usize {
        let mut others = self.systems.iter().filter(|system| !FIXED.contains(&system.as_str()));
        let fixed = FIXED.iter().position(|fixed| *fixed == system);
        let mut other = || others.position(|other| other == system).unwrap_or_default();
        fixed.unwrap_or_else(|| FIXED.len() + other() % (COLOURS - FIXED.len()))
    }

    fn legend(&self, page: &mut Markup) {
        page.open("ul", &[("class", "legend")]);
        for system in &self.systems {
            let colour = self.colour(system);
            page.open("li", &[]);
            page.open("svg", &[("viewBox", "0 0 24 10"), ("aria-hidden", "true")]);
            line(page, &format!("s s{colour}"), [0.0, 5.0], [24.0, 5.0]);
            page.shape("circle", &format!("b{colour}"), &[("cx", 12.0), ("cy", 5.0), ("r", 3.0)]);
            page.close();
            page.leaf("span", &[], system);
            page.close();
        }
        page.close();
    }

    /// Draws a metric over the queue depth, with a line for each system.
    fn over_depth(&self, page: &mut Markup, workload: &str, metric: Metric) {
        let depths = self.depths(workload);
        let (Some(least), Some(most)) = (depths.first(), depths.last()) else { return };
        let highest = |row: &Value| quartiles(row, metric).map(|[_, high]| high);
        let top = self.of(workload).filter_map(highest).fold(f64::MIN_POSITIVE, f64::max);
        let step = step(top);
        let top = (top / step).ceil() * step;
        let width = (most / least).log2().max(1.0);
        let x = |depth: f64| LEFT + 12.0 + (depth / least).log2() / width * (RIGHT - LEFT - 24.0);
        let y = |value: f64| BOTTOM - value / top * (BOTTOM - TOP);
        open(page, &format!("{workload}: {}", metric.name()), HEIGHT);
        let mut mark = 0.0;
        while mark <= top * 1.001 {
            line(page, "grid", [LEFT, y(mark)], [RIGHT, y(mark)]);
            page.label("n a", [LEFT - 6.0, y(mark) + 4.0], &short(metric, mark));
            mark += step;
        }
        for depth in &depths {
            page.label("m a", [x(*depth), BOTTOM + 15.0], &depth.to_string());
        }
        page.label("m a", [f64::midpoint(LEFT, RIGHT), HEIGHT - 4.0], "queue depth");
        for system in &self.systems {
            let rows: Vec<_> = self.of(workload).filter(|row| text(&row["system"]) == *system).collect();
            Self::series(page, metric, self.colour(system), &rows, &x, &y);
        }
        close(page);
    }

    /// Draws the medians and quartiles of one system.
    fn series(
        page: &mut Markup,
        metric: Metric,
        colour: usize,
        rows: &[&Value],
        x: &dyn Fn(f64) -> f64,
        y: &dyn Fn(f64) -> f64,
    ) {
        let point = |row: &Value| Some([x(depth(row)?), y(median(row, metric)?)]);
        let points: Vec<_> = rows.iter().filter_map(|row| point(row)).collect();
        let path: Vec<_> = points.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
        page.empty("polyline", &[("class", &format!("s s{colour}")), ("points", &path.join(" "))]);
        for (row, [at, height]) in rows.iter().zip(points) {
            if let Some([low, high]) = quartiles(row, metric) {
                line(page, "whisker", [at, y(low)], [at, y(high)]);
            }
            page.shape("circle", &format!("b{colour}"), &[("cx", at), ("cy", height), ("r", 3.5)]);
        }
    }

    /// Draws bars: a plot for each workload, or one plot if most workloads have one row.
    fn bars(&self, page: &mut Markup, metric: Metric) {
        let workloads = self.workloads();
        if workloads.len() * 3 > self.rows.len() * 2 || workloads.len() == self.rows.len() {
            let name = |row: &Value| match workloads.len() {
                1 => text(&row["system"]).to_owned(),
                _ => format!("{}, {}", workload(row), text(&row["system"])),
            };
            return self.bar_chart(page, metric, metric.name(), self.rows, &name);
        }
        for workload in &workloads {
            let rows: Vec<_> = self.of(workload).collect();
            let caption = format!("{workload}: {}", metric.name());
            self.bar_chart(page, metric, &caption, &rows, &|row| text(&row["system"]).to_owned());
        }
    }

    /// Returns the limits of the machine for these rows. A limit that was measured with a block
    /// size applies only to rows that have a block size, too.
    fn limits(&self, metric: Metric, rows: &[&Value]) -> Vec<(String, f64)> {
        let has_block = |row: &Value| row["parameters"].get("block size").is_some();
        let counts = |limit: &Value| !has_block(limit) || rows.iter().any(|row| has_block(row));
        let limits = self.limits.iter().filter(|limit| counts(limit));
        limits.filter_map(|limit| Some((workload(limit).to_owned(), median(limit, metric)?))).collect()
    }

    fn bar_chart(
        &self,
        page: &mut Markup,
        metric: Metric,
        caption: &str,
        rows: &[&Value],
        name: &dyn Fn(&Value) -> String,
    ) {
        let limits = self.limits(metric, rows);
        let high = rows.iter().filter_map(|row| quartiles(row, metric)).map(|[_, high]| high);
        let most = high.fold(f64::MIN_POSITIVE, f64::max);
        let drawn = |limit: f64| limit <= most * MOST_ABOVE;
        let end = limits.iter().map(|(_, limit)| *limit).filter(|limit| drawn(*limit)).fold(most, f64::max);
        let x = |value: f64| 2.0 + value / end * (WIDTH - 8.0);
        let bottom = ROW * rows.len() as f64 + 4.0;
        open(page, caption, bottom + 17.0 * limits.len() as f64);
        for (index, row) in rows.iter().enumerate() {
            let Some(value) = median(row, metric) else { continue };
            let top = ROW * index as f64;
            page.label("", [2.0, top + 15.0], &name(row));
            page.label("n", [WIDTH - 6.0, top + 15.0], &metric.show(value));
            let class = format!("b{}", self.colour(text(&row["system"])));
            let (left, width) = (x(0.0), x(value) - x(0.0));
            page.shape("rect", &class, &[("x", left), ("y", top + 20.0), ("width", width), ("height", BAR)]);
            if let Some([low, high]) = quartiles(row, metric) {
                line(page, "whisker", [x(low), top + 25.0], [x(high), top + 25.0]);
                [low, high].iter().for_each(|at| line(page, "whisker", [x(*at), top + 21.0], [x(*at), top + 29.0]));
            }
        }
        for (index, (name, limit)) in limits.iter().enumerate() {
            let class = format!("limit l{index}");
            let below = bottom + 17.0 * index as f64 + 8.0;
            if drawn(*limit) {
                let tops = (0..rows.len()).map(|row| ROW * row as f64);
                tops.for_each(|top| line(page, &class, [x(*limit), top + 17.0], [x(*limit), top + 33.0]));
                line(page, &class, [2.0, below], [26.0, below]);
            }
            let note = if drawn(*limit) { "limit" } else { "limit, off the scale" };
            page.label("a", [32.0, below + 4.0], &format!("{note}: {name}, {}", metric.show(*limit)));
        }
        close(page);
    }

    /// Draws the percentiles of a workload's latencies on a logarithmic axis.
    fn distribution(&self, page: &mut Markup, workload: &str) {
        const PERCENTILES: [Metric; 3] = [Metric::Median, Metric::Most, Metric::Tail];
        let of = |row: &Value| PERCENTILES.map(|metric| median(row, metric).filter(|value| *value > 0.0));
        let rows: Vec<_> = self.of(workload).filter(|row| of(row)[0].is_some()).collect();
        let values = || rows.iter().flat_map(|row| of(row)).flatten();
        let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN_POSITIVE, f64::max));
        if rows.is_empty() {
            return;
        }
        let (from, to) = (least.log10() - 0.05, (most.log10() + 0.05).max(least.log10() + 0.5));
        let x = |value: f64| 4.0 + (value.log10() - from) / (to - from) * (WIDTH - 12.0);
        let bottom = ROW * rows.len() as f64 + 4.0;
        open(page, &format!("{workload}: latencies"), bottom + 16.0);
        for mark in marks(from, to) {
            line(page, "grid", [x(mark), 0.0], [x(mark), bottom]);
            page.label("m a", [x(mark).clamp(16.0, WIDTH - 22.0), bottom + 12.0], &short(Metric::Median, mark));
        }
        for (index, row) in rows.iter().enumerate() {
            let top = ROW * index as f64;
            let known: Vec<f64> = of(row).into_iter().flatten().collect();
            let depth = depth(row).map_or(String::new(), |depth| format!(", depth {depth}"));
            page.label("", [2.0, top + 15.0], &format!("{}{depth}", text(&row["system"])));
            let shown: Vec<_> = known.iter().map(|value| short(Metric::Median, *value)).collect();
            page.label("n", [WIDTH - 6.0, top + 15.0], &shown.join(" · "));
            let (class, y) = (self.colour(text(&row["system"])), top + 25.0);
            let end = known.last().map_or(0.0, |value| x(*value));
            line(page, &format!("s s{class}"), [x(known[0]), y], [end, y]);
            let ticks = known.iter().skip(1);
            ticks.for_each(|value| line(page, "whisker", [x(*value), y - 4.0], [x(*value), y + 4.0]));
            page.shape("circle", &format!("b{class}"), &[("cx", x(known[0])), ("cy", y), ("r", 4.0)]);
        }
        close(page);
    }
}

/// Returns the marks of a logarithmic axis between two powers of ten: 1, 2 and 5 times the powers,
/// or only the powers if there are many.
fn marks(from: f64, to: f64) -> Vec<f64> {
    let digits: &[f64] = if to - from > 2.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let mut marks = Vec::new();
    let mut power = from.floor();
    while power <= to {
        marks.extend(digits.iter().map(|digit| digit * 10_f64.powf(power)));
        power += 1.0;
    }
    marks.retain(|mark| (from..=to).contains(&mark.log10()));
    marks
}
