//! Replaces the parts of libc and of a standard library that this library needs but does not have.
//!
//! | file | content |
//! |---|---|
//! | [`allocator`] | the memory of all of usring's data |
//! | [`routines`], [`unwinding`] | symbols that compiled code refers to |
//! | [`text`] | the addresses of the library's own code |
//! | [`libc`] | finds functions and data of the program's libc, if it has one |
//! | [`message`] | lines on standard error; panics |
//! | [`assembler`] | pieces of assembler that several sections share |
//! | [`identity`] | the note by which the launcher recognises this build |

mod allocator;
pub mod assembler;
mod identity;
pub mod imports;
pub mod libc;
pub mod message;
mod routines;
pub mod text;
mod unwinding;

#[global_allocator]
pub static ALLOCATOR: allocator::Allocator = allocator::Allocator::new();
