//! The program moves a context's event ring by mremap(2). From then on, the ring's new address is
//! the context's id.

use std::os::fd::AsRawFd;

use usring_uapi::aio::IoEvent;

use crate::aio::{self, Context};
use crate::memory::{PAGE, Pages};
use crate::transcript::Transcript;
use crate::{files, process, time};

/// Moves a context's event ring to the address `to`, which the case owns. From then on, `to` is the
/// context's id.
fn move_to(context: &mut Context, to: u64) {
    let header = context.header();
    let length = (header.header_length as usize + size_of::<IoEvent>() * header.nr as usize).next_multiple_of(PAGE);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let place = to as *mut libc::c_void;
    // SAFETY: the case owns the ring and the memory at the new address.
    let moved = unsafe { libc::mremap(context.0 as *mut _, length, length, flags, place) };
    assert_eq!(moved, place, "{}", std::io::Error::last_os_error());
    context.0 = to;
}

/// Returns an unused address at which there is room for an event ring.
fn room() -> u64 {
    let pages = Pages::new(8);
    let address = pages.at(0);
    std::mem::forget(pages);
    address
}

fn read_one(t: &mut Transcript, context: &Context, name: &str) {
    let file = files::memory_file(b"content");
    let mut buffer = [0u8; 7];
    t.result(name, context.submit(&mut [aio::read(file.as_raw_fd(), &mut buffer, 0, 1)]));
    aio::events(t, context.wait(1));
}

fn events_of(context: u64) -> i32 {
    aio::get(context, 0, 1, &mut IoEvent::default(), &time::milliseconds(0))
}

fn to_a_fixed_address(t: &mut Transcript) {
    let mut context = Context::new(8);
    let old = context.0;
    move_to(&mut context, room());
    t.result("the old address", events_of(old));
    read_one(t, &context, "submit");
    t.result("the old address", aio::submit(old, 0, std::ptr::null()));
    t.result("the old address", aio::destroy(old));
}
case!(to_a_fixed_address => "
    the old address = -EINVAL
    submit = 1
    event 1: 7 0
    the old address = -EINVAL
    the old address = -EINVAL
");

fn several_times(t: &mut Transcript) {
    let mut context = Context::new(8);
    for _ in 0..3 {
        let old = context.0;
        move_to(&mut context, room());
        t.result("the old address", events_of(old));
        read_one(t, &context, "submit");
    }
    // The event ring moves twice before the next call on the context.
    for _ in 0..2 {
        move_to(&mut context, room());
    }
    read_one(t, &context, "submit");
}
case!(several_times => "
    the old address = -EINVAL
    submit = 1
    event 1: 7 0
    the old address = -EINVAL
    submit = 1
    event 1: 7 0
    the old address = -EINVAL
    submit = 1
    event 1: 7 0
    submit = 1
    event 1: 7 0
");

fn with_requests_out(t: &mut Transcript) {
    let mut context = Context::new(8);
    let (reader, writer) = files::pipe();
    t.result("submit", context.submit(&mut [aio::poll(&reader, libc::POLLIN, 3)]));
    move_to(&mut context, room());
    t.result("nothing yet", events_of(context.0));
    files::put(&writer, b"x");
    aio::poll_events(t, context.wait(1));
}
case!(with_requests_out => "
    submit = 1
    nothing yet = 0
    event 3: IN
");

fn destroyed_at_its_new_address(t: &mut Transcript) {
    let mut context = Context::new(8);
    let old = context.0;
    move_to(&mut context, room());
    let new = context.0;
    t.result("destroy", aio::destroy(new));
    t.result("again", aio::destroy(new));
    t.result("the old address", aio::destroy(old));
    // SAFETY: mincore(2) writes one byte for one page, to a temporary of this expression.
    let mapped = unsafe { libc::mincore(new as *mut _, PAGE, &mut 0u8) };
    t.say(format_args!("still mapped: {}", mapped == 0));
    std::mem::forget(context);
}
case!(destroyed_at_its_new_address => "
    destroy = 0
    again = -EINVAL
    the old address = -EINVAL
    still mapped: false
");

fn cancelled_at_its_new_address(t: &mut Transcript) {
    let mut context = Context::new(8);
    let (reader, _writer) = files::pipe();
    let mut iocbs = [aio::poll(&reader, libc::POLLIN, 3)];
    t.result("submit", context.submit(&mut iocbs));
    let old = context.0;
    move_to(&mut context, room());
    t.result("cancel, the old address", aio::cancel(old, &mut iocbs[0]));
    t.result("cancel", aio::cancel(context.0, &mut iocbs[0]));
    aio::poll_events(t, context.wait(1));
}
case!(cancelled_at_its_new_address => "
    submit = 1
    cancel, the old address = -EINVAL
    cancel = -EINPROGRESS
    event 3: -
");

/// A copy of the event ring's memory is no context: calls reject the copy's address as an id.
fn a_copy_is_no_context(t: &mut Transcript) {
    let context = Context::new(8);
    let mut copy = Pages::new(1);
    // SAFETY: the event ring is mapped at the context's id, and has at least one page.
    let ring = unsafe { std::slice::from_raw_parts(context.0 as *const u8, PAGE) };
    copy.bytes().copy_from_slice(ring);
    t.result("a copy", events_of(copy.at(0)));
    t.result("destroy a copy", aio::destroy(copy.at(0)));
    read_one(t, &context, "submit");
}
case!(a_copy_is_no_context => "
    a copy = -EINVAL
    destroy a copy = -EINVAL
    submit = 1
    event 1: 7 0
");

fn two_swap_addresses(t: &mut Transcript) {
    let (mut first, mut second) = (Context::new(8), Context::new(8));
    let (reader, writer) = files::pipe();
    t.result("submit", first.submit(&mut [aio::poll(&reader, libc::POLLIN, 1)]));
    let (a, b, between) = (first.0, second.0, room());
    move_to(&mut first, between);
    move_to(&mut second, a);
    move_to(&mut first, b);
    read_one(t, &second, "submit");
    files::put(&writer, b"x");
    aio::poll_events(t, first.wait(1));
}
case!(two_swap_addresses => "
    submit = 1
    submit = 1
    event 1: 7 0
    event 1: IN
");

fn in_a_child(t: &mut Transcript) {
    let mut context = Context::new(8);
    move_to(&mut context, room());
    let ending = process::forked(|| {
        t.result("submit", context.submit(&mut []));
        t.result("events", events_of(context.0));
        t.result("destroy", aio::destroy(context.0));
        0
    });
    t.say(ending);
    read_one(t, &context, "submit");
}
case!(in_a_child => "
    submit = -EINVAL
    events = -EINVAL
    destroy = -EINVAL
    exit 0
    submit = 1
    event 1: 7 0
");
