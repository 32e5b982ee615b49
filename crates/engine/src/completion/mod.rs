//! The completion side: the CQE (`complete`), and the notification of sleepers (`wakers`), of
//! eventfds (`event_descriptor`, `told`), and of threads that poll the ring's descriptor
//! (`readiness`, with the state in `signal`).

pub(crate) mod complete;
pub(crate) mod event_descriptor;
pub mod readiness;
pub(crate) mod signal;
pub(crate) mod told;
pub(crate) mod wakers;
