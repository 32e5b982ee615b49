//! Rings that several processes use: a process gets only the ring's descriptor, over execve(2) or
//! by pidfd_getfd(2). It gets neither the ring's memory nor its mapping.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use usring_uapi::io_uring as u;

use super::exec::become_child;
use super::inherited_memory::descriptor_of;
use super::reg;
use crate::files;
use crate::ring::{DEFER, Params, Ring};
use crate::shared::{self, Kind, Shared};
use crate::sqe::{Change, nop, poll, read, read_at, timeout};
use crate::syscalls;
use crate::time::LONG;
use crate::transcript::Transcript;

/// Entries of each ring here.
const ENTRIES: u32 = 8;

/// Runs the part of an executed program. `argument`: the ring's descriptor, its setup flags, a
/// descriptor to which the program writes, another from which it reads, and the steps as letters.
/// Returns 0, or the number of the first step that failed.
pub fn program(argument: &str) -> Option<u8> {
    let words: Vec<&str> = argument.split(' ').collect();
    let [fd, flags, begun, end, steps] = words[..] else { return None };
    let number = |word: &str| word.parse::<i32>().ok();
    let (fd, flags, begun, end) = (number(fd)?, number(flags)? as u32, number(begun)?, number(end)?);
    // A ring of this program's own shows where a ring has its words.
    let params = Ring::flags(ENTRIES, flags).params;
    let mut ring = Ring::mapped(fd, params);
    for (index, step) in steps.bytes().enumerate() {
        let mut byte = 0u8;
        let succeeded = match step {
            b'n' => {
                ring.catch_up();
                ring.one(nop(7)).res == 0
            }
            // The ring has three CQEs, and no call is needed to see them.
            b'c' => {
                let cancelled = |entry: &crate::ring::Entry| entry.res == -libc::ECANCELED;
                let entries = ring.reap();
                entries.len() == 3 && entries.iter().all(cancelled)
            }
            // Runs the task work of a ring that defers it.
            b'g' => ring.enter(0, 0, u::IORING_ENTER_GETEVENTS) == 0,
            // Reads a byte of the registered file in slot 0.
            b'f' => {
                let mut byte = [0u8];
                ring.one(read(0, &mut byte, 0, 8).fixed()).res == 1 && byte == *b"a"
            }
            b'k' => {
                let child = shared::child(|| {
                    ring.catch_up();
                    i32::from(ring.one(nop(9)).res != 0)
                });
                let ended = crate::process::ending(child) == "exit 0";
                ring.catch_up();
                ended
            }
            // SAFETY: the buffer has one byte.
            b'w' => unsafe { libc::write(begun, (&raw const byte).cast(), 1) == 1 },
            // SAFETY: the buffer has one byte.
            b'r' => unsafe { libc::read(end, (&raw mut byte).cast(), 1) >= 0 },
            b'x' => {
                let rest = &steps[index + 1..];
                become_child("reach", &format!("{fd} {flags} {begun} {end} {rest}")) == 0
            }
            _ => false,
        };
        if !succeeded {
            return Some(1 + index as u8);
        }
    }
    ring.abandon();
    Some(0)
}

/// The pipes by which a case and an executed program wait for each other.
struct Steps {
    begun: (OwnedFd, OwnedFd),
    end: (OwnedFd, OwnedFd),
}

impl Steps {
    fn new() -> Steps {
        let steps = Steps { begun: files::pipe(), end: files::pipe() };
        keep_on_exec(steps.begun.1.as_raw_fd());
        keep_on_exec(steps.end.0.as_raw_fd());
        steps
    }

    /// Executes this program with these steps, on the ring of the descriptor `fd`. Returns only if
    /// that fails.
    fn execute(&self, fd: i32, flags: u32, letters: &str) -> i32 {
        let (begun, end) = (self.begun.1.as_raw_fd(), self.end.0.as_raw_fd());
        become_child("reach", &format!("{fd} {flags} {begun} {end} {letters}"))
    }

