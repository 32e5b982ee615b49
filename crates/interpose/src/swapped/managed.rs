//! Memory of an unmodified program that is swapped (`usring run --swap`): which of its
//! calls on mappings are answered here, out of a region of `usring_swap`.
//!
//! What is mapped privately, without a file, readable and writable, and large enough, is
//! given out of the region; it is made when the first such mapping is asked for, so that
//! processes of the run that need none leave the backing store to those that do. All
//! else is the kernel's, as ever. On memory of the region every call does what the kernel would do.
//! Where a pager cannot do that (another protection, a lock, a stack), the memory becomes the kernel's in its
//! place, for good; where it cannot be had (a system call uses it), the call is refused and says so on standard error once.
//!
//! A forked child has a copy of the region ([`forked`]), or, where that cannot be, ends if it
//! touches its parent's. A vfork child borrows its parent's and notices nothing.

use crate::doors::door::{Call, Outcome};
use crate::doors::{libc, patch, symbols};
use crate::message;
use crate::program::{environment, process};
use crate::swapped::{forked, guarded, swap_filter};
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use usring_swap::mappings::{Mappings, Obstacle, Options, Pins, WINDOW};
use usring_swap::{Access, Mechanism};
use usring_sys::mapping::PAGE;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::{Errno, SystemCall, UserAddress, kept_memory, user_memory};
use usring_uapi::general as linux;

/// Whether this process's memory may be swapped.
pub static ON: AtomicBool = AtomicBool::new(false);
static MAPPINGS: AtomicPtr<Mappings> = AtomicPtr::new(core::ptr::null_mut());
/// Held while the region is made.
static MAKING: PerProcess<Mutex<()>> = PerProcess::new();
/// Bytes of the smallest mapping that is ours.
static MINIMUM: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Which refusals have been told of, a bit each.
static TOLD: AtomicU32 = AtomicU32::new(0);
static NO_ROOM_TOLD: AtomicBool = AtomicBool::new(false);

#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The region, if something was mapped already; one that was inherited is made now.
pub fn mappings() -> Option<&'static Mappings> {
    known().or_else(|| if forked::is_heir() { take_up() } else { None })
}

/// The region, if it is made.
pub fn known() -> Option<&'static Mappings> {
    // SAFETY: what is stored there is leaked.
    unsafe { MAPPINGS.load(Ordering::Acquire).as_ref() }
}

/// Whether there is a region, made or not.
#[inline]
pub fn has_region() -> bool {
    !MAPPINGS.load(Ordering::Relaxed).is_null() || forked::is_heir()
}

#[cold]
fn take_up() -> Option<&'static Mappings> {
    let (_, statistics) = options()?;
    forked::take_up(path_in(&statistics))
}

/// From now on it is the process's.
pub fn publish(mappings: Mappings) {
    static HEIR: fn() -> bool = || {
        // A child that does not inherit may have made no call of ours yet.
        process::current();
        self::mappings().is_some()
    };
    mappings.region().set_heir(&HEIR);
    MAPPINGS.store(alloc::boxed::Box::into_raw(alloc::boxed::Box::new(mappings)), Ordering::Release);
    kept_memory::set_keeper(&guarded::KEEPER);
}

/// The launcher's text: `LIMIT MINIMUM MECHANISM STATISTICS BACKING`, the third and fourth
/// `-` if there is none; the fourth ends with a NUL instead of a space where it is a path.
fn options() -> Option<(Options<'static>, [u8; LONGEST_PATH])> {
    let text = core::str::from_utf8(environment::swap()?).ok()?;
    let mut words = text.splitn(5, ' ');
    let limit = words.next()?.parse().ok()?;
    let minimum = words.next()?.parse().ok()?;
    let mechanism = Mechanism::of_name(words.next()?);
    let path = words.next()?.as_bytes();
    let mut statistics = [0; LONGEST_PATH];
    if path != b"-" {
        statistics.get_mut(..path.len())?.copy_from_slice(path);
    }
    let backing = words.next()?;
    let socket = environment::swap_socket();
    Some((Options { backing, limit, minimum, mechanism, statistics: None, socket }, statistics))
}

/// `/proc/PID/fd/NUMBER`, with room.
const LONGEST_PATH: usize = 64;

fn path_in(statistics: &[u8]) -> Option<&CStr> {
    CStr::from_bytes_until_nul(statistics).ok().filter(|path| !path.is_empty())
}

