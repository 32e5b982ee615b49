//! The life of the program that we are loaded into: [`start`] opens the house,
//! [`environment`] says what `usring run` was asked for, [`process`] notices a
//! fork, [`exec`] takes the library along into the next program, if
//! [`executable`] finds that its loader will.

pub mod environment;
pub mod exec;
mod executable;
pub mod process;
pub mod start;
