//! The life of the program that we are loaded into: [`start`] opens the house,
//! [`environment`] says what `usring run` was asked for, [`process`] notices a
//! fork, [`exec`] takes the library along into the next program, if
//! [`executable`] finds that its loader will. [`limits`] shows the program its own limit of
//! open files.

pub mod environment;
pub mod exec;
mod executable;
pub mod limits;
pub mod process;
pub mod start;
