//! io_uring in user space, linked directly: a ring whose requests are carried out inside this
//! process, by ordinary system calls.
//!
//! The names are those of the [`io-uring`](https://docs.rs/io-uring) crate. [`opcode`], [`types`]
//! and the types of the entries *are* that crate's. So a program written for that crate changes one
//! line:
//!
//! ```diff
//! -use io_uring::{IoUring, opcode, types};
//! +use usring::{IoUring, opcode, types};
//! ```
//!
//! After this change the program needs no kernel with io_uring, no sysctl setting and no exception
//! in a container's seccomp profile.
//!
//! The names and types are those of version 0.7.15 of `io-uring`. (Cargo chooses a compatible
//! version of `io-uring` for both crates.)
//!
//! A program can use the kernel's ring where it works, and usring's elsewhere:
//!
//! ```
//! enum Ring {
//!     Kernel(io_uring::IoUring),
//!     Own(usring::IoUring),
//! }
//!
//! impl Ring {
//!     fn new(entries: u32) -> std::io::Result<Ring> {
//!         // The kernel's io_uring_setup fails if a sysctl, a seccomp filter or its age forbids it.
//!         match io_uring::IoUring::new(entries) {
//!             Ok(ring) => Ok(Ring::Kernel(ring)),
//!             Err(_) => usring::IoUring::new(entries).map(Ring::Own),
//!         }
//!     }
//! }
//! # Ring::new(8).unwrap();
//! ```
//!
//! # Example
//! ```
//! use std::fs::File;
//! use std::os::fd::AsRawFd;
//! use usring::{IoUring, opcode, types};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut ring = IoUring::new(8)?;
//! let file = File::open("Cargo.toml")?;
//! let mut buffer = vec![0; 64];
//!
//! let read = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), buffer.len() as u32)
//!     .build()
//!     .user_data(42);
//! // SAFETY: the file and the buffer live until the completion is posted.
//! unsafe { ring.submission().push(&read).expect("a ring of 8 has room for one") };
//! ring.submit_and_wait(1)?;
//!
//! let completion = ring.completion().next().expect("it was waited for");
//! assert_eq!(completion.user_data(), 42);
//! assert!(completion.result() > 0, "bytes read, or a negative errno");
//! # Ok(())
//! # }
//! ```
//!
//! # What differs from the kernel's rings
//! - A ring is memory of this process, not a descriptor. The first call of
//!   [`as_raw_fd`](std::os::fd::AsRawFd::as_raw_fd) makes a descriptor, which is readable while
//!   there are completions. mmap(2), read(2) and the three io_uring system calls on it do not reach
//!   the ring. A ring cannot be made from a descriptor.
//! - Dropping a ring waits until nothing uses the memory that its requests name. The kernel may
//!   still use such memory for a moment after a ring's descriptor is closed.
//! - In a child made by fork(2) the parent's ring answers `EOWNERDEAD` to every call. Rings that
//!   the child makes itself work.
//! - The first ring of a process installs handlers of SIGSEGV and SIGBUS. With them a bad address
//!   in a request is answered with `-EFAULT`. Every other fault goes to the handler that was there
//!   before.
//! - The first ring also installs a handler of SIGSYS, unless the program has one. A cancel uses
//!   SIGSYS to interrupt the system call in which a worker thread waits.
//! - The first ring starts one thread, which watches the rings that no thread is inside of. Further
//!   threads start and end as in the kernel: workers for calls that may block, and one SQ thread
//!   per ring with `setup_sqpoll`.
//!
//! usring refuses the operations and register calls that it lacks with the errno of a kernel too
//! old to know them. [`Submitter::register_probe`] reports which operations work.
//!
//! # Errors
//! Functions return [`std::io::Error`] with Linux's errno
//! ([`raw_os_error`](std::io::Error::raw_os_error)). Its meaning is that of io_uring_setup(2),
//! io_uring_enter(2) and io_uring_register(2). The error of a request is its completion's negative
//! result.
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

mod api;
pub mod inject;
#[cfg(feature = "swap")]
pub mod swap;

pub use api::{
    Builder, CompletionQueue, CompletionStatus, EnterFlags, IoUring, Parameters, Probe, SubmissionQueue, Submitter,
    aio, cqueue, register, squeue,
};
pub use io_uring::{opcode, types};
