//! The program's actions for its signals, and the kernel's.

use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::signals::{SignalSet, set_of};
use usring_sys::{Errno, SystemCall};
use usring_uapi::general as linux;

pub const LAST_SIGNAL: usize = 64;
pub const DEFAULT: u64 = 0;
pub const IGNORE: u64 = 1;

/// Signals for which the kernel has a handler of usring's. No signal mask contains these signals.
pub const OWN: [u32; 3] = [linux::SIGSYS, linux::SIGSEGV, linux::SIGBUS];
pub const KEPT_OPEN: SignalSet = set_of(linux::SIGSYS) | set_of(linux::SIGSEGV) | set_of(linux::SIGBUS);

/// Signals that the kernel removes from every mask.
pub const UNBLOCKABLE: SignalSet = set_of(linux::SIGKILL) | set_of(linux::SIGSTOP);

pub const RESET_HANDLER: u64 = linux::SA_RESETHAND as u64;

/// The kernel's `struct sigaction`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: SignalSet,
}

/// The action that the program last installed for a signal. For a signal that is not in [`OWN`],
/// the entry is valid only while the kernel has the wrapper as the signal's handler.
#[repr(C)]
pub struct StoredAction {
    pub handler: AtomicU64,
    pub flags: AtomicU64,
    restorer: AtomicU64,
    mask: AtomicU64,
}

pub static TABLE: [StoredAction; LAST_SIGNAL + 1] = [const {
    StoredAction {
        handler: AtomicU64::new(0),
        flags: AtomicU64::new(0),
        restorer: AtomicU64::new(0),
        mask: AtomicU64::new(0),
    }
}; LAST_SIGNAL + 1];

const _: () = assert!(size_of::<StoredAction>() == 32);

impl StoredAction {
    pub fn get(&self) -> Action {
        Action {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Relaxed),
            restorer: self.restorer.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    pub fn set(&self, action: &Action) {
        self.flags.store(action.flags, Ordering::Relaxed);
        self.restorer.store(action.restorer, Ordering::Relaxed);
        self.mask.store(action.mask, Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Release);
    }
}

/// Returns the action that the program last installed for a signal.
pub fn installed(signal: u32) -> Action {
    TABLE[signal as usize].get()
}

/// Resets the program's action for a signal of [`OWN`] to the default (SA_RESETHAND).
pub fn reset(signal: u32) {
    TABLE[signal as usize].handler.store(DEFAULT, Ordering::Release);
}

pub static EVERY: SignalSet = SignalSet::MAX;
pub static OPEN: SignalSet = KEPT_OPEN;
pub static DEFAULT_ACTION: Action = Action { handler: DEFAULT, flags: 0, restorer: 0, mask: 0 };

/// The wrapper's assembler code changes only the lower 32 bits of a mask.
const _: () = assert!(KEPT_OPEN <= i32::MAX as u64);

/// Returns the mask under which the kernel would run the program's handler of `signal`. `mask`: the
/// thread's mask when the signal arrives.
pub fn mask_in_handler(signal: u32, mask: SignalSet) -> SignalSet {
    let action = installed(signal);
    let itself = if action.flags & u64::from(linux::SA_NODEFER) != 0 { 0 } else { set_of(signal) };
    ((mask | action.mask) & !KEPT_OPEN) | (itself & !set_of(linux::SIGSYS))
}

/// Returns the kernel's action for a signal. If `new` is `Some`, also sets the action to `new`. The
/// rt_sigaction(2) carries the mark by which usring's filter lets it pass.
pub fn kernel_exchange(signal: u32, new: Option<&Action>) -> Result<Action, Errno> {
    let mut old = Action::default();
    let new = new.map_or(0, |new| &raw const *new as u64);
    let arguments = [u64::from(signal), new, &raw mut old as u64, 8, 0];
    SystemCall::new(linux::__NR_rt_sigaction, arguments).run_once().map(|_| old)
}

/// Runs `exec`. The next program inherits from this process which signals are ignored. In the
/// kernel, the signals of [`OWN`] have usring's handlers. So if the program ignores one of them,
/// this function first makes the kernel ignore it. If `exec` returns, usring's handlers are
/// installed again.
pub fn with_ignored<T>(exec: impl FnOnce() -> T) -> T {
    let ignore = Action { handler: IGNORE, ..Action::default() };
    let ours = OWN.map(|signal| {
        let is_ignored = installed(signal).handler == IGNORE;
        if is_ignored { kernel_exchange(signal, Some(&ignore)).ok() } else { None }
    });
    let result = exec();
    for (signal, action) in OWN.into_iter().zip(ours) {
        if let Some(action) = action {
            let _ = kernel_exchange(signal, Some(&action));
        }
    }
    result
}
