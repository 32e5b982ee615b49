//! Answers the program's calls on its signal mask and its signal handlers.

use crate::call::{Call, Outcome};
use crate::process;
use crate::signals::table::{
    Action, IGNORE, KEPT_OPEN, LAST_SIGNAL, OPEN, OWN, RESET_HANDLER, TABLE, installed, kernel_exchange,
};
use crate::signals::wrapper;
use core::sync::atomic::Ordering;
use usring_sys::signals::{ALL_BLOCKED, SignalSet};
use usring_sys::thread::CHANGE_USER;
use usring_sys::{Errno, SystemCall, UserAddress, user_memory, width};
use usring_uapi::general as linux;

/// Answers rt_sigprocmask(2). usring's own signals stay unblocked.
pub fn change_mask(call: &mut Call) -> Outcome {
    let [_, set, _, size, ..] = call.arguments;
    if size != 8 {
        return call.pass();
    }
    let Ok(mask) = user_memory::read::<SignalSet>(UserAddress(set)) else {
        return call.pass();
    };
    let outcome = call.pass();
    if mask & KEPT_OPEN != 0 {
        call.forward.scratch = mask & !KEPT_OPEN;
        call.forward.arguments[1] = &raw const call.forward.scratch as u64;
    }
    outcome
}

/// Answers rt_sigaction(2).
pub fn change_action(call: &mut Call) -> Result<u64, Errno> {
    let [signal, new, old, size, ..] = call.arguments;
    let signal = width::low(signal);
    if size != 8 || signal == 0 || signal as usize > LAST_SIGNAL {
        return Err(Errno::EINVAL);
    }
    let new = if new == 0 { None } else { Some(read_action(UserAddress(new))?) };
    if new.is_some() && (signal == linux::SIGKILL || signal == linux::SIGSTOP) {
        return Err(Errno::EINVAL);
    }
    let before = if OWN.contains(&signal) { exchange_own(signal, new) } else { exchange(signal, new)? };
    if old != 0 {
        let Action { handler, flags, restorer, mask } = before;
        user_memory::write(UserAddress(old), [handler, flags, restorer, mask])?;
    }
    Ok(0)
}

fn read_action(address: UserAddress) -> Result<Action, Errno> {
    let [handler, flags, restorer, mask] = user_memory::read::<[u64; 4]>(address)?;
    Ok(Action { handler, flags, restorer, mask })
}

fn exchange_own(signal: u32, new: Option<Action>) -> Action {
    let before = installed(signal);
    // A vfork child has signal actions of its own, but this table is its parent's. So the action
    // that the child sets is not recorded. Little is lost, because the child's exec resets the
    // action.
    if let Some(new) = new
        && process::is_own()
    {
        TABLE[signal as usize].set(&new);
    }
    before
}

fn exchange(signal: u32, new: Option<Action>) -> Result<Action, Errno> {
    let _one_at_a_time = process::current().actions.lock();
    let entry = &TABLE[signal as usize];
    let before = entry.get();
    let wrapped = new.map(|new| {
        if new.handler <= IGNORE {
            return new;
        }
        if process::is_own() {
            entry.set(&new);
        }
        // The wrapper needs the siginfo_t, which the kernel passes only with SA_SIGINFO.
        let flags = new.flags & !RESET_HANDLER | u64::from(linux::SA_SIGINFO);
        // libc uses the signal CHANGE_USER to change the credentials of every thread. Its handler
        // runs even if it interrupts the engine. If a second signal then interrupted libc's
        // handler, the wrapper would not defer it, although the interrupted engine is not finished.
        // So libc's handler runs with all signals blocked.
        let alone = if signal == CHANGE_USER.load(Ordering::Relaxed) { ALL_BLOCKED } else { 0 };
        Action { handler: wrapper::address(), flags, mask: (new.mask | alone) & !KEPT_OPEN, ..new }
    });
    let in_kernel = kernel_exchange(signal, wrapped.as_ref())?;
    Ok(if in_kernel.handler == wrapper::address() { before } else { in_kernel })
}

/// Puts the wrapper in front of the handlers that are already installed when usring starts. For the
/// signals of [`OWN`], calls `install` instead, and then unblocks these signals. `install` installs
/// usring's own handler of a signal, and returns the signal's previous action.
pub fn take_over(install: fn(u32) -> Result<Action, Errno>) -> Result<(), Errno> {
    for signal in (1..=width::count(LAST_SIGNAL)).filter(|signal| !OWN.contains(signal)) {
        let before = kernel_exchange(signal, None)?;
        if before.handler > IGNORE {
            exchange(signal, Some(before))?;
        }
    }
    for signal in OWN {
        let before = install(signal)?;
        // At this time, no code of this program has run that could have installed a handler of
        // SIGSYS. So this handler is that of `program::unserved`: an unserved program has executed
        // this one.
        let is_unserved = signal == linux::SIGSYS && before.handler > IGNORE;
        TABLE[signal as usize].set(&if is_unserved { Action::default() } else { before });
    }
    let arguments = [u64::from(linux::SIG_UNBLOCK), &raw const OPEN as u64, 0, 8, 0];
    SystemCall::new(linux::__NR_rt_sigprocmask, arguments).run_once().map(drop)
}
