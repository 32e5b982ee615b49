//! `usring ps` and `usring top`: the programs that usring serves now, and what their rings do.
//!
//! - `processes` finds them in /proc, whether a launcher started them or their environment did.
//! - `counts` reads the statistics files of `--stats` and USRING_STATS.
//! - `rates` is the difference of two such readings.
//! - `screen` draws on a terminal.
//! - `metrics` prints or serves the counts for collectors (`usring ctl metrics`).
//!
//! Both commands only read, so a program does not notice them, and they also work if it hangs.

mod counts;
pub mod metrics;
mod processes;
pub mod ps;
mod rates;
mod screen;
pub mod top;
