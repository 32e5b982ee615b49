//! The rooms of cases, one file each, named after the engine's.

use crate::case::Case;

mod enter;
mod enter_wait;
mod mmap;
mod nop;
mod overflow;
mod read_write;
mod rw_flags;
mod vectored;
mod reg;
mod setup;
mod setup_flags;

/// Every room, in the order in which a reader would meet them.
pub const ROOMS: &[&[Case]] = &[setup::CASES, setup_flags::CASES, mmap::CASES, enter::CASES, enter_wait::CASES, nop::CASES, overflow::CASES, read_write::CASES, vectored::CASES, rw_flags::CASES];

/// What `conformance child NAME` does; `None` for a name nobody knows.
pub fn child(_name: &str, _arguments: &[&str]) -> Option<u8> {
    None
}
