//! The memory, descriptors and threads that rings use, and when rings release them.

use crate::alone_and_bounded;
use crate::support::*;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use usring::{IoUring, opcode, squeue, types};

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Returns the processor time that this process has used.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Elapsed time and processor time of a piece of work.
#[derive(Debug)]
struct Span {
    passed: Duration,
    of_processor: Duration,
}

impl Span {
    fn of<T>(work: impl FnOnce() -> T) -> Span {
        let (start, before) = (Instant::now(), processor_time());
        work();
        Span { of_processor: processor_time() - before, passed: start.elapsed() }
    }

    /// Returns whether the process slept for most of the time. A spinning thread would use a whole
    /// processor, however fast the machine is.
    fn is_idle(&self) -> bool {
        self.of_processor < self.passed / 5
    }
}

/// Returns a ring with requests of every kind in flight. Its drop has to cancel them.
fn busy_ring(reader: &impl AsRawFd, fifo: &Fifo, buffer: &mut [u8; 4]) -> IoUring {
    let mut ring = IoUring::new(16).unwrap();
    let far = timespec(Duration::from_secs(1000));
    ring.as_raw_fd();
    ring.submitter().register_files(&[reader.as_raw_fd(), -1]).unwrap();
    let entries = [
        read(reader, buffer).flags(squeue::Flags::IO_LINK),
        opcode::LinkTimeout::new(&far).build().flags(squeue::Flags::IO_LINK),
        nop(2),
        fifo.open(),
        opcode::Timeout::new(&far).build(),
        opcode::PollAdd::new(types::Fixed(0), libc::POLLIN as u32).multi(true).build(),
        nop(6).flags(squeue::Flags::IO_DRAIN),
        nop(7),
    ];
    submit(&mut ring, &entries);
    ring
}

#[test]
fn dropped_rings_free_their_descriptors_and_memory() {
    alone_and_bounded(|| {
        let ((reader, _writer), fifo, mut buffer) = (pipe(), Fifo::new(), [0; 4]);
        const ROUNDS: usize = 100;
        // These rounds run before the first measurement, because libc keeps stacks and arenas for
        // the largest number of threads that ever ran at once.
        (0..20).for_each(|_| drop(busy_ring(&reader, &fifo, &mut buffer)));
        let before = (open_descriptors(), mappings());
        (0..ROUNDS).for_each(|_| drop(busy_ring(&reader, &fifo, &mut buffer)));
        eventually("descriptors are as before", || open_descriptors() <= before.0);
        // libc may keep a few more mappings, if more threads happened to run at once. A leak would
        // be one mapping for each ring.
        eventually("mappings are as before", || mappings() <= before.1 + ROUNDS / 2);
    });
}

#[test]
fn an_idle_ring_is_small() {
    alone_and_bounded(|| {
        let before = resident();
        let mut rings: Vec<_> = (0..100).map(|_| IoUring::new(256).unwrap()).collect();
        for ring in &mut rings {
            assert_eq!(result(ring, nop(1)), 0);
        }
        let each = resident().saturating_sub(before) / rings.len();
        assert!(each < 256 * 1024, "{each} bytes for each ring of 256 entries");
    });
}

#[test]
fn idle_rings_use_no_processor_time() {
    alone_and_bounded(|| {
        let ((reader, _writer), fifo, mut buffers) = (pipe(), Fifo::new(), [[0; 4]; 6]);
        let mut rings: Vec<_> = buffers.iter_mut().map(|buffer| busy_ring(&reader, &fifo, buffer)).collect();
        let mut polled: IoUring = IoUring::builder().setup_sqpoll(1).build(4).unwrap();
        eventually("the SQ thread sleeps", || polled.submission().need_wakeup());
        rings[0].completion().sync();
        let quiet = Span::of(|| std::thread::sleep(Duration::from_millis(300)));
        assert!(quiet.is_idle(), "{quiet:?}");
    });
}

