//! The submission side: the path of a request from its SQE to an attempt to carry it out.
//!
//! 1. `start` checks and prepares it by its row of `opcode_table`.
//! 2. `link` (with `chain`) and `drain` hold it back.
//! 3. `issue` tries it, or `device_submit` hands it to a device.
//! 4. `suspend` lets it wait.
//!
//! `driving::submit` takes the SQEs from the queue.

pub(crate) mod chain;
pub(crate) mod device_submit;
pub(crate) mod drain;
pub(crate) mod issue;
pub(crate) mod link;
pub(crate) mod opcode_table;
pub(crate) mod start;
pub(crate) mod suspend;
