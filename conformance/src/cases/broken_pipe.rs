//! Writes to a pipe or socket whose reading end is closed. The result is EPIPE. If the submitting
//! thread makes the write, the kernel also raises SIGPIPE. If a worker or an SQ thread makes it,
//! the kernel raises no signal.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use usring_uapi::{io_uring as u, opcode};

use super::reg;
use super::signals::handle;
use crate::aio::{self, Context};
use crate::files;
use crate::ring::{self, Entry, Ring};
use crate::sqe::{CURRENT, Change, message, nop, send, sqe, vector, write, writev};
use crate::transcript::Transcript;

const NO_SIGNAL: u32 = 0x100;

static CAUGHT: AtomicU32 = AtomicU32::new(0);

extern "C" fn caught(_signal: i32) {
    CAUGHT.fetch_add(1, Ordering::SeqCst);
}

fn catch() {
    handle(libc::SIGPIPE, caught, libc::SA_RESTART);
}

/// Prints the number of SIGPIPEs that the handler has counted since this function was last called.
fn signals(t: &mut Transcript) {
    t.say(format_args!("signals {}", CAUGHT.swap(0, Ordering::SeqCst)));
}

fn show(t: &mut Transcript, entries: &[Entry]) {
    t.in_order(entries);
    signals(t);
}

/// Returns pipes and sockets whose reading end is closed: for each, a name and the writing end.
fn broken() -> Vec<(&'static str, OwnedFd)> {
    let (pipe_reader, pipe) = files::pipe();
    let (peer, stream) = files::sockets();
    let (packet_peer, packets) = files::sockets_of(libc::SOCK_SEQPACKET);
    let (tcp_peer, tcp) = files::tcp();
    files::shut_down(&tcp, libc::SHUT_WR);
    drop((pipe_reader, peer, packet_peer, tcp_peer));
    vec![("pipe", pipe), ("stream", stream), ("packets", packets), ("tcp", tcp)]
}

const TEXT: [u8; 4] = *b"text";

fn in_place(t: &mut Transcript) {
    catch();
    for (name, end) in broken() {
        t.say(name);
        each_write(t, &end, 0);
    }
}
case!(in_place => include_str!("broken_pipe/in_place.txt"));

fn forced_async(t: &mut Transcript) {
    catch();
    for (name, end) in broken() {
        t.say(name);
        each_write(t, &end, usring_uapi::sqe_flags::ASYNC);
    }
}
case!(forced_async => include_str!("broken_pipe/forced_async.txt"));

fn each_write(t: &mut Transcript, end: &OwnedFd, flags: u8) {
    let mut ring = Ring::new(4);
    let (fd, vectors) = (end.as_raw_fd(), [vector(TEXT.as_ptr() as u64, 1), vector(TEXT.as_ptr() as u64, 3)]);
    let mut bytes = TEXT.to_vec();
    assert_eq!(ring.register(reg::BUFFERS, &vector(bytes.as_mut_ptr() as u64, 4), 1), 0);
    let fixed = write(fd, &bytes, CURRENT, 3).with(|sqe| sqe.opcode = opcode::WRITE_FIXED);
    for request in [
        write(fd, &TEXT, 0, 1),
        writev(fd, &vectors, 0, 2),
        fixed,
        write(fd, &TEXT, CURRENT, 4),
        write(fd, &TEXT, CURRENT, 5).op_flags(NO_SIGNAL),
        write(fd, &[], CURRENT, 6),
    ] {
        ring.push(request.flagged(flags));
        ring.submit();
        let entries = ring.wait(1);
        show(t, &entries);
    }
}

/// Returns pipes and sockets whose buffers are full: for each, a name, the reading end and the
/// writing end.
fn full() -> Vec<(&'static str, OwnedFd, OwnedFd)> {
    let (pipe_reader, pipe) = files::pipe();
    let (peer, stream) = files::sockets();
    files::fill(&pipe);
    files::fill(&stream);
    vec![("pipe", pipe_reader, pipe), ("stream", peer, stream)]
}

