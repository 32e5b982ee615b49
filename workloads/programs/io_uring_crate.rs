//! A program that uses the `io-uring` crate as Rust projects do: reads, writes, links, timeouts,
//! polls, and one thread that submits while another reaps. If all results are right, it prints a
//! line and exits with 0.

use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::fs::File;
use std::io::{Error, PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
const ROUNDS: usize = 50;

fn main() {
    let checks: [(&str, fn()); 5] = [
        ("probe", the_probe_names_what_is_used),
        ("file", a_file_holds_what_was_written),
        ("registered", registered_files_and_buffers_serve),
        ("pipe", a_read_is_bounded_by_its_timeout),
        ("halves", both_halves_may_be_used_apart),
    ];
    for (name, check) in checks {
        check();
        println!("{name}: holds");
    }
}

fn the_probe_names_what_is_used() {
    let ring = IoUring::new(8).expect("a ring");
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).expect("a probe");
    for code in [opcode::Read::CODE, opcode::Write::CODE, opcode::Timeout::CODE, opcode::AsyncCancel::CODE] {
        assert!(probe.is_supported(code), "opcode {code}");
    }
}

fn a_file_holds_what_was_written() {
    let mut ring = IoUring::builder().setup_single_issuer().setup_coop_taskrun().build(BLOCKS as u32).expect("a ring");
    let file = unnamed_file();
    let fd = types::Fd(file.as_raw_fd());
    for round in 0..ROUNDS {
        let blocks: Vec<[u8; BLOCK]> = (0..BLOCKS).map(|index| [(round + index) as u8; BLOCK]).collect();
        for (index, block) in blocks.iter().enumerate() {
            let write = opcode::Write::new(fd, block.as_ptr(), BLOCK as u32).offset((index * BLOCK) as u64).build();
            push(&mut ring, write.user_data(index as u64));
        }
        assert_eq!(ring.submit_and_wait(BLOCKS).expect("submission"), BLOCKS);
        take(&mut ring, BLOCKS, BLOCK as i32);
        let mut found = vec![[0_u8; BLOCK]; BLOCKS];
        for (index, block) in found.iter_mut().enumerate() {
            let read = opcode::Read::new(fd, block.as_mut_ptr(), BLOCK as u32).offset((index * BLOCK) as u64).build();
            push(&mut ring, read.user_data(index as u64));
        }
        assert_eq!(ring.submit_and_wait(BLOCKS).expect("submission"), BLOCKS);
        take(&mut ring, BLOCKS, BLOCK as i32);
        assert!(found == blocks, "round {round}: read something else than was written");
    }
}

fn registered_files_and_buffers_serve() {
    let mut ring: IoUring = IoUring::builder().setup_sqpoll(100).build(8).expect("a ring with an SQ thread");
    let file = unnamed_file();
    let mut buffers = [vec![7_u8; BLOCK], vec![0_u8; BLOCK]];
    let vectors = buffers.each_mut().map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: BLOCK });
    ring.submitter().register_files(&[file.as_raw_fd()]).expect("a file table");
    // SAFETY: the buffers stay at their addresses until the ring is dropped.
    unsafe { ring.submitter().register_buffers(&vectors) }.expect("a buffer table");
    let fixed = types::Fixed(0);
    let write = opcode::WriteFixed::new(fixed, vectors[0].iov_base.cast(), BLOCK as u32, 0).build();
    let read = opcode::ReadFixed::new(fixed, vectors[1].iov_base.cast(), BLOCK as u32, 1).build();
    // Pushes both entries at once. Otherwise the SQ thread might take the first entry alone, and
    // the chain would end there.
    // SAFETY: all completions are taken before the memory of the requests is freed.
    unsafe { ring.submission().push_multiple(&[write.flags(squeue::Flags::IO_LINK), read]) }.expect("room for two");
    ring.submit_and_wait(2).expect("submission");
    take(&mut ring, 2, BLOCK as i32);
    drop(ring);
    assert!(buffers[0] == buffers[1], "the bytes read differ from the bytes written");
}

fn a_read_is_bounded_by_its_timeout() {
    let mut ring = IoUring::new(8).expect("a ring");
    let (reader, mut writer): (PipeReader, PipeWriter) = std::io::pipe().expect("a pipe");
    let mut byte = [0_u8; 1];
    let time = types::Timespec::new().nsec(20_000_000);
    let fd = types::Fd(reader.as_raw_fd());
    for in_time in [false, true] {
        if in_time {
            writer.write_all(b"x").expect("room in the pipe");
        }
        let read = opcode::Read::new(fd, byte.as_mut_ptr(), 1).build().flags(squeue::Flags::IO_LINK).user_data(1);
        push(&mut ring, read);
        push(&mut ring, opcode::LinkTimeout::new(&time).build().user_data(2));
        ring.submit_and_wait(2).expect("submission");
        for cqe in ring.completion() {
            let wanted: &[i32] = match (cqe.user_data(), in_time) {
                (1, false) => &[-libc::ECANCELED, -libc::EINTR],
                (1, true) => &[1],
                (_, false) => &[-libc::ETIME],
                (_, true) => &[-libc::ECANCELED],
            };
            assert!(wanted.contains(&cqe.result()), "{}: {}", cqe.user_data(), cqe.result());
        }
    }
}

fn both_halves_may_be_used_apart() {
    const REQUESTS: usize = 10_000;
    let ring = IoUring::new(32).expect("a ring");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0..REQUESTS {
                let entry = opcode::Nop::new().build().user_data(index as u64);
                // SAFETY: no other thread uses the submission queue. A NOP names no memory.
                while unsafe { ring.submission_shared().push(&entry) }.is_err() {}
                ring.submit().expect("submission");
            }
        });
        let mut seen = vec![false; REQUESTS];
        let mut left = REQUESTS;
        while left > 0 {
            ring.submit_and_wait(0).expect("a look at the overflow");
            // SAFETY: no other thread uses the completion queue.
            for cqe in unsafe { ring.completion_shared() } {
                let name = usize::try_from(cqe.user_data()).expect("a small number");
                assert!(cqe.result() == 0 && !std::mem::replace(&mut seen[name], true), "{name} twice");
                left -= 1;
            }
            std::thread::yield_now();
        }
    });
}

fn unnamed_file() -> File {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE);
    options.open(".").unwrap_or_else(|error: Error| panic!("an unnamed file here: {error}"))
}

fn push(ring: &mut IoUring, entry: squeue::Entry) {
    // SAFETY: every caller takes all completions before it frees the memory of its requests.
    unsafe { ring.submission().push(&entry) }.expect("room in the queue");
}

/// Takes `count` completions. Each must have the result `result`.
fn take(ring: &mut IoUring, count: usize, result: i32) {
    let mut taken = 0;
    for cqe in ring.completion() {
        assert_eq!(cqe.result(), result, "request {}", cqe.user_data());
        taken += 1;
    }
    assert_eq!(taken, count);
}
