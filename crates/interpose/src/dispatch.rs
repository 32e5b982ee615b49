//! What each trapped number means: the one place that all doors lead to.

use crate::door::{Call, Outcome};
use crate::{descriptor_calls, exec, patch, process, rings, signals};
use usring_uapi::general as linux;

/// Serves one call of the program. Called by the doors alone.
pub extern "C" fn dispatch(call: &mut Call) -> Outcome {
    process::current();
    // The call that everything else is there for, from where it mostly comes.
    if call.number as u32 == linux::__NR_io_uring_enter && call.trapped == 0 {
        return rings::enter(call).into();
    }
    dispatch_other(call)
}

#[inline(never)]
fn dispatch_other(call: &mut Call) -> Outcome {
    if call.trapped != 0 {
        patch::consider(call);
    }
    match call.number as u32 {
        linux::__NR_io_uring_enter => enter(call),
        linux::__NR_io_uring_setup => rings::setup(call).into(),
        linux::__NR_io_uring_register => rings::register(call).into(),
        linux::__NR_rt_sigprocmask => signals::change_mask(call),
        linux::__NR_rt_sigaction => signals::change_action(call).into(),
        linux::__NR_close => descriptor_calls::close(call),
        linux::__NR_close_range => descriptor_calls::close_range(call),
        linux::__NR_dup => descriptor_calls::duplicate(call),
        linux::__NR_fcntl => descriptor_calls::control(call),
        linux::__NR_dup2 | linux::__NR_dup3 => descriptor_calls::duplicate_onto(call),
        linux::__NR_mmap => descriptor_calls::map(call),
        linux::__NR_epoll_ctl => descriptor_calls::control_epoll(call),
        linux::__NR_execve | linux::__NR_execveat => exec::execute(call),
        _ => call.pass(),
    }
}

/// For a call that came by the trap, which costs so much more.
#[cold]
#[inline(never)]
fn enter(call: &Call) -> Outcome {
    rings::enter(call).into()
}
