//! System calls on mappings that concern swapped memory. Their answers are those that the kernel
//! would give if the whole range were the kernel's memory. In fact the range may consist of paged
//! memory, memory released to the kernel, and holes.
//!
//! The kernel does not know the region's holes, because to the kernel the region is mapped there.
//! So usring calls the kernel for each part of the range that the kernel owns. If a call has to
//! stop at a hole, usring stops there.
//!
//! Some requests are impossible on paged memory: another protection, a lock, a stack. For these,
//! the memory is released to the kernel, which keeps the memory until the program unmaps it. The
//! release fails while a system call uses the memory. usring then refuses the request, and writes a
//! message to standard error once.

use crate::call::{Call, Outcome};
use crate::runtime::message;
use crate::swap::filter::{PROBE, PROBE_ANSWER, PROBE_ARGUMENT};
use crate::swap::region::{self, mappings};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use usring_call_memory::is_in_window;
use usring_swap::Access;
use usring_swap::mappings::{Changes, Mappings, Owner, Part, PinLimit};
use usring_sys::mapping::PAGE;
use usring_sys::{Errno, SystemCall, UserAddress, user_memory, width};
use usring_uapi::general as linux;

/// The kinds of refusals that [`report_refusal`] has reported already, one bit for each kind.
static REPORTED: AtomicU32 = AtomicU32::new(0);
static IS_FULL_REPORTED: AtomicBool = AtomicBool::new(false);

/// Number of a [`Call`] that is no system call. usring's replacement of `pthread_attr_setstack`
/// makes this call, to announce the memory that the program chose for a stack.
pub const STACK: u32 = 0x7573_0200;

/// Answer to a call on mappings. `None`: the kernel has to answer the call.
type Answer = Option<Result<u64, Errno>>;

/// Answers a call on mappings, if it concerns swapped memory.
pub fn serve(call: &mut Call) -> Option<Outcome> {
    let arguments = call.arguments;
    let [first, second, third, fourth, ..] = arguments;
    let number = width::low(call.number);
    let answer = match number {
        linux::__NR_mmap if width::low(fourth) & linux::MAP_ANONYMOUS != 0 || is_in_window(first) => map(arguments),
        PROBE if first == PROBE_ARGUMENT => Some(Ok(PROBE_ANSWER)),
        linux::__NR_mlockall => Some(Err(report_refusal(Unsupported::LockAll))),
        linux::__NR_sigaltstack => {
            keep_alternate_stack(first);
            None
        }
        STACK => {
            keep_stack(first, second);
            Some(Ok(0))
        }
        linux::__NR_mremap => remap(arguments),
        _ if !is_in_window(first) => None,
        linux::__NR_set_tid_address => {
            keep_stack(first, 4);
            None
        }
        linux::__NR_set_robust_list | linux::__NR_rseq => {
            keep_stack(first, second.max(32));
            None
        }
        _ => mappings().and_then(|mappings| serve_range(mappings, number, [first, second, third, fourth])),
    };
    answer.map(Outcome::from)
}

fn serve_range(mappings: &Mappings, number: u32, arguments: [u64; 4]) -> Answer {
    let [start, length, third, fourth] = arguments;
    let answer = match number {
        linux::__NR_munmap => unmap(mappings, start, length),
        linux::__NR_mprotect => protect(mappings, start, length, width::low(third), None),
        linux::__NR_pkey_mprotect => protect(mappings, start, length, width::low(third), Some(fourth)),
        linux::__NR_madvise => advise(mappings, start, length, width::low(third)),
        linux::__NR_mlock | linux::__NR_mlock2 => lock(mappings, number, start, length, third),
        linux::__NR_munlock => pages_around(start, length).and_then(|range| {
            call_for_kernel_parts(mappings, &range, None, |start, length| call_kernel(number, [start, length, 0, 0]))
        }),
        linux::__NR_msync => synchronise(mappings, start, length, third),
        linux::__NR_mincore => mincore(mappings, start, length, third),
        linux::__NR_remap_file_pages => Err(Errno::EINVAL),
        _ => return None,
    };
    Some(answer)
}

