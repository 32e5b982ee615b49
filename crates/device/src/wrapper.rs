//! Wrappers: drivers around any other driver, which add latency or errors.

pub mod delay;
mod delayed_queue;
pub mod error;
