//! io_setup and io_destroy, and the event ring that the kernel maps at the address of each context.

use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use crate::aio::{self, Context};
use crate::memory::{MissingPage, Pages};
use crate::transcript::Transcript;
use crate::{files, process, time};

mod removed;

fn setup_refuses(t: &mut Transcript) {
    let mut place = 0;
    t.result("nothing", aio::setup(0, &mut place));
    place = 1;
    t.result("something is there already", aio::setup(8, &mut place));
    place = 0;
    t.result("more than any context has", aio::setup(u32::MAX, &mut place));
    t.result("nowhere", aio::setup(8, null_mut()));
    t.say(format_args!("untouched: {}", place == 0));
    let pages = Pages::new(1);
    pages.protect_last(libc::PROT_READ);
    t.result("where nothing can be written", aio::setup(8, pages.address.cast()));
}
case!(setup_refuses => "
    nothing = -EINVAL
    something is there already = -EINVAL
    more than any context has = -EINVAL
    nowhere = -EFAULT
    untouched: true
    where nothing can be written = -EFAULT
");

fn more_than_the_system_allows(t: &mut Transcript) {
    let mut place = 0;
    let answer = aio::setup(3_000_000, &mut place);
    t.result("three million", answer);
    if answer == 0 {
        t.result("destroyed", aio::destroy(place));
    }
}
case!(more_than_the_system_allows => "three million = -EAGAIN", usring => "
    three million = 0
    destroyed = 0
", because
    "fs.aio-max-nr bounds what all processes take from the kernel, which io_setup takes nothing from here");

fn header(t: &mut Transcript) {
    for requests in [1, 128, 1000] {
        let context = Context::new(requests);
        let header = context.header();
        let enough = header.nr > requests;
        t.say(format_args!(
            "magic {:x}, features {} {}, first event at {}, head {}, tail {}, enough {enough}, whole pages {}",
            header.magic,
            header.compat_features,
            header.incompat_features,
            header.header_length,
            header.head,
            header.tail,
            (header.nr as usize + 1).is_multiple_of(128),
        ));
        t.say(format_args!("on a page of its own: {}", context.0.is_multiple_of(4096)));
    }
}
case!(header => "
    magic a10a10a1, features 1 0, first event at 32, head 0, tail 0, enough true, whole pages true
    on a page of its own: true
    magic a10a10a1, features 1 0, first event at 32, head 0, tail 0, enough true, whole pages true
    on a page of its own: true
    magic a10a10a1, features 1 0, first event at 32, head 0, tail 0, enough true, whole pages true
    on a page of its own: true
");

fn destroy(t: &mut Transcript) {
    let context = Context::new(8);
    t.result("destroy", aio::destroy(context.0));
    t.result("again", aio::destroy(context.0));
    let mut event = Default::default();
    t.result("events of it", aio::get(context.0, 0, 1, &mut event, &time::milliseconds(0)));
    t.result("submit to it", context.submit(&mut []));
}
case!(destroy => "
    destroy = 0
    again = -EINVAL
    events of it = -EINVAL
    submit to it = -EINVAL
");

fn unknown(t: &mut Transcript) {
    let mut event = Default::default();
    for context in [0, 1, 4096, u64::MAX, &raw const event as u64] {
        t.result("destroy", aio::destroy(context));
        t.result("submit", aio::submit(context, 0, std::ptr::null()));
        t.result("events", aio::get(context, 0, 1, &mut event, &time::milliseconds(0)));
        t.result("cancel", aio::cancel(context, &mut Default::default()));
    }
}
case!(unknown => "
    destroy = -EINVAL
    submit = -EINVAL
    events = -EINVAL
    cancel = -EINVAL
    destroy = -EINVAL
    submit = -EINVAL
    events = -EINVAL
    cancel = -EINVAL
    destroy = -EINVAL
    submit = -EINVAL
    events = -EINVAL
    cancel = -EINVAL
    destroy = -EINVAL
    submit = -EINVAL
    events = -EINVAL
    cancel = -EINVAL
    destroy = -EINVAL
    submit = -EINVAL
    events = -EINVAL
    cancel = -EINVAL
");

fn several_contexts(t: &mut Transcript) {
    let file = files::memory_file(b"content");
    let contexts: Vec<Context> = (0..4).map(|_| Context::new(8)).collect();
    let mut buffers = [[0u8; 7]; 4];
    for (index, (context, buffer)) in contexts.iter().zip(&mut buffers).enumerate() {
        t.result("submit", context.submit(&mut [aio::read(file.as_raw_fd(), buffer, 0, index as u64)]));
    }
    for context in contexts.iter().rev() {
        aio::events(t, context.wait(1));
    }
    drop(contexts);
    let again = Context::new(8);
    t.result("submit", again.submit(&mut [aio::read(file.as_raw_fd(), &mut buffers[0], 0, 9)]));
    aio::events(t, again.wait(1));
}
case!(several_contexts => "
    submit = 1
    submit = 1
    submit = 1
    submit = 1
    event 3: 7 0
    event 2: 7 0
    event 1: 7 0
    event 0: 7 0
    submit = 1
    event 9: 7 0
");

/// io_setup numbers contexts: a new context gets the lowest free number. An io_setup that fails
/// uses no number.
fn ids_are_used_again(t: &mut Transcript) {
    let (first, second) = (Context::new(8), Context::new(8));
    t.say(format_args!("ids {} and {}", first.header().id, second.header().id));
    drop(first);
    t.result("too large", aio::setup(u32::MAX, &mut 0));
    t.say(format_args!("id {}", Context::new(8).header().id));
    t.say(format_args!("id {}", Context::new(8).header().id));
}
case!(ids_are_used_again => "
    ids 0 and 1
    too large = -EINVAL
    id 0
    id 0
");

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("a list of mappings").lines().count()
}

/// io_setup has to write the new context's address to the program's memory. If it cannot, it frees
/// the context, so the failed calls leave no mappings.
fn failed_setup_leaves_no_mapping(t: &mut Transcript) {
    drop(Context::new(8));
    let pages = Pages::new(1);
    pages.protect_last(libc::PROT_READ);
    let before = mappings();
    for _ in 0..20 {
        assert_eq!(aio::setup(8, pages.address.cast()), -libc::EFAULT);
    }
    t.say(format_args!("more than 10 new mappings: {}", mappings() > before + 10));
}
case!(failed_setup_leaves_no_mapping => "more than 10 new mappings: false");

/// The kernel adds events to the event ring in memory without a system call by the program.
fn events_in_memory(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"content");
    let (reader, writer) = files::pipe();
    let mut buffer = [0; 7];
    let mut iocbs = [
        aio::read(file.as_raw_fd(), &mut buffer, 0, 1),
        aio::sync(file.as_raw_fd(), 2),
        aio::poll(&reader, libc::POLLIN, 3),
    ];
    t.result("submit", context.submit(&mut iocbs));
    let mut events = Vec::new();
    t.say(format_args!(
        "two of them: {}",
        time::until(|| {
            events.extend(context.reap());
            events.len() == 2
        })
    ));
    aio::events(t, std::mem::take(&mut events));
    files::put(&writer, b"x");
    t.say(format_args!(
        "the third: {}",
        time::until(|| {
            events.extend(context.reap());
            events.len() == 1
        })
    ));
    let of_iocb = events[0].obj == &raw const iocbs[2] as u64;
    t.say(format_args!("of its iocb: {of_iocb}"));
    aio::poll_events(t, events);
    t.say(format_args!("nothing more: {}", context.reap().is_none()));
}
case!(events_in_memory => "
    submit = 3
    two of them: true
    event 1: 7 0
    event 2: 0 0
    the third: true
    of its iocb: true
    event 3: IN
    nothing more: true
");

fn ring_wraps(t: &mut Transcript) {
    let context = Context::new(1);
    let file = files::memory_file(b"content");
    let slots = context.header().nr;
    let mut buffer = [0; 3];
    let mut wrong = 0;
    for round in 0..u64::from(slots) * 3 {
        let batch = 1 + round % 5;
        let mut iocbs: Vec<_> =
            (0..batch).map(|index| aio::read(file.as_raw_fd(), &mut buffer, 0, round * 8 + index)).collect();
        if context.submit(&mut iocbs) != batch as i32 {
            wrong += 1;
        }
        // Even rounds take the events by io_getevents. Odd rounds take them from the event ring in
        // memory.
        let mut events = if round % 2 == 0 { context.wait(batch as usize) } else { Vec::new() };
        while round % 2 == 1 && events.len() < batch as usize {
            events.extend(context.reap());
        }
        events.sort_by_key(|event| event.data);
        let right = events.iter().zip(0..).all(|(event, index)| event.data == round * 8 + index && event.res == 3);
        wrong += u64::from(!right || events.len() != batch as usize);
    }
    t.say(format_args!("wrong: {wrong}"));
}
case!(ring_wraps => "wrong: 0");

/// An event occupies a slot of the context's event ring until the program takes the event. Once all
/// slots are occupied, io_submit gets EAGAIN.
fn no_room(t: &mut Transcript) {
    let context = Context::new(1);
    let file = files::memory_file(b"content");
    let slots = context.header().nr as usize;
    let mut buffer = [0; 3];
    let mut taken = 0;
    let refused = loop {
        let answer = context.submit(&mut [aio::read(file.as_raw_fd(), &mut buffer, 0, 1)]);
        if answer != 1 {
            break answer;
        }
        taken += 1;
    };
    t.result("one too many", refused);
    // The kernel reserves some slots for each processor. So the program can submit fewer requests
    // than the ring has slots.
    t.say(format_args!("fewer than slots: {}, most of them: {}", taken < slots, taken > slots / 2));
    t.say(format_args!(
        "all there: {}",
        context.get(taken as i64, 512, time_limit()).map_or(0, |all| all.len()) == taken
    ));
    t.result("room again", context.submit(&mut [aio::read(file.as_raw_fd(), &mut buffer, 0, 2)]));
    aio::events(t, context.wait(1));
}
case!(no_room => "
    one too many = -EAGAIN
    fewer than slots: true, most of them: true
    all there: true
    room again = 1
    event 2: 3 0
");

fn time_limit() -> std::time::Duration {
    std::time::Duration::from_secs(30)
}

fn scribbled_head(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"content");
    let slots = context.header().nr;
    let mut buffer = [0; 3];
    // If the program stores a head beyond the ring's end, the kernel reduces it modulo the number
    // of slots.
    context.set_head(slots * 5);
    t.result("submit", context.submit(&mut [aio::read(file.as_raw_fd(), &mut buffer, 0, 1)]));
    aio::events(t, context.wait(1));
    let header = context.header();
    t.say(format_args!("head {} tail {}", header.head, header.tail));
}
case!(scribbled_head => "
    submit = 1
    event 1: 3 0
    head 1 tail 1
");

fn scribbled_id(t: &mut Transcript) {
    let context = Context::new(8);
    let id = context.header().id;
    for wrong in [id + 1, 4711, u32::MAX] {
        context.set_id(wrong);
        t.result("submit", context.submit(&mut []));
    }
    context.set_id(id);
    t.result("submit", context.submit(&mut []));
}
case!(scribbled_id => "
    submit = -EINVAL
    submit = -EINVAL
    submit = -EINVAL
    submit = 0
");

fn destroy_wakes_waiters(t: &mut Transcript) {
    let context = Context::new(8);
    let address = context.0;
    let waiters: Vec<_> = (0..3)
        .map(|least| {
            std::thread::spawn(move || {
                let mut events = [Default::default(); 4];
                aio::get(address, 1 + least, 4, events.as_mut_ptr(), std::ptr::null())
            })
        })
        .collect();
    time::long_enough_to_notice();
    t.result("destroy", aio::destroy(address));
    for waiter in waiters {
        t.result("waiter", waiter.join().expect("it does not panic"));
    }
}
case!(destroy_wakes_waiters => "
    destroy = 0
    waiter = -EINVAL
    waiter = -EINVAL
    waiter = -EINVAL
");

fn destroy_waits_for_transfers(t: &mut Transcript) {
    let file = files::memory_file(b"");
    let content = vec![b'x'; 1 << 20];
    for round in 0..8 {
        let context = Context::new(8);
        let mut iocbs: Vec<_> =
            (0..4).map(|index| aio::write(file.as_raw_fd(), &content, index << 20, index as u64)).collect();
        let submitted = context.submit(&mut iocbs);
        let destroyed = aio::destroy(context.0);
        let mut last = [0];
        // SAFETY: `last` is writable.
        let read = unsafe { libc::pread(file.as_raw_fd(), last.as_mut_ptr().cast(), 1, (4 << 20) - 1) };
        t.say(format_args!("{round}: {submitted} {destroyed}, all written: {}", read == 1 && last == *b"x"));
        // SAFETY: the call touches no memory.
        unsafe { libc::ftruncate(file.as_raw_fd(), 0) };
    }
}
case!(destroy_waits_for_transfers => "
    0: 4 0, all written: true
    1: 4 0, all written: true
    2: 4 0, all written: true
    3: 4 0, all written: true
    4: 4 0, all written: true
    5: 4 0, all written: true
    6: 4 0, all written: true
    7: 4 0, all written: true
");

fn destroy_ends_polls(t: &mut Transcript) {
    let context = Context::new(8);
    let (reader, _writer) = files::pipe();
    let eventfd = files::eventfd(0);
    let mut iocb = aio::poll(&reader, libc::POLLIN, 1);
    iocb.aio_flags = usring_uapi::aio::IOCB_FLAG_RESFD;
    iocb.aio_resfd = eventfd.as_raw_fd() as u32;
    t.result("submit", context.submit(&mut [iocb]));
    t.result("destroy", aio::destroy(context.0));
    t.say(format_args!("its eventfd was signalled {}", files::event_count(&eventfd)));
}
case!(destroy_ends_polls => "
    submit = 1
    destroy = 0
    its eventfd was signalled 1
");

fn child_has_no_context(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"content");
    let ending = process::forked(|| {
        let mut buffer = [0; 3];
        t.result("submit", context.submit(&mut [aio::read(file.as_raw_fd(), &mut buffer, 0, 1)]));
        let mut event = Default::default();
        t.result("events", aio::get(context.0, 1, 1, &mut event, std::ptr::null()));
        t.result("cancel", aio::cancel(context.0, &mut Default::default()));
        t.result("destroy", aio::destroy(context.0));
        0
    });
    t.say(ending);
    let mut buffer = [0; 3];
    t.result("submit", context.submit(&mut [aio::read(file.as_raw_fd(), &mut buffer, 0, 2)]));
    aio::events(t, context.wait(1));
}
case!(child_has_no_context => "
    submit = -EINVAL
    events = -EINVAL
    cancel = -EINVAL
    destroy = -EINVAL
    exit 0
    submit = 1
    event 2: 3 0
");

fn child_makes_its_own_context(t: &mut Transcript) {
    let file = files::memory_file(b"content");
    let mut buffer = [0; 3];
    let context = Context::new(8);
    t.result("submit", context.submit(&mut [aio::sync(file.as_raw_fd(), 1)]));
    let ending = process::forked(|| {
        let mut buffer = [0; 3];
        let own = Context::new(8);
        t.result("child's submit", own.submit(&mut [aio::sync(file.as_raw_fd(), 2)]));
        aio::events(t, own.wait(1));
        t.result("child's submit", own.submit(&mut [aio::read(file.as_raw_fd(), &mut buffer, 0, 3)]));
        aio::events(t, own.wait(1));
        0
    });
    t.say(ending);
    aio::events(t, context.wait(1));
    t.result("submit", context.submit(&mut [aio::read(file.as_raw_fd(), &mut buffer, 0, 4)]));
    aio::events(t, context.wait(1));
}
case!(child_makes_its_own_context => "
    submit = 1
    child's submit = 1
    event 2: 0 0
    child's submit = 1
    event 3: 3 0
    exit 0
    event 1: 0 0
    submit = 1
    event 4: 3 0
");

fn exit_with_requests_out(t: &mut Transcript) {
    let file = files::memory_file(&[b'.'; 1 << 16]);
    let (reader, _writer) = files::pipe();
    let ending = process::forked(|| {
        let context = Context::new(64);
        let mut buffers = vec![vec![0; 1 << 16]; 16];
        let mut iocbs: Vec<_> = buffers.iter_mut().map(|buffer| aio::read(file.as_raw_fd(), buffer, 0, 1)).collect();
        iocbs.push(aio::poll(&reader, libc::POLLIN, 2));
        iocbs.push(aio::sync(file.as_raw_fd(), 3));
        t.result("submit", context.submit(&mut iocbs));
        std::mem::forget(context);
        7
    });
    t.say(ending);
}
case!(exit_with_requests_out => "
    submit = 18
    exit 7
");

/// Submitted writes reach the file, even if the submitting process ends right after io_submit by
/// exit, execve(2) or SIGKILL.
fn submitted_writes_complete_after_process_end(t: &mut Transcript) {
    const WRITES: usize = 64;
    const LENGTH: usize = 1 << 16;
    for (kind, flags) in [("buffered", 0), ("direct", libc::O_DIRECT)] {
        for end in ["exit", "exec", "kill"] {
            let scratch = files::Scratch::new();
            drop(scratch.file("content", &vec![b'.'; WRITES * LENGTH]));
            let ending = process::forked(|| {
                // SAFETY: the path is a C string.
                let file = unsafe { libc::open(scratch.path_of("content").as_ptr(), libc::O_RDWR | flags) };
                let mut pages = Pages::new(LENGTH / 4096);
                pages.bytes().fill(b'x');
                let write = |place: usize| aio::write(file, pages.bytes(), (place * LENGTH) as i64, 1);
                let mut iocbs: Vec<_> = (0..WRITES).map(write).collect();
                let context = Context::new(WRITES as u32);
                if context.submit(&mut iocbs) != WRITES as i32 {
                    return 1;
                }
                std::mem::forget(context);
                match end {
                    // SAFETY: the path and the program's name are C strings, and a null pointer
                    // ends the arguments.
                    "exec" => unsafe { libc::execl(c"/bin/true".as_ptr(), c"true".as_ptr(), null_mut::<i8>()) },
                    // SAFETY: the call sends a signal to this process.
                    "kill" => unsafe { libc::kill(libc::getpid(), libc::SIGKILL) },
                    _ => 0,
                }
            });
            let content = std::fs::read(scratch.path.join("content")).expect("the file");
            let written = content.iter().filter(|byte| **byte == b'x').count() / LENGTH;
            t.say(format_args!("{kind}, {end}: {ending}, {written} written"));
        }
    }
}
case!(submitted_writes_complete_after_process_end => "
    buffered, exit: exit 0, 64 written
    buffered, exec: exit 0, 64 written
    buffered, kill: signal 9, 64 written
    direct, exit: exit 0, 64 written
    direct, exec: exit 0, 64 written
    direct, kill: signal 9, 64 written
");

/// io_submit can sleep in the middle of its batch. Here its first write reads from a page that this
/// process supplies only later (userfaultfd). During the sleep, other threads can use the context,
/// and the later iocbs of the batch have not started.
fn sleeping_submit_delays_no_other_thread(t: &mut Transcript) {
    let Some(page) = MissingPage::new() else {
        return t.say("the system has no userfaultfd for us");
    };
    let context = Context::new(8);
    let (file, other) = (files::memory_file(b"some content"), files::memory_file(b"some content"));
    // SAFETY: the page stays mapped as long as `page` lives. Only io_submit reads the slice, and it
    // waits until the page is supplied.
    let missing = unsafe { std::slice::from_raw_parts(page.address() as *const u8, 4) };
    let mut behind = [0; 12];
    let number = file.as_raw_fd();
    let mut batch = [aio::write(number, missing, 0, 1), aio::read(number, &mut behind, 0, 2)];
    let submitter = std::thread::scope(|scope| {
        let submitter = scope.spawn(|| context.submit(&mut batch));
        t.say(format_args!("io_submit sleeps {}", page.is_missed()));
        aio::events(t, context.get(0, 4, std::time::Duration::ZERO).unwrap_or_default());
        let mut buffer = [0; 4];
        let requests = [aio::read(other.as_raw_fd(), &mut buffer, 0, 3), aio::write(other.as_raw_fd(), b"SOME", 0, 4)];
        for request in requests {
            t.result("another", context.submit(&mut [request]));
            aio::events(t, context.wait(1));
        }
        let (reader, writer) = files::pipe();
        t.result("a poll", context.submit(&mut [aio::poll(&reader, libc::POLLIN, 5)]));
        files::put(&writer, b"x");
        aio::poll_events(t, context.wait(1));
        page.supply();
        submitter.join().expect("it does not panic")
    });
    t.result("submit", submitter);
    aio::events(t, context.wait(2));
    t.say(format_args!("{:?}", String::from_utf8_lossy(&behind)));
    t.say(files::text(&other));
}
case!(sleeping_submit_delays_no_other_thread => "
    io_submit sleeps true
    no event
    another = 1
    event 3: 4 0
    another = 1
    event 4: 4 0
    a poll = 1
    event 5: IN
    submit = 2
    event 1: 4 0
    event 2: 12 0
    \"\\0\\0\\0\\0 content\"
    SOME content
");
