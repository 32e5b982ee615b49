//! A ring's life: submit → request → issue → complete, and the waiting in between.
//!
//! A request's path, in the order of the files:
//!
//! 1. [`enter`] takes the call.
//! 2. `submit` copies an entry and makes it a `Request` by its row of `opcode_table`.
//! 3. `link` and `drain` hold it back while they must.
//! 4. `issue` tries it without blocking through its family in `op`.
//! 5. If it would block, `fast_poll`, `workers` or `timeout` keep it.
//! 6. `task_work` brings it back.
//! 7. `complete` turns it into a CQE.
//! 8. `wait` sleeps until there are enough.
//!
//! Nothing here depends on how a program's call arrives (see [`host`]), and nothing here calls a
//! symbol of libc.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod calls;
mod counters;
pub mod device_file;
pub mod devices;
pub mod host;
mod op;
mod process;
mod registered;
mod request;
mod ring;
pub mod statistics;
mod waiting;
mod way_down;
mod way_up;

// The modules are used by their own names, whichever folder they lie in.
use registered::{buffer_group, napi, registered_buffers, registered_files, restrictions};
use waiting::{
    attendant, cancel, cq_wait, device_queues, fast_poll, iopoll, lone_wait, poll_table, rights, rounds, sq_thread,
    stuck_calls, timeout, workers,
};
use way_down::{drain, issue, link, opcode_table, submit};
use way_up::{complete, event_descriptor, task_work, told, wait};

pub use calls::{enter, events, setup};
pub use way_up::readiness;

pub use counters::set_statistics;
pub use enter::EnterCall;
pub use event_descriptor::EventDescriptor;
pub use events::{Attention, FileUses, Submission};
pub use host::{Host, set_host};
pub use iopoll::have_enter_poll;
pub use lone_wait::{DEFAULT_LIMIT as DEFAULT_SPIN_LIMIT, set_limit as set_spin_limit};
pub use op::message_ring::send_without_ring;
pub use readiness::drain_readiness;
pub use ring::Ring;
pub use usring_device::OpenDevice;
