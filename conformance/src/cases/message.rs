//! SENDMSG and RECVMSG: vectors, addresses, control messages.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{Sqe, opcode};

use crate::files;
use crate::memory::{BAD, zeroed};
use crate::ring::Ring;
use crate::sqe::{Change, cancel, message, nop, vector};
use crate::transcript::Transcript;

mod arguments;

const ALL: u32 = libc::MSG_WAITALL as u32;

fn header(vectors: &mut [libc::iovec]) -> libc::msghdr {
    let mut header: libc::msghdr = zeroed();
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = vectors.len();
    header
}

fn over(bytes: &mut [u8]) -> libc::iovec {
    vector(bytes.as_mut_ptr() as u64, bytes.len())
}

fn from(bytes: &[u8]) -> libc::iovec {
    vector(bytes.as_ptr() as u64, bytes.len())
}

fn receiving(socket: &OwnedFd, header: &libc::msghdr, user_data: u64) -> Sqe {
    message(opcode::RECVMSG, socket.as_raw_fd(), header, user_data)
}

fn sending(socket: &OwnedFd, header: &libc::msghdr, user_data: u64) -> Sqe {
    message(opcode::SENDMSG, socket.as_raw_fd(), header, user_data)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', ".")
}

fn report_header(t: &mut Transcript, header: &libc::msghdr) {
    let libc::msghdr { msg_namelen, msg_controllen, msg_flags, .. } = *header;
    t.say(format_args!("name {msg_namelen} control {msg_controllen} flags {msg_flags:#x}"));
}

