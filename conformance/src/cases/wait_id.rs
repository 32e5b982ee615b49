//! WAITID: the ends of children.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;

use crate::case::{Case, case, differs};
use crate::files;
use crate::memory::{BAD, zeroed};
use crate::names;
use crate::process;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, link_timeout, nop, sqe};
use crate::time::milliseconds;
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("wait_id.has_ended", has_ended),
    case("wait_id.waits", waits),
    case("wait_id.killed", killed),
    case("wait_id.any_child", any_child),
    case("wait_id.stopped_and_continued", stopped_and_continued),
    case("wait_id.do_not_wait", do_not_wait),
    case("wait_id.leaves_it", leaves_it),
    case("wait_id.no_child", no_child),
    case("wait_id.wrong", wrong),
    case("wait_id.nothing_to_tell", nothing_to_tell),
    case("wait_id.bad_address", bad_address),
    case("wait_id.chain", chain),
    case("wait_id.forced_async", forced_async),
    case("wait_id.descriptor", descriptor),
    case("wait_id.descriptor_is_closed", descriptor_is_closed),
    case("wait_id.descriptor_does_not_wait", descriptor_does_not_wait),
    case("wait_id.link_timeout", bounded),
    case("wait_id.ring_closes", ring_closes),
    case("wait_id.polled_ring", polled_ring),
    differs("wait_id.of_this_thread", of_this_thread, "a worker would wait, which has no children"),
    differs("wait_id.cancelled", cancelled, "a worker waits, and is broken off"),
];

const EXITED: u32 = libc::WEXITED as u32;

fn wait_for(which: libc::idtype_t, id: i32, info: *mut libc::siginfo_t, options: u32, user_data: u64) -> Sqe {
    sqe(opcode::WAITID, id, user_data).with(|sqe| {
        (sqe.len, sqe.file_index, sqe.off) = (which, options, info as u64);
    })
}

/// Starts a child that exits with 3 when the writing end is closed.
fn child() -> (i32, OwnedFd) {
    let (reader, writer) = files::pipe();
    let child = process::start(|| {
        // SAFETY: the call touches no memory. The child's copy of this end would keep the pipe
        // open.
        unsafe { libc::close(writer.as_raw_fd()) };
        let _ = files::take(&reader, 1);
        3
    });
    (child, writer)
}

fn tell(t: &mut Transcript, info: &libc::siginfo_t, child: i32) {
    // SAFETY: the structure is zeroed, or filled by waitid(2).
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    t.say(format_args!(
        "signal {} errno {} code {} status {status} is it {}",
        info.si_signo,
        info.si_errno,
        info.si_code,
        pid == child
    ));
}

fn until_ended(child: i32) {
    let mut info: libc::siginfo_t = zeroed();
    // SAFETY: the structure is a variable of this function. WNOWAIT leaves the child to be waited
    // for.
    unsafe { libc::waitid(libc::P_PID, child as u32, &mut info, libc::WEXITED | libc::WNOWAIT) };
}

fn has_ended(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    drop(writer);
    until_ended(child);
    let mut info = zeroed();
    t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, EXITED, 1)));
    tell(t, &info, child);
    t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, EXITED, 2)));
}

fn waits(t: &mut Transcript) {
    for setup in [0, u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN] {
        let mut ring = Ring::flags(4, setup);
        let (child, writer) = child();
        let mut info = zeroed();
        ring.push(wait_for(libc::P_PID, child, &mut info, EXITED, 1));
        t.result("submit", ring.submit());
        crate::time::long_enough_to_notice();
        t.in_order(&ring.reap());
        drop(writer);
        t.in_order(&ring.wait(1));
        tell(t, &info, child);
    }
}

fn killed(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, _writer) = child();
    let mut info = zeroed();
    ring.push(wait_for(libc::P_PID, child, &mut info, EXITED, 1));
    ring.submit();
    // SAFETY: the process is a child of this one.
    unsafe { libc::kill(child, libc::SIGKILL) };
    t.in_order(&ring.wait(1));
    tell(t, &info, child);
}

fn any_child(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let mut info = zeroed();
    ring.push(wait_for(libc::P_ALL, -7, &mut info, EXITED, 1));
    ring.submit();
    drop(writer);
    t.in_order(&ring.wait(1));
    tell(t, &info, child);
}

