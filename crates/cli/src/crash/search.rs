//! Makes states and checks them, on all processors.

use super::STATUS_NOT_RUN;
use super::folder::{self, Base};
use super::programs::{Check, Verdict};
use super::workplace::{Workplace, is_stopped};
use crate::Failure;
use crate::system_error::words;
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use usring_crash::durability::{Durability, OperationState};
use usring_crash::generator::{Generator, Stage};
use usring_crash::{History, Plan, Tree};

/// The search ends after this number of consecutive random plans that led to no new state. Further
/// plans are then unlikely to lead to one.
const MOST_KNOWN: u64 = 5000;

/// One search.
pub struct Search<'a> {
    pub history: &'a History,
    pub durability: &'a Durability,
    pub check: &'a str,
    pub limit: Duration,
    pub budget: Duration,
    pub seed: u64,
    pub workplace: &'a Workplace,
    /// A copy of the folder as it was before the recorded command.
    pub base: &'a Path,
}

/// A state in which the check fails.
pub struct Failing {
    pub plan: Plan,
    pub verdict: Verdict,
}

/// The result of a search.
pub struct Found {
    pub failing: Option<Failing>,
    pub states: u64,
    pub seconds: f64,
    /// Whether the search ended because no new state was left.
    pub is_exhausted: bool,
    /// Whether the check failed on a state and then passed on the same state.
    pub is_unstable: bool,
}

/// The state of a search that its threads share.
struct Shared<'a> {
    generator: Mutex<Generator<'a>>,
    seen: Mutex<HashSet<(u64, usize)>>,
    failing: Mutex<Option<Failing>>,
    failure: Mutex<Option<Failure>>,
    is_over: AtomicBool,
    is_exhausted: AtomicBool,
    is_unstable: AtomicBool,
    states: AtomicU64,
    known_in_a_row: AtomicU64,
    end: Instant,
    bar: ProgressBar,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread of the search. It makes the state that each planned power loss leaves, and runs the
/// check on that state.
pub struct Worker<'a> {
    search: &'a Search<'a>,
    check: Check,
    /// The folder after the first operations of the history, and the number of these operations.
    /// They were durable at the power loss that this worker tried last. If they are also durable at
    /// the next power loss, the worker builds the next tree from this one.
    prefix: (Tree, usize),
}

