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
pub mod patience;

pub use parts::*;

use usring_device::Driver;

/// A device under test.
pub struct Subject {
    /// Opens a new device of at least [`LEAST_SIZE`] bytes. A device that keeps data holds zeroes.
    pub open: Box<dyn Fn() -> Box<dyn Driver>>,
    /// Written data can be read back.
    pub keeps_data: bool,
    /// The device accesses the program's memory, so it finds invalid addresses.
    pub touches_memory: bool,
}

pub const LEAST_SIZE: u64 = 4 << 20;

/// Makes one test of each part.
#[macro_export]
macro_rules! any_driver {
    ($subject:expr) => {
        $crate::any_driver!(@ $subject;
            geometry_makes_sense
            polled_traffic_is_answered_once_and_right
            traffic_with_interrupts_is_answered_once_and_right
            one_request_at_a_time_works
            a_queue_takes_no_more_than_its_depth_and_goes_on
            segments_of_any_length_are_filled_in_order
            operations_without_data_do_what_they_say
            an_interrupt_comes_for_what_is_submitted_after_arming
            an_interrupt_without_requests_is_silent
            a_dropped_queue_leaves_memory_alone
            queues_of_two_threads_do_not_disturb_each_other
            a_bad_address_is_an_answer
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
