//! The next program, which execve(2) starts in place of this one.
//!
//! | file | content |
//! |---|---|
//! | [`exec`] | makes the next program load the library, too |
//! | [`executable`] | whether that program's loader will load the library |
//! | [`exec_call`] | makes the call, with deferred signals delivered before |
//! | [`unserved`] | lets static programs run without the library |

pub mod exec;
mod exec_call;
mod executable;
pub mod unserved;
