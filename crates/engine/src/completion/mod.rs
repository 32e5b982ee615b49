//! The completion side: work that other threads have finished (`task_work`), the CQE (`complete`),
//! and the notification of the caller that sleeps (`wait`) and of the ring's descriptor
//! (`readiness`).

pub(crate) mod complete;
pub(crate) mod event_descriptor;
mod pace;
pub mod readiness;
pub(crate) mod task_work;
pub(crate) mod told;
pub(crate) mod wait;
