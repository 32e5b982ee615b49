//! State of `usring run --order` for one ring. A seed chooses the order in which requests complete.
//! This file holds the random numbers, the requests not chosen yet (the candidates), and the chosen
//! requests that still run. `completion::order` adds candidates, and `driving::order` chooses.
//!
//! # Invariants
//! - A request is a candidate from its submission until it is chosen. So the choice does not depend
//!   on when a worker or a device ends the request.
//! - A key stands for the changes of one file. Of the candidates with one key, only the oldest can
//!   be chosen.
//! - After a choice, threads wait until the chosen request completes, for at most
//!   [`LONGEST_WAIT_NS`].

use super::poll_table::PollTable;
use crate::request::conditions::{RequestId, Tag};
use crate::request::fault::FileKey;
use alloc::vec::Vec;
use usring_device::random::Random;
use usring_sys::clock::Nanoseconds;

/// A request that can be chosen as the next one to complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub id: RequestId,
    /// The file that the request changes, if the kernel completes the changes of that file in the
    /// order of submission.
    pub key: Option<FileKey>,
    /// The request may wait for something that the program does later, such as OPENAT of a FIFO.
    pub may_block: bool,
}

/// Longest time, in nanoseconds, for which `usring run --order` waits for a chosen request to
/// complete.
const LONGEST_WAIT_NS: Nanoseconds = 10_000_000_000;
/// Longest time, in nanoseconds, for which `usring run --order` waits for a chosen request that may
/// block. Such a request may wait for something that the program does later.
const LONGEST_WAIT_FOR_BLOCKING_NS: Nanoseconds = 20_000_000;

/// Number of equal parts in which `usring run --order` counts the time limit of a request that it
/// holds back. However long the process is stopped (SIGSTOP), only one part counts as passed.
pub(crate) const LIMIT_PARTS: u32 = 5;

/// The state of `usring run --order` for one ring.
pub(crate) struct Order {
    random: Random,
    /// Whether the seed also chooses completions that find no room in the CQ.
    pub overflows: bool,
    /// In the order of the candidates' ids, which is the order of submission.
    candidates: Vec<Candidate>,
    /// Chosen requests that have not completed yet.
    awaited: Vec<Candidate>,
    /// Time (monotonic clock) until which threads wait for the chosen requests in `awaited`.
    awaited_until: Nanoseconds,
    /// Number of parts of a request's time limit (see [`LIMIT_PARTS`]) that have passed since a
    /// thread last came to choose a request.
    unattended: u32,
    /// Time (monotonic clock) at which [`Order::is_unattended`] last counted a part.
    counted_at: Nanoseconds,
}

impl Order {
    pub fn new(random: Random, overflows: bool) -> Order {
        let (candidates, awaited) = (Vec::new(), Vec::new());
        Order { random, overflows, candidates, awaited, awaited_until: 0, unattended: 0, counted_at: 0 }
    }

    /// Returns the number of candidates.
    pub fn waiting(&self) -> usize {
        self.candidates.len()
    }

    /// Returns `true` at random, on average once in `times` calls.
    pub fn happens(&mut self, times: u64) -> bool {
        self.random.below(times) == 0
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usring_sys::width::size(self.random.below(end as u64))
    }

    /// Returns whether an earlier change of the file `key` has not completed. Returns `false` if
    /// `key` is `None`.
    pub fn is_changing(&self, key: Option<FileKey>) -> bool {
        key.is_some() && self.candidates.iter().chain(&self.awaited).any(|other| other.key == key)
    }

    pub fn add(&mut self, candidate: Candidate) {
        let at = self.candidates.partition_point(|other| other.id < candidate.id);
        self.candidates.insert(at, candidate);
    }

    /// Returns whether threads have to wait for a request that was chosen: the request still runs,
    /// and the time limit of that wait is not over. `now`: time of the monotonic clock.
    pub fn is_awaiting(&mut self, now: Nanoseconds) -> bool {
        if now >= self.awaited_until {
            self.awaited.clear();
        }
        !self.awaited.is_empty()
    }

    /// Notes that a thread has come to choose a request. The time limit for which no thread comes
    /// begins anew.
    pub fn attend(&mut self) {
        self.unattended = 0;
    }

