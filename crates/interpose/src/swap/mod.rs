//! The program's swapped memory. ([`usring_call_memory`] finds out which memory a system call
//! names.)
//!
//! | file | content |
//! |---|---|
//! | [`region`] | the memory that is swapped |
//! | [`filter`] | traps the calls that may name swapped memory |
//! | [`mapping_calls`] | the calls that map, move and advise it |
//! | [`guard`] | all other calls: pins the memory that they name |
//! | [`in_flight`] | the pinned memory of calls that have not returned yet |
//! | [`fork`] | a child's copy of swapped memory |
//! | [`functions`] | usring's functions for programs that are linked to the library |

pub mod filter;
pub mod fork;
pub mod functions;
pub mod guard;
mod in_flight;
pub mod mapping_calls;
pub mod region;
