//! The two queues of a ring in shared memory: both halves of each queue, and the backlog of
//! completions that did not fit into the CQ. For a ring of several processes, also the words that
//! these processes share. The crate knows no opcodes, no threads and no time.
//!
//! | queue | writes the tail | writes the head |
//! |---|---|---|
//! | SQ | [`application::SubmissionHalf`] | [`SubmissionQueue`] |
//! | CQ | [`CompletionQueue`] | [`application::CompletionHalf`] |
//! | AIO context's ring | [`CompletionQueue`] | the program, or io_getevents on its behalf |
//!
//! The program shares this memory and is not trusted:
//!
//! - The engine's half of each queue keeps its own index in private memory.
//! - The engine's half loads the program's index once per batch, and bounds the value.
//! - The engine's half copies each entry once.
//!
//! A program that overwrites its ring with nonsense harms its own requests only.
#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

extern crate alloc;

pub mod application;
mod backlog;
pub mod change_slot;
mod completion;
#[cfg(not(loom))]
mod control;
mod events;
#[cfg(not(loom))]
mod journal;
pub mod layout;
mod memory;
#[cfg(not(loom))]
mod registrations;
mod submission;
#[cfg(all(test, not(loom)))]
mod wrap;

pub use completion::CompletionQueue;
#[cfg(not(loom))]
pub use control::Control;
#[cfg(not(loom))]
pub use journal::{HeldRequest, Journal, JournalSlot, JournalTimer, OrphanFilter};
pub use layout::Layout;
pub use memory::{Memory, flags};
#[cfg(not(loom))]
pub use registrations::{
    Deposit, GroupSlot, Origin, ProvidedBuffer, Registrations, Rules, SharedBuffer, SharedBufferRing, SharedGroup,
};
pub use submission::{Dropped, SubmissionQueue};
