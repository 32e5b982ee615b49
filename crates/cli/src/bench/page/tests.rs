//! Tests of the page: it is well-formed, has the figures of the JSON, and loads nothing.

use super::*;
use roxmltree::{Document, Node, ParsingOptions};
use serde_json::json;

const FIXTURE: &str = include_str!("../fixtures/before.json");

fn fixture() -> Value {
    serde_json::from_str(FIXTURE).unwrap()
}

fn parse(page: &str) -> Document<'_> {
    Document::parse_with_options(page, ParsingOptions { allow_dtd: true, ..ParsingOptions::default() }).unwrap()
}

fn texts<'a>(document: &'a Document<'_>, tag: &str) -> Vec<&'a str> {
    let is_one = |node: &Node<'_, '_>| node.has_tag_name(tag);
    document.descendants().filter(is_one).map(|node| node.text().unwrap_or_default()).collect()
}

/// A result with depths and latencies.
fn with_depths() -> Value {
    let mut result = fixture();
    let names = ["operations per second", "processor time per operation", "latency, median", "latency, p99"];
    let row = |system: &str, depth: u32| {
        let figures = [f64::from(depth) * 1e5, 2e3, 1e4, 9e4];
        let medians: serde_json::Map<_, _> =
            names.iter().zip(figures).map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let quartiles: serde_json::Map<_, _> = names
            .iter()
            .zip(figures)
            .map(|(name, value)| ((*name).to_owned(), json!([value * 0.9, value * 1.1])))
            .collect();
        json!({
            "system": system, "parameters": { "workload": "reads", "queue depth": depth }, "medians": medians,
            "quartiles": quartiles, "rounds": {},
        })
    };
    let rows: Vec<_> = [1, 8, 32].into_iter().flat_map(|depth| [row("kernel", depth), row("usring", depth)]).collect();
    result["metrics"] = json!(names);
    result["rows"] = json!(rows);
    result
}

#[test]
fn the_page_is_well_formed_and_has_the_figures_of_the_json() {
    let page = html(&fixture());
    let document = parse(&page);
    let cells = texts(&document, "td");
    for row in list(&fixture()["rows"]) {
        let shown = Metric::Time.show(row["medians"]["time per operation"].as_f64().unwrap());
        assert!(cells.contains(&shown.as_str()), "{shown}: {cells:?}");
    }
    assert!(cells.contains(&"does not hold") && cells.contains(&"≤ 90.0 ns"), "{cells:?}");
    assert!(texts(&document, "p").contains(&"A fixture with invented figures."));
    assert!(texts(&document, "p").contains(&"2 × invented, Linux 6.18.5"));
    // No system was measured at several queue depths, so the plots have bars instead of lines.
    assert!(!page.contains("<polyline"), "{page}");
    let labels = texts(&document, "text");
    assert!(labels.contains(&"limit: bare system call, 80.0 ns"), "{labels:?}");
}

#[test]
fn depths_make_lines_and_latencies_make_distributions() {
    let page = html(&with_depths());
    let document = parse(&page);
    let captions = texts(&document, "figcaption");
    let expected = ["reads: operations per second", "reads: processor time per operation", "reads: latencies"];
    assert_eq!(captions, expected);
    let lines: Vec<_> = document.descendants().filter(|node| node.has_tag_name("polyline")).collect();
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line.attribute("points").unwrap().split(' ').count() == 3), "{page}");
    assert!(texts(&document, "text").contains(&"10 µs · 90 µs"), "{page}");
}

#[test]
fn the_page_loads_nothing_and_escapes_text() {
    let mut result = fixture();
    result["rows"][1]["system"] = "<img src=x onerror=alert(1)>".into();
    result["rows"][2]["missing"] = "no ring & \"no\" <b>".into();
    let page = html(&result);
    let document = parse(&page);
    for node in document.descendants() {
        assert!(!["script", "img", "link", "iframe"].contains(&node.tag_name().name()), "{page}");
        let loads = |name: &str| ["src", "srcset", "data"].contains(&name) || name.starts_with("on");
        assert!(!node.attributes().any(|attribute| loads(attribute.name())), "{page}");
        let target = node.attribute("href").unwrap_or("#");
        assert!(target.starts_with('#'), "{target}");
    }
    assert!(!page.contains("url(") && !page.contains("@import"));
    assert!(texts(&document, "td").contains(&"none: no ring & \"no\" <b>"));
}

#[test]
fn a_page_of_all_benchmarks_links_to_each_and_names_those_without_a_result() {
    let pair = |name: &str, why: &str| vec![(name.to_owned(), why.to_owned())];
    let all = document::of_all(&[fixture(), with_depths()], &pair("postgres", "no folder"), &pair("swap", "broke"));
    let page = html(&all);
    let document = parse(&page);
    assert_eq!(texts(&document, "a"), ["nop", "nop"]);
    let items = texts(&document, "li");
    assert!(items.contains(&"postgres did not run: no folder") && items.contains(&"swap failed: broke"), "{items:?}");
}

#[test]
fn a_result_without_figures_makes_a_page() {
    let mut result = fixture();
    for row in result["rows"].as_array_mut().unwrap() {
        row["missing"] = "no ring".into();
    }
    assert!(texts(&parse(&html(&result)), "p").contains(&"No row has figures."));
}