    fn wait(&self) {
        assert!(
            files::is_readable_within(self.begun.0.as_raw_fd(), std::time::Duration::from_secs(30)),
            "the program takes no step"
        );
        assert_eq!(files::take(&self.begun.0, 1).map(|bytes| bytes.len()), Ok(1));
    }

    fn go_on(&self) {
        files::put(&self.end.1, b"x");
    }
}

fn keep_on_exec(fd: i32) {
    // SAFETY: the call touches no memory.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
}

/// A child executes a program that uses its parent's ring. Parent and program take turns.
fn program_and_parent_take_turns(t: &mut Transcript) {
    let mut ring = Ring::new(ENTRIES);
    let steps = Steps::new();
    keep_on_exec(ring.fd);
    t.entry(&ring.one(nop(1)));
    let child = shared::child(|| steps.execute(ring.fd, 0, "nnwrnwr"));
    for number in 2..4 {
        steps.wait();
        ring.catch_up();
        t.entry(&ring.one(nop(number)));
        steps.go_on();
    }
    shared::ended(t, child);
    ring.catch_up();
    t.entry(&ring.one(nop(4)));
}
case!(program_and_parent_take_turns => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    child: exit 0
    cqe 4: 0
");

/// The ring's only process executes a program. The kernel cancels its requests, and the program
/// finds their CQEs in the CQ.
fn maker_becomes_the_program(t: &mut Transcript) {
    let (reader, _writer) = files::pipe();
    let steps = Steps::new();
    for flags in [0, u::IORING_SETUP_SINGLE_ISSUER, DEFER, u::IORING_SETUP_COOP_TASKRUN] {
        let child = shared::child(|| {
            let mut ring = Ring::flags(ENTRIES, flags);
            let mut byte = [0u8];
            ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
            ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 2));
            ring.push(timeout(&LONG, 0, 0, 3));
            ring.submit();
            keep_on_exec(ring.fd);
            steps.execute(ring.fd, flags, if flags == DEFER { "gcn" } else { "cn" })
        });
        t.say(format_args!("flags {flags:#x}"));
        shared::ended(t, child);
    }
}
case!(maker_becomes_the_program => "
    flags 0x0
    child: exit 0
    flags 0x1000
    child: exit 0
    flags 0x3000
    child: exit 0
    flags 0x100
    child: exit 0
");

/// Only a copy of the ring's descriptor, made by dup(2), stays open.
fn copy_reaches_the_program(t: &mut Transcript) {
    let ring = Ring::new(ENTRIES);
    let steps = Steps::new();
    for low in [false, true] {
        let child = shared::child(|| {
            // SAFETY: the calls touch no memory.
            let copy = unsafe { if low { libc::dup2(ring.fd, 100) } else { libc::dup(ring.fd) } };
            steps.execute(copy, 0, "nn")
        });
        shared::ended(t, child);
    }
}
case!(copy_reaches_the_program => "
    child: exit 0
    child: exit 0
");

/// The process that made the ring ends. The program that its child has executed still uses the
/// ring.
fn program_goes_on_after_the_maker(t: &mut Transcript) {
    // SAFETY: the call only makes this process the new parent of orphans.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    let shared = Shared::new();
    let steps = Steps::new();
    let maker = shared::child(|| {
        let mut ring = Ring::new(ENTRIES);
        keep_on_exec(ring.fd);
        let child = shared::child(|| steps.execute(ring.fd, 0, "nwrnkn"));
        shared.word(0).store(child as u32, Ordering::SeqCst);
        steps.wait();
        ring.abandon();
        0
    });
    shared::ended(t, maker);
    steps.go_on();
    shared::ended(t, shared.word(0).load(Ordering::SeqCst) as i32);
}
case!(program_goes_on_after_the_maker => "
    child: exit 0
    child: exit 0
");

fn program_uses_registered_files(t: &mut Transcript) {
    let mut ring = Ring::new(ENTRIES);
    let steps = Steps::new();
    keep_on_exec(ring.fd);
    let file = files::memory_file(b"a");
    t.result("register", ring.register(reg::FILES, &file.as_raw_fd(), 1));
    drop(file);
    let child = shared::child(|| steps.execute(ring.fd, 0, "fn"));
    shared::ended(t, child);
    ring.catch_up();
    t.entry(&ring.one(nop(1)));
}
case!(program_uses_registered_files => "
    register = 0
    child: exit 0
    cqe 1: 0
");

/// The ring's only process registers a file, and then executes a program.
fn maker_leaves_registered_files(t: &mut Transcript) {
    let steps = Steps::new();
    let child = shared::child(|| {
        let ring = Ring::new(ENTRIES);
        let file = files::memory_file(b"a");
        assert_eq!(ring.register(reg::FILES, &file.as_raw_fd(), 1), 0);
        keep_on_exec(ring.fd);
        steps.execute(ring.fd, 0, "fnk")
    });
    shared::ended(t, child);
}
case!(maker_leaves_registered_files => "child: exit 0");

/// The ring reaches a program that executes another one, and its child.
fn ring_reaches_the_second_program(t: &mut Transcript) {
    let mut ring = Ring::new(ENTRIES);
    let steps = Steps::new();
    keep_on_exec(ring.fd);
    let child = shared::child(|| steps.execute(ring.fd, 0, "xxnkxkn"));
    shared::ended(t, child);
    ring.catch_up();
    t.entry(&ring.one(nop(1)));
}
case!(ring_reaches_the_second_program => "
    child: exit 0
    cqe 1: 0
");

/// A call of execve(2) fails, and the process goes on. The next call succeeds.
fn exec_fails_first(t: &mut Transcript) {
    let ring = Ring::new(ENTRIES);
    let steps = Steps::new();
    keep_on_exec(ring.fd);
    let child = shared::child(|| {
        let mut ring = ring;
        for _ in 0..3 {
            let arguments = [std::ptr::null()];
            // SAFETY: the path is a C string, the arguments an array that ends with null.
            assert_eq!(unsafe { libc::execv(c"/missing/file".as_ptr(), arguments.as_ptr()) }, -1);
            t.entry(&ring.one(nop(1)));
        }
        steps.execute(ring.fd, 0, "n")
    });
    shared::ended(t, child);
}
case!(exec_fails_first => "
    cqe 1: 0
    cqe 1: 0
    cqe 1: 0
    child: exit 0
");

/// A child by vfork(2), made by the standard library, executes a program that uses the ring.
fn spawned_program_uses_the_ring(t: &mut Transcript) {
    let mut ring = Ring::new(ENTRIES);
    keep_on_exec(ring.fd);
    let program = std::env::current_exe().expect("this program has a path");
    for _ in 0..2 {
        let argument = format!("{} 0 -1 -1 nn", ring.fd);
        let ended = std::process::Command::new(&program).args(["child", "reach", &argument]).status();
        t.say(format_args!("child: {:?}", ended.map(|status| status.code()).ok().flatten()));
        ring.catch_up();
        t.entry(&ring.one(nop(1)));
    }
}
case!(spawned_program_uses_the_ring => "
    child: Some(0)
    cqe 1: 0
    child: Some(0)
    cqe 1: 0
");

/// A child makes a ring, announces step 1, and goes on with `work`.
struct Maker {
    shared: Shared,
    process: i32,
}

impl Maker {
    fn start(work: impl FnOnce(&mut Ring, &Shared) -> i32) -> Maker {
        let shared = Shared::new();
        let parameters = shared.slot(8) as *mut Params;
        let process = shared::child(|| {
            let mut ring = Ring::new(ENTRIES);
            // SAFETY: the slots are in the shared memory. The parent reads them only after step 1.
            unsafe { parameters.write(ring.params) };
            shared.word(0).store(ring.fd as u32, Ordering::SeqCst);
            work(&mut ring, &shared)
        });
        shared.until_step(1);
        Maker { shared, process }
    }

    /// Gets the child's ring, and maps it.
    fn ring(&self) -> Ring {
        let fd = descriptor_of(self.process, self.shared.word(0).load(Ordering::SeqCst) as i32);
        // SAFETY: the child has written the parameters before step 1.
        let parameters = unsafe { (self.shared.slot(8) as *const Params).read() };
        Ring::mapped(std::os::fd::IntoRawFd::into_raw_fd(fd), parameters)
    }
}

/// The child sleeps in enter when the parent gets the ring and submits.
fn maker_waits_for_the_other_process(t: &mut Transcript) {
    let maker = Maker::start(|ring, shared| {
        t.entry(&ring.one(nop(1)));
        shared.step(1);
        t.in_order(&ring.wait(1));
        0
    });
    crate::time::long_enough_to_begin();
    let mut ring = maker.ring();
    ring.push(nop(2));
    assert_eq!(ring.submit(), 1);
    shared::ended(t, maker.process);
    ring.catch_up();
    t.entry(&ring.one(nop(3)));
}
case!(maker_waits_for_the_other_process => "
    cqe 1: 0
    cqe 2: 0
    child: exit 0
    cqe 3: 0
");

/// The parent sleeps in enter when the child submits.
fn other_process_waits_for_the_maker(t: &mut Transcript) {
    let maker = Maker::start(|ring, shared| {
        shared.step(1);
        shared.until_step(2);
        crate::time::long_enough_to_begin();
        ring.push(nop(1));
        i32::from(ring.submit() != 1)
    });
    let mut ring = maker.ring();
    maker.shared.step(2);
    t.in_order(&ring.wait(1));
    shared::ended(t, maker.process);
}
case!(other_process_waits_for_the_maker => "
    cqe 1: 0
    child: exit 0
");

/// Both processes submit at the same time.
fn both_submit(t: &mut Transcript) {
    const ROUNDS: usize = 200;
    let rounds = |ring: &mut Ring, shared: &Shared| {
        for _ in 0..ROUNDS {
            shared.exclusively(|| {
                ring.catch_up();
                assert_eq!(ring.one(nop(5)).user_data, 5);
            });
        }
    };
    let maker = Maker::start(|ring, shared| {
        shared.step(1);
        rounds(ring, shared);
        shared.until_step(2);
        0
    });
    let mut ring = maker.ring();
    rounds(&mut ring, &maker.shared);
    maker.shared.step(2);
    shared::ended(t, maker.process);
    ring.catch_up();
    t.entry(&ring.one(nop(1)));
}
case!(both_submit => "
    child: exit 0
    cqe 1: 0
");

/// The child is killed while a read of its own is in flight. The parent goes on.
fn maker_is_killed(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let maker = Maker::start(|ring, shared| {
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.submit();
        shared.step(1);
        shared.until_step(2);
        0
    });
    let mut ring = maker.ring();
    t.entry(&ring.one(nop(2)));
    shared::kill(t, maker.process);
    files::put(&writer, b"data");
    t.in_order(&ring.wait(1));
    t.entry(&ring.one(nop(3)));
    shared::run_child(t, |t| {
        ring.catch_up();
        t.entry(&ring.one(nop(4)));
    });
    ring.catch_up();
    t.entry(&ring.one(nop(5)));
}
case!(maker_is_killed => "
    cqe 2: 0
    child: signal 9
    cqe 1: -ECANCELED
    cqe 3: 0
    cqe 4: 0
    child: exit 0
    cqe 5: 0
");

/// The parent uses files that the child has registered, and registers others.
fn registered_files_of_the_other_process(t: &mut Transcript) {
    let show = |t: &mut Transcript, ring: &mut Ring| {
        let mut byte = [b'-'; 1];
        let entry = ring.one(read(0, &mut byte, 0, 1).fixed());
        t.say(format_args!("{entry} {}", byte[0] as char));
    };
    let maker = Maker::start(|ring, shared| {
        let file = files::memory_file(b"a");
        ring.register(reg::FILES, &file.as_raw_fd(), 1);
        shared.step(1);
        shared.until_step(2);
        ring.catch_up();
        show(t, ring);
        0
    });
    let mut ring = maker.ring();
    show(t, &mut ring);
    t.result("remove", ring.register(reg::UNREGISTER_FILES, std::ptr::null::<i32>(), 0));
    let file = files::memory_file(b"b");
    t.result("register", ring.register(reg::FILES, &file.as_raw_fd(), 1));
    drop(file);
    maker.shared.step(2);
    shared::ended(t, maker.process);
}
case!(registered_files_of_the_other_process => "
    1: 1 a
    remove = 0
    register = 0
    1: 1 b
    child: exit 0
");

/// A process gets several duplicates of one ring's descriptor, also of its own ring.
fn several_duplicates(t: &mut Transcript) {
    let mut own = Ring::new(ENTRIES);
    let own_number = own.fd;
    let maker = Maker::start(|ring, shared| {
        ring.push(nop(1));
        shared.step(1);
        shared.until_step(2);
        0
    });
    let [mut first, mut second] = [maker.ring(), maker.ring()];
    t.result("enter", first.enter(1, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&first.reap());
    second.catch_up();
    t.entry(&second.one(nop(2)));
    t.result("close", syscalls::close(first.fd));
    t.entry(&second.one(nop(3)));
    // SAFETY: the call touches no memory.
    let itself = unsafe { libc::getpid() };
    for process in [maker.process, itself] {
        let copy = descriptor_of(process, own_number);
        own.push(nop(4));
        t.result("enter", syscalls::enter(copy.as_raw_fd(), 1, 0, 0, std::ptr::null(), 0));
        own.forget_pending();
        t.in_order(&own.reap());
    }
    maker.shared.step(2);
    shared::ended(t, maker.process);
    first.abandon();
}
case!(several_duplicates => "
    enter = 1
    cqe 1: 0
    cqe 2: 0
    close = 0
    cqe 3: 0
    enter = 1
    cqe 4: 0
    enter = 1
    cqe 4: 0
    child: exit 0
");

/// A process gets the ring again after it has closed its only descriptor of it.
fn ring_is_got_again(t: &mut Transcript) {
    let maker = Maker::start(|_, shared| {
        shared.step(1);
        shared.until_step(2);
        0
    });
    for number in 0..20 {
        let mut ring = maker.ring();
        let entry = ring.one(nop(number));
        assert_eq!((entry.user_data, entry.res), (number, 0));
        ring.unmap();
        assert_eq!(syscalls::close(ring.fd), 0);
        ring.abandon();
    }
    maker.shared.step(2);
    shared::ended(t, maker.process);
}
case!(ring_is_got_again => "child: exit 0");

/// A process closes the duplicate without a call on the ring. Its own descriptors do not grow in
/// number.
fn duplicate_is_not_used(t: &mut Transcript) {
    let _own = Ring::new(ENTRIES);
    let maker = Maker::start(|_, shared| {
        shared.step(1);
        shared.until_step(2);
        0
    });
    let number = maker.shared.word(0).load(Ordering::SeqCst) as i32;
    drop(descriptor_of(maker.process, number));
    let before = files::open_numbers();
    (0..50).for_each(|_| drop(descriptor_of(maker.process, number)));
    t.say(format_args!("numbers stay {}", files::open_numbers() <= before));
    maker.shared.step(2);
    shared::ended(t, maker.process);
}
case!(duplicate_is_not_used => "
    numbers stay true
    child: exit 0
");

/// Both processes have made rings of their own before one gets the other's.
fn both_have_rings_of_their_own(t: &mut Transcript) {
    let maker = Maker::start(|ring, shared| {
        t.entry(&ring.one(nop(1)));
        shared.step(1);
        shared.until_step(2);
        0
    });
    let mut own = Kind::Mapped.ring(ENTRIES, 0);
    t.entry(&own.one(nop(2)));
    let mut ring = maker.ring();
    t.entry(&ring.one(nop(3)));
    t.entry(&own.one(nop(4)));
    maker.shared.step(2);
    shared::ended(t, maker.process);
}
case!(both_have_rings_of_their_own => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    child: exit 0
");
