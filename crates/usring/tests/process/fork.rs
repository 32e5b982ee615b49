//! Forked children: the parent's rings answer EOWNERDEAD in a child, the child's own rings work,
//! and no child hangs.

use crate::alone_and_bounded;
use crate::support::skipped::skip;
use crate::support::*;
use std::ffi::{CStr, CString};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use usring::aio::{Context, IOCB_CMD_PWRITE, IoEvent, Iocb};
use usring::{IoUring, opcode, squeue, types};

/// Runs `body` in a forked child and returns the child's exit status. Kills a child that hangs, and
/// fails.
#[track_caller]
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child has one thread and ends with _exit. Before that it only makes calls and
    // allocates, which glibc supports in a child.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(99);
        // SAFETY: the call ends this process.
        unsafe { libc::_exit(status) };
    }
    assert!(child > 0);
    let end = Instant::now() + TIMEOUT / 2;
    loop {
        let mut status = 0;
        // SAFETY: the call writes only `status`.
        if unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
            assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
            return libc::WEXITSTATUS(status);
        }
        if Instant::now() > end {
            // SAFETY: the process is a child of this one and has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: the call writes only `status`.
            unsafe { libc::waitpid(child, &mut status, 0) };
            panic!("the child hangs");
        }
        std::thread::yield_now();
    }
}

/// Returns the errno of an error as an exit status, and 0 for success.
fn errno<T>(outcome: std::io::Result<T>) -> i32 {
    outcome.err().map_or(0, |error| error.raw_os_error().unwrap_or(98))
}

#[test]
fn a_child_gets_an_error_from_its_parents_ring() {
    alone_and_bounded(|| {
        let (mut ring, (reader, writer)) = (IoUring::new(8).unwrap(), pipe());
        let mut buffer = [0; 4];
        submit(&mut ring, &[read(&reader, &mut buffer)]);
        push(&mut ring, &[nop(1)]);
        assert_eq!(in_child(|| errno(ring.submit())), libc::EOWNERDEAD);
        assert_eq!(in_child(|| errno(ring.submit_and_wait(1))), libc::EOWNERDEAD);
        assert_eq!(in_child(|| errno(ring.submitter().register_personality())), libc::EOWNERDEAD);
        assert_eq!(in_child(|| errno(ring.submitter().squeue_wait())), libc::EOWNERDEAD);
        assert_eq!(in_child(|| errno(ring.map(0, 64))), libc::EOWNERDEAD);
        assert_eq!(in_child(|| ring.as_raw_fd() & 0x7f), 0x7f, "-1");
        assert_eq!(ring.submit().unwrap(), 1, "the parent's ring still works");
        assert_eq!(collect(&mut ring, 1)[0].user_data, 1);
        put(&writer, b"data");
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
    });
}

#[test]
fn a_child_may_drop_its_parents_rings() {
    alone_and_bounded(|| {
        let (reader, writer) = pipe();
        let mut buffers = [[0; 4]; 2];
        let [first, second] = &mut buffers;
        let mut ring = IoUring::new(8).unwrap();
        ring.as_raw_fd();
        submit(&mut ring, &[read(&reader, first), read(&reader, second).flags(squeue::Flags::ASYNC)]);
        let polled: IoUring = IoUring::builder().setup_sqpoll(5).build(4).unwrap();
        let mut rings = Some((ring, polled));
        let status = in_child(|| {
            drop(rings.take());
            5
        });
        assert_eq!(status, 5);
        let (mut ring, mut polled) = rings.expect("the parent still has both rings");
        put(&writer, b"12345678");
        assert!(collect(&mut ring, 2).iter().all(|done| done.result == 4));
        push(&mut polled, &[nop(1)]);
        polled.submit().unwrap();
        assert_eq!(collect(&mut polled, 1)[0].user_data, 1);
    });
}

#[test]
fn a_child_makes_rings_of_its_own() {
    alone_and_bounded(|| {
        let mut parents = IoUring::new(8).unwrap();
        run(&mut parents, &[nop(1)]);
        let status = in_child(|| {
            let (mut ring, (reader, writer)) = (IoUring::new(8).unwrap(), pipe());
            let (mut buffers, time) = ([[0; 4]; 2], timespec(Duration::from_millis(5)));
            let [first, second] = &mut buffers;
            let entries = [
                read(&reader, first),
                read(&reader, second).flags(squeue::Flags::ASYNC),
                opcode::Timeout::new(&time).build(),
                nop(1),
            ];
            submit(&mut ring, &entries);
            put(&writer, b"12345678");
            collect(&mut ring, 4).iter().map(|done| done.result).sum::<i32>() + libc::ETIME
        });
        assert_eq!(status, 8);
        assert_eq!(result(&mut parents, nop(2)), 0);
    });
}

#[test]
fn a_grandchild_works_too() {
    alone_and_bounded(|| {
        let _parents = IoUring::new(8).unwrap();
        let status = in_child(|| {
            let ring = IoUring::new(8).unwrap();
            in_child(|| {
                let mut own = IoUring::new(8).unwrap();
                errno(ring.submit()) - libc::EOWNERDEAD + 3 + result(&mut own, nop(1))
            })
        });
        assert_eq!(status, 3);
    });
}

