//! Faults on demand: the rules of `usring run --inject`, and the decision which calls get a fault.
//! The engine makes the faults of requests (of rings and libaio), and the interposer those of plain
//! system calls. This crate makes only one fault itself: `damage` flips bits of data that was read.
//!
//! | part | files |
//! |---|---|
//! | names | `calls` (plain system calls), `set` (the SET of a rule, with its classes), `errors` (errnos and signals) |
//! | rules | `rule` (a rule in parsed form), `parser` (its text), `message` (what is wrong with the text), `when`, `glob` |
//! | decision | `decide`: which fault a call gets, as a pure function; `damage`, the one fault that is made here |
//! | run | `page` (rules and counters that all processes of a run share), `armed` (this process's view of the page) |
//!
//! # Invariants
//! - [`decide::decide`] depends only on its arguments: rules, call, counts, time, seed.
//! - A rule's text is also its log line. So the log of a run is a list of rules, and these rules
//!   repeat the run's faults.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

extern crate alloc;

pub mod armed;
pub mod calls;
pub mod damage;
pub mod decide;
pub mod errors;
pub mod glob;
pub mod message;
pub mod names;
pub mod page;
mod parser;
pub mod rule;
pub mod set;
pub mod when;

pub use decide::{Call, Fault, Kind, decide};
pub use message::SpecError;
pub use parser::parse;
pub use rule::Rule;
