//! AIO contexts through the Rust API.

use crate::support::*;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::Duration;
use usring::aio::{Context, IOCB_CMD_FSYNC, IOCB_CMD_POLL, IOCB_CMD_PREAD, IOCB_CMD_PWRITE, IoEvent, Iocb};

fn iocb(command: u16, file: &impl AsRawFd, data: u64) -> Iocb {
    Iocb { aio_data: data, aio_lio_opcode: command, aio_fildes: file.as_raw_fd() as u32, ..Iocb::default() }
}

fn submit(context: &Context, iocbs: &mut [Iocb]) -> std::io::Result<usize> {
    let list: Vec<*mut Iocb> = iocbs.iter_mut().map(|iocb| &raw mut *iocb).collect();
    // SAFETY: the tests keep what they name until it is done.
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
fn a_poll_is_waited_for_by_time_and_cancelled() {
    bounded(|| {
        let context = Context::new(16).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut polls = [iocb(IOCB_CMD_POLL, &reader, 1), iocb(IOCB_CMD_POLL, &reader, 2)];
        polls.iter_mut().for_each(|poll| poll.aio_buf = libc::POLLIN as u64);
        assert_eq!(submit(&context, &mut polls).unwrap(), 2);
        let mut events = [IoEvent::default(); 4];
        assert_eq!(context.events(1, &mut events, Some(Duration::from_millis(5))).unwrap(), 0);
        // SAFETY: it is still there.
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
fn errors_are_linuxs() {
    let code = |error: std::io::Error| error.raw_os_error();
    assert_eq!(code(Context::new(0).unwrap_err()), Some(libc::EINVAL));
    let context = Context::new(1).unwrap();
    let mut bad = [Iocb { aio_fildes: u32::MAX, ..Iocb::default() }];
    assert_eq!(code(submit(&context, &mut bad).unwrap_err()), Some(libc::EBADF));
    let mut events = [IoEvent::default(); 1];
    assert_eq!(code(context.events(2, &mut events, None).unwrap_err()), Some(libc::EINVAL));
}