impl<'a> Worker<'a> {
    pub fn new(search: &'a Search<'a>, number: usize) -> Worker<'a> {
        let check = Check::new(search.check, search.limit, search.workplace, number);
        Worker { search, check, prefix: (search.history.initial.clone(), 0) }
    }

    fn tree(&mut self, plan: &Plan) -> Tree {
        let Search { history, durability, .. } = *self.search;
        let is_durable = |index: &usize| durability.state_at(history, *index, plan.cut) == OperationState::Durable;
        let durable = (0..history.operations.len()).take_while(is_durable).count();
        if durable < self.prefix.1 {
            self.prefix = (history.initial.clone(), 0);
        }
        for operation in &history.operations[self.prefix.1..durable] {
            self.prefix.0.apply(&operation.change);
        }
        self.prefix.1 = durable;
        plan.tree_from(history, durability, self.prefix.0.clone(), durable)
    }

    /// Runs the check on a tree, in a fresh folder.
    pub fn check(&self, tree: &Tree, printed: &[u8]) -> Result<Verdict, Failure> {
        folder::remove(&self.check.state);
        let base = Base { tree: &self.search.history.initial, folder: self.search.base };
        folder::write(tree, &self.check.state, Some(&base)).map_err(|error| {
            Failure::with_status(
                STATUS_NOT_RUN,
                format!("cannot write a state to {} ({error})", self.check.state.display(), error = words(&error)),
            )
        })?;
        let verdict = self.check.run(printed);
        folder::remove(&self.check.state);
        verdict
    }

    /// Runs the check on the state that a planned power loss leaves.
    pub fn check_plan(&mut self, plan: &Plan) -> Result<Verdict, Failure> {
        let tree = self.tree(plan);
        self.check(&tree, &self.search.history.output_before(plan.cut))
    }

    fn run(&mut self, shared: &Shared<'_>) {
        while !shared.is_over.load(Ordering::Relaxed) && Instant::now() < shared.end && !is_stopped() {
            if let Err(failure) = self.next(shared) {
                lock(&shared.failure).get_or_insert(failure);
                shared.is_over.store(true, Ordering::Relaxed);
            }
        }
    }

    fn next(&mut self, shared: &Shared<'_>) -> Result<(), Failure> {
        let (plan, stage) = {
            let mut generator = lock(&shared.generator);
            (generator.next(), generator.stage())
        };
        let Some(plan) = plan else {
            shared.is_exhausted.store(true, Ordering::Relaxed);
            shared.is_over.store(true, Ordering::Relaxed);
            return Ok(());
        };
        let tree = self.tree(&plan);
        let printed = self.search.history.output_before(plan.cut);
        if !lock(&shared.seen).insert((tree.hash(), printed.len())) {
            let known = shared.known_in_a_row.fetch_add(1, Ordering::Relaxed);
            if stage == Stage::Random && known >= MOST_KNOWN {
                shared.is_exhausted.store(true, Ordering::Relaxed);
                shared.is_over.store(true, Ordering::Relaxed);
            }
            return Ok(());
        }
        shared.known_in_a_row.store(0, Ordering::Relaxed);
        let first = self.check(&tree, &printed)?;
        let states = shared.states.fetch_add(1, Ordering::Relaxed) + 1;
        shared.bar.set_position(states);
        if first.ended.is_success() || is_stopped() {
            return Ok(());
        }
        let verdict = self.check(&tree, &printed)?;
        if verdict.ended.is_success() {
            shared.is_unstable.store(true, Ordering::Relaxed);
            return Ok(());
        }
        if !is_stopped() {
            lock(&shared.failing).get_or_insert(Failing { plan, verdict });
            shared.is_over.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Checks states until the check fails on one, no new state is left, or the budget is used up.
pub fn search(search: &Search<'_>) -> Result<Found, Failure> {
    let begin = Instant::now();
    let shared = Shared {
        generator: Mutex::new(Generator::new(search.history, search.durability, search.seed)),
        seen: Mutex::new(HashSet::new()),
        failing: Mutex::new(None),
        failure: Mutex::new(None),
        is_over: AtomicBool::new(false),
        is_exhausted: AtomicBool::new(false),
        is_unstable: AtomicBool::new(false),
        states: AtomicU64::new(0),
        known_in_a_row: AtomicU64::new(0),
        end: begin + search.budget,
        bar: bar(search.budget),
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for number in 0..workers {
            let shared = &shared;
            scope.spawn(move || Worker::new(search, number).run(shared));
        }
    });
    shared.bar.finish_and_clear();
    if let Some(failure) = lock(&shared.failure).take() {
        return Err(failure);
    }
    let failing = lock(&shared.failing).take();
    Ok(Found {
        failing,
        states: shared.states.load(Ordering::Relaxed),
        seconds: begin.elapsed().as_secs_f64(),
        is_exhausted: shared.is_exhausted.load(Ordering::Relaxed),
        is_unstable: shared.is_unstable.load(Ordering::Relaxed),
    })
}

/// Makes the progress line, which appears on a terminal only. It moves on during a long check, too.
fn bar(budget: Duration) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    let rate = |state: &ProgressState, line: &mut dyn Write| {
        let _ = write!(line, "{:.1}", state.per_sec());
    };
    let style = ProgressStyle::with_template("{spinner} {pos} states checked, {rate} per second, {elapsed} of {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()).with_key("rate", rate));
    bar.set_message(format!("{:#}", HumanDuration(budget)));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