/// Makes a system call on a part that the kernel owns, and returns the answer.
fn call_kernel(number: u32, [first, second, third, fourth]: [u64; 4]) -> Result<u64, Errno> {
    SystemCall::new(number, [first, second, third, fourth, 0]).run()
}

/// Returns the pages of a range. Errors: `EINVAL` if the range does not start at a page, or its end
/// is beyond the highest address.
fn pages(start: u64, length: u64) -> Result<Range<usize>, Errno> {
    let (start, length) = (width::size(start), width::size(length));
    let length = length.checked_next_multiple_of(PAGE).ok_or(Errno::EINVAL)?;
    let end = start.checked_add(length).ok_or(Errno::EINVAL)?;
    if start.is_multiple_of(PAGE) { Ok(start..end) } else { Err(Errno::EINVAL) }
}

/// Returns the pages that contain `length` bytes from `start` on.
fn pages_around(start: u64, length: u64) -> Result<Range<usize>, Errno> {
    let first = start / PAGE as u64 * PAGE as u64;
    pages(first, length.checked_add(start - first).ok_or(Errno::EINVAL)?)
}

const READ_WRITE: u32 = linux::PROT_READ | linux::PROT_WRITE;

/// Flags of mmap(2) for kinds of memory that the region does not provide.
const OTHER_KINDS: u32 = linux::MAP_STACK
    | linux::MAP_GROWSDOWN
    | linux::MAP_LOCKED
    | linux::MAP_32BIT
    | linux::MAP_HUGETLB
    | linux::MAP_SYNC;
const FIXED: u32 = linux::MAP_FIXED | linux::MAP_FIXED_NOREPLACE;

/// Answers mmap(2).
fn map(arguments: [u64; 6]) -> Answer {
    let [address, length, protection, flags, ..] = arguments;
    let flags = width::low(flags);
    let is_ours = flags & linux::MAP_TYPE == linux::MAP_PRIVATE
        && flags & linux::MAP_ANONYMOUS != 0
        && flags & OTHER_KINDS == 0
        && width::low(protection) == READ_WRITE;
    if flags & FIXED != 0 {
        return if is_in_window(address) { map_over(mappings()?, arguments, is_ours) } else { None };
    }
    if !is_ours || width::size(length) < region::minimum() {
        // Here the address is only a hint. A hint in the window is dropped, because the kernel must
        // not map memory in the holes of the region.
        let elsewhere = || map_by_kernel([0, length, protection, u64::from(flags), arguments[4], arguments[5]]);
        return (is_in_window(address) && flags & linux::MAP_ANONYMOUS != 0).then(elsewhere);
    }
    let start = region::get_or_make()?.change().map(width::size(length));
    if start.is_none() {
        report_no_room(length);
    }
    // If the region cannot provide the memory for this mmap(2), the kernel maps it.
    start.map(|start| Ok(start as u64))
}

fn report_no_room(length: u64) {
    if !IS_FULL_REPORTED.swap(true, Ordering::Relaxed) {
        message::say(format_args!(
            "swap: the backing store has no room for {} KiB more; memory that does not fit is from now on ordinary \
             memory, outside the limit; give swap a larger backing store",
            length >> 10
        ));
    }
}

fn map_by_kernel(mut arguments: [u64; 6]) -> Result<u64, Errno> {
    // Linux ignores this flag. usring's filter lets a call with this flag pass.
    arguments[3] |= u64::from(linux::MAP_DENYWRITE);
    SystemCall::with_six(linux::__NR_mmap, arguments).run()
}

