//! The three system calls of io_uring.

mod clone_buffers;
pub mod enter;
pub mod events;
mod register;
pub mod setup;
mod sharing;
