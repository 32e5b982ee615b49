//! The program's swapped memory. ([`usring_call_memory`] knows which memory a system call names.)
//!
//! | file | content |
//! |---|---|
//! | [`region`] | the memory that is swapped |
//! | [`filter`] | traps the calls that may name it |
//! | [`mapping_calls`] | the calls that map, move and advise it |
//! | [`guard`] | all other calls: pins what they name |
//! | [`in_flight`] | what is pinned for calls that have not returned yet |
//! | [`fork`] | a child's copy |
//! | [`functions`] | usring's functions for programs that are linked to the library |

pub mod filter;
pub mod fork;
pub mod functions;
pub mod guard;
mod in_flight;
pub mod mapping_calls;
pub mod region;
