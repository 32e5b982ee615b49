//! Reduces a power loss on which a check fails to a smaller one on which it still fails:
//!
//! 1. Delta debugging removes losses: an operation that was lost or torn becomes whole (Zeller and
//!    Hildebrandt, "Simplifying and isolating failure-inducing input", 2002).
//! 2. A bisection moves the power loss to an earlier position.

use crate::durability::Durability;
use crate::history::History;
use crate::plan::{Choice, Plan};

/// Returns a plan for which `fails` still returns true, with fewer lost operations and an earlier
/// position if there is one. Calls `fails` at most `most_tries` times. If these calls suffice and
/// several lost operations remain, each of them is necessary: `fails` returned false for the plan
/// in which only this operation was made whole. The later bisection does not repeat these tests.
pub fn minimise(
    history: &History,
    durability: &Durability,
    failing: Plan,
    most_tries: usize,
    mut fails: impl FnMut(&Plan) -> bool,
) -> Plan {
    let mut tries = most_tries;
    let mut try_plan = |plan: &Plan| {
        tries = tries.saturating_sub(1);
        tries > 0 && fails(plan)
    };
    let smaller = fewer_losses(history, durability, failing, &mut try_plan);
    earlier(history, durability, smaller, &mut try_plan)
}

/// Makes lost operations of the plan whole while `fails` returns true: first half of them at a
/// time, then a quarter, and so on down to single operations.
fn fewer_losses(
    history: &History,
    durability: &Durability,
    mut plan: Plan,
    fails: &mut impl FnMut(&Plan) -> bool,
) -> Plan {
    let mut pieces = 2;
    loop {
        let lost: Vec<usize> =
            plan.choices.iter().filter(|(_, choice)| *choice != Choice::Whole).map(|(index, _)| *index).collect();
        if lost.len() < 2 {
            return plan;
        }
        let mut shrank = false;
        for mended in lost.chunks(lost.len().div_ceil(pieces)) {
            let mut candidate = plan.clone();
            for (index, choice) in &mut candidate.choices {
                if mended.contains(index) {
                    *choice = Choice::Whole;
                }
            }
            let candidate = candidate.allowed(history, durability);
            if candidate.losses() < plan.losses() && fails(&candidate) {
                plan = candidate;
                shrank = true;
                break;
            }
        }
        pieces = match shrank {
            true => pieces.saturating_sub(1).max(2),
            false if pieces >= lost.len() => return plan,
            false => (pieces * 2).min(lost.len()),
        };
    }
}

/// Moves the power loss to an earlier position by bisection, but not before the beginning of the
/// last lost operation.
fn earlier(history: &History, durability: &Durability, mut plan: Plan, fails: &mut impl FnMut(&Plan) -> bool) -> Plan {
    let is_lost = |(_, choice): &&(usize, Choice)| *choice != Choice::Whole;
    let last_begin = plan.choices.iter().filter(is_lost).map(|(index, _)| history.operations[*index].begin).max();
    let mut low = last_begin.unwrap_or(0) + 1;
    while low < plan.cut {
        let middle = low + (plan.cut - low) / 2;
        let pending = durability.pending(history, middle);
        let choices = pending.into_iter().map(|index| (index, plan.choice(index))).collect();
        let candidate = Plan { cut: middle, choices }.allowed(history, durability);
        if fails(&candidate) {
            plan = candidate;
        } else {
            low = middle + 1;
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durability::Model;
    use crate::tests::{FILE, with_file, write};

    #[test]
    fn of_many_losses_only_those_stay_without_which_the_check_passes() {
        let mut history = with_file(b"");
        for number in 0..20 {
            history.push(write(FILE, number, b"x"));
        }
        let durability = Durability::of(&history, Model::Posix);
        let cut = history.length;
        let all_lost = Plan { cut, choices: (0..20).map(|index| (index, Choice::Lost)).collect() };
        let needed = |plan: &Plan| plan.choice(3) == Choice::Lost && plan.choice(11) == Choice::Lost;
        let mut tries = 0;
        let smallest = minimise(&history, &durability, all_lost, 1000, |plan| {
            tries += 1;
            needed(plan) && plan.cut > history.operations[15].begin
        });
        assert_eq!(smallest.losses(), 2);
        assert!(needed(&smallest));
        assert_eq!(smallest.cut, history.operations[15].begin + 1);
        assert!(tries < 100, "{tries} tries");
    }
}
