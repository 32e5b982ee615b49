//! Many rounds of operations whose races show only rarely, as lost wake-ups, duplicate completions
//! or lost bytes. The cases print only sums.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use usring_uapi::io_uring as u;

use crate::files;
use crate::ring::{self, Ring};
use crate::sqe::{Change, cancel, nop, poll, read, timeout, timeout_remove, write};
use crate::time::{LONG, milliseconds};
use crate::transcript::Transcript;

const ROUNDS: u8 = 200;

/// Receives bytes from `socket` and sends each back, until the end of the stream.
fn echo(socket: OwnedFd) {
    while let Ok(bytes) = files::take(&socket, 16) {
        if bytes.is_empty() || files::put(&socket, &bytes) < 0 {
            return;
        }
    }
}

/// Sends a byte by a request to a thread that echoes it, and receives it by a second request. Does
/// this `ROUNDS` times. Returns how many of the received bytes were right.
fn echoed(ring: &mut Ring, mut wait: impl FnMut(&mut Ring) -> usize) -> u32 {
    let (here, there) = files::sockets();
    let thread = std::thread::spawn(move || echo(there));
    let mut right = 0;
    for round in 0..ROUNDS {
        let mut byte = [!round];
        ring.push(read(here.as_raw_fd(), &mut byte, 0, 1));
        ring.push(write(here.as_raw_fd(), &[round], 0, 2));
        // A round ends only when both requests have completed. So their buffers stay valid until
        // then.
        let mut seen = 0;
        while seen < 2 {
            let more = wait(ring);
            if more == 0 {
                return right;
            }
            seen += more;
        }
        right += u32::from(byte == [round]);
    }
    drop(here);
    let _ = thread.join();
    right
}

fn say(t: &mut Transcript, right: u32) {
    t.say(format_args!("right {right} of {ROUNDS}"));
}

fn by_entering(ring: &mut Ring) -> usize {
    ring.submit();
    ring.wait(1).len()
}

fn ping_pong(t: &mut Transcript) {
    say(t, echoed(&mut Ring::new(8), by_entering));
}
case!(ping_pong => "right 200 of 200");

fn ping_pong_deferred(t: &mut Transcript) {
    let flags = ring::DEFER;
    say(t, echoed(&mut Ring::flags(8, flags), by_entering));
}
case!(ping_pong_deferred => "right 200 of 200");

fn ping_pong_sq_thread(t: &mut Transcript) {
    let ring = Ring::with(8, |params| {
        params.flags = u::IORING_SETUP_SQPOLL;
        params.sq_thread_idle = 1;
    });
    let mut ring = ring.expect("a ring with a thread");
    let right = echoed(&mut ring, |ring| {
        let count = ring.forget_pending();
        if ring.sq_flags() & u::IORING_SQ_NEED_WAKEUP != 0 {
            ring.enter(count, 0, u::IORING_ENTER_SQ_WAKEUP);
        }
        ring.wait(1).len()
    });
    say(t, right);
}
case!(ping_pong_sq_thread => "right 200 of 200");

fn ping_pong_watching_memory(t: &mut Transcript) {
    let right = echoed(&mut Ring::new(8), |ring| {
        ring.submit();
        let deadline = Instant::now() + Duration::from_secs(30);
        while ring.ready() == 0 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        ring.reap().len()
    });
    say(t, right);
}
case!(ping_pong_watching_memory => "right 200 of 200");

