//! The program's swapped memory: [`managed`] knows which memory that is,
//! [`mapping_calls`] answers the calls that map, move and advise it. Any other call finds its
//! memory there all the same: [`swap_filter`] traps it, [`pointers`] says which
//! memory it names, [`guarded`] pins that while the call is made. [`swap_calls`]
//! are functions of our own for programs that are linked to the library.

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
