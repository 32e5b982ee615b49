//! Timeouts of a ring that several processes use. The journal (the list of all processes' requests,
//! in the ring's memory) holds each timeout's condition. So if a process dies, another process can
//! continue the timeouts of the dead process.

use crate::request::conditions::Deadline;
use crate::request::operation::{Nop, Operation};
use crate::request::{Properties, RequestEntry};
use crate::ring::LockedRing;
use crate::waiting::timeout::JournaledTimeout;
use usring_ring::{JournalSlot, JournalTimer};
use usring_sys::Errno;
use usring_sys::clock::Clock;
use usring_uapi::{Sqe, opcode, sqe_flags};

/// Flags of a [`JournalTimer`]: this one, and the four below. A timer without `REALTIME` and
/// `BOOTTIME` uses the monotonic clock. With `EXPIRY_SUCCEEDS`, expiry counts as success.
const REALTIME: u32 = 1;
const BOOTTIME: u32 = 2;
const EXPIRY_SUCCEEDS: u32 = 4;
/// The timeout posts no CQE if it succeeds (IOSQE_CQE_SKIP_SUCCESS).
const SKIPS_CQE: u32 = 8;
/// The next request of the timeout's chain starts even if the timeout fails (IOSQE_IO_HARDLINK).
const HARD_LINKED: u32 = 16;

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
        let succeeds = if deadline.expiry_succeeds { EXPIRY_SUCCEEDS } else { 0 };
        let skips = if journaled.sqe_flags & sqe_flags::CQE_SKIP_SUCCESS != 0 { SKIPS_CQE } else { 0 };
        let hard = if journaled.sqe_flags & sqe_flags::IO_HARDLINK != 0 { HARD_LINKED } else { 0 };
        let flags = clock | succeeds | skips | hard;
        let (at, every, repeats) = (deadline.at, deadline.repeat_every, deadline.repeats);
        let next = journaled.members.first().copied();
        self.journal().link(&journaled.members);
        self.journal().time(slot, JournalTimer { at, every, repeats, count, next, flags });
    }

    /// Continues a timeout of a process that has died. This process has taken over the timeout's
    /// slot in the journal. `request`: a new request for the timeout, without an operation yet.
    /// `nop`: the properties of NOP. The later requests of the timeout's chain become NOPs.
    pub fn adopt_timer(
        &mut self,
        mut request: RequestEntry,
        slot: JournalSlot,
        timer: &JournalTimer,
        nop: &'static Properties,
    ) {
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
            expiry_succeeds: timer.flags & EXPIRY_SUCCEEDS != 0,
            ..Deadline::default()
        };
        if timer.flags & SKIPS_CQE != 0 {
            request.sqe.flags |= sqe_flags::CQE_SKIP_SUCCESS;
        }
        if timer.flags & HARD_LINKED != 0 {
            request.sqe.flags |= sqe_flags::IO_HARDLINK;
        }
        request.begin_operation(Operation::Timeout(deadline));
        request.journal = Some(slot);
        request.link = self.adopt_chain(slot, nop);
        self.queues.drain.admit();
        let tail = self.queues.cq.tail();
        self.waiting.timeouts.adopt(request, deadline, timer.count, tail);
        self.listen_for_cqes();
    }
}

impl LockedRing<'_> {
    /// Continues the requests behind a timeout of a process that has died. They cannot start
    /// without their process. So when the timeout has ended, the first of them gets −EFAULT, as in
    /// the kernel, and the others get −ECANCELED. Returns the first. `properties`: the properties
    /// of NOP.
    fn adopt_chain(&mut self, timeout: JournalSlot, properties: &'static Properties) -> Option<RequestEntry> {
        let mut rest: Option<RequestEntry> = None;
        for (slot, user_data) in self.journal().take_chain(timeout).into_iter().rev() {
            let Some(mut member) = self.queues.pool.take() else {
                self.complete_orphan(slot, user_data, Errno::ECANCELED);
                continue;
            };
            let flags = if rest.is_some() { sqe_flags::IO_LINK } else { 0 };
            member.sqe = Sqe { opcode: opcode::NOP, flags, user_data, ..Sqe::default() };
            member.begin(properties);
            let result = Errno::EFAULT.negative();
            member.begin_operation(Operation::Nop(Nop { result, ..Nop::default() }));
            member.journal = Some(slot);
            member.link = rest.take();
            self.queues.drain.admit();
            rest = Some(member);
        }
        rest
    }
}

/// Returns the SQE of a timeout that this process continues for a process that has died.
pub(crate) fn sqe(user_data: u64) -> Sqe {
    Sqe { opcode: opcode::TIMEOUT, user_data, ..Sqe::default() }
}
