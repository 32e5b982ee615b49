//! AIO contexts through the Rust API.

use crate::support::*;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;
use usring::aio::{
    Context, IOCB_CMD_FSYNC, IOCB_CMD_POLL, IOCB_CMD_PREAD, IOCB_CMD_PWRITE, IOCB_FLAG_HIPRI, IOCB_FLAG_RESFD, IoEvent,
    Iocb,
};

fn iocb(command: u16, file: &impl AsRawFd, data: u64) -> Iocb {
    Iocb { aio_data: data, aio_lio_opcode: command, aio_fildes: file.as_raw_fd() as u32, ..Iocb::default() }
}

fn submit(context: &Context, iocbs: &mut [Iocb]) -> std::io::Result<usize> {
    let list: Vec<*mut Iocb> = iocbs.iter_mut().map(|iocb| &raw mut *iocb).collect();
    // SAFETY: each test keeps the memory of its requests until they have completed.
    unsafe { context.submit(&list) }
}

#[test]
fn a_context_writes_reads_and_syncs() {
    bounded(|| {
        let context = Context::new(16).unwrap();
        let file = tempfile::tempfile().unwrap();
        let (from, mut to) = (*b"some content", [0; 12]);
        let mut write = iocb(IOCB_CMD_PWRITE, &file, 1);
        (write.aio_buf, write.aio_nbytes) = (from.as_ptr() as u64, 12);
        let mut events = [IoEvent::default(); 4];
        assert_eq!(submit(&context, &mut [write, iocb(IOCB_CMD_FSYNC, &file, 2)]).unwrap(), 2);
        assert_eq!(context.events(2, &mut events, None).unwrap(), 2);
        assert_eq!(events[..2].iter().map(|event| event.res).sum::<i64>(), 12);
        let mut read = iocb(IOCB_CMD_PREAD, &file, 3);
        (read.aio_buf, read.aio_nbytes) = (to.as_mut_ptr() as u64, 12);
        assert_eq!(submit(&context, &mut [read]).unwrap(), 1);
        assert_eq!(context.events(1, &mut events, None).unwrap(), 1);
        assert_eq!((events[0].data, events[0].res, to), (3, 12, from));
    });
}

#[test]
fn a_wait_for_a_poll_times_out_and_the_poll_is_cancelled() {
    bounded(|| {
        let context = Context::new(16).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut polls = [iocb(IOCB_CMD_POLL, &reader, 1), iocb(IOCB_CMD_POLL, &reader, 2)];
        polls.iter_mut().for_each(|poll| poll.aio_buf = libc::POLLIN as u64);
        assert_eq!(submit(&context, &mut polls).unwrap(), 2);
        let mut events = [IoEvent::default(); 4];
        assert_eq!(context.events(1, &mut events, Some(Duration::from_millis(5))).unwrap(), 0);
        // SAFETY: the iocb is valid memory.
        let cancelled = unsafe { context.cancel(&raw mut polls[1]) }.unwrap_err();
        assert_eq!(cancelled.raw_os_error(), Some(libc::EINPROGRESS));
        assert_eq!(context.events(1, &mut events, None).unwrap(), 1);
        assert_eq!((events[0].data, events[0].res), (2, 0));
        writer.write_all(b"x").unwrap();
        assert_eq!(context.events(1, &mut events, None).unwrap(), 1);
        assert_eq!((events[0].data, events[0].res & 1), (1, 1));
    });
}

#[test]
fn context_errors_are_those_of_linux() {
    let code = |error: std::io::Error| error.raw_os_error();
    assert_eq!(code(Context::new(0).unwrap_err()), Some(libc::EINVAL));
    let context = Context::new(1).unwrap();
    let mut bad = [Iocb { aio_fildes: u32::MAX, ..Iocb::default() }];
    assert_eq!(code(submit(&context, &mut bad).unwrap_err()), Some(libc::EBADF));
    let mut events = [IoEvent::default(); 1];
    assert_eq!(code(context.events(2, &mut events, None).unwrap_err()), Some(libc::EINVAL));
}

const BLOCK: usize = 4096;

