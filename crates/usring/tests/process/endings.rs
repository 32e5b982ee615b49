//! Rings that are dropped, and processes that end, with requests in flight.

use crate::alone_and_bounded;
use crate::support::*;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use usring::{IoUring, opcode, squeue, types};

#[test]
fn a_dropped_ring_reads_nothing_more() {
    alone_and_bounded(|| {
        for flags in [squeue::Flags::empty(), squeue::Flags::ASYNC] {
            for round in 0..20 {
                let (reader, writer) = pipe();
                let mut buffers = vec![[0u8; 4]; 8];
                let mut ring = IoUring::new(8).unwrap();
                let entries: Vec<_> = buffers.iter_mut().map(|buffer| read(&reader, buffer).flags(flags)).collect();
                submit(&mut ring, &entries);
                if round % 2 == 0 {
                    stays_quiet(&mut ring);
                }
                drop(ring);
                put(&writer, b"data");
                assert_eq!(get(&reader, 100), b"data");
                assert!(std::hint::black_box(buffers).iter().all(|buffer| *buffer == [0; 4]));
            }
        }
    });
}

#[test]
fn a_dropped_ring_writes_nothing_more() {
    alone_and_bounded(|| {
        for _ in 0..10 {
            let file = file_with(b"");
            let target = types::Fd(file.as_raw_fd());
            let mut source = vec![b'a'; 1 << 20];
            let mut ring = IoUring::new(16).unwrap();
            let entries: Vec<_> = (0..16)
                .map(|index| {
                    let write = opcode::Write::new(target, source.as_ptr(), 1 << 20).offset(index << 20).build();
                    write.flags(squeue::Flags::ASYNC)
                })
                .collect();
            submit(&mut ring, &entries);
            drop(ring);
            let length = file.metadata().unwrap().len();
            source.fill(b'b');
            let mut content = vec![0; length as usize];
            file.read_exact_at(&mut content, 0).unwrap();
            assert!(!content.contains(&b'b'));
            assert_eq!(file.metadata().unwrap().len(), length);
        }
    });
}

#[test]
fn a_ring_with_everything_in_flight_is_dropped_at_once() {
    alone_and_bounded(|| {
        let far = timespec(Duration::from_secs(1000));
        let ((reader, _writer), fifo) = (pipe(), Fifo::new());
        for round in 0..60 {
            let mut builder = IoUring::builder();
            match round % 3 {
                0 => &mut builder,
                1 => builder.setup_single_issuer().setup_defer_taskrun(),
                _ => builder.setup_sqpoll(5),
            };
            let mut ring: IoUring = builder.build(16).unwrap();
            let mut buffers = [[0; 4]; 2];
            let [first, second] = &mut buffers;
            let entries = [
                read(&reader, first).flags(squeue::Flags::IO_LINK),
                read(&reader, second),
                fifo.open(),
                fifo.open().flags(squeue::Flags::IO_LINK),
                opcode::LinkTimeout::new(&far).build(),
                opcode::Timeout::new(&far).flags(types::TimeoutFlags::MULTISHOT).build(),
                opcode::Timeout::new(&far).count(100).build(),
                opcode::PollAdd::new(types::Fd(reader.as_raw_fd()), libc::POLLIN as u32).multi(true).build(),
                nop(1).flags(squeue::Flags::IO_DRAIN),
                nop(2),
            ];
            push(&mut ring, &entries);
            ring.submit().unwrap();
            push(&mut ring, &[nop(3)]);
            if round % 2 == 0 {
                // A thread other than the single issuer drops the ring.
                std::thread::spawn(move || drop(ring)).join().unwrap();
            } else {
                drop(ring);
            }
        }
    });
}

#[test]
fn a_chain_as_long_as_the_queue_is_dropped() {
    alone_and_bounded(|| {
        let (reader, _writer) = pipe();
        let mut buffer = [0; 4];
        let mut ring = IoUring::new(32_768).unwrap();
        let mut entries = vec![nop(1).flags(squeue::Flags::IO_LINK); 32_768];
        entries[0] = read(&reader, &mut buffer).flags(squeue::Flags::IO_LINK);
        submit(&mut ring, &entries);
        drop(ring);
    });
}

