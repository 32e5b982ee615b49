//! What every driver has to do, whatever it is made of. A driver's test file
//! says how its device is opened and calls [`any_driver`]'s macro:
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

/// A device to be tested.
pub struct Subject {
    /// Opens it anew, holding zeroes (if it keeps data), of [`LEAST_SIZE`] at least.
    pub open: Box<dyn Fn() -> Box<dyn Driver>>,
    /// What is written can be read.
    pub keeps_data: bool,
    /// It reads and writes the program's memory: a bad address is found.
    pub touches_memory: bool,
}

pub const LEAST_SIZE: u64 = 4 << 20;

/// One test for each of the parts.
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
