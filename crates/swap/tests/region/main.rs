//! Regions, by what a program sees of them.

mod arena;
mod backing;
mod calls;
mod common;
mod failures;
mod fork;
mod full;
mod heritage;
mod increments;
mod mappings;
mod polling;
mod process;
#[path = "../../../../xtask/src/skipped.rs"]
mod skipped;
mod switch;