/// At the start of a program: if its memory is to be swapped, has the calls come here
/// that concern that.
///
/// Errors: one sentence.
pub fn prepare() -> Result<(), &'static str> {
    if environment::swap().is_none() {
        return Ok(());
    }
    let (options, _) = options().ok_or("what the launcher says of swapped memory is not of this build")?;
    if libc::has_sanitizer() {
        // TSan wants nothing in the window, and LSan looks at memory from a process of its own.
        let process = process::id();
        message::say(format_args!(
            "swap: the memory of process {process} stays as it is: a sanitizer keeps account of it"
        ));
        return Ok(());
    }
    MINIMUM.store(options.minimum, Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
    if !traps() {
        swap_filter::install().map_err(|_| "the trap filter for swapped memory was refused")?;
        if !traps() {
            return Err("calls on swapped memory do not reach usring although the trap filter was accepted");
        }
    }
    libc::map_large_blocks(options.minimum);
    if let Some(writev) = symbols::libc_writev() {
        patch::rewrite_ahead(writev, linux::__NR_writev);
    }
    Ok(())
}

/// First argument and answer of the call by which the filter is found in place.
const PROBE_ARGUMENT: u64 = 0x7573_7377;
const PROBE_ANSWER: u64 = 0x7573_0002;

fn traps() -> bool {
    // SAFETY: the kernel has no such call, and we read no memory for it.
    unsafe { usring_sys::syscall::syscall6(swap_filter::PROBE, [PROBE_ARGUMENT, 0, 0, 0, 0, 0]) == PROBE_ANSWER }
}

/// In a forked child, which may be about to inherit ([`forked`]).
pub fn begin_after_fork() {
    MAPPINGS.store(core::ptr::null_mut(), Ordering::Relaxed);
    if !forked::hands_down() {
        disown();
    }
}

/// There will be no region.
pub fn disown() {
    ON.store(false, Ordering::Relaxed);
    kept_memory::forget_keeper();
}

/// The region, made now if need be.
fn made() -> Option<&'static Mappings> {
    if let Some(mappings) = mappings() {
        return Some(mappings);
    }
    // The threads that it needs would be a vfork child's.
    if !process::is_own() {
        return None;
    }
    let _one_at_a_time = MAKING.get_or_make(|| Mutex::new(())).lock();
    if let Some(mappings) = mappings() {
        return Some(mappings);
    }
    let (mut options, statistics) = options()?;
    options.statistics = path_in(&statistics);
    match Mappings::open(&options) {
        Ok(mappings) => {
            publish(mappings);
            known()
        }
        Err(obstacle) => {
            ON.store(false, Ordering::Relaxed);
            let process = process::id();
            match obstacle {
                Obstacle::InUse => message::say(format_args!(
                    "swap: the memory of process {process} stays as it is: {} is in use by another process",
                    options.backing
                )),
                Obstacle::Failed(error) => message::say(format_args!(
                    "swap: the memory of process {process} stays as it is: {} cannot be used ({error})",
                    options.backing
                )),
            }
            None
        }
    }
}

/// Where the region's addresses end.
pub const WINDOW_END: usize = WINDOW.end;

/// Whether an address may be the region's.
#[inline]
pub fn is_in_window(address: u64) -> bool {
    (WINDOW.start as u64..WINDOW.end as u64).contains(&address)
}

/// Answers a call on mappings, if it is ours to answer.
pub fn serve(call: &mut Call) -> Option<Outcome> {
    let [first, second, third, fourth, fifth, _] = call.arguments;
    let answer = match call.number as u32 {
        linux::__NR_mmap if fourth as u32 & linux::MAP_ANONYMOUS != 0 || is_in_window(first) => map(call.arguments),
        swap_filter::PROBE if first == PROBE_ARGUMENT => Some(Ok(PROBE_ANSWER)),
        linux::__NR_mlockall => Some(refused(Refusal::LockAll)),
        linux::__NR_sigaltstack => {
            keep_alternate_stack(first);
            None
        }
        STACK => {
            keep_stack(first, second);
            Some(Ok(0))
        }
        linux::__NR_fork | linux::__NR_clone => return forked::fork(call),
        linux::__NR_mremap => remap(first, second, third, fourth as u32, fifth),
        _ if !is_in_window(first) => None,
        linux::__NR_set_tid_address => {
            keep_stack(first, 4);
            None
        }
        linux::__NR_set_robust_list | linux::__NR_rseq => {
            keep_stack(first, second.max(32));
            None
        }
        linux::__NR_munmap => Some(unmap(first, second)),
        linux::__NR_mprotect | linux::__NR_pkey_mprotect => protect(first, second, third as u32),
        linux::__NR_madvise => advise(first, second, third as u32),
        linux::__NR_mlock | linux::__NR_mlock2 => surrendered(first, second, Refusal::Lock),
        linux::__NR_munlock | linux::__NR_msync if !is_given(first, second) => Some(Ok(0)),
        linux::__NR_remap_file_pages => Some(Err(Errno::EINVAL)),
        _ => None,
    };
    answer.map(Outcome::from)
}

