//! Memory larger than what of it may be resident: a region of a process whose
//! pages go to a device or a file and come back when they are touched. The thread
//! that touches a page that is out reads that page itself, and polls for it; it
//! needs no privilege and no swap of the system's.
//!
//! | part | files |
//! |---|---|
//! | what a program uses | `region`, `arena` (an allocator over one) |
//! | for programs that know nothing of it | [`mappings`], `address_space`, `moving` (mremap), `surrender` (to the kernel, and back) |
//! | the way of a fault | `pager`, [`page`] (whose a page is), `lane` (its request), `courtesy` (to other threads) |
//! | evicting | `evict`, [`gate`] (between it and faults), `watermarks` (when), `discard` (for good) |
//! | reading ahead, and several pages at once | `readahead`, `run` |
//! | where pages go | [`backing`] (whose a store is), `store`, `slots` |
//! | what a forked child has | [`heritage`], `family` (whose a slot is) |
//! | how the kernel is made to tell of touches | `mechanism` |
//! | threads of our own | `background` |
//!
//! # Promises
//! - A page's content is in memory or in its slot, never in neither; what cannot
//!   be written stays in memory, what cannot be read is no zeroes but a SIGBUS.
//! - Threads that fault share no lock: each has a queue pair of its own, and a page
//!   is one word.
//! - Nothing on the way of a fault allocates or touches memory that it pages.
#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod address_space;
mod arena;
mod background;
pub mod backing;
pub mod counters;
mod courtesy;
mod discard;
mod evict;
mod evictions;
mod family;
pub mod gate;
pub mod heritage;
mod lane;
pub mod mappings;
mod mechanism;
mod message;
mod moving;
pub mod page;
mod pager;
mod readahead;
mod region;
mod run;
mod slots;
mod store;
mod surrender;
mod watermarks;

pub use arena::Arena;
pub use backing::Refusal;
pub use counters::Statistics;
pub use mechanism::{Kind as Mechanism, probe};
pub use region::{Access, Builder, LEAST_QUEUES, Pin, SwapRegion};
