//! The common part of sending and receiving: the SQE's fields, the message that SENDMSG and RECVMSG
//! name, and the progress of a transfer. `send` and `receive` carry them out, `bundle` those of
//! many buffers.
//!
//! The operation is tried as if the socket were non-blocking, whatever it is. If it would block, it
//! waits for its socket; with MSG_DONTWAIT the result is EAGAIN. With MSG_WAITALL a short transfer
//! goes on, on sockets that are streams or sequences of packets.

use super::Operation;
use super::received_message;
use super::vector::{self, Members};
use crate::registered::buffer_group::Kept;
use crate::request::Request;
use crate::ring::LockedRing;
use crate::submission::issue::{Answer, IssueOutcome};
use alloc::boxed::Box;
use usring_sys::message::{self, ADDRESS_LIMIT, Counted, MessageHeader, VECTOR_LIMIT};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, descriptor, epoll, user_memory};
use usring_uapi::io_uring as abi;
use usring_uapi::{opcode, sqe_flags};

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
    /// IORING_RECVSEND_* and the like.
    pub options: u16,
    /// For a receive: how its socket counts its content; looked up once.
    pub counted: Option<Counted>,
    /// The length that the SQE asks for. With provided buffers it bounds how much of one buffer is
    /// used; 0: all of it.
    pub wanted: u32,
    /// For a multishot receive: the bytes left of its limit, if it has one.
    pub limit: Option<u32>,
    /// The selections of a bundle that receives, since its last CQE.
    pub selections: Selections,
    /// Bytes transferred so far.
    pub done: u64,
    /// The memory for the rest, if it is one piece.
    pub part: IoVector,
    /// Everything that does not fit above.
    pub message: Option<Box<Message>>,
}

/// The selections of a bundle's attempts to receive. They bound the next attempt, also if
/// the socket was empty.
#[derive(Clone, Copy, Default)]
pub(crate) struct Selections {
    /// The selection took the group's last buffer: the bundle ends with its next CQE.
    pub emptied: bool,
    /// A selection had fewer bytes than its last buffer: nothing is appended.
    pub cut: bool,
    /// The length of a buffer that was selected alone, 0 for none. It bounds the next selection.
    pub lone_length: u32,
}

/// The parts of a transfer that do not fit into a call with one buffer and no address.
#[derive(Default)]
pub(crate) struct Message {
    /// The header for the next call.
    pub header: MessageHeader,
    /// The program's own header, into which the results of a receive are written.
    pub told: UserAddress,
    /// The address to send to.
    pub address: Option<Address>,
    /// Bytes of the peer's address that the program wants.
    pub name_room: u32,
    /// The memory for the rest.
    pub members: Members,
    /// The buffers of a bundle that waits for all of them to be filled.
    pub kept: Option<Kept>,
}

/// A copy of an address of the program's.
pub(crate) struct Address {
    bytes: [u8; ADDRESS_LIMIT],
    length: usize,
}

