//! Tests of the decision: each condition alone, the order of rules, counts and chance.

use super::*;
use crate::parse;
use std::cell::RefCell;
use std::collections::HashMap;
use usring_uapi::opcode;

struct Run {
    rules: Vec<Rule>,
    counts: RefCell<HashMap<u16, u64>>,
    seed: u64,
}

fn run(rules: &[&str]) -> Run {
    Run { rules: rules.iter().map(|text| parse(text).unwrap()).collect(), counts: RefCell::default(), seed: 7 }
}

fn call() -> Call<'static> {
    let number = opcode::READ.into();
    let (user_data, ring) = (Some(42), Some(1));
    Call {
        kind: Kind::Ring,
        number,
        descriptor: Some(5),
        user_data,
        ring,
        thread: 9,
        names: &NoNames,
        issue_path: None,
    }
}

const OCCURRENCE: CallOccurrence = CallOccurrence { process: 1, nth: 1, elapsed: 1_000, seed: 7 };

impl Run {
    fn ask_at(&self, call: &Call<'_>, occurrence: &CallOccurrence) -> Option<Fault> {
        let rules = self.rules.iter().enumerate().map(|(index, rule)| (index as u16, rule));
        decide(rules, call, &CallOccurrence { seed: self.seed, ..*occurrence }, |rule| {
            let mut counts = self.counts.borrow_mut();
            let count = counts.entry(rule).or_default();
            *count += 1;
            *count
        })
    }

    fn ask(&self) -> Option<Fault> {
        self.ask_at(&call(), &OCCURRENCE)
    }

    fn fires(&self, calls: u64) -> Vec<u64> {
        (1..=calls).filter(|_| self.ask().is_some()).collect()
    }
}

#[test]
fn the_calls_that_when_names_get_the_fault() {
    assert_eq!(run(&["read:error=EIO:when=3+2"]).fires(8), [3, 5, 7]);
    assert_eq!(run(&["write:error=EIO"]).fires(8), []);
    assert_eq!(run(&["read:error=EIO"]).ask().unwrap().answer, Some(Answer::Error(5)));
}

#[test]
fn a_rule_with_a_way_means_a_request_only_once_the_way_is_known() {
    let rules = run(&["read:error=EIO:by=poll"]);
    let by = |issue_path| rules.ask_at(&Call { issue_path, ..call() }, &OCCURRENCE).is_some();
    assert!(!by(None) && !by(Some(IssuePath::Worker)) && by(Some(IssuePath::Poll)));
    let others = run(&["read:error=EIO"]);
    assert!(
        others.ask_at(&Call { issue_path: Some(IssuePath::Poll), ..call() }, &OCCURRENCE).is_none(),
        "it was asked already"
    );
}

#[test]
fn the_last_rule_that_means_a_call_decides_alone() {
    let both = run(&["read:error=EIO:when=1", "read:error=EPERM:when=3"]);
    assert_eq!(both.fires(4), [3], "as strace does");
    let narrow = run(&["read:error=EIO", "read:error=EPERM:fd=6"]);
    assert_eq!(narrow.ask().unwrap().answer, Some(Answer::Error(5)), "a rule for another file hides nothing");
}

#[test]
fn every_condition_has_to_hold() {
    for condition in ["fd=6", "user_data=41", "ring=2", "tid=8", "process=2", "nth=2", "after=2us", "path=*"] {
        let text = format!("read:error=EIO:{condition}");
        assert!(run(&[&text]).ask().is_none(), "{condition}");
    }
    let all = "read:error=EIO:fd=5:user_data=42:ring=1:tid=9:process=1:nth=1:after=1us";
    assert!(run(&[all]).ask().is_some());
}

struct One(&'static str);

impl Names for One {
    fn any(&self, matches: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        matches(self.0.as_bytes())
    }
}

#[test]
fn a_pattern_is_compared_with_the_names_of_the_file() {
    let rule = run(&["read:error=EIO:path=*.wal"]);
    assert!(rule.ask_at(&Call { names: &One("/srv/1.wal"), ..call() }, &OCCURRENCE).is_some());
    assert!(rule.ask_at(&Call { names: &One("/srv/1.db"), ..call() }, &OCCURRENCE).is_none());
}

#[test]
fn a_probability_is_about_that_share_and_the_same_for_the_same_seed() {
    let fired = run(&["read:error=EIO:p=10%"]).fires(10_000);
    assert!((900..1_100).contains(&fired.len()), "{}", fired.len());
    assert_eq!(run(&["read:error=EIO:p=10%"]).fires(10_000), fired);
    let other = Run { seed: 8, ..run(&["read:error=EIO:p=10%"]) };
    assert_ne!(other.fires(10_000), fired);
    assert!(run(&["read:error=EIO:p=0"]).fires(1_000).is_empty());
    assert_eq!(run(&["read:error=EIO:p=1"]).fires(1_000).len(), 1_000);
}

#[test]
fn a_short_transfer_has_at_least_one_byte_and_not_all() {
    let limit = |text: &str, total| run(&[text]).ask().unwrap().limit(total);
    assert_eq!(limit("read:short=10", 100), Some(10));
    assert_eq!(limit("read:short=10", 10), None);
    assert_eq!(limit("read:short=0", 10), Some(1));
    assert_eq!(limit("read:short=50%", 100), Some(50));
    assert_eq!(limit("read:short=50%", 1), None);
    assert_eq!(limit("read:short=50%", 0), None);
    let random = run(&["read:short=random"]);
    let limits: Vec<_> = (0..50).map(|_| random.ask().unwrap().limit(1_000).unwrap()).collect();
    assert!(limits.iter().all(|limit| (1..1_000).contains(limit)) && limits.iter().any(|limit| *limit != limits[0]));
}

#[test]
fn a_fault_is_written_as_the_rule_that_repeats_it() {
    let texts = [
        "read:error=EIO:effect=done:signal=10",
        "read:short=random:delay_exit=exponential(1ms)",
        "read:retval=17:delay=5us",
        "read:error=EIO:effect=partial:short=7",
        "read:flip=3:reorder=2",
        "ring:read:overflow:spurious",
        "read:cancel",
    ];
    for text in texts {
        let (original, occurrence) = (run(&[text]).ask().unwrap(), CallOccurrence { nth: 3, process: 2, ..OCCURRENCE });
        let mut line = String::new();
        original.write(&mut line, &call(), &occurrence).unwrap();
        assert!(line.starts_with("ring:read:process=2:nth=3:"), "{line}");
        let again = run(&[&line]);
        assert_eq!(again.ask_at(&call(), &occurrence), Some(original), "{line}");
        assert_eq!(again.ask_at(&call(), &CallOccurrence { nth: 4, ..occurrence }), None, "{line}");
    }
}
