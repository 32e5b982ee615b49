//! io_getevents, io_pgetevents, io_cancel, and IOCB_CMD_POLL.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use usring_uapi::Timespec;
use usring_uapi::aio::{IOCB_FLAG_RESFD, IoEvent, Iocb};

use crate::aio::{self, Context};
use crate::memory::Pages;
use crate::transcript::{Transcript, timed};
use crate::{files, time};

mod order;

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

fn counts(t: &mut Transcript) {
    let context = Context::new(8);
    let mut event = IoEvent::default();
    let mut ask = |name: &str, least, most| t.result(name, aio::get(context.0, least, most, &mut event, &AT_ONCE));
    ask("none", 0, 0);
    ask("up to one", 0, 1);
    ask("one", 1, 1);
    ask("two of one", 2, 1);
    ask("fewer than none", -1, 1);
    ask("of fewer than none", 0, -1);
    ask("both", -2, -1);
}
case!(counts => "
    none = 0
    up to one = 0
    one = 0
    two of one = -EINVAL
    fewer than none = -EINVAL
    of fewer than none = -EINVAL
    both = -EINVAL
");

fn time_limit(t: &mut Transcript) {
    let context = Context::new(8);
    let mut event = IoEvent::default();
    for milliseconds in [0, 20, 60] {
        let limit = time::milliseconds(milliseconds);
        let (answer, waited) = timed(|| aio::get(context.0, 1, 1, &mut event, &limit));
        t.result("events", answer);
        t.between("time", waited, milliseconds as u64, 30_000);
    }
    let (answer, waited) = timed(|| aio::get(context.0, 0, 1, &mut event, &time::LONG));
    t.result("none wanted", answer);
    t.between("time", waited, 0, 30_000);
}
case!(time_limit => "
    events = 0
    time: after 0 to 30000 ms
    events = 0
    time: after 20 to 30000 ms
    events = 0
    time: after 60 to 30000 ms
    none wanted = 0
    time: after 0 to 30000 ms
");

fn unusual_timeouts(t: &mut Transcript) {
    let context = Context::new(8);
    let mut event = IoEvent::default();
    let (answer, waited) =
        timed(|| aio::get(context.0, 1, 1, &mut event, &Timespec { tv_sec: 0, tv_nsec: 1_020_000_000 }));
    t.result("nanoseconds beyond a second", answer);
    t.between("time", waited, 1020, 30_000);
    // With a negative timeout, io_getevents waits without a limit.
    for (name, limit) in [
        ("negative seconds", Timespec { tv_sec: -1, tv_nsec: 0 }),
        ("negative nanoseconds", Timespec { tv_sec: 0, tv_nsec: -1 }),
        ("the end of time", Timespec { tv_sec: i64::MAX, tv_nsec: 0 }),
    ] {
        let (reader, writer) = files::pipe();
        context.submit(&mut [aio::poll(&reader, libc::POLLIN, 1)]);
        let waiter = time::this_thread();
        let other = std::thread::spawn(move || {
            time::until_asleep(waiter);
            time::long_enough_to_notice();
            files::put(&writer, b"x");
            writer
        });
        let (answer, waited) = timed(|| aio::get(context.0, 1, 1, &mut event, &limit));
        t.result(name, answer);
        t.between("time", waited, 25, 30_000);
        drop(other.join());
    }
    t.result("nowhere", aio::get(context.0, 0, 1, &mut event, 16 as *const Timespec));
}
case!(unusual_timeouts => "
    nanoseconds beyond a second = 0
    time: after 1020 to 30000 ms
    negative seconds = 1
    time: after 25 to 30000 ms
    negative nanoseconds = 1
    time: after 25 to 30000 ms
    the end of time = 1
    time: after 25 to 30000 ms
    nowhere = -EFAULT
");

fn reads(context: &Context, count: u64, t: &mut Transcript) -> std::os::fd::OwnedFd {
    let file = files::memory_file(b"some content");
    let buffer = Box::leak(Box::new([0; 4]));
    let mut iocbs: Vec<_> = (1..=count).map(|data| aio::read(file.as_raw_fd(), buffer, 0, data)).collect();
    t.result("submit", context.submit(&mut iocbs));
    // The kernel guarantees neither the moments nor the order in which the reads complete. So the
    // case waits until all reads have completed.
    time::until(|| u64::from(context.header().tail) == count);
    file
}

fn waits_for_enough(t: &mut Transcript) {
    let context = Context::new(8);
    let (reader, writer) = files::pipe();
    t.result("submit", context.submit(&mut [aio::poll(&reader, libc::POLLIN, 9)]));
    let _file = reads(&context, 2, t);
    let waiter = time::this_thread();
    let other = std::thread::spawn(move || {
        time::until_asleep(waiter);
        time::long_enough_to_notice();
        files::put(&writer, b"x");
        writer
    });
    let (events, waited) = timed(|| context.get(3, 8, Duration::from_secs(30)).unwrap_or_default());
    t.between("time", waited, 25, 30_000);
    t.say(format_args!("{} events", events.len()));
    drop(other.join());
}
case!(waits_for_enough => "
    submit = 1
    submit = 2
    time: after 25 to 30000 ms
    3 events
");

fn fewer_when_time_is_up(t: &mut Transcript) {
    let context = Context::new(8);
    let _file = reads(&context, 2, t);
    let (events, waited) = timed(|| context.get(3, 8, Duration::from_millis(20)).unwrap_or_default());
    t.between("time", waited, 20, 30_000);
    aio::events(t, events);
    aio::events(t, context.get(0, 8, Duration::ZERO).unwrap_or_default());
}
case!(fewer_when_time_is_up => "
    submit = 2
    time: after 20 to 30000 ms
    event 1: 4 0
    event 2: 4 0
    no event
");

fn no_more_than_asked(t: &mut Transcript) {
    let context = Context::new(8);
    let _file = reads(&context, 5, t);
    for (least, most) in [(1, 2), (3, 3), (0, 3)] {
        let events = context.get(least, most, Duration::from_secs(30)).unwrap_or_default();
        t.say(format_args!("{} events", events.len()));
    }
}
case!(no_more_than_asked => "
    submit = 5
    2 events
    3 events
    0 events
");

fn bad_memory(t: &mut Transcript) {
    let context = Context::new(8);
    t.result("nothing there", aio::get(context.0, 0, 1, null_mut(), &AT_ONCE));
    let _file = reads(&context, 3, t);
    t.result("nowhere", aio::get(context.0, 1, 1, null_mut(), &AT_ONCE));
    let pages = Pages::new(2);
    pages.forbid_last();
    // SAFETY: the address is 32 bytes before the end of the first page, so one event fits. The
    // second page is made inaccessible on purpose.
    let end = unsafe { pages.address.add(4096 - 32) }.cast::<IoEvent>();
    t.result("room for one of three", aio::get(context.0, 3, 3, end, &AT_ONCE));
    t.say(format_args!("head {}", context.header().head));
    t.result("one", aio::get(context.0, 1, 1, end, &AT_ONCE));
    t.say(format_args!("{} more", context.wait(2).len()));
}
case!(bad_memory => "
    nothing there = 0
    submit = 3
    nowhere = -EFAULT
    room for one of three = -EFAULT
    head 0
    one = 1
    2 more
");

static HEARD: AtomicU32 = AtomicU32::new(0);

extern "C" fn hear(_: i32) {
    HEARD.fetch_add(1, Ordering::SeqCst);
}

/// Installs a handler for SIGUSR1, and starts a thread that waits until the calling thread sleeps.
/// The new thread then sends SIGUSR1 to the calling thread.
fn signal_soon(flags: i32) -> std::thread::JoinHandle<()> {
    HEARD.store(0, Ordering::SeqCst);
    let mut action: libc::sigaction = crate::memory::zeroed();
    action.sa_sigaction = hear as *const () as usize;
    action.sa_flags = flags;
    // SAFETY: the handler only increments an atomic counter.
    let target = unsafe {
        libc::sigaction(libc::SIGUSR1, &action, null_mut());
        libc::pthread_self() as usize
    };
    let number = time::this_thread();
    std::thread::spawn(move || {
        time::until_asleep(number);
        time::long_enough_to_notice();
        // SAFETY: the target thread joins this thread, so the target thread is alive during the
        // call.
        unsafe { libc::pthread_kill(target as libc::pthread_t, libc::SIGUSR1) };
    })
}

fn signal(t: &mut Transcript) {
    let context = Context::new(8);
    for flags in [0, libc::SA_RESTART] {
        let sender = signal_soon(flags);
        t.result(
            "events",
            context.get(1, 1, Duration::from_secs(30)).map_or_else(|error| error, |all| all.len() as i32),
        );
        t.say(format_args!("heard {}", HEARD.load(Ordering::SeqCst)));
        drop(sender.join());
    }
}
case!(signal => "
    events = -EINTR
    heard 1
    events = -EINTR
    heard 1
");

fn signal_and_events(t: &mut Transcript) {
    let context = Context::new(8);
    let _file = reads(&context, 2, t);
    let sender = signal_soon(0);
    let events = context.get(3, 8, Duration::from_secs(30));
    t.say(format_args!("heard {}", HEARD.load(Ordering::SeqCst)));
    aio::events(t, events.unwrap_or_default());
    drop(sender.join());
}
case!(signal_and_events => "
    submit = 2
    heard 1
    event 1: 4 0
    event 2: 4 0
");

fn mask(t: &mut Transcript) {
    let context = Context::new(8);
    let blocked = 1u64 << (libc::SIGUSR1 - 1);
    let argument = [&raw const blocked as u64, 8];
    let sender = signal_soon(0);
    let mut event = IoEvent::default();
    let limit = time::milliseconds(1000);
    let (answer, waited) = timed(|| aio::get_masked(context.0, 1, 1, &mut event, &limit, &argument));
    t.result("events", answer);
    t.between("time", waited, 1000, 30_000);
    drop(sender.join());
    t.say(format_args!("heard afterwards {}", HEARD.load(Ordering::SeqCst)));
}
case!(mask => "
    events = 0
    time: after 1000 to 30000 ms
    heard afterwards 1
");

fn mask_refused(t: &mut Transcript) {
    let context = Context::new(8);
    let mut event = IoEvent::default();
    let mask = 0u64;
    let mut ask = |name: &str, argument: *const [u64; 2]| {
        t.result(name, aio::get_masked(context.0, 0, 1, &mut event, &AT_ONCE, argument));
    };
    ask("none", null());
    ask("a mask", &[&raw const mask as u64, 8]);
    ask("no mask in it", &[0, 8]);
    ask("no mask, and a size", &[0, 5]);
    ask("a size", &[&raw const mask as u64, 4]);
    ask("a mask nowhere", &[8, 8]);
    ask("nowhere", 16 as *const [u64; 2]);
}
case!(mask_refused => "
    none = 0
    a mask = 0
    no mask in it = 0
    no mask, and a size = 0
    a size = -EINVAL
    a mask nowhere = -EFAULT
    nowhere = -EFAULT
");

/// The signal mask of io_pgetevents unblocks SIGUSR1. So the pending signal ends the call.
fn mask_unblocks_a_signal(t: &mut Transcript) {
    let context = Context::new(8);
    drop(signal_soon(0).join());
    let mut blocked: libc::sigset_t = crate::memory::zeroed();
    // SAFETY: the signal set is a variable of this function, and SIGUSR1 has a handler.
    unsafe {
        libc::sigaddset(&mut blocked, libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, null_mut());
        HEARD.store(0, Ordering::SeqCst);
        libc::raise(libc::SIGUSR1);
    }
    t.say(format_args!("heard {}", HEARD.load(Ordering::SeqCst)));
    let open = 0u64;
    let argument = [&raw const open as u64, 8];
    let mut event = IoEvent::default();
    t.result("events", aio::get_masked(context.0, 1, 1, &mut event, &time::LONG, &argument));
    t.say(format_args!("heard {}", HEARD.load(Ordering::SeqCst)));
}
case!(mask_unblocks_a_signal => "
    heard 0
    events = -EINTR
    heard 1
");

fn two_waiters(t: &mut Transcript) {
    let context = Context::new(8);
    let address = context.0;
    let (reader, writer) = files::pipe();
    t.result("submit", context.submit(&mut [aio::poll(&reader, libc::POLLIN, 1), aio::poll(&reader, libc::POLLIN, 2)]));
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            std::thread::spawn(move || {
                let context = std::mem::ManuallyDrop::new(Context(address));
                context.get(1, 1, Duration::from_secs(30)).map_or_else(|error| error, |all| all.len() as i32)
            })
        })
        .collect();
    time::long_enough_to_notice();
    files::put(&writer, b"x");
    for waiter in waiters {
        t.result("waiter", waiter.join().expect("it does not panic"));
    }
}
case!(two_waiters => "
    submit = 2
    waiter = 1
    waiter = 1
");

/// io_getevents can wait for more events than the event ring has slots. Other threads submit them.
fn more_than_there_are_slots(t: &mut Transcript) {
    let context = Context::new(1);
    let (address, slots) = (context.0, context.header().nr as usize);
    let wanted = 2 * slots;
    let submitter = std::thread::spawn(move || {
        let context = std::mem::ManuallyDrop::new(Context(address));
        let file = files::memory_file(b"some content");
        let mut buffer = [0; 4];
        let mut submitted = 0;
        while submitted < wanted {
            let answer = context.submit(&mut [aio::read(file.as_raw_fd(), &mut buffer, 0, 1)]);
            if answer == 1 {
                submitted += 1;
            } else {
                std::thread::yield_now();
            }
        }
        file
    });
    let mut taken = 0;
    while taken < wanted {
        let least = (wanted - taken).min(slots / 2) as i64;
        match context.get(least, wanted as i64, Duration::from_secs(30)) {
            Ok(events) if !events.is_empty() => taken += events.len(),
            _ => break,
        }
    }
    t.say(format_args!("all: {}", taken == wanted));
    drop(submitter.join());
}
case!(more_than_there_are_slots => "all: true");

fn poll_ready_at_once(t: &mut Transcript) {
    let context = Context::new(8);
    let (reader, writer) = files::pipe();
    files::put(&writer, b"x");
    let mut iocbs = [aio::poll(&reader, libc::POLLIN, 1), aio::poll(&writer, libc::POLLOUT, 2)];
    t.result("submit", context.submit(&mut iocbs));
    aio::poll_events(t, context.wait(2));
}
case!(poll_ready_at_once => "
    submit = 2
    event 1: IN
    event 2: OUT
");

fn poll_waits(t: &mut Transcript) {
    let context = Context::new(8);
    let (reader, writer) = files::pipe();
    t.result("submit", context.submit(&mut [aio::poll(&reader, libc::POLLIN, 1)]));
    aio::poll_events(t, context.get(0, 8, Duration::ZERO).unwrap_or_default());
    files::put(&writer, b"x");
    aio::poll_events(t, context.wait(1));
    files::put(&writer, b"x");
    time::long_enough_to_notice();
    aio::poll_events(t, context.get(0, 8, Duration::ZERO).unwrap_or_default());
}
case!(poll_waits => "
    submit = 1
    no event
    event 1: IN
    no event
");

fn poll_hang_up(t: &mut Transcript) {
    let context = Context::new(8);
    let (reader, writer) = files::pipe();
    t.result("submit", context.submit(&mut [aio::poll(&reader, libc::POLLPRI, 1)]));
    drop(writer);
    aio::poll_events(t, context.wait(1));
    let (reader, writer) = files::pipe();
    drop(reader);
    t.result("submit", context.submit(&mut [aio::poll(&writer, 0, 2)]));
    aio::poll_events(t, context.wait(1));
    // A poll for POLLPRI does not complete when the peer shuts down its sending side.
    let (one, other) = files::sockets();
    t.result("submit", context.submit(&mut [aio::poll(&one, libc::POLLPRI, 3)]));
    // SAFETY: the call touches no memory.
    unsafe { libc::shutdown(other.as_raw_fd(), libc::SHUT_WR) };
    time::long_enough_to_notice();
    aio::poll_events(t, context.get(0, 8, Duration::ZERO).unwrap_or_default());
    t.result("submit", context.submit(&mut [aio::poll(&one, libc::POLLRDHUP, 4)]));
    aio::poll_events(t, context.wait(1));
}
case!(poll_hang_up => "
    submit = 1
    event 1: HUP
    submit = 1
    event 2: ERR
    submit = 1
    no event
    submit = 1
    event 4: RDHUP
");

fn poll_always_ready(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    for events in [libc::POLLIN, libc::POLLIN | libc::POLLOUT, libc::POLLPRI, 0] {
        let answer = context.submit(&mut [aio::poll(&file, events, 1)]);
        t.result("submit", answer);
        if answer == 1 {
            aio::poll_events(t, context.wait(1));
        }
    }
}
case!(poll_always_ready as poll_files_that_are_always_ready => "
    submit = 1
    event 1: IN
    submit = 1
    event 1: IN|OUT
    submit = -EINVAL
    submit = -EINVAL
");

fn poll_fields(t: &mut Transcript) {
    let context = Context::new(8);
    let (reader, writer) = files::pipe();
    files::put(&writer, b"x");
    let good = aio::poll(&reader, libc::POLLIN, 1);
    for (name, iocb) in [
        ("events beyond 16 bits", Iocb { aio_buf: 1 << 16 | 1, ..good }),
        ("offset", Iocb { aio_offset: 1, ..good }),
        ("length", Iocb { aio_nbytes: 1, ..good }),
        ("flags", Iocb { aio_rw_flags: 1, ..good }),
        ("all events", Iocb { aio_buf: 0xffff, ..good }),
    ] {
        let answer = context.submit(&mut [iocb]);
        t.result(name, answer);
        if answer == 1 {
            let events = context.wait(1);
            t.say(format_args!("readable: {}", events.len() == 1 && events[0].res & 1 != 0));
        }
    }
}
case!(poll_fields => "
    events beyond 16 bits = -EINVAL
    offset = -EINVAL
    length = -EINVAL
    flags = -EINVAL
    all events = 1
    readable: true
");

fn poll_many(t: &mut Transcript) {
    let context = Context::new(64);
    let pipes: Vec<_> = (0..20).map(|_| files::pipe()).collect();
    let mut iocbs: Vec<_> =
        pipes.iter().zip(0..).map(|((reader, _), data)| aio::poll(reader, libc::POLLIN, data)).collect();
    t.result("submit", context.submit(&mut iocbs));
    for (_, writer) in pipes.iter().step_by(3) {
        files::put(writer, b"x");
    }
    aio::poll_events(t, context.wait(7));
}
case!(poll_many => "
    submit = 20
    event 0: IN
    event 3: IN
    event 6: IN
    event 9: IN
    event 12: IN
    event 15: IN
    event 18: IN
");

fn cancel_poll(t: &mut Transcript) {
    let context = Context::new(8);
    let (reader, _writer) = files::pipe();
    let mut iocbs = [aio::poll(&reader, libc::POLLIN, 1), aio::poll(&reader, libc::POLLIN, 2)];
    t.result("submit", context.submit(&mut iocbs));
    t.result("cancel", aio::cancel(context.0, &mut iocbs[1]));
    aio::poll_events(t, context.wait(1));
    t.result("again", aio::cancel(context.0, &mut iocbs[1]));
    t.result("the other", aio::cancel(context.0, &mut iocbs[0]));
    aio::poll_events(t, context.wait(1));
}
case!(cancel_poll => "
    submit = 2
    cancel = -EINPROGRESS
    event 2: -
    again = -EINVAL
    the other = -EINPROGRESS
    event 1: -
");

fn cancel_nothing(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let mut iocb = aio::read(file.as_raw_fd(), &mut buffer, 0, 1);
    t.result("before", aio::cancel(context.0, &mut iocb));
    t.result("submit", context.submit(std::slice::from_mut(&mut iocb)));
    t.result("a read", aio::cancel(context.0, &mut iocb));
    aio::events(t, context.wait(1));
    t.result("afterwards", aio::cancel(context.0, &mut iocb));
    iocb.aio_key = 5;
    t.result("another key", aio::cancel(context.0, &mut iocb));
}
case!(cancel_nothing => "
    before = -EINVAL
    submit = 1
    a read = -EINVAL
    event 1: 4 0
    afterwards = -EINVAL
    another key = -EINVAL
");

fn cancel_bad_pointers(t: &mut Transcript) {
    let context = Context::new(8);
    t.result("nowhere", aio::cancel(context.0, null_mut()));
    t.result("nowhere, of no context", aio::cancel(1, null_mut()));
}
case!(cancel_bad_pointers => "
    nowhere = -EFAULT
    nowhere, of no context = -EFAULT
");

/// A completed request no longer keeps its eventfd open. So once the program closes the eventfd,
/// the kernel removes it from the epoll set that contained it.
fn eventfd_that_is_closed(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let eventfd = files::eventfd(0);
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    // SAFETY: the epoll set's descriptor is new, and nothing else owns it.
    let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    // SAFETY: the event is read within the call.
    unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, eventfd.as_raw_fd(), &mut event) };
    let signals_eventfd =
        Iocb { aio_flags: IOCB_FLAG_RESFD, aio_resfd: eventfd.as_raw_fd() as u32, ..aio::sync(file.as_raw_fd(), 1) };
    t.result("sync", context.submit(&mut [signals_eventfd]));
    aio::events(t, context.wait(1));
    // SAFETY: epoll_wait(2) writes at most one event, a variable of this function.
    let mut readable = || unsafe { libc::epoll_wait(set.as_raw_fd(), &mut event, 1, 0) };
    t.say(format_args!("readable: {}", time::until(|| readable() == 1)));
    drop(eventfd);
    t.say(format_args!("gone when it is closed: {}", time::until(|| readable() == 0)));
}
case!(eventfd_that_is_closed => "
    sync = 1
    event 1: 0 0
    readable: true
    gone when it is closed: true
");