fn stopped_and_continued(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    for (signal, option) in [(libc::SIGSTOP, libc::WSTOPPED), (libc::SIGCONT, libc::WCONTINUED)] {
        let mut info = zeroed();
        ring.push(wait_for(libc::P_PID, child, &mut info, option as u32, 1));
        ring.submit();
        // SAFETY: the process is a child of this one.
        unsafe { libc::kill(child, signal) };
        t.in_order(&ring.wait(1));
        tell(t, &info, child);
    }
    drop(writer);
    t.say(process::ending(child));
}

fn do_not_wait(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let mut info: libc::siginfo_t = zeroed();
    info.si_signo = 77;
    t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, EXITED | libc::WNOHANG as u32, 1)));
    tell(t, &info, child);
    drop(writer);
    until_ended(child);
    t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, EXITED | libc::WNOHANG as u32, 2)));
    tell(t, &info, child);
}

fn leaves_it(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    drop(writer);
    for _ in 0..2 {
        let mut info = zeroed();
        t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, EXITED | libc::WNOWAIT as u32, 1)));
        tell(t, &info, child);
    }
    t.say(process::ending(child));
}

fn no_child(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut info: libc::siginfo_t = zeroed();
    info.si_signo = 77;
    t.entry(&ring.one(wait_for(libc::P_ALL, 0, &mut info, EXITED, 1)));
    t.entry(&ring.one(wait_for(libc::P_PID, 1, &mut info, EXITED, 2)));
    t.say(format_args!("untouched {}", info.si_signo == 77));
}

fn wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let mut info = zeroed();
    let info = &raw mut info;
    let right = wait_for(libc::P_PID, child, info, EXITED | libc::WNOHANG as u32, 1);
    for (which, id, options) in [
        (libc::P_PID, child, 0),
        (libc::P_PID, child, libc::WNOHANG as u32),
        (libc::P_PID, child, EXITED | 1 << 20),
        (libc::P_PID, 0, EXITED),
        (libc::P_PID, -1, EXITED),
        (libc::P_PGID, -1, EXITED),
        (libc::P_PIDFD, -1, EXITED),
        (libc::P_PIDFD, 5000, EXITED),
        (99, child, EXITED),
    ] {
        let entry = ring.one(wait_for(which, id, info, options, 1));
        t.say(format_args!("{which} {options:#x}: {}", names::result(entry.res)));
    }
    type Field = (&'static str, fn(&mut Sqe));
    let fields: [Field; 6] = [
        ("addr", |sqe| sqe.addr = 1),
        ("addr3", |sqe| sqe.addr3 = 1),
        ("op_flags", |sqe| sqe.op_flags = 1),
        ("buf_index", |sqe| sqe.buf_index = 1),
        ("ioprio", |sqe| sqe.ioprio = 1),
        ("buffer select", |sqe| sqe.flags |= sqe_flags::BUFFER_SELECT),
    ];
    for (name, set) in fields {
        t.say(format_args!("{name}: {}", names::result(ring.one(right.with(set)).res)));
    }
    t.entry(&ring.one(right.fixed()));
    drop(writer);
    t.say(process::ending(child));
}

/// The request asks for no information.
fn nothing_to_tell(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    ring.push(wait_for(libc::P_PID, child, std::ptr::null_mut(), EXITED, 1));
    ring.submit();
    drop(writer);
    t.in_order(&ring.wait(1));
}

fn bad_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for late in [false, true] {
        let (child, writer) = child();
        let request = wait_for(libc::P_PID, child, BAD as *mut _, EXITED, 1);
        t.entry(&ring.one(request.with(|sqe| sqe.file_index |= libc::WNOHANG as u32)));
        if late {
            ring.push(request);
            ring.submit();
            drop(writer);
        } else {
            drop(writer);
            until_ended(child);
            ring.push(request);
            ring.submit();
        }
        t.in_order(&ring.wait(1));
        // The child has been reaped all the same.
        let mut info = zeroed();
        t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, EXITED, 2)));
    }
}

fn chain(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let mut info = zeroed();
    ring.push(wait_for(libc::P_PID, child, &mut info, EXITED, 1).linked());
    ring.push(nop(2));
    ring.submit();
    t.in_order(&ring.reap());
    drop(writer);
    t.in_order(&ring.wait(2));
    t.in_order(&ring.run(&[wait_for(libc::P_PID, child, &mut info, EXITED, 3).linked(), nop(4)]));
}

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let mut info = zeroed();
    ring.push(wait_for(libc::P_PID, child, &mut info, EXITED, 1).forced_async());
    ring.submit();
    drop(writer);
    t.in_order(&ring.wait(1));
    tell(t, &info, child);
}

