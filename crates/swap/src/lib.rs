//! A region of memory that is larger than its resident limit. Its pages go to a device or a file,
//! and come back when a thread touches them. The touching thread itself reads the page from the
//! device and polls for the completion. This needs no privilege and no swap space of the system.
//!
//! | part | files |
//! |---|---|
//! | interface for a program | `region`, `arena` (an allocator for a region's memory) |
//! | for unmodified programs | [`mappings`], `address_space`, `moving` (mremap), `unmanaged` (release to the kernel, and back) |
//! | fault path | `pager`, [`page`] (which thread owns a page), `store_queue` (a queue pair with its buffers), `back_off` (yields between polls) |
//! | eviction | `evict`, [`gate`] (excludes faults), `watermarks` (when to evict), `discard` (drops content) |
//! | read-ahead and requests for several pages | `readahead`, `run` |
//! | backing store | [`text`] (its text form), [`backing`] (opens a store, or refuses it), `store`, `slots` |
//! | fork | [`inheritance`] (what a child inherits), `slot_users` (which processes use a slot) |
//! | how the kernel reports a touch | `mechanism` |
//! | threads of the region | `background` |
//!
//! # Invariants
//! - A page's content is in memory or in its slot, or in both. A page that cannot be written to the
//!   store stays in memory. A touch of a page that cannot be read back raises SIGBUS.
//! - If there are enough queue pairs for each faulting thread to have its own, faulting threads
//!   share no lock. A page's state is one word.
//! - The fault path allocates nothing, and does not touch memory of the region.
#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

extern crate alloc;

mod address_space;
mod arena;
mod back_off;
mod background;
pub mod backing;
pub mod counters;
mod discard;
mod evict;
mod evictions;
pub mod gate;
pub mod inheritance;
pub mod mappings;
mod mechanism;
mod message;
mod moving;
pub mod page;
mod pager;
mod readahead;
mod region;
mod run;
mod slot_users;
mod slots;
mod store;
mod store_queue;
pub mod text;
mod unmanaged;
mod watermarks;

pub use arena::Arena;
pub use backing::Refusal;
pub use counters::Statistics;
pub use mechanism::{MechanismKind as Mechanism, probe};
pub use region::{Access, Builder, LEAST_QUEUES, Pin, SwapRegion};
