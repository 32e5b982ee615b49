//! The sentences in which `usring crash` reports the result of its search.

use super::programs::Verdict;
use super::search::Found;
use usring_crash::durability::Durability;
use usring_crash::explain;
use usring_crash::{History, Plan};
use usring_sys::width;

/// Maximum number of lines of a check's output that the report shows.
const MOST_LINES: usize = 10;

/// Returns a number with a noun.
pub fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ if noun.ends_with('s') => format!("{number} {noun}es"),
        _ => format!("{number} {noun}s"),
    }
}

/// Returns how many states were checked, and how fast.
pub fn states(found: &Found) -> String {
    let rate = found.states as f64 / found.seconds.max(0.001);
    format!("{} ({rate:.0} per second)", count(width::size(found.states), "state"))
}

/// Reports a search that found no state on which the check fails each time: why the search ended,
/// and whether the check failed on a state once and then passed.
pub fn nothing_found(found: &Found) -> String {
    let end = if found.is_exhausted { "no new state is left" } else { "the budget is used up" };
    let verdict = match (found.is_unstable, found.states) {
        (true, _) => "unknown: the check failed on a state, and then passed on the same state",
        (false, 0) => "unknown: there was no time for a state; give more by --budget",
        (false, _) => "nothing found: the check passes on all states",
    };
    format!("checked {}; {end}\n{verdict}", states(found))
}

/// Describes a power loss, and the last line that the command had printed before it.
pub fn explanation(history: &History, durability: &Durability, plan: &Plan) -> String {
    let mut lines = explain::plan(history, durability, plan);
    let printed = history.output_before(plan.cut);
    let printed = String::from_utf8_lossy(&printed);
    lines.push(match printed.lines().last() {
        Some(last) => format!("the last line printed before the power loss: {last:?}"),
        None => "nothing was printed before the power loss".into(),
    });
    lines.join("\n")
}

/// Prints the last lines that a check printed.
pub fn said(verdict: &Verdict) {
    let lines: Vec<&str> = verdict.said.lines().collect();
    for line in &lines[lines.len().saturating_sub(MOST_LINES)..] {
        tell!("the check said: {line}");
    }
}
