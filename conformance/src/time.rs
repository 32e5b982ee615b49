//! Times in the kernel's format, and waits with a time limit.

use std::time::{Duration, Instant};

use usring_uapi::Timespec;

/// A time so long that it does not pass during a case.
pub const LONG: Timespec = Timespec { tv_sec: 1000, tv_nsec: 0 };

pub fn milliseconds(count: i64) -> Timespec {
    Timespec { tv_sec: count / 1000, tv_nsec: count % 1000 * 1_000_000 }
}

pub fn from_duration(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

/// Returns the current time of `clock` plus `milliseconds`.
pub fn on_clock(clock: libc::clockid_t, milliseconds: i64) -> Timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a variable of this function.
    unsafe { libc::clock_gettime(clock, &mut now) };
    let nanoseconds = now.tv_nsec + milliseconds * 1_000_000;
    Timespec {
        tv_sec: now.tv_sec + nanoseconds.div_euclid(1_000_000_000),
        tv_nsec: nanoseconds.rem_euclid(1_000_000_000),
    }
}

/// Waits up to half a minute until `condition` is true. Returns `false` if it never is. Sleeps
/// between checks, so that other threads can run on a machine with one processor.
pub fn until(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Sleeps long enough for a worker to start a request with IOSQE_ASYNC, and then until the kernel's
/// workers sleep. The first sleep has a fixed length, because no event reports the worker's start
/// on both the kernel and usring.
pub fn long_enough_to_begin() {
    std::thread::sleep(Duration::from_millis(500));
    until(|| workers().all(|stat| state_in(&stat) == Some('S')));
}

/// Returns the lines of /proc/self/task/*/stat that belong to io_uring workers.
fn workers() -> impl Iterator<Item = String> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    stats.filter(|stat| stat.contains("(iou-wrk"))
}

fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Returns the thread id of this thread.
pub fn this_thread() -> i32 {
    // SAFETY: the call touches no memory.
    unsafe { libc::gettid() }
}

/// Waits up to half a minute until this thread of the process sleeps. Returns `false` if it never
/// does.
pub fn until_asleep(thread: i32) -> bool {
    let path = format!("/proc/self/task/{thread}/stat");
    until(|| std::fs::read_to_string(&path).is_ok_and(|stat| state_in(&stat) == Some('S')))
}

/// Waits up to half a minute until the main thread of `process` sleeps. Returns `false` if it never
/// does.
pub fn until_process_sleeps(process: i32) -> bool {
    until(|| process_state(process) == Some('S'))
}

/// Waits until `process`, which slept in a call, sleeps or has ended. Returns whether it sleeps. A
/// process whose call has returned exits soon. A process that was woken for nothing sleeps again.
pub fn still_sleeps(process: i32) -> bool {
    let mut last = None;
    until(|| {
        last = process_state(process);
        matches!(last, Some('S' | 'Z') | None)
    });
    last == Some('S')
}

/// Returns the state of the main thread of `process`, as /proc/PID/stat shows it. `None` if there
/// is no such process.
pub fn process_state(process: i32) -> Option<char> {
    state_in(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Sleeps for 30 ms. If an event happens that must not happen, it shows within this time.
pub fn long_enough_to_notice() {
    std::thread::sleep(Duration::from_millis(30));
}
