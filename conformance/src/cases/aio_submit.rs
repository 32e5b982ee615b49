//! io_submit: which iocbs it accepts and refuses, and their results.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use usring_uapi::aio::{IOCB_FLAG_RESFD, Iocb};

use crate::aio::{self, Context};
use crate::memory::Pages;
use crate::transcript::Transcript;
use crate::{files, time};

mod arguments;

fn one(t: &mut Transcript, context: &Context, what: &str, iocb: Iocb) {
    let answer = context.submit(&mut [iocb]);
    t.result(what, answer);
    if answer == 1 {
        aio::events(t, context.wait(1));
    }
}

fn read_and_write(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 7];
    one(t, &context, "read", aio::read(file.as_raw_fd(), &mut buffer, 5, 1));
    t.say(String::from_utf8_lossy(&buffer));
    one(t, &context, "read beyond the end", aio::read(file.as_raw_fd(), &mut buffer, 9, 2));
    one(t, &context, "read far beyond the end", aio::read(file.as_raw_fd(), &mut buffer, 900, 3));
    one(t, &context, "write", aio::write(file.as_raw_fd(), b"SOME", 0, 4));
    one(t, &context, "write behind the end", aio::write(file.as_raw_fd(), b"!", 12, 5));
    one(t, &context, "read nothing", aio::read(file.as_raw_fd(), &mut [], 0, 6));
    one(t, &context, "write nothing", aio::write(file.as_raw_fd(), &[], 0, 7));
    t.say(files::text(&file));
    t.say(format_args!("position {}", files::position(&file)));
}
case!(read_and_write => "
    read = 1
    event 1: 7 0
    content
    read beyond the end = 1
    event 2: 3 0
    read far beyond the end = 1
    event 3: 0 0
    write = 1
    event 4: 4 0
    write behind the end = 1
    event 5: 1 0
    read nothing = 1
    event 6: 0 0
    write nothing = 1
    event 7: 0 0
    SOME content!
    position 0
");

/// io_submit completes a write through the page cache before it reads the next iocb. So a read
/// behind the write in one batch sees the written bytes.
fn read_behind_write(t: &mut Transcript) {
    let context = Context::new(8);
    let scratch = files::Scratch::new();
    let file = scratch.file("content", b"some content");
    let mut buffer = [0; 4];
    let number = file.as_raw_fd();
    t.result("submit", context.submit(&mut [aio::write(number, b"SOME", 0, 1), aio::read(number, &mut buffer, 0, 2)]));
    context.wait(2);
    t.say(String::from_utf8_lossy(&buffer));
}
case!(read_behind_write => "
    submit = 2
    SOME
");

fn vector(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

fn vectors(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let (mut first, mut second) = ([0; 4], [0; 16]);
    one(t, &context, "read", aio::read_vector(file.as_raw_fd(), &[vector(&mut first), vector(&mut second)], 1, 1));
    t.say(format_args!("{:?} {:?}", String::from_utf8_lossy(&first), String::from_utf8_lossy(&second[..7])));
    one(t, &context, "none", aio::read_vector(file.as_raw_fd(), &[], 1, 2));
    one(t, &context, "one", aio::read_vector(file.as_raw_fd(), &[vector(&mut first)], 1, 3));
    let (mut first, mut second) = (*b"SOME", *b"-CON");
    let list = [vector(&mut first), vector(&mut []), vector(&mut second)];
    one(t, &context, "write", aio::write_vector(file.as_raw_fd(), &list, 0, 4));
    t.say(files::text(&file));
}
case!(vectors => "
    read = 1
    event 1: 11 0
    \"ome \" \"content\"
    none = 1
    event 2: 0 0
    one = 1
    event 3: 4 0
    write = 1
    event 4: 8 0
    SOME-CONtent
");

fn sync(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    one(t, &context, "fsync", aio::sync(file.as_raw_fd(), 1));
    one(t, &context, "fdsync", aio::data_sync(file.as_raw_fd(), 2));
}
case!(sync => "
    fsync = 1
    event 1: 0 0
    fdsync = 1
    event 2: 0 0
");

fn eventfd(t: &mut Transcript) {
    let context = Context::new(64);
    let file = files::memory_file(b"some content");
    let (eventfd, other) = (files::eventfd(0), files::eventfd(0));
    let (reader, writer) = files::pipe();
    let mut buffer = [0; 4];
    let with = |iocb: Iocb, eventfd: &std::os::fd::OwnedFd| Iocb {
        aio_flags: IOCB_FLAG_RESFD,
        aio_resfd: eventfd.as_raw_fd() as u32,
        ..iocb
    };
    let read = aio::read(file.as_raw_fd(), &mut buffer, 0, 1);
    let mut iocbs = [
        with(read, &eventfd),
        with(read, &eventfd),
        with(read, &other),
        with(read, &eventfd),
        read,
        with(aio::sync(file.as_raw_fd(), 2), &eventfd),
    ];
    t.result("submit", context.submit(&mut iocbs));
    aio::events(t, context.wait(6));
    let mut count = 0;
    time::until(|| {
        count += files::event_count(&eventfd);
        count >= 4
    });
    t.say(format_args!("signalled {count}, the other {}", files::event_count(&other)));
    t.result("poll", context.submit(&mut [with(aio::poll(&reader, libc::POLLIN, 3), &eventfd)]));
    t.say(format_args!("signalled {}", files::event_count(&eventfd)));
    files::put(&writer, b"x");
    time::until(|| {
        count = files::event_count(&eventfd);
        count > 0
    });
    t.say(format_args!("signalled {count}"));
    // The kernel adds the event to the event ring before it signals the eventfd.
    t.say(format_args!("an event is there: {}", context.reap().is_some()));
    // The case closes this eventfd while the poll request still waits. The request keeps the
    // eventfd open.
    t.result("poll", context.submit(&mut [with(aio::poll(&reader, libc::POLLPRI, 4), &other)]));
}
case!(eventfd => "
    submit = 6
    event 1: 4 0
    event 1: 4 0
    event 1: 4 0
    event 1: 4 0
    event 1: 4 0
    event 2: 0 0
    signalled 4, the other 1
    poll = 1
    signalled 0
    signalled 1
    an event is there: true
    poll = 1
");

fn bad_eventfd(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let read = Iocb { aio_flags: IOCB_FLAG_RESFD, ..aio::read(file.as_raw_fd(), &mut buffer, 0, 1) };
    one(t, &context, "no descriptor", Iocb { aio_resfd: u32::MAX, ..read });
    one(t, &context, "closed", Iocb { aio_resfd: 4711, ..read });
    one(t, &context, "a file", Iocb { aio_resfd: file.as_raw_fd() as u32, ..read });
    let bad_file = Iocb { aio_resfd: file.as_raw_fd() as u32, aio_fildes: u32::MAX, ..read };
    one(t, &context, "and a bad file", bad_file);
}
case!(bad_eventfd => "
    no descriptor = -EBADF
    closed = -EBADF
    a file = -EINVAL
    and a bad file = -EBADF
");

fn submit_sets_the_key(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let read = Iocb { aio_key: 4711, ..aio::read(file.as_raw_fd(), &mut buffer, 0, 1) };
    let mut iocbs = [read, Iocb { aio_rw_flags: 1 << 20, ..read }, Iocb { aio_fildes: u32::MAX, ..read }];
    for iocb in &mut iocbs {
        t.result("submit", context.submit(std::slice::from_mut(iocb)));
        t.say(format_args!("key {}", iocb.aio_key));
    }
    aio::events(t, context.wait(1));
}
case!(submit_sets_the_key => "
    submit = 1
    key 0
    submit = -EOPNOTSUPP
    key 0
    submit = -EBADF
    key 4711
    event 1: 4 0
");

fn iocb_may_be_reused(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let mut iocb = aio::read(file.as_raw_fd(), &mut buffer, 0, 1);
    let mut list = vec![vector(&mut buffer)];
    t.result("submit", context.submit(std::slice::from_mut(&mut iocb)));
    iocb = aio::read_vector(file.as_raw_fd(), &list, 0, 2);
    t.result("submit", context.submit(std::slice::from_mut(&mut iocb)));
    list[0].iov_len = usize::MAX;
    iocb = Iocb { aio_data: 77, ..Iocb::default() };
    aio::events(t, context.wait(2));
    t.say(format_args!("{}", iocb.aio_data));
}
case!(iocb_may_be_reused => "
    submit = 1
    submit = 1
    event 1: 4 0
    event 2: 4 0
    77
");

fn file_closed_meanwhile(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let (reader, writer) = files::pipe();
    t.result("submit", context.submit(&mut [aio::sync(file.as_raw_fd(), 1), aio::poll(&reader, libc::POLLIN, 2)]));
    drop(file);
    drop(reader);
    aio::events(t, context.wait(1));
    files::put(&writer, b"x");
    aio::poll_events(t, context.wait(1));
}
case!(file_closed_meanwhile => "
    submit = 2
    event 1: 0 0
    event 2: IN
");

fn many(t: &mut Transcript) {
    let context = Context::new(128);
    let file = files::memory_file(&[b'.'; 8192]);
    let mut buffers = vec![[0u8; 64]; 128];
    let mut iocbs: Vec<_> = buffers
        .iter_mut()
        .enumerate()
        .map(|(index, buffer)| aio::read(file.as_raw_fd(), buffer, 64 * index as i64, index as u64))
        .collect();
    t.result("submit", context.submit(&mut iocbs));
    let mut events = Vec::new();
    while events.len() < 128 {
        let more = context.wait(1);
        if more.is_empty() {
            break;
        }
        events.extend(more);
    }
    events.sort_by_key(|event| event.data);
    let right = events.iter().zip(0..).all(|(event, data)| event.data == data && event.res == 64);
    let objects = events.iter().zip(&iocbs).all(|(event, iocb)| event.obj == &raw const *iocb as u64);
    t.say(format_args!("{} events, right: {right}, of their iocbs: {objects}", events.len()));
}
case!(many => "
    submit = 128
    128 events, right: true, of their iocbs: true
");

fn direct(t: &mut Transcript) {
    let scratch = files::Scratch::new();
    drop(scratch.file("content", &[b'd'; 8192]));
    let path = scratch.path_of("content");
    // SAFETY: the path is a C string.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_DIRECT) };
    let context = Context::new(8);
    let mut pages = Pages::new(2);
    let read = aio::read(file, &mut pages.bytes()[..4096], 0, 1);
    one(t, &context, "read", read);
    one(t, &context, "write", aio::write(file, &pages.bytes()[..4096], 4096, 2));
    one(t, &context, "an odd offset", Iocb { aio_offset: 7, ..read });
    one(t, &context, "an odd length", Iocb { aio_nbytes: 7, ..read });
    one(t, &context, "sync", aio::sync(file, 3));
}
case!(direct => "
    read = 1
    event 1: 4096 0
    write = 1
    event 2: 4096 0
    an odd offset = 1
    event 1: -EINVAL 0
    an odd length = 1
    event 1: -EINVAL 0
    sync = 1
    event 3: 0 0
");

/// AIO requests work on a file that was opened with O_TMPFILE. The open names only a directory, so
/// the file has no name.
fn file_without_a_name(t: &mut Transcript) {
    // SAFETY: the path is a C string.
    let file = unsafe { libc::open(c"/var/tmp".as_ptr(), libc::O_RDWR | libc::O_TMPFILE | libc::O_CLOEXEC, 0o600) };
    let context = Context::new(8);
    one(t, &context, "write", aio::write(file, b"content", 0, 1));
    let mut buffer = [0; 7];
    one(t, &context, "read", aio::read(file, &mut buffer, 0, 2));
    one(t, &context, "sync", aio::sync(file, 3));
    t.say(String::from_utf8_lossy(&buffer));
}
case!(file_without_a_name => "
    write = 1
    event 1: 7 0
    read = 1
    event 2: 7 0
    sync = 1
    event 3: 0 0
    content
");

fn append(t: &mut Transcript) {
    let scratch = files::Scratch::new();
    drop(scratch.file("content", b"content"));
    let path = scratch.path_of("content");
    // SAFETY: the path is a C string.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_APPEND) };
    let context = Context::new(8);
    one(t, &context, "write", aio::write(file, b"more", 0, 1));
    let mut buffer = [0; 11];
    one(t, &context, "read", aio::read(file, &mut buffer, 0, 2));
    t.say(String::from_utf8_lossy(&buffer));
}
case!(append => "
    write = 1
    event 1: 4 0
    read = 1
    event 2: 11 0
    contentmore
");

fn nonblocking_streams(t: &mut Transcript) {
    let context = Context::new(8);
    let mut buffer = [0; 4];
    let (reader, writer) = files::pipe_with(libc::O_NONBLOCK);
    one(t, &context, "read an empty pipe", aio::read(reader.as_raw_fd(), &mut buffer, 0, 1));
    drop(writer);
    one(t, &context, "read a closed pipe", aio::read(reader.as_raw_fd(), &mut buffer, 0, 2));
    let counter = files::eventfd(0);
    one(t, &context, "read an eventfd", aio::read(counter.as_raw_fd(), &mut [0; 8], 0, 3));
}
case!(nonblocking_streams => "
    read an empty pipe = 1
    event 1: -EAGAIN 0
    read a closed pipe = 1
    event 2: 0 0
    read an eventfd = 1
    event 3: -EAGAIN 0
");

/// O_NONBLOCK has no effect on a regular file: a read of uncached data waits for the disk.
fn nonblocking_file_that_is_not_cached(t: &mut Transcript) {
    let context = Context::new(8);
    let scratch = files::Scratch::new();
    let file = scratch.file("content", &[7; 1 << 20]);
    files::set_nonblocking(&file, true);
    // SAFETY: the calls touch no memory of the process.
    unsafe {
        libc::fsync(file.as_raw_fd());
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
    }
    let mut buffer = vec![0; 4096];
    one(t, &context, "read", aio::read(file.as_raw_fd(), &mut buffer, 1 << 19, 1));
}
case!(nonblocking_file_that_is_not_cached => "
    read = 1
    event 1: 4096 0
");

/// Several threads submit requests while another thread takes the events. Each event arrives
/// exactly once.
fn threads(t: &mut Transcript) {
    const EACH: u64 = 500;
    let context = Context::new(512);
    let file = files::memory_file(&[b'.'; 4096]);
    let (address, number) = (context.0, file.as_raw_fd());
    let submitters: Vec<_> = (0..3u64)
        .map(|thread| {
            std::thread::spawn(move || {
                let context = std::mem::ManuallyDrop::new(Context(address));
                let mut buffer = [0; 16];
                for index in 0..EACH {
                    let mut iocb = aio::read(number, &mut buffer, 0, thread * EACH + index);
                    while context.submit(std::slice::from_mut(&mut iocb)) != 1 {
                        std::thread::yield_now();
                    }
                    if index % 7 == 0 {
                        // Lets other threads run. No read into `buffer` is in flight here: the file
                        // is in the page cache, so each read completes within io_submit.
                        std::thread::yield_now();
                    }
                }
                buffer
            })
        })
        .collect();
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let takers: Vec<_> = (0..2)
        .map(|_| {
            std::thread::spawn(move || {
                let context = std::mem::ManuallyDrop::new(Context(address));
                let mut seen = Vec::new();
                while TAKEN.load(Ordering::SeqCst) < 3 * EACH {
                    let events = context.get(1, 16, std::time::Duration::from_millis(100)).unwrap_or_default();
                    TAKEN.fetch_add(events.len() as u64, Ordering::SeqCst);
                    seen.extend(events.iter().map(|event| event.data));
                }
                seen
            })
        })
        .collect();
    let mut seen: Vec<u64> = takers.into_iter().flat_map(|taker| taker.join().expect("it does not panic")).collect();
    submitters.into_iter().for_each(|submitter| drop(submitter.join()));
    seen.sort_unstable();
    t.say(format_args!("each once: {}", seen.iter().copied().eq(0..3 * EACH)));
}
case!(threads => "each once: true");
