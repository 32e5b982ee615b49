//! The two queues of a ring in shared memory, both halves of each, and the
//! backlog of completions that found no room. Nothing else: no opcode, no
//! thread, no time.
//!
//! | | writes the tail | writes the head |
//! |---|---|---|
//! | SQ | [`application::SubmissionHalf`] | [`SubmissionQueue`] |
//! | CQ | [`CompletionQueue`] | [`application::CompletionHalf`] |
//! | AIO context's ring | [`CompletionQueue`] | the program, and io_getevents for it |
//!
//! The other side of ours is the program, which is not trusted: each of our
//! halves keeps its own index privately, reads the other's once per batch and
//! bounds what it finds, and copies an entry once. A program that scribbles
//! over its ring hurts its own requests only.
#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod application;
mod completion;
mod events;
pub mod layout;
mod memory;
mod submission;
#[cfg(all(test, not(loom)))]
mod wrap;

pub use completion::CompletionQueue;
pub use layout::Layout;
pub use memory::{Memory, flags};
pub use submission::{Dropped, SubmissionQueue};