#[test]
fn a_chain_stops_when_its_ring_is_dropped() {
    alone_and_bounded(|| {
        let (fifo, file) = (Fifo::new(), file_with(b""));
        for round in 0..40 {
            let mut ring = IoUring::new(8).unwrap();
            let chain = [fifo.open().flags(squeue::Flags::IO_HARDLINK), write(&file, b"never")];
            submit(&mut ring, &chain);
            if round % 2 == 0 {
                // The wait lets a worker take the request.
                stays_quiet(&mut ring);
            }
            drop(ring);
        }
        fifo.release();
        assert_eq!(file.metadata().unwrap().len(), 0);
    });
}

/// Environment variable with the name of the part that this executable plays. A test sets it when
/// it starts the executable again.
const PART: &str = "USRING_TEST_PART";

/// Returns a command that starts this executable again to play the part `part`.
fn play(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "endings::body_of_the_child_process", "--nocapture", "--test-threads=1"]).env(PART, part);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Runs this executable in the part `part`, within the time limit. Returns its exit status.
#[track_caller]
fn end_of(part: &str) -> ExitStatus {
    let mut process = play(part).spawn().unwrap();
    let end = Instant::now() + TIMEOUT / 2;
    while process.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            let _ = process.kill();
            let _ = process.wait();
            panic!("{part}: the process hangs");
        }
        std::thread::yield_now();
    }
    process.wait().unwrap()
}

/// The code of the processes that `play` starts. In any other process the environment variable is
/// missing, and the test does nothing.
#[test]
fn body_of_the_child_process() {
    let Ok(part) = std::env::var(PART) else { return };
    let ((reader, _writer), fifo) = (pipe(), Fifo::new());
    let buffer = Box::leak(Box::new([0; 4]));
    let mut ring: IoUring = match part.as_str() {
        "exit-polled" => IoUring::builder().setup_sqpoll(5).build(8).unwrap(),
        _ => IoUring::new(8).unwrap(),
    };
    let far = timespec(Duration::from_secs(1000));
    let entries = [read(&reader, buffer), fifo.open(), opcode::Timeout::new(&far).build()];
    push(&mut ring, &entries);
    ring.submit().unwrap();
    match part.as_str() {
        "exit" | "exit-polled" => std::process::exit(7),
        "abort" => std::process::abort(),
        "exec" => panic!("{}", Command::new("/bin/sh").args(["-c", "exit 8"]).exec()),
        "kill" => {
            // SAFETY: the call names no memory.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        "fault" => {
            // SAFETY: none. The write is the fault of a faulty program, which must end with
            // SIGSEGV.
            unsafe { std::ptr::without_provenance_mut::<u8>(16).write_volatile(1) };
        }
        "overflow" => drop(std::thread::spawn(|| overflow_stack(0)).join()),
        other => panic!("{other}?"),
    }
}

#[expect(unconditional_recursion, reason = "overflowing the stack is what it is for")]
fn overflow_stack(depth: u64) -> u64 {
    let room = std::hint::black_box([depth; 64]);
    overflow_stack(depth + 1) + room[depth as usize % 64]
}

#[test]
fn a_process_ends_with_requests_in_flight() {
    let _turn = crate::alone();
    assert_eq!(end_of("exit").code(), Some(7));
    assert_eq!(end_of("exit-polled").code(), Some(7));
    assert_eq!(end_of("exec").code(), Some(8));
    assert_eq!(end_of("abort").signal(), Some(libc::SIGABRT));
    assert_eq!(end_of("kill").signal(), Some(libc::SIGKILL));
}

#[test]
fn a_fault_of_the_program_still_raises_sigsegv() {
    let _turn = crate::alone();
    assert_eq!(end_of("fault").signal(), Some(libc::SIGSEGV));
    assert_eq!(end_of("overflow").signal(), Some(libc::SIGABRT), "Rust's own handler tells of it");
}
