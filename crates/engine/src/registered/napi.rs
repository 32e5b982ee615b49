//! REGISTER_NAPI: settings for waiters that poll the queues of network devices before they sleep.
//! usring only stores and reports the settings, because a process cannot poll such a queue.

use alloc::collections::BTreeSet;
use usring_sys::{Errno, UserAddress, user_memory};
use usring_uapi::io_uring::{io_uring_napi_op as op, io_uring_napi_tracking_strategy as tracking};

const SET: u8 = op::IO_URING_NAPI_REGISTER_OP as u8;
const ADD: u8 = op::IO_URING_NAPI_STATIC_ADD_ID as u8;
const DELETE: u8 = op::IO_URING_NAPI_STATIC_DEL_ID as u8;
const DYNAMIC: u32 = tracking::IO_URING_NAPI_TRACKING_DYNAMIC as u32;
const STATIC: u32 = tracking::IO_URING_NAPI_TRACKING_STATIC as u32;
const INACTIVE: u32 = tracking::IO_URING_NAPI_TRACKING_INACTIVE as u32;

/// Lowest id of a network device's queue. (Lower values in the id's field are processor numbers.)
const LOWEST_ID: u32 = 1025;
/// Longest time that a waiter may poll, in microseconds.
const MOST_POLL_US: u32 = 10_000;

pub(crate) struct Napi {
    /// Polling time in microseconds.
    busy_poll: u32,
    prefer: bool,
    tracking: u32,
    queues: BTreeSet<u32>,
}

impl Default for Napi {
    fn default() -> Self {
        Napi { busy_poll: 0, prefer: false, tracking: INACTIVE, queues: BTreeSet::new() }
    }
}

/// `struct io_uring_napi` as 32-bit words: polling time; preference, operation and padding; the
/// operation's parameter; a reserved word.
type Words = [u32; 4];

impl Napi {
    fn words(&self, tracking: u32) -> Words {
        [self.busy_poll, u32::from(self.prefer), tracking, 0]
    }

    /// REGISTER_NAPI: writes the present settings to `argument`, and then carries out the operation
    /// that the program has written there. `is_polled`: whether the ring has IOPOLL. Error:
    /// `EINVAL` if the ring has IOPOLL.
    pub fn register(&mut self, is_polled: bool, argument: UserAddress) -> Result<(), Errno> {
        if is_polled {
            return Err(Errno::EINVAL);
        }
        let [time, fields, parameter, reserved]: Words = user_memory::read(argument)?;
        let [prefer, operation, padding @ ..] = fields.to_le_bytes();
        if padding != [0; 2] || reserved != 0 {
            return Err(Errno::EINVAL);
        }
        user_memory::write(argument, self.words(self.tracking))?;
        match operation {
            SET if parameter == DYNAMIC || parameter == STATIC => {
                let (busy_poll, prefer) = (time.min(MOST_POLL_US), prefer != 0);
                *self = Napi { busy_poll, prefer, tracking: parameter, queues: BTreeSet::new() };
                Ok(())
            }
            ADD | DELETE if self.tracking != STATIC || parameter < LOWEST_ID => Err(Errno::EINVAL),
            ADD => self.queues.insert(parameter).then_some(()).ok_or(Errno::EEXIST),
            DELETE => self.queues.remove(&parameter).then_some(()).ok_or(Errno::ENOENT),
            _ => Err(Errno::EINVAL),
        }
    }

    /// UNREGISTER_NAPI: writes the settings to `argument`, unless `argument` is null. Then resets
    /// the settings.
    pub fn unregister(&mut self, argument: UserAddress) -> Result<(), Errno> {
        if !argument.is_null() {
            user_memory::write(argument, self.words(0))?;
        }
        *self = Napi::default();
        Ok(())
    }
}
