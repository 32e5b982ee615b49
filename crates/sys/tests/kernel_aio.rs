//! Tests batches of the kernel's AIO when the ring of completions is full, and when the kernel
//! refuses a request.
#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use usring_sys::Errno;
use usring_sys::kernel_aio::{Batch, Context};
use usring_uapi::aio::{IOCB_CMD_PREAD, IOCB_CMD_PREADV, Iocb};

/// Limit of every wait in a test.
const TEST_LIMIT: Duration = Duration::from_secs(60);

/// Returns a request that reads 0 bytes of a file, and so completes at once.
fn empty_read(file: &File, data: u64) -> Iocb {
    let aio_fildes = file.as_raw_fd() as u32;
    Iocb { aio_data: data, aio_lio_opcode: IOCB_CMD_PREAD, aio_fildes, ..Iocb::default() }
}

fn file() -> File {
    File::open("/proc/self/exe").unwrap()
}

#[test]
fn requests_that_the_kernel_cannot_take_yet_stay_in_the_batch() {
    const COUNT: u64 = 10_000;
    let file = file();
    let mut context = Context::new(8).unwrap();
    let mut batch = Batch::new(&context, COUNT as usize, 0).unwrap();
    (0..COUNT).for_each(|data| batch.push(empty_read(&file, data), &[], IOCB_CMD_PREADV));
    let mut seen = BTreeSet::new();
    let mut refusals = 0;
    context.expect(COUNT as usize);
    let start = Instant::now();
    while seen.len() < COUNT as usize {
        assert!(start.elapsed() < TEST_LIMIT, "{} of {COUNT}", seen.len());
        match batch.submit() {
            Ok(_) if batch.is_empty() => {}
            // The AIO context's ring has room for a few hundred completions. Once the ring is full,
            // the kernel refuses requests until this loop takes some completions.
            Ok(_) | Err(Errno::EAGAIN) => refusals += 1,
            Err(error) => panic!("{error}"),
        }
        while let Some(event) = context.take() {
            assert_eq!(event.res, 0);
            assert!(seen.insert(event.data), "{} came twice", event.data);
        }
        context.free_read_slots();
    }
    assert!(refusals > 2, "the ring has never been full");
    assert!(context.is_empty() && seen.into_iter().eq(0..COUNT));
}

#[test]
fn a_refused_request_stays_first_until_it_is_removed() {
    let file = file();
    let mut context = Context::new(8).unwrap();
    let mut batch = Batch::new(&context, 4, 0).unwrap();
    let bad = Iocb { aio_data: 1, aio_lio_opcode: 77, ..empty_read(&file, 1) };
    for iocb in [empty_read(&file, 0), bad, empty_read(&file, 2)] {
        batch.push(iocb, &[], IOCB_CMD_PREADV);
    }
    context.expect(2);
    assert_eq!(batch.submit(), Ok(1));
    assert_eq!(batch.submit(), Err(Errno::EINVAL));
    assert_eq!(batch.drop_first(), 1);
    assert_eq!(batch.submit(), Ok(1));
    assert!(batch.is_empty());
    assert_eq!([context.take(), context.take()].map(|event| event.unwrap().data), [0, 2]);
    assert!(context.take().is_none());
}
