//! Decides which of the program's descriptors belong to usring, and serves the calls on them.
//!
//! | file | content |
//! |---|---|
//! | [`descriptors`] | numbers of rings |
//! | [`numbers`] | numbers in the reserved range |
//! | [`places`] | where other processes find the rings |
//! | [`reached`] | rings that reach this process by pidfd_getfd(2) |
//! | [`handover`] | rings that reach the next program over execve(2) |
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
pub mod handover;
pub mod liburing;
pub mod limits;
pub mod numbers;
pub mod places;
pub mod reached;
pub mod registered;
pub mod rings;
