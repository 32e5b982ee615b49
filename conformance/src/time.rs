//! Times in the kernel's format, and functions that wait for at most some time.

use std::time::{Duration, Instant};

use usring_uapi::Timespec;

/// A time span that is longer than any case runs.
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

/// Waits until `condition` is true, for up to 30 seconds. Returns `false` if it does not become
/// true. Sleeps between the checks, so that other threads can run on a machine with one processor.
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

/// Waits until a worker has started a request with IOSQE_ASYNC. Sleeps for a fixed time first,
/// because no event reports that start on both the kernel and usring. Then waits until the kernel's
/// workers sleep.
pub fn long_enough_to_begin() {
    std::thread::sleep(Duration::from_millis(500));
    until(|| workers().all(|stat| state_in(&stat) == Some('S')));
}

/// Returns the lines of /proc/self/task/*/stat for the kernel's io_uring workers of this process.
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

/// Waits until the thread `thread` of this process sleeps, for up to 30 seconds. Returns `false` if
/// it does not.
pub fn until_asleep(thread: i32) -> bool {
    let path = format!("/proc/self/task/{thread}/stat");
    until(|| std::fs::read_to_string(&path).is_ok_and(|stat| state_in(&stat) == Some('S')))
}

/// Waits until the main thread of `process` sleeps, for up to 30 seconds. Returns `false` if it
/// does not.
pub fn until_process_sleeps(process: i32) -> bool {
    until(|| process_state(process) == Some('S'))
}

/// Returns whether `process` still sleeps in a system call. If the call has returned, the process
/// exits soon. If it was only woken without need, it sleeps again soon. So this function waits for
/// one of the two.
pub fn still_sleeps(process: i32) -> bool {
    let mut last = None;
    until(|| {
        last = process_state(process);
        matches!(last, Some('S' | 'Z') | None)
    });
    last == Some('S')
}

/// Returns the state of the main thread of `process`, a letter of /proc/PID/stat. Returns `None` if
/// there is no such process.
pub fn process_state(process: i32) -> Option<char> {
    state_in(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Sleeps for 30 ms. An event that must not happen would show within this time.
pub fn long_enough_to_notice() {
    std::thread::sleep(Duration::from_millis(30));
}
