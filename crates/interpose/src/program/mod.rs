//! The life of the program that this library is loaded into.
//!
//! | file | content |
//! |---|---|
//! | [`start`] | the constructor |
//! | [`environment`] | the launcher's variables |
//! | [`process`] | notices a fork |
//! | [`exec`] | takes the library along into the next program |
//! | [`executable`] | whether that program's loader will load the library |
//! | [`limits`] | the program's own limit of open files |
//! | [`unserved`] | lets static programs run without the library |

pub mod environment;
pub mod exec;
mod executable;
pub mod limits;
pub mod process;
pub mod start;
mod unserved;
