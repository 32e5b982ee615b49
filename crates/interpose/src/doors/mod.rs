//! How a program's call arrives.
//!
//! A file per door: [`filter`] (the seccomp program that makes calls trap) and
//! [`own_signal`] (what happens then), [`patch`] (call sites rewritten after
//! their first trap, found by [`code`] and [`maps`]), [`symbols`] (functions of libc that the loader binds to us
//! first, the real ones found by [`libc`]), [`stack_symbol`] (the one such
//! function whose further arguments lie on the stack), [`limit_symbols`] (those
//! about the limit of open files), [`fork_symbols`] (those that fork) and [`exports`] (our own). All of them meet in [`door`],
//! which saves what a system call leaves alone, moves to a stack that is large
//! enough ([`stacks`]), and calls [`crate::dispatch`]. An exec, which does not come back, is made by
//! [`departure`].

mod code;
pub mod departure;
pub mod door;
pub mod exports;
pub mod filter;
pub mod fork_symbols;
pub mod libc;
pub mod limit_symbols;
mod maps;
pub mod own_signal;
pub mod patch;
pub mod stack_symbol;
pub mod stacks;
pub mod symbols;
mod unwinding;