/// A buffer of one block, aligned as O_DIRECT requires.
#[repr(C, align(4096))]
struct Block([u8; BLOCK]);

fn direct_file() -> std::fs::File {
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let mut options = std::fs::File::options();
    options.read(true).write(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

fn of_block(command: u16, file: &impl AsRawFd, place: usize, block: &mut Block) -> Iocb {
    Iocb {
        aio_buf: block.0.as_mut_ptr() as u64,
        aio_nbytes: BLOCK as u64,
        aio_offset: (place * BLOCK) as i64,
        aio_flags: IOCB_FLAG_HIPRI,
        ..iocb(command, file, place as u64)
    }
}

#[test]
fn a_polled_context_transfers_blocks_of_any_direct_file() {
    bounded(|| {
        let context = Context::polled(8).unwrap();
        let file = direct_file();
        let mut blocks: Vec<Block> = (0..200).map(|index| Block([index as u8; BLOCK])).collect();
        for command in [IOCB_CMD_PWRITE, IOCB_CMD_PREAD] {
            let iocb_of = |(place, block)| of_block(command, &file, place, block);
            let mut iocbs: Vec<Iocb> = blocks.iter_mut().enumerate().map(iocb_of).collect();
            // The program submits 200 requests to a context that was made for 8. One call accepts
            // 127 of them.
            let first = submit(&context, &mut iocbs).unwrap();
            assert_eq!(first, 127);
            assert_eq!(submit(&context, &mut iocbs[first..]).unwrap(), 200 - first);
            let mut events = [IoEvent::default(); 256];
            let mut seen = [false; 200];
            let mut taken = 0;
            while taken < 200 {
                let count = context.events(1, &mut events, None).unwrap();
                assert!(count > 0, "after {taken} events");
                for event in &events[..count] {
                    assert_eq!(event.res, BLOCK as i64);
                    assert!(!core::mem::replace(&mut seen[event.data as usize], true), "an event came twice");
                }
                taken += count;
            }
            assert!(blocks.iter().enumerate().all(|(index, block)| block.0 == [index as u8; BLOCK]));
            blocks.iter_mut().filter(|_| command == IOCB_CMD_PWRITE).for_each(|block| block.0.fill(0));
        }
    });
}

#[test]
fn a_polled_context_refuses_requests_that_cannot_be_polled() {
    let code = |error: std::io::Error| error.raw_os_error().unwrap();
    let context = Context::polled(8).unwrap();
    let (direct, buffered) = (direct_file(), tempfile::tempfile().unwrap());
    let mut block = Block([0; BLOCK]);
    let refused = |iocb: Iocb| code(submit(&context, &mut [iocb]).unwrap_err());
    let read = of_block(IOCB_CMD_PREAD, &direct, 0, &mut block);
    assert_eq!(refused(Iocb { aio_flags: 0, ..read }), libc::EINVAL);
    let eventfd = eventfd();
    let aio_resfd = eventfd.as_raw_fd() as u32;
    assert_eq!(refused(Iocb { aio_flags: IOCB_FLAG_HIPRI | IOCB_FLAG_RESFD, aio_resfd, ..read }), libc::EINVAL);
    let sync = iocb(IOCB_CMD_FSYNC, &direct, 0);
    assert_eq!(refused(Iocb { aio_flags: IOCB_FLAG_HIPRI, ..sync }), libc::EINVAL);
    assert_eq!(refused(of_block(IOCB_CMD_PREAD, &buffered, 0, &mut block)), libc::EOPNOTSUPP);
    assert_eq!(code(Context::with_flags(8, 2).unwrap_err()), libc::EINVAL);
    // A context made without IOCTX_FLAG_IOPOLL refuses requests with IOCB_FLAG_HIPRI. The polled
    // contexts above refuse requests without the flag.
    let plain = Context::with_flags(8, 0).unwrap();
    assert_eq!(code(submit(&plain, &mut [read]).unwrap_err()), libc::EINVAL);
    let mut events = [IoEvent::default(); 1];
    assert_eq!(submit(&plain, &mut [Iocb { aio_flags: 0, ..read }]).unwrap(), 1);
    assert_eq!(plain.events(1, &mut events, None).unwrap(), 1);
    assert_eq!(events[0].res, 0, "the file is empty");
}

#[test]
fn a_call_for_any_number_of_events_polls_a_polled_context() {
    bounded(|| {
        let context = Context::polled(8).unwrap();
        let file = direct_file();
        let mut block = Block([1; BLOCK]);
        assert_eq!(submit(&context, &mut [of_block(IOCB_CMD_PWRITE, &file, 0, &mut block)]).unwrap(), 1);
        let mut events = [IoEvent::default(); 8];
        while context.events(0, &mut events, None).unwrap() == 0 {}
        assert_eq!(events[0].res, BLOCK as i64);
    });
}

/// A thread waits for more events than the context holds at one time.
#[test]
fn a_wait_for_more_events_than_the_context_holds_gets_them() {
    const COUNT: usize = 1000;
    bounded(|| {
        let context = Context::new(1).unwrap();
        let file = tempfile::tempfile().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut submitted = 0;
                while submitted < COUNT {
                    match submit(&context, &mut [iocb(IOCB_CMD_FSYNC, &file, 1)]) {
                        Ok(count) => submitted += count,
                        Err(_) => std::thread::yield_now(),
                    }
                }
            });
            let mut events = vec![IoEvent::default(); COUNT];
            assert_eq!(context.events(COUNT, &mut events, None).unwrap(), COUNT);
        });
    });
}

