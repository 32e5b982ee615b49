//! Requests that wait, and the threads that watch meanwhile.
//!
//! | waits for | modules |
//! |---|---|
//! | a file to be ready | `fast_poll`, `poll_table` |
//! | a device | `device_queues`; `iopoll` polls; `cq_wait` waits beside an SQ thread that polls |
//! | a lone transfer | `lone_wait` looks for its completion before the waiter sleeps |
//! | a thread that may block | `workers`, with the rights that `rights` chooses |
//! | time | `timeout` |
//! | the program's next submission | `sq_thread` |
//!
//! While no thread is inside a ring, the ring watcher (`attendant`) watches it; a ring whose
//! program keeps coming back is only checked at intervals (`rounds`). `stuck_calls` gets a driver
//! out of a call that should not have slept. `cancel` ends a wait.

pub(crate) mod attendant;
pub(crate) mod cancel;
pub(crate) mod cq_wait;
pub(crate) mod device_queues;
mod expected;
pub(crate) mod fast_poll;
pub(crate) mod iopoll;
mod last_thread;
pub(crate) mod lone_wait;
mod poll_slot;
pub(crate) mod poll_table;
pub(crate) mod rights;
pub(crate) mod rounds;
pub(crate) mod sq_thread;
pub(crate) mod stuck_calls;
pub(crate) mod timeout;
mod waiters;
pub(crate) mod workers;
