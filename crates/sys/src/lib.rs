//! The machine, as the floors above see it: system calls, memory, shared words
//! and their ordering, futexes, descriptors, clocks, threads.
//!
//! Nothing here knows a ring, a request or an opcode, and nothing here calls a
//! symbol of libc: usring's calls must never be caught by usring's own doors.
//! All `unsafe` of the data path lives on this floor.
//!
//! # The program's numbers
//! An address or a descriptor in a request is a number that the program chose.
//! Functions that take a [`UserAddress`] or a [`SystemCall`] hand it to the
//! kernel or to a fault-tolerant copy, so a bad one comes back as an errno; a
//! *valid* one may name any memory of the process, exactly as it may in a
//! system call. Who creates a ring vouches for that (`Ring::setup` is unsafe).
#![cfg_attr(not(any(test, loom)), no_std)]

extern crate alloc;

pub mod bulk_memory;
pub mod capability;
pub mod clock;
pub mod credential_change;
pub mod credentials;
pub mod descriptor;
pub mod epoll;
mod errno;
pub mod eventfd;
pub mod file;
pub mod futex;
pub mod hazard;
pub mod kept_memory;
pub mod kernel_aio;
pub mod mapping;
pub mod membarrier;
pub mod memory_reserve;
pub mod message;
pub mod mutex;
pub mod ordering;
pub mod own_numbers;
mod own_threads;
pub mod owner_lock;
pub mod page_array;
pub mod page_fault;
pub mod paged_memory;
pub mod per_process;
mod perturbation;
pub mod plain;
pub mod processor;
pub mod program_threads;
pub mod queue;
pub mod set_once;
pub mod shared;
pub mod shared_array;
pub mod shared_table;
pub mod signals;
pub mod sleep;
pub mod sleep_place;
pub mod socket;
pub mod sync;
pub mod syscall;
pub mod thread;
pub mod thread_life;
pub mod ticks;
pub mod timer_slack;
pub mod timerfd;
pub mod unix_socket;
pub mod unusual;
pub mod user_memory;
pub mod userfault;
pub mod wait;
pub mod watched_call;

pub use errno::Errno;
pub use syscall::{SystemCall, UserAddress};
