//! The operation of a request: the fields of its SQE, as the opcode's prepare has read and checked
//! them. The prepare and issue functions are in `op`. Nothing in this module knows a ring.

pub(crate) mod read_write;
pub(crate) mod send_receive;
pub(crate) mod vector;

use super::conditions::{CancelKey, Deadline, Interest};
use crate::registered::registered_files::{FileSlot, RegisteredFile};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::mem::needs_drop;
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::{HeldDescriptor, OwnedDescriptor};
use usring_sys::socket::ADDRESS_LIMIT;
use usring_sys::{Errno, SystemCall, UserAddress, user_memory, width};
use usring_uapi::Sqe;

/// The operation of a request, as the opcode's prepare has read it from the SQE. `repr(u8)` places
/// the tag outside the variants' fields. So the code that ends a request reads the tag in one load.
#[derive(Default)]
#[repr(u8)]
pub(crate) enum Operation {
    #[default]
    Nothing,
    Nop(Nop),
    ReadWrite(read_write::ReadWrite),
    SendReceive(send_receive::SendReceive),
    Call(Call),
    Open(Open),
    Poll(Interest),
    PollUpdate(PollUpdate),
    Timeout(Deadline),
    LinkTimeout(Deadline),
    TimeoutUpdate(TimeoutUpdate),
    Cancel(CancelKey),
    EpollControl(EpollControl),
    EpollWait(EpollWait),
    Command(Command),
    Message(Message),
    Accept(Accept),
    Bind(SocketAddress),
    Connect(Connect),
    Socket(Option<OwnedDescriptor>),
    Splice(Source),
    WaitId(WaitId),
}

impl Operation {
    /// Returns whether the operation owns memory or a file, so that dropping it has an effect.
    #[inline(always)]
    pub fn owns_memory(&self) -> bool {
        // Transfers are checked before the `match`. The `match` jumps through a table, and after a
        // wait for a device the processor seldom predicts such a jump.
        if let Operation::ReadWrite(transfer) = self {
            return transfer.owns_memory();
        }
        match self {
            Operation::ReadWrite(_) => true,
            Operation::Message(message) => message.visit.is_some(),
            Operation::Call(_) | Operation::Open(_) | Operation::Accept(_) | Operation::Splice(_) => true,
            Operation::Socket(made) => made.is_some(),
            Operation::Bind(address) => address.owns_memory(),
            Operation::Connect(connect) => connect.address.owns_memory(),
            Operation::WaitId(wait) => wait.named.is_some(),
            Operation::SendReceive(transfer) => transfer.owns_memory(),
            Operation::Nothing | Operation::Nop(_) | Operation::Poll(_) | Operation::PollUpdate(_) => false,
            Operation::Timeout(_) | Operation::LinkTimeout(_) | Operation::TimeoutUpdate(_) => false,
            Operation::Cancel(_) | Operation::EpollControl(_) | Operation::EpollWait(_) => false,
            Operation::Command(_) => false,
        }
    }

    /// Returns the second half of the request's 32-byte CQE.
    pub fn cqe_extra(&self) -> [u64; 2] {
        match self {
            Operation::Nop(nop) => nop.extra,
            _ => [0; 2],
        }
    }
}

/// [`Operation::owns_memory`] returns `false` for these types because they need no drop.
const _: () = {
    assert!(!needs_drop::<(Nop, Interest, PollUpdate)>());
    assert!(!needs_drop::<(Deadline, TimeoutUpdate)>());
    assert!(!needs_drop::<(CancelKey, EpollControl, Command)>());
    assert!(!needs_drop::<EpollWait>());
};

/// A NOP's fields that have a meaning with `IORING_NOP_*` flags.
#[derive(Clone, Copy, Default)]
pub(crate) struct Nop {
    pub result: i32,
    pub flags: u32,
    pub fd: i32,
    pub buffer: u16,
    /// The second half of the NOP's 32-byte CQE.
    pub extra: [u64; 2],
}

/// A system call that a worker makes.
pub(crate) struct Call {
    pub call: SystemCall,
    /// The worker sets the first argument to the descriptor number of the request's file.
    pub on_file: bool,
    /// Copies of the program's memory that the arguments point to.
    #[expect(dead_code, reason = "owned because the call points into it")]
    pub memory: Vec<u8>,
}

impl Call {
    pub fn on_file(number: u32, rest: [u64; 4]) -> Operation {
        let [b, c, d, e] = rest;
        Operation::Call(Call { call: SystemCall::new(number, [0, b, c, d, e]), on_file: true, memory: Vec::new() })
    }

    /// Makes a call whose first argument becomes the descriptor number of the request's file.
    pub fn on_file_with_memory(number: u32, arguments: [u64; 5], memory: Vec<u8>) -> Operation {
        Operation::Call(Call { call: SystemCall::new(number, arguments), on_file: true, memory })
    }

    pub fn with_memory(number: u32, arguments: [u64; 5], memory: Vec<u8>) -> Operation {
        Operation::Call(Call { call: SystemCall::new(number, arguments), on_file: false, memory })
    }
}

/// An open (OPENAT, OPENAT2), as the arguments of openat2(2).
pub(crate) struct Open {
    pub directory: i32,
    pub path: Vec<u8>,
    /// The fields of `struct open_how`: flags, mode, resolve. Boxed, because the kernel gets their
    /// address.
    pub how: Box<[u64; 3]>,
    pub slot: FileSlot,
    /// The request has been tried without blocking, with cached directory entries only
    /// (RESOLVE_CACHED).
    pub attempted: bool,
    /// The opened file until it is put into `slot`. If the request completes before that, the file
    /// is closed.
    pub opened: Option<OwnedDescriptor>,
}