/// What a call on mappings is answered; `None`: by the kernel.
type Answer = Option<Result<u64, Errno>>;

fn mapped() -> Result<&'static Mappings, Errno> {
    mappings().ok_or(Errno::ENOMEM)
}

fn whole_pages(start: u64, length: u64) -> Result<Range<usize>, Errno> {
    let (start, length) = (start as usize, length as usize);
    if !start.is_multiple_of(PAGE) || length == 0 {
        return Err(Errno::EINVAL);
    }
    let length = length.checked_next_multiple_of(PAGE).ok_or(Errno::EINVAL)?;
    Ok(start..start.checked_add(length).ok_or(Errno::EINVAL)?)
}

const READ_WRITE: u32 = linux::PROT_READ | linux::PROT_WRITE;

/// Memory that is not like ours.
const OTHER_KINDS: u32 = linux::MAP_STACK
    | linux::MAP_GROWSDOWN
    | linux::MAP_LOCKED
    | linux::MAP_32BIT
    | linux::MAP_HUGETLB
    | linux::MAP_SYNC;
const FIXED: u32 = linux::MAP_FIXED | linux::MAP_FIXED_NOREPLACE;

/// mmap(2).
fn map([address, length, protection, flags, ..]: [u64; 6]) -> Answer {
    let flags = flags as u32;
    let is_ours = flags & linux::MAP_TYPE == linux::MAP_PRIVATE
        && flags & linux::MAP_ANONYMOUS != 0
        && flags & OTHER_KINDS == 0
        && protection as u32 == READ_WRITE;
    if flags & FIXED != 0 {
        return if is_in_window(address) { map_over(address, length, flags, is_ours) } else { None };
    }
    if !is_ours || (length as usize) < MINIMUM.load(Ordering::Relaxed) {
        return None;
    }
    let start = made()?.map(length as usize);
    if start.is_none() && !NO_ROOM_TOLD.swap(true, Ordering::Relaxed) {
        message::say(format_args!(
            "swap: no room for {} KiB more: from now on what does not fit is ordinary memory, outside the limit; \
             give swap a larger backing store",
            length >> 10
        ));
    }
    // The kernel has some.
    start.map(|start| Ok(start as u64))
}

/// mmap(2) over memory of the region.
fn map_over(address: u64, length: u64, flags: u32, is_ours: bool) -> Answer {
    let range = match whole_pages(address, length) {
        Ok(range) => range,
        Err(error) => return Some(Err(error)),
    };
    if flags & linux::MAP_FIXED_NOREPLACE != 0 {
        return Some(Err(Errno::EEXIST));
    }
    match mappings() {
        Some(mappings) if is_ours && mappings.has(&range) => Some(mappings.discard(&range).map(|()| address)),
        _ => surrendered(address, length, Refusal::MapOver),
    }
}

/// Gives what of a range is the region's to the kernel, whose answer it is then.
fn surrendered(start: u64, length: u64, what: Refusal) -> Answer {
    let range = match whole_pages(start, length) {
        Ok(range) => range,
        Err(error) => return Some(Err(error)),
    };
    let Some(mappings) = mappings() else { return Some(Err(Errno::ENOMEM)) };
    match mappings.surrender(&range) {
        Ok(()) if mappings.is_given(&range) => None,
        // Not all of it is mapped, and what is not is not the kernel's to give.
        Ok(()) => Some(Err(Errno::ENOMEM)),
        Err(_) => Some(refused(what)),
    }
}

/// Whether a range is the kernel's.
fn is_given(start: u64, length: u64) -> bool {
    mappings().zip(whole_pages(start, length).ok()).is_some_and(|(mappings, range)| mappings.is_given(&range))
}

/// munmap(2).
fn unmap(start: u64, length: u64) -> Result<u64, Errno> {
    let range = whole_pages(start, length)?;
    let mappings = mapped()?;
    mappings.unmap(&range)?;
    for part in mappings.given(&range) {
        // Nobody else's from now on: a mechanism would take touches of a hole for its own.
        let flags = linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_NORESERVE | linux::MAP_FIXED;
        let flags = u64::from(flags | linux::MAP_DENYWRITE);
        let none = u64::from(linux::PROT_NONE);
        let arguments = [part.start as u64, part.len() as u64, none, flags, u64::MAX, 0];
        SystemCall::with_six(linux::__NR_mmap, arguments).run()?;
    }
    Ok(0)
}

