//! Rights change between the submission and the completion of a request: those of its submitting
//! thread, or those of another thread. Each case runs in a forked child and needs root.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, opcode, sqe_flags};

use super::reg;
use super::rights::{self, NOBODY, Place, SECRET};
use crate::buffers::group_of;
use crate::files::{self, Fifo};
use crate::memory::Pages;
use crate::process;
use crate::ring::{Entry, Ring};
use crate::sqe::{Change, read, send, sqe, timeout};
use crate::time::milliseconds;
use crate::transcript::Transcript;

fn open_secret(place: &Place, user_data: u64) -> Sqe {
    Sqe { user_data, ..rights::open(place.fd(), SECRET, libc::O_RDONLY) }
}

fn say_last(t: &mut Transcript, what: &str, seen: &[Entry]) {
    let last = seen.iter().find(|entry| entry.user_data == 2);
    t.say(format_args!("{what}: {}", last.map_or("nothing".into(), rights::describe)));
}

/// Submits 300 opens, one after another, as user `first`, and changes to user `then` before each
/// completes. A worker executes each open. Prints how many succeed. Each open needs a new worker,
/// because a change of rights ends the workers.
fn opens_before_a_change(t: &mut Transcript, place: &Place, first: u32, then: u32) {
    let mut ring = Ring::new(8);
    let mut opened = 0;
    for _ in 0..300 {
        rights::set_file_system_user(first);
        ring.push(open_secret(place, 2).forced_async());
        ring.submit();
        rights::set_file_system_user(then);
        let entry = ring.wait(1)[0];
        opened += u32::from(entry.res >= 0);
        rights::shut(entry.res);
    }
    t.say(format_args!("{opened} opened"));
}

