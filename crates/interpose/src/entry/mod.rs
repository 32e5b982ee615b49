//! The entry points: how a program's call arrives.
//!
//! | file | content |
//! |---|---|
//! | [`own_signal`] | the handler of a trap |
//! | [`patch`] | call sites rewritten after their first trap, found by [`code`] and [`maps`] |
//! | [`breakpoints`] | the replacement of the trap in a program that Valgrind runs |
//! | [`symbols`] | functions of libc that this library replaces |
//! | [`stack_symbol`] | the function of libc that sets the memory of a thread's stack |
//! | [`limit_symbols`] | functions of libc that read or set the limit of open files |
//! | [`fork_symbols`] | functions of libc that fork |
//! | [`exports`] | functions of usring itself |
//! | [`point`] | shared by all entry points: saves registers, calls [`crate::dispatch`] |

pub mod breakpoints;
mod code;
pub mod exports;
pub mod fork_symbols;
pub mod limit_symbols;
mod maps;
pub mod own_signal;
pub mod patch;
pub mod point;
pub mod stack_symbol;
pub mod symbols;
