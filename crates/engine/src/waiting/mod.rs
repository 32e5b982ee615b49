//! Who waits for what: a file to be ready (`fast_poll`), a device (`device_queues`;
//! one lone transfer is looked for by `lone_wait` before its waiter sleeps;
//! polled by `iopoll`; beside an SQ thread, which does that, `cq_wait`), a thread that may block (`workers`), time (`timeout`), the program itself (`sq_thread`); who
//! watches while nobody is inside (`attendant`; of a ring to which its program keeps coming back, at intervals: `rounds`), who gets a driver out of a call that should not have slept (`stuck_calls`), and who ends a wait (`cancel`). By whose rights a worker works: `rights`.

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
