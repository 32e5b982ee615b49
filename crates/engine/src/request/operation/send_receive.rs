//! The transfer of a SEND, RECV or one of their variants: its message (SENDMSG, RECVMSG) and its
//! progress. `op::send` and `op::receive` carry it out.

use super::vector::{self, Members};
use crate::registered::buffer_group::WaitAllBuffers;
use crate::request::outcome::{Answer, IssueOutcome};
use alloc::boxed::Box;
use usring_sys::message::{self, ADDRESS_LIMIT, MessageHeader, UnreadPrediction, VECTOR_LIMIT};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, epoll, user_memory, width};
use usring_uapi::Sqe;
use usring_uapi::io_uring as abi;

pub(crate) const POLL_FIRST: u16 = width::short(abi::IORING_RECVSEND_POLL_FIRST as u64);
pub(crate) const MULTISHOT: u16 = width::short(abi::IORING_RECV_MULTISHOT as u64);
pub(crate) const FIXED_BUFFER: u16 = width::short(abi::IORING_RECVSEND_FIXED_BUF as u64);
pub(crate) const REPORT_USAGE: u16 = width::short(abi::IORING_SEND_ZC_REPORT_USAGE as u64);
pub(crate) const BUNDLE: u16 = width::short(abi::IORING_RECVSEND_BUNDLE as u64);
pub(crate) const VECTORIZED: u16 = width::short(abi::IORING_SEND_VECTORIZED as u64);

/// Events that a receive is polled for: data, urgent data, and the end of data.
pub(crate) const RECEIVE_EVENTS: u32 = epoll::IN | epoll::PRI | epoll::PEER_HANG_UP;

/// The state of a SEND, RECV or variant.
pub(crate) struct SendReceive {
    /// MSG_* flags of the system call.
    pub flags: u32,
    /// IORING_RECVSEND_* and further flags of the opcode, from the SQE's `ioprio`.
    pub options: u16,
    /// For a receive: how well the socket's count of unread bytes predicts what the receive
    /// returns. `None` until it is needed.
    pub counted: Option<UnreadPrediction>,
    /// The length that the SQE asks for. With provided buffers: the limit of a buffer selection, in
    /// bytes; 0: no limit. While a RECV waits, `wanted` is the length of the buffer that its last
    /// attempt selected.
    pub wanted: u32,
    /// For a multishot receive whose SQE limits the total: bytes left until that limit.
    pub limit: Option<u32>,
    /// For a receive with IORING_RECVSEND_BUNDLE: facts about its buffer selections since the last
    /// CQE.
    pub selections: Selections,
    /// Bytes transferred so far.
    pub done: u64,
    /// The memory left to transfer, if it is not a vector (see [`SocketMessage::members`]).
    pub part: IoVector,
    /// The fields of a SENDMSG or RECVMSG. Also set for a plain transfer with an address or with
    /// several buffers.
    pub message: Option<Box<SocketMessage>>,
}

/// For a receive with IORING_RECVSEND_BUNDLE: facts about the buffer selections since its last CQE.
/// As in the kernel, these facts limit the next selection. A selection counts even if the receive
/// after the selection found no data in the socket.
#[derive(Clone, Copy, Default)]
pub(crate) struct Selections {
    /// A selection took the last buffer of the group, so the bundle completes with its next CQE.
    pub emptied: bool,
    /// A selection reached its limit in bytes: it shortened a buffer, or left a buffer out. So no
    /// further buffer is added to this CQE.
    pub cut: bool,
    /// Bytes of the last selection that had only one buffer; 0: there was none. The next selection
    /// takes at most as many bytes.
    pub lone_length: u32,
}

/// The fields that sendmsg(2) and recvmsg(2) have, and that send(2) and recv(2) on one buffer do
/// not have.
#[derive(Default)]
pub(crate) struct SocketMessage {
    /// The header that the next sendmsg(2) or recvmsg(2) gets.
    pub header: MessageHeader,
    /// Address of the program's own header, into which a receive writes its results.
    pub report_to: UserAddress,
    /// The address to send to.
    pub address: Option<Address>,
    /// Size of the program's memory for the peer's address, in bytes.
    pub name_room: u32,
    /// The memory left to transfer, if it is a vector.
    pub members: Members,
    /// The buffers of a bundle with MSG_WAITALL, which waits until all of them are full.
    pub wait_all: Option<WaitAllBuffers>,
}

/// usring's copy of a socket address that the program has passed.
pub(crate) struct Address {
    pub bytes: [u8; ADDRESS_LIMIT],
    pub length: usize,
}

