//! Chooses the power losses to try: first those on which the check most probably fails.
//!
//! | stage | what the power loss leaves of the operations that it can undo |
//! |---|---|
//! | `Promises` | all of them, or none, at positions right after an output of the command |
//! | `Ends` | all of them, or none |
//! | `Singles` | all but one, or one alone |
//! | `Parts` | one write in part: torn by sectors of 512 or 4096 bytes, or its size alone |
//! | `Groups` | one group: the first ones, those of one file, those of names, or those of bytes |
//! | `Random` | a random part, with random tears |
//!
//! Every stage but `Promises` visits all positions of the history, in order. `Random` starts anew
//! at the end of the history, until the caller stops. `Promises` is the first stage, because users
//! look for broken promises: an output of the command says that changes are durable, and they are
//! not. A check that starts a database takes a second, so the budget may suffice for few positions.

use crate::durability::Durability;
use crate::history::{Change, History, Position};
use crate::plan::{Choice, Plan, SurvivingSectors, Tear, sectors};
use fastrand::Rng;
use std::collections::{BTreeSet, VecDeque};
use usring_sys::width;

/// Sizes of the sectors by which writes are torn.
const SECTORS: [u64; 2] = [512, 4096];
/// Maximum number of operations that the stages `Singles` and `Parts` try one by one at a position.
/// If a power loss there can undo more, they try the newest operations and some random older ones.
const MOST_SINGLES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Promises,
    Ends,
    Singles,
    Parts,
    Groups,
    Random,
}

impl Stage {
    fn next(self) -> Stage {
        match self {
            Stage::Promises => Stage::Ends,
            Stage::Ends => Stage::Singles,
            Stage::Singles => Stage::Parts,
            Stage::Parts => Stage::Groups,
            Stage::Groups | Stage::Random => Stage::Random,
        }
    }
}

/// The sequence of plans for power losses. It ends only after a pass over the history in the stage
/// `Random` has found no operation that a power loss can undo.
pub struct Generator<'a> {
    history: &'a History,
    durability: &'a Durability,
    random: Rng,
    stage: Stage,
    cut: Position,
    ready: VecDeque<Plan>,
    /// Whether the present pass over the history, in the stage `Random`, has found an operation
    /// that a power loss can undo.
    had_choice: bool,
}

impl<'a> Generator<'a> {
    pub fn new(history: &'a History, durability: &'a Durability, seed: u64) -> Generator<'a> {
        let (random, ready) = (Rng::with_seed(seed), VecDeque::new());
        Generator { history, durability, random, stage: Stage::Promises, cut: 1, ready, had_choice: true }
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    fn fill(&mut self) {
        if self.cut > self.history.length {
            if self.stage == Stage::Random && !core::mem::take(&mut self.had_choice) {
                return;
            }
            (self.stage, self.cut) = (self.stage.next(), 1);
        }
        let pending = self.durability.pending(self.history, self.cut);
        self.had_choice |= self.stage == Stage::Random && !pending.is_empty();
        match self.stage {
            Stage::Promises if !self.history.has_output_at(self.cut - 1) => {}
            Stage::Promises | Stage::Ends => self.ends(&pending),
            _ if pending.is_empty() => {}
            Stage::Singles => self.singles(&pending),
            Stage::Parts => self.parts(&pending),
            Stage::Groups => self.groups(&pending),
            Stage::Random => self.random_subset(&pending),
        }
        self.cut += 1;
    }

    fn add(&mut self, pending: &[usize], choose: impl FnMut(usize) -> Choice) {
        let choices = pending.iter().copied().zip(pending.iter().copied().map(choose)).collect();
        let plan = Plan { cut: self.cut, choices };
        self.ready.push_back(plan.allowed(self.history, self.durability));
    }

    fn ends(&mut self, pending: &[usize]) {
        self.add(pending, |_| Choice::Whole);
        if !pending.is_empty() {
            self.add(pending, |_| Choice::Lost);
        }
    }

