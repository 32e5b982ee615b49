//! Wrappers: drivers around any other driver, which add latency or errors.

pub mod delay;
pub mod error;
mod held;
