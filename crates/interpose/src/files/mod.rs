//! Which of the program's descriptors are ours, and what calls on them mean.
//!
//! [`descriptors`] knows which numbers are rings and [`registered`] those by
//! index, [`devices`] which are block devices; [`rings`], [`contexts`] (AIO),
//! [`device_calls`] and [`descriptor_calls`] (close, dup, fcntl) serve the calls.

pub mod contexts;
pub mod descriptor_calls;
pub mod descriptors;
pub mod device_calls;
pub mod devices;
pub mod registered;
pub mod rings;
