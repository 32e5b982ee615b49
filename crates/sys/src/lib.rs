//! The machine, as the higher layers see it: system calls, memory, shared words and their ordering,
//! futexes, descriptors, clocks, threads.
//!
//! - This crate knows no ring, no request and no opcode.
//! - It calls no symbol of libc, so usring's own calls never reach usring's entry points.
//! - All `unsafe` of the data path lies in this crate.
//!
//! # The program's numbers
//! An address or a descriptor in a request is a number that the program chose. Functions that take
//! a [`UserAddress`] or a [`SystemCall`] pass the number to the kernel, or to a copy that survives
//! page faults. So a bad number comes back as an errno. A *valid* number may name any memory of the
//! process, as in a system call. Therefore the creator of a ring has to vouch for these numbers,
//! and `Ring::setup` is unsafe.
#![cfg_attr(not(any(test, loom)), no_std)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

extern crate alloc;

pub mod bounce_buffer;
pub mod bulk_memory;
pub mod call_hook;
pub mod capability;
pub mod clock;
pub mod credential_change;
pub mod credentials;
pub mod deposit;
pub mod descriptor;
pub mod epoll;
mod errno;
pub mod eventfd;
pub mod file;
pub mod futex;
pub mod hazard;
pub mod hazard_table;
pub mod kernel_aio;
pub mod mapping;
#[cfg(not(loom))]
pub mod mapping_pool;
pub mod membarrier;
pub mod memory_reserve;
pub mod message;
pub mod mutex;
pub mod ordering;
pub mod own_numbers;
pub mod own_threads;
pub mod owner_lock;
pub mod page_array;
pub mod page_fault;
pub mod paged_memory;
pub mod per_process;
mod perturbation;
pub mod pinned_memory;
pub mod pinning;
pub mod plain;
pub mod probes;
pub mod process_maps;
pub mod process_mutex;
pub mod process_number;
pub mod processor;
pub mod program_threads;
pub mod queue;
pub mod set_once;
pub mod shared;
pub mod shared_array;
pub mod shared_table;
pub mod sharing;
pub mod signals;
pub mod sleep;
pub mod sleep_place;
pub mod socket;
pub mod spread;
pub mod sync;
pub mod syscall;
pub mod thread;
pub mod thread_ids;
pub mod thread_life;
pub mod ticks;
pub mod timer_slack;
pub mod timerfd;
pub mod unix_socket;
pub mod unusual;
pub mod user_memory;
pub mod userfault;
pub mod valgrind;
pub mod wait;
pub mod watched_call;
pub mod width;

pub use errno::Errno;
pub use syscall::{SystemCall, UserAddress};