impl Address {
    pub fn read(from: UserAddress, length: u32) -> Result<Address, Errno> {
        if length as usize > ADDRESS_LIMIT {
            return Err(Errno::EINVAL);
        }
        let mut address = Address { bytes: [0; ADDRESS_LIMIT], length: length as usize };
        user_memory::copy_in(&mut address.bytes[..length as usize], from)?;
        Ok(address)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl SocketMessage {
    /// Reads the program's `struct msghdr`, only once, because the program may change it. With
    /// `receives`, the memory for the peer's address is not read: a receive only writes there.
    ///
    /// Errors: `EFAULT`; `EINVAL` if the length of the name is negative; `EMSGSIZE` if the vector
    /// has too many members.
    pub fn read(&mut self, from: UserAddress, receives: bool) -> Result<(), Errno> {
        let mut header: MessageHeader = user_memory::read(from)?;
        self.report_to = from;
        self.name_room = header.name_length;
        header.flags = 0;
        if header.name.is_null() {
            header.name_length = 0;
        }
        if header.name_length.cast_signed() > width::int(ADDRESS_LIMIT as u64) {
            header.name_length = width::count(ADDRESS_LIMIT);
        } else if header.name_length.cast_signed() < 0 {
            return Err(Errno::EINVAL);
        }
        if !receives && header.name_length != 0 {
            self.address = Some(Address::read(header.name, header.name_length)?);
        }
        if header.count > VECTOR_LIMIT {
            return Err(Errno::EMSGSIZE);
        }
        self.header = header;
        Ok(())
    }

    /// Clears all fields, so that another request can use the value.
    pub fn clear(&mut self) {
        self.header = MessageHeader::default();
        self.report_to = UserAddress::NULL;
        self.address = None;
        self.name_room = 0;
        self.members.clear();
        self.wait_all = None;
    }

    /// Points the header at usring's copies of the vector and the address. Returns the header.
    pub fn prepare(&mut self) -> &mut MessageHeader {
        self.header.vector = UserAddress(self.members.left().as_ptr() as u64);
        self.header.count = self.members.left().len() as u64;
        if let Some(address) = &self.address {
            self.header.name = UserAddress(address.bytes.as_ptr() as u64);
            self.header.name_length = width::count(address.length);
        }
        &mut self.header
    }
}

impl SendReceive {
    pub fn of(sqe: &Sqe) -> SendReceive {
        SendReceive {
            // io_uring ignores MSG_CMSG_COMPAT, but sendmsg(2) and recvmsg(2) would refuse it.
            flags: sqe.op_flags & !message::COMPATIBLE_CONTROL,
            options: sqe.ioprio,
            counted: None,
            wanted: sqe.len,
            limit: None,
            selections: Selections::default(),
            done: 0,
            part: IoVector { base: sqe.addr, length: u64::from(sqe.len).min(vector::TRANSFER_LIMIT) },
            message: None,
        }
    }

    #[inline]
    pub fn owns_memory(&self) -> bool {
        self.message.is_some()
    }

    #[inline]
    pub fn has(&self, option: u16) -> bool {
        self.options & option != 0
    }

    /// Returns whether the transfer has an address to send to.
    pub fn has_address(&self) -> bool {
        self.message.as_ref().is_some_and(|message| message.address.is_some())
    }

    /// Advances the transfer by `bytes` bytes.
    pub fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        match &mut self.message {
            Some(message) if message.members.is_any() => message.members.advance(bytes),
            _ => {
                self.part.base = self.part.base.wrapping_add(bytes);
                self.part.length -= bytes;
            }
        }
    }

    /// Returns whether the receive discards its data and only counts the bytes (MSG_TRUNC on TCP).
    /// Returns `false` while `counted` is `None`.
    pub fn discards(&self) -> bool {
        self.flags & message::TRUNCATED != 0 && self.counted == Some(UnreadPrediction::UpToUrgent)
    }

    /// Returns the number of bytes left to transfer.
    pub fn left(&self) -> u64 {
        match &self.message {
            Some(message) if message.members.is_any() => message.members.total(),
            _ => self.part.length,
        }
    }

    /// Returns the result of a request that completes now. `step`: the result of the request's last
    /// system call, a byte count or a negative errno.
    pub fn result(&self, step: i32) -> i32 {
        if step >= 0 {
            width::int(self.done) + step
        } else if self.done > 0 {
            width::int(self.done)
        } else {
            step
        }
    }

    /// Returns the outcome of a transfer that completes now. `step`: the result of its last system
    /// call. `failed`: the transfer breaks its chain even if `step` is no error.
    pub fn end(&self, step: i32, failed: bool) -> IssueOutcome {
        IssueOutcome::Done(Answer { result: self.result(step), failed: failed || step < 0 })
    }

    /// Returns the outcome of a transfer whose call would block. With MSG_DONTWAIT, the transfer
    /// completes with the bytes transferred so far, or with EAGAIN.
    #[inline]
    pub fn would_block(&self) -> IssueOutcome {
        if self.flags & message::DO_NOT_WAIT != 0 {
            return self.end(Errno::EAGAIN.negative(), true);
        }
        IssueOutcome::WouldBlock
    }

    /// Returns the outcome of a transfer that has used up its time slice (`fast_poll::SLICE`
    /// results). With MSG_DONTWAIT, the transfer completes as if the socket were empty.
    pub fn outcome_after_slice(&self) -> IssueOutcome {
        match self.would_block() {
            IssueOutcome::WouldBlock => IssueOutcome::Yield,
            outcome => outcome,
        }
    }

    /// Returns the outcome of a transfer that waits for its socket before it is tried. With
    /// MSG_DONTWAIT, the transfer completes with EAGAIN instead.
    pub fn polls_first(&self) -> IssueOutcome {
        match self.would_block() {
            IssueOutcome::WouldBlock => IssueOutcome::PollsFirst,
            outcome => outcome,
        }
    }

    /// Returns the events for which the socket is polled. `usual`: the events of the opcode.
    pub fn poll_events(&self, usual: u32) -> u32 {
        // A receive from the error queue does not wait for data. Errors are always reported.
        if self.flags & message::ERROR_QUEUE != 0 { usual & !(epoll::IN | epoll::PEER_HANG_UP) } else { usual }
    }
}
