//! One file per family of opcodes: its SQE fields, its prepare, its issue, its blocking work.

use crate::request::Request;
use core::mem::needs_drop;
use usring_sys::descriptor::OwnedDescriptor;

pub(crate) mod accept;
pub(crate) mod attributes;
pub(crate) mod block_device;
pub(crate) mod bundle;
pub(crate) mod call;
pub(crate) mod cancel;
pub(crate) mod connect;
pub(crate) mod descriptor;
pub(crate) mod epoll_ctl;
pub(crate) mod epoll_wait;
pub(crate) mod files_update;
pub(crate) mod message_ring;
pub(crate) mod named_files;
pub(crate) mod nop;
pub(crate) mod open_close;
pub(crate) mod path;
pub(crate) mod pipe;
pub(crate) mod poll;
pub(crate) mod provide_buffers;
pub(crate) mod read_multishot;
pub(crate) mod read_write;
pub(crate) mod receive;
mod received_message;
pub(crate) mod send;
pub(crate) mod send_receive;
pub(crate) mod socket;
pub(crate) mod socket_command;
pub(crate) mod splice;
pub(crate) mod sync;
pub(crate) mod timeout;
pub(crate) mod uring_cmd;
mod vector;
pub(crate) mod wait_id;

/// The operation that a family's prepare made of the SQE. It has a tag of its own, not one folded
/// into some field, because the tag is read at the end of every request.
#[derive(Default)]
#[repr(u8)]
pub(crate) enum Operation {
    #[default]
    Nothing,
    Nop(nop::Nop),
    ReadWrite(read_write::ReadWrite),
    SendReceive(send_receive::SendReceive),
    Call(call::Call),
    Open(open_close::Open),
    Poll(crate::waiting::fast_poll::Interest),
    PollUpdate(poll::PollUpdate),
    Timeout(crate::waiting::timeout::Deadline),
    LinkTimeout(crate::waiting::timeout::Deadline),
    TimeoutUpdate(timeout::TimeoutUpdate),
    Cancel(crate::waiting::cancel::CancelKey),
    EpollControl(epoll_ctl::EpollControl),
    EpollWait(epoll_wait::EpollWait),
    Command(uring_cmd::Command),
    Message(message_ring::Message),
    Accept(accept::Accept),
    Bind(connect::SocketAddress),
    Connect(connect::Connect),
    Socket(Option<OwnedDescriptor>),
    Splice(splice::Source),
    WaitId(wait_id::WaitId),
}

impl Operation {
    /// Returns whether dropping it has an effect.
    #[inline(always)]
    pub fn owns_memory(&self) -> bool {
        // Separately, for transfers on devices: a jump through a table is seldom predicted after a
        // wait.
        if let Operation::ReadWrite(transfer) = self {
            return transfer.owns_memory();
        }
        match self {
            Operation::ReadWrite(_) => true,
            Operation::Message(message) => message.owns_memory(),
            Operation::Call(_) | Operation::Open(_) | Operation::Accept(_) | Operation::Splice(_) => true,
            Operation::Socket(made) => made.is_some(),
            Operation::Bind(address) => address.owns_memory(),
            Operation::Connect(connect) => connect.address.owns_memory(),
            Operation::WaitId(wait) => wait.owns_memory(),
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
    assert!(!needs_drop::<(nop::Nop, crate::waiting::fast_poll::Interest, poll::PollUpdate)>());
    assert!(!needs_drop::<(crate::waiting::timeout::Deadline, timeout::TimeoutUpdate)>());
    assert!(!needs_drop::<(crate::waiting::cancel::CancelKey, epoll_ctl::EpollControl, uring_cmd::Command)>());
    assert!(!needs_drop::<epoll_wait::EpollWait>());
};

/// Returns whether the request's file is known to be a socket: its operation was tried, and works
/// on sockets only.
pub(crate) fn has_met_socket(request: &Request) -> bool {
    match &request.operation {
        Operation::SendReceive(transfer) => !transfer.has(send_receive::POLL_FIRST),
        _ => false,
    }
}

/// Returns the events that a request's file is polled for when it would block.
#[inline]
pub(crate) fn poll_events(request: &Request) -> u32 {
    match &request.operation {
        Operation::SendReceive(transfer) => transfer.poll_events(request.row.poll_events),
        _ => request.row.poll_events,
    }
}

/// Returns whether a worker's result breaks an ordinary link: an error, or fewer bytes than asked
/// for.
pub(crate) fn is_failure(request: &Request, result: i32) -> bool {
    match &request.operation {
        Operation::ReadWrite(operation) => operation.is_short(result),
        Operation::Splice(_) => splice::is_failure(request, result),
        _ => result < 0 && !request.row.breaks_no_chain,
    }
}