/// The changes that a POLL_REMOVE makes to an armed poll. Without any change, the POLL_REMOVE
/// removes the poll.
#[derive(Clone, Copy)]
pub(crate) struct PollUpdate {
    pub target: u64,
    pub user_data: Option<u64>,
    pub interest: Option<Interest>,
}

/// The change that a TIMEOUT_REMOVE makes to a timeout.
#[derive(Clone, Copy)]
pub(crate) enum TimeoutUpdate {
    Remove { target: u64 },
    Update { target: u64, linked: bool, absolute: bool, span: Nanoseconds },
}

/// The arguments of epoll_ctl(2), with the event copied from the program's memory.
#[derive(Clone, Copy)]
pub(crate) struct EpollControl {
    pub set: i32,
    pub operation: u32,
    pub target: i32,
    /// The bytes of the packed `struct epoll_event`.
    pub event: [u8; 12],
}

/// Where an EPOLL_WAIT stores events, and how many it returns at most.
#[derive(Clone, Copy)]
pub(crate) struct EpollWait {
    pub events: UserAddress,
    pub most: i32,
}

/// The fields of a URING_CMD's SQE.
#[derive(Clone, Copy)]
pub(crate) struct Command {
    pub number: u32,
    pub address: u64,
    /// The SQE's `optlen`: the length of a socket option's value.
    pub length: u32,
    /// The SQE's `addr3`, also named `optval`: the address of a socket option's value, or the
    /// number of bytes to discard.
    pub value: u64,
    /// The SQE sets fields that commands of block devices do not use.
    pub has_more: bool,
}

/// The fields of a MSG_RING's SQE.
pub(crate) struct Message {
    pub command: u32,
    pub user_data: u64,
    /// The result of the CQE that the other ring gets; must be 0 for a message with a file.
    pub result: u32,
    /// The file's slot in the table of the sending ring.
    pub source: u32,
    /// The file's slot in the table of the other ring, coded as in `file_index`. For a message
    /// without a file: flags of the CQE.
    pub index: u32,
    pub flags: u32,
    /// For a request that itself goes to another ring: both rings, and the file. The type is
    /// hidden, because this module knows no ring. Only `op::message_ring` uses the content.
    pub visit: Option<Box<dyn Any + Send>>,
}

/// Progress of an ACCEPT: facts about its listener, and the connection that it has accepted.
#[derive(Default)]
pub(crate) struct Accept {
    /// Whether the listener is an internet socket; `None` until the ACCEPT has checked.
    pub internet: Option<bool>,
    /// The connection that a worker has accepted, until the ring's driver gives it a descriptor of
    /// the program's. If the request is cancelled before that, or the ring is closed, the
    /// connection is closed with the request.
    pub accepted: Option<OwnedDescriptor>,
}

/// Bytes of the longest internet address (`struct sockaddr_in6`).
const INTERNET_ADDRESS_BYTES: usize = 28;

/// A copy of the program's `struct sockaddr`. A copy is needed, because the program may reuse the
/// memory of the structure when its call returns.
pub(crate) enum SocketAddress {
    Short { length: u8, bytes: [u8; INTERNET_ADDRESS_BYTES] },
    Long { length: u8, bytes: Box<[u8; ADDRESS_LIMIT]> },
}

impl SocketAddress {
    pub fn read(sqe: &Sqe) -> Result<SocketAddress, Errno> {
        // The kernel stores this length in an int, so only the lower 32 bits count.
        let length = usize::try_from(width::int(sqe.off)).map_err(|_| Errno::EINVAL)?;
        if length > ADDRESS_LIMIT {
            return Err(Errno::EINVAL);
        }
        let from = UserAddress(sqe.addr);
        if length <= INTERNET_ADDRESS_BYTES {
            let mut bytes = [0; INTERNET_ADDRESS_BYTES];
            user_memory::copy_in(&mut bytes[..length], from)?;
            return Ok(SocketAddress::Short { length: width::byte(length as u64), bytes });
        }
        let mut bytes = Box::new([0; ADDRESS_LIMIT]);
        user_memory::copy_in(&mut bytes[..length], from)?;
        Ok(SocketAddress::Long { length: width::byte(length as u64), bytes })
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            SocketAddress::Short { length, bytes } => &bytes[..usize::from(*length)],
            SocketAddress::Long { length, bytes } => &bytes[..usize::from(*length)],
        }
    }

    pub fn owns_memory(&self) -> bool {
        matches!(self, SocketAddress::Long { .. })
    }
}

/// The address that a CONNECT connects to, and whether connecting has begun.
pub(crate) struct Connect {
    pub address: SocketAddress,
    /// connect(2) has been called and returned EINPROGRESS. The socket becomes writable when the
    /// connection is established or has failed.
    pub under_way: bool,
}

/// The file that a SPLICE or TEE reads from.
#[derive(Default)]
pub(crate) enum Source {
    /// The issue has not looked the file up yet.
    #[default]
    Unknown,
    Registered(Arc<RegisteredFile>),
    Duplicate(HeldDescriptor),
}

/// The arguments of a WAITID's waitid(2).
pub(crate) struct WaitId {
    pub kind: u32,
    pub id: i32,
    pub options: u32,
    pub report_to: UserAddress,
    /// A duplicate of the pidfd that the request names. A duplicate is needed, because the program
    /// may close its own pidfd while the request waits.
    pub named: Option<HeldDescriptor>,
}
