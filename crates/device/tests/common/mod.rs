//! Tests that every driver must pass. A driver's test file says how to open its device, and calls
//! the macro [`any_driver`]:
//!
//! ```ignore
//! mod common;
//! fn subject() -> common::Subject { … }
//! any_driver!(subject());
//! ```
#![allow(dead_code)]

pub mod harness;
mod parts;
pub mod wait_limit;

pub use parts::*;

use usring_device::Driver;

/// A device under test.
pub struct Subject {
    /// Opens a new device of at least [`LEAST_SIZE`] bytes. If the device keeps data, all its
    /// blocks are zero at first.
    pub open: Box<dyn Fn() -> Box<dyn Driver>>,
    /// Whether written data can be read back.
    pub keeps_data: bool,
    /// Whether the device accesses the program's memory, and so finds invalid addresses.
    pub touches_memory: bool,
}

pub const LEAST_SIZE: u64 = 4 << 20;

/// Expands to one test for each function in the list. Each test runs on a device that the macro's
/// argument makes.
#[macro_export]
macro_rules! any_driver {
    ($subject:expr) => {
        $crate::any_driver!(@ $subject;
            geometry_is_valid
            polled_traffic_completes_once_and_correctly
            traffic_with_interrupts_completes_once_and_correctly
            one_request_at_a_time_works
            a_full_queue_refuses_requests_and_then_continues
            segments_of_any_length_are_filled_in_order
            discard_write_zeroes_and_flush_take_effect
            an_interrupt_comes_for_a_request_submitted_after_arming
            no_interrupt_comes_without_requests
            a_dropped_queue_no_longer_changes_memory
            queues_of_two_threads_do_not_disturb_each_other
            an_invalid_address_fails_with_efault
        );
    };
    (@ $subject:expr; $($part:ident)*) => {
        $(
            #[test]
            fn $part() {
                common::$part(&$subject);
            }
        )*
    };
}