/// Answers mmap(2) at an address in the region.
fn map_over(mappings: &Mappings, mut arguments: [u64; 6], is_ours: bool) -> Answer {
    let [address, length, _, flags, ..] = arguments;
    let range = match pages(address, length) {
        Ok(range) if !range.is_empty() => range,
        _ => return Some(Err(Errno::EINVAL)),
    };
    let region = mappings.range();
    if range.end <= region.start || range.start >= region.end {
        return None;
    }
    let mut changes = mappings.change();
    if width::low(flags) & linux::MAP_FIXED_NOREPLACE != 0 && !changes.is_free(&range) {
        return Some(Err(Errno::EEXIST));
    }
    if is_ours && range.start >= region.start && range.end <= region.end {
        match changes.map_over(&range) {
            Ok(true) => return Some(Ok(address)),
            Ok(false) => {}
            Err(error) => return Some(Err(error)),
        }
    }
    // To the kernel, the whole region is mapped, even where the program sees a hole. So
    // MAP_FIXED_NOREPLACE would fail.
    let flags = width::low(flags) & !linux::MAP_FIXED_NOREPLACE | linux::MAP_FIXED;
    arguments[3] = u64::from(flags);
    match changes.replace(&range, || map_by_kernel(arguments)) {
        // The file of this mmap(2) may be a ring's: an eventfd, which the kernel cannot map.
        // `make_room` then releases the range to the kernel, and `descriptor_calls::map` answers
        // the call.
        Err(Errno::ENODEV) => {
            make_room(&mut changes, &range).err().map(|error| Err(errno_for_program(error, Unsupported::MapOver)))
        }
        answer => Some(answer.map_err(|error| errno_for_program(error, Unsupported::MapOver))),
    }
}

/// Releases all of a range to the kernel, with its contents. Maps memory without access at the
/// holes of the range.
fn make_room(changes: &mut Changes, range: &Range<usize>) -> Result<(), Errno> {
    changes.release_to_kernel(range)?;
    let holes = changes.parts(range).into_iter().filter(|part| part.owner == Owner::Unmapped);
    holes.map(|part| part.range).try_for_each(|hole| {
        let flags = linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_NORESERVE | linux::MAP_FIXED;
        let arguments = [hole.start as u64, hole.len() as u64, 0, u64::from(flags), u64::MAX, 0];
        changes.replace(&hole, || map_by_kernel(arguments)).map(drop)
    })
}

/// Answers munmap(2).
fn unmap(mappings: &Mappings, start: u64, length: u64) -> Result<u64, Errno> {
    let range = pages(start, length)?;
    if range.is_empty() {
        return Err(Errno::EINVAL);
    }
    mappings.change().unmap(&range)?;
    let behind = mappings.range().end.max(range.start)..range.end;
    if behind.is_empty() {
        Ok(0)
    } else {
        call_kernel(linux::__NR_munmap, [behind.start as u64, behind.len() as u64, 0, 0])
    }
}

/// Answers mprotect(2) and pkey_mprotect(2).
fn protect(mappings: &Mappings, start: u64, length: u64, protection: u32, key: Option<u64>) -> Result<u64, Errno> {
    let number = if key.is_some() { linux::__NR_pkey_mprotect } else { linux::__NR_mprotect };
    let ask = |start, length| call_kernel(number, [start, length, u64::from(protection), key.unwrap_or(0)]);
    // With a length of 0, the kernel only checks the call's other arguments.
    ask(start, 0)?;
    const KNOWN: u32 = READ_WRITE | linux::PROT_EXEC | linux::PROT_SEM;
    if protection & !KNOWN != 0 && length != 0 {
        return Err(Errno::EINVAL);
    }
    let range = pages(start, length).map_err(|_| Errno::ENOMEM)?;
    let is_as_ever = protection & !linux::PROT_SEM == READ_WRITE && key.is_none_or(|key| width::low(key) == u32::MAX);
    call_for_kernel_parts(mappings, &range, (!is_as_ever).then_some(Unsupported::Protect), ask)
}

/// Answers mlock(2) and mlock2(2).
fn lock(mappings: &Mappings, number: u32, start: u64, length: u64, flags: u64) -> Result<u64, Errno> {
    let ask = |start, length| call_kernel(number, [start, length, flags, 0]);
    ask(start / PAGE as u64 * PAGE as u64, 0)?;
    call_for_kernel_parts(mappings, &pages_around(start, length)?, Some(Unsupported::Lock), ask)
}

