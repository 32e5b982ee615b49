//! The way up: what other threads have finished (`task_work`), the CQE
//! (`complete`), and whoever wants to know of it: the caller who sleeps
//! (`wait`), the ring's descriptor (`readiness`).

pub(crate) mod complete;
pub(crate) mod event_descriptor;
mod pace;
pub mod readiness;
pub(crate) mod task_work;
pub(crate) mod told;
pub(crate) mod wait;
