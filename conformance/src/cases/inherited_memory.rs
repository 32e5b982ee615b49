//! Rings that several processes use: the ring's mapping in each process. Also ring descriptors that
//! a process has not inherited by fork(2).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::io_uring as u;

use crate::files;
use crate::process;
use crate::ring::Ring;
use crate::shared::{self, Kind, Partner, Shared};
use crate::sqe::{nop, read_at};
use crate::syscalls;
use crate::transcript::Transcript;

/// A child unmaps the memory of the inherited ring and maps it again.
fn child_maps_again(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(nop(1));
    t.result("submit", ring.submit());
    shared::run_child(t, |t| {
        ring.unmap();
        let mut again = Ring::mapped(ring.fd, ring.params);
        t.in_order(&again.reap());
        t.entry(&again.one(nop(2)));
        again.push(nop(3));
        t.result("submit in the child", again.submit());
    });
    t.in_order(&ring.reap());
    ring.catch_up();
    t.entry(&ring.one(nop(4)));
}
case!(child_maps_again => "
    submit = 1
    cqe 1: 0
    cqe 2: 0
    submit in the child = 1
    child: exit 0
    cqe 3: 0
    cqe 4: 0
");

/// A ring is mapped with MADV_DONTFORK (liburing's io_uring_ring_dontfork). So a child inherits no
/// mapping of it, but can map the ring again.
fn mapping_without_inheritance(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    // Makes a mapping directly below the ring's mapping. So the child maps the ring at other
    // addresses than the parent.
    // SAFETY: the mapping is new, and nothing accesses it.
    unsafe {
        libc::mmap(std::ptr::null_mut(), 1 << 20, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    t.result("madvise", ring.advise(libc::MADV_DONTFORK));
    let ending = process::forked(|| ring.sq_head() as i32);
    t.say(format_args!("a child that looks: {ending}"));
    shared::run_child(t, |t| {
        let mut again = Ring::mapped(ring.fd, ring.params);
        t.entry(&again.one(nop(1)));
        again.push(nop(2));
        again.submit();
    });
    t.in_order(&ring.reap());
    ring.catch_up();
    t.entry(&ring.one(nop(3)));
}
case!(mapping_without_inheritance => "
    madvise = 0
    a child that looks: signal 11
    cqe 1: 0
    child: exit 0
    cqe 2: 0
    cqe 3: 0
");

/// A child closes the ring's descriptor. Its mapping keeps the ring alive, so it can reap CQEs from
/// memory.
fn child_closes_and_reaps_from_memory(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let shared = Shared::new();
    let child = shared::child(|| {
        syscalls::close(ring.fd);
        shared.step(1);
        t.in_order(&ring.reap_in_memory(2));
        0
    });
    shared.until_step(1);
    ring.push(nop(1));
    ring.push(nop(2));
    ring.submit();
    shared::ended(t, child);
    t.in_order(&ring.reap());
}
case!(child_closes_and_reaps_from_memory => "
    cqe 1: 0
    cqe 2: 0
    child: exit 0
    no cqe
");

/// A child duplicates the ring's descriptor by dup(2) and closes the original. The duplicate then
/// works as the ring's descriptor.
fn copy_of_the_descriptor(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        shared::run_child(t, |t| {
            // SAFETY: the call touches no memory.
            let copy = unsafe { libc::dup(ring.fd) };
            t.result("close", syscalls::close(ring.fd));
            ring.fd = copy;
            t.entry(&ring.one(nop(1)));
        });
        ring.catch_up();
        t.entry(&ring.one(nop(2)));
    });
}
case!(copy_of_the_descriptor => "
    a mapped ring:
    close = 0
    cqe 1: 0
    child: exit 0
    cqe 2: 0
    a ring in shared memory:
    close = 0
    cqe 1: 0
    child: exit 0
    cqe 2: 0
");

/// Returns a duplicate of the descriptor `number` of the process `process`, by pidfd_getfd(2).
fn descriptor_of(process: i32, number: i32) -> OwnedFd {
    // SAFETY: the calls touch no memory.
    let copy = unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, process, 0) as i32;
        assert!(pidfd >= 0);
        let copy = libc::syscall(libc::SYS_pidfd_getfd, pidfd, number, 0) as i32;
        libc::close(pidfd);
        copy
    };
    assert!(copy >= 0, "pidfd_getfd: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(copy) }
}

/// A child makes a ring. The parent gets the ring's descriptor by pidfd_getfd(2), maps the ring and
/// uses it.
fn ring_of_a_child(t: &mut Transcript) {
    let shared = Shared::new();
    let (reader, writer) = files::pipe();
    let parameters = shared.slot(8) as *mut crate::ring::Params;
    let child = shared::child(|| {
        let mut ring = Ring::new(8);
        // SAFETY: the parameters lie in the shared memory. The parent reads them only after step 1.
        unsafe { parameters.write(ring.params) };
        shared.word(0).store(ring.fd as u32, std::sync::atomic::Ordering::SeqCst);
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.submit();
        shared.step(1);
        shared.until_step(2);
        t.in_order(&ring.wait(1));
        0
    });
    shared.until_step(1);
    let fd = descriptor_of(child, shared.word(0).load(std::sync::atomic::Ordering::SeqCst) as i32);
    // SAFETY: the child has written the parameters before step 1.
    let mut ring = Ring::mapped(fd.as_raw_fd(), unsafe { parameters.read() });
    files::put(&writer, b"data");
    t.in_order(&ring.wait(1));
    ring.push(nop(2));
    t.result("submit", ring.submit());
    shared.step(2);
    shared::ended(t, child);
    ring.catch_up();
    t.entry(&ring.one(nop(3)));
    ring.abandon();
}
case!(ring_of_a_child => "
    cqe 1: 4
    submit = 1
    cqe 2: 0
    child: exit 0
    cqe 3: 0
");

/// A ring cannot be opened through /proc/PID/fd.
fn opened_through_proc(t: &mut Transcript) {
    let ring = Ring::new(4);
    let path = std::ffi::CString::new(format!("/proc/self/fd/{}", ring.fd)).expect("no zero byte");
    shared::run_child(t, |t| {
        // SAFETY: the path is a C string.
        let answer = unsafe { libc::open(path.as_ptr(), libc::O_RDWR) };
        t.outcome("open", i64::from(syscalls::answer(answer)));
    });
}
case!(opened_through_proc => "
    open = -ENXIO
    child: exit 0
");

/// A child submits a request, closes the ring's descriptor and unmaps the ring. The parent has
/// closed its descriptor, too, but its mapping keeps the ring alive. So the request completes.
fn request_outlives_the_descriptors(t: &mut Transcript) {
    let mut ring = Kind::Mapped.ring(8, 0);
    let shared = Shared::new();
    let (reader, writer) = files::pipe();
    let partner = Partner::start(&mut ring, |ring| {
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.submit();
        syscalls::close(ring.fd);
        ring.unmap();
    });
    t.result("close", ring.close());
    files::put(&writer, b"data");
    t.in_order(&ring.reap_in_memory(1));
    t.say(shared.text(0));
    partner.leave(t);
    t.result("enter", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
}
case!(request_outlives_the_descriptors => "
    close = 0
    cqe 1: 4
    data
    child: exit 0
    enter = -EBADF
");

/// Number of unused rings that the case makes, in addition to a first ring.
const UNTOUCHED: usize = 64;

/// Returns the number of mappings of this process.
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("a list of mappings").lines().count()
}

/// An unused ring should have at most two mappings, because fork(2) has to copy each: one for the
/// SQEs, and one for both queues.
fn mappings_of_untouched_rings(t: &mut Transcript) {
    let _first = Ring::new(8);
    let before = mappings();
    let _rings: Vec<Ring> = (0..UNTOUCHED).map(|_| Ring::new(64)).collect();
    shared::run_child(t, |t| {
        let more = mappings() - before;
        // The allocator may have added some mappings.
        let is_two = more <= 2 * UNTOUCHED + UNTOUCHED / 4;
        t.say(if is_two { "two mappings per ring".into() } else { format!("{more} mappings of {UNTOUCHED} rings") });
    });
}
case!(mappings_of_untouched_rings => "
    two mappings per ring
    child: exit 0
");
