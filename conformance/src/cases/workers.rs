//! Workers: how many there are, on which processors they run, and in which order they execute
//! requests.

use std::os::fd::AsRawFd;

use super::reg;
use crate::files;
use crate::memory::BAD;
use crate::ring::Ring;
use crate::sqe::{Change, read, write};
use crate::transcript::Transcript;

fn set(ring: &Ring, limits: &mut [u32; 2]) -> i32 {
    ring.register(reg::IOWQ_MAX_WORKERS, limits.as_mut_ptr(), 2)
}

/// IOWQ_MAX_WORKERS sets two limits and returns the previous ones. A limit of 0 leaves the previous
/// limit in force.
fn limits(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut values = [5, 7];
    t.result("set 5 7", set(&ring, &mut values));
    t.say(format_args!("before: more than none {}", values[0] > 0 && values[1] > 0));
    let mut values = [0, 0];
    t.result("ask", set(&ring, &mut values));
    t.say(format_args!("{values:?}"));
    let mut values = [2, 0];
    t.result("set 2 -", set(&ring, &mut values));
    t.say(format_args!("{values:?}"));
    let mut values = [0, 0];
    t.result("ask", set(&ring, &mut values));
    t.say(format_args!("{values:?}"));
}
case!(limits => "
    set 5 7 = 0
    before: more than none true
    ask = 0
    [5, 7]
    set 2 - = 0
    [5, 7]
    ask = 0
    [2, 7]
");

fn limits_wrong(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut values = [0u32; 4];
    let place = values.as_mut_ptr();
    t.result("null", ring.register::<u8>(reg::IOWQ_MAX_WORKERS, std::ptr::null(), 2));
    t.result("unmapped", ring.register(reg::IOWQ_MAX_WORKERS, BAD as *const u8, 2));
    t.result("count 1", ring.register(reg::IOWQ_MAX_WORKERS, place, 1));
    t.result("count 3", ring.register(reg::IOWQ_MAX_WORKERS, place, 3));
    values = [u32::MAX, 1, 0, 0];
    t.result("too many", ring.register(reg::IOWQ_MAX_WORKERS, values.as_mut_ptr(), 2));
}
case!(limits_wrong => "
    null = -EINVAL
    unmapped = -EFAULT
    count 1 = -EINVAL
    count 3 = -EINVAL
    too many = -EINVAL
");

/// The limit is one worker, and its request waits. So the second request waits for the first one.
fn one_at_a_time(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    t.result("set", set(&ring, &mut [1, 1]));
    let (first, second) = (files::Fifo::new(), files::Fifo::new());
    ring.push(first.open(1));
    ring.submit();
    crate::time::long_enough_to_notice();
    ring.push(second.open(2));
    ring.submit();
    let _second = second.release();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    let _first = first.release();
    for entry in ring.wait(2) {
        t.outcome(format_args!("open {}", entry.user_data), entry.res.into());
    }
}
case!(one_at_a_time => "
    set = 0
    no cqe
    open 1 = ok
    open 2 = ok
");

/// Unbounded workers execute requests on pipes and sockets, and bounded workers those on regular
/// files. The two kinds have separate limits. So a busy worker of one kind does not delay requests
/// of the other kind.
fn unbounded_beside_bounded(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    t.result("set", set(&ring, &mut [1, 1]));
    let fifo = files::Fifo::new();
    let (reader, writer) = files::pipe();
    files::put(&writer, b"x");
    let mut byte = [0u8; 1];
    ring.push(fifo.open(1));
    ring.submit();
    crate::time::long_enough_to_notice();
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 2).forced_async());
    ring.submit();
    t.in_order(&ring.wait(1));
    let _other = fifo.release();
    for entry in ring.wait(1) {
        t.outcome(format_args!("open {}", entry.user_data), entry.res.into());
    }
}
case!(unbounded_beside_bounded => "
    set = 0
    cqe 2: 1
    open 1 = ok
");

/// A request with IOSQE_ASYNC waits for a file with poll support. The worker arms a poll, so the
/// request occupies no worker while it waits.
fn waiting_pipe_occupies_none(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    t.result("set", set(&ring, &mut [1, 1]));
    let (one, first) = files::pipe();
    let (two, second) = files::pipe();
    let (mut a, mut b) = ([0u8; 1], [0u8; 1]);
    ring.push(read(one.as_raw_fd(), &mut a, 0, 1).forced_async());
    ring.push(read(two.as_raw_fd(), &mut b, 0, 2).forced_async());
    ring.submit();
    files::put(&second, b"x");
    t.in_order(&ring.wait(1));
    files::put(&first, b"x");
    t.in_order(&ring.wait(1));
}
case!(waiting_pipe_occupies_none => "
    set = 0
    cqe 2: 1
    cqe 1: 1
");

fn affinity(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mask = [1u64; 1];
    t.result("cpu 0", ring.register(reg::IOWQ_AFF, mask.as_ptr(), 8));
    let file = files::memory_file(b"x");
    let mut byte = [0u8; 1];
    t.entry(&ring.one(read(file.as_raw_fd(), &mut byte, 0, 1).forced_async()));
    let none: *const u8 = std::ptr::null();
    t.result("null", ring.register(reg::IOWQ_AFF, none, 8));
    t.result("unmapped", ring.register(reg::IOWQ_AFF, BAD as *const u8, 8));
    t.result("length 0", ring.register(reg::IOWQ_AFF, mask.as_ptr(), 0));
    t.result("unregister", ring.register(reg::UNREGISTER_IOWQ_AFF, none, 0));
    t.result("unregister, count 1", ring.register(reg::UNREGISTER_IOWQ_AFF, none, 1));
}
case!(affinity => "
    cpu 0 = 0
    cqe 1: 1
    null = -EINVAL
    unmapped = -EFAULT
    length 0 = -EINVAL
    unregister = 0
    unregister, count 1 = -EINVAL
");

/// Returns the list of processors on which a worker of this process may run, as the kernel prints
/// it.
fn processors_of_worker() -> Option<String> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let mut workers = statuses.filter(|status| status.starts_with("Name:\tiou-wrk"));
    let status = workers.next()?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).map(String::from)
}

fn affinity_is_kept(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let fifo = files::Fifo::new();
    t.result("cpu 0", ring.register(reg::IOWQ_AFF, [1u64; 1].as_ptr(), 8));
    ring.push(fifo.open(1));
    ring.submit();
    let placed = crate::time::until(|| processors_of_worker().as_deref() == Some("0"));
    t.say(format_args!("the worker is there {placed}"));
    let _other = fifo.release();
    for entry in ring.wait(1) {
        t.outcome("open", entry.res.into());
    }
}
case!(affinity_is_kept => "
    cpu 0 = 0
    the worker is there true
    open = ok
");

fn affinity_of_no_processor(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.result("none", ring.register(reg::IOWQ_AFF, [0u64; 1].as_ptr(), 8));
    t.result("cpu 500", ring.register(reg::IOWQ_AFF, [0, 0, 0, 0, 0, 0, 0, 1u64 << 52].as_ptr(), 64));
    t.result("cpu 60", ring.register(reg::IOWQ_AFF, [1u64 << 60].as_ptr(), 8));
    t.result("cpu 60 and 0", ring.register(reg::IOWQ_AFF, [1u64 << 60 | 1].as_ptr(), 8));
    t.result("one byte", ring.register(reg::IOWQ_AFF, [1u8; 1].as_ptr(), 1));
    t.result("longer than any", ring.register(reg::IOWQ_AFF, [1u64, 0].repeat(1000).as_ptr(), 8 * 2000));
    let file = files::memory_file(b"x");
    let mut byte = [0u8; 1];
    t.entry(&ring.one(read(file.as_raw_fd(), &mut byte, 0, 1).forced_async()));
}
case!(affinity_of_no_processor => "
    none = 0
    cpu 500 = 0
    cpu 60 = 0
    cpu 60 and 0 = 0
    one byte = 0
    longer than any = 0
    cqe 1: 1
");

fn many_blocking(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let (reader, writer) = files::pipe();
    let mut buffers = [[0u8; 1]; 32];
    for (index, buffer) in buffers.iter_mut().enumerate() {
        ring.push(read(reader.as_raw_fd(), buffer, 0, index as u64).forced_async());
    }
    t.result("submit", ring.submit());
    files::put(&writer, &[b'x'; 32]);
    let entries = ring.wait(32);
    t.say(format_args!("read {}", entries.iter().filter(|entry| entry.res == 1).count()));
}
case!(many_blocking => "
    submit = 32
    read 32
");

/// Several workers write to one file with O_APPEND. No write is lost, and no two writes are mixed.
fn writes_to_one_file(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let file = files::memory_file(b"");
    // SAFETY: the call touches no memory.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) };
    let lines: Vec<[u8; 4]> = (0..50).map(|index| [b'a' + index % 26; 4]).collect();
    for (index, line) in lines.iter().enumerate() {
        ring.push(write(file.as_raw_fd(), line, 0, index as u64).forced_async());
    }
    t.result("submit", ring.submit());
    let entries = ring.wait(50);
    t.say(format_args!("written {}", entries.iter().filter(|entry| entry.res == 4).count()));
    let content = files::content(&file);
    t.say(format_args!("length {}", content.len()));
    let whole = content.chunks(4).filter(|chunk| chunk.iter().all(|byte| *byte == chunk[0]));
    t.say(format_args!("whole {}", whole.count()));
    // The kernel does not guarantee the order of the writes, so the case sorts the lines.
    let sorted = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes.sort_unstable();
        bytes
    };
    t.say(format_args!("every line once {}", sorted(&content) == sorted(&lines.concat())));
}
case!(writes_to_one_file => "
    submit = 50
    written 50
    length 200
    whole 50
    every line once true
");

/// The close of a ring interrupts the blocking calls of the ring's workers.
fn ring_closes(t: &mut Transcript) {
    let fifo = files::Fifo::new();
    let mut ring = Ring::new(8);
    for user_data in 1..=3 {
        ring.push(fifo.open(user_data));
    }
    t.result("submit", ring.submit());
    crate::time::long_enough_to_notice();
    drop(ring);
    // `has_no_reader` would itself end the wait of a worker. So the case calls it only once, a
    // second after the close.
    std::thread::sleep(std::time::Duration::from_secs(1));
    t.say(format_args!("deserted {}", fifo.has_no_reader()));
}
case!(ring_closes => "
    submit = 3
    deserted true
");
