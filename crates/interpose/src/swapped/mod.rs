//! The program's swapped memory.
//!
//! - [`managed`] decides which memory is swapped.
//! - [`mapping_calls`] answers the calls that map, move and advise it.
//! - For all other calls, [`swap_filter`] traps them, [`pointers`] says which memory they name, and
//!   [`guarded`] pins that memory during the call.
//! - [`swap_calls`] are usring's functions for programs that are linked to the library.

pub mod bounce;
pub mod calls;
pub mod data;
pub mod few;
pub mod forked;
pub mod guarded;
pub mod managed;
pub mod manner;
pub mod mapping_calls;
pub mod outstanding;
pub mod pointers;
pub mod swap_calls;
pub mod swap_filter;
pub mod transfer;