/// Makes a blocking eventfd with the counter 0.
fn eventfd() -> OwnedFd {
    // SAFETY: the call takes only numbers, and the new descriptor belongs to the caller.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, 0)) }
}

/// A write to an eventfd whose counter is at its maximum would block. A completion that signals
/// such an eventfd does not wait, as in the kernel.
#[test]
fn an_eventfd_at_its_maximum_blocks_no_completion() {
    bounded(|| {
        let context = Context::new(8).unwrap();
        let file = tempfile::tempfile().unwrap();
        let eventfd = std::fs::File::from(eventfd());
        for short_of_end in [0u64, 1, 2] {
            (&eventfd).write_all(&(u64::MAX - 1 - short_of_end).to_ne_bytes()).unwrap();
            let sync = Iocb {
                aio_flags: IOCB_FLAG_RESFD,
                aio_resfd: eventfd.as_raw_fd() as u32,
                ..iocb(IOCB_CMD_FSYNC, &file, 1)
            };
            assert_eq!(submit(&context, &mut [sync; 4]).unwrap(), 4);
            let mut events = [IoEvent::default(); 8];
            assert_eq!(context.events(4, &mut events, None).unwrap(), 4);
            let mut count = [0; 8];
            (&eventfd).read_exact(&mut count).unwrap();
            assert!(u64::from_ne_bytes(count) >= u64::MAX - 1);
        }
    });
}

/// The kernel may temporarily refuse another AIO context. usring must then not mark the file as one
/// that cannot be polled.
#[test]
fn polling_of_a_file_is_retried_after_a_temporary_refusal() {
    bounded(|| {
        // No other test makes a context of this size, so usring has no cached kernel context that
        // fits.
        let context = Context::polled(777).unwrap();
        let file = direct_file();
        let mut block = Block([0; BLOCK]);
        let read = of_block(IOCB_CMD_PREAD, &file, 0, &mut block);
        let refused = std::thread::scope(|scope| {
            let submitter = scope.spawn(|| {
                refuse_contexts();
                submit(&context, &mut [read]).unwrap_err().raw_os_error()
            });
            submitter.join().unwrap()
        });
        assert_eq!(refused, Some(libc::EOPNOTSUPP));
        assert_eq!(submit(&context, &mut [read]).unwrap(), 1);
        let mut events = [IoEvent::default(); 1];
        assert_eq!(context.events(1, &mut events, None).unwrap(), 1);
    });
}

/// Installs a seccomp filter that denies io_setup(2) to this thread with EAGAIN.
fn refuse_contexts() {
    let statement = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_io_setup as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the calls affect only this thread, and the kernel copies the filter.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}
