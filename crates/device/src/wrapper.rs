//! Wrappers: devices around any other device, which they make slow or faulty.

pub mod delay;
pub mod error;
mod held;
