//! Programs that misuse io_uring, and programs that handle faults by their own signal handlers.
//! Misuse of a ring may affect only that ring, and no process may crash.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use usring_uapi::{Sqe, io_uring as u, opcode};

use super::reg;
use crate::files;
use crate::memory::{BAD, Pages, zeroed};
use crate::ring::{Params, Ring};
use crate::sqe::{Change, nop, read, read_at, readv, sqe, timeout, vector, write_at};
use crate::time::{LONG, milliseconds};
use crate::transcript::Transcript;

static FAULTS: AtomicU32 = AtomicU32::new(0);
static PLACE: AtomicU32 = AtomicU32::new(0);

/// Handles SIGSEGV and SIGBUS, and counts the faults. If the case has set `PLACE`, the handler
/// makes the page of the fault accessible, so that the access succeeds. Otherwise it ends the
/// process.
extern "C" fn on_fault(_signal: i32, information: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    FAULTS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the kernel has filled in the siginfo. The page of the fault belongs to the case.
    unsafe {
        let address = (*information).si_addr() as usize & !4095;
        if PLACE.load(Ordering::SeqCst) == 0
            || libc::mprotect(address as *mut _, 4096, libc::PROT_READ | libc::PROT_WRITE) != 0
        {
            libc::_exit(77);
        }
    }
}

fn catch_faults() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the handler touches only atomics and pages that the case has prepared for it.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
}

/// Submits requests of many kinds, each with the bad address `address`. Each request gets -EFAULT.
fn bad_requests(t: &mut Transcript, address: u64) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    let open = sqe(opcode::OPENAT, libc::AT_FDCWD, 6).with(|sqe| sqe.addr = address);
    let stat = sqe(opcode::STATX, libc::AT_FDCWD, 7).with(|sqe| {
        sqe.addr = c"/".as_ptr() as u64;
        sqe.off = address;
    });
    for bad in [
        read_at(fd, address, 4, 0, 1),
        write_at(fd, address, 4, 0, 2),
        read_at(fd, address, 1, 0, 3).with(|sqe| sqe.opcode = opcode::READV),
        readv(fd, &[vector(address, 4)], 0, 4),
        timeout(&LONG, 0, 0, 5).with(|sqe| sqe.addr = address),
        open,
        stat,
    ] {
        t.entry(&ring.one(bad));
    }
    let nowhere = address as *const u8;
    t.result("register files", ring.register(reg::FILES, nowhere, 1));
    t.result("register buffers", ring.register(reg::BUFFERS, nowhere, 1));
    t.result("probe", ring.register(reg::PROBE, nowhere, 4));
    let flags = u::IORING_ENTER_GETEVENTS | u::IORING_ENTER_EXT_ARG;
    t.result("enter", ring.enter_with(0, 1, flags, nowhere.cast(), 24));
    t.result("setup", crate::syscalls::setup(4, address as *mut Params));
}

