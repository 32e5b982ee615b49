//! Tests of regions through the interface that programs use.

mod arena;
mod backing;
mod calls;
mod common;
mod failures;
mod fork;
mod full;
mod increments;
mod inheritance;
mod mappings;
mod polling;
mod process;
#[path = "../../../../xtask/src/skipped.rs"]
mod skipped;
mod switch;
