//! Checks the subjects of commits: at most 72 characters, and a verb or a named subject first.

use crate::step;
use std::process::Command;

/// The last commit from before the rule. Only later commits are checked.
const RULE_BEGINS: &str = "ef4fd1e";
const MOST_CHARACTERS: usize = 72;
/// First words that name neither an actor nor an action.
const NAMELESS: [&str; 10] =
    ["who", "whoever", "whom", "what", "whatever", "that", "nobody", "somebody", "everybody", "one"];

/// Prints each subject that breaks the rule, and returns their number. Checks nothing in a copy
/// without the history (a tarball, a shallow clone).
pub fn check() -> Result<usize, String> {
    let range = format!("{RULE_BEGINS}..HEAD");
    let arguments = ["log", "--no-merges", "--format=%s", &range];
    let output = Command::new("git").args(arguments).current_dir(step::root()).output();
    let output = output.map_err(|error| format!("cannot read the commits with git ({error})"))?;
    if !output.status.success() {
        println!("prose: commit subjects were not read: {range} does not exist in this clone");
        return Ok(0);
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut breaches = 0;
    for (subject, why) in text.lines().filter_map(|subject| Some((subject, breach(subject)?))) {
        println!("prose: commit \"{subject}\" {why}");
        breaches += 1;
    }
    Ok(breaches)
}

fn breach(subject: &str) -> Option<&'static str> {
    let first = subject.split_whitespace().next().unwrap_or_default().to_lowercase();
    if subject.chars().count() > MOST_CHARACTERS {
        Some("is over 72 characters")
    } else if NAMELESS.contains(&first.as_str()) {
        Some("begins with a pronoun instead of a verb")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_or_nameless_subject_breaks_the_rule() {
        assert_eq!(breach("Refuse a store that is smaller than its region"), None);
        assert!(breach("Who finds room carries").is_some());
        assert!(breach(&"x".repeat(73)).is_some());
    }
}