/// A bad address in a request raises no SIGSEGV: the program's handler does not run.
fn bad_address_raises_no_signal(t: &mut Transcript) {
    let _first = Ring::new(4);
    catch_faults();
    bad_requests(t, BAD);
    t.say(format_args!("handler ran {}", FAULTS.load(Ordering::SeqCst)));
}
case!(bad_address_raises_no_signal => "
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 3: -EFAULT
    cqe 4: -EFAULT
    cqe 5: -EFAULT
    cqe 6: -EFAULT
    cqe 7: -EFAULT
    register files = -EFAULT
    register buffers = -EFAULT
    probe = -EFAULT
    enter = -EFAULT
    setup = -EFAULT
    handler ran 0
");

/// An invalid access by the program itself reaches the program's fault handler, even after a
/// request with a bad address.
fn programs_own_fault_reaches_its_handler(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    catch_faults();
    PLACE.store(1, Ordering::SeqCst);
    let mut pages = Pages::new(1);
    for round in 0..3 {
        pages.forbid_last();
        pages.bytes()[0] = round;
        t.say(format_args!("handler ran {}", FAULTS.swap(0, Ordering::SeqCst)));
        t.entry(&ring.one(read_at(0, BAD, 0, 0, 1).with(|sqe| sqe.fd = -1)));
    }
}
case!(programs_own_fault_reaches_its_handler => "
    handler ran 1
    cqe 1: -EBADF
    handler ran 1
    cqe 1: -EBADF
    handler ran 1
    cqe 1: -EBADF
");

/// A fault whose signal is blocked kills the process. A bad address in a request is no such fault,
/// so the process lives.
fn bad_address_while_signals_are_blocked(t: &mut Transcript) {
    let _first = Ring::new(4);
    // SAFETY: the call changes only this thread's mask.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigfillset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
    bad_requests(t, BAD);
}
case!(bad_address_while_signals_are_blocked => "
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 3: -EFAULT
    cqe 4: -EFAULT
    cqe 5: -EFAULT
    cqe 6: -EFAULT
    cqe 7: -EFAULT
    register files = -EFAULT
    register buffers = -EFAULT
    probe = -EFAULT
    enter = -EFAULT
    setup = -EFAULT
");

fn bad_address_while_signals_are_ignored(t: &mut Transcript) {
    let _first = Ring::new(4);
    // SAFETY: the call changes only this process's signal dispositions.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_IGN);
        libc::signal(libc::SIGBUS, libc::SIG_IGN);
    }
    bad_requests(t, BAD);
}
case!(bad_address_while_signals_are_ignored => "
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 3: -EFAULT
    cqe 4: -EFAULT
    cqe 5: -EFAULT
    cqe 6: -EFAULT
    cqe 7: -EFAULT
    register files = -EFAULT
    register buffers = -EFAULT
    probe = -EFAULT
    enter = -EFAULT
    setup = -EFAULT
");

/// A mapping extends beyond the end of its file. Requests with addresses there get -EFAULT, as
/// system calls do, although a direct access would raise SIGBUS.
fn pages_beyond_the_file(t: &mut Transcript) {
    let short = files::memory_file(b"");
    // SAFETY: the mapping is new, and this case never accesses it directly.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            short.as_raw_fd(),
            0,
        )
    };
    catch_faults();
    bad_requests(t, address as u64);
    t.say(format_args!("handler ran {}", FAULTS.load(Ordering::SeqCst)));
}
case!(pages_beyond_the_file => "
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 3: -EFAULT
    cqe 4: -EFAULT
    cqe 5: -EFAULT
    cqe 6: -EFAULT
    cqe 7: -EFAULT
    register files = -EFAULT
    register buffers = -EFAULT
    probe = -EFAULT
    enter = -EFAULT
    setup = -EFAULT
    handler ran 0
");

/// The program unmaps the ring's memory. The ring still exists, so io_uring_enter(2) submits the
/// SQE that the program has written before.
fn ring_unmapped_before_enter(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"");
    ring.push(crate::sqe::write(file.as_raw_fd(), b"kept", 0, 1));
    ring.unmap();
    t.result("enter", ring.enter(1, 1, u::IORING_ENTER_GETEVENTS));
    t.say(files::text(&file));
    t.result("close", crate::syscalls::close(ring.fd));
    ring.abandon();
}
case!(ring_unmapped_before_enter => "
    enter = 1
    kept
    close = 0
");

fn own_ring(rings: &Pages, entries: &Pages) -> Ring {
    let mut params: Params = zeroed();
    params.flags = u::IORING_SETUP_NO_MMAP;
    params.cq_off.user_addr = rings.at(0);
    params.sq_off.user_addr = entries.at(0);
    let fd = crate::syscalls::setup(8, &mut params);
    assert!(fd >= 0, "{}", crate::names::result(fd));
    Ring::over_memory(fd, params, rings.address, entries.address)
}

/// The program unmaps the memory of a NO_MMAP ring. The kernel has pinned that memory and continues
/// to use it. usring may return any result, but the process and its other rings must work.
fn own_memory_unmapped(t: &mut Transcript) {
    let (rings, entries) = (Pages::new(1), Pages::new(1));
    let mut ring = own_ring(&rings, &entries);
    ring.push(nop(1));
    ring.forget_pending();
    drop(rings);
    drop(entries);
    ring.enter(1, 0, 0);
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    drop(ring);
    t.entry(&Ring::new(4).one(nop(2)));
}
case!(own_memory_unmapped => "cqe 2: 0");

/// The program unmaps the memory of a NO_MMAP ring and then closes the ring, as liburing does.
/// Requests are in flight, and the CQ for their completions is gone.
fn own_memory_unmapped_then_closed(t: &mut Transcript) {
    for _ in 0..20 {
        let (rings, entries) = (Pages::new(1), Pages::new(1));
        let mut ring = own_ring(&rings, &entries);
        let (reader, writer) = files::pipe();
        let mut byte = [0u8; 1];
        ring.push(nop(1));
        ring.push(read(reader.as_raw_fd(), &mut byte, 0, 2));
        ring.push(timeout(&milliseconds(1), 0, u::IORING_TIMEOUT_MULTISHOT, 3));
        ring.submit();
        ring.reap();
        drop(rings);
        drop(entries);
        files::put(&writer, b"x");
        drop(ring);
    }
    t.entry(&Ring::new(4).one(nop(2)));
}
case!(own_memory_unmapped_then_closed => "cqe 2: 0");

fn own_memory_made_read_only(t: &mut Transcript) {
    let (rings, entries) = (Pages::new(1), Pages::new(1));
    let mut ring = own_ring(&rings, &entries);
    ring.push(nop(1));
    ring.forget_pending();
    rings.protect_last(libc::PROT_READ);
    entries.protect_last(libc::PROT_READ);
    ring.enter(1, 0, 0);
    drop(ring);
    t.entry(&Ring::new(4).one(nop(2)));
}
case!(own_memory_made_read_only => "cqe 2: 0");

fn buffer_ring_unmapped(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let memory = Pages::new(1);
    let mut registration: u::io_uring_buf_reg = zeroed();
    registration.ring_addr = memory.at(0);
    registration.ring_entries = 4;
    registration.bgid = 1;
    t.result("register", ring.register(reg::PBUF_RING, &raw const registration, 1));
    drop(memory);
    let (reader, writer) = files::pipe();
    files::put(&writer, b"x");
    let answer = ring.one(super::buffer_group::select(reader.as_raw_fd(), 1, 1, 1));
    t.say(format_args!("no buffer {}", answer.res < 0));
    t.entry(&ring.one(nop(2)));
}
case!(buffer_ring_unmapped => "
    register = 0
    no buffer true
    cqe 2: 0
");

fn registered_buffer_unmapped(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let pages = Pages::new(1);
    let whole = vector(pages.at(0), pages.length);
    t.result("register", ring.register(reg::BUFFERS, &raw const whole, 1));
    let address = pages.at(0);
    drop(pages);
    let file = files::memory_file(b"0123");
    let fixed = read_at(file.as_raw_fd(), address, 4, 0, 1).with(|sqe| sqe.opcode = opcode::READ_FIXED);
    t.entry(&ring.one(fixed));
    t.entry(&ring.one(nop(2)));
}
case!(registered_buffer_unmapped => "
    register = 0
    cqe 1: 4
    cqe 2: 0
", usring => "
    register = 0
    cqe 1: -EFAULT
    cqe 2: 0
", because "registered buffers are not pinned: one that was unmapped gives EFAULT when it is used");

/// The program unmaps the buffer of a read that waits. When data arrives, the read gets -EFAULT.
fn buffer_unmapped_in_flight(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let pages = Pages::new(1);
    let (reader, writer) = files::sockets();
    ring.push(read_at(reader.as_raw_fd(), pages.at(0), 4, 0, 1));
    ring.submit();
    drop(pages);
    files::put(&writer, b"late");
    t.in_order(&ring.wait(1));
    t.entry(&ring.one(nop(2)));
}
case!(buffer_unmapped_in_flight => "
    cqe 1: -EFAULT
    cqe 2: 0
");

/// The ring's memory contains constants: the numbers of entries and the masks. The kernel does not
/// read them, so it has no effect if the program overwrites them.
fn scribbled_constants(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (sq, cq) = (ring.params.sq_off, ring.params.cq_off);
    for offset in [sq.ring_mask, sq.ring_entries, sq.dropped, cq.ring_mask, cq.ring_entries, cq.overflow] {
        ring.set_word(offset, 0xdead_beef);
    }
    for round in 0..3 {
        t.sorted(&ring.run(&[nop(round * 2), nop(round * 2 + 1)]));
    }
}
case!(scribbled_constants => "
    cqe 0: 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
");

/// The program overwrites heads, tails and flags of the ring. The kernel accesses no other memory.
fn scribbled_queue_words(t: &mut Transcript) {
    for scribble in [1, 7, 0x7fff_ffff, u32::MAX] {
        let mut ring = Ring::new(8);
        ring.set_word(ring.params.cq_off.tail, scribble);
        ring.set_word(ring.params.sq_off.head, scribble);
        ring.set_word(ring.params.sq_off.flags, scribble);
        ring.push(nop(1));
        ring.forget_pending();
        ring.enter(1, 0, 0);
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        ring.set_word(ring.params.cq_off.head, scribble);
        ring.push(nop(2));
        ring.forget_pending();
        ring.enter(1, 0, 0);
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        ring.set_word(ring.params.sq_off.tail, scribble);
        ring.enter(100, 0, 0);
        drop(ring);
    }
    t.entry(&Ring::new(4).one(nop(3)));
}
case!(scribbled_queue_words => "cqe 3: 0");

/// During the submission, another thread switches the opcodes of the SQEs between a valid and an
/// invalid one. The kernel reads each opcode once, so each request either succeeds or gets -EINVAL.
fn sqe_changes_under_submit(t: &mut Transcript) {
    let mut ring = Ring::flags(8, u::IORING_SETUP_SUBMIT_ALL);
    let place = ring.entries_address();
    let stop = AtomicBool::new(false);
    let (mut completions, mut odd) = (0, 0);
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            let mut opcode = 0u8;
            while !stop.load(Ordering::Relaxed) {
                opcode = if opcode == 0 { 200 } else { 0 };
                for slot in 0..8 {
                    // SAFETY: the address is that of an SQE's opcode. The mapping of the SQEs
                    // outlives the thread.
                    unsafe { (place as *mut u8).add(slot * 64).write_volatile(opcode) };
                }
            }
        });
        for _ in 0..2000 {
            for slot in 0..8 {
                ring.push(nop(slot));
            }
            ring.submit();
            for entry in ring.reap() {
                completions += 1;
                odd += u32::from(![0, -libc::EINVAL].contains(&entry.res));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    t.say(format_args!("completions {completions} odd answers {odd}"));
}
case!(sqe_changes_under_submit => "completions 16000 odd answers 0");

/// During the submission, another thread changes the length in a READV's vector. The kernel copies
/// the vector once, and checks and uses that copy. So the read either succeeds or gets -EINVAL.
fn vectors_change_under_submit(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(&[b'f'; 64]);
    let mut buffer = Box::new([0u8; 64]);
    let mut vectors = Box::new([vector(buffer.as_mut_ptr() as u64, 8)]);
    let place = &raw mut vectors[0].iov_len as usize;
    let stop = AtomicBool::new(false);
    let (mut completions, mut odd) = (0, 0);
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            let mut length = 8usize;
            while !stop.load(Ordering::Relaxed) {
                length = if length == 8 { usize::MAX } else { 8 };
                // SAFETY: the address is that of the vector's length. The vector outlives the
                // thread.
                unsafe { (place as *mut usize).write_volatile(length) };
            }
        });
        for _ in 0..1000 {
            let entry = ring.one(readv(file.as_raw_fd(), &vectors[..], 0, 1));
            completions += 1;
            odd += u32::from(![8, -libc::EINVAL].contains(&entry.res));
        }
        stop.store(true, Ordering::Relaxed);
    });
    t.say(format_args!("completions {completions} odd answers {odd}"));
}
case!(vectors_change_under_submit => "completions 1000 odd answers 0");

/// A pseudo-random number generator with a fixed sequence.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.next().is_multiple_of(many)
    }

    /// Returns mostly small numbers, and sometimes any number.
    fn value(&mut self) -> u64 {
        match self.next() % 6 {
            0 | 1 => 0,
            2 => self.next() % 4,
            3 => BAD + self.next() % 64,
            4 => u64::MAX - self.next() % 4,
            _ => self.next(),
        }
    }
}