fn vectors(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let mut out = [from(b"one "), from(b""), from(b"two "), from(b"three")];
        let (mut one, mut two) = ([0; 6], [0; 10]);
        let mut into = [over(&mut one), over(&mut two)];
        let (sent, received) = (header(&mut out), header(&mut into));
        t.entry(&ring.one(sending(&writer, &sent, 1)));
        t.entry(&ring.one(receiving(&reader, &received, 2)));
        report_header(t, &received);
        t.say(format_args!("{} {}", text(&one), text(&two)));
    }
}
case!(vectors => "
    cqe 1: 13
    cqe 2: 13
    name 0 control 0 flags 0x0
    one tw o three...
    cqe 1: 13
    cqe 2: 13
    name 0 control 0 flags 0x0
    one tw o three...
");

fn receive_waits(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let received = header(&mut into);
    ring.push(receiving(&reader, &received, 1));
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&writer, b"late");
    t.in_order(&ring.wait(1));
    t.say(text(&bytes));
}
case!(receive_waits => "
    no cqe
    cqe 1: 4
    late....
");

/// After the submission, the program may reuse the message header of a receive. When the receive
/// completes, the kernel only writes result fields to that header.
fn header_may_be_reused(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let mut received = header(&mut into);
    ring.push(receiving(&reader, &received, 1));
    ring.submit();
    received.msg_iovlen = 99;
    received.msg_iov = BAD as *mut libc::iovec;
    into[0] = vector(BAD, 1000);
    files::put(&writer, b"late");
    t.in_order(&ring.wait(1));
    t.say(text(&bytes));
    std::hint::black_box((&into, &received));
}
case!(header_may_be_reused => "
    cqe 1: 4
    late....
");

fn reports_the_senders_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer, _) = files::udp();
    for room in [16u32, 4, 128, 300] {
        let mut name: libc::sockaddr_storage = zeroed();
        let mut bytes = [0; 8];
        let mut into = [over(&mut bytes)];
        let mut received = header(&mut into);
        received.msg_name = (&raw mut name).cast();
        received.msg_namelen = room;
        files::put(&writer, b"x");
        t.entry(&ring.one(receiving(&reader, &received, 1)));
        report_header(t, &received);
        t.say(format_args!("family {}", name.ss_family));
    }
}
case!(reports_the_senders_address => "
    cqe 1: 1
    name 16 control 0 flags 0x0
    family 2
    cqe 1: 1
    name 16 control 0 flags 0x0
    family 2
    cqe 1: 1
    name 16 control 0 flags 0x0
    family 2
    cqe 1: 1
    name 16 control 0 flags 0x0
    family 2
");

fn send_to_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer, mut address) = files::udp();
    let socket: OwnedFd = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port").into();
    let mut out = [from(b"to you")];
    let mut sent = header(&mut out);
    sent.msg_name = (&raw mut address).cast();
    for length in [16, 2, 0, 200, u32::MAX] {
        sent.msg_namelen = length;
        t.entry(&ring.one(sending(&socket, &sent, 1)));
    }
    t.say(text(&files::take(&reader, 10).unwrap_or_default()));
}
case!(send_to_address => "
    cqe 1: 6
    cqe 1: -EINVAL
    cqe 1: -EDESTADDRREQ
    cqe 1: 6
    cqe 1: -EINVAL
    to you
");

fn name_lengths(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer, _) = files::udp();
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    for (at, length) in [(BAD, 16), (0, u32::MAX), (0, 16), (BAD, u32::MAX), (BAD, 0)] {
        files::put(&writer, b"x");
        let mut received = header(&mut into);
        received.msg_name = at as *mut libc::c_void;
        received.msg_namelen = length;
        t.entry(&ring.one(receiving(&reader, &received, 1)));
        t.say(format_args!("name {}", received.msg_namelen));
    }
}
case!(name_lengths => "
    cqe 1: -EFAULT
    name 16
    cqe 1: 1
    name 4294967295
    cqe 1: 1
    name 16
    cqe 1: -EINVAL
    name 4294967295
    cqe 1: 1
    name 16
");

fn truncated(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer, _) = files::udp();
    let mut bytes = [0; 4];
    let mut into = [over(&mut bytes)];
    for flags in [0, libc::MSG_TRUNC as u32, ALL] {
        files::put(&writer, b"12345678");
        let received = header(&mut into);
        ring.push(receiving(&reader, &received, 1).op_flags(flags).linked());
        ring.push(nop(2));
        ring.submit();
        t.sorted(&ring.wait(2));
        report_header(t, &received);
    }
}
case!(truncated => "
    cqe 1: 4
    cqe 2: 0
    name 0 control 0 flags 0x20
    cqe 1: 8
    cqe 2: 0
    name 0 control 0 flags 0x20
    cqe 1: 4
    cqe 2: -ECANCELED
    name 0 control 0 flags 0x20
");

/// Writes to `room` a control message (SCM_RIGHTS) that passes the descriptor `number`.
fn rights(number: i32, room: &mut [u64; 3]) {
    room[0] = 20;
    room[1] = u64::from(libc::SOL_SOCKET as u32) | (libc::SCM_RIGHTS as u64) << 32;
    room[2] = u64::from(number as u32);
}

fn passes_descriptors(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let file = files::memory_file(b"passed");
    let mut room = [0u64; 3];
    rights(file.as_raw_fd(), &mut room);
    let mut out = [from(b"x")];
    let mut sent = header(&mut out);
    sent.msg_control = room.as_mut_ptr().cast();
    sent.msg_controllen = 24;
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let mut received = header(&mut into);
    let mut taken = [0u64; 4];
    received.msg_control = taken.as_mut_ptr().cast();
    received.msg_controllen = 32;
    ring.push(receiving(&reader, &received, 1).op_flags(libc::MSG_CMSG_CLOEXEC as u32));
    ring.submit();
    ring.push(sending(&writer, &sent, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    report_header(t, &received);
    // SAFETY: the descriptor is new, and nothing else owns it.
    let passed = unsafe { OwnedFd::from_raw_fd(taken[2] as i32) };
    t.say(files::text(&passed));
    // SAFETY: the call touches no memory.
    t.say(format_args!("close on exec {}", unsafe { libc::fcntl(passed.as_raw_fd(), libc::F_GETFD) }));
    // The next control message passes a descriptor that is not open. The control message after that
    // lies at a bad address.
    rights(-1, &mut room);
    t.entry(&ring.one(sending(&writer, &sent, 3)));
    sent.msg_control = BAD as *mut libc::c_void;
    t.entry(&ring.one(sending(&writer, &sent, 4)));
}
case!(passes_descriptors => "
    cqe 1: 1
    cqe 2: 1
    name 0 control 24 flags 0x40000000
    passed
    close on exec 1
    cqe 3: -EBADF
    cqe 4: -EFAULT
");

fn control_is_cut(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let file = files::memory_file(b"passed");
    let mut room = [0u64; 3];
    rights(file.as_raw_fd(), &mut room);
    let mut out = [from(b"x")];
    let mut sent = header(&mut out);
    sent.msg_control = room.as_mut_ptr().cast();
    sent.msg_controllen = 24;
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    for flags in [0, ALL] {
        t.entry(&ring.one(sending(&writer, &sent, 1)));
        let received = header(&mut into);
        ring.push(receiving(&reader, &received, 2).op_flags(flags).linked());
        ring.push(nop(3));
        ring.submit();
        if flags != 0 {
            files::put(&writer, b"1234567");
        }
        t.sorted(&ring.wait(2));
        report_header(t, &received);
    }
}
case!(control_is_cut => "
    cqe 1: 1
    cqe 2: 1
    cqe 3: 0
    name 0 control 0 flags 0x8
    cqe 1: 1
    cqe 2: 8
    cqe 3: 0
    name 0 control 0 flags 0x0
");

fn wait_all(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let (mut one, mut two) = ([0; 4], [0; 6]);
        let mut into = [over(&mut one), over(&mut two)];
        let received = header(&mut into);
        ring.push(receiving(&reader, &received, 1).op_flags(ALL));
        ring.submit();
        for part in ["abc", "de", "fghijk"] {
            t.in_order(&ring.reap());
            files::put(&writer, part.as_bytes());
            crate::time::long_enough_to_notice();
            ring.enter(0, 0, usring_uapi::io_uring::IORING_ENTER_GETEVENTS);
        }
        t.in_order(&ring.wait(1));
        t.say(format_args!("{} {}", text(&one), text(&two)));
    }
}
case!(wait_all => "
    no cqe
    no cqe
    no cqe
    cqe 1: 10 SOCK_NONEMPTY
    abcd efghij
    no cqe
    no cqe
    no cqe
    cqe 1: 10 SOCK_NONEMPTY
    abcd efghij
");

fn wait_all_send(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let bytes = vec![b'x'; 1 << 20];
    let mut out = [from(&bytes[..1000]), from(&bytes[1000..])];
    let sent = header(&mut out);
    ring.push(sending(&writer, &sent, 1).op_flags(ALL));
    ring.submit();
    let mut taken = 0;
    while taken < 1 << 20 {
        taken += files::take(&reader, 1 << 16).map_or(0, |bytes| bytes.len());
        ring.enter(0, 0, usring_uapi::io_uring::IORING_ENTER_GETEVENTS);
    }
    t.in_order(&ring.wait(1));
}
case!(wait_all_send => "cqe 1: 1048576");

/// MSG_WAITALL has no effect on a receive whose message header has room for control data. The
/// receive completes with the bytes that have arrived.
fn wait_all_with_control(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 10];
    let mut into = [over(&mut bytes)];
    let mut received = header(&mut into);
    let mut room = [0u64; 4];
    received.msg_control = room.as_mut_ptr().cast();
    received.msg_controllen = 32;
    files::put(&writer, b"abc");
    ring.push(receiving(&reader, &received, 1).op_flags(ALL).linked());
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
    report_header(t, &received);
}
case!(wait_all_with_control => "
    cqe 1: 3
    cqe 2: 0
    name 0 control 0 flags 0x0
");

fn cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let received = header(&mut into);
    ring.push(receiving(&reader, &received, 1).op_flags(ALL));
    ring.submit();
    files::put(&writer, b"abc");
    crate::time::long_enough_to_notice();
    ring.enter(0, 0, usring_uapi::io_uring::IORING_ENTER_GETEVENTS);
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
}
case!(cancelled => "
    cqe 2: 0
    cqe 1: 3
");

/// A receive with MSG_ERRQUEUE waits for an error: the arrival of data does not complete it.
fn error_queue(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer, _) = files::udp();
    let on = 1i32;
    let at = (&raw const on).cast();
    // SAFETY: the call reads only `on`.
    unsafe { libc::setsockopt(writer.as_raw_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, at, 4) };
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let mut received = header(&mut into);
    let mut room = [0u64; 16];
    received.msg_control = room.as_mut_ptr().cast();
    received.msg_controllen = 128;
    ring.push(receiving(&writer, &received, 1).op_flags(libc::MSG_ERRQUEUE as u32));
    ring.submit();
    t.in_order(&ring.reap());
    drop(reader);
    files::put(&writer, b"lost");
    t.in_order(&ring.wait(1));
    t.say(format_args!("{} flags {:#x}", text(&bytes), received.msg_flags));
}
case!(error_queue => "
    no cqe
    cqe 1: 4
    lost.... flags 0x2000
");

fn end_of_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let mut bytes = [0; 8];
        let mut into = [over(&mut bytes)];
        let received = header(&mut into);
        ring.push(receiving(&reader, &received, 1));
        ring.submit();
        drop(writer);
        t.in_order(&ring.wait(1));
        report_header(t, &received);
    }
}
case!(end_of_file => "
    cqe 1: 0
    name 0 control 0 flags 0x0
    cqe 1: 0 SOCK_NONEMPTY
    name 0 control 0 flags 0x0
");

/// The flag MSG_CMSG_COMPAT is for use inside the kernel. In a request it has no effect.
fn compatible_control(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut out = [from(b"x")];
    let sent = header(&mut out);
    let compatible = 1 << 31;
    t.entry(&ring.one(sending(&writer, &sent, 1).op_flags(compatible)));
    files::put(&writer, b"x");
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let received = header(&mut into);
    t.entry(&ring.one(receiving(&reader, &received, 2).op_flags(compatible)));
    t.say(text(&bytes));
    t.entry(&ring.one(crate::sqe::send(writer.as_raw_fd(), b"y", 3).op_flags(compatible)));
    t.entry(&ring.one(crate::sqe::recv(reader.as_raw_fd(), &mut bytes, 4).op_flags(compatible)));
}
case!(compatible_control => "
    cqe 1: 1
    cqe 2: 2
    xx......
    cqe 3: 1
    cqe 4: 1
");
