//! fork(2) of a process whose memory is swapped. The child gets a copy of that memory, as of all
//! other memory. `usring_swap::inheritance` describes how the copy is made.
//!
//! This file makes the system call itself, with all signals blocked. First it freezes all swapped
//! memory: no thread evicts it or reads it back. From then until parent and child continue, no code
//! of the program or of libc may run. So the filter traps the call. A handler of libc's
//! (pthread_atfork) would not do, because libc runs other code after it.
//!
//! A child that is made in any other way has zeroes in the pages that are evicted. So every process
//! with memory of its own is made here, one at a time. That includes children that do not inherit
//! the swapped memory, for one of these reasons:
//! - they share their parent's descriptors;
//! - their parent is a vfork child, which does not have the region's threads;
//! - they have a stack of their own;
//! - or the memory cannot be frozen.
//!
//! In such a child, the swapped memory is not mapped, and touching it ends the child. clone3(2) is
//! answered ENOSYS ([`crate::swap::filter`]).
//!
//! A process that shares its parent's memory (vfork, posix_spawn) returns on the stack on which its
//! parent waits, or on another stack. So the program makes that call itself. Before that call, the
//! parent takes over the memory that it has inherited. The child could not take it over: the
//! threads of the region would be the child's, and would end with it.

use crate::call::{Call, Outcome};
use crate::process::{self, ChildDescriptors};
use crate::runtime::message;
use crate::swap::filter::VFORK_MARKED;
use crate::swap::in_flight::{self, OfThread};
use crate::swap::region;
use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use usring_swap::inheritance::{FrozenMemory, UnpagedMemory};
use usring_swap::mappings::Mappings;
use usring_sys::clock::Nanoseconds;
use usring_sys::owner_lock::OwnerLock;
use usring_sys::per_process::PerProcess;
use usring_sys::syscall::{self, PASS_MARK, PASS_MARK_ABOVE_FLAGS, syscall6};
use usring_sys::{Errno, descriptor, signals, thread, width};
use usring_uapi::general as linux;

/// Locked while a thread forks a child. A vfork child may lock this lock as well, and may be killed
/// while it holds the lock.
static FORKING: PerProcess<OwnerLock> = PerProcess::new();
/// The reasons that [`report_refusal`] has reported already, one bit for each reason.
static REPORTED: AtomicU32 = AtomicU32::new(0);

/// Seconds of one round in which a fork waits until no thread evicts swapped memory. A fork waits
/// for at most `ROUNDS` rounds. Between two rounds, evictions may begin again, and a signal may end
/// the wait.
const ROUND_SECONDS: u64 = 5;
const ROUND: Nanoseconds = ROUND_SECONDS * 1_000_000_000;
const ROUNDS: u64 = 12;

/// Serves fork(2), vfork(2) and clone(2).
pub fn serve(call: &mut Call) -> Outcome {
    let [flags, stack, ..] = call.arguments;
    let (flags, stack) = match width::low(call.number) {
        linux::__NR_fork => (0, 0),
        linux::__NR_vfork => (linux::CLONE_VM | linux::CLONE_VFORK, 0),
        _ => (width::low(flags), stack),
    };
    if flags & linux::CLONE_VM == 0 { copy(call, flags, stack) } else { share(call, flags) }
}

fn share(call: &mut Call, flags: u32) -> Outcome {
    if flags & linux::CLONE_THREAD == 0 && region::is_on() {
        region::mappings();
    }
    if call.trapped == 0 {
        return call.pass();
    }
    match width::low(call.number) {
        linux::__NR_vfork => call.arguments[VFORK_MARKED as usize] = PASS_MARK_ABOVE_FLAGS,
        // Linux reads only the lower half of clone(2)'s flags, so their upper half can carry
        // usring's mark.
        _ => call.arguments[0] = PASS_MARK_ABOVE_FLAGS | u64::from(flags),
    }
    call.repeat_at_site()
}

fn copy(call: &mut Call, flags: u32, stack: u64) -> Outcome {
    let mappings = if region::is_on() { region::mappings() } else { None };
    // A vfork child does not have the region's threads, so its own child inherits nothing. Neither
    // does a child with a stack of its own. Such a child often ends by exit(2), which ends the
    // process only if no other thread is left. The region's threads would keep the process alive.
    let inherits = flags & (linux::CLONE_FILES | linux::CLONE_VFORK) == 0 && stack == 0 && process::is_own();
    let inherited = mappings.filter(|_| inherits);
    let _closed = thread::close_signals();
    if signals::interrupted() {
        // A signal was deferred. The entry point first delivers it, and then dispatches the fork
        // again. The signal mask in force here would become the child's mask, so no child may be
        // forked under it.
        return Outcome { answer: 0, kind: Outcome::AGAIN };
    }
    // Signals were checked before this lock is taken, and not under the lock. A thread that gave up
    // the lock for each signal might never fork while an interval timer sends signals.
    let _one_at_a_time = FORKING.get_or_make(OwnerLock::new).lock();
    let frozen = match inherited.map(freeze).transpose() {
        Ok(frozen) => frozen.filter(|frozen| descriptor::keep_after_fork(frozen.descriptors())),
        Err(Errno::EBUSY) if signals::interrupted() => return Outcome { answer: 0, kind: Outcome::AGAIN },
        Err(Errno::EBUSY) => return Err::<u64, _>(Errno::EAGAIN).into(),
        Err(error) => {
            report_refusal(error);
            None
        }
    };
    // The caller may be a vfork child, which may be killed while it forks. So this process must
    // hold no lock of its parent's.
    let is_ours = process::is_own();
    let unpaged = if frozen.is_none() { mappings.and_then(|mappings| mappings.without_pager(is_ours)) } else { None };
    let calls = frozen.is_some().then(in_flight::hold);
    region::set_child_inherits(frozen.is_some());
    let [first, _, third, fourth, fifth, _] = call.arguments;
    // The stack argument is 0: the child begins on its copy of this stack.
    let arguments = [first, 0, third, fourth, fifth, PASS_MARK];
    // SAFETY: these are the program's own arguments. The child shares no memory with its parent.
    let answer = unsafe { syscall6(width::low(call.number), arguments) };
    if answer == 0 {
        let shares = flags & linux::CLONE_FILES != 0;
        process::begin_child(if shares { ChildDescriptors::Shared } else { ChildDescriptors::Own });
        if unpaged.map_or(Ok(()), UnpagedMemory::unmap_in_child).is_err() {
            end_without_pages();
        }
        if let Some((frozen, calls)) = frozen.zip(calls) {
            begin(frozen, calls);
        }
        if stack != 0 {
            return_on_stack(call, stack);
        }
    } else {
        drop((calls, frozen, unpaged));
    }
    region::set_child_inherits(false);
    descriptor::keep_after_fork(&[]);
    syscall::check(answer).into()
}