    /// Returns the operations that `Singles` and `Parts` try one by one ([`MOST_SINGLES`]).
    fn chosen(&mut self, pending: &[usize]) -> Vec<usize> {
        if pending.len() <= MOST_SINGLES {
            return pending.to_vec();
        }
        let (old, new) = pending.split_at(pending.len() - MOST_SINGLES / 2);
        let some_old = (0..MOST_SINGLES / 2).map(|_| old[width::size(self.random.u64(..old.len() as u64))]);
        let mut chosen: Vec<usize> = some_old.chain(new.iter().copied()).collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    fn singles(&mut self, pending: &[usize]) {
        for single in self.chosen(pending) {
            self.add(pending, |index| if index == single { Choice::Lost } else { Choice::Whole });
            self.add(pending, |index| if index == single { Choice::Whole } else { Choice::Lost });
        }
    }

    fn parts(&mut self, pending: &[usize]) {
        for single in self.chosen(pending) {
            for part in self.parts_of(single) {
                self.add(pending, |index| if index == single { part } else { Choice::Whole });
                self.add(pending, |index| if index == single { part } else { Choice::Lost });
            }
        }
    }

    /// Returns the parts of a write that a power loss can leave.
    fn parts_of(&mut self, index: usize) -> Vec<Choice> {
        let Change::Write { offset, data, .. } = &self.history.operations[index].change else { return Vec::new() };
        let mut parts = Vec::new();
        if self.durability.grows(index) {
            parts.push(Choice::SizeOnly);
        }
        for sector in SECTORS {
            let count = sectors(*offset, data.len() as u64, sector).len() as u64;
            if count > 1 {
                let mut kept = vec![
                    SurvivingSectors::First(count / 2),
                    SurvivingSectors::Last(1),
                    SurvivingSectors::First(count - 1),
                ];
                if count > 2 {
                    kept.push(SurvivingSectors::Last(count / 2));
                    kept.push(SurvivingSectors::Random(self.random.u64(..)));
                }
                parts.extend(kept.into_iter().map(|surviving| Choice::Torn(Tear { sector, surviving })));
            }
        }
        parts
    }

    fn groups(&mut self, pending: &[usize]) {
        for number in 1..pending.len().min(MOST_SINGLES) {
            let first_lost = pending[pending.len() - number];
            self.add(pending, |index| if index < first_lost { Choice::Whole } else { Choice::Lost });
        }
        let history = self.history;
        let file = |index: usize| history.operations[index].change.file();
        let files: BTreeSet<_> = pending.iter().map(|index| file(*index)).collect();
        for kept in files {
            // Adds a plan that keeps only the changes of the file `kept`, and a plan that keeps
            // only all other changes. If `kept` is `None`, it stands for the changes of names.
            self.add(pending, |index| if file(index) == kept { Choice::Whole } else { Choice::Lost });
            self.add(pending, |index| if file(index) == kept { Choice::Lost } else { Choice::Whole });
        }
        self.add(pending, |index| match file(index) {
            Some(_) => Choice::SizeOnly,
            None => Choice::Whole,
        });
    }

    fn random_subset(&mut self, pending: &[usize]) {
        let mut random = Rng::with_seed(self.random.u64(..));
        let losses_of_eight = 1 + random.u64(..7);
        let choose = |_| match random.u64(..8) {
            number if number >= losses_of_eight => Choice::Whole,
            0 => Choice::SizeOnly,
            1 | 2 => {
                let sector = SECTORS[width::size(random.u64(..2))];
                Choice::Torn(Tear { sector, surviving: SurvivingSectors::Random(random.u64(..)) })
            }
            _ => Choice::Lost,
        };
        self.add(pending, choose);
    }
}

impl Iterator for Generator<'_> {
    type Item = Plan;

    fn next(&mut self) -> Option<Plan> {
        while self.ready.is_empty() {
            if self.stage == Stage::Random && self.cut > self.history.length && !self.had_choice {
                return None;
            }
            self.fill();
        }
        self.ready.pop_front()
    }
}
