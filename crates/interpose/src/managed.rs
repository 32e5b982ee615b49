//! Memory of an unmodified program that is swapped (`usring run --swap`): which of its
//! calls on mappings are answered here, out of a region of `usring_swap`.
//!
//! What is mapped privately, without a file, readable and writable, and large enough, is
//! given out of the region; it is made when the first such mapping is asked for, so that
//! processes of the run that need none leave the backing store to those that do. All
//! else is the kernel's, as ever. On memory of the region every call either does what the
//! kernel would do, or is refused and says so on standard error once.
//!
//! A forked child does not have the region: it maps its own memory from the kernel, and
//! ends if it touches its parent's. A vfork child borrows its parent's and notices nothing.

use crate::door::{Call, Outcome};
use crate::{environment, guarded, libc, message, process, swap_filter};
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use usring_swap::mappings::{Mappings, Obstacle, Options, WINDOW};
use usring_swap::{Access, Mechanism};
use usring_sys::mapping::PAGE;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::{Errno, UserAddress, kept_memory, user_memory};
use usring_uapi::general as linux;

/// Whether this process's memory may be swapped.
static ON: AtomicBool = AtomicBool::new(false);
static MAPPINGS: AtomicPtr<Mappings> = AtomicPtr::new(core::ptr::null_mut());
/// Held while the region is made.
static MAKING: PerProcess<Mutex<()>> = PerProcess::new();
/// Bytes of the smallest mapping that is ours.
static MINIMUM: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Which refusals have been told of, a bit each.
static TOLD: AtomicU32 = AtomicU32::new(0);

#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The region, if something was mapped already.
pub fn mappings() -> Option<&'static Mappings> {
    // SAFETY: what is stored there is leaked.
    unsafe { MAPPINGS.load(Ordering::Acquire).as_ref() }
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
    Some((Options { backing, limit, minimum, mechanism, statistics: None }, statistics))
}

/// `/proc/PID/fd/NUMBER`, with room.
const LONGEST_PATH: usize = 64;

/// At the start of a program: if its memory is to be swapped, has the calls come here
/// that concern that.
///
/// Errors: one sentence.
pub fn prepare() -> Result<(), &'static str> {
    if environment::swap().is_none() {
        return Ok(());
    }
    let (options, _) = options().ok_or("what the launcher says of swapped memory is not of this build")?;
    MINIMUM.store(options.minimum, Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
    if !traps() {
        swap_filter::install().map_err(|_| "the trap filter for swapped memory was refused")?;
        if !traps() {
            return Err("calls on swapped memory do not reach usring although the trap filter was accepted");
        }
    }
    libc::map_large_blocks(options.minimum);
    Ok(())
}

/// First argument and answer of the call by which the filter is found in place.
const PROBE_ARGUMENT: u64 = 0x7573_7377;
const PROBE_ANSWER: u64 = 0x7573_0002;

fn traps() -> bool {
    // SAFETY: the kernel has no such call, and we read no memory for it.
    unsafe { usring_sys::syscall::syscall6(swap_filter::PROBE, [PROBE_ARGUMENT, 0, 0, 0, 0, 0]) == PROBE_ANSWER }
}