/// Four threads each write to a pipe of their own. One ring reads all four pipes.
fn several_writers(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let pipes: Vec<(OwnedFd, OwnedFd)> = (0..4).map(|_| files::pipe()).collect();
    let mut bytes = [[0u8; 1]; 4];
    let mut readers = Vec::new();
    let mut threads = Vec::new();
    for (index, (reader, writer)) in pipes.into_iter().enumerate() {
        ring.push(read(reader.as_raw_fd(), &mut bytes[index], 0, index as u64));
        readers.push(reader);
        threads.push(std::thread::spawn(move || {
            for _ in 0..ROUNDS {
                files::put(&writer, b"x");
            }
        }));
    }
    ring.submit();
    let (mut got, mut ended) = (0, 0);
    while ended < 4 {
        let entries = ring.wait(1);
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            let index = entry.user_data as usize;
            if entry.res <= 0 {
                ended += 1;
                continue;
            }
            got += entry.res;
            ring.push(read(readers[index].as_raw_fd(), &mut bytes[index], 0, entry.user_data));
        }
        ring.submit();
    }
    t.say(format_args!("bytes {got} ends {ended}"));
    for thread in threads {
        let _ = thread.join();
    }
}
case!(several_writers => "bytes 800 ends 4");

fn threads_share_a_ring(t: &mut Transcript) {
    let ring = Mutex::new(Ring::new(64));
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for number in 0..4u64 {
            let (ring, done) = (&ring, &done);
            scope.spawn(move || {
                for round in 0..u64::from(ROUNDS) {
                    let mut ring = ring.lock().expect("nobody panics");
                    let entry = ring.one(nop(number << 32 | round));
                    done.fetch_add(u32::from(entry.res == 0), Ordering::Relaxed);
                }
            });
        }
    });
    t.say(format_args!("done {}", done.load(Ordering::Relaxed)));
}
case!(threads_share_a_ring => "done 800");

/// Several threads sleep in io_uring_enter(2) on one ring. Each must wake when a CQE is posted. No
/// thread reaps before all have woken.
fn threads_wait_on_a_ring(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let fd = ring.fd;
    let mut woken = 0;
    for round in 0..20 {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                std::thread::spawn(move || {
                    let flags = u::IORING_ENTER_GETEVENTS;
                    crate::syscalls::enter(fd, 0, 1, flags, std::ptr::null(), 0)
                })
            })
            .collect();
        let time = milliseconds(2);
        ring.push(timeout(&time, 0, 0, round));
        ring.submit();
        for thread in threads {
            woken += u32::from(thread.join().is_ok_and(|answer| answer == 0));
        }
        ring.reap();
    }
    t.say(format_args!("woken {woken}"));
}
case!(threads_wait_on_a_ring => "woken 60");

/// Data and a cancel race for a waiting read. Either the read gets the byte, or the byte stays in
/// the pipe. The read and the cancel post one CQE each.
fn cancel_against_data(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    files::set_nonblocking(&reader, true);
    let (mut completions, mut wrong) = (0, 0);
    for round in 0..ROUNDS {
        let mut byte = [0u8; 1];
        ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
        ring.submit();
        std::thread::scope(|scope| {
            let writer = &writer;
            scope.spawn(move || files::put(writer, &[round]));
            ring.push(cancel(1, 0, 2));
            ring.submit();
        });
        let entries = ring.wait(2);
        completions += entries.len();
        let read = entries.iter().find(|entry| entry.user_data == 1).map_or(0, |entry| entry.res);
        let left = files::take(&reader, 4).map_or(0, |bytes| bytes.len());
        let right = if read == 1 { left == 0 && byte == [round] } else { left == 1 };
        wrong += u32::from(!right);
    }
    t.say(format_args!("completions {completions} wrong {wrong}"));
}
case!(cancel_against_data => "completions 400 wrong 0");