/// Calls `ask` for each part of a range that the kernel owns, up to the first hole. If `becomes` is
/// `Some`, first releases the range up to that hole to the kernel. If the release fails, refuses
/// the call, with a message that names `becomes`. Error: `ENOMEM` if the range has a hole.
fn call_for_kernel_parts(
    mappings: &Mappings,
    range: &Range<usize>,
    becomes: Option<Unsupported>,
    ask: impl Fn(u64, u64) -> Result<u64, Errno>,
) -> Result<u64, Errno> {
    let mut changes = mappings.change();
    let mapped = range.start..changes.mapped_end(range);
    if let Some(refusal) = becomes {
        changes.release_to_kernel(&mapped).map_err(|_| report_refusal(refusal))?;
    }
    for part in changes.parts(&mapped).iter().filter(|part| part.owner == Owner::Kernel) {
        ask(part.range.start as u64, part.range.len() as u64)?;
    }
    if mapped.end == range.end { Ok(0) } else { Err(Errno::ENOMEM) }
}

/// Answers madvise(2).
fn advise(mappings: &Mappings, start: u64, length: u64, advice: u32) -> Result<u64, Errno> {
    let ask = |start, length| call_kernel(linux::__NR_madvise, [start, length, u64::from(advice), 0]);
    ask(start, 0)?;
    let range = pages(start, length)?;
    let mut changes = mappings.change();
    let parts = changes.parts(&range);
    // These kinds of advice change the pages themselves, or decide whether children inherit them.
    // The pager cannot carry them out, so the kernel must own the memory.
    if let linux::MADV_DOFORK
    | linux::MADV_WIPEONFORK
    | linux::MADV_HWPOISON
    | linux::MADV_SOFT_OFFLINE
    | linux::MADV_GUARD_INSTALL = advice
    {
        changes.release_to_kernel(&range).map_err(|_| report_refusal(Unsupported::Advice))?;
        return advise_parts(mappings, &changes.parts(&range), advice);
    }
    drop(changes);
    advise_parts(mappings, &parts, advice)
}

fn advise_parts(mappings: &Mappings, parts: &[Part], advice: u32) -> Result<u64, Errno> {
    let ask = |start, length| call_kernel(linux::__NR_madvise, [start, length, u64::from(advice), 0]);
    let populates = matches!(advice, linux::MADV_POPULATE_READ | linux::MADV_POPULATE_WRITE);
    let mut answer = Ok(0);
    for part in parts {
        match part.owner {
            Owner::Kernel => drop(ask(part.range.start as u64, part.range.len() as u64)?),
            Owner::Pager => advise_paged(mappings, &part.range, advice)?,
            Owner::Unmapped if populates => return Err(Errno::ENOMEM),
            Owner::Unmapped => answer = Err(Errno::ENOMEM),
        }
    }
    answer
}

fn advise_paged(mappings: &Mappings, range: &Range<usize>, advice: u32) -> Result<(), Errno> {
    match advice {
        // After MADV_FREE, Linux may drop the contents at any time. usring drops them at once.
        linux::MADV_DONTNEED | linux::MADV_FREE | linux::MADV_DONTNEED_LOCKED => mappings.zero(range),
        linux::MADV_POPULATE_READ | linux::MADV_POPULATE_WRITE => {
            range.clone().step_by(PAGE).try_for_each(|page| user_memory::read::<u8>(UserAddress(page as u64)).map(drop))
        }
        // Linux supports this advice only for shared memory.
        linux::MADV_REMOVE => Err(Errno::EINVAL),
        // Other advice is only a hint.
        _ => Ok(()),
    }
}

/// Answers msync(2): paged memory has no file.
fn synchronise(mappings: &Mappings, start: u64, length: u64, flags: u64) -> Result<u64, Errno> {
    let ask = |start, length| call_kernel(linux::__NR_msync, [start, length, flags, 0]);
    ask(start, 0)?;
    let range = pages(start, length).map_err(|_| Errno::ENOMEM)?;
    let parts = mappings.change().parts(&range);
    for part in parts.iter().filter(|part| part.owner == Owner::Kernel) {
        ask(part.range.start as u64, part.range.len() as u64)?;
    }
    // A hole in the range does not end the call, but changes its answer to ENOMEM.
    if parts.iter().any(|part| part.owner == Owner::Unmapped) { Err(Errno::ENOMEM) } else { Ok(0) }
}

