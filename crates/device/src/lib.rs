//! Block devices in user space: devices, their requests, and how a thread waits for completions.
//! The crate knows no ring, no SQE and no file descriptor of the program.
//!
//! | part | files |
//! |---|---|
//! | the device | [`device`], [`geometry`], [`request`], [`driver`] (the traits that a kind of device implements) |
//! | waiting | [`policy`] (poll or sleep), [`estimate`] (expected latency), [`channel`] (a queue pair and how to wait for it), `tracker` (submission times of its requests) |
//! | as a file | [`transfer`] (any read or write, and its route), [`block_file`] (blocking calls, partial blocks, the device's end) |
//! | drivers | [`driver`]: null, ram, file, vhost-user |
//! | wrappers | [`wrapper`]: delay, error |
//! | time and chance | [`distribution`], [`random`], `batches`, `timeline`, `timer_interrupt` |
//! | text form | [`spec`]: `ram:size=1G` and the like |
//!
//! # The path of a request
//! `DeviceRequest` → [`Channel::submit`] → [`QueuePair::submit`] → the hardware, a back end, or
//! memory → [`QueuePair::poll`] → `Completion`, in any order.
//!
//! # Invariants
//! - A queue pair has one user at a time (`&mut`), so it has no lock. On the path of a read or
//!   write, two queue pairs of a device share no lock.
//! - An accepted request completes exactly once. If a request is not accepted, the queue pair does
//!   nothing with it and never touches its memory later.
//! - A dropped queue pair no longer touches the program's memory.
#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

extern crate alloc;

mod batches;
pub mod block_file;
pub mod channel;
pub mod control;
pub mod device;
pub mod distribution;
pub mod driver;
pub mod estimate;
pub mod geometry;
pub mod opened;
pub mod policy;
pub mod random;
pub mod request;
pub mod span;
pub mod spec;
pub mod supply;
mod timeline;
mod timer_interrupt;
mod tracker;
pub mod transfer;
pub mod virtqueue;
pub mod wrapper;

pub use block_file::BlockFile;
pub use channel::{Channel, Pause, Wait};
pub use device::Device;
pub use distribution::Distribution;
pub use driver::{DeferredSubmit, Driver, QueueOptions, QueuePair, Submission};
pub use geometry::Geometry;
pub use opened::{OpenDevice, OpenMode};
pub use policy::{PolicyWord, PollPolicy};
pub use request::{Completion, Completions, DeviceRequest, NamedFile, Operation};
pub use spec::{Spec, SpecError};
pub use supply::{OwnSupply, QueueGrant, SharedRegion, Supply};
pub use tracker::WaiterKind;
pub use transfer::{Route, Transfer};