/// In a forked child.
pub fn disown() {
    ON.store(false, Ordering::Relaxed);
    MAPPINGS.store(core::ptr::null_mut(), Ordering::Relaxed);
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
    options.statistics = CStr::from_bytes_until_nul(&statistics).ok().filter(|path| !path.is_empty());
    match Mappings::open(&options) {
        Ok(mappings) => {
            MAPPINGS.store(alloc::boxed::Box::into_raw(alloc::boxed::Box::new(mappings)), Ordering::Release);
            kept_memory::set_keeper(&guarded::KEEPER);
            self::mappings()
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

/// Whether an address may be the region's.
#[inline]
pub fn is_in_window(address: u64) -> bool {
    (WINDOW.start as u64..WINDOW.end as u64).contains(&address)
}

/// Answers a call on mappings, if it is ours to answer.
pub fn serve(call: &mut Call) -> Option<Outcome> {
    let [first, second, third, fourth, fifth, _] = call.arguments;
    let number = call.number as u32;
    let answer = match number {
        linux::__NR_mmap if fourth as u32 & linux::MAP_ANONYMOUS != 0 || is_in_window(first) => map(call.arguments)?,
        swap_filter::PROBE if first == PROBE_ARGUMENT => Ok(PROBE_ANSWER),
        linux::__NR_mlockall => refused(Refusal::LockAll),
        linux::__NR_sigaltstack => {
            keep_alternate_stack(first);
            return None;
        }
        linux::__NR_mremap if is_in_window(first) || is_in_window(fifth) => {
            remap(first, second, third, fourth as u32, fifth)
        }
        _ if !is_in_window(first) => return None,
        linux::__NR_munmap => whole_pages(first, second).and_then(|range| mapped()?.unmap(&range)).map(|()| 0),
        linux::__NR_mprotect | linux::__NR_pkey_mprotect => protect(first, second, third as u32),
        linux::__NR_madvise => advise(first, second, third as u32),
        linux::__NR_mlock | linux::__NR_mlock2 => refused(Refusal::Lock),
        linux::__NR_munlock | linux::__NR_msync => Ok(0),
        linux::__NR_remap_file_pages => Err(Errno::EINVAL),
        _ => return None,
    };
    Some(answer.into())
}

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

/// mmap(2). `None`: the kernel's.
fn map([address, length, protection, flags, ..]: [u64; 6]) -> Option<Result<u64, Errno>> {
    let flags = flags as u32;
    let is_ours = flags & linux::MAP_TYPE == linux::MAP_PRIVATE
        && flags & linux::MAP_ANONYMOUS != 0
        && flags & OTHER_KINDS == 0
        && protection as u32 == READ_WRITE;
    if flags & FIXED != 0 {
        return is_in_window(address).then(|| map_over(address, length, flags, is_ours));
    }
    if !is_ours || length == 0 {
        return None;
    }
    if (length as usize) < MINIMUM.load(Ordering::Relaxed) {
        return None;
    }
    // No room there: the kernel has some.
    made()?.map(length as usize).map(|start| Ok(start as u64))
}

/// mmap(2) over memory of the region.
fn map_over(address: u64, length: u64, flags: u32, is_ours: bool) -> Result<u64, Errno> {
    let range = whole_pages(address, length)?;
    if flags & linux::MAP_FIXED_NOREPLACE != 0 {
        return Err(Errno::EEXIST);
    }
    if !is_ours || !mapped()?.has(&range) {
        return refused(Refusal::MapOver);
    }
    mapped()?.discard(&range)?;
    Ok(address)
}

/// mremap(2) with one side in the region.
fn remap(start: u64, old: u64, new: u64, flags: u32, _target: u64) -> Result<u64, Errno> {
    if !is_in_window(start) || flags & !linux::MREMAP_MAYMOVE != 0 || old == 0 {
        return refused(Refusal::Remap);
    }
    if new == 0 {
        return Err(Errno::EINVAL);
    }
    let range = whole_pages(start, old)?;
    mapped()?.remap(&range, new as usize, flags & linux::MREMAP_MAYMOVE != 0).map(|start| start as u64)
}

/// mprotect(2), pkey_mprotect(2).
fn protect(start: u64, length: u64, protection: u32) -> Result<u64, Errno> {
    if length == 0 {
        return Ok(0);
    }
    let range = whole_pages(start, length)?;
    match protection {
        READ_WRITE if mapped()?.has(&range) => Ok(0),
        READ_WRITE => Err(Errno::ENOMEM),
        _ => refused(Refusal::Protect),
    }
}

/// madvise(2).
fn advise(start: u64, length: u64, advice: u32) -> Result<u64, Errno> {
    if length == 0 {
        return Ok(0);
    }
    let range = whole_pages(start, length)?;
    let mappings = mapped()?;
    match advice {
        // What was freed may be gone at any time: now.
        linux::MADV_DONTNEED | linux::MADV_FREE | linux::MADV_DONTNEED_LOCKED => mappings.discard(&range)?,
        linux::MADV_POPULATE_READ | linux::MADV_POPULATE_WRITE => {
            if !mappings.has(&range) {
                return Err(Errno::ENOMEM);
            }
            for page in range.step_by(PAGE) {
                user_memory::read::<u8>(UserAddress(page as u64))?;
            }
        }
        // Changes what is inherited, or what the pages are.
        linux::MADV_REMOVE
        | linux::MADV_WIPEONFORK
        | linux::MADV_HWPOISON
        | linux::MADV_SOFT_OFFLINE
        | linux::MADV_GUARD_INSTALL
        | linux::MADV_GUARD_REMOVE => return refused(Refusal::Advice),
        _ if !mappings.has(&range) => return Err(Errno::ENOMEM),
        // A wish.
        _ => {}
    }
    Ok(0)
}

/// sigaltstack(2): the kernel writes there whenever it likes, so it stays in memory.
fn keep_alternate_stack(new: u64) {
    let Ok([start, _, length]) = user_memory::read::<[u64; 3]>(UserAddress(new)) else { return };
    if is_in_window(start)
        && let Some(mappings) = mappings()
        && let Some(around) = mappings.around(start as usize)
    {
        let range = start as usize..(start as usize).saturating_add(length as usize).min(around.end);
        let _ = mappings.pin(&range, Access::Write);
    }
}

/// What is not done on memory of the region.
#[derive(Clone, Copy)]
enum Refusal {
    MapOver,
    Remap,
    Protect,
    Advice,
    Lock,
    LockAll,
}

/// Says so, once, and answers what a kernel says that cannot do it.
fn refused(what: Refusal) -> Result<u64, Errno> {
    let (call, error) = match what {
        Refusal::MapOver => ("mapping something else over it", Errno::ENOMEM),
        Refusal::Remap => ("moving it to or from a given place (mremap)", Errno::ENOMEM),
        Refusal::Protect => ("another protection than reading and writing (mprotect)", Errno::ENOMEM),
        Refusal::Advice => ("this advice (madvise)", Errno::EINVAL),
        Refusal::Lock => ("locking it (mlock)", Errno::ENOMEM),
        Refusal::LockAll => ("locking everything (mlockall)", Errno::ENOMEM),
    };
    if TOLD.fetch_or(1 << what as u32, Ordering::Relaxed) & 1 << what as u32 == 0 {
        message::say(format_args!("swap: swapped memory does not have {call}: the program is answered {error}"));
    }
    Err(error)
}
