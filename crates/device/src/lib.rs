//! Block devices in user space: what a device is, how it is asked, and how its
//! completions are waited for. Nothing here knows a ring, an SQE, or a file
//! descriptor of the program.
//!
//! | part | files |
//! |---|---|
//! | what a device is | [`device`], [`geometry`], [`request`], [`driver`] (what a kind of device implements) |
//! | waiting for it | [`policy`] (what was asked for), [`estimate`] (how long it will take), [`channel`] (a queue pair, polled or waited for), `tracker` (since when its requests are out) |
//! | as a file | [`transfer`] (any read or write, and which way it takes), [`block_file`] (partial blocks, the device's end, one call at a time) |
//! | drivers | [`driver`]: null, ram, file, vhost-user |
//! | around any device | [`wrapper`]: delay, error |
//! | time and chance | [`distribution`], `random`, `batches`, `timeline`, `timer_interrupt` |
//! | its text form | [`spec`]: `ram:size=1G` and the like |
//!
//! # The walk of a request
//! `DeviceRequest` → [`Channel::submit`] → [`QueuePair::submit`] → the hardware, a
//! back end, or memory → [`QueuePair::poll`] → `Completion`, in any order.
//!
//! # Promises
//! - A queue pair belongs to one user at a time (`&mut`): no lock, and none is
//!   shared between two queue pairs of a device on the way of a read or write.
//! - An accepted request is completed exactly once. A request that is not
//!   accepted was not looked at further, and its memory is not touched later.
//! - After a queue pair is dropped, nothing of it touches the program's memory.
#![cfg_attr(not(any(test, loom)), no_std)]

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
mod random;
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
pub use driver::{Delivery, Driver, QueueOptions, QueuePair, Submission};
pub use geometry::Geometry;
pub use opened::{OpenDevice, OpenManner};
pub use policy::{PolicyWord, PollPolicy};
pub use request::{Completion, Completions, DeviceRequest, NamedFile, Operation};
pub use spec::{Spec, SpecError};
pub use supply::{OwnSupply, QueueGrant, SharedRegion, Supply};
pub use tracker::Manner;
pub use transfer::{Route, Transfer};
