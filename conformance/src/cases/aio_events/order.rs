//! Calls of io_getevents, io_pgetevents and io_cancel with several invalid arguments: the order of
//! the kernel's checks. Also calls that fail after a part of their work.

use std::time::Duration;

use usring_uapi::Timespec;
use usring_uapi::aio::IoEvent;

use super::reads;
use crate::aio::{self, Context};
use crate::memory::Pages;
use crate::transcript::Transcript;
use crate::{files, time};

/// The kernel reads the time limit and the signal mask first, and looks up the context id after
/// that. So bad pointers get -EFAULT even with an unknown id.
fn unknown_context_and_bad_pointers(t: &mut Transcript) {
    let mut event = IoEvent::default();
    let nowhere = 16 as *const Timespec;
    t.result("time limit", aio::get(1, 1, 1, &mut event, nowhere));
    t.result("time limit, mask call", aio::get_masked(1, 1, 1, &mut event, nowhere, std::ptr::null()));
    let limit = time::milliseconds(0);
    t.result("mask", aio::get_masked(1, 1, 1, &mut event, &limit, 16 as *const [u64; 2]));
    t.result("context alone", aio::get(1, 1, 1, &mut event, &limit));
}
case!(unknown_context_and_bad_pointers => "
    time limit = -EFAULT
    time limit, mask call = -EFAULT
    mask = -EFAULT
    context alone = -EINVAL
");

/// io_submit writes the key 0 to the iocb. io_cancel refuses an iocb with any other key.
fn cancel_with_another_key(t: &mut Transcript) {
    let context = Context::new(8);
    let (reader, _writer) = files::pipe();
    let mut iocbs = [aio::poll(&reader, libc::POLLIN, 1)];
    t.result("submit", context.submit(&mut iocbs));
    iocbs[0].aio_key = 5;
    t.result("another key", aio::cancel(context.0, &mut iocbs[0]));
    iocbs[0].aio_key = 0;
    t.result("its key", aio::cancel(context.0, &mut iocbs[0]));
    aio::poll_events(t, context.wait(1));
}
case!(cancel_with_another_key => "
    submit = 1
    another key = -EINVAL
    its key = -EINPROGRESS
    event 1: -
");

/// The program's memory has room for two events. io_getevents writes two events there, waits for a
/// third, and cannot write it. So the call returns 2, and the third event stays in the event ring.
fn memory_ends_behind_taken_events(t: &mut Transcript) {
    let context = Context::new(8);
    let (reader, writer) = files::pipe();
    t.result("submit", context.submit(&mut [aio::poll(&reader, libc::POLLIN, 9)]));
    let _file = reads(&context, 2, t);
    let pages = Pages::new(2);
    pages.forbid_last();
    // SAFETY: the address is 64 bytes before the end of the first page, so two events fit. The
    // second page is made inaccessible on purpose.
    let end = unsafe { pages.address.add(4096 - 64) }.cast::<IoEvent>();
    let waiter = time::this_thread();
    let other = std::thread::spawn(move || {
        time::until_asleep(waiter);
        files::put(&writer, b"x");
        writer
    });
    t.result("room for two of three", aio::get(context.0, 3, 3, end, &time::LONG));
    aio::poll_events(t, context.get(1, 8, Duration::from_secs(30)).unwrap_or_default());
    drop(other.join());
}
case!(memory_ends_behind_taken_events => "
    submit = 1
    submit = 2
    room for two of three = 2
    event 9: IN
");