fn raised_after_submission(t: &mut Transcript) {
    let place = Place::new();
    rights::alone(t, |t| opens_before_a_change(t, &place, NOBODY, 0));
}
case!(raised_after_submission => "
    0 opened
    exit 0
");

fn lowered_after_submission(t: &mut Transcript) {
    let place = Place::new();
    rights::alone(t, |t| opens_before_a_change(t, &place, 0, NOBODY));
}
case!(lowered_after_submission => "
    300 opened
    exit 0
");

/// A worker executes a request with a personality. The request that is linked to it has no
/// personality, and so does not get the personality's rights.
fn behind_a_worker_of_a_personality(t: &mut Transcript) {
    let place = Place::new();
    rights::alone(t, |t| {
        let fifo = Fifo::new();
        let (reader, writer) = files::pipe();
        // The helper opens the other end of the FIFO, so that the open of the FIFO completes. It is
        // a process of its own, so its rights do not change.
        let helper = process::start(|| {
            let mut byte = [0u8; 1];
            // SAFETY: the buffer is one byte, a variable of this function.
            unsafe { libc::read(reader.as_raw_fd(), byte.as_mut_ptr().cast(), 1) };
            let _held = fifo.release();
            // SAFETY: the buffer is one byte, a variable of this function. The read returns when
            // the case writes a second byte.
            unsafe { libc::read(reader.as_raw_fd(), byte.as_mut_ptr().cast(), 1) };
            0
        });
        let mut ring = Ring::new(8);
        t.result("register", ring.register(reg::PERSONALITY, std::ptr::null::<u8>(), 0));
        rights::set_file_system_user(NOBODY);
        ring.push(fifo.open(1).with(|sqe| sqe.personality = 1).flagged(sqe_flags::IO_LINK));
        ring.push(open_secret(&place, 2));
        ring.submit();
        files::put(&writer, b"x");
        let seen = rights::seen_in_memory(&mut ring, 2);
        say_last(t, "behind it", &seen);
        files::put(&writer, b"x");
        t.say(process::ending(helper));
    });
}
case!(behind_a_worker_of_a_personality => "
    register = 1
    behind it: -EACCES
    exit 0
    exit 0
");

/// A request with a personality keeps the personality's credentials, even if the rights of its
/// submitting thread change.
fn of_a_personality(t: &mut Transcript) {
    let place = Place::new();
    rights::alone(t, |t| {
        for (first, then) in [(0, NOBODY), (NOBODY, 0)] {
            for flags in [0, sqe_flags::ASYNC] {
                rights::set_file_system_user(first);
                let mut ring = Ring::new(8);
                ring.register(reg::PERSONALITY, std::ptr::null::<u8>(), 0);
                let (reader, writer) = files::pipe();
                let mut buffer = [0u8; 1];
                ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1).flagged(sqe_flags::IO_LINK));
                ring.push(open_secret(&place, 2).with(|sqe| sqe.personality = 1).flagged(flags));
                ring.submit();
                rights::set_file_system_user(then);
                files::put(&writer, b"x");
                let seen = ring.wait(2);
                say_last(t, &format!("registered as {first}, flags {flags:#x}"), &seen);
            }
        }
    });
}
case!(of_a_personality => "
    registered as 0, flags 0x0: done
    registered as 0, flags 0x10: done
    registered as 65534, flags 0x0: -EACCES
    registered as 65534, flags 0x10: -EACCES
    exit 0
");

/// Submits a read, and `open` linked to it, as the user `user`. At that moment all threads have
/// equal rights. Then another thread changes its own rights by `change` and completes the read.
fn opens_behind_a_change(t: &mut Transcript, user: u32, open: Sqe, change: fn()) {
    for flags in [0, sqe_flags::ASYNC] {
        rights::alone(t, |t| {
            set_effective_user(user);
            let mut ring = Ring::new(8);
            let (reader, writer) = files::pipe();
            let (go, wait) = std::sync::mpsc::channel();
            let (over, hold) = std::sync::mpsc::channel::<()>();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let () = wait.recv().expect("a word");
                    change();
                    files::put(&writer, b"x");
                    let _ = hold.recv();
                });
                let mut buffer = [0u8; 1];
                ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1).flagged(sqe_flags::IO_LINK));
                ring.push(open.flagged(flags));
                ring.submit();
                go.send(()).expect("a listener");
                let seen = rights::seen_in_memory(&mut ring, 2);
                say_last(t, &format!("flags {flags:#x}"), &seen);
                drop(over);
            });
        });
    }
}
/// An open is linked to a read. Another thread gets more rights and then completes the read. The
/// open nevertheless has the rights of its submitting thread.
fn another_thread_raises_itself(t: &mut Transcript) {
    let place = Place::new();
    opens_behind_a_change(t, NOBODY, open_secret(&place, 2), || set_effective_user(0));
}
case!(another_thread_raises_itself => "
    flags 0x0: -EACCES
    exit 0
    flags 0x10: -EACCES
    exit 0
");

/// An open is linked to a read, and the process has effective capabilities. Another thread gives up
/// its rights and then completes the read. On the kernel the open succeeds nevertheless.
fn another_thread_changes_beside_capabilities(t: &mut Transcript) {
    let place = Place::new();
    opens_behind_a_change(t, 0, open_secret(&place, 2), || set_effective_user(NOBODY));
}
case!(another_thread_changes_beside_capabilities => "
    flags 0x0: done
    exit 0
    flags 0x10: done
    exit 0
", usring => "
    flags 0x0: -EAGAIN
    exit 0
    flags 0x10: -EAGAIN
    exit 0
", because "no thread keeps capabilities that a thread of the program has given up");

/// An open is linked to a read, and the process has no effective capabilities. Another thread
/// restricts itself by Landlock and then completes the read. On the kernel the open succeeds
/// nevertheless.
fn another_thread_restricts_itself(t: &mut Transcript) {
    let place = Place::new();
    let open = Sqe { user_data: 2, ..rights::open(place.fd(), c".", libc::O_RDONLY) };
    opens_behind_a_change(t, NOBODY, open, || assert_eq!(rights::restrict_by_landlock(), 0));
}
case!(another_thread_restricts_itself => "
    flags 0x0: done
    exit 0
    flags 0x10: done
    exit 0
", usring => "
    flags 0x0: -EAGAIN
    exit 0
    flags 0x10: -EAGAIN
    exit 0
", because "no thread keeps access that a thread of the program has given up");

/// Changes the effective user of this thread alone, by setresuid(2). The thread has effective
/// capabilities only while its effective user is 0.
fn set_effective_user(user: u32) {
    // SAFETY: the call touches no memory.
    unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
}

/// With PR_SET_KEEPCAPS, a change of the user keeps the permitted capabilities.
fn kept_capabilities(t: &mut Transcript) {
    let place = Place::new();
    rights::alone(t, |t| {
        let mut ring = Ring::new(8);
        rights::opens(t, &mut ring, "before", place.fd(), SECRET);
        // SAFETY: the calls touch no memory.
        unsafe {
            libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0);
            libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY);
        }
        rights::opens(t, &mut ring, "with none in force", place.fd(), SECRET);
        let header = [0x2008_0522u32, 0];
        let mut sets = [[0u32; 3]; 2];
        // SAFETY: both structures have the layouts that capget(2) and capset(2) require.
        unsafe {
            libc::syscall(libc::SYS_capget, &raw const header, &raw mut sets);
            sets.iter_mut().for_each(|half| half[0] = half[1]);
            libc::syscall(libc::SYS_capset, &raw const header, &raw const sets);
        }
        rights::opens(t, &mut ring, "with all in force", place.fd(), SECRET);
    });
}
case!(kept_capabilities => "
    before: done
    before, forced async: done
    with none in force: -EACCES
    with none in force, forced async: -EACCES
    with all in force: done
    with all in force, forced async: done
    exit 0
");

/// A new thread gets the thread id of a thread that has ended. The requests of the new thread do
/// not have the rights of the ended thread.
fn thread_with_the_id_of_another(t: &mut Transcript) {
    let place = Place::new();
    rights::alone(t, |t| {
        let mut ring = Ring::new(8);
        let thread_id = || {
            // SAFETY: the call only returns a number.
            unsafe { libc::syscall(libc::SYS_gettid) as i32 }
        };
        let first = std::thread::scope(|scope| {
            let work = || {
                rights::set_file_system_user(0);
                rights::opens(t, &mut ring, "the first", place.fd(), SECRET);
                thread_id()
            };
            scope.spawn(work).join().expect("no panic")
        });
        // The main thread gives up its rights. The threads that the case starts from here on
        // inherit its rights.
        rights::set_file_system_user(NOBODY);
        let said = std::sync::atomic::AtomicBool::new(false);
        for _ in 0..2000 {
            let next = std::fs::write("/proc/sys/kernel/ns_last_pid", (first - 1).to_string());
            next.expect("the number before the next thread's is a superuser's to choose");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if thread_id() == first {
                        rights::opens(t, &mut ring, "its successor", place.fd(), SECRET);
                        said.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            });
            if said.load(std::sync::atomic::Ordering::Relaxed) {
                return;
            }
        }
        t.say("no thread has got that number");
    });
}
case!(thread_with_the_id_of_another => "
    the first: done
    the first, forced async: done
    its successor: -EACCES
    its successor, forced async: -EACCES
    exit 0
");

/// Binds a datagram socket to the path `name` with the permissions `mode`. Returns the socket and
/// its address.
fn receiver(place: &Place, name: &str, mode: u32) -> (std::os::unix::net::UnixDatagram, libc::sockaddr_un) {
    use std::os::unix::fs::PermissionsExt;
    let path = place.path(name);
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode of our own file");
    let mut address: libc::sockaddr_un = crate::memory::zeroed();
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(path.as_os_str().as_encoded_bytes()) {
        *to = *from as libc::c_char;
    }
    (socket, address)
}

fn addressed(sqe: Sqe, address: &libc::sockaddr_un) -> Sqe {
    // A SEND has the target's address in the field `addr2`, which is another name of `off`. The
    // length of the address is in the lower half of `file_index`.
    Sqe { off: &raw const *address as u64, file_index: size_of::<libc::sockaddr_un>() as u32, ..sqe }
}

/// A thread without rights submits a message to a path to which only root may send, and the request
/// waits. A thread with root's rights then calls `make_ready`, which lets the request go on.
fn sends_later(
    t: &mut Transcript,
    ring: &mut Ring,
    submit: impl FnOnce(&mut Ring) -> u32 + Send,
    make_ready: impl Fn(),
) {
    std::thread::scope(|scope| {
        let (over, wait) = std::sync::mpsc::channel::<()>();
        let (submitted, go) = std::sync::mpsc::channel();
        scope.spawn(move || {
            rights::set_file_system_user(NOBODY);
            let count = submit(ring);
            submitted.send((ring, count)).expect("a listener");
            let _ = wait.recv();
        });
        let (ring, count) = go.recv().expect("a ring");
        make_ready();
        let seen = rights::seen_in_memory(ring, count);
        say_last(t, "sent", &seen);
        drop(over);
    });
}

fn send_polled_for_first(t: &mut Transcript) {
    let place = Place::new();
    rights::alone(t, |t| {
        let socket = files::socket(libc::AF_UNIX, libc::SOCK_DGRAM);
        let (_target, address) = receiver(&place, "target", 0o600);
        // Fills the sender's buffer with datagrams for a second receiver, which does not receive
        // them yet. So the SEND waits.
        let (other, filler) = receiver(&place, "other", 0o666);
        files::set_nonblocking(&socket, true);
        let fill = || {
            // SAFETY: the bytes and the address live until sendto(2) returns.
            unsafe {
                let (bytes, length) = ([0u8; 16384], size_of::<libc::sockaddr_un>() as u32);
                libc::sendto(
                    socket.as_raw_fd(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    0,
                    (&raw const filler).cast(),
                    length,
                )
            }
        };
        while fill() > 0 {}
        files::set_nonblocking(&socket, false);
        let sent = addressed(send(socket.as_raw_fd(), b"message", 2), &address);
        let submit = |ring: &mut Ring| {
            ring.push(sent.with(|sqe| sqe.ioprio = 1));
            ring.submit();
            1
        };
        let drain = || {
            other.set_nonblocking(true).expect("a flag");
            while other.recv(&mut [0u8; 16384]).is_ok() {}
        };
        sends_later(t, &mut Ring::new(8), submit, drain);
    });
}
case!(send_polled_for_first => "
    sent: -EACCES
    exit 0
");

fn send_of_a_selected_buffer(t: &mut Transcript) {
    let place = Place::new();
    rights::alone(t, |t| {
        let socket = files::socket(libc::AF_UNIX, libc::SOCK_DGRAM);
        let (_target, address) = receiver(&place, "target", 0o600);
        let mut ring = Ring::new(8);
        let memory = Pages::new(1);
        let mut group = group_of(&ring, &memory, 8, 7);
        group.add_slots(0..2);
        let sent = addressed(Sqe { len: 8, ..sqe(opcode::SEND, socket.as_raw_fd(), 2) }, &address);
        let time = milliseconds(20);
        let time = &time;
        let submit = move |ring: &mut Ring| {
            ring.push(timeout(time, 0, 0, 1).flagged(sqe_flags::IO_HARDLINK));
            ring.push(sent.with(|sqe| sqe.buf_index = 7).flagged(sqe_flags::BUFFER_SELECT));
            ring.submit();
            2
        };
        sends_later(t, &mut ring, submit, || {});
    });
}
case!(send_of_a_selected_buffer => "
    sent: -EACCES
    exit 0
");

/// A thread changes its rights back and forth, while the ring always has a waiting request. Each
/// request of the thread has the rights that the thread had at the submission. At the end, the
/// process must not have kept a thread for each change.
fn changes_while_requests_wait(t: &mut Transcript) {
    let place = Place::new();
    rights::alone(t, |t| {
        let mut ring = Ring::new(8);
        let (reader, _writer) = files::pipe();
        let mut buffer = [0u8; 1];
        ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1));
        ring.submit();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut answers = std::collections::BTreeMap::new();
                for (user, flags) in
                    [(NOBODY, 0), (0, sqe_flags::ASYNC), (NOBODY, sqe_flags::ASYNC), (0, 0)].repeat(100)
                {
                    rights::set_file_system_user(user);
                    let entry = ring.one(open_secret(&place, 2).flagged(flags));
                    *answers.entry((user, flags, rights::describe(&entry))).or_insert(0) += 1;
                    rights::shut(entry.res);
                }
                for ((user, flags, answer), count) in answers {
                    t.say(format_args!("user {user}, flags {flags:#x}: {answer}, {count} times"));
                }
                let few = || std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() < 40);
                t.say(format_args!("few threads: {}", crate::time::until(few)));
            });
        });
    });
}
case!(changes_while_requests_wait => "
    user 0, flags 0x0: done, 100 times
    user 0, flags 0x10: done, 100 times
    user 65534, flags 0x0: -EACCES, 100 times
    user 65534, flags 0x10: -EACCES, 100 times
    few threads: true
    exit 0
");

/// Children are forked while another thread changes its rights again and again. Each child has
/// root's rights, so it can open the file.
fn forked_during_a_change(t: &mut Transcript) {
    const CHILDREN: u32 = 300;
    let place = Place::new();
    rights::alone(t, |t| {
        // The process has a ring, so usring's threads follow each change of rights.
        let ring = Ring::new(8);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let opens = || {
            let entry = Ring::new(8).one(open_secret(&place, 2).forced_async());
            i32::from(entry.res < 0)
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    rights::set_file_system_user(NOBODY);
                    rights::set_file_system_user(0);
                }
            });
            let opened = (0..CHILDREN).filter(|_| process::forked(opens) == "exit 0").count();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            t.say(format_args!("{opened} children have opened"));
        });
        drop(ring);
    });
}
case!(forked_during_a_change => "
    300 children have opened
    exit 0
");

/// A child of a raw fork(2) starts a thread before it makes its first ring. That thread changes its
/// file system user. Its requests on the ring have the changed user.
fn thread_of_a_child_before_its_first_ring(t: &mut Transcript) {
    let place = Place::new();
    rights::alone(t, |t| {
        let ring = Ring::new(8);
        // SAFETY: the child has only the calling thread, and goes on with it.
        let child = unsafe { libc::syscall(libc::SYS_fork) } as i32;
        if child != 0 {
            t.say(process::ending(child));
            return drop(ring);
        }
        std::mem::forget(ring);
        let (made, ready) = std::sync::mpsc::channel::<Ring>();
        std::thread::scope(|scope| {
            let place = &place;
            scope.spawn(move || {
                rights::set_file_system_user(NOBODY);
                let mut ring = ready.recv().expect("a ring");
                rights::opens(t, &mut ring, "restricted", place.fd(), SECRET);
            });
            let first = Ring::new(8);
            made.send(first).expect("a listener");
        });
        // SAFETY: the call ends the child.
        unsafe { libc::_exit(0) };
    });
}
case!(thread_of_a_child_before_its_first_ring => "
    restricted: -EACCES
    restricted, forced async: -EACCES
    exit 0
    exit 0
");