/// Answers mincore(2).
fn mincore(mappings: &Mappings, start: u64, length: u64, target: u64) -> Result<u64, Errno> {
    let range =
        pages(start, length).map_err(|error| if start.is_multiple_of(PAGE as u64) { Errno::ENOMEM } else { error })?;
    let parts = mappings.change().parts(&range);
    for part in parts {
        const AT_ONCE: usize = 256;
        for first in part.range.clone().step_by(AT_ONCE * PAGE) {
            let mut resident = [0u8; AT_ONCE];
            let pages = (part.range.end - first).min(AT_ONCE * PAGE) / PAGE;
            match part.owner {
                Owner::Kernel => {
                    let arguments = [first as u64, (pages * PAGE) as u64, resident.as_mut_ptr() as u64, 0];
                    call_kernel(linux::__NR_mincore, arguments)?;
                }
                Owner::Pager => resident[..pages].iter_mut().enumerate().for_each(|(page, resident)| {
                    *resident = u8::from(mappings.is_resident(first + page * PAGE));
                }),
                Owner::Unmapped => return Err(Errno::ENOMEM),
            }
            let target = UserAddress(target).offset(((first - range.start) / PAGE) as u64);
            user_memory::copy_out(target, &resident[..pages])?;
        }
    }
    Ok(0)
}

/// Answers mremap(2).
fn remap([start, old, new, flags, target, _]: [u64; 6]) -> Answer {
    const MOVES: u32 = linux::MREMAP_FIXED | linux::MREMAP_DONTUNMAP;
    let flags = width::low(flags);
    let is_target = flags & linux::MREMAP_FIXED != 0 && is_in_window(target);
    if !is_in_window(start) && !is_target {
        return None;
    }
    let mappings = mappings()?;
    let answer = || {
        let (from, length) = (pages(start, old)?, pages(0, new)?.end);
        let to = if is_target { pages(target, new)? } else { 0..0 };
        let may_move = flags & linux::MREMAP_MAYMOVE != 0;
        let overlaps = from.start < to.end && to.start < from.end;
        if length == 0 || flags & !(MOVES | linux::MREMAP_MAYMOVE) != 0 || (flags & MOVES != 0 && !may_move) || overlaps
        {
            return Err(Errno::EINVAL);
        }
        let ask = || kernel_remap([start, old, new, u64::from(flags), target]);
        let mut changes = mappings.change();
        if flags & MOVES == 0 {
            return remap_freely(&mut changes, &from, length, may_move, ask);
        }
        if is_in_window(start) {
            if changes.mapped_end(&from) != from.end {
                return Err(Errno::EFAULT);
            }
            changes.release_to_kernel(&from).map_err(|_| report_refusal(Unsupported::Remap))?;
        }
        let answer = changes.replace(&to, ask).map_err(|error| errno_for_program(error, Unsupported::Remap))?;
        if flags & linux::MREMAP_DONTUNMAP == 0 && is_in_window(start) {
            changes.note_released_gone(&from);
        }
        Ok(answer)
    };
    Some(answer())
}

fn kernel_remap(arguments: [u64; 5]) -> Result<u64, Errno> {
    SystemCall::new(linux::__NR_mremap, arguments).run()
}

