//! The messages of RECVMSG. recvmsg(2) gets a header of usring's. The results in that header are
//! copied to the program's own header. For a multishot, the results go into the provided buffer,
//! before the data (`struct io_uring_recvmsg_out`).

use super::send_receive::check_socket;
use crate::request::operation::send_receive::{SendReceive, SocketMessage};
use usring_sys::message::{self, MessageHeader};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, user_memory, width};

/// Bytes of `struct io_uring_recvmsg_out`.
const OUT_SIZE: u64 = 16;

/// Receives one message into the program's vector or the provided buffer. Returns the number of
/// bytes, and whether the message was truncated.
pub(crate) fn receive(transfer: &mut SendReceive, number: i32) -> Result<(u64, bool), Errno> {
    let flags = transfer.flags | message::DO_NOT_WAIT;
    let part = transfer.part;
    let Some(message) = &mut transfer.message else { return Err(Errno::EINVAL) };
    let mut header = message.header;
    fill_header(&mut header, message, &part);
    let bytes = message::receive_message(number, &mut header, flags)?;
    write_header(message.report_to, &header)?;
    Ok((bytes, was_cut(&header)))
}

fn fill_header(header: &mut MessageHeader, message: &SocketMessage, part: &IoVector) {
    if message.members.is_any() {
        header.vector = UserAddress(message.members.left().as_ptr() as u64);
        header.count = message.members.left().len() as u64;
    } else {
        header.vector = UserAddress(&raw const *part as u64);
        header.count = 1;
    }
}

/// Returns whether a message or its control messages were truncated (MSG_TRUNC, MSG_CTRUNC).
pub(crate) fn was_cut(header: &MessageHeader) -> bool {
    header.flags & (message::TRUNCATED | message::CONTROL_TRUNCATED) != 0
}

/// Writes recvmsg(2)'s results into the program's own header.
fn write_header(to: UserAddress, header: &MessageHeader) -> Result<(), Errno> {
    if !header.name.is_null() {
        user_memory::write(to.offset(message::NAME_LENGTH_OFFSET), header.name_length)?;
    }
    user_memory::write(to.offset(message::FLAGS_OFFSET), header.flags)?;
    user_memory::write(to.offset(message::CONTROL_LENGTH_OFFSET), header.control_length)
}

/// Returns the bytes in a multishot's buffer before the data: results, name and control messages.
fn head_size(message: &SocketMessage) -> u64 {
    OUT_SIZE + u64::from(message.name_room) + message.header.control_length
}

/// Checks how much space a multishot's header asks for before the data. Error: `EOVERFLOW` if no
/// buffer can be that long.
pub(crate) fn check_sizes(message: &SocketMessage) -> Result<(), Errno> {
    let fits = message.name_room.cast_signed() >= 0
        && message.header.control_length <= i32::MAX as u64
        && head_size(message) <= i32::MAX as u64;
    if fits { Ok(()) } else { Err(Errno::EOVERFLOW) }
}

/// Receives one message of a multishot into the provided buffer, with the message's results before
/// the data. Returns the number of bytes used in the buffer, and whether no message can follow.
pub(crate) fn receive_into_buffer(transfer: &mut SendReceive, number: i32) -> Result<(i32, bool), Errno> {
    let flags = transfer.flags | message::DO_NOT_WAIT;
    let buffer = transfer.part;
    let Some(message) = &mut transfer.message else { return Err(Errno::EINVAL) };
    let head = head_size(message);
    let Some(room) = buffer.length.checked_sub(head) else {
        return Err(check_socket(number).err().unwrap_or(Errno::EFAULT));
    };
    let data = IoVector { base: buffer.base + head, length: room };
    let mut name = [0; message::ADDRESS_LIMIT];
    let control_room = message.header.control_length;
    let mut header = MessageHeader {
        name: UserAddress(if message.name_room == 0 { 0 } else { name.as_mut_ptr() as u64 }),
        name_length: if message.name_room == 0 { 0 } else { width::count(message::ADDRESS_LIMIT) },
        vector: UserAddress(&raw const data as u64),
        count: 1,
        control: UserAddress(if control_room == 0 { 0 } else { data.base - control_room }),
        control_length: control_room,
        ..MessageHeader::default()
    };
    let bytes = message::receive_message(number, &mut header, flags)?;
    let out = [header.name_length, width::low(header.control_length), width::low(bytes), header.flags];
    user_memory::write(UserAddress(buffer.base), out)?;
    let known = (header.name_length.min(message.name_room) as usize).min(name.len());
    user_memory::copy_out(UserAddress(buffer.base + OUT_SIZE), &name[..known])?;
    Ok((width::int(head + bytes.min(room)), bytes == 0))
}
