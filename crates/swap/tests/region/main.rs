//! Tests of regions by what a program sees of them.

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
