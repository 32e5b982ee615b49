//! What the tests share: bounds, ways to drive a ring, files.

#[path = "../../../../xtask/src/skipped.rs"]
pub mod skipped;

use crate::ring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longest time that anything here may take; far more than it does, because
/// machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test in a thread of its own and fails if that hangs.
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
    match wait.recv_timeout(PATIENCE) {
        Ok(()) => thread.join().expect("it has said that it is done"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("a test that returns says so"),
        },
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
    }
}

/// Waits until something has become true, without telling anybody to hurry.
#[track_caller]
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < end, "{what}: not after {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// A completion, as tests look at it.
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

/// Pushes requests whose memory the test keeps alive.
#[track_caller]
pub fn push(ring: &mut IoUring, entries: &[squeue::Entry]) {
    // SAFETY: every test keeps what its requests name until they are done or
    // the ring is gone, or names a bad address on purpose.
    unsafe { ring.submission().push_multiple(entries).expect("the ring is large enough for the test") };
}

/// Pushes and submits.
#[track_caller]
pub fn submit(ring: &mut IoUring, entries: &[squeue::Entry]) {
    push(ring, entries);
    assert_eq!(ring.submit().expect("submit"), entries.len(), "all are taken");
}

/// Waits for `count` more completions, in the order in which they come.
#[track_caller]
pub fn collect(ring: &mut IoUring, count: usize) -> Vec<Done> {
    let mut found = Vec::new();
    let end = Instant::now() + PATIENCE;
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

/// One wait; a time-out is no error here.
#[track_caller]
pub fn wait_at_most(ring: &IoUring, want: usize, time: Duration) {
    let time = types::Timespec::from(time);
    match ring.submitter().submit_with_args(want, &types::SubmitArgs::new().timespec(&time)) {
        Ok(_) => {}
        Err(error) if [Some(libc::ETIME), Some(libc::EINTR)].contains(&error.raw_os_error()) => {}
        Err(error) => panic!("wait: {error}"),
    }
}

/// The completions of these requests, by user data.
#[track_caller]
pub fn run(ring: &mut IoUring, entries: &[squeue::Entry]) -> Vec<Done> {
    submit(ring, entries);
    let mut done = collect(ring, entries.len());
    done.sort_by_key(|done| done.user_data);
    done
}

/// The result of one request.
#[track_caller]
pub fn result(ring: &mut IoUring, entry: squeue::Entry) -> i32 {
    run(ring, &[entry])[0].result
}

/// Nothing completes for a moment that is long for the engine.
#[track_caller]
pub fn stays_quiet(ring: &mut IoUring) {
    wait_at_most(ring, 1, Duration::from_millis(20));
    let surprise: Vec<Done> = ring.completion().map(Done::from).collect();
    assert!(surprise.is_empty(), "nothing should have completed: {surprise:?}");
}

pub fn nop(user_data: u64) -> squeue::Entry {
    opcode::Nop::new().build().user_data(user_data)
}

/// A read that may be named by anything.
pub fn read(fd: &impl AsRawFd, buffer: &mut [u8]) -> squeue::Entry {
    opcode::Read::new(types::Fd(fd.as_raw_fd()), buffer.as_mut_ptr(), buffer.len() as u32).offset(u64::MAX).build()
}

pub fn write(fd: &impl AsRawFd, data: &[u8]) -> squeue::Entry {
    opcode::Write::new(types::Fd(fd.as_raw_fd()), data.as_ptr(), data.len() as u32).offset(u64::MAX).build()
}

pub fn timespec(time: Duration) -> types::Timespec {
    types::Timespec::from(time)
}

/// A file without a name, with this in it, at its start.
pub fn file_with(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(content).expect("write");
    io::Seek::rewind(&mut file).expect("seek");
    file
}

/// Both ends of a pipe: to read from, to write to.
pub fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends: [RawFd; 2] = [0; 2];
    // SAFETY: an array of two.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: both were just handed out to us.
    unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) }
}