/// mremap(2).
fn remap(start: u64, old: u64, new: u64, flags: u32, target: u64) -> Answer {
    if flags & linux::MREMAP_FIXED != 0 && is_in_window(target) {
        let answer = surrendered(target, new, Refusal::Remap);
        if answer.is_some() {
            return answer;
        }
    }
    if !is_in_window(start) {
        return None;
    }
    if flags & !linux::MREMAP_MAYMOVE != 0 || old == 0 {
        return surrendered(start, old, Refusal::Remap);
    }
    if is_given(start, old) {
        return None;
    }
    let remap = || {
        let range = whole_pages(start, old)?;
        let new = if new == 0 { Err(Errno::EINVAL) } else { Ok(new as usize) }?;
        mapped()?.remap(&range, new, flags & linux::MREMAP_MAYMOVE != 0).map(|start| start as u64)
    };
    Some(remap())
}

/// mprotect(2), pkey_mprotect(2).
fn protect(start: u64, length: u64, protection: u32) -> Answer {
    if length == 0 {
        return None;
    }
    let is_mapped = || mappings().zip(whole_pages(start, length).ok()).is_some_and(|(all, range)| all.has(&range));
    if protection == READ_WRITE && is_mapped() { Some(Ok(0)) } else { surrendered(start, length, Refusal::Protect) }
}

/// madvise(2).
fn advise(start: u64, length: u64, advice: u32) -> Answer {
    if length == 0 || is_given(start, length) {
        return None;
    }
    // Changes what is inherited, or what the pages are.
    if let linux::MADV_REMOVE
    | linux::MADV_DOFORK
    | linux::MADV_WIPEONFORK
    | linux::MADV_HWPOISON
    | linux::MADV_SOFT_OFFLINE
    | linux::MADV_GUARD_INSTALL
    | linux::MADV_GUARD_REMOVE = advice
    {
        return surrendered(start, length, Refusal::Advice);
    }
    let advise = || {
        let range = whole_pages(start, length)?;
        let mappings = mapped()?;
        match advice {
            // What was freed may be gone at any time: now.
            linux::MADV_DONTNEED | linux::MADV_FREE | linux::MADV_DONTNEED_LOCKED => mappings.discard(&range)?,
            _ if !mappings.has(&range) => return Err(Errno::ENOMEM),
            linux::MADV_POPULATE_READ | linux::MADV_POPULATE_WRITE => {
                for page in range.step_by(PAGE) {
                    user_memory::read::<u8>(UserAddress(page as u64))?;
                }
            }
            // A wish.
            _ => {}
        }
        Ok(0)
    };
    Some(advise())
}

/// Stands for what a program says of a stack of its own in a [`Call`].
pub const STACK: u32 = 0x7573_0200;

/// A thread is to run there, and would be killed at once where its stack is out: signals
/// are told on it. (Or the kernel writes there as it switches threads, or when they end.)
fn keep_stack(start: u64, length: u64) {
    let first = start / PAGE as u64 * PAGE as u64;
    if is_in_window(start) && surrendered(first, length + (start - first), Refusal::Stack).is_some() {
        keep(start, length);
    }
}

/// sigaltstack(2): the kernel writes there whenever it likes.
fn keep_alternate_stack(new: u64) {
    let Ok([start, _, length]) = user_memory::read::<[u64; 3]>(UserAddress(new)) else { return };
    keep_stack(start, length);
}

/// For good.
fn keep(start: u64, length: u64) {
    if let Some(mappings) = mappings()
        && let Some(around) = mappings.around(start as usize)
    {
        let range = start as usize..(start as usize).saturating_add(length as usize).min(around.end);
        let _ = mappings.pin(&range, Access::Write, Pins::Fitting, |_| {});
    }
}

/// What is not done on memory of the region, where it cannot be given to the kernel either.
#[derive(Clone, Copy)]
enum Refusal {
    MapOver,
    Remap,
    Protect,
    Advice,
    Lock,
    LockAll,
    Stack,
}

/// Says so, once, and answers what a kernel says that cannot do it.
fn refused(what: Refusal) -> Result<u64, Errno> {
    let call = match what {
        Refusal::MapOver => "something else mapped over it",
        Refusal::Remap => "a given place to be moved to or from (mremap)",
        Refusal::Protect => "another protection than reading and writing (mprotect)",
        Refusal::Advice => "this advice (madvise)",
        Refusal::Lock => "a lock (mlock)",
        Refusal::LockAll => "a lock on everything (mlockall)",
        Refusal::Stack => "a stack",
    };
    if TOLD.fetch_or(1 << what as u32, Ordering::Relaxed) & 1 << what as u32 == 0 {
        message::say(format_args!("swap: swapped memory does not have {call}: the program is answered ENOMEM"));
    }
    Err(Errno::ENOMEM)
}
