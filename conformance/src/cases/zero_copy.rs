//! SEND_ZC and SENDMSG_ZC. Each posts a CQE, and later a second CQE, the notification. The
//! notification says that the program may reuse the memory. The kernel does not guarantee when it
//! comes. On request, it also says whether the kernel has copied the data.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::files;
use crate::memory::{BAD, Pages, zeroed};
use crate::ring::Ring;
use crate::sqe::{Change, cancel, fields, message, nop, send, vector};
use crate::transcript::Transcript;

fn sending(socket: &OwnedFd, bytes: &[u8], user_data: u64) -> Sqe {
    send(socket.as_raw_fd(), bytes, user_data).with(|sqe| sqe.opcode = opcode::SEND_ZC)
}

/// Submits the request `sqe` and prints its CQEs: that of the send, and that of the notification.
fn show(t: &mut Transcript, ring: &mut Ring, reader: &OwnedFd, sqe: Sqe) {
    ring.push(sqe);
    ring.submit();
    let mut entries = ring.wait(1);
    if entries.first().is_some_and(|entry| entry.flags & u::IORING_CQE_F_MORE != 0) && entries.len() == 1 {
        // The kernel may post the notification only after the peer has received the data. So the
        // case receives the data here.
        files::set_nonblocking(reader, true);
        let _ = files::take(reader, 1 << 16);
        entries.extend(ring.wait(1));
    }
    t.in_order(&entries);
}