fn wait_and_break(t: &mut Transcript, flags: u32, request_flags: u8, unattended: bool) {
    catch();
    for (name, reader, writer) in full() {
        t.say(name);
        let mut ring = Ring::flags(4, flags);
        ring.push(write(writer.as_raw_fd(), &TEXT, CURRENT, 1).flagged(request_flags));
        ring.submit();
        crate::time::long_enough_to_notice();
        t.say(format_args!("ready {}", ring.ready()));
        drop(reader);
        if unattended {
            t.say(format_args!("it comes {}", ring.wait_in_memory(1)));
            crate::time::until(|| request_flags != 0 || CAUGHT.load(Ordering::SeqCst) > 0);
        }
        let entries = ring.wait(1);
        show(t, &entries);
    }
}

fn waits(t: &mut Transcript) {
    wait_and_break(t, 0, 0, false);
}
case!(waits => "
    pipe
    ready 0
    cqe 1: -EPIPE
    signals 1
    stream
    ready 0
    cqe 1: -EPIPE
    signals 1
");

fn waits_unattended(t: &mut Transcript) {
    wait_and_break(t, 0, 0, true);
}
case!(waits_unattended => "
    pipe
    ready 0
    it comes true
    cqe 1: -EPIPE
    signals 1
    stream
    ready 0
    it comes true
    cqe 1: -EPIPE
    signals 1
");

fn waits_deferred(t: &mut Transcript) {
    wait_and_break(t, ring::DEFER, 0, false);
}
case!(waits_deferred => "
    pipe
    ready 0
    cqe 1: -EPIPE
    signals 1
    stream
    ready 0
    cqe 1: -EPIPE
    signals 1
");

fn forced_async_waits(t: &mut Transcript) {
    for unattended in [false, true] {
        wait_and_break(t, 0, usring_uapi::sqe_flags::ASYNC, unattended);
    }
}
case!(forced_async_waits => "
    pipe
    ready 0
    cqe 1: -EPIPE
    signals 0
    stream
    ready 0
    cqe 1: -EPIPE
    signals 0
    pipe
    ready 0
    it comes true
    cqe 1: -EPIPE
    signals 0
    stream
    ready 0
    it comes true
    cqe 1: -EPIPE
    signals 0
");

/// The reader closes its end after it has taken a part of a write. That write returns the number of
/// written bytes, and the next write gets -EPIPE.
fn reader_closes_after_a_part(t: &mut Transcript) {
    catch();
    let (reader, writer) = files::pipe();
    let bytes = vec![b'x'; 200_000];
    let mut ring = Ring::new(4);
    ring.push(write(writer.as_raw_fd(), &bytes, CURRENT, 1));
    ring.push(write(writer.as_raw_fd(), &bytes, CURRENT, 2));
    ring.submit();
    crate::time::long_enough_to_notice();
    drop(reader);
    let entries = ring.wait(2);
    show(t, &entries);
}
case!(reader_closes_after_a_part => "
    cqe 1: 65536
    cqe 2: -EPIPE
    signals 1
");

/// A write is linked behind a request that a worker executes. The worker executes the write, too,
/// so it gets -EPIPE and raises no SIGPIPE. If `unattended`, the submitting thread calls
/// io_uring_enter(2) only after both CQEs are there.
fn behind_a_worker(t: &mut Transcript) {
    catch();
    for unattended in [false, true] {
        let mut ring = Ring::new(4);
        let file = files::memory_file(b"abc");
        let (reader, writer) = files::pipe();
        drop(reader);
        ring.push(sqe(opcode::FSYNC, file.as_raw_fd(), 1).linked());
        ring.push(write(writer.as_raw_fd(), &TEXT, CURRENT, 2));
        ring.submit();
        if unattended {
            t.say(format_args!("they come {}", ring.wait_in_memory(2)));
            crate::time::long_enough_to_notice();
        }
        let entries = ring.wait(2);
        show(t, &entries);
    }
}
case!(behind_a_worker => "
    cqe 1: 0
    cqe 2: -EPIPE
    signals 0
    they come true
    cqe 1: 0
    cqe 2: -EPIPE
    signals 0
");

fn sends(t: &mut Transcript) {
    catch();
    for (name, end) in broken() {
        t.say(name);
        let mut ring = Ring::new(8);
        let fd = end.as_raw_fd();
        let part = vector(TEXT.as_ptr() as u64, 4);
        let mut header: libc::msghdr = crate::memory::zeroed();
        (header.msg_iov, header.msg_iovlen) = ((&raw const part).cast_mut(), 1);
        for flags in [0, usring_uapi::sqe_flags::ASYNC] {
            for option in [0, libc::MSG_NOSIGNAL as u32] {
                let kinds = [send(fd, &TEXT, 1), message(opcode::SENDMSG, fd, &raw const header, 2)];
                for request in kinds {
                    ring.push(request.op_flags(option).flagged(flags));
                    ring.submit();
                    let entries = ring.wait(1);
                    show(t, &entries);
                }
            }
        }
    }
}
case!(sends => include_str!("broken_pipe/sends.txt"));

fn splice(t: &mut Transcript) {
    catch();
    let (source, filler) = files::pipe();
    files::put(&filler, b"some text");
    for (name, end) in broken() {
        t.say(name);
        let mut ring = Ring::new(4);
        ring.push(sqe(opcode::SPLICE, end.as_raw_fd(), 1).with(|sqe| {
            (sqe.file_index, sqe.addr, sqe.off, sqe.len) = (source.as_raw_fd() as u32, CURRENT, CURRENT, 4);
        }));
        ring.submit();
        let entries = ring.wait(1);
        show(t, &entries);
    }
}
case!(splice => "
    pipe
    cqe 1: -EPIPE
    signals 0
    stream
    cqe 1: -EPIPE
    signals 0
    packets
    cqe 1: -EPIPE
    signals 0
    tcp
    cqe 1: -EPIPE
    signals 0
");

fn sq_thread(t: &mut Transcript) {
    catch();
    for (name, end) in broken() {
        t.say(name);
        let mut ring = Ring::flags(4, u::IORING_SETUP_SQPOLL);
        ring.push(write(end.as_raw_fd(), &TEXT, CURRENT, 1));
        ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP);
        let entries = ring.wait(1);
        show(t, &entries);
        ring.push(nop(2));
        ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP);
        let entries = ring.wait(1);
        show(t, &entries);
    }
}
case!(sq_thread => "
    pipe
    cqe 1: -EPIPE
    signals 0
    cqe 2: 0
    signals 0
    stream
    cqe 1: -EPIPE
    signals 0
    cqe 2: 0
    signals 0
    packets
    cqe 1: -EPIPE
    signals 0
    cqe 2: 0
    signals 0
    tcp
    cqe 1: -EPIPE
    signals 0
    cqe 2: 0
    signals 0
");

fn aio_writes(t: &mut Transcript) {
    catch();
    for (name, end) in broken() {
        t.say(name);
        let context = Context::new(4);
        let fd = end.as_raw_fd();
        let parts = [vector(TEXT.as_ptr() as u64, 2), vector(TEXT.as_ptr() as u64, 2)];
        let quiet = {
            let mut quiet = aio::write(fd, &TEXT, 0, 3);
            quiet.aio_rw_flags = NO_SIGNAL as _;
            quiet
        };
        for iocb in [aio::write(fd, &TEXT, 0, 1), aio::write_vector(fd, &parts, 0, 2), quiet] {
            t.result("submit", context.submit(&mut [iocb]));
            aio::events(t, context.wait(1));
            signals(t);
        }
    }
}
case!(aio_writes as aio => include_str!("broken_pipe/aio.txt"));
