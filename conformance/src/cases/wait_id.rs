//! WAITID, which waits until a child ends, stops or continues.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;

use crate::files;
use crate::memory::{BAD, zeroed};
use crate::names;
use crate::process;
use crate::ring::{self, Ring};
use crate::sqe::{Change, cancel, fields, link_timeout, nop, sqe};
use crate::time::milliseconds;
use crate::transcript::Transcript;

const EXITED: u32 = libc::WEXITED as u32;

fn wait_for(which: libc::idtype_t, id: i32, info: *mut libc::siginfo_t, options: u32, user_data: u64) -> Sqe {
    sqe(opcode::WAITID, id, user_data).with(|sqe| {
        (sqe.len, sqe.file_index, sqe.off) = (which, options, info as u64);
    })
}

/// Starts a child. It exits with status 3 as soon as the returned writing end of a pipe is closed.
fn child() -> (i32, OwnedFd) {
    let (reader, writer) = files::pipe();
    let child = process::start(|| {
        // SAFETY: the call touches no memory. It closes the child's own copy of the writing end,
        // which would keep the pipe open.
        unsafe { libc::close(writer.as_raw_fd()) };
        let _ = files::take(&reader, 1);
        3
    });
    (child, writer)
}

fn say_siginfo(t: &mut Transcript, info: &libc::siginfo_t, child: i32) {
    // SAFETY: all fields of the siginfo are initialised: they are zero, or waitid(2) has written
    // them.
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
    // SAFETY: the siginfo is a variable of this function. With WNOWAIT, the child remains a zombie.
    unsafe { libc::waitid(libc::P_PID, child as u32, &mut info, libc::WEXITED | libc::WNOWAIT) };
}