fn link_timeout_against_data(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    files::set_nonblocking(&reader, true);
    let (mut completions, mut wrong) = (0, 0);
    for round in 0..ROUNDS {
        let mut byte = [0u8; 1];
        let time = usring_uapi::Timespec { tv_sec: 0, tv_nsec: 100_000 };
        ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1).linked());
        ring.push(crate::sqe::link_timeout(&time, 0, 2));
        ring.submit();
        std::thread::scope(|scope| {
            let writer = &writer;
            scope.spawn(move || {
                std::thread::sleep(Duration::from_micros(100));
                files::put(writer, &[round])
            });
        });
        let entries = ring.wait(2);
        completions += entries.len();
        let read = entries.iter().find(|entry| entry.user_data == 1).map_or(0, |entry| entry.res);
        let left = files::take(&reader, 4).map_or(0, |bytes| bytes.len());
        let right = if read == 1 { left == 0 && byte == [round] } else { left == 1 };
        wrong += u32::from(!right);
    }
    t.say(format_args!("completions {completions} wrong {wrong}"));
}
case!(link_timeout_against_data => "completions 400 wrong 0");

fn timeout_against_removal(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (mut completions, mut agreeing) = (0, 0);
    for round in 0..u32::from(ROUNDS) {
        let time = usring_uapi::Timespec { tv_sec: 0, tv_nsec: i64::from(round % 7) * 20_000 };
        ring.push(timeout(&time, 0, 0, 1));
        ring.submit();
        std::thread::sleep(Duration::from_micros(u64::from(round % 5) * 20));
        ring.push(timeout_remove(1, 2));
        ring.submit();
        let entries = ring.wait(2);
        completions += entries.len();
        let answer = |user_data| entries.iter().find(|entry| entry.user_data == user_data).map_or(0, |entry| entry.res);
        let pair = (answer(1), answer(2));
        // Either the timeout is removed, or it has expired before. On Linux 6.18 it may also expire
        // during the removal (-EALREADY).
        let possible = [(-libc::ECANCELED, 0), (-libc::ETIME, -libc::ENOENT), (-libc::ETIME, -libc::EALREADY)];
        agreeing += u32::from(possible.contains(&pair));
    }
    t.say(format_args!("completions {completions} agreeing {agreeing}"));
}
case!(timeout_against_removal => "completions 400 agreeing 200");

