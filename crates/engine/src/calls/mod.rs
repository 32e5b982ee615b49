//! The three calls of io_uring, as the program makes them.

mod clone_buffers;
pub mod enter;
pub mod events;
mod register;
pub mod setup;
