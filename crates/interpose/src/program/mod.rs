//! The next program: execve(2).
//!
//! | file | content |
//! |---|---|
//! | [`exec`] | takes the library along into the next program |
//! | [`executable`] | whether that program's loader will load the library |
//! | [`departure`] | makes the call, with put-off signals delivered before |
//! | [`unserved`] | lets static programs run without the library |

mod departure;
pub mod exec;
mod executable;
mod unserved;