/// Freezes swapped memory: no thread evicts, reads back or changes it until the result is dropped.
/// Errors: `EBUSY` if a signal has arrived, or if evictions have not ended after all rounds; those
/// of [`Mappings::freeze`].
fn freeze(mappings: &'static Mappings) -> Result<FrozenMemory, Errno> {
    for round in 1..=ROUNDS {
        let frozen = mappings.freeze(ROUND);
        if !matches!(frozen, Err(Errno::EBUSY)) || signals::interrupted() {
            return frozen;
        }
        if round == 1 {
            message::say(format_args!(
                "swap: a fork of process {} waits: the backing store has not answered for {ROUND_SECONDS} s",
                process::id()
            ));
        }
    }
    message::say(format_args!(
        "swap: process {} cannot fork: the backing store has not answered for {} s",
        process::id(),
        ROUND_SECONDS * ROUNDS
    ));
    Err(Errno::EBUSY)
}

/// The stack and the address at which a child with a stack of its own continues. Only the child
/// uses them. The child is a single thread, so one variable for each is enough.
static STACK: AtomicU64 = AtomicU64::new(0);
static RETURN_ADDRESS: AtomicU64 = AtomicU64::new(0);

// The program continues at RETURN_ADDRESS on its own stack. All other registers have the program's
// values, except rcx and r11, which a system call changes.
global_asm!(
    ".pushsection usring_entry,\"ax\",@progbits",
    ".globl usring_change_stack",
    ".hidden usring_change_stack",
    ".type usring_change_stack,@function",
    ".p2align 4",
    "usring_change_stack:",
    "mov rcx, [rip + {return_address}]",
    "mov rsp, [rip + {stack}]",
    "jmp rcx",
    ".size usring_change_stack, . - usring_change_stack",
    ".popsection",
    return_address = sym RETURN_ADDRESS,
    stack = sym STACK,
);

unsafe extern "C" {
    fn usring_change_stack();
}

fn return_on_stack(call: &mut Call, stack: u64) {
    STACK.store(stack, Ordering::Relaxed);
    RETURN_ADDRESS.store(call.return_address, Ordering::Relaxed);
    call.return_address = usring_change_stack as *const () as u64;
}

/// Begins a child that inherits the swapped memory.
fn begin(frozen: FrozenMemory, calls: OfThread) {
    match frozen.inherit() {
        Ok(inheritance) => region::inherit(inheritance),
        Err((error, unmapped)) => {
            message::say(format_args!("swap: a forked child does not inherit its parent's swapped memory ({error})"));
            if unmapped.is_err() {
                end_without_pages();
            }
            region::switch_off();
        }
    }
    if calls.is_empty() {
        return;
    }
    // The program forked in a signal handler that had interrupted another call. The child will
    // return to the interrupted call, so that call's memory stays pinned in the child.
    let mappings = region::mappings();
    for (address, mut pinned) in calls.into_calls() {
        match mappings {
            Some(mappings) => {
                pinned.inherit(mappings);
                in_flight::keep(address, pinned);
            }
            None => core::mem::forget(pinned),
        }
    }
}

/// Ends a child that could read zeroes in place of its parent's evicted pages.
fn end_without_pages() -> ! {
    message::say(format_args!(
        "swap: a forked child ends, because its parent's swapped memory cannot be unmapped in it"
    ));
    message::abort()
}

/// Reports why a child does not inherit swapped memory, once for each reason. Reports nothing if
/// the mechanism or the backing store never supports copies: most children only execute another
/// program. usring then reports an error only if a child touches the memory.
fn report_refusal(error: Errno) {
    let (bit, why) = match error {
        Errno::EOPNOTSUPP => return,
        Errno::EAGAIN => (1, "too many processes share it already"),
        _ => (2, "the kernel refuses what an inheriting child needs"),
    };
    if REPORTED.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        message::say(format_args!(
            "swap: forked children of process {} do not have its swapped memory, and touching it ends them: {why} ({error})",
            process::id()
        ));
    }
}
