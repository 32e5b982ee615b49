//! The three calls of io_uring, as the program makes them.

pub mod enter;
pub mod events;
mod register;
pub mod setup;
