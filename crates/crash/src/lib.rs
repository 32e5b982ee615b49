//! The states in which a power loss can leave a folder, given the history of the folder's changes.
//!
//! | file | content |
//! |---|---|
//! | `content` | the bytes of a file, in shared pages with hashes |
//! | `tree` | a folder in memory: files, links and names, and what each change does to them |
//! | `history` | the recorded operations, with the positions at which each began and ended |
//! | `reader` | from the recorder's log to a history |
//! | `durability` | the position from which on no power loss can undo an operation |
//! | `plan` | one power loss: its position, and what it leaves of each operation |
//! | `ordered` | the power losses that a journal in ext4's ordered mode rules out |
//! | `generator` | the plans to try, those that are most likely to fail a check first |
//! | `minimise` | the smallest loss with which a check still fails |
//! | `explain` | sentences about operations and losses |
//!
//! The crate reads no file and starts no program. Positions are counts of recorded events. A power
//! loss at position `n` happens after `n` events.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

pub mod content;
pub mod durability;
pub mod explain;
pub mod generator;
pub mod history;
pub mod minimise;
mod ordered;
pub mod plan;
pub mod reader;
pub mod tree;

pub use durability::Model;
pub use history::{Event, History, Operation};
pub use plan::{Choice, Plan};
pub use tree::Tree;

#[cfg(test)]
mod tests;