fn sends(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    show(t, &mut ring, &reader, sending(&writer, b"hello", 1));
    let (reader, writer, _) = files::udp();
    show(t, &mut ring, &reader, sending(&writer, b"hello", 2));
}
case!(sends as send => "
    cqe 1: 5 MORE
    cqe 1: 0 NOTIF
    cqe 2: 5 MORE
    cqe 2: 0 NOTIF
");

fn sends_message(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    let mut pieces = [vector(b"one".as_ptr() as u64, 3), vector(b"two".as_ptr() as u64, 3)];
    let mut header: libc::msghdr = zeroed();
    header.msg_iov = pieces.as_mut_ptr();
    header.msg_iovlen = 2;
    show(t, &mut ring, &reader, message(opcode::SENDMSG_ZC, writer.as_raw_fd(), &header, 1));
}
case!(sends_message as message => "
    cqe 1: 6 MORE
    cqe 1: 0 NOTIF
");

/// With IORING_SEND_ZC_REPORT_USAGE, the notification says whether the data was copied. On the
/// loopback interface, the kernel copies every send.
fn reports_usage(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    let bytes = vec![b'x'; 20_000];
    let request = sending(&writer, &bytes, 1).with(|sqe| sqe.ioprio = u::IORING_SEND_ZC_REPORT_USAGE as u16);
    ring.push(request);
    ring.submit();
    let mut taken = 0;
    while taken < bytes.len() {
        taken += files::take(&reader, 1 << 16).map_or(usize::MAX, |bytes| bytes.len());
    }
    for entry in ring.wait(2) {
        t.say(format_args!("{:#x} {}", entry.res, crate::names::cqe_flags(entry.flags)));
    }
}
case!(reports_usage => "
    0x4e20 MORE
    0x80000000 NOTIF
");

fn fixed(sqe: Sqe, index: u16) -> Sqe {
    sqe.with(|sqe| {
        sqe.ioprio |= u::IORING_RECVSEND_FIXED_BUF as u16;
        sqe.buf_index = index;
    })
}

fn registered_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut pages = Pages::new(1);
    pages.bytes()[..8].copy_from_slice(b"register");
    let vectors = [vector(pages.at(0), 4096)];
    t.result("register", ring.register(reg::BUFFERS, vectors.as_ptr(), 1));
    let (reader, writer) = files::tcp();
    ring.push(fixed(sending(&writer, &pages.bytes()[..8], 1), 0));
    ring.submit();
    let received = files::take(&reader, 100).unwrap_or_default();
    t.in_order(&ring.wait(2));
    t.say(String::from_utf8_lossy(&received));
}
case!(registered_buffer => "
    register = 0
    cqe 1: 8 MORE
    cqe 1: 0 NOTIF
    register
");

fn registered_buffer_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(2);
    let (reader, writer) = files::tcp();
    let at = |offset: usize, length: u32| {
        sending(&writer, b"", 1).with(|sqe| {
            sqe.addr = pages.at(offset);
            sqe.len = length;
        })
    };
    show(t, &mut ring, &reader, fixed(at(0, 8), 0));
    let vectors = [vector(pages.at(0), 4096)];
    ring.register(reg::BUFFERS, vectors.as_ptr(), 1);
    show(t, &mut ring, &reader, fixed(at(4090, 8), 0));
    show(t, &mut ring, &reader, fixed(at(0, 8), 1));
    show(t, &mut ring, &reader, fixed(at(0, 8), 0));
}
case!(registered_buffer_wrong => "
    cqe 1: -EFAULT MORE
    cqe 1: 0 NOTIF
    cqe 1: -EFAULT MORE
    cqe 1: 0 NOTIF
    cqe 1: -EFAULT MORE
    cqe 1: 0 NOTIF
    cqe 1: 8 MORE
    cqe 1: 0 NOTIF
");

fn vectorized(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pieces = [vector(b"one ".as_ptr() as u64, 4), vector(b"two".as_ptr() as u64, 3)];
    let flag = u::IORING_SEND_VECTORIZED as u16;
    for opcode in [opcode::SEND, opcode::SEND_ZC] {
        let (reader, writer) = files::tcp();
        let request = sending(&writer, b"", 1).with(|sqe| {
            sqe.opcode = opcode;
            sqe.addr = pieces.as_ptr() as u64;
            sqe.len = 2;
            sqe.ioprio = flag;
        });
        ring.push(request);
        ring.submit();
        let received = files::take(&reader, 100).unwrap_or_default();
        t.in_order(&ring.wait(if opcode == opcode::SEND_ZC { 2 } else { 1 }));
        t.say(String::from_utf8_lossy(&received));
        show(t, &mut ring, &reader, request.with(|sqe| sqe.addr = BAD));
        show(t, &mut ring, &reader, request.with(|sqe| sqe.len = 1025));
    }
}
case!(vectorized => "
    cqe 1: 7
    one two
    cqe 1: -EFAULT
    cqe 1: -EINVAL
    cqe 1: 7 MORE
    cqe 1: 0 NOTIF
    one two
    cqe 1: -EFAULT MORE
    cqe 1: 0 NOTIF
    cqe 1: -EINVAL MORE
    cqe 1: 0 NOTIF
");

fn to_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer, address) = files::udp();
    let socket: OwnedFd = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port").into();
    let request = sending(&socket, b"to you", 1).with(|sqe| {
        sqe.off = &raw const address as u64;
        sqe.file_index = 16;
    });
    show(t, &mut ring, &reader, request);
}
case!(to_address => "
    cqe 1: 6 MORE
    cqe 1: 0 NOTIF
");

/// Every send that the kernel starts posts a notification, even if the send fails.
fn errors_notify(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    show(t, &mut ring, &reader, sending(&writer, b"x", 1));
    let pipe = files::pipe();
    show(t, &mut ring, &reader, sending(&pipe.1, b"x", 2));
    show(t, &mut ring, &reader, sending(&writer, b"x", 3).with(|sqe| sqe.fd = -1));
    let socket = files::socket(libc::AF_INET, libc::SOCK_STREAM);
    show(t, &mut ring, &reader, sending(&socket, b"x", 4));
    let (reader, writer) = files::tcp();
    show(t, &mut ring, &reader, sending(&writer, b"x", 5).with(|sqe| sqe.addr = BAD));
    let request = sending(&writer, b"x", 6).with(|sqe| sqe.ioprio = u::IORING_SEND_ZC_REPORT_USAGE as u16);
    show(t, &mut ring, &reader, request.with(|sqe| sqe.addr = BAD));
}
case!(errors_notify => "
    cqe 1: -EOPNOTSUPP MORE
    cqe 1: 0 NOTIF
    cqe 2: -ENOTSOCK MORE
    cqe 2: 0 NOTIF
    cqe 3: -EBADF MORE
    cqe 3: 0 NOTIF
    cqe 4: -EPIPE MORE
    cqe 4: 0 NOTIF
    cqe 5: -EFAULT MORE
    cqe 5: 0 NOTIF
    cqe 6: -EFAULT MORE
    cqe 6: 0 NOTIF
");

/// The kernel checks some fields of a send before it allocates the notification. A send that fails
/// such a check posts no notification: its CQE has no F_MORE.
fn refused(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    let good = sending(&writer, b"x", 1);
    show(t, &mut ring, &reader, good.flagged(sqe_flags::CQE_SKIP_SUCCESS));
    show(t, &mut ring, &reader, good.flagged(sqe_flags::BUFFER_SELECT));
    for (_, change) in fields! {
        addr3 = 1, pad2 = 1, off = BAD, file_index = 1 << 16, opcode = opcode::SENDMSG_ZC,
        addr = crate::memory::KERNEL_HALF,
    } {
        show(t, &mut ring, &reader, good.with(change));
    }
}
case!(refused => "
    cqe 1: -EINVAL
    cqe 1: -EOPNOTSUPP
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: 1 MORE
    cqe 1: 0 NOTIF
    cqe 1: -EINVAL MORE
    cqe 1: 0 NOTIF
    cqe 1: -EFAULT MORE
    cqe 1: 0 NOTIF
    cqe 1: -EFAULT MORE
    cqe 1: 0 NOTIF
");

fn unknown_options(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    for bit in 4..16 {
        if 1 << bit != u::IORING_SEND_VECTORIZED {
            show(t, &mut ring, &reader, sending(&writer, b"x", bit).with(|sqe| sqe.ioprio = 1 << bit));
        }
    }
}
case!(unknown_options => "
    cqe 4: -EINVAL MORE
    cqe 4: 0 NOTIF
    cqe 6: -EINVAL MORE
    cqe 6: 0 NOTIF
    cqe 7: -EINVAL MORE
    cqe 7: 0 NOTIF
    cqe 8: -EINVAL MORE
    cqe 8: 0 NOTIF
    cqe 9: -EINVAL MORE
    cqe 9: 0 NOTIF
    cqe 10: -EINVAL MORE
    cqe 10: 0 NOTIF
    cqe 11: -EINVAL MORE
    cqe 11: 0 NOTIF
    cqe 12: -EINVAL MORE
    cqe 12: 0 NOTIF
    cqe 13: -EINVAL MORE
    cqe 13: 0 NOTIF
    cqe 14: -EINVAL MORE
    cqe 14: 0 NOTIF
    cqe 15: -EINVAL MORE
    cqe 15: 0 NOTIF
");

fn link(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    ring.push(sending(&writer, b"x", 1).linked());
    ring.push(nop(2));
    ring.submit();
    let _ = files::take(&reader, 10);
    let mut entries = ring.wait(3);
    entries.sort_by_key(|entry| (entry.user_data, entry.flags & u::IORING_CQE_F_NOTIF));
    t.in_order(&entries);
    ring.push(sending(&writer, b"x", 3).with(|sqe| sqe.addr = BAD).linked());
    ring.push(nop(4));
    ring.submit();
    let mut entries = ring.wait(3);
    entries.sort_by_key(|entry| (entry.user_data, entry.flags & u::IORING_CQE_F_NOTIF));
    t.in_order(&entries);
    // The send is cancelled before it starts.
    ring.push(nop(5).with(|sqe| sqe.opcode = 200).linked());
    ring.push(sending(&writer, b"x", 6));
    ring.submit();
    t.sorted(&ring.wait(3));
    let mut byte = [0];
    ring.push(crate::sqe::recv(-1, &mut byte, 7).linked());
    ring.push(sending(&writer, b"x", 8));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(link => "
    cqe 1: 1 MORE
    cqe 1: 0 NOTIF
    cqe 2: 0
    cqe 3: -EFAULT MORE
    cqe 3: 0 NOTIF
    cqe 4: -ECANCELED
    cqe 5: -EINVAL
    cqe 6: -ECANCELED
    cqe 6: 0 NOTIF
    cqe 7: -EBADF
    cqe 8: -ECANCELED
    cqe 8: 0 NOTIF
");

fn waits(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    files::fill(&writer);
    let all = libc::MSG_WAITALL as u32;
    ring.push(sending(&writer, &[b'x'; 100_000], 1).op_flags(all));
    ring.submit();
    t.in_order(&ring.reap());
    files::set_nonblocking(&reader, true);
    let mut entries = Vec::new();
    crate::time::until(|| {
        while files::take(&reader, 1 << 20).is_ok() {}
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        entries.extend(ring.reap());
        entries.len() == 2
    });
    t.in_order(&entries);
}
case!(waits => "
    no cqe
    cqe 1: 100000 MORE
    cqe 1: 0 NOTIF
");

fn cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_reader, writer) = files::tcp();
    files::fill(&writer);
    ring.push(sending(&writer, b"x", 1));
    ring.submit();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(3));
}
case!(cancelled => "
    cqe 2: 0
    cqe 1: -ECANCELED MORE
    cqe 1: 0 NOTIF
");

fn poll_first(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    let request = sending(&writer, b"x", 1).with(|sqe| sqe.ioprio = u::IORING_RECVSEND_POLL_FIRST as u16);
    show(t, &mut ring, &reader, request);
}
case!(poll_first => "
    cqe 1: 1 MORE
    cqe 1: 0 NOTIF
");

fn fixed_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    let numbers = [writer.as_raw_fd()];
    ring.register(reg::FILES, numbers.as_ptr(), 1);
    show(t, &mut ring, &reader, sending(&writer, b"x", 1).with(|sqe| sqe.fd = 0).fixed());
    show(t, &mut ring, &reader, sending(&writer, b"x", 2).with(|sqe| sqe.fd = 1).fixed());
}
case!(fixed_file => "
    cqe 1: 1 MORE
    cqe 1: 0 NOTIF
    cqe 2: -EBADF MORE
    cqe 2: 0 NOTIF
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    show(t, &mut ring, &reader, sending(&writer, b"x", 1).forced_async());
}
case!(forced_async => "
    cqe 1: 1 MORE
    cqe 1: 0 NOTIF
");

/// The kernel refuses the last SQE of a chain. The two sends before it are cancelled, and each
/// nevertheless posts a notification.
fn refused_chain(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_reader, writer) = files::tcp();
    ring.push(sending(&writer, b"x", 1).linked());
    ring.push(sending(&writer, b"x", 2).linked());
    ring.push(crate::sqe::sqe(u8::MAX, -1, 3));
    ring.submit();
    t.sorted(&ring.wait(5));
}
case!(refused_chain => "
    cqe 1: -ECANCELED MORE
    cqe 1: 0 NOTIF
    cqe 2: -ECANCELED
    cqe 2: 0 NOTIF
    cqe 3: -EINVAL
");

/// The kernel refuses a send that is a member of a chain. The CQE with the error has no F_MORE. A
/// notification follows, unless the kernel has refused the send before it allocated the
/// notification.
fn refused_member(t: &mut Transcript) {
    let mut ring = Ring::flags(4, u::IORING_SETUP_SUBMIT_ALL);
    let (_reader, writer) = files::tcp();
    let good = sending(&writer, b"x", 2);
    for (refused, notifications) in [(good.with(|sqe| sqe.ioprio = 1 << 15), 1), (good.with(|sqe| sqe.addr3 = 1), 0)] {
        for chain in [&[nop(1).linked(), refused.linked(), nop(3)][..], &[nop(1).linked(), refused]] {
            chain.iter().for_each(|sqe| ring.push(*sqe));
            ring.submit();
            t.sorted(&ring.wait(chain.len() + notifications));
        }
    }
}
case!(refused_member => "
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 2: 0 NOTIF
    cqe 3: -ECANCELED
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 2: 0 NOTIF
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 3: -ECANCELED
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
");
