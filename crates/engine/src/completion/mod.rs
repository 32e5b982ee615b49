//! The completion side: a request's CQE (`complete`), and the notifications that the CQE causes.
//! The notifications go to sleepers (`wakers`), to eventfds (`event_descriptor`, `request_events`),
//! and to threads that poll the ring's descriptor (`readiness`, with its state in `signal`).

pub(crate) mod complete;
pub(crate) mod event_descriptor;
pub(crate) mod faults;
pub(crate) mod observation;
pub(crate) mod order;
pub mod readiness;
pub(crate) mod request_events;
pub(crate) mod signal;
pub(crate) mod wakers;