    /// Counts one part of the time limit as passed if `part` nanoseconds have passed since the last
    /// count. Returns whether at least [`LIMIT_PARTS`] parts have been counted since a thread last
    /// came to choose a request. `now`: time of the monotonic clock.
    pub fn is_unattended(&mut self, now: Nanoseconds, part: Nanoseconds) -> bool {
        if now.saturating_sub(self.counted_at) >= part {
            self.counted_at = now;
            self.unattended = self.unattended.saturating_add(1);
        }
        self.unattended >= LIMIT_PARTS
    }

    /// Removes a request that completes.
    pub fn forget(&mut self, id: RequestId) {
        self.candidates.retain(|other| other.id != id);
        self.awaited.retain(|other| other.id != id);
    }

    /// Returns whether the request is among the candidates.
    pub fn has(&self, id: RequestId) -> bool {
        self.candidates.iter().any(|other| other.id == id)
    }

    /// Chooses one of the candidates at random as the next request to complete. Threads then wait
    /// for it. `None`: no candidate can be chosen now. `now`: time of the monotonic clock.
    pub fn choose(&mut self, now: Nanoseconds) -> Option<RequestId> {
        let may_be = |index: &usize| {
            let key = self.candidates[*index].key;
            let mut earlier = self.candidates[..*index].iter().chain(&self.awaited);
            key.is_none() || earlier.all(|other| other.key != key)
        };
        let possible: Vec<usize> = (0..self.candidates.len()).filter(may_be).collect();
        if possible.is_empty() {
            return None;
        }
        let chosen = possible[self.below(possible.len())];
        let candidate = self.candidates.remove(chosen);
        let timeout = if candidate.may_block { LONGEST_WAIT_FOR_BLOCKING_NS } else { LONGEST_WAIT_NS };
        self.awaited_until = now.saturating_add(timeout);
        self.awaited.push(candidate);
        Some(candidate.id)
    }
}

/// Returns the descriptor number of the file for which the epoll set reported an event. `None`: the
/// event is late, and its slot in the poll table has another file by now.
pub(crate) fn number_of_event(polls: &mut PollTable, tag: Tag) -> Option<i32> {
    polls.slot(tag).map(|slot| slot.number())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn order(seed: u64, keys: &[Option<FileKey>]) -> Order {
        let mut order = Order::new(Random::new(seed), false);
        for (id, &key) in (0..).zip(keys) {
            order.add(Candidate { id: RequestId(id), key, may_block: false });
        }
        order
    }

    fn chosen(mut order: Order) -> Vec<u64> {
        let choose = || order.choose(0).inspect(|&id| order.forget(id));
        core::iter::from_fn(choose).map(|id| id.0).collect()
    }

    #[test]
    fn a_process_that_was_stopped_counts_one_part_of_the_limit() {
        let mut order = order(1, &[]);
        assert!(!order.is_unattended(1_000_000, 10), "a long time without a call counts once");
        assert!((1..4).all(|part| !order.is_unattended(1_000_000 + part * 10, 10)));
        assert!(order.is_unattended(1_000_040, 10));
        order.attend();
        assert!(!order.is_unattended(1_000_050, 10));
    }

    #[test]
    fn a_seed_has_one_order_and_other_seeds_have_others() {
        let keys = [None; 5];
        assert_eq!(chosen(order(7, &keys)), chosen(order(7, &keys)));
        let orders: alloc::collections::BTreeSet<_> = (0..50).map(|seed| chosen(order(seed, &keys))).collect();
        assert!(orders.len() > 20, "{orders:?}");
    }

    #[test]
    fn changes_of_one_file_are_chosen_in_the_order_of_submission() {
        let (first, second) = (Some((1, 1)), Some((1, 2)));
        for seed in 0..50 {
            let order = chosen(order(seed, &[first, second, None, first, second]));
            let at = |id: u64| order.iter().position(|&other| other == id);
            assert!(at(0) < at(3) && at(1) < at(4), "{seed}: {order:?}");
        }
    }

    #[test]
    fn a_change_is_not_chosen_before_the_awaited_one_of_its_file_has_come_back() {
        let key = Some((1, 1));
        let mut order = order(1, &[key, key]);
        let first = order.choose(0).unwrap();
        assert!(order.choose(0).is_none());
        order.forget(first);
        assert_eq!(order.choose(0), Some(RequestId(1)));
    }
}
