//! A ring's life: submit → request → issue → complete, and the waiting in between.
//!
//! The path of a request, with the modules in which each step happens:
//!
//! 1. `calls::enter` takes the program's call, and `driving::submit` copies each SQE.
//! 2. `submission::start` makes a `Request` from the SQE, by the opcode's row of `opcode_table`.
//! 3. `submission::link` and `submission::drain` hold the request back until it may start.
//! 4. `submission::issue` tries the request without blocking, by the opcode's file in `op`.
//! 5. `waiting::fast_poll`, `waiting::workers` or `waiting::timeout` keeps a request that would
//!    block.
//! 6. `driving::dispatch`, `driving::task_work` or `driving::expiry` gets the request when it can
//!    go on.
//! 7. `completion::complete` turns the result into a CQE.
//! 8. `driving::wait` sleeps until the CQ holds as many CQEs as the caller waits for.
//!
//! Nothing here depends on how a program's call arrives (see [`host`]), and nothing here calls a
//! symbol of libc.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

extern crate alloc;

mod calls;
mod completion;
mod counters;
pub mod device_file;
pub mod devices;
mod driving;
pub mod host;
pub mod observers;
mod op;
mod probes;
mod process;
mod registered;
mod request;
mod ring;
pub mod statistics;
mod submission;
mod waiting;

pub use calls::enter::EnterCall;
pub use calls::events::{CompletionMode, FileUses, Submission};
pub use calls::setup;
pub use completion::event_descriptor::EventDescriptor;
pub use completion::readiness::{self, clear_emptied_readiness};
pub use counters::set_statistics;
pub use driving::iopoll::have_enter_poll;
pub use host::{Host, set_host};
pub use op::message_ring::send_without_ring;
pub use ring::Ring;
pub use usring_device::OpenDevice;
pub use waiting::lone_wait::{DEFAULT_LIMIT as DEFAULT_SPIN_LIMIT, set_limit as set_spin_limit};
