//! `usring bench all`, `compare` and `--report` as a user runs them. The page is read by an XML
//! parser, and shown by Chromium if that is installed. The tests do not check the figures, because
//! other processes may use the machine.

use roxmltree::{Document, ParsingOptions};
use serde_json::Value;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use workloads::harness::skipped::skip;
use workloads::harness::{Finished, Stage, World, on_kernel};

const CHROMIUM: &str = "/usr/bin/chromium";

/// Makes a stage with usring and the programs of the benchmark `nop`.
fn stage() -> Stage {
    let stage = Stage::new();
    for (name, path) in [
        ("workload-floor", env!("CARGO_BIN_EXE_workload-floor")),
        ("workload-nop", env!("CARGO_BIN_EXE_workload-nop")),
        ("workload-read", env!("CARGO_BIN_EXE_workload-read")),
    ] {
        stage.copy(Path::new(path), &format!("tools/{name}"));
    }
    stage
}

fn bench(stage: &Stage, arguments: &[&str]) -> Finished {
    let run = stage.program(World::Bare, stage.path("tools/usring")).arg("bench").args(arguments);
    run.current_dir(&stage.path("")).limit(Duration::from_secs(240)).finish()
}

#[track_caller]
fn assert_status(finished: &Finished, status: i32) {
    assert_eq!(finished.status.code(), Some(status), "{}", finished.report());
}

fn json(stage: &Stage, name: &str) -> Value {
    serde_json::from_slice(&stage.read(name)).unwrap()
}

#[test]
fn without_the_measured_programs_a_benchmark_says_where_they_are() {
    if on_kernel() {
        return skip("there is no usring");
    }
    let stage = Stage::new();
    let finished = bench(&stage, &["nop", "--quick"]);
    assert_status(&finished, 125);
    assert!(finished.stderr.contains("`cargo xtask bench` in a source tree of usring"), "{}", finished.report());
    let finished = bench(&stage, &["all", "--quick", "--json", "all.json"]);
    assert_status(&finished, 125);
    assert!(finished.stderr.contains("usring bench: swap did not run: the measured"), "{}", finished.report());
    assert!(finished.stderr.contains("usring bench: postgres did not run: name the folder"), "{}", finished.report());
    let all = json(&stage, "all.json");
    assert_eq!(all["not_run"].as_array().unwrap().len(), 14, "{all:#}");
}

#[test]
fn all_runs_what_can_run_and_a_failure_does_not_stop_it() {
    if on_kernel() {
        return skip("there is no usring");
    }
    let stage = stage();
    let arguments = ["all", "--quick", "--json", "all.json", "--report", "all.html"];
    assert_status(&bench(&stage, &arguments), 0);
    // Replaces the programs of the benchmarks `call` (`workload-call`) and `start`
    // (`workload-start`, `workload-fork`) by one that fails. `usring bench all` runs `nop` before
    // these two benchmarks, and the other benchmarks after them.
    let broken = stage.path("tools/workload-call");
    std::fs::write(&broken, "#!/bin/sh\necho this is broken >&2; exit 1\n").unwrap();
    std::fs::set_permissions(&broken, Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(&broken, stage.path("tools/workload-start")).unwrap();
    std::fs::copy(&broken, stage.path("tools/workload-fork")).unwrap();
    let finished = bench(&stage, &arguments);
    assert_status(&finished, 125);
    assert!(finished.stderr.contains("usring bench: nop, 1 of 14, 0:00 so far"), "{}", finished.report());
    assert!(finished.stderr.contains("usring bench: call FAILED: "), "{}", finished.report());
    let all = json(&stage, "all.json");
    let names = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|one| one["bench"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&all["benchmarks"]), ["nop"]);
    assert_eq!(names(&all["failed"]), ["call", "start"]);
    assert!(names(&all["not_run"]).contains(&"postgres".to_owned()));
    let page = String::from_utf8(stage.read("all.html")).unwrap();
    assert!(page.contains("call failed: ") && page.contains("postgres did not run: "), "{page}");
    let compared = bench(&stage, &["compare", "all.json", "all.json"]);
    assert_status(&compared, 0);
    assert!(compared.stdout.contains("nop: time per operation"), "{}", compared.report());
    assert!(compared.stdout.lines().all(|line| line.chars().count() <= 80), "{}", compared.report());
}

