//! The operation of a request: the fields of its SQE as the opcode's family has read and checked
//! them. `op` has the families' functions. Nothing here knows a ring.

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
use usring_sys::{Errno, SystemCall, UserAddress, user_memory};
use usring_uapi::Sqe;

/// The operation that a family's prepare made of the SQE. `repr(u8)` gives it a tag of its own,
/// outside all fields, because the tag is read at the end of every request.
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
    /// Returns whether dropping the operation has an effect, because it owns memory.
    #[inline(always)]
    pub fn owns_memory(&self) -> bool {
        // Transfers are checked apart from the `match`: after a wait for a device, the processor
        // would seldom predict the jump through the table.
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

    /// Returns the second half of a 32-byte CQE.
    pub fn cqe_extra(&self) -> [u64; 2] {
        match self {
            Operation::Nop(nop) => nop.extra,
            _ => [0; 2],
        }
    }
}

/// [`Operation::owns_memory`] relies on these types having no drop.
const _: () = {
    assert!(!needs_drop::<(Nop, Interest, PollUpdate)>());
    assert!(!needs_drop::<(Deadline, TimeoutUpdate)>());
    assert!(!needs_drop::<(CancelKey, EpollControl, Command)>());
    assert!(!needs_drop::<EpollWait>());
};

/// The flags and fields of a NOP.
#[derive(Clone, Copy)]
pub(crate) struct Nop {
    pub result: i32,
    pub flags: u32,
    pub fd: i32,
    pub buffer: u16,
    /// The second half of a 32-byte CQE.
    pub extra: [u64; 2],
}

/// A system call that a worker makes.
pub(crate) struct Call {
    pub call: SystemCall,
    /// The request's file becomes the first argument.
    pub on_file: bool,
    /// Copied memory that the arguments point to.
    #[expect(dead_code, reason = "owned because the call points into it")]
    pub memory: Vec<u8>,
}

impl Call {
    pub fn on_file(number: u32, rest: [u64; 4]) -> Operation {
        let [b, c, d, e] = rest;
        Operation::Call(Call { call: SystemCall::new(number, [0, b, c, d, e]), on_file: true, memory: Vec::new() })
    }

    /// Makes a call whose first argument is the descriptor number of the request's file.
    pub fn on_file_with_memory(number: u32, arguments: [u64; 5], memory: Vec<u8>) -> Operation {
        Operation::Call(Call { call: SystemCall::new(number, arguments), on_file: true, memory })
    }

    pub fn with_memory(number: u32, arguments: [u64; 5], memory: Vec<u8>) -> Operation {
        Operation::Call(Call { call: SystemCall::new(number, arguments), on_file: false, memory })
    }
}

/// An open, in the form of openat2(2).
pub(crate) struct Open {
    pub directory: i32,
    pub path: Vec<u8>,
    /// flags, mode, resolve; boxed because the kernel is given its address.
    pub how: Box<[u64; 3]>,
    pub slot: FileSlot,
    /// The first attempt, which must not block, was made.
    pub attempted: bool,
    /// The file on its way into its slot. It is closed if the request ends in another way.
    pub opened: Option<OwnedDescriptor>,
}

/// A POLL_REMOVE that changes the armed poll instead of ending it.
#[derive(Clone, Copy)]
pub(crate) struct PollUpdate {
    pub target: u64,
    pub user_data: Option<u64>,
    pub interest: Option<Interest>,
}

/// The change that a TIMEOUT_REMOVE asks for.
#[derive(Clone, Copy)]
pub(crate) enum TimeoutUpdate {
    Remove { target: u64 },
    Update { target: u64, linked: bool, absolute: bool, span: Nanoseconds },
}

/// A change of an epoll set, with its event copied.
#[derive(Clone, Copy)]
pub(crate) struct EpollControl {
    pub set: i32,
    pub operation: u32,
    pub target: i32,
    /// The bytes of `struct epoll_event`, which is packed.
    pub event: [u8; 12],
}

/// The destination of the events of an EPOLL_WAIT.
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
    /// From `optlen`.
    pub length: u32,
    /// From `addr3`, which is also `optval`.
    pub value: u64,
    /// The SQE uses fields that no command of a block device has.
    pub has_more: bool,
}

/// The fields of a MSG_RING's SQE.
pub(crate) struct Message {
    pub command: u32,
    pub user_data: u64,
    /// The CQE's result; 0 for a message with a file.
    pub result: u32,
    /// The file's slot in this ring's table.
    pub source: u32,
    /// The file's slot in the other ring's table, or flags of the CQE.
    pub index: u32,
    pub flags: u32,
    /// The rings and the file that the request takes along to another ring. The type is hidden
    /// because a request knows no ring; only `op::message_ring` looks inside.
    pub visit: Option<Box<dyn Any + Send>>,
}

/// The progress of an ACCEPT.
#[derive(Default)]
pub(crate) struct Accept {
    /// Whether its listener is an internet socket; `None` before it was asked.
    pub internet: Option<bool>,
    /// The connection that a worker has accepted. It is closed if the request ends in another way.
    pub accepted: Option<OwnedDescriptor>,
}

/// Bytes of the longest internet address (`struct sockaddr_in6`).
const SHORT: usize = 28;

/// A copy of the program's `struct sockaddr`, which the program may reuse as soon as its call has
/// returned.
pub(crate) enum SocketAddress {
    Short { length: u8, bytes: [u8; SHORT] },
    Long { length: u8, bytes: Box<[u8; ADDRESS_LIMIT]> },
}

impl SocketAddress {
    pub fn read(sqe: &Sqe) -> Result<SocketAddress, Errno> {
        // The kernel keeps this length in an int.
        let length = usize::try_from(sqe.off as i32).map_err(|_| Errno::EINVAL)?;
        if length > ADDRESS_LIMIT {
            return Err(Errno::EINVAL);
        }
        let from = UserAddress(sqe.addr);
        if length <= SHORT {
            let mut bytes = [0; SHORT];
            user_memory::copy_in(&mut bytes[..length], from)?;
            return Ok(SocketAddress::Short { length: length as u8, bytes });
        }
        let mut bytes = Box::new([0; ADDRESS_LIMIT]);
        user_memory::copy_in(&mut bytes[..length], from)?;
        Ok(SocketAddress::Long { length: length as u8, bytes })
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

/// The progress of a CONNECT.
pub(crate) struct Connect {
    pub address: SocketAddress,
    /// The connection has been begun; the socket becomes writable when it is established.
    pub under_way: bool,
}

/// The file that a SPLICE or TEE reads from.
#[derive(Default)]
pub(crate) enum Source {
    /// The file has not been looked up yet.
    #[default]
    Unknown,
    Registered(Arc<RegisteredFile>),
    Duplicate(HeldDescriptor),
}

/// The processes that a WAITID waits for, and the destination of the report.
pub(crate) struct WaitId {
    pub kind: u32,
    pub id: i32,
    pub options: u32,
    pub report_to: UserAddress,
    /// A duplicate of the pidfd that the request named, because the program may close its own
    /// meanwhile.
    pub named: Option<HeldDescriptor>,
}
