//! A SEND, RECEIVE or other transfer on a socket: the message of SENDMSG and RECVMSG, and the
//! progress of the transfer. `op::send` and `op::receive` carry it out.

use super::vector::{self, Members};
use crate::registered::buffer_group::Kept;
use crate::request::outcome::{Answer, IssueOutcome};
use alloc::boxed::Box;
use usring_sys::message::{self, ADDRESS_LIMIT, Counted, MessageHeader, VECTOR_LIMIT};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, epoll, user_memory};
use usring_uapi::Sqe;
use usring_uapi::io_uring as abi;

pub(crate) const POLL_FIRST: u16 = abi::IORING_RECVSEND_POLL_FIRST as u16;
pub(crate) const MULTISHOT: u16 = abi::IORING_RECV_MULTISHOT as u16;
pub(crate) const FIXED_BUFFER: u16 = abi::IORING_RECVSEND_FIXED_BUF as u16;
pub(crate) const REPORT_USAGE: u16 = abi::IORING_SEND_ZC_REPORT_USAGE as u16;
pub(crate) const BUNDLE: u16 = abi::IORING_RECVSEND_BUNDLE as u16;
pub(crate) const VECTORIZED: u16 = abi::IORING_SEND_VECTORIZED as u16;

/// Events that a receive waits for: data, urgent data, and the end of data.
pub(crate) const RECEIVE_EVENTS: u32 = epoll::IN | epoll::PRI | epoll::PEER_HANG_UP;

/// A transfer under way.
pub(crate) struct SendReceive {
    /// MSG_*.
    pub flags: u32,
    /// IORING_RECVSEND_* and other flags from `ioprio`.
    pub options: u16,
    /// For a receive: the meaning of its socket's count of available bytes; asked once.
    pub counted: Option<Counted>,
    /// The length that the SQE asks for. With provided buffers it is the most bytes used of one
    /// buffer; 0: all of it.
    pub wanted: u32,
    /// For a multishot receive: the bytes left of its limit, if it has one.
    pub limit: Option<u32>,
    /// For a bundle that receives: its buffer selections since the last CQE.
    pub selections: Selections,
    /// Bytes transferred so far.
    pub done: u64,
    /// The memory left to transfer, if it is one piece.
    pub part: IoVector,
    /// The message of SENDMSG and RECVMSG. Also holds what a plain transfer has no field for.
    pub message: Option<Box<SocketMessage>>,
}

/// The effects of a receive bundle's buffer selections. They bound the next selection, even if the
/// socket was empty.
#[derive(Clone, Copy, Default)]
pub(crate) struct Selections {
    /// The selection took the group's last buffer: the bundle ends with its next CQE.
    pub emptied: bool,
    /// A buffer was cut, or left out, by the limit in bytes. So no further buffer is appended.
    pub cut: bool,
    /// The length of a buffer that was selected alone, 0 for none. It bounds the next selection.
    pub lone_length: u32,
}

/// The parts of a transfer that do not fit into a call with one buffer and no address.
#[derive(Default)]
pub(crate) struct SocketMessage {
    /// The header for the next call.
    pub header: MessageHeader,
    /// The program's own header, into which the results of a receive are written.
    pub report_to: UserAddress,
    /// The address to send to.
    pub address: Option<Address>,
    /// Bytes that the program has for the peer's address.
    pub name_room: u32,
    /// The memory left to transfer, if it is a vector.
    pub members: Members,
    /// The buffers of a bundle that waits for all of them to be filled.
    pub kept: Option<Kept>,
}

/// A copy of an address of the program's.
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
    /// Reads the program's msghdr. It is read only once, because the program may change it.
    /// `receives`: the request is a receive, so the address of the peer is not read here.
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
        if header.name_length as i32 > ADDRESS_LIMIT as i32 {
            header.name_length = ADDRESS_LIMIT as u32;
        } else if (header.name_length as i32) < 0 {
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

    /// Clears all fields, for reuse.
    pub fn clear(&mut self) {
        self.header = MessageHeader::default();
        self.report_to = UserAddress::NULL;
        self.address = None;
        self.name_room = 0;
        self.members.clear();
        self.kept = None;
    }

    /// Points the header at usring's copies of the vector and the address; returns the header.
    pub fn prepare(&mut self) -> &mut MessageHeader {
        self.header.vector = UserAddress(self.members.left().as_ptr() as u64);
        self.header.count = self.members.left().len() as u64;
        if let Some(address) = &self.address {
            self.header.name = UserAddress(address.bytes.as_ptr() as u64);
            self.header.name_length = address.length as u32;
        }
        &mut self.header
    }
}

impl SendReceive {
    pub fn of(sqe: &Sqe) -> SendReceive {
        SendReceive {
            // sendmsg(2) and recvmsg(2) refuse this flag, which io_uring ignores.
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

    /// Returns whether a receive counts bytes but copies none (MSG_TRUNC on TCP). `false` while
    /// `counted` is unknown.
    pub fn discards(&self) -> bool {
        self.flags & message::TRUNCATED != 0 && self.counted == Some(Counted::UpToUrgent)
    }

    /// Returns the number of bytes left to transfer.
    pub fn left(&self) -> u64 {
        match &self.message {
            Some(message) if message.members.is_any() => message.members.total(),
            _ => self.part.length,
        }
    }

    /// Returns the request's result if its next step ends with `step`, a byte count or a negative
    /// errno.
    pub fn result(&self, step: i32) -> i32 {
        if step >= 0 {
            self.done as i32 + step
        } else if self.done > 0 {
            self.done as i32
        } else {
            step
        }
    }

    /// Returns the outcome of a transfer that ends after this step.
    pub fn end(&self, step: i32, failed: bool) -> IssueOutcome {
        IssueOutcome::Done(Answer { result: self.result(step), failed: failed || step < 0 })
    }

    /// Returns the outcome of a transfer that would block.
    #[inline]
    pub fn would_block(&self) -> IssueOutcome {
        if self.flags & message::DO_NOT_WAIT != 0 {
            return self.end(Errno::EAGAIN.negative(), true);
        }
        IssueOutcome::WouldBlock
    }

    /// Returns the outcome of a transfer that has used its time slice. With MSG_DONTWAIT there is
    /// no next slice: the transfer ends as if the socket were empty.
    pub fn yields(&self) -> IssueOutcome {
        match self.would_block() {
            IssueOutcome::WouldBlock => IssueOutcome::Yield,
            outcome => outcome,
        }
    }

    /// Returns the outcome of a transfer that has to wait but was not tried.
    pub fn polls_first(&self) -> IssueOutcome {
        match self.would_block() {
            IssueOutcome::WouldBlock => IssueOutcome::PollsFirst,
            outcome => outcome,
        }
    }

    /// Returns the events that its socket is polled for.
    pub fn poll_events(&self, usual: u32) -> u32 {
        // A receive from the error queue does not wait for data. Errors are always reported.
        if self.flags & message::ERROR_QUEUE != 0 { usual & !(epoll::IN | epoll::PEER_HANG_UP) } else { usual }
    }
}