#[test]
fn one_ring_watcher_serves_all_rings_and_sq_threads_end_with_their_rings() {
    alone_and_bounded(|| {
        const SQ_THREAD: &str = "iou-sqp";
        eventually("no SQ thread of another test", || threads_named(SQ_THREAD) == 0);
        let rings: Vec<_> = (0..50).map(|_| IoUring::new(4).unwrap()).collect();
        let polled = |attach: Option<&IoUring>| -> IoUring {
            let mut builder = IoUring::builder();
            builder.setup_sqpoll(10_000);
            if let Some(ring) = attach {
                builder.setup_attach_wq(ring.as_raw_fd());
            }
            builder.build(4).unwrap()
        };
        let first = polled(None);
        let attached = [polled(Some(&first)), polled(Some(&first))];
        let other = polled(None);
        eventually("there are two threads for four rings", || threads_named(SQ_THREAD) == 2);
        drop(first);
        drop(other);
        eventually("one SQ thread is left", || threads_named(SQ_THREAD) == 1);
        drop(attached);
        eventually("none is left", || threads_named(SQ_THREAD) == 0);
        // By now the ring watcher has started and set its name.
        assert_eq!(threads_named("usring-watcher"), 1);
        drop(rings);
    });
}

/// Returns how many descriptors of this process refer to the file at `path`.
fn descriptors_of(path: &Path) -> usize {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    numbers.filter(|number| std::fs::read_link(number.as_ref().unwrap().path()).is_ok_and(|file| file == path)).count()
}

/// A child process that holds a record lock on a file until this value is dropped.
struct Holder(libc::pid_t);

impl Holder {
    fn of(file: &impl AsRawFd) -> Holder {
        let (mut reader, writer) = std::io::pipe().unwrap();
        // SAFETY: the child makes only system calls before it ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let lock = libc::flock { l_type: libc::F_WRLCK as _, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
            // SAFETY: the calls only read a structure and a byte. The last call ends this process.
            unsafe {
                let locked = libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock);
                libc::write(writer.as_raw_fd(), [b'x'; 1].as_ptr().cast(), usize::from(locked == 0));
                libc::close(writer.as_raw_fd());
                libc::pause();
                libc::_exit(0);
            }
        }
        drop(writer);
        assert!(child > 0);
        let holder = Holder(child);
        reader.read_exact(&mut [0]).expect("the child has the lock");
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // SAFETY: the process is a child of this one and has not been waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn a_file_kept_open_for_its_lock_is_closed_once_it_is_unlocked() {
    alone_and_bounded(|| {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut ring = IoUring::new(4).unwrap();
        let holder = Holder::of(&file);
        assert_eq!(result(&mut ring, opcode::Fsync::new(types::Fd(file.as_raw_fd())).build()), 0);
        assert_eq!(descriptors_of(file.path()), 2, "a close would cost locks");
        drop(holder);
        eventually("only our own is open", || descriptors_of(file.path()) == 1);
    });
}

/// Environment variable that is set in the process which the test below starts.
const IN_SANDBOX: &str = "USRING_TEST_IN_SANDBOX";

#[test]
fn ring_creation_fails_with_enomem_without_madv_wipeonfork() {
    if std::env::var_os(IN_SANDBOX).is_some() {
        let error = IoUring::new(4).err().and_then(|error| error.raw_os_error());
        return assert_eq!(error, Some(libc::ENOMEM));
    }
    // Starts a new process, because the engine of this process already has its page with
    // MADV_WIPEONFORK.
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "resources::ring_creation_fails_with_enomem_without_madv_wipeonfork"]);
    again.env(IN_SANDBOX, "");
    // SAFETY: between fork and exec, the function makes two system calls that use only its own
    // memory.
    let output = unsafe { again.pre_exec(deny_wipe_on_fork) }.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Installs a seccomp filter that answers EINVAL to madvise(MADV_WIPEONFORK), as a kernel without