/// Writes to a pipe that has room.
pub fn put(fd: &OwnedFd, data: &[u8]) {
    // SAFETY: the slice.
    let written = unsafe { libc::write(fd.as_raw_fd(), data.as_ptr().cast(), data.len()) };
    assert_eq!(written, data.len() as isize);
}

/// Reads what is there.
pub fn get(fd: &OwnedFd, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    // SAFETY: the vector's bytes.
    let read = unsafe { libc::read(fd.as_raw_fd(), data.as_mut_ptr().cast(), length) };
    data.truncate(usize::try_from(read).expect("read"));
    data
}

/// A named pipe. To open its reading end occupies a worker until somebody opens
/// the other one: nothing can be polled for, and to create (which it says) is
/// never tried without blocking.
pub struct Fifo {
    directory: tempfile::TempDir,
    path: std::ffi::CString,
}

impl Fifo {
    pub fn new() -> Fifo {
        use std::os::unix::ffi::OsStrExt;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = std::ffi::CString::new(directory.path().join("fifo").as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: a string.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        Fifo { directory, path }
    }

    /// The request that waits.
    pub fn open(&self) -> squeue::Entry {
        opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), self.path.as_ptr())
            .flags(libc::O_RDONLY | libc::O_CREAT | libc::O_CLOEXEC)
            .mode(0o600)
            .build()
            .flags(squeue::Flags::ASYNC)
    }

    /// Lets all that wait go on.
    pub fn release(&self) {
        let both = File::options().read(true).write(true).open(self.directory.path().join("fifo"));
        // It stays open, for those that are only about to wait.
        std::mem::forget(both.expect("the pipe is there"));
    }
}

/// Closes what requests have opened.
#[track_caller]
pub fn close_all(done: &[Done]) {
    for done in done {
        assert!(done.result >= 0, "open: {done:?}");
        // SAFETY: the ring has just handed it out.
        drop(unsafe { OwnedFd::from_raw_fd(done.result) });
    }
}

/// What a request answers whose system call was broken off. (The third is the
/// kernel's own, which lets it out here.)
pub fn was_broken_off(result: i32) -> bool {
    [negative(libc::ECANCELED), negative(libc::EINTR), -512].contains(&result)
}

/// A non-blocking eventfd.
pub fn event() -> OwnedFd {
    // SAFETY: no memory is named.
    let number = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    assert!(number >= 0);
    // SAFETY: just handed out to us.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// What an eventfd has counted since the last look.
pub fn count(event: &OwnedFd) -> u64 {
    let mut value = 0u64;
    // SAFETY: eight bytes.
    match unsafe { libc::read(event.as_raw_fd(), (&raw mut value).cast(), 8) } {
        8 => value,
        _ => 0,
    }
}

/// The first of the processors that this thread may run on.
pub fn allowed_processor() -> u32 {
    // SAFETY: plain numbers; zero is an empty set.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set, and what the system says of this thread.
    let first = unsafe {
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut allowed);
        (0..libc::CPU_SETSIZE as usize).find(|&processor| libc::CPU_ISSET(processor, &allowed))
    };
    first.expect("it runs somewhere") as u32
}

/// As many as the process may ever have: what it was started with may be 1024.
pub fn take_all_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure, twice.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

/// Whether this number is this very file: others of the process's threads may
/// have taken a number that was closed.
pub fn is_open_as(number: RawFd, file: &File) -> bool {
    // SAFETY: plain numbers; zeroes are some file's that there is not.
    let (mut found, mut wanted): (libc::stat, libc::stat) = unsafe { std::mem::zeroed() };
    // SAFETY: the structures.
    let answers = unsafe { (libc::fstat(number, &mut found), libc::fstat(file.as_raw_fd(), &mut wanted)) };
    answers == (0, 0) && (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)
}

/// Threads of this process that the engine has started under this name.
pub fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc");
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|comm| comm.trim_end() == name)
        .count()
}
