//! Timeouts of a ring that several processes use. The journal (in the ring's memory, the list of
//! all processes' requests) holds each timeout's condition. So if a process dies, another process
//! can continue its timeouts.

use crate::request::RequestEntry;
use crate::request::conditions::Deadline;
use crate::request::operation::Operation;
use crate::ring::LockedRing;
use crate::waiting::timeout::JournaledTimeout;
use usring_ring::{JournalSlot, JournalTimer};
use usring_sys::clock::Clock;
use usring_uapi::{Sqe, opcode, sqe_flags};

/// Flags of a [`JournalTimer`]: its clock (neither flag: the monotonic clock), and whether expiry
/// counts as success.
const REALTIME: u32 = 1;
const BOOTTIME: u32 = 2;
const SUCCEEDS: u32 = 4;
/// The timeout posts no CQE if it succeeds (IOSQE_CQE_SKIP_SUCCESS).
const SKIPS: u32 = 8;

impl LockedRing<'_> {
    /// Records a timeout in the journal, if the timeout has a slot there. `count`: the count of
    /// completions at which the timeout ends.
    pub fn note_timer(&mut self, journaled: &JournaledTimeout, count: Option<u32>) {
        let deadline = &journaled.deadline;
        let Some(slot) = journaled.slot.filter(|_| deadline.watches.is_none()) else { return };
        let clock = match deadline.clock {
            Clock::Monotonic => 0,
            Clock::Realtime => REALTIME,
            Clock::Boottime => BOOTTIME,
        };
        let succeeds = if deadline.expiry_succeeds { SUCCEEDS } else { 0 };
        let skips = if journaled.sqe_flags & sqe_flags::CQE_SKIP_SUCCESS != 0 { SKIPS } else { 0 };
        let flags = clock | succeeds | skips;
        let (at, every, repeats) = (deadline.at, deadline.repeat_every, deadline.repeats);
        self.journal().time(slot, JournalTimer { at, every, repeats, count, flags });
    }

    /// Continues a timeout of a process that has died. This process has taken over the timeout's
    /// slot in the journal. `request`: a new request for the timeout, without an operation yet.
    pub fn adopt_timer(&mut self, mut request: RequestEntry, slot: JournalSlot, timer: &JournalTimer) {
        let clock = match timer.flags & (REALTIME | BOOTTIME) {
            REALTIME => Clock::Realtime,
            BOOTTIME => Clock::Boottime,
            _ => Clock::Monotonic,
        };
        let deadline = Deadline {
            clock,
            at: timer.at,
            repeat_every: timer.every,
            repeats: timer.repeats,
            expiry_succeeds: timer.flags & SUCCEEDS != 0,
            ..Deadline::default()
        };
        if timer.flags & SKIPS != 0 {
            request.sqe.flags |= sqe_flags::CQE_SKIP_SUCCESS;
        }
        request.begin_operation(Operation::Timeout(deadline));
        request.journal = Some(slot);
        self.queues.drain.admit();
        let tail = self.queues.cq.tail();
        self.waiting.timeouts.adopt(request, deadline, timer.count, tail);
        self.listen_for_cqes();
    }
}

/// Returns the SQE of a timeout that this process continues for a process that has died.
pub(crate) fn sqe(user_data: u64) -> Sqe {
    Sqe { opcode: opcode::TIMEOUT, user_data, ..Sqe::default() }
}
