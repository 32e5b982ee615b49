//! Invalid and unusual arguments of SENDMSG and RECVMSG.

use super::{from, header, over, receiving, report_header, sending};
use crate::buffers::group_of;
use crate::files;
use crate::memory::{BAD, KERNEL_HALF, Pages};
use crate::ring::Ring;
use crate::sqe::{Change, fields, message, vector};
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;
use usring_uapi::{opcode, sqe_flags};

/// Sends and receives get -EFAULT if their message header, their vectors, or their buffer lies at a
/// bad address.
fn bad_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    for address in [0, BAD, KERNEL_HALF] {
        files::put(&writer, b"x");
        let header = address as *const libc::msghdr;
        t.entry(&ring.one(message(opcode::RECVMSG, reader.as_raw_fd(), header, 1)));
        t.entry(&ring.one(message(opcode::SENDMSG, writer.as_raw_fd(), header, 2)));
    }
    for address in [0, BAD, KERNEL_HALF] {
        let mut pieces = [vector(address, 4)];
        let mut header = header(&mut pieces);
        t.entry(&ring.one(receiving(&reader, &header, 3)));
        t.entry(&ring.one(sending(&writer, &header, 4)));
        header.msg_iov = address as *mut libc::iovec;
        t.entry(&ring.one(receiving(&reader, &header, 5)));
        t.entry(&ring.one(sending(&writer, &header, 6)));
    }
    t.say(format_args!("{} bytes left", files::take(&reader, 10).map_or(0, |bytes| bytes.len())));
}
case!(bad_memory => "
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 3: -EFAULT
    cqe 4: -EFAULT
    cqe 5: -EFAULT
    cqe 6: -EFAULT
    cqe 3: -EFAULT
    cqe 4: -EFAULT
    cqe 5: -EFAULT
    cqe 6: -EFAULT
    cqe 3: -EFAULT
    cqe 4: -EFAULT
    cqe 5: -EFAULT
    cqe 6: -EFAULT
    3 bytes left
");

fn bad_vectors(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    // The addresses of the buffers are valid, and far from the end of the address space. So only
    // the lengths are invalid.
    let memory = Pages::new(1);
    let at = |length| vector(memory.at(0), length);
    let mut pieces: Vec<libc::iovec> = (0..1026).map(|_| at(1)).collect();
    for count in [1024, 1025, usize::MAX] {
        let mut header = header(&mut pieces);
        header.msg_iovlen = count;
        files::put(&writer, b"x");
        t.entry(&ring.one(receiving(&reader, &header, 1)));
        t.entry(&ring.one(sending(&writer, &header, 2)));
    }
    let _ = files::take(&reader, 10_000);
    for lengths in [&[usize::MAX][..], &[1, usize::MAX], &[1 << 62, 1 << 62], &[1 << 47]] {
        files::put(&writer, b"x");
        let mut pieces: Vec<libc::iovec> = lengths.iter().map(|length| at(*length)).collect();
        let header = header(&mut pieces);
        t.entry(&ring.one(receiving(&reader, &header, 3)));
        let sent = ring.one(sending(&writer, &header, 4));
        t.say(if sent.res > 0 { "sent".into() } else { crate::names::result(sent.res) });
    }
}
case!(bad_vectors => "
    cqe 1: 1
    cqe 2: 1024
    cqe 1: -errno(90)
    cqe 2: -errno(90)
    cqe 1: -errno(90)
    cqe 2: -errno(90)
    cqe 3: -EINVAL
    -EINVAL
    cqe 3: -EINVAL
    -EINVAL
    cqe 3: -EFAULT
    -EFAULT
    cqe 3: 4
    -EFAULT
");

fn empty_vector(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let nothing = header(&mut []);
    t.entry(&ring.one(sending(&writer, &nothing, 1)));
    files::put(&writer, b"x");
    t.result("receive", ring.one(receiving(&reader, &nothing, 2)).res);
    let (reader, writer, _) = files::udp();
    t.entry(&ring.one(sending(&writer, &nothing, 3)));
    t.entry(&ring.one(receiving(&reader, &nothing, 4)));
    files::put(&writer, b"x");
    t.entry(&ring.one(receiving(&reader, &nothing, 5)));
    report_header(t, &nothing);
}
case!(empty_vector => "
    cqe 1: 0
    receive = 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    name 0 control 0 flags 0x20
");

fn selected_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 8, 3);
    group.add_slots(0..4);
    let (reader, writer) = files::sockets();
    files::put(&writer, b"0123456789abcdefghijklmnopqrstuvwxyz");
    for length in [None, Some(4), Some(0), Some(100)] {
        let mut pieces = [vector(BAD, length.unwrap_or(0))];
        let header = header(if length.is_some() { &mut pieces[..] } else { &mut [] });
        let request = receiving(&reader, &header, 1).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| sqe.buf_index = 3);
        if length == Some(100) {
            files::put(&writer, b"x");
        }
        t.entry(&ring.one(request));
        report_header(t, &header);
    }
    t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
    let header = header(&mut []);
    let request = receiving(&reader, &header, 5).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| sqe.buf_index = 3);
    t.entry(&ring.one(request));
}
case!(selected_buffer => "
    cqe 1: 16 SOCK_NONEMPTY|BUFFER(0)
    name 0 control 0 flags 0x0
    cqe 1: 4 SOCK_NONEMPTY|BUFFER(1)
    name 0 control 0 flags 0x0
    cqe 1: 16 BUFFER(2)
    name 0 control 0 flags 0x0
    cqe 1: 1 BUFFER(3)
    name 0 control 0 flags 0x0
    0123456789abcdef ghij............ klmnopqrstuvwxyz
    cqe 5: -ENOBUFS
");

fn selected_buffer_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 8, 3);
    group.add_slots(0..4);
    let (reader, writer) = files::sockets();
    files::put(&writer, b"x");
    let select = |header: &libc::msghdr| {
        receiving(&reader, header, 1).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| sqe.buf_index = 3)
    };
    let mut pieces = [vector(BAD, 1), vector(BAD, 1)];
    let two = header(&mut pieces);
    t.entry(&ring.one(select(&two)));
    let mut bad = header(&mut pieces[..1]);
    bad.msg_iov = BAD as *mut libc::iovec;
    t.entry(&ring.one(select(&bad)));
    t.entry(&ring.one(select(&two).with(|sqe| sqe.opcode = opcode::SENDMSG)));
    t.entry(&ring.one(select(&header(&mut [])).with(|sqe| sqe.buf_index = 9)));
}
case!(selected_buffer_wrong => "
    cqe 1: -EINVAL
    cqe 1: -EFAULT
    cqe 1: -EOPNOTSUPP
    cqe 1: -ENOBUFS
");

fn unknown_options(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    for bit in 1..16 {
        files::put(&writer, b"x");
        let mut into = [over(&mut bytes)];
        let received = header(&mut into);
        let entry = ring.one(receiving(&reader, &received, bit).with(|sqe| sqe.ioprio = 1 << bit));
        t.say(format_args!("recvmsg {entry}"));
        let mut out = [from(b"y")];
        let sent = header(&mut out);
        let entry = ring.one(sending(&writer, &sent, bit).with(|sqe| sqe.ioprio = 1 << bit));
        t.say(format_args!("sendmsg {entry}"));
    }
}
case!(unknown_options => include_str!("unknown_options.txt"));

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    let changes = fields! {
        off = 8, len = 77, "negative len" len = u32::MAX, file_index = 1, addr3 = 1, "pad" pad2 = 1,
        buf_index = 1,
    };
    for (name, change) in changes {
        files::put(&writer, b"x");
        let mut into = [over(&mut bytes)];
        let received = header(&mut into);
        t.say(format_args!("{name}: recvmsg {}", ring.one(receiving(&reader, &received, 1).with(change))));
        let mut out = [from(b"y")];
        let sent = header(&mut out);
        t.say(format_args!("{name}: sendmsg {}", ring.one(sending(&writer, &sent, 2).with(change))));
    }
}
case!(reserved_fields => "
    off: recvmsg 1: -EINVAL
    off: sendmsg 2: -EINVAL
    len: recvmsg 1: 2
    len: sendmsg 2: 1
    negative len: recvmsg 1: -EINVAL
    negative len: sendmsg 2: -EINVAL
    file_index: recvmsg 1: -EINVAL
    file_index: sendmsg 2: -EINVAL
    addr3: recvmsg 1: 4
    addr3: sendmsg 2: 1
    pad: recvmsg 1: 2
    pad: sendmsg 2: 1
    buf_index: recvmsg 1: 2
    buf_index: sendmsg 2: 1
");

fn peer_is_gone(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    drop(reader);
    let mut out = [from(b"y")];
    let sent = header(&mut out);
    t.entry(&ring.one(sending(&writer, &sent, 1)));
}
case!(peer_is_gone => "cqe 1: -EPIPE");

fn not_a_socket(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let header = header(&mut into);
    t.entry(&ring.one(receiving(&reader, &header, 1)));
    t.entry(&ring.one(sending(&writer, &header, 2)));
    t.entry(&ring.one(message(opcode::RECVMSG, -1, &header, 3)));
}
case!(not_a_socket => "
    cqe 1: -ENOTSOCK
    cqe 2: -ENOTSOCK
    cqe 3: -EBADF
");
