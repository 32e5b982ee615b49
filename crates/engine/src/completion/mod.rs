//! The completion side: the CQE (`complete`), and the notification of sleepers (`wakers`), of
//! eventfds (`event_descriptor`, `request_events`), and of threads that poll the ring's descriptor
//! (`readiness`, with the state in `signal`).

pub(crate) mod complete;
pub(crate) mod event_descriptor;
pub mod readiness;
pub(crate) mod request_events;
pub(crate) mod signal;
pub(crate) mod wakers;
