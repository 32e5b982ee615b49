//! The limits in `xtask/prose-limits`: how many findings of each rule each part of the repository
//! may have. The numbers only fall.

use super::rules::Rule;
use crate::step;
use std::collections::BTreeMap;
use std::fmt::Write;

const FILE: &str = "xtask/prose-limits";
const HEAD: &str = "# How many findings of `cargo xtask prose` each part may have. The numbers only fall:\n\
    # `cargo xtask prose --tighten` lowers them to what is there.\n";

/// Numbers of findings, in the order of [`Rule::ALL`].
pub type Counts = [usize; Rule::ALL.len()];

/// Prints each count that is above its limit, and returns the number of such counts. With
/// `tighten`, lowers each limit to its count.
pub fn hold(counts: &BTreeMap<String, Counts>, tighten: bool) -> Result<usize, String> {
    let path = step::root().join(FILE);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{FILE}: {error}"))?;
    let limits = parse(&text)?;
    let breaches = breaches(counts, &limits);
    for breach in &breaches {
        println!("prose: {breach}");
    }
    if tighten {
        std::fs::write(&path, write(counts, &limits)).map_err(|error| format!("{FILE}: {error}"))?;
    }
    Ok(breaches.len())
}

/// Returns the counts above their limits, in words. A part without limits may have no findings.
fn breaches(counts: &BTreeMap<String, Counts>, limits: &BTreeMap<String, Counts>) -> Vec<String> {
    let mut breaches = Vec::new();
    for (part, counts) in counts {
        let allowed = limits.get(part).copied().unwrap_or_default();
        for (rule, (count, most)) in Rule::ALL.iter().zip(counts.iter().zip(allowed)) {
            if *count > most {
                breaches.push(format!("{part} has {count} findings of `{}`, but only {most} are allowed", rule.name()));
            }
        }
    }
    breaches
}

fn parse(text: &str) -> Result<BTreeMap<String, Counts>, String> {
    let mut limits = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let wrong = || format!("{FILE}: cannot parse `{line}`");
        let (part, rest) = line.split_once(' ').ok_or_else(wrong)?;
        let mut counts = Counts::default();
        for word in rest.split_whitespace() {
            let (name, count) = word.split_once('=').ok_or_else(wrong)?;
            let rule = Rule::ALL.iter().find(|rule| rule.name() == name).ok_or_else(wrong)?;
            counts[*rule as usize] = count.parse().map_err(|_| wrong())?;
        }
        limits.insert(part.to_owned(), counts);
    }
    Ok(limits)
}

fn write(counts: &BTreeMap<String, Counts>, limits: &BTreeMap<String, Counts>) -> String {
    let mut text = HEAD.to_owned();
    for (part, counts) in counts {
        let allowed = limits.get(part).copied().unwrap_or_default();
        text.push_str(part);
        for (rule, (count, most)) in Rule::ALL.iter().zip(counts.iter().zip(allowed)) {
            let _ = write!(text, " {}={}", rule.name(), count.min(&most));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(part: &str, counts: Counts) -> BTreeMap<String, Counts> {
        BTreeMap::from([(part.to_owned(), counts)])
    }

    #[test]
    fn more_findings_than_allowed_are_a_breach() {
        let limits = one("engine", [1, 0, 0, 0, 0, 0]);
        assert!(breaches(&one("engine", [1, 0, 0, 0, 0, 0]), &limits).is_empty());
        assert_eq!(breaches(&one("engine", [2, 0, 0, 0, 0, 0]), &limits).len(), 1);
        assert_eq!(breaches(&one("unknown", [1, 0, 0, 0, 0, 0]), &limits).len(), 1);
    }

    #[test]
    fn tightening_lowers_limits_and_never_raises_them() {
        let limits = one("engine", [5, 5, 5, 5, 5, 5]);
        let text = write(&one("engine", [3, 9, 0, 5, 1, 2]), &limits);
        assert_eq!(parse(&text).unwrap(), one("engine", [3, 5, 0, 5, 1, 2]));
    }

    #[test]
    fn a_line_that_cannot_be_parsed_is_an_error() {
        assert!(parse("engine subject=x\n").is_err());
        assert!(parse("engine unknown=1\n").is_err());
    }
}