impl Address {
    fn read(from: UserAddress, length: u32) -> Result<Address, Errno> {
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

impl Message {
    /// Reads the program's header, once. `receives`: its name and vector are to be written instead
    /// of read.
    pub fn read(&mut self, from: UserAddress, receives: bool) -> Result<(), Errno> {
        let mut header: MessageHeader = user_memory::read(from)?;
        self.told = from;
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

    /// Clears everything, for reuse.
    pub fn clear(&mut self) {
        self.header = MessageHeader::default();
        self.told = UserAddress::NULL;
        self.address = None;
        self.name_room = 0;
        self.members.clear();
        self.kept = None;
    }

    /// Fills in the addresses of usring's copies; returns the header.
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
    fn of(request: &Request) -> SendReceive {
        let sqe = &request.sqe;
        SendReceive {
            // A system call refuses this flag, which io_uring ignores.
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

    /// Returns whether it has an address to send to.
    pub fn has_address(&self) -> bool {
        self.message.as_ref().is_some_and(|message| message.address.is_some())
    }

    /// Moves on by `bytes` bytes.
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

    /// Returns whether a receive discards what it counts and fills nothing (MSG_TRUNC on TCP). Only
    /// for a receive that knows how its socket counts.
    pub fn discards(&self) -> bool {
        self.flags & message::TRUNCATED != 0 && self.counted == Some(Counted::UpToUrgent)
    }

    /// Returns the bytes left to be transferred.
    pub fn left(&self) -> u64 {
        match &self.message {
            Some(message) if message.members.is_any() => message.members.total(),
            _ => self.part.length,
        }
    }

    /// Returns the result if the next step ends with `step`.
    pub fn result(&self, step: i32) -> i32 {
        if step >= 0 {
            self.done as i32 + step
        } else if self.done > 0 {
            self.done as i32
        } else {
            step
        }
    }

    /// Ends the transfer after this step.
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

    /// Yields to other requests. With MSG_DONTWAIT there is no next time slice, though the socket
    /// may hold more: EAGAIN.
    pub fn yields(&self) -> IssueOutcome {
        match self.would_block() {
            IssueOutcome::WouldBlock => IssueOutcome::More,
            outcome => outcome,
        }
    }

    /// Returns the outcome of a transfer that has not found out whether it would block.
    pub fn polls_first(&self) -> IssueOutcome {
        match self.would_block() {
            IssueOutcome::WouldBlock => IssueOutcome::PollsFirst,
            outcome => outcome,
        }
    }

    /// Returns the events that its socket is polled for.
    pub fn poll_events(&self, usual: u32) -> u32 {
        // The transfer does not wait for data then; errors are always reported.
        if self.flags & message::ERROR_QUEUE != 0 { usual & !(epoll::IN | epoll::PEER_HANG_UP) } else { usual }
    }
}

/// Returns the operation of a request of this family.
#[inline]
pub(crate) fn transfer_of(request: &mut Request) -> Result<&mut SendReceive, Errno> {
    match &mut request.operation {
        Operation::SendReceive(transfer) => Ok(transfer),
        _ => Err(Errno::EINVAL),
    }
}

/// Prepares SEND, SENDMSG, SEND_ZC and SENDMSG_ZC.
pub(crate) fn prepare_send(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let mut transfer = SendReceive::of(request);
    let sqe = &request.sqe;
    let without_copy = matches!(sqe.opcode, opcode::SEND_ZC | opcode::SENDMSG_ZC);
    if without_copy && (sqe.pad2 != 0 || sqe.addr3 != 0 || sqe.flags & sqe_flags::CQE_SKIP_SUCCESS != 0) {
        return Err(Errno::EINVAL);
    }
    if without_copy {
        // A notification follows from here on, however the request ends.
        request.cqe_flags = abi::IORING_CQE_F_MORE;
    }
    let known = POLL_FIRST | VECTORIZED | if without_copy { FIXED_BUFFER | REPORT_USAGE } else { BUNDLE };
    if transfer.options & !known != 0 || (sqe.len as i32) < 0 && !without_copy {
        return Err(Errno::EINVAL);
    }
    transfer.flags |= message::NO_SIGNAL;
    if transfer.has(BUNDLE) {
        if sqe.opcode == opcode::SENDMSG {
            return Err(Errno::EINVAL);
        }
        transfer.flags |= message::WAIT_ALL;
    }
    let selects = sqe.flags & sqe_flags::BUFFER_SELECT != 0;
    if matches!(sqe.opcode, opcode::SEND | opcode::SEND_ZC) {
        prepare_send_fields(locked, &mut transfer, sqe, selects)?;
    } else {
        if sqe.off != 0 || sqe.file_index != 0 {
            return Err(Errno::EINVAL);
        }
        let mut message = locked.pool.message();
        message.read(UserAddress(sqe.addr), false)?;
        let (from, count) = (message.header.vector, message.header.count);
        message.members.read(from, count, !transfer.has(FIXED_BUFFER))?;
        transfer.message = Some(message);
        transfer.part = IoVector::default();
    }
    request.begin_operation(Operation::SendReceive(transfer));
    Ok(())
}

#[inline]
fn prepare_send_fields(
    locked: &mut LockedRing,
    transfer: &mut SendReceive,
    sqe: &usring_uapi::Sqe,
    selects: bool,
) -> Result<(), Errno> {
    let address_length = sqe.file_index & 0xffff;
    if sqe.file_index >> 16 != 0 {
        return Err(Errno::EINVAL);
    }
    if sqe.off != 0 {
        let address = Some(Address::read(UserAddress(sqe.off), address_length)?);
        let mut message = locked.pool.message();
        message.address = address;
        transfer.message = Some(message);
    }
    if selects {
        return Ok(());
    }
    if transfer.has(VECTORIZED) {
        let checked = !transfer.has(FIXED_BUFFER);
        let message = transfer.message.get_or_insert_with(|| locked.pool.message());
        message.members.read(UserAddress(sqe.addr), u64::from(sqe.len), checked)?;
        return Ok(());
    }
    if transfer.has(FIXED_BUFFER) { Ok(()) } else { vector::check_part(transfer.part) }
}

/// Prepares RECV and RECVMSG.
pub(crate) fn prepare_receive(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let mut transfer = SendReceive::of(request);
    let sqe = &request.sqe;
    let selects = sqe.flags & sqe_flags::BUFFER_SELECT != 0;
    let plain = sqe.opcode == opcode::RECV;
    if sqe.off != 0 || transfer.options & !(POLL_FIRST | MULTISHOT | BUNDLE) != 0 || (sqe.len as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    if transfer.has(MULTISHOT) {
        if !selects || transfer.flags & message::WAIT_ALL != 0 {
            return Err(Errno::EINVAL);
        }
        if plain && sqe.file_index != 0 {
            transfer.limit = Some(sqe.file_index);
        }
    }
    if sqe.file_index != 0 && transfer.limit.is_none() || transfer.has(BUNDLE) && !plain {
        return Err(Errno::EINVAL);
    }
    if !plain {
        let mut message = locked.pool.message();
        read_received(&mut message, &mut transfer, sqe, selects)?;
        transfer.message = Some(message);
    } else if !selects {
        vector::check_part(transfer.part)?;
    }
    let multishot = transfer.has(MULTISHOT);
    request.begin_operation(Operation::SendReceive(transfer));
    request.multishot = multishot;
    Ok(())
}

/// Reads the message of a RECVMSG. With provided buffers its vector only bounds how much of a
/// buffer is used.
fn read_received(
    message: &mut Message,
    transfer: &mut SendReceive,
    sqe: &usring_uapi::Sqe,
    selects: bool,
) -> Result<(), Errno> {
    message.read(UserAddress(sqe.addr), true)?;
    transfer.part = IoVector::default();
    let MessageHeader { vector, count, .. } = message.header;
    if !selects {
        return message.members.read(vector, count, true);
    }
    if transfer.has(MULTISHOT) {
        received_message::check_rooms(message)?;
    }
    transfer.wanted = match count {
        0 => 0,
        1 => user_memory::read::<IoVector>(vector)?.length as u32,
        _ => return Err(Errno::EINVAL),
    };
    Ok(())
}

/// Returns the result of a request of this family that is ended from outside.
pub(crate) fn result_when_ended(request: &Request, result: i32) -> i32 {
    match &request.operation {
        Operation::SendReceive(transfer) => transfer.result(result),
        _ => result,
    }
}

/// Returns the result for the notification of a send without a copy: how the send was made.
pub(crate) fn usage(request: &Request, result: i32) -> i32 {
    match &request.operation {
        // usring copies the data, and reports this if asked.
        Operation::SendReceive(transfer) if transfer.has(REPORT_USAGE) && result >= 0 => {
            abi::IORING_NOTIF_USAGE_ZC_COPIED as i32
        }
        _ => 0,
    }
}

/// Checks that the number stands for a socket. Errors: `ENOTSOCK` if it does not, `EBADF` if it is
/// not open.
pub(crate) fn check_socket(number: i32) -> Result<(), Errno> {
    if descriptor::identity(number)?.is_socket() { Ok(()) } else { Err(Errno::ENOTSOCK) }
}

/// Returns the errno for a fault other than the file's: the kernel checks the file first.
#[cold]
pub(crate) fn after_file(request: &Request, error: Errno) -> Errno {
    check_socket(request.file.number).err().unwrap_or(error)
}
