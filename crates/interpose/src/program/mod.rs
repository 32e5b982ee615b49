//! The next program: execve(2).
//!
//! | file | content |
//! |---|---|
//! | [`exec`] | takes the library along into the next program |
//! | [`executable`] | whether that program's loader will load the library |
//! | [`exec_call`] | makes the call, with deferred signals delivered before |
//! | [`unserved`] | lets static programs run without the library |

pub mod exec;
mod exec_call;
mod executable;
mod unserved;