#[test]
fn forks_at_any_moment_hang_no_process() {
    alone_and_bounded(|| {
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let (mut ring, (reader, writer)) = (IoUring::new(8).unwrap(), pipe());
                    let mut buffer = [0; 4];
                    while !ended.load(Ordering::SeqCst) {
                        let flags = squeue::Flags::ASYNC;
                        submit(&mut ring, &[nop(1), read(&reader, &mut buffer).flags(flags), write(&writer, b"data")]);
                        assert_eq!(collect(&mut ring, 3).len(), 3);
                    }
                });
            }
            // In a child, calls on the inherited ring `shared` are refused. The child's own ring
            // makes the engine's per-process state anew.
            let shared = IoUring::new(8).unwrap();
            for _ in 0..60 {
                let status = in_child(|| {
                    let refused = errno(shared.submit_and_wait(1));
                    let mut own = IoUring::new(4).unwrap();
                    let file = [7; 1];
                    let (reader, writer) = pipe();
                    let mut byte = [0];
                    submit(&mut own, &[read(&reader, &mut byte).flags(squeue::Flags::ASYNC)]);
                    put(&writer, &file);
                    let done = collect(&mut own, 1)[0].result;
                    if refused == libc::EOWNERDEAD && done == 1 { 0 } else { 1 }
                });
                assert_eq!(status, 0);
            }
            ended.store(true, Ordering::SeqCst);
        });
    });
}

#[test]
fn processes_are_started_while_requests_are_in_flight() {
    alone_and_bounded(|| {
        let (mut ring, (reader, writer)) = (IoUring::new(8).unwrap(), pipe());
        let mut buffers = [[0; 4]; 2];
        let [first, second] = &mut buffers;
        submit(&mut ring, &[read(&reader, first), read(&reader, second).flags(squeue::Flags::ASYNC)]);
        for _ in 0..20 {
            assert!(Command::new("/bin/true").status().unwrap().success());
        }
        put(&writer, b"12345678");
        assert!(collect(&mut ring, 2).iter().all(|done| done.result == 4));
    });
}

#[test]
fn a_child_may_close_all_descriptors() {
    alone_and_bounded(|| {
        let (mut ring, (reader, writer)) = (IoUring::new(8).unwrap(), pipe());
        let mut buffer = [0; 4];
        let number = ring.as_raw_fd();
        assert!(number >= 0);
        submit(&mut ring, &[read(&reader, &mut buffer)]);
        let status = in_child(|| {
            // SAFETY: this process does not use its descriptors after this call.
            unsafe { libc::close_range(3, u32::MAX, 0) };
            4
        });
        assert_eq!(status, 4);
        put(&writer, b"data");
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
    });
}

#[test]
fn a_ring_with_madv_dontfork_gives_an_error_in_a_child() {
    alone_and_bounded(|| {
        let mut ring: IoUring = IoUring::builder().dontfork().build(8).unwrap();
        assert_eq!(result(&mut ring, nop(1)), 0);
        assert_eq!(in_child(|| errno(ring.submitter().register_personality())), libc::EOWNERDEAD);
        assert_eq!(result(&mut ring, nop(2)), 0);
    });
}

/// The engine passes a limited number of requests to the kernel at a time. The other requests wait.
/// All of them name one file, so they share one duplicate of its descriptor.
#[test]
fn a_deep_context_needs_few_descriptors() {
    alone_and_bounded(|| {
        const COUNT: usize = 6000;
        let status = in_child(|| {
            let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
            // SAFETY: setrlimit reads the structure.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
            let context = Context::new(2 * COUNT as u32).unwrap();
            let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
            let write = |index: usize| Iocb {
                aio_lio_opcode: IOCB_CMD_PWRITE,
                aio_fildes: files[index % 2].as_raw_fd() as u32,
                aio_buf: b"x".as_ptr() as u64,
                aio_nbytes: 1,
                aio_offset: index as i64,
                ..Iocb::default()
            };
            let mut iocbs: Vec<Iocb> = (0..COUNT).map(write).collect();
            let list: Vec<*mut Iocb> = iocbs.iter_mut().map(|iocb| &raw mut *iocb).collect();
            // SAFETY: the iocbs and their buffers live until the child ends.
            assert_eq!(unsafe { context.submit(&list) }.unwrap(), COUNT);
            let mut events = vec![IoEvent::default(); COUNT];
            assert_eq!(context.events(COUNT, &mut events, None).unwrap(), COUNT);
            events.iter().filter(|event| event.res != 1).count().min(90) as i32
        });
        assert_eq!(status, 0, "the number of failed writes");
    });
}

/// Returns the result of a worker's open of `path`, negative for an error.
fn opened_by_worker(ring: &mut IoUring, path: &CStr, personality: u16) -> i32 {
    let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).flags(libc::O_RDONLY | libc::O_CLOEXEC);
    result(ring, open.build().flags(squeue::Flags::ASYNC).personality(personality))
}

#[test]
fn workers_and_personalities_have_the_rights_that_libcs_setresuid_leaves() {
    // SAFETY: the call only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return skip("only root can give up rights");
    }
    alone_and_bounded(|| {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = CString::new(file.path().as_os_str().as_bytes()).unwrap();
        let mut results = std::io::pipe().unwrap();
        in_child(|| {
            let mut ring = IoUring::new(8).unwrap();
            let root = ring.submitter().register_personality().unwrap();
            let before = opened_by_worker(&mut ring, &path, 0);
            // SAFETY: the call changes only the user ids of this child.
            assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
            let [after, as_root] = [0, root].map(|personality| opened_by_worker(&mut ring, &path, personality));
            let text = [before, after, as_root].map(|opened| opened.min(0).to_string()).join(" ");
            errno(results.1.write_all(text.as_bytes()))
        });
        drop(results.1);
        let refused = -libc::EACCES;
        assert_eq!(std::io::read_to_string(results.0).unwrap(), format!("0 {refused} {refused}"));
    });
}
