//! Common functions of the tests: time limits, driving a ring, files and pipes.

#[path = "../../../../xtask/src/skipped.rs"]
pub mod skipped;

use crate::ring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time limit of each step of a test. It is far more than a step needs, because the machine may be
/// busy.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a test in a new thread. Fails if the test takes longer than [`TIMEOUT`].
#[track_caller]
pub fn bounded(test: impl FnOnce() + Send + 'static) {
    if !crate::RUNS_HERE() {
        return;
    }
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match wait.recv_timeout(TIMEOUT) {
        Ok(()) => thread.join().expect("it has said that it is done"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("a test that returns says so"),
        },
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
    }
}

/// Repeats a check until it is true, without a call that could wake another thread. Fails after
/// [`TIMEOUT`].
#[track_caller]
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !is_true() {
        assert!(Instant::now() < end, "{what}: not after {TIMEOUT:?}");
        std::thread::yield_now();
    }
}

/// A completion, for use in assertions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub user_data: u64,
    pub result: i32,
    pub flags: u32,
}

impl From<cqueue::Entry> for Done {
    fn from(entry: cqueue::Entry) -> Done {
        Done { user_data: entry.user_data(), result: entry.result(), flags: entry.flags() }
    }
}

impl Done {
    pub fn has_more(&self) -> bool {
        cqueue::more(self.flags)
    }

    pub fn buffer(&self) -> Option<u16> {
        cqueue::buffer_select(self.flags)
    }
}

pub const fn negative(errno: i32) -> i32 {
    -errno
}

/// Pushes requests. The calling test keeps their memory alive.
#[track_caller]
pub fn push(ring: &mut IoUring, entries: &[squeue::Entry]) {
    // SAFETY: every test keeps the memory of its requests until they have completed or the ring is
    // dropped. Some name a bad address on purpose.
    unsafe { ring.submission().push_multiple(entries).expect("the ring is large enough for the test") };
}

/// Pushes and submits requests.
#[track_caller]
pub fn submit(ring: &mut IoUring, entries: &[squeue::Entry]) {
    push(ring, entries);
    assert_eq!(ring.submit().expect("submit"), entries.len(), "all are taken");
}

/// Waits for `count` more completions, and returns them in the order in which they were posted.
#[track_caller]
pub fn collect(ring: &mut IoUring, count: usize) -> Vec<Done> {
    let mut found = Vec::new();
    let end = Instant::now() + TIMEOUT;
    loop {
        found.extend(ring.completion().take(count - found.len()).map(Done::from));
        if found.len() == count {
            return found;
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "only {} of {count} completions came: {found:?}", found.len());
        wait_at_most(ring, 1, left);
    }
}

/// Waits once for `want` completions, but no longer than `time`. The timeout is not an error.
#[track_caller]
pub fn wait_at_most(ring: &IoUring, want: usize, time: Duration) {
    let time = types::Timespec::from(time);
    match ring.submitter().submit_with_args(want, &types::SubmitArgs::new().timespec(&time)) {
        Ok(_) => {}
        Err(error) if [Some(libc::ETIME), Some(libc::EINTR)].contains(&error.raw_os_error()) => {}
        Err(error) => panic!("wait: {error}"),
    }
}

/// Submits requests, waits for all of them, and returns their completions sorted by user data.
#[track_caller]
pub fn run(ring: &mut IoUring, entries: &[squeue::Entry]) -> Vec<Done> {
    submit(ring, entries);
    let mut done = collect(ring, entries.len());
    done.sort_by_key(|done| done.user_data);
    done
}

/// Submits a request, waits for it, and returns its result.
#[track_caller]
pub fn result(ring: &mut IoUring, entry: squeue::Entry) -> i32 {
    run(ring, &[entry])[0].result
}

/// Checks that no request completes within 20 ms.
#[track_caller]
pub fn stays_quiet(ring: &mut IoUring) {
    wait_at_most(ring, 1, Duration::from_millis(20));
    let surprise: Vec<Done> = ring.completion().map(Done::from).collect();
    assert!(surprise.is_empty(), "nothing should have completed: {surprise:?}");
}

pub fn nop(user_data: u64) -> squeue::Entry {
    opcode::Nop::new().build().user_data(user_data)
}

/// Returns a read request at the file's current position.
pub fn read(fd: &impl AsRawFd, buffer: &mut [u8]) -> squeue::Entry {
    opcode::Read::new(types::Fd(fd.as_raw_fd()), buffer.as_mut_ptr(), buffer.len() as u32).offset(u64::MAX).build()
}

pub fn write(fd: &impl AsRawFd, data: &[u8]) -> squeue::Entry {
    opcode::Write::new(types::Fd(fd.as_raw_fd()), data.as_ptr(), data.len() as u32).offset(u64::MAX).build()
}

pub fn timespec(time: Duration) -> types::Timespec {
    types::Timespec::from(time)
}

