//! `libusring.so`: every door by which an unmodified program's call arrives,
//! and the table of descriptors that are ours.
//!
//! A room per door: `filter` (the seccomp program that makes calls trap) and
//! `own_signal` (what happens then), `patch` (call sites rewritten after their
//! first trap), `symbols` (functions of libc that the loader binds to us
//! first). All of them meet in `door`, which saves what a system call leaves
//! alone, and in `dispatch`, which knows what each number means. `signals`
//! keeps the program's handlers out of the engine and SIGSYS open,
//! `descriptors` knows which numbers are rings, `managed` which memory is swapped (`guarded` and
//! `pointers` see to it that system calls find it there), `exec` takes the library along
//! into the next program, `start` opens it all. `swap_calls` are functions of our
//! own for programs that are linked to the library.
//!
//! Nothing here knows how any operation works, and nothing here calls libc:
//! a call may arrive in a signal handler, under malloc's lock, in a vfork child.
#![no_std]

extern crate alloc;

mod allocator;
mod contexts;
mod descriptor_calls;
mod descriptors;
mod device_calls;
mod devices;
mod dispatch;
mod door;
mod environment;
mod exec;
mod executable;
mod exports;
mod filter;
mod frames;
mod guarded;
mod libc;
mod managed;
mod memory;
mod message;
mod own_signal;
mod patch;
mod pointers;
mod process;
mod registered;
mod rings;
mod settle;
mod signals;
mod stack_symbol;
mod stacks;
mod start;
mod swap_calls;
mod swap_filter;
mod symbols;
mod text;
mod unwinding;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator::new();
