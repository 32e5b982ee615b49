//! A ring's life: submit → request → issue → complete, and who waits for what
//! in between.
//!
//! The walk of a request, in the order of the files: [`enter`] takes the call;
//! `submit` copies an entry and makes it a `Request` by its row of
//! `opcode_table`; `link` and `drain` hold it back while they must; `issue`
//! tries it without blocking through its family in `op`; if it would block,
//! `fast_poll`, `workers` or `timeout` keep it; `task_work` brings it back;
//! `complete` turns it into a CQE; `wait` sleeps until there are enough.
//!
//! Nothing here knows how a program's call arrives (see [`host`]), and nothing
//! here calls a symbol of libc.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod attendant;
mod buffer_group;
mod cancel;
mod complete;
mod counters;
mod drain;
pub mod enter;
mod fast_poll;
pub mod host;
mod issue;
mod link;
mod op;
mod opcode_table;
mod process;
pub mod readiness;
mod register;
mod registered_buffers;
mod registered_files;
mod request;
mod restrictions;
mod ring;
pub mod setup;
mod sq_thread;
pub mod statistics;
mod submit;
mod task_work;
mod timeout;
mod wait;
mod workers;

pub use counters::set_statistics;
pub use enter::EnterCall;
pub use host::{Host, set_host};
pub use readiness::drain_readiness;
pub use ring::Ring;
