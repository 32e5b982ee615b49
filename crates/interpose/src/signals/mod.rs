//! Keeps the program's signal handlers out of the engine.
//!
//! Every handler of the program is installed in the kernel as the wrapper `usring_signal_entry`.
//! The wrapper checks where the signal found its thread:
//!
//! | thread was in | wrapper |
//! |---|---|
//! | the program, or an entry point | runs the program's handler, on the kernel's own frame |
//! | the engine | defers the signal, and saves its frame (`frames`) until the call leaves the engine |
//!
//! Once a signal is deferred, later signals are blocked and wait in the kernel, so all signals keep
//! their order.
//!
//! In the kernel, usring's own handlers serve SIGSYS, SIGSEGV and SIGBUS (`entry::own_signal`). The
//! program's actions for these signals exist only in usring's table. The three signals are removed
//! from every mask: if they were blocked, a trap or a fault would kill the process.
//!
//! SA_RESETHAND never reaches the kernel. If it did, a deferred signal would find the default
//! action when it is sent again. The wrapper implements the flag.
//!
//! | file | content |
//! |---|---|
//! | [`table`] | the program's actions, and the kernel's |
//! | [`wrapper`] | the wrapper; defers a signal |
//! | [`frames`] | the frames of deferred signals |
//! | [`deliver`] | delivers them at the exit of an entry point |
//! | [`calls`] | rt_sigaction(2) and rt_sigprocmask(2) |
//! | [`context`] | the kernel's layout of a `ucontext_t` |

pub mod calls;
pub mod context;
mod deliver;
pub mod frames;
pub mod table;
pub mod wrapper;
