//! The requests in flight, and completions that the program has not consumed.

use crate::memory::ReturnSlot;
use crate::stack::Stack;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_engine::observers::{HeldBack, Identity};
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::FileIdentity;
use usring_sys::plain::IoVector;
use usring_uapi::opcode;

/// How a request uses its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    None,
    Writes,
    Reads,
}

/// A request of the program.
#[derive(Clone)]
pub(crate) struct InFlight {
    pub ring: u32,
    pub user_data: u64,
    /// Whether the request posts a CQE even if it succeeds (no IOSQE_CQE_SKIP_SUCCESS).
    pub posts_cqe: bool,
    pub opcode: u8,
    /// The SQE's `fd`.
    pub number: i32,
    /// The SQE's `fd` is a descriptor number, and not the index of a registered file.
    pub has_descriptor: bool,
    /// The thread that submitted the request.
    pub thread: u32,
    /// The call that submitted the request, or that made its SQE visible to the SQ thread. `None`:
    /// the SQ thread took an SQE whose publication the checker did not see.
    pub submission: Option<Arc<Stack>>,
    pub submitted_at: Nanoseconds,
    pub access: Access,
    pub memory: Vec<IoVector>,
    /// The first return address above the request's memory, if the memory lies in the stack of the
    /// submitting thread. The checker reads this stack word again later, to see whether the stack
    /// frame has ended.
    pub slot: Option<ReturnSlot>,
    /// Checksum of the request's memory at the submission, if a change of this memory would be a
    /// mistake.
    pub checksum: Option<u64>,
    /// The call in which the request's memory was first found changed. Outer `None`: the memory was
    /// not found changed. Inner `None`: the change was found outside of any call.
    pub changed: Option<Option<Arc<Stack>>>,
    pub held_back: HeldBack,
    /// Number of the request's chain; 0: the request is in no chain.
    pub chain: u64,
    /// The call that closed the request's file before the request was complete, and the identity of
    /// this file.
    pub closed: Option<(Arc<Stack>, FileIdentity)>,
    /// The slot of the shared memory ([`crate::stacks`]) that has a copy of the submission's stack.
    pub shared_stack: Option<u16>,
    /// Indices of this request's entries in the table of poisoned memory ([`crate::shadow`]).
    pub poisoned: Vec<u16>,
    /// Whether a finding was made about the request's memory, so that no further finding is made.
    pub is_reported: bool,
}

impl InFlight {
    /// Returns whether the request changes something outside this process's memory. If so, a
    /// program should check the request's result.
    pub fn has_effect(&self) -> bool {
        matches!(
            self.opcode,
            opcode::WRITE
                | opcode::WRITEV
                | opcode::WRITE_FIXED
                | opcode::WRITEV_FIXED
                | opcode::FSYNC
                | opcode::SYNC_FILE_RANGE
                | opcode::FALLOCATE
                | opcode::FTRUNCATE
                | opcode::SEND
                | opcode::SENDMSG
                | opcode::SEND_ZC
                | opcode::SENDMSG_ZC
                | opcode::SPLICE
                | opcode::RENAMEAT
                | opcode::UNLINKAT
                | opcode::MKDIRAT
                | opcode::SYMLINKAT
                | opcode::LINKAT
        )
    }

    /// Returns whether requests with this opcode wait until their file has data or a connection.
    pub fn awaits_file(&self) -> bool {
        matches!(
            self.opcode,
            opcode::READ
                | opcode::READV
                | opcode::READ_FIXED
                | opcode::READ_MULTISHOT
                | opcode::RECV
                | opcode::RECVMSG
                | opcode::ACCEPT
                | opcode::POLL_ADD
        )
    }

    /// Returns the first buffer of the request that overlaps a range of addresses; `None` if none
    /// does.
    pub fn member_in(&self, start: u64, length: u64) -> Option<IoVector> {
        self.memory.iter().copied().find(|member| crate::memory::overlaps(member, start, length))
    }

    pub fn first_member(&self) -> IoVector {
        self.memory.first().copied().unwrap_or_default()
    }
}

/// A completion that the program may not have consumed.
pub(crate) struct Done {
    /// Index of this CQE in the sequence of the ring's CQEs: the CQ's tail before this CQE was
    /// added.
    position: u32,
    pub result: i32,
    pub request: InFlight,
}

/// Maximum number of completions that are remembered for a ring until the program consumes them.
/// For a further completion, the oldest one is forgotten.
const MOST_DONE: usize = 4096;

#[derive(Default)]
pub(crate) struct Requests {
    pub in_flight: BTreeMap<Identity, InFlight>,
    done: BTreeMap<u64, VecDeque<Done>>,
}

impl Requests {
    /// Remembers a completion until the program has consumed it.
    pub fn add_done(&mut self, ring: u64, position: u32, result: i32, request: InFlight) {
        let done = self.done.entry(ring).or_default();
        if done.len() == MOST_DONE {
            done.pop_front();
        }
        done.push_back(Done { position, result, request });
    }

    /// Forgets the completions that the program has consumed. `consumed`: the CQ's head.
    pub fn forget_consumed(&mut self, ring: u64, consumed: u32) {
        if let Some(done) = self.done.get_mut(&ring) {
            while done.front().is_some_and(|first| is_before(first.position, consumed)) {
                done.pop_front();
            }
        }
    }

    /// Returns the requests of a ring that are in flight.
    pub fn of_ring(&self, ring: u64) -> impl Iterator<Item = (&Identity, &InFlight)> {
        let first = Identity { ring, number: 0 };
        self.in_flight.range(first..=Identity { ring, number: u64::MAX })
    }

    /// Removes and returns all that is known about a ring: its requests in flight, and the
    /// completions that the program has not consumed. The flag is `true` for a completion that is
    /// still in the backlog.
    pub fn take_ring(&mut self, ring: u64, consumed: u32, tail: u32) -> (Vec<InFlight>, Vec<(Done, bool)>) {
        self.forget_consumed(ring, consumed);
        let done = self.done.remove(&ring).unwrap_or_default();
        let done = done.into_iter().map(|done| {
            let is_behind = !is_before(done.position, tail);
            (done, is_behind)
        });
        let keys: Vec<Identity> = self.of_ring(ring).map(|(key, _)| *key).collect();
        let taken = keys.iter().filter_map(|key| self.in_flight.remove(key)).collect();
        (taken, done.collect())
    }
}

/// Returns whether `position` is before `other`. Positions of a CQ wrap around.
fn is_before(position: u32, other: u32) -> bool {
    position.wrapping_sub(other).cast_signed() < 0
}