/// Submits SQEs of random bits. Their operations cannot change this process. All SQEs are
/// submitted, and afterwards a new ring works.
fn random_sqes(t: &mut Transcript) {
    let mut numbers = Numbers(0x1234_5678_9abc_def1);
    let mut ring = Ring::flags(64, u::IORING_SETUP_SUBMIT_ALL);
    let opcodes = [
        opcode::NOP,
        opcode::READ,
        opcode::READV,
        opcode::WRITE,
        opcode::WRITEV,
        opcode::READ_FIXED,
        opcode::FSYNC,
        opcode::POLL_ADD,
        opcode::POLL_REMOVE,
        opcode::TIMEOUT,
        opcode::TIMEOUT_REMOVE,
        opcode::LINK_TIMEOUT,
        opcode::ASYNC_CANCEL,
        opcode::FILES_UPDATE,
        opcode::REMOVE_BUFFERS,
        opcode::FADVISE,
    ];
    let mut submitted = 0;
    for _ in 0..400 {
        for _ in 0..16 {
            let index = numbers.next() as usize % opcodes.len();
            ring.push(random_sqe(&mut numbers, opcodes[index]));
        }
        submitted += ring.submit().max(0);
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        ring.reap();
    }
    t.say(format_args!("submitted {submitted}"));
    drop(ring);
    t.entry(&Ring::new(4).one(nop(1)));
}
case!(random_sqes => "
    submitted 6400
    cqe 1: 0
");

/// Returns an SQE of random bits with this opcode. Its descriptor number is not open.
fn random_sqe(numbers: &mut Numbers, opcode: u8) -> Sqe {
    Sqe {
        opcode,
        // The mask leaves out IO_DRAIN: a drain behind a request that waits for ever would hold
        // back all later requests.
        flags: numbers.next() as u8 & numbers.next() as u8 & 0x7d,
        ioprio: if numbers.one_in(8) { numbers.next() as u16 } else { 0 },
        fd: 5000 + (numbers.next() % 10) as i32,
        off: numbers.value(),
        addr: numbers.value(),
        len: numbers.value() as u32,
        op_flags: numbers.value() as u32,
        user_data: numbers.next() % 50,
        buf_index: numbers.value() as u16,
        personality: if numbers.one_in(16) { 1 } else { 0 },
        file_index: if numbers.one_in(8) { numbers.next() as u32 } else { 0 },
        addr3: if numbers.one_in(8) { numbers.next() } else { 0 },
        pad2: 0,
    }
}

fn random_registrations(t: &mut Transcript) {
    let mut numbers = Numbers(0xfeed_1234_5678_9abc);
    let mut ring = Ring::new(8);
    let mut memory = Pages::new(1);
    for _ in 0..3000 {
        for byte in &mut memory.bytes()[..64] {
            *byte = if numbers.one_in(2) { 0 } else { numbers.next() as u8 };
        }
        let opcode = (numbers.next() % 40) as u32;
        // Skips the opcodes that would make the ring unusable in later rounds.
        if [reg::ENABLE_RINGS, reg::RESTRICTIONS, reg::RING_FDS, 33, 34].contains(&opcode) {
            continue;
        }
        let argument = match numbers.next() % 4 {
            0 => std::ptr::null(),
            1 => BAD as *const u8,
            _ => memory.address.cast_const(),
        };
        ring.register(opcode, argument, (numbers.value() % 300) as u32);
    }
    ring.register::<u8>(reg::UNREGISTER_EVENTFD, std::ptr::null(), 0);
    t.entry(&ring.one(nop(1)));
}
case!(random_registrations => "cqe 1: 0");

/// The buffer of a read lies in the ring's own memory, among the SQEs.
fn ring_memory_as_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(&[0x55; 16]);
    let place = ring.entries_address();
    // The buffer is the end of the ring's last SQE, which the seventh request after this one uses.
    t.entry(&ring.one(read_at(file.as_raw_fd(), place + 7 * 64 + 48, 16, 0, 1)));
    for user_data in 2..=9 {
        let mut byte = [0u8; 1];
        t.entry(&ring.one(read(file.as_raw_fd(), &mut byte, 0, user_data)));
    }
}
case!(ring_memory_as_buffer => "
    cqe 1: 16
    cqe 2: 1
    cqe 3: 1
    cqe 4: 1
    cqe 5: 1
    cqe 6: 1
    cqe 7: 1
    cqe 8: 1
    cqe 9: 1
");
