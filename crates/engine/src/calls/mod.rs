//! The three calls of io_uring, as the program makes them.

pub mod enter;
mod register;
pub mod setup;
