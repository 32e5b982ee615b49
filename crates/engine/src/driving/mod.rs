//! The drivers of a ring: the threads that hold its lock, and what they do with it. A thread is
//! *inside* a ring while it drives the ring, or waits for the ring's completions.
//!
//! | driver | module |
//! |---|---|
//! | a thread that submits | `submit` |
//! | a thread that waits in enter | `wait`; `iopoll` on a polled ring; `cq_wait` (no lock) if an SQ thread polls |
//! | the SQ thread | `sq_thread` |
//! | a thread that adds task work while no thread is inside | `task_work` |
//! | the ring watcher, while no thread is inside | `ring_watcher`, `idle_watch` |
//! | a submit helper | `submit_helpers` |
//!
//! The work of a driver:
//!
//! - `dispatch` and `fire` continue the requests whose files are ready.
//! - `reap` completes what the devices have done, `expiry` the timeouts that are over.
//! - `shared_work` handles what other processes of a shared ring cause, and `ended` completes
//!   requests of processes that have ended.
//! - `batch` issues the requests that have become issuable.
//! - `order` chooses the order of completions (`usring run --order`).
//! - `release` ends a batch and releases the ring's lock. `deferred_submit` makes the submits that
//!   may sleep.

pub(crate) mod batch;
mod completion_rate;
pub(crate) mod cq_wait;
pub(crate) mod deferred_submit;
pub(crate) mod dispatch;
pub(crate) mod ended;
pub(crate) mod expiry;
pub(crate) mod fire;
pub(crate) mod idle_watch;
pub(crate) mod iopoll;
mod last_thread;
pub(crate) mod lone_poll;
pub(crate) mod order;
pub(crate) mod reap;
mod release;
pub(crate) mod ring_watcher;
pub(crate) mod shared_work;
pub(crate) mod sq_thread;
pub(crate) mod submit;
pub(crate) mod submit_helpers;
pub(crate) mod task_work;
pub(crate) mod wait;