/// this advice does.
fn deny_wipe_on_fork() -> std::io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let unless = |value: u32, skip: u8| libc::sock_filter {
        jf: skip,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value)
    };
    let load = |offset: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let answer = |value: u32| statement(libc::BPF_RET | libc::BPF_K, value);
    // In struct seccomp_data, the system call's number is at offset 0 and the third argument at
    // offset 32.
    let mut filter = [
        load(0),
        unless(libc::SYS_madvise as u32, 3),
        load(32),
        unless(libc::MADV_WIPEONFORK as u32, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and the filter that it points to live until the calls are over.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if installed { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn a_hangup_of_an_idle_registered_file_uses_no_processor_time() {
    alone_and_bounded(|| {
        let ((local, remote), (reader, _writer)) = (UnixStream::pair().unwrap(), pipe());
        let (mut buffer, mut waiting) = ([0; 4], [0; 4]);
        let mut ring = IoUring::new(4).unwrap();
        ring.submitter().register_files(&[local.as_raw_fd()]).unwrap();
        submit(
            &mut ring,
            &[opcode::Read::new(types::Fixed(0), buffer.as_mut_ptr(), 4).build(), read(&reader, &mut waiting)],
        );
        (&remote).write_all(b"data").unwrap();
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
        drop(remote);
        let inside = Span::of(|| wait_at_most(&ring, 1, Duration::from_millis(300)));
        let outside = Span::of(|| std::thread::sleep(Duration::from_millis(300)));
        assert!(inside.is_idle(), "in a wait: {inside:?}");
        assert!(outside.is_idle(), "beside the program: {outside:?}");
    });
}

/// Returns whether a process holds a record lock on the file of `probe`. The caller opens `probe`
/// before the lock is taken: closing a newer descriptor of the file would drop this process's
/// locks.
fn is_locked(probe: &impl AsRawFd) -> bool {
    let mut lock = libc::flock { l_type: libc::F_WRLCK as _, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: fcntl reads and writes the structure.
    assert_eq!(unsafe { libc::fcntl(probe.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) }, 0);
    lock.l_type != libc::F_UNLCK as i16
}

#[track_caller]
fn lock(file: &impl AsRawFd) {
    let lock = libc::flock { l_type: libc::F_WRLCK as _, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: fcntl reads the structure.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) }, 0);
}

#[test]
fn a_locked_file_that_is_registered_repeatedly_keeps_one_descriptor() {
    alone_and_bounded(|| {
        let file = tempfile::NamedTempFile::new().unwrap();
        let ring = IoUring::new(4).unwrap();
        lock(&file);
        for _ in 0..100 {
            ring.submitter().register_files(&[file.as_raw_fd()]).unwrap();
            ring.submitter().unregister_files().unwrap();
        }
        assert!(descriptors_of(file.path()) <= 2, "{} descriptors", descriptors_of(file.path()));
    });
}

#[test]
fn record_locks_survive_a_wait_on_a_reused_descriptor_number() {
    alone_and_bounded(|| {
        let ((local, remote), mut buffer) = (UnixStream::pair().unwrap(), [0; 4]);
        let mut ring = IoUring::new(4).unwrap();
        submit(&mut ring, &[read(&local, &mut buffer)]);
        (&remote).write_all(b"data").unwrap();
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
        let (mut master, mut terminal) = (0, 0);
        let null = std::ptr::null_mut();
        // SAFETY: openpty writes two numbers, and both descriptors belong to the test.
        let probe = unsafe {
            assert_eq!(libc::openpty(&raw mut master, &raw mut terminal, null, null.cast(), null.cast()), 0);
            let path = std::ffi::CStr::from_ptr(libc::ttyname(terminal)).to_owned();
            // With O_NOCTTY the terminal does not become the controlling terminal of the tests.
            let mut options = std::fs::OpenOptions::new();
            options.read(true).write(true).custom_flags(libc::O_NOCTTY);
            let probe = options.open(path.to_str().unwrap()).unwrap();
            assert_eq!(libc::dup2(terminal, local.as_raw_fd()), local.as_raw_fd());
            probe
        };
        lock(&local);
        assert!(is_locked(&probe));
        submit(&mut ring, &[read(&local, &mut buffer)]);
        // SAFETY: write reads two bytes.
        assert_eq!(unsafe { libc::write(master, b"x\n".as_ptr().cast(), 2) }, 2);
        assert_eq!(collect(&mut ring, 1)[0].result, 2);
        assert_eq!(result(&mut ring, nop(1)), 0);
        assert!(is_locked(&probe), "the lock is lost");
    });
}
