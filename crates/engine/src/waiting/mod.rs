//! Requests that wait, and what they wait for.
//!
//! | waits for | modules |
//! |---|---|
//! | a file to be ready | `fast_poll` begins the wait, `poll_table` has the waiting requests |
//! | a device | `open_channels` opens the queue pair, `device_queues` has the requests in flight |
//! | a thread that may block | `workers`, with the rights that `rights` chooses |
//! | time | `timeout` |
//! | another process's answer | `ask_processes` asks the process, `remote_changes` queues the changes |
//! | the program's next submission | `sq_thread` |
//!
//! Estimates that decide how a thread waits:
//!
//! - `watcher_entry`: how active a ring's program is;
//! - `cq_estimate`: whether to sleep or to poll the CQ;
//! - `expected`: which files are probably ready;
//! - `lone_wait`: how long to poll for a single transfer.
//!
//! `process_rings` lets the processes of a shared ring wake each other's ring watchers, and
//! `shared_registrations` lets them use each other's registrations. `earlier_requests` publishes a
//! process's requests to the other processes. `left_rings` has the rings that this process has
//! closed and that other processes have open. `tasks` makes the ring watcher start threads.
//! `idle_threads` counts the threads of a pool. `watchdog` interrupts a driver's system call that
//! sleeps while the driver holds its ring's lock (`stuck_calls`). `cancel` ends a request's wait.
//! The threads that complete the requests are in `driving`.

pub(crate) mod ask_processes;
pub(crate) mod cancel;
pub(crate) mod cq_estimate;
pub(crate) mod device_queues;
pub(crate) mod earlier_requests;
pub(crate) mod expected;
pub(crate) mod fast_poll;
pub(crate) mod idle_threads;
pub(crate) mod left_rings;
pub(crate) mod lone_wait;
mod open_channels;
pub(crate) mod order;
mod poll_slot;
pub(crate) mod poll_table;
pub(crate) mod process_rings;
pub(crate) mod remote_changes;
pub(crate) mod rights;
pub(crate) mod shared_registrations;
pub(crate) mod shared_timers;
pub(crate) mod sq_thread;
pub(crate) mod stuck_calls;
pub(crate) mod tasks;
pub(crate) mod timeout;
mod waiters;
pub(crate) mod watchdog;
pub(crate) mod watcher_entry;
pub(crate) mod workers;