/// Answers mremap(2) that names no target address.
fn remap_freely(
    changes: &mut Changes,
    old: &Range<usize>,
    length: usize,
    may_move: bool,
    ask: impl Fn() -> Result<u64, Errno>,
) -> Result<u64, Errno> {
    let parts = changes.parts(old);
    let start = old.start as u64;
    let by_kernel = |changes: &mut Changes| {
        let answer = ask()?;
        let stays = if answer == start { length } else { 0 };
        changes.note_released_gone(&(old.start + stays.min(old.len())..old.end));
        changes.note_released_grown(&(old.end..old.start + stays.max(old.len())));
        Ok(answer)
    };
    let owner = parts.first().map(|part| part.owner);
    match owner {
        // If the old size is 0, mremap(2) maps shared memory a second time. The region has no
        // shared memory. So only the kernel can carry out the call, for memory that it owns.
        None if changes.parts(&(old.start..old.start + PAGE))[0].owner == Owner::Kernel => ask(),
        None => Err(Errno::EINVAL),
        Some(Owner::Unmapped) => Err(Errno::EFAULT),
        Some(Owner::Kernel) if parts.len() == 1 => by_kernel(changes),
        Some(_) if length <= old.len() => {
            changes.unmap(&(old.start + length..old.end))?;
            Ok(start)
        }
        Some(Owner::Pager) if parts.len() == 1 => match changes.remap(old, length, may_move) {
            Err(Errno::ENOMEM) if may_move => {
                // The region has no free range of this length, so the kernel maps the memory.
                report_no_room((length - old.len()) as u64);
                changes.release_to_kernel(old)?;
                by_kernel(changes)
            }
            answer => answer.map(|start| start as u64),
        },
        // The range consists of several mappings, or has a hole. mremap(2) requires a single
        // mapping.
        Some(_) => Err(Errno::EFAULT),
    }
}

/// Releases the memory of a stack to the kernel. The kernel writes signal frames to stacks. If the
/// page for a frame were evicted, the kernel could not write the frame, and would kill the thread.
/// (Also called for other memory to which the kernel writes when it switches or ends threads.)
fn keep_stack(start: u64, length: u64) {
    let Some((mappings, range)) = mappings().zip(pages_around(start, length).ok()).filter(|_| is_in_window(start))
    else {
        return;
    };
    if mappings.change().release_to_kernel(&range).is_err() {
        report_refusal(Unsupported::Stack);
        // The stack's memory could not be released to the kernel. So it stays in the swap region,
        // pinned permanently.
        let _ = mappings.pin(&range, Access::Write, PinLimit::HalfOfMemory, |_| {});
    }
}

/// Releases an alternate signal stack (sigaltstack(2)) to the kernel, because the kernel may write
/// to it at any time.
fn keep_alternate_stack(new: u64) {
    let Ok([start, _, length]) = user_memory::read::<[u64; 3]>(UserAddress(new)) else { return };
    keep_stack(start, length);
}

/// Requests that the pager cannot carry out. usring refuses a request if it cannot release the
/// memory to the kernel. It always refuses `LockAll`.
#[derive(Clone, Copy)]
enum Unsupported {
    MapOver,
    Remap,
    Protect,
    Advice,
    Lock,
    LockAll,
    Stack,
}

/// Returns the errno that the program gets for a call that failed with `error`. `EBUSY` means that
/// memory could not be released to the kernel. The program then gets `ENOMEM`, and the refusal of
/// `what` is reported on standard error. Any other errno is the kernel's, and the program gets it
/// unchanged.
fn errno_for_program(error: Errno, what: Unsupported) -> Errno {
    if error == Errno::EBUSY { report_refusal(what) } else { error }
}

/// Reports a refusal on standard error, once for each kind. Returns `ENOMEM`.
fn report_refusal(what: Unsupported) -> Errno {
    let call = match what {
        Unsupported::MapOver => "another mapping over it (mmap)",
        Unsupported::Remap => "a move to or from a given address (mremap)",
        Unsupported::Protect => "another protection than reading and writing (mprotect)",
        Unsupported::Advice => "this advice (madvise)",
        Unsupported::Lock => "a lock (mlock)",
        Unsupported::LockAll => "a lock on everything (mlockall)",
        Unsupported::Stack => "a stack",
    };
    if REPORTED.fetch_or(1 << what as u32, Ordering::Relaxed) & 1 << what as u32 == 0 {
        message::say(format_args!("swap: swapped memory does not support {call}: the program gets ENOMEM"));
    }
    Errno::ENOMEM
}
