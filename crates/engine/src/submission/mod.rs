//! The submission side: a request from its SQE to the first attempt to carry it out.
//!
//! 1. `start` checks and prepares the request by its row of `opcode_table`.
//! 2. `link` (with `chain`) and `drain` hold the request back. On a shared ring, `shared_drain`
//!    does so in place of `drain`.
//! 3. `issue` tries the request, or `device_submit` hands it to a device.
//! 4. `suspend` lets the request wait for its file, a time, or a worker.
//!
//! `driving::submit` takes the SQEs from the SQ.

pub(crate) mod chain;
pub(crate) mod device_submit;
pub(crate) mod drain;
pub(crate) mod faults;
pub(crate) mod issue;
pub(crate) mod link;
pub(crate) mod observation;
pub(crate) mod opcode_table;
pub(crate) mod recording;
mod shared_drain;
pub(crate) mod start;
pub(crate) mod suspend;
