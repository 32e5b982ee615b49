//! The output of a case, which consists of lines `case: line`. Each line is printed at once, so the
//! output of a case that hangs shows how far it got. Lines contain results and flags. They never
//! contain times, addresses or descriptor numbers, because the kernel does not guarantee these.

use std::fmt::Display;
use std::io::Write;
use std::time::{Duration, Instant};

use usring_uapi::{Sqe, Timespec};

use crate::names;
use crate::ring::{Entry, Ring};
use crate::sqe::{Change, Field};

pub struct Transcript {
    case: String,
}

impl Transcript {
    pub fn new(case: String) -> Transcript {
        Transcript { case }
    }

    /// Prints one line.
    pub fn say(&mut self, line: impl Display) {
        let mut output = std::io::stdout().lock();
        // The error is ignored: it means that the process which reads the output has ended.
        let _ = writeln!(output, "{}: {line}", self.case);
        let _ = output.flush();
    }

    /// Prints a call's name and its result.
    pub fn result(&mut self, call: impl Display, value: i32) {
        self.say(format_args!("{call} = {}", names::result(value)));
    }

    /// Prints a call's name, and `ok` or an errno. For calls whose result has no fixed value, such
    /// as a descriptor or an address.
    pub fn outcome(&mut self, call: impl Display, value: i64) {
        self.say(format_args!("{call} = {}", names::outcome(value)));
    }

    /// Prints one CQE.
    pub fn entry(&mut self, entry: &Entry) {
        self.say(format_args!("cqe {entry}"));
    }

    /// Submits `request` once with each of `changes`, and prints the CQEs.
    pub fn each(&mut self, ring: &mut Ring, request: Sqe, changes: &[Field]) {
        for (_, change) in changes {
            self.entry(&ring.one(request.with(change)));
        }
    }

    /// Submits `request` once with each of `changes`. Prints each change's name, and whether the
    /// request has succeeded.
    pub fn each_named(&mut self, ring: &mut Ring, request: Sqe, changes: &[Field]) {
        for (name, change) in changes {
            let entry = ring.one(request.with(change));
            self.say(format_args!("{name}: {}", names::outcome(entry.res.into())));
        }
    }

    /// Prints CQEs in the order in which the kernel has posted them.
    pub fn in_order(&mut self, entries: &[Entry]) {
        for entry in entries {
            self.entry(entry);
        }
        if entries.is_empty() {
            self.say("no cqe");
        }
    }

    /// Prints CQEs sorted by user_data, because the kernel does not guarantee their order in the
    /// case.
    pub fn sorted(&mut self, entries: &[Entry]) {
        let mut sorted = entries.to_vec();
        sorted.sort_by_key(|entry| entry.user_data);
        self.in_order(&sorted);
    }

    /// Prints whether `waited` is between `least` and `most` milliseconds. Does not print `waited`
    /// itself, because it varies.
    pub fn between(&mut self, what: impl Display, waited: Duration, least: u64, most: u64) {
        let verdict = if waited < Duration::from_millis(least) {
            format!("too early (under {least} ms)")
        } else if waited > Duration::from_millis(most) {
            format!("too late (over {most} ms)")
        } else {
            format!("after {least} to {most} ms")
        };
        self.say(format_args!("{what}: {verdict}"));
    }
}

impl Transcript {
    /// Prints whether `clock` has reached the time `time`.
    pub fn reached(&mut self, clock: libc::clockid_t, time: &Timespec) {
        let now = crate::time::on_clock(clock, 0);
        let reached = (now.tv_sec, now.tv_nsec) >= (time.tv_sec, time.tv_nsec);
        self.say(format_args!("the time has come: {reached}"));
    }
}

/// Runs `work` and returns how long it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = work();
    (value, start.elapsed())
}