/// Runs `nop` and writes `nop.json` and `nop.html`.
fn nop(stage: &Stage) {
    let finished = bench(stage, &["nop", "--quick", "--json", "nop.json", "--report", "nop.html"]);
    assert_status(&finished, 0);
    let tables = finished.stdout.lines().skip(1).filter(|line| !line.starts_with("bar "));
    tables.for_each(|line| assert!(line.chars().count() <= 80, "{}", finished.report()));
}

#[test]
fn the_page_of_a_benchmark_is_well_formed_and_has_the_figures_of_its_json() {
    if on_kernel() {
        return skip("there is no usring");
    }
    let stage = stage();
    nop(&stage);
    let (page, result) = (String::from_utf8(stage.read("nop.html")).unwrap(), json(&stage, "nop.json"));
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(&page, options).unwrap();
    let cells = |tag: &str| -> Vec<_> {
        document.descendants().filter(|node| node.has_tag_name(tag)).filter_map(|node| node.text()).collect()
    };
    for row in result["rows"].as_array().unwrap() {
        let Some(median) = row["medians"]["time per operation"].as_f64() else { continue };
        let shown = if median < 10_000.0 { format!("{median:.1} ns") } else { format!("{:.1} µs", median / 1e3) };
        assert!(cells("td").contains(&&*shown), "{shown}: {page}");
        let is_limit = row["system"] == "floor";
        assert!(is_limit || cells("text").contains(&&*shown), "{shown} is in no plot: {page}");
    }
    for bar in result["bars"].as_array().unwrap().iter().filter_map(|bar| bar["value"].as_f64()) {
        assert!(cells("td").contains(&&*format!("{bar:.2}")), "{bar}: {page}");
    }
}

/// A picture: width in pixels, and three or four bytes per pixel.
struct Picture {
    width: usize,
    bytes_per_pixel: usize,
    bytes: Vec<u8>,
}

impl Picture {
    fn read(path: &Path) -> Picture {
        let mut reader = png::Decoder::new(std::io::BufReader::new(File::open(path).unwrap())).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut bytes).unwrap();
        assert_eq!(frame.bit_depth, png::BitDepth::Eight);
        Picture { width: frame.width as usize, bytes_per_pixel: frame.color_type.samples(), bytes }
    }

    fn pixels(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.bytes_per_pixel).map(|pixel| &pixel[..3])
    }

    fn count(&self, colour: [u8; 3]) -> usize {
        self.pixels().filter(|pixel| **pixel == colour).count()
    }
}

#[test]
fn a_browser_shows_the_page_in_light_and_dark_without_errors() {
    if on_kernel() {
        return skip("there is no usring");
    }
    if !Path::new(CHROMIUM).exists() {
        return skip("no Chromium; `apt-get install chromium` installs it");
    }
    let stage = stage();
    nop(&stage);
    // The colours in style.css of the page's background (`paper`) and of usring's bars, in the
    // light scheme and in the dark one.
    for (scheme, paper, usring) in
        [("1", [0xff, 0xff, 0xff], [0x0b, 0x6b, 0xcb]), ("0", [0x0d, 0x11, 0x17], [0x58, 0xa6, 0xff])]
    {
        let picture = stage.path(&format!("{scheme}.png"));
        let mut chromium = Command::new("timeout");
        chromium.args(["60", CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        chromium.args(["--hide-scrollbars", "--enable-logging=stderr", "--window-size=1280,1600"]);
        chromium.arg(format!("--blink-settings=preferredColorScheme={scheme}"));
        chromium.arg(format!("--user-data-dir={}", stage.path("profile").display()));
        chromium.arg(format!("--screenshot={}", picture.display()));
        let output = chromium.arg(format!("file://{}", stage.path("nop.html").display())).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && picture.is_file(), "{said}");
        assert!(!said.contains("CONSOLE"), "{said}");
        let picture = Picture::read(&picture);
        assert_eq!(picture.width, 1280);
        assert_eq!(picture.pixels().next(), Some(&paper[..]));
        // The bar of the slowest row alone has more than 1,000 pixels.
        assert!(picture.count(usring) > 1000, "{} pixels of usring's colour", picture.count(usring));
        assert!(picture.count(paper) > picture.pixels().count() / 3, "the page covers its paper");
    }
}