fn descriptor_of(child: i32, flags: u32) -> OwnedFd {
    // SAFETY: the call touches no memory; the number is new.
    unsafe { OwnedFd::from_raw_fd(libc::syscall(libc::SYS_pidfd_open, child, flags) as i32) }
}

fn descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let named = descriptor_of(child, 0);
    let mut info = zeroed();
    ring.push(wait_for(libc::P_PIDFD, named.as_raw_fd(), &mut info, EXITED, 1));
    ring.submit();
    t.in_order(&ring.reap());
    drop(writer);
    t.in_order(&ring.wait(1));
    tell(t, &info, child);
    t.entry(&ring.one(wait_for(libc::P_PIDFD, named.as_raw_fd(), &mut info, EXITED, 2)));
    let pipe = files::pipe();
    t.entry(&ring.one(wait_for(libc::P_PIDFD, pipe.0.as_raw_fd(), &mut info, EXITED, 3)));
}

/// The request keeps the process that the descriptor named, though the number soon refers to
/// another one.
fn descriptor_is_closed(t: &mut Transcript) {
    for forced in [false, true] {
        let mut ring = Ring::new(4);
        // A request that needs a worker waits for the first request's worker.
        let mut limits = [0u32, 1];
        ring.register(reg::IOWQ_MAX_WORKERS, limits.as_mut_ptr(), 2);
        // The second child has the first one's end of the pipe, too, and ends first.
        let (first, first_writer) = child();
        let (other, other_writer) = child();
        let mut infos: [libc::siginfo_t; 2] = [zeroed(), zeroed()];
        let [of_other, info] = &mut infos;
        ring.push(wait_for(libc::P_PID, other, of_other, EXITED, 1));
        ring.submit();
        let named = descriptor_of(first, 0);
        let number = named.as_raw_fd();
        let request = wait_for(libc::P_PIDFD, number, info, EXITED, 2);
        ring.push(if forced { request.forced_async() } else { request });
        ring.submit();
        if forced {
            // No event reports when the kernel's worker has started.
            crate::time::long_enough_to_begin();
        }
        drop(named);
        let new = descriptor_of(other, 0);
        t.say(format_args!("the same number {}", new.as_raw_fd() == number));
        drop(other_writer);
        t.in_order(&ring.wait(1));
        drop(first_writer);
        t.in_order(&ring.wait(1));
        tell(t, info, first);
    }
}

fn descriptor_does_not_wait(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let named = descriptor_of(child, libc::PIDFD_NONBLOCK);
    let mut info: libc::siginfo_t = zeroed();
    for forced in [false, true] {
        info.si_signo = 77;
        let request = wait_for(libc::P_PIDFD, named.as_raw_fd(), &mut info, EXITED, 1);
        t.entry(&ring.one(if forced { request.forced_async() } else { request }));
        tell(t, &info, child);
    }
    drop(writer);
    until_ended(child);
    t.entry(&ring.one(wait_for(libc::P_PIDFD, named.as_raw_fd(), &mut info, EXITED, 2)));
    tell(t, &info, child);
}

fn of_this_thread(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    drop(writer);
    until_ended(child);
    let mut info = zeroed();
    let options = EXITED | libc::__WNOTHREAD as u32;
    t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, options, 1)));
    tell(t, &info, child);
}

fn bounded(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let mut info = zeroed();
    let time = milliseconds(10);
    ring.push(wait_for(libc::P_PID, child, &mut info, EXITED, 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    for entry in ring.wait(2) {
        t.say(format_args!("{} has ended", entry.user_data));
    }
    drop(writer);
    // The child can still be waited for.
    t.say(process::ending(child));
}

fn ring_closes(t: &mut Transcript) {
    let (child, writer) = child();
    let mut info = zeroed();
    let mut ring = Ring::new(4);
    ring.push(wait_for(libc::P_PID, child, &mut info, EXITED, 1));
    ring.submit();
    drop(ring);
    // The kernel tears a ring down asynchronously.
    std::thread::sleep(std::time::Duration::from_millis(200));
    drop(writer);
    t.say(process::ending(child));
}

fn polled_ring(t: &mut Transcript) {
    let mut ring = Ring::flags(4, u::IORING_SETUP_IOPOLL);
    let mut info = zeroed();
    ring.push(wait_for(libc::P_ALL, 0, &mut info, EXITED, 1));
    ring.submit();
    t.in_order(&ring.wait(1));
}

fn cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let mut info = zeroed();
    ring.push(wait_for(libc::P_PID, child, &mut info, EXITED, 1));
    ring.submit();
    crate::time::long_enough_to_begin();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    drop(writer);
    t.say(process::ending(child));
}