/// Requests read a socket to which another thread writes. Meanwhile their rings are closed.
fn close_against_data(t: &mut Transcript) {
    let (reader, writer) = files::sockets();
    let stop = AtomicBool::new(false);
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let (stop, writer) = (&stop, &writer);
        scope.spawn(move || {
            files::set_nonblocking(writer, true);
            while !stop.load(Ordering::Relaxed) {
                files::put(writer, b"x");
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        for _ in 0..100 {
            let mut ring = Ring::new(8);
            let mut bytes = Box::new([[0u8; 1]; 3]);
            for (index, byte) in bytes.iter_mut().enumerate() {
                ring.push(read(reader.as_raw_fd(), byte, 0, index as u64));
            }
            ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 9));
            ring.submit();
            drop(ring);
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    t.say(format_args!("rounds {rounds}"));
}
case!(close_against_data => "rounds 100");

fn workers(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let file = files::memory_file(&[b'f'; 4096]);
    let mut buffers = vec![[0u8; 64]; 32];
    let mut right = 0;
    for _ in 0..20 {
        for (index, buffer) in buffers.iter_mut().enumerate() {
            let sqe = read(file.as_raw_fd(), buffer, index as u64 * 64, index as u64);
            ring.push(sqe.forced_async());
        }
        ring.submit();
        right += ring.wait(32).iter().filter(|entry| entry.res == 64).count();
    }
    t.say(format_args!("right {right}"));
}
case!(workers => "right 640");

/// An event loop waits on the ring's descriptor by poll(2). Another thread makes the requests
/// complete.
fn poll_loop(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let thread = std::thread::spawn(move || {
        for _ in 0..ROUNDS {
            files::put(&writer, b"x");
            std::thread::sleep(Duration::from_micros(100));
        }
    });
    let mut byte = [0u8; 1];
    let (mut got, mut empty) = (0u32, 0u32);
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    loop {
        let mut entry = libc::pollfd { fd: ring.fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: the array has one entry.
        let answer = unsafe { libc::poll(&mut entry, 1, 30_000) };
        let entries = ring.reap();
        if answer == 0 || entries.iter().any(|entry| entry.res <= 0) {
            break;
        }
        empty += u32::from(entries.is_empty());
        for entry in entries {
            got += entry.res as u32;
            ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
        }
        ring.submit();
    }
    let _ = thread.join();
    // poll(2) may wake a few times without a CQE. If it did so in most rounds, that would be a
    // fault.
    t.say(format_args!("got {got} mostly in vain {}", empty > got / 4));
}
case!(poll_loop => "got 200 mostly in vain false");

fn min_wait(t: &mut Transcript) {
    let mut slow = 0;
    for _ in 0..30 {
        let mut ring = Ring::new(8);
        let events: Vec<OwnedFd> = (0..3).map(|_| files::eventfd(0)).collect();
        for (index, event) in events.iter().enumerate() {
            ring.push(poll(event.as_raw_fd(), libc::POLLIN, index as u64));
        }
        ring.submit();
        let numbers: Vec<i32> = events.iter().map(AsRawFd::as_raw_fd).collect();
        let thread = std::thread::spawn(move || {
            for number in numbers {
                let one = 1u64;
                // SAFETY: the value has eight readable bytes. The case keeps the descriptor open.
                unsafe { libc::write(number, (&raw const one).cast(), 8) };
            }
        });
        let time = milliseconds(55_000);
        let mut argument: u::io_uring_getevents_arg = crate::memory::zeroed();
        argument.ts = &raw const time as u64;
        argument.min_wait_usec = 45_000_000;
        let flags = u::IORING_ENTER_GETEVENTS | u::IORING_ENTER_EXT_ARG;
        let start = Instant::now();
        ring.enter_with(0, 3, flags, (&raw const argument).cast(), size_of_val(&argument));
        slow += u32::from(start.elapsed() > Duration::from_secs(30));
        let _ = thread.join();
        if slow > 0 {
            break;
        }
    }
    t.say(format_args!("waits that missed the third {slow}"));
}
case!(min_wait => "waits that missed the third 0");

fn overflow_against_reaping(t: &mut Transcript) {
    let mut ring = Ring::with(8, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 8;
    })
    .expect("a ring with a small CQ");
    let (mut next, mut wrong) = (0u64, 0);
    let mut sent = 0;
    while next < 2000 {
        for _ in 0..8 {
            if sent < 2000 {
                ring.push(nop(sent));
                sent += 1;
            }
        }
        ring.submit();
        // Reaps five CQEs for each eight NOPs, so that the backlog grows.
        for _ in 0..5 {
            if let Some(entry) = ring.peek() {
                wrong += u32::from(entry.user_data != next);
                next += 1;
            }
        }
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    }
    t.say(format_args!("found {next} out of order {wrong}"));
}
case!(overflow_against_reaping => "found 2000 out of order 0");

/// A multishot poll waits for an eventfd, and a thread writes to the eventfd. Each write happens
/// after the CQE for the previous write, so each write gets its own CQE.
fn multishot_counts(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let event = files::eventfd(0);
    let armed = poll(event.as_raw_fd(), libc::POLLIN, 1);
    ring.push(armed.with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI));
    ring.push(timeout(&LONG, 0, 0, 2));
    ring.submit();
    let mut seen = 0;
    for _ in 0..ROUNDS {
        let number = event.as_raw_fd();
        let thread = std::thread::spawn(move || {
            let one = 1u64;
            // SAFETY: the value has eight readable bytes. The case keeps the descriptor open.
            unsafe { libc::write(number, (&raw const one).cast(), 8) };
        });
        let entries = ring.wait(1);
        seen += entries.len();
        let _ = thread.join();
        if entries.is_empty() {
            break;
        }
    }
    t.say(format_args!("seen {seen} of {ROUNDS}"));
}
case!(multishot_counts => "seen 200 of 200");
