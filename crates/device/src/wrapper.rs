//! Wrappers: drivers around any other driver, which make it slow or faulty.

pub mod delay;
pub mod error;
mod held;
