//! `cargo xtask prose`: checks the rules of docs/style.md that a machine can check, in comments,
//! messages and documents.
//!
//! - [`text`] extracts the sentences of a file.
//! - [`rules`] finds the rules that a sentence or line breaks.
//! - [`limits`] compares the numbers of findings with those that `xtask/prose-limits` allows.
//! - [`subjects`] checks the subjects of commits.

mod limits;
mod rules;
mod subjects;
mod text;

use crate::{Outcome, step};
use limits::Counts;
use rules::Rule;
use std::collections::BTreeMap;
use std::process::Command;

/// A place that breaks a rule.
struct Finding {
    rule: Rule,
    file: String,
    line: usize,
    excerpt: String,
}

/// The findings in one part of the repository (a crate, or the documents), and the part's number of
/// words.
#[derive(Default)]
struct Part {
    words: usize,
    findings: Vec<Finding>,
}

/// Checks every file and the commits' subjects. With `list`, only prints each finding of the named
/// part of the repository (`all` stands for every part). `tighten` lowers the limits to the present
/// numbers of findings.
pub fn run(list: Option<&str>, tighten: bool) -> Outcome {
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    for file in tracked_files()? {
        let Some(kind) = text::Kind::of(&file) else { continue };
        // A file that git lists may be missing, because it was deleted without a commit.
        let Ok(content) = std::fs::read_to_string(step::root().join(&file)) else { continue };
        examine(&file, kind, &content, parts.entry(part_of(&file)).or_default());
    }
    if let Some(wanted) = list {
        print_findings(&parts, wanted);
        return Ok(());
    }
    let counts: BTreeMap<_, _> = parts.iter().map(|(name, part)| (name.clone(), count(part))).collect();
    print_table(&parts, &counts);
    let breaches = limits::hold(&counts, tighten)? + subjects::check()?;
    if breaches == 0 {
        return Ok(());
    }
    Err(format!("{breaches} breaches of docs/style.md; `cargo xtask prose --list PART` shows the places"))
}

fn tracked_files() -> Result<Vec<String>, String> {
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(step::root()).output();
    let output = output.map_err(|error| format!("cannot list the files with git ({error})"))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Returns the name of the crate to which a file belongs, or `documents`.
fn part_of(file: &str) -> String {
    let mut folders = file.split('/');
    match (folders.next(), folders.next()) {
        (Some("crates"), Some(name)) => name.to_owned(),
        (Some(name @ ("conformance" | "workloads" | "xtask")), Some(_)) => name.to_owned(),
        _ => "documents".to_owned(),
    }
}

fn examine(file: &str, kind: text::Kind, content: &str, part: &mut Part) {
    let mut note = |rule, line, excerpt: &str| {
        part.findings.push(Finding { rule, file: file.to_owned(), line, excerpt: excerpt.to_owned() });
    };
    let extract = text::extract(kind, content);
    for (line, text) in &extract.lines {
        if rules::is_wide(kind, text) {
            note(Rule::Wide, *line, text);
        }
    }
    let mut words = 0;
    for sentence in &extract.sentences {
        words += sentence.text.split_whitespace().count();
        rules::of_sentence(&sentence.text, |rule| note(rule, sentence.line, &sentence.text));
    }
    part.words += words;
}

fn count(part: &Part) -> Counts {
    let mut counts = Counts::default();
    for finding in &part.findings {
        counts[finding.rule as usize] += 1;
    }
    counts
}

fn print_findings(parts: &BTreeMap<String, Part>, wanted: &str) {
    let chosen = parts.iter().filter(|(name, _)| wanted == "all" || *name == wanted);
    for finding in chosen.flat_map(|(_, part)| &part.findings) {
        println!("{}:{}: {}: {}", finding.file, finding.line, finding.rule.name(), finding.excerpt);
    }
}

fn print_table(parts: &BTreeMap<String, Part>, counts: &BTreeMap<String, Counts>) {
    let names: Vec<_> = Rule::ALL.iter().map(|rule| format!("{:>9}", rule.name())).collect();
    println!("prose: {:12} {:>7} {}  subject/1000", "part", "words", names.join(" "));
    for (name, part) in parts {
        let counts = &counts[name];
        let columns: Vec<_> = counts.iter().map(|count| format!("{count:>9}")).collect();
        let rate = counts[Rule::Subject as usize] as f64 * 1000.0 / part.words.max(1) as f64;
        println!("prose: {name:12} {:>7} {}  {rate:>12.1}", part.words, columns.join(" "));
    }
}
