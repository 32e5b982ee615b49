//! Decides by a system call's number which module serves the call. All entry points lead to this
//! file.

use crate::call::{Call, Outcome};
use crate::files::{contexts, descriptor_calls, device_calls, devices, limits, rings};
use crate::program::exec;
use crate::swap::{fork, functions, guard, mapping_calls, region};
use crate::{check, faults, filter, process, recording, signals};
use core::sync::atomic::Ordering;
use usring_sys::width;
use usring_uapi::general as linux;

/// Serves the most frequent call (io_uring_enter), unless the call arrived by the trap. `None`: the
/// caller continues with [`dispatch`].
#[inline(always)]
pub fn serve_frequent(call: &Call) -> Option<Outcome> {
    process::current();
    let is_it = width::low(call.number) == faults::FREQUENT.load(Ordering::Relaxed) && call.trapped == 0;
    is_it.then(|| rings::enter(call).into())
}

/// Serves one call of the program.
#[inline(always)]
pub fn dispatch(call: &mut Call) -> Outcome {
    if faults::are_armed() { faults::serve(call, answer) } else { answer(call) }
}

/// Handles the kernel's answer to a call whose outcome was [`Outcome::PINNED`]. The entry point
/// calls this function.
pub extern "C" fn after(call: &mut Call, answer: u64) -> Outcome {
    let outcome = guard::after(call, answer);
    if faults::are_armed() && outcome.kind == Outcome::DONE { faults::after(call, outcome.answer) } else { outcome }
}

fn answer(call: &mut Call) -> Outcome {
    if recording::is_on()
        && let Some(outcome) = recording::serve(call)
    {
        return outcome;
    }
    if matches!(width::low(call.number), linux::__NR_fork | linux::__NR_vfork | linux::__NR_clone) {
        return fork::serve(call);
    }
    if region::is_on() {
        return match mapping_calls::serve(call) {
            Some(outcome) => outcome,
            None => guard::guard(call, serve),
        };
    }
    serve(call)
}

fn serve(call: &mut Call) -> Outcome {
    match width::low(call.number) {
        linux::__NR_io_uring_enter if check::sees_enter() => check::enter(call),
        linux::__NR_io_uring_enter => enter(call),
        linux::__NR_io_uring_setup => rings::setup(call).into(),
        linux::__NR_io_uring_register => rings::register(call).into(),
        linux::__NR_io_submit => contexts::submit(call).into(),
        linux::__NR_io_getevents => contexts::get_events(call).into(),
        linux::__NR_io_pgetevents => contexts::get_events_masked(call).into(),
        linux::__NR_io_setup => contexts::setup(call).into(),
        linux::__NR_io_destroy => contexts::destroy(call).into(),
        linux::__NR_io_cancel => contexts::cancel(call).into(),
        contexts::SETUP2 => contexts::setup2(call).into(),
        functions::FIRST..=functions::LAST => functions::serve(call).into(),
        linux::__NR_rt_sigprocmask => signals::calls::change_mask(call),
        linux::__NR_rt_sigaction => signals::calls::change_action(call).into(),
        linux::__NR_read
        | linux::__NR_write
        | linux::__NR_pread64
        | linux::__NR_pwrite64
        | linux::__NR_readv
        | linux::__NR_writev
        | linux::__NR_preadv
        | linux::__NR_pwritev
        | linux::__NR_preadv2
        | linux::__NR_pwritev2
        | linux::__NR_fsync
        | linux::__NR_fdatasync
        | linux::__NR_sync_file_range
        | linux::__NR_lseek
        | linux::__NR_ftruncate
        | linux::__NR_fallocate => device_calls::on_file(call),
        linux::__NR_sendfile | linux::__NR_splice | linux::__NR_copy_file_range => device_calls::between_files(call),
        linux::__NR_open | linux::__NR_openat | linux::__NR_creat | linux::__NR_openat2 => device_calls::open(call),
        linux::__NR_truncate => device_calls::truncate(call),
        linux::__NR_ioctl => device_calls::control(call),
        filter::FAULTS_PROBE => faults::answer_probe(),
        filter::PROBE => devices::answer_probe(call),
        linux::__NR_close => descriptor_calls::close(call),
        linux::__NR_close_range => descriptor_calls::close_range(call),
        linux::__NR_dup => descriptor_calls::duplicate(call),
        linux::__NR_fcntl => descriptor_calls::control(call),
        linux::__NR_dup2 | linux::__NR_dup3 => descriptor_calls::duplicate_onto(call),
        linux::__NR_mmap => descriptor_calls::map(call),
        linux::__NR_epoll_ctl => descriptor_calls::control_epoll(call),
        linux::__NR_getrlimit | linux::__NR_setrlimit | linux::__NR_prlimit64 => limits::serve(call),
        linux::__NR_execve | linux::__NR_execveat => exec::execute(call),
        _ => call.pass(),
    }
}

/// Serves an io_uring_enter that arrived by the trap. This function is kept out of line, because a
/// trap costs much more than a function call.
#[cold]
#[inline(never)]
fn enter(call: &Call) -> Outcome {
    rings::enter(call).into()
}