fn has_ended(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    drop(writer);
    until_ended(child);
    let mut info = zeroed();
    t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, EXITED, 1)));
    say_siginfo(t, &info, child);
    t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, EXITED, 2)));
}
case!(has_ended => "
    cqe 1: 0
    signal 17 errno 0 code 1 status 3 is it true
    cqe 2: -ECHILD
");

fn waits(t: &mut Transcript) {
    for setup in ring::BOTH {
        let mut ring = Ring::flags(4, setup);
        let (child, writer) = child();
        let mut info = zeroed();
        ring.push(wait_for(libc::P_PID, child, &mut info, EXITED, 1));
        t.result("submit", ring.submit());
        crate::time::long_enough_to_notice();
        t.in_order(&ring.reap());
        drop(writer);
        t.in_order(&ring.wait(1));
        say_siginfo(t, &info, child);
    }
}
case!(waits => "
    submit = 1
    no cqe
    cqe 1: 0
    signal 17 errno 0 code 1 status 3 is it true
    submit = 1
    no cqe
    cqe 1: 0
    signal 17 errno 0 code 1 status 3 is it true
");

fn killed(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, _writer) = child();
    let mut info = zeroed();
    ring.push(wait_for(libc::P_PID, child, &mut info, EXITED, 1));
    ring.submit();
    // SAFETY: the call touches no memory. The process is a child of this one.
    unsafe { libc::kill(child, libc::SIGKILL) };
    t.in_order(&ring.wait(1));
    say_siginfo(t, &info, child);
}
case!(killed => "
    cqe 1: 0
    signal 17 errno 0 code 2 status 9 is it true
");

fn any_child(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let mut info = zeroed();
    ring.push(wait_for(libc::P_ALL, -7, &mut info, EXITED, 1));
    ring.submit();
    drop(writer);
    t.in_order(&ring.wait(1));
    say_siginfo(t, &info, child);
}
case!(any_child => "
    cqe 1: 0
    signal 17 errno 0 code 1 status 3 is it true
");

fn stopped_and_continued(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    for (signal, option) in [(libc::SIGSTOP, libc::WSTOPPED), (libc::SIGCONT, libc::WCONTINUED)] {
        let mut info = zeroed();
        ring.push(wait_for(libc::P_PID, child, &mut info, option as u32, 1));
        ring.submit();
        // SAFETY: the call touches no memory. The process is a child of this one.
        unsafe { libc::kill(child, signal) };
        t.in_order(&ring.wait(1));
        say_siginfo(t, &info, child);
    }
    drop(writer);
    t.say(process::ending(child));
}
case!(stopped_and_continued => "
    cqe 1: 0
    signal 17 errno 0 code 5 status 19 is it true
    cqe 1: 0
    signal 17 errno 0 code 6 status 18 is it true
    exit 3
");

fn do_not_wait(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let mut info: libc::siginfo_t = zeroed();
    info.si_signo = 77;
    t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, EXITED | libc::WNOHANG as u32, 1)));
    say_siginfo(t, &info, child);
    drop(writer);
    until_ended(child);
    t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, EXITED | libc::WNOHANG as u32, 2)));
    say_siginfo(t, &info, child);
}
case!(do_not_wait => "
    cqe 1: 0
    signal 0 errno 0 code 0 status 0 is it false
    cqe 2: 0
    signal 17 errno 0 code 1 status 3 is it true
");

fn wnowait_leaves_the_child(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    drop(writer);
    for _ in 0..2 {
        let mut info = zeroed();
        t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, EXITED | libc::WNOWAIT as u32, 1)));
        say_siginfo(t, &info, child);
    }
    t.say(process::ending(child));
}
case!(wnowait_leaves_the_child => "
    cqe 1: 0
    signal 17 errno 0 code 1 status 3 is it true
    cqe 1: 0
    signal 17 errno 0 code 1 status 3 is it true
    exit 3
");

fn no_child(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut info: libc::siginfo_t = zeroed();
    info.si_signo = 77;
    t.entry(&ring.one(wait_for(libc::P_ALL, 0, &mut info, EXITED, 1)));
    t.entry(&ring.one(wait_for(libc::P_PID, 1, &mut info, EXITED, 2)));
    t.say(format_args!("untouched {}", info.si_signo == 77));
}
case!(no_child => "
    cqe 1: -ECHILD
    cqe 2: -ECHILD
    untouched false
");

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
    let fields = fields! {
        addr = 1, addr3 = 1, op_flags = 1, buf_index = 1, ioprio = 1,
        "buffer select" flags |= sqe_flags::BUFFER_SELECT,
    };
    for (name, set) in fields {
        t.say(format_args!("{name}: {}", names::result(ring.one(right.with(set)).res)));
    }
    t.entry(&ring.one(right.fixed()));
    drop(writer);
    t.say(process::ending(child));
}
case!(wrong => "
    1 0x0: -EINVAL
    1 0x1: -EINVAL
    1 0x100004: -EINVAL
    1 0x4: -EINVAL
    1 0x4: -EINVAL
    2 0x4: -EINVAL
    3 0x4: -EINVAL
    3 0x4: -EBADF
    99 0x4: -EINVAL
    addr: -EINVAL
    addr3: -EINVAL
    op_flags: -EINVAL
    buf_index: -EINVAL
    ioprio: -EINVAL
    buffer select: -EOPNOTSUPP
    cqe 1: 0
    exit 3
");

/// A null pointer for the siginfo is accepted.
fn null_siginfo(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    ring.push(wait_for(libc::P_PID, child, std::ptr::null_mut(), EXITED, 1));
    ring.submit();
    drop(writer);
    t.in_order(&ring.wait(1));
}
case!(null_siginfo => "cqe 1: 0");

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
        // The kernel could not write the siginfo, but it has reaped the child. So the next WAITID
        // finds no child.
        let mut info = zeroed();
        t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, EXITED, 2)));
    }
}
case!(bad_address => "
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -ECHILD
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -ECHILD
");

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
case!(chain => "
    no cqe
    cqe 1: 0
    cqe 2: 0
    cqe 3: -ECHILD
    cqe 4: -ECANCELED
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let mut info = zeroed();
    ring.push(wait_for(libc::P_PID, child, &mut info, EXITED, 1).forced_async());
    ring.submit();
    drop(writer);
    t.in_order(&ring.wait(1));
    say_siginfo(t, &info, child);
}
case!(forced_async => "
    cqe 1: 0
    signal 17 errno 0 code 1 status 3 is it true
");

fn descriptor_of(child: i32, flags: u32) -> OwnedFd {
    // SAFETY: the call touches no memory. The descriptor is new, and nothing else owns it.
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
    say_siginfo(t, &info, child);
    t.entry(&ring.one(wait_for(libc::P_PIDFD, named.as_raw_fd(), &mut info, EXITED, 2)));
    let pipe = files::pipe();
    t.entry(&ring.one(wait_for(libc::P_PIDFD, pipe.0.as_raw_fd(), &mut info, EXITED, 3)));
}
case!(descriptor => "
    no cqe
    cqe 1: 0
    signal 17 errno 0 code 1 status 3 is it true
    cqe 2: -ECHILD
    cqe 3: -EBADF
");

/// A WAITID names its child by a pidfd. It waits for the process of that pidfd at the submission.
/// The descriptor number may then become that of another process's pidfd.
fn descriptor_is_closed(t: &mut Transcript) {
    for forced in [false, true] {
        let mut ring = Ring::new(4);
        // Only one worker is allowed. If a waiting WAITID occupied a worker, the second WAITID
        // could not start.
        let mut limits = [0u32, 1];
        ring.register(reg::IOWQ_MAX_WORKERS, limits.as_mut_ptr(), 2);
        // The second child inherits the writing end of the first child's pipe. So the first child
        // cannot end before the second one.
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
            // No event shows that the kernel's worker has started, so the case waits for a fixed
            // time.
            crate::time::long_enough_to_begin();
        }
        drop(named);
        let new = descriptor_of(other, 0);
        t.say(format_args!("the same number {}", new.as_raw_fd() == number));
        drop(other_writer);
        t.in_order(&ring.wait(1));
        drop(first_writer);
        t.in_order(&ring.wait(1));
        say_siginfo(t, info, first);
    }
}
case!(descriptor_is_closed => "
    the same number true
    cqe 1: 0
    cqe 2: 0
    signal 17 errno 0 code 1 status 3 is it true
    the same number true
    cqe 1: 0
    cqe 2: 0
    signal 17 errno 0 code 1 status 3 is it true
");

fn descriptor_does_not_wait(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    let named = descriptor_of(child, libc::PIDFD_NONBLOCK);
    let mut info: libc::siginfo_t = zeroed();
    for forced in [false, true] {
        info.si_signo = 77;
        let request = wait_for(libc::P_PIDFD, named.as_raw_fd(), &mut info, EXITED, 1);
        t.entry(&ring.one(if forced { request.forced_async() } else { request }));
        say_siginfo(t, &info, child);
    }
    drop(writer);
    until_ended(child);
    t.entry(&ring.one(wait_for(libc::P_PIDFD, named.as_raw_fd(), &mut info, EXITED, 2)));
    say_siginfo(t, &info, child);
}
case!(descriptor_does_not_wait => "
    cqe 1: 0
    signal 0 errno 0 code 0 status 0 is it false
    cqe 1: 0
    signal 0 errno 0 code 0 status 0 is it false
    cqe 2: 0
    signal 17 errno 0 code 1 status 3 is it true
");

fn of_this_thread(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (child, writer) = child();
    drop(writer);
    until_ended(child);
    let mut info = zeroed();
    let options = EXITED | libc::__WNOTHREAD as u32;
    t.entry(&ring.one(wait_for(libc::P_PID, child, &mut info, options, 1)));
    say_siginfo(t, &info, child);
}
case!(of_this_thread => "
    cqe 1: 0
    signal 17 errno 0 code 1 status 3 is it true
", usring => "
    cqe 1: -EINVAL
    signal 0 errno 0 code 0 status 0 is it false
", because "a worker would wait, which has no children");

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
    // The WAITID was cancelled, so it has not reaped the child. The case can still wait for the
    // child.
    t.say(process::ending(child));
}
case!(bounded as link_timeout => "
    2 has ended
    1 has ended
    exit 3
");

fn ring_closes(t: &mut Transcript) {
    let (child, writer) = child();
    let mut info = zeroed();
    let mut ring = Ring::new(4);
    ring.push(wait_for(libc::P_PID, child, &mut info, EXITED, 1));
    ring.submit();
    drop(ring);
    // The kernel cancels the requests of a closed ring some time after the close.
    std::thread::sleep(std::time::Duration::from_millis(200));
    drop(writer);
    t.say(process::ending(child));
}
case!(ring_closes => "exit 3");

fn polled_ring(t: &mut Transcript) {
    let mut ring = Ring::flags(4, u::IORING_SETUP_IOPOLL);
    let mut info = zeroed();
    ring.push(wait_for(libc::P_ALL, 0, &mut info, EXITED, 1));
    ring.submit();
    t.in_order(&ring.wait(1));
}
case!(polled_ring => "cqe 1: -EINVAL");

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
case!(cancelled => "
    cqe 1: -ECANCELED
    cqe 2: 1
    exit 3
", usring => "
    cqe 1: -ECANCELED
    cqe 2: -EALREADY
    exit 3
", because "a worker waits, and is broken off");
