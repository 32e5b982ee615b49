//! Helpers for the tests of several modules, and the properties that hold for every history.

use crate::durability::{Durability, Model, OperationState};
use crate::generator::{Generator, Stage};
use crate::history::{Change, History, Scope};
use crate::plan::{Choice, Plan};
use crate::tree::{Body, DirectoryEntry, Inode, Node, ROOT};
use fastrand::Rng;
use std::collections::BTreeSet;
use std::sync::Arc;

pub const FILE: Node = Node(1);
pub const OTHER: Node = Node(2);

pub fn write(node: Node, offset: u64, data: &[u8]) -> Change {
    Change::Write { node, offset, data: Arc::from(data) }
}

fn entry(name: &str) -> DirectoryEntry {
    DirectoryEntry { folder: ROOT, name: name.into() }
}

pub fn create(name: &str, node: Node) -> Change {
    Change::Name { entry: entry(name), node }
}

pub fn rename(from: &str, to: &str, node: Node) -> Change {
    Change::Rename { from: entry(from), to: entry(to), node }
}

pub fn fsync(node: Node) -> Scope {
    Scope::Node { node, data_only: false }
}

pub fn fsync_root() -> Scope {
    fsync(ROOT)
}

/// Returns a history of an empty folder, with two files that have no names yet.
pub fn empty() -> History {
    let mut history = History::default();
    for node in [FILE, OTHER] {
        history.initial.add(node, Inode { body: Body::File(Arc::default()), mode: 0o644 });
    }
    history
}

/// Returns a history of a folder with one file named "file".
pub fn with_file(content: &[u8]) -> History {
    let mut history = empty();
    history.initial.apply(&create("file", FILE));
    history.initial.apply(&write(FILE, 0, content));
    history
}

/// Returns the content of "file" after a power loss at the end of a history. `choices` says what
/// the power loss leaves of the operations.
pub fn content_after(history: &History, choices: &[(usize, Choice)]) -> Vec<u8> {
    let durability = Durability::of(history, Model::Posix);
    let plan = Plan { cut: history.length, choices: choices.to_vec() };
    let tree = plan.tree(history, &durability);
    let node = tree.find("file".as_ref()).expect("the file has its name");
    tree.content(node).expect("it is a file").bytes()
}

/// Makes a history of random operations, some of which overlap.
fn random_history(seed: u64) -> History {
    let mut random = Rng::with_seed(seed);
    let mut history = with_file(b"first");
    let mut open = Vec::new();
    let mut names = 0;
    for _ in 0..random.u64(..30) {
        let node = if random.u64(..2) == 0 { FILE } else { OTHER };
        match random.u64(..9) {
            0..=3 => {
                let data = vec![random.u64(..) as u8 | 1; random.u64(..2000) as usize];
                open.push(history.begin(write(node, random.u64(..3000), &data)));
            }
            4 => open.push(history.begin(Change::Resize { node, size: random.u64(..3000) })),
            5 => open.push(history.begin_sync(fsync(node))),
            6 => open.push(history.begin_sync(fsync_root())),
            7 => {
                names += 1;
                open.push(history.begin(create(&format!("name {names}"), node)));
            }
            _ => history.push_output(b"said\n"),
        }
        while !open.is_empty() && random.u64(..3) != 0 {
            let index = random.u64(..open.len() as u64) as usize;
            let event = open.swap_remove(index);
            history.end(event);
        }
    }
    history
}

fn plans(history: &History, durability: &Durability, seed: u64) -> Vec<Plan> {
    Generator::new(history, durability, seed).take(1000).collect()
}

#[test]
fn data_that_fsync_covered_is_in_every_state() {
    for seed in 0..20 {
        let history = random_history(seed);
        for model in [Model::Posix, Model::Ext4Ordered, Model::Device] {
            let durability = Durability::of(&history, model);
            for plan in plans(&history, &durability, seed) {
                for node in [FILE, OTHER] {
                    let of_node = |index: &usize| history.operations[*index].change.file() == Some(node);
                    let all: Vec<usize> = (0..history.operations.len()).filter(of_node).collect();
                    if all
                        .iter()
                        .any(|index| durability.state_at(&history, *index, plan.cut) == OperationState::Pending)
                    {
                        continue;
                    }
                    let mut expected = history.initial.clone();
                    for index in all {
                        if durability.state_at(&history, index, plan.cut) == OperationState::Durable {
                            expected.apply(&history.operations[index].change);
                        }
                    }
                    let tree = plan.tree(&history, &durability);
                    let (is, should) = (tree.content(node).unwrap(), expected.content(node).unwrap());
                    assert_eq!(is.first_difference(should), None, "seed {seed}, {model:?}, {plan:?}");
                }
            }
        }
    }
}

