//! `usring ps` and `usring top`: the programs that usring serves now, and what their rings do.
//!
//! - `processes` finds these programs in /proc, whether `usring run` started them or the user's
//!   LD_PRELOAD loaded the library.
//! - `counts` reads the statistics files of `--stats` and USRING_STATS.
//! - `rates` computes the difference of two readings of these files.
//! - `screen` draws on a terminal.
//! - `metrics` prints or serves the counts for collectors (`usring ctl metrics`).
//!
//! `ps` and `top` only read, so a program does not notice them, and they also work if it hangs.

mod counts;
pub mod metrics;
pub mod processes;
pub mod ps;
mod rates;
mod screen;
pub mod top;
