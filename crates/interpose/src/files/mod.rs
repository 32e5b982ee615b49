//! Decides which of the program's descriptors belong to usring, and serves the calls on them.
//!
//! | file | content |
//! |---|---|
//! | [`descriptors`] | numbers of rings |
//! | [`numbers`] | numbers in the reserved range |
//! | [`registered`] | rings registered by index |
//! | [`devices`] | numbers of block devices |
//! | [`rings`], [`contexts`] | the calls of io_uring and of AIO |
//! | [`device_calls`] | plain calls on devices |
//! | [`descriptor_calls`] | close, dup, fcntl and the like |
//! | [`limits`] | the program's own limit of open files |

pub mod contexts;
pub mod descriptor_calls;
pub mod descriptors;
pub mod device_calls;
pub mod devices;
pub mod liburing;
pub mod limits;
pub mod numbers;
pub mod registered;
pub mod rings;
