//! The memory that a system call names, and how it stays in place until the kernel has answered:
//! for programs whose memory usring itself swaps ([`usring_swap::mappings`]).
//!
//! For a page that is out, the kernel's own answer is EFAULT. A datagram that was to be received
//! there is lost. So no call is tried before its memory is pinned:
//!
//! - Structures, names and small data are pinned regardless of the limit.
//! - Large data is transferred separately.
//! - A call that names more than half of the limit, and not as data, is answered ENOMEM.
//! - A word that threads sleep on is not pinned: it is in memory when the kernel first reads it.
//!   After an EFAULT it is pinned, and the kernel reads it again.
//!
//! | file | content |
//! |---|---|
//! | `table` | each call's arguments that are addresses |
//! | `pointers` | the memory that a call names, by its arguments and by other memory |
//! | `data` | the buffers of data that a call moves |
//! | `io_semantics` | whether such a call may wait, and whether its data goes in parts |
//! | `transfer` | large data, by pinned parts or bounce buffers |
//! | `pinned_call` | all of this for one call |
//!
//! The crate knows calls by their numbers and arguments, wherever they come from.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

extern crate alloc;

mod data;
mod few;
mod io_semantics;
mod pinned_call;
mod pointers;
mod table;
mod transfer;

pub use pinned_call::{PinnedCall, is_execution, may_name_memory};
pub use pointers::is_guess;

use usring_swap::mappings::WINDOW;

/// Returns whether an address lies in the window of addresses that usring reserves for swapped
/// memory.
#[inline]
pub fn is_in_window(address: u64) -> bool {
    (WINDOW.start as u64..WINDOW.end as u64).contains(&address)
}
