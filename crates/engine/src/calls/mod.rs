//! The entry points of the engine: io_uring's three system calls, rings that several processes use
//! (`sharing`), and the rings of AIO contexts (`events`).

mod clone_buffers;
pub mod enter;
pub mod events;
mod register;
pub mod setup;
mod sharing;