#[test]
fn requests_that_complete_before_the_submission_of_an_fsync_are_durable_and_those_in_flight_are_not() {
    for seed in 0..200 {
        let history = random_history(seed);
        let durability = Durability::of(&history, Model::Posix);
        for (index, operation) in history.operations.iter().enumerate() {
            let Some(file) = operation.change.file() else { continue };
            let covering = history
                .syncs
                .iter()
                .filter(|sync| sync.scope == fsync(file) && operation.end.is_some_and(|end| end < sync.begin));
            let first = covering.filter_map(|sync| sync.end).min();
            for cut in 0..=history.length {
                let is_durable = durability.state_at(&history, index, cut) == OperationState::Durable;
                assert_eq!(is_durable, first.is_some_and(|end| end < cut), "seed {seed}, {index}, {cut}");
            }
        }
    }
}

#[test]
fn every_operation_that_can_be_undone_is_lost_in_some_state_and_kept_in_another() {
    for seed in 0..30 {
        let history = random_history(seed);
        let durability = Durability::of(&history, Model::Posix);
        let plans = plans(&history, &durability, seed);
        for cut in 1..=history.length {
            for index in durability.pending(&history, cut) {
                let has = |choice| plans.iter().any(|plan| plan.cut == cut && plan.choice(index) == choice);
                assert!(has(Choice::Lost) && has(Choice::Whole), "seed {seed}, {index}, {cut}");
            }
        }
    }
}

#[test]
fn the_states_of_ext4_are_among_those_of_posix() {
    for seed in 0..40 {
        let history = random_history(seed);
        let posix = Durability::of(&history, Model::Posix);
        let ext4 = Durability::of(&history, Model::Ext4Ordered);
        for cut in 0..=history.length {
            let allowed: BTreeSet<_> = posix.pending(&history, cut).into_iter().collect();
            assert!(ext4.pending(&history, cut).iter().all(|index| allowed.contains(index)), "seed {seed}");
        }
    }
}

#[test]
fn equal_seeds_give_equal_plans() {
    let history = random_history(5);
    let durability = Durability::of(&history, Model::Posix);
    assert_eq!(plans(&history, &durability, 1), plans(&history, &durability, 1));
    assert_ne!(plans(&history, &durability, 1), plans(&history, &durability, 2));
}

#[test]
fn the_cheapest_states_come_first() {
    let mut history = with_file(b"");
    (0..4).for_each(|number| {
        history.push(write(FILE, number, b"x"));
    });
    let durability = Durability::of(&history, Model::Posix);
    let mut generator = Generator::new(&history, &durability, 0);
    let mut last = Stage::Promises;
    for _ in 0..500 {
        generator.next().expect("random states do not end");
        assert!(generator.stage() >= last);
        last = generator.stage();
    }
    assert_eq!(last, Stage::Random);
}

#[test]
fn states_right_after_an_output_come_first() {
    let mut history = with_file(b"");
    (0..4).for_each(|number| {
        history.push(write(FILE, number, b"x"));
    });
    history.push_output(b"stored\n");
    let printed_at = history.outputs[0].position;
    history.push(write(FILE, 4, b"x"));
    let durability = Durability::of(&history, Model::Posix);
    let first: Vec<_> = Generator::new(&history, &durability, 0).take(3).collect();
    assert_eq!(first[0].cut, printed_at + 1);
    assert_eq!(first[1].cut, printed_at + 1);
    assert!(first[1].choices.iter().all(|(_, choice)| *choice == Choice::Lost));
    assert_eq!(first[2].cut, 1);
}

#[test]
fn a_history_without_losses_has_an_end() {
    let mut history = with_file(b"");
    history.push_output(b"nothing changes\n");
    let durability = Durability::of(&history, Model::Posix);
    assert!(Generator::new(&history, &durability, 0).count() <= 2);
}
