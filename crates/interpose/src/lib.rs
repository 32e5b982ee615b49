//! `libusring.so`: every door by which an unmodified program's call arrives,
//! and the table of descriptors that are ours.
//!
//! A call comes in by one of the `doors`, and `dispatch` knows what its
//! number means: it goes to what is ours among the program's `files`, to its
//! `swapped` memory, to its `signals` (whose handlers are kept out of the
//! engine), or is part of the life of the `program`.
//!
//! Nothing here knows how any operation works, and nothing here calls libc:
//! a call may arrive in a signal handler, under malloc's lock, in a vfork child.
#![no_std]

extern crate alloc;
// Linting the whole workspace at once gives a dependency its feature `std`, which brings a panic
// handler. Nothing is linked then; every build has the handler of `message` alone.
#[cfg(clippy)]
extern crate std;

mod allocator;
mod dispatch;
mod doors;
mod files;
mod identity;
mod memory;
mod message;
mod program;
mod signals;
mod swapped;
mod text;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator::new();