/// Returns an unnamed file that contains `content`. Its position is 0.
pub fn file_with(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(content).expect("write");
    io::Seek::rewind(&mut file).expect("seek");
    file
}

/// Returns the reading end and the writing end of a new pipe.
pub fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends: [RawFd; 2] = [0; 2];
    // SAFETY: the array has two numbers.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: the call has just made both descriptors, and no other code knows them.
    unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) }
}

/// Writes all of `data` to a pipe that has room for it.
pub fn put(fd: &OwnedFd, data: &[u8]) {
    // SAFETY: the call reads the slice.
    let written = unsafe { libc::write(fd.as_raw_fd(), data.as_ptr().cast(), data.len()) };
    assert_eq!(written, data.len() as isize);
}

/// Reads up to `length` bytes from a pipe.
pub fn get(fd: &OwnedFd, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    // SAFETY: the call writes to the vector's bytes.
    let read = unsafe { libc::read(fd.as_raw_fd(), data.as_mut_ptr().cast(), length) };
    data.truncate(usize::try_from(read).expect("read"));
    data
}

/// A FIFO. A request to open its reading end occupies a worker until a thread opens the other end,
/// because no poll can wait for that. The requests use O_CREAT, so the engine passes them to a
/// worker at once and makes no non-blocking attempt.
pub struct Fifo {
    directory: tempfile::TempDir,
    path: std::ffi::CString,
}

impl Fifo {
    pub fn new() -> Fifo {
        use std::os::unix::ffi::OsStrExt;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = std::ffi::CString::new(directory.path().join("fifo").as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: the call only reads the path, which ends with a NUL.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        Fifo { directory, path }
    }

    /// Returns an open request that waits in a worker.
    pub fn open(&self) -> squeue::Entry {
        opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), self.path.as_ptr())
            .flags(libc::O_RDONLY | libc::O_CREAT | libc::O_CLOEXEC)
            .mode(0o600)
            .build()
            .flags(squeue::Flags::ASYNC)
    }

    /// Opens the FIFO's other end, so that all requests of [`Fifo::open`] complete.
    pub fn release(&self) {
        let both = File::options().read(true).write(true).open(self.directory.path().join("fifo"));
        // Both ends stay open, because requests to open the FIFO may not have started yet.
        std::mem::forget(both.expect("the pipe is there"));
    }
}

/// Closes the files that these requests have opened.
#[track_caller]
pub fn close_all(done: &[Done]) {
    for done in done {
        assert!(done.result >= 0, "open: {done:?}");
        // SAFETY: a request has just opened the descriptor, and no other code has it.
        drop(unsafe { OwnedFd::from_raw_fd(done.result) });
    }
}

/// Returns whether a result says that the request's system call was interrupted: ECANCELED, EINTR,
/// or −512 (ERESTARTSYS, an internal number that the kernel shows here).
pub fn was_broken_off(result: i32) -> bool {
    [negative(libc::ECANCELED), negative(libc::EINTR), -512].contains(&result)
}

/// Returns a non-blocking eventfd.
pub fn event() -> OwnedFd {
    // SAFETY: the call names no memory.
    let number = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    assert!(number >= 0);
    // SAFETY: the call has just made the descriptor, and no other code knows it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Returns the eventfd's counter and resets it to 0.
pub fn count(event: &OwnedFd) -> u64 {
    let mut value = 0u64;
    // SAFETY: the call writes eight bytes.
    match unsafe { libc::read(event.as_raw_fd(), (&raw mut value).cast(), 8) } {
        8 => value,
        _ => 0,
    }
}

/// Returns the first of the processors that this thread may run on.
pub fn allowed_processor() -> u32 {
    // SAFETY: the set is plain numbers, and zero is an empty set.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills the set, which is then read.
    let first = unsafe {
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut allowed);
        (0..libc::CPU_SETSIZE as usize).find(|&processor| libc::CPU_ISSET(processor, &allowed))
    };
    first.expect("it runs somewhere") as u32
}

/// Raises the soft limit of open files to the hard limit, because the soft limit may be only 1,024.
pub fn take_all_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and write the structure.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

/// Returns whether the descriptor `number` refers to `file`. The number may be open and refer to
/// another file, because another thread can reuse a closed number.
pub fn is_open_as(number: RawFd, file: &File) -> bool {
    // SAFETY: the structures are plain numbers.
    let (mut found, mut wanted): (libc::stat, libc::stat) = unsafe { std::mem::zeroed() };
    // SAFETY: the calls fill the structures.
    let answers = unsafe { (libc::fstat(number, &mut found), libc::fstat(file.as_raw_fd(), &mut wanted)) };
    answers == (0, 0) && (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)
}

/// Returns how many threads of this process are named `name`. (The engine names its threads.)
pub fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc");
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|comm| comm.trim_end() == name)
        .count()
}
