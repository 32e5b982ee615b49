//! A ring's life: submit → request → issue → complete, and the waiting in between.
//!
//! A request's path, in the order of the files:
//!
//! 1. `calls::enter` takes the call, and `driving::submit` copies each entry.
//! 2. `submission::start` makes it a `Request` by its row of `opcode_table`.
//! 3. `submission::link` and `submission::drain` hold it back while they must.
//! 4. `submission::issue` tries it without blocking through its family in `op`.
//! 5. If it would block, `waiting::fast_poll`, `waiting::workers` or `waiting::timeout` keep it.
//! 6. `driving::dispatch`, `driving::task_work` or `driving::expiry` bring it back.
//! 7. `completion::complete` turns it into a CQE.
//! 8. `driving::wait` sleeps until there are enough.
//!
//! Nothing here depends on how a program's call arrives (see [`host`]), and nothing here calls a
//! symbol of libc.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod calls;
mod completion;
mod counters;
pub mod device_file;
pub mod devices;
mod driving;
pub mod host;
mod op;
mod process;
mod registered;
mod request;
mod ring;
pub mod statistics;
mod submission;
mod waiting;

pub use calls::enter::EnterCall;
pub use calls::events::{Attention, FileUses, Submission};
pub use calls::setup;
pub use completion::event_descriptor::EventDescriptor;
pub use completion::readiness::{self, drain_readiness};
pub use counters::set_statistics;
pub use driving::iopoll::have_enter_poll;
pub use host::{Host, set_host};
pub use op::message_ring::send_without_ring;
pub use ring::Ring;
pub use usring_device::OpenDevice;
pub use waiting::lone_wait::{DEFAULT_LIMIT as DEFAULT_SPIN_LIMIT, set_limit as set_spin_limit};
