//! Tests values that belong to one process. A forked child makes these values anew.

use std::sync::atomic::{AtomicUsize, Ordering};
use usring_sys::per_process::{self, OwnedPerProcess};

/// A number of values for which the words of the shared page (512) are not enough. So some words
/// lie on pages of their own.
const MANY: usize = 600;
/// A number of values for which the words of the shared page are enough.
const FEW: usize = 400;

static ALIVE: AtomicUsize = AtomicUsize::new(0);

struct Number(usize);

impl Number {
    fn new(number: usize) -> Number {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        Number(number)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

type Numbers = Vec<OwnedPerProcess<Number>>;

fn hold(numbers: &Numbers, offset: usize) -> bool {
    let is_own = |(index, owner): (usize, &OwnedPerProcess<Number>)| {
        owner.get_or_make(|| Number::new(index + offset)).0 == index + offset
    };
    // The first pass makes all values. The second pass checks each value once more.
    [(); 2].iter().all(|()| numbers.iter().enumerate().all(is_own))
}

/// Returns the size of the process's address space in pages.
fn pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// All checks are in one test, because the test counts the pages of the process: a concurrent test
/// would change this number.
#[test]
fn each_owner_has_a_word_of_its_own_and_returns_it() {
    per_process::prepare().unwrap();
    let mut numbers: Numbers = (0..MANY).map(|_| OwnedPerProcess::new()).collect();
    assert!(hold(&numbers, 0), "two values had one word");
    // Drops every third value. Some of their words lie on the shared page, others on pages of their
    // own. A new owner replaces each of them in the vector.
    for index in (0..MANY).step_by(3) {
        numbers[index] = OwnedPerProcess::new();
    }
    assert_eq!(ALIVE.load(Ordering::Relaxed), MANY - MANY.div_ceil(3));
    assert!(hold(&numbers, 0), "a word was given to two values");

    // SAFETY: the child only makes values, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = i32::from(!hold(&numbers, 1_000_000));
        // SAFETY: `_exit` has no requirement. It ends the child without running the test harness.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: `status` is a valid place for the result.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child saw a value of its parent");
    assert!(hold(&numbers, 0));

    numbers.clear();
    assert_eq!(ALIVE.load(Ordering::Relaxed), 0, "values outlived their owners");
    // If the drop of a value did not free its word and page, the process would grow by pages in
    // each round.
    let before = pages();
    for round in 0..20 {
        numbers.extend((0..FEW).map(|_| OwnedPerProcess::new()));
        assert!(hold(&numbers, round));
        assert!(pages() < before + FEW / 2, "each value took a page");
        numbers.clear();
        numbers.extend((0..MANY).map(|_| OwnedPerProcess::new()));
        assert!(hold(&numbers, round));
        numbers.clear();
    }
    assert!(pages() < before + FEW / 2, "words were not returned");
}
