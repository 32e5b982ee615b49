//! Pins the memory that a system call names, until the kernel has answered the call. This is for
//! programs whose memory usring itself swaps ([`usring_swap::mappings`]).
//!
//! If a call names a page that is evicted, the kernel answers EFAULT. If the call was to receive a
//! datagram, the datagram is then lost. So usring pins the memory of a call before it makes the
//! call:
//!
//! - Structures, names and small data are pinned, even if more than half of the region's limit is
//!   pinned already. The limit is the number of bytes that may be resident.
//! - Large data is not pinned as a whole. It is transferred part by part: usring pins each part, or
//!   copies it through a bounce buffer.
//! - A call gets ENOMEM if a single range that it names is longer than half of the region's limit.
//!   Data and the memory that execve(2) names are exempt.
//! - A futex word is not pinned while threads sleep on it. If the kernel answers EFAULT because the
//!   word is evicted, usring pins the word and makes the call again.
//!
//! | file | content |
//! |---|---|
//! | `table` | each call's arguments that are addresses |
//! | `pointers` | the memory that a call names, by its arguments and by structures in memory |
//! | `data` | the buffers of data that a call moves |
//! | `io_semantics` | whether a call on data may wait, and whether its data goes in parts |
//! | `transfer` | large data, by pinned parts or bounce buffers |
//! | `pinned_call` | pins and transfers the memory of one call |
//!
//! The crate knows calls by their numbers and arguments only, and does not know how a call arrived.
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
