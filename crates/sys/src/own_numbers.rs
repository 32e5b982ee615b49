//! Chooses the numbers of usring's own descriptors, most of which are duplicates of the program's
//! files.
//!
//! Linux allocates the lowest free number, and answers `EMFILE` once that number reaches the soft
//! limit (RLIMIT_NOFILE). If a duplicate of usring had a number below that limit, the program could
//! open one file less. So usring raises the kernel's soft limit, and its numbers lie above the
//! program's own limit, in the *reserve*:
//!
//! ```text
//! 0 ........ program's limit ........ kernel's soft limit ........ hard limit
//!   the program's numbers    the reserve: all taken
//! ```
//!
//! - Every number of the reserve is occupied, by a duplicate or by a placeholder (a duplicate of an
//!   unused eventfd). So a program that has used up its numbers finds none free below the kernel's
//!   limit. The program gets `EMFILE` exactly where it would without usring.
//! - dup3(2) replaces a placeholder by a duplicate, and later the duplicate by a placeholder. These
//!   are no more system calls than for making a duplicate and closing it.
//! - The reserve grows on demand, up to the hard limit.
//! - Only a host (the code in which the engine runs, such as `interpose`) that hides the raised
//!   limit from the program may call [`allow_reserve`]. When the program reads or changes its
//!   limit, the host uses [`limits`] or [`set_limits`]. When the program executes another program,
//!   the host uses [`with_program_limit`].
//!
//! In two cases usring borrows numbers far above those that the program uses:
//! - There is no reserve, because the hard limit is reached or the host does not allow one.
//! - The program's limit is so high that no program reaches it.

use crate::descriptor::{OwnedDescriptor, duplicate_from, same_file};
use crate::mutex::Mutex;
use crate::per_process::PerProcess;
use crate::{Errno, SystemCall, eventfd, width};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// The lowest descriptor number that the seccomp filter examines. Descriptors of rings and of
/// usring have this number or a higher one. If the program's limit of open files is lower,
/// placeholders and borrowed numbers may lie below. (A program rarely has 600 files open, and
/// select(2) still accepts numbers below 1024.)
pub const RESERVED_BASE: i32 = 600;

/// The least hard limit of open files with which a program can have rings. Rings need 8 descriptors
/// from [`RESERVED_BASE`] on.
pub const LEAST_HARD_LIMIT: u64 = RESERVED_BASE as u64 + 8;

/// Upper bound: every descriptor number of usring is below this one.
const NUMBERS: i32 = 65536;

/// A set of descriptor numbers, as a bitmap. Only the current owner of a number changes its bit.
struct Numbers([AtomicU64; NUMBERS as usize / 64]);

impl Numbers {
    const fn none() -> Numbers {
        Numbers([const { AtomicU64::new(0) }; NUMBERS as usize / 64])
    }

    fn word(&self, number: i32) -> Option<(&AtomicU64, u64)> {
        self.0.get(width::index(number) / 64).map(|word| (word, 1 << (number % 64)))
    }

    #[inline]
    fn has(&self, number: i32) -> bool {
        number >= 0 && self.word(number).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn insert(&self, number: i32) {
        if let Some((word, bit)) = self.word(number) {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Removes a number from the set. Returns whether this call removed it: `false` if it was not
    /// in the set.
    fn remove(&self, number: i32) -> bool {
        self.has(number)
            && self.word(number).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Acquire) & bit != 0)
    }

    /// Returns the numbers in the set from `first` to `last`, in order.
    fn between(&self, first: u32, last: u32) -> impl Iterator<Item = i32> {
        let end = (last as usize).saturating_add(1).min(NUMBERS as usize);
        let words = first as usize / 64..end.div_ceil(64).max(first as usize / 64);
        let bits = words.flat_map(move |index| {
            let mut bits = self.0[index].load(Ordering::Relaxed);
            core::iter::from_fn(move || {
                let number = (bits != 0).then(|| index * 64 + bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(number)
            })
        });
        bits.filter(move |number| (first as usize..end).contains(number)).map(|number| width::int(number as u64))
    }
}

/// Descriptor numbers that are private to usring, of duplicates and placeholders. The program may
/// not use, close or replace them.
static PRIVATE: Numbers = Numbers::none();
/// All numbers of the reserve (usring's numbers above the program's limit). If a duplicate with
/// such a number is closed, a placeholder replaces it.
static RESERVE: Numbers = Numbers::none();
/// Numbers of the reserve whose placeholders (duplicates of an unused eventfd) may be replaced.
static IDLE: Numbers = Numbers::none();

/// Whether the host (the code in which the engine runs) has called [`allow_reserve`], because it
/// hides the kernel's limit from the program.
static ALLOWED: AtomicBool = AtomicBool::new(false);
/// The kernel's soft limit of open files, if usring has raised it; otherwise 0.
pub static RAISED: AtomicU64 = AtomicU64::new(0);
/// The program's own soft limit of open files. Valid while [`RAISED`] is not 0.
pub static PROGRAM_LIMIT: AtomicU64 = AtomicU64::new(0);
/// The descriptor of which all placeholders are duplicates; −1 before there are any. (A placeholder
/// occupies a number of the reserve that usring does not use.)
static PLACEHOLDER: AtomicI32 = AtomicI32::new(-1);
/// Held while a thread changes the limits of open files or the size of the reserve.
static CHANGING: PerProcess<Mutex<()>> = PerProcess::new();

/// If the program's soft limit of open files (RLIMIT_NOFILE) is above this value, usring borrows
/// descriptor numbers below the limit. Few programs open that many files.
const AMPLE: u64 = 8192;
/// Lowest number that usring borrows from the program's range if the program's limit is ample
/// ([`AMPLE`]). Duplicates of descriptors below [`BORROWED_FOR_BELOW`] then have preferred numbers
/// below 4096, so the kernel's descriptor table stays small.
const BORROWED_ABOVE: u16 = 3040;
/// How many numbers at the start of usring's range are for duplicates without a preferred number.
const BELOW_PREFERRED: i32 = 32;
/// Used if the program's limit is ample ([`AMPLE`]). A duplicate of a descriptor below this number
/// gets a number borrowed from the program. A duplicate of any other descriptor gets a number of
/// the reserve, above the program's limit.
const BORROWED_FOR_BELOW: u16 = 1024;
/// How many numbers [`prepare_table`] makes room for: enough for the first ring, and for the files
/// of its first waiting requests.
const FIRST_NUMBERS: u32 = 512;
/// Least number of descriptors by which the reserve (usring's numbers above the program's limit)
/// grows.
const LEAST_GROWTH: i32 = 64;

/// The ranges in which duplicates get their numbers.
#[derive(Clone, Copy)]
struct Layout {
    /// The program's soft limit of open files. The reserve (usring's numbers) begins there. 0 if
    /// there is no reserve.
    limit: u32,
    /// Lowest borrowed number.
    above: u16,
    /// Used if there is a reserve. A duplicate of a descriptor with this number or a higher one
    /// gets a number of the reserve. A duplicate of a lower descriptor gets a number borrowed from
    /// the program.
    borrowed_for_below: u16,
}

/// The ranges of usring's descriptor numbers as one word ([`Layout::word`]); 0 until computed.
static LAYOUT: AtomicU64 = AtomicU64::new(0);

impl Layout {
    fn current() -> Layout {
        match LAYOUT.load(Ordering::Relaxed) {
            0 => Layout::make(),
            word => Layout {
                limit: (word >> 32) as u32,
                above: width::short(word >> 16),
                borrowed_for_below: width::short(word),
            },
        }
    }

    #[cold]
    fn make() -> Layout {
        let [soft, hard] = limits().unwrap_or([0, 0]);
        let has_reserve = ALLOWED.load(Ordering::Relaxed) && hard > soft && soft < NUMBERS as u64;
        let base = RESERVED_BASE as u64;
        let above = match soft {
            _ if soft > AMPLE => BORROWED_ABOVE,
            _ if soft > base => width::short(base.max(soft / 2)),
            _ => 3,
        };
        let borrowed_for_below = match has_reserve {
            true if soft > AMPLE => BORROWED_FOR_BELOW,
            true => 0,
            false => u16::MAX,
        };
        let layout = Layout { limit: if has_reserve { width::low(soft.max(1)) } else { 0 }, above, borrowed_for_below };
        LAYOUT.store(layout.word(), Ordering::Relaxed);
        layout
    }

    fn word(self) -> u64 {
        u64::from(self.limit) << 32 | u64::from(self.above) << 16 | u64::from(self.borrowed_for_below)
    }

    /// Returns whether a duplicate of descriptor `number` gets a number of the reserve, above the
    /// program's limit. Once the program has a descriptor in the upper half of its range, usring
    /// borrows no more numbers from that range.
    fn reserves_for(self, number: i32) -> bool {
        if self.limit != 0 && self.borrowed_for_below != 0 && number.cast_unsigned() >= self.limit / 2 {
            LAYOUT.store(Layout { borrowed_for_below: 0, ..self }.word(), Ordering::Relaxed);
        }
        self.limit != 0 && number.cast_unsigned() >= u32::from(self.borrowed_for_below)
    }

    /// Returns the lowest descriptor number that a private duplicate of descriptor `number` may
    /// get.
    fn base_for(self, number: i32) -> i32 {
        if self.reserves_for(number) {
            self.limit.max(RESERVED_BASE as u32).cast_signed()
        } else {
            i32::from(self.above)
        }
    }
}

/// Returns the preferred number: a duplicate of descriptor `number` gets it if it is free. It is
/// computed from `number`, so a later duplicate of this descriptor has this preferred number, too.
pub fn preferred(number: i32) -> i32 {
    number.saturating_add(Layout::current().base_for(number) + BELOW_PREFERRED)
}

/// Whether any number is private to usring in this process, or was. A forked child determines this
/// anew.
static HAS_PRIVATE: AtomicBool = AtomicBool::new(false);

/// Returns whether a child forked now may inherit numbers that are private to usring.
pub fn has_private() -> bool {
    HAS_PRIVATE.load(Ordering::Relaxed)
}

fn make_private(number: i32) {
    if !HAS_PRIVATE.load(Ordering::Relaxed) {
        HAS_PRIVATE.store(true, Ordering::Relaxed);
    }
    PRIVATE.insert(number);
}

/// Returns whether a number is private to usring.
#[inline]
pub fn is_private(number: i32) -> bool {
    PRIVATE.has(number) && (number >= RESERVED_BASE || is_still_ours(number))
}

/// Returns whether a number below [`RESERVED_BASE`] still belongs to usring. The program may have
/// closed a placeholder there, because the seccomp filter does not trap a close of such a number.
#[cold]
fn is_still_ours(number: i32) -> bool {
    if !RESERVE.has(number) || same_file(number, PLACEHOLDER.load(Ordering::Relaxed)) != Some(false) {
        return true;
    }
    RESERVE.remove(number);
    PRIVATE.remove(number);
    false
}

/// Returns the numbers from `first` to `last` that are private to usring, in order.
pub fn private_between(first: u32, last: u32) -> impl Iterator<Item = u32> {
    PRIVATE.between(first, last).filter(|number| is_private(*number)).map(|number| number.cast_unsigned())
}

/// Allows usring to raise the limit of open files (RLIMIT_NOFILE), and to use descriptor numbers
/// above the program's own limit (the reserve). Only code that hides the raised limit from the
/// program may call this function.
pub fn allow_reserve() {
    ALLOWED.store(true, Ordering::Relaxed);
    LAYOUT.store(0, Ordering::Relaxed);
}

/// Makes a private duplicate of a file, closed on exec. The duplicate gets the number `wish` if
/// that is free.
///
/// Errors: `EBADF`; `EMFILE` if no number is left within the limits.
pub fn duplicate(of: i32, wish: Option<i32>) -> Result<OwnedDescriptor, Errno> {
    match duplicate_by(Layout::current(), of, wish) {
        // EINVAL: the program has lowered its limit. So the ranges of usring's numbers are computed
        // again before the next attempt.
        Err(Errno::EINVAL) => duplicate_by(Layout::make(), of, None),
        answer => answer,
    }
    // If no number is left, the error is `EMFILE`, which dup(2) would return.
    .map_err(|error| if error == Errno::EINVAL { Errno::EMFILE } else { error })
}

fn duplicate_by(layout: Layout, of: i32, wish: Option<i32>) -> Result<OwnedDescriptor, Errno> {
    let wish = wish.unwrap_or_else(|| layout.base_for(of));
    if layout.reserves_for(of) {
        match reserved(of, wish, linux::O_CLOEXEC) {
            Err(Errno::EMFILE) => {}
            answer => return answer.map(OwnedDescriptor::from_raw),
        }
    }
    let duplicate = borrowed(of, wish, i32::from(layout.above))?;
    make_private(duplicate.number());
    Ok(duplicate)
}

/// Makes a duplicate for the program, at a number of the reserve: the descriptor of a ring. The
/// program may use and close it, in contrast to usring's private descriptors.
///
/// Errors: `EMFILE` if there is no reserve, or no number is left in it; those of dup3(2).
pub fn duplicate_for_program(of: i32, close_on_exec: bool) -> Result<OwnedDescriptor, Errno> {
    if !ALLOWED.load(Ordering::Relaxed) {
        return Err(Errno::EMFILE);
    }
    let flags = if close_on_exec { linux::O_CLOEXEC } else { 0 };
    let number = reserved(of, RESERVED_BASE, flags)?;
    PRIVATE.remove(number);
    Ok(OwnedDescriptor::from_raw(number))
}

/// Replaces a placeholder of the reserve by a duplicate of `of`, at the number `wish` if possible.
/// Returns the duplicate's number.
fn reserved(of: i32, wish: i32, flags: u32) -> Result<i32, Errno> {
    for _ in 0..2 {
        let number = take(wish).ok_or(Errno::EMFILE)?;
        let answer = replace(of, number, flags);
        if answer.is_ok() {
            return Ok(number);
        }
        IDLE.insert(number);
        crate::descriptor::status_flags(of)?;
        // The program has lowered the kernel's limit by a call that usring did not see. So the
        // limit counts as not raised.
        RAISED.store(0, Ordering::Relaxed);
    }
    Err(Errno::EMFILE)
}

fn replace(of: i32, number: i32, flags: u32) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_dup3, [width::word(of), width::word(number), u64::from(flags), 0, 0]).run().map(drop)
}

/// Removes the number of a placeholder from `IDLE`, so that the caller can replace the placeholder.
/// Takes the number `wish` if it is idle, and otherwise another. Returns the number.
fn take(wish: i32) -> Option<i32> {
    let end = || width::int(RAISED.load(Ordering::Relaxed));
    if wish >= end() {
        grow(wish + 1);
    }
    // dup3(2) cannot replace a placeholder whose number is not below the kernel's soft limit.
    if wish < end() && IDLE.remove(wish) {
        return Some(wish);
    }
    loop {
        let known = end();
        let any = |end: u32| IDLE.between(RESERVED_BASE as u32, end).find(|number| IDLE.remove(*number));
        let found = known.cast_unsigned().checked_sub(1).and_then(any);
        if found.is_some() || !grow(known + 1) {
            return found;
        }
    }
}

/// Grows the reserve (usring's descriptor numbers) until it ends at `least` or above. Returns
/// `false` if the reserve cannot grow.
#[cold]
fn grow(least: i32) -> bool {
    let _one_at_a_time = CHANGING.get_or_make(|| Mutex::new(())).lock();
    let Ok([soft, hard]) = kernel_limits() else { return false };
    let mut end = RAISED.load(Ordering::Relaxed);
    if end != soft {
        // The kernel's soft limit is the program's own: usring has not raised it, or the program
        // has changed it since.
        begin_at(soft);
        end = soft;
    }
    let begin = PROGRAM_LIMIT.load(Ordering::Relaxed);
    let step = (end - begin).max(LEAST_GROWTH as u64);
    let aim = (end.max(RESERVED_BASE as u64) + step).max(width::word(least)).min(hard).min(NUMBERS as u64);
    if !ALLOWED.load(Ordering::Relaxed) || aim <= end || set_kernel_limits([aim, hard]).is_err() {
        return false;
    }
    RAISED.store(aim, Ordering::Relaxed);
    fill(width::int(end.min(begin)), width::int(aim));
    true
}

/// Occupies all free numbers in `first..end` by placeholders.
fn fill(first: i32, end: i32) {
    if PLACEHOLDER.load(Ordering::Relaxed) < 0 {
        // All placeholders are duplicates of this eventfd. So its number has to lie in the range in
        // which the seccomp filter traps a close by the program.
        let Ok(event) = eventfd::create() else { return };
        let Some(number) = occupy(event.number(), first.max(RESERVED_BASE), end) else { return };
        PLACEHOLDER.store(number, Ordering::Relaxed);
    }
    let placeholder = PLACEHOLDER.load(Ordering::Relaxed);
    let mut next = first;
    while let Some(number) = occupy(placeholder, next, end) {
        if number >= RESERVED_BASE {
            IDLE.insert(number);
        }
        next = number + 1;
    }
}

/// Adds the first free number in `first..end` to the reserve, by making a duplicate of `of` there.
/// Returns the number; `None` if none is free.
fn occupy(of: i32, first: i32, end: i32) -> Option<i32> {
    if first >= end {
        return None;
    }
    let number = duplicate_from(of, first).ok()?.into_raw();
    if number >= end {
        let _ = close_plainly(number);
        return None;
    }
    make_private(number);
    RESERVE.insert(number);
    Some(number)
}

/// Stores the program's new soft limit. Closes the placeholders below it, so that the program can
/// use their numbers.
fn begin_at(limit: u64) {
    PROGRAM_LIMIT.store(limit, Ordering::Relaxed);
    RAISED.store(0, Ordering::Relaxed);
    LAYOUT.store(0, Ordering::Relaxed);
    let Some(last) = limit.checked_sub(1) else { return };
    for number in RESERVE.between(0, width::low(last.min(u64::from(u32::MAX)))) {
        let is_placeholder = PLACEHOLDER.load(Ordering::Relaxed) == number;
        if is_placeholder {
            PLACEHOLDER.store(-1, Ordering::Relaxed);
        }
        let is_below = number < RESERVED_BASE && is_private(number);
        // A duplicate may have this number. When the duplicate is closed, no placeholder replaces
        // it, and the number is free for the program.
        RESERVE.remove(number);
        if IDLE.remove(number) || is_placeholder || is_below {
            PRIVATE.remove(number);
            let _ = close_plainly(number);
        }
    }
}

/// Makes a duplicate of `of` below the program's limit, at the first free number from `wish` on. If
/// no number is free there, tries the numbers from `base` on, and then all numbers. Errors:
/// `EINVAL` if the limit is lower than `base`.
fn borrowed(of: i32, wish: i32, base: i32) -> Result<OwnedDescriptor, Errno> {
    let mut answer = Err(Errno::EMFILE);
    for lowest in [wish, base, RESERVED_BASE.min(base), 3] {
        answer = duplicate_from(of, lowest);
        match answer {
            Err(Errno::EMFILE) => {}
            Err(Errno::EINVAL) if lowest > base => {}
            _ => break,
        }
    }
    answer
}

/// Closes one of usring's own descriptors, without a trap by usring's seccomp filter. If its number
/// is in the reserve, dup3(2) replaces the descriptor by a placeholder.
pub fn close(number: i32) -> Result<(), Errno> {
    if RESERVE.has(number) {
        make_private(number);
        let placeholder = PLACEHOLDER.load(Ordering::Relaxed);
        if replace(placeholder, number, linux::O_CLOEXEC).is_ok() {
            IDLE.insert(number);
            return Ok(());
        }
        // The program has lowered the kernel's limit by a call that usring did not see. So the
        // number no longer belongs to the reserve.
        RESERVE.remove(number);
    }
    PRIVATE.remove(number);
    close_plainly(number)
}

fn close_plainly(number: i32) -> Result<(), Errno> {
    // Linux frees the number even if close answers EINTR, so the call is never repeated.
    SystemCall::new(linux::__NR_close, [width::word(number), 0, 0, 0, 0]).run_once().map(drop)
}

/// Returns the program's own soft limit of open files, and the hard limit.
pub fn limits() -> Result<[u64; 2], Errno> {
    let [soft, hard] = kernel_limits()?;
    let is_raised = is_raised() && soft == RAISED.load(Ordering::Relaxed);
    Ok([if is_raised { PROGRAM_LIMIT.load(Ordering::Relaxed) } else { soft }, hard])
}

/// Sets the program's soft and hard limit of open files, as setrlimit(2) does.
pub fn set_limits(limits: [u64; 2]) -> Result<(), Errno> {
    let _one_at_a_time = CHANGING.get_or_make(|| Mutex::new(())).lock();
    set_kernel_limits(limits)?;
    begin_at(limits[0]);
    Ok(())
}

/// Returns whether usring has raised the kernel's soft limit of open files above the program's.
pub fn is_raised() -> bool {
    RAISED.load(Ordering::Relaxed) != 0
}

/// Runs `work`, an execve(2), with the program's own limit as the kernel's soft limit, because the
/// executed program inherits it. If a vfork child has set a limit itself, that limit stays.
pub fn with_program_limit<T>(work: impl FnOnce() -> T) -> T {
    let raised = RAISED.load(Ordering::Relaxed);
    let known = if raised == 0 { None } else { kernel_limits().ok() };
    let Some([_, hard]) = known.filter(|[soft, _]| *soft == raised) else { return work() };
    let _ = set_kernel_limits([PROGRAM_LIMIT.load(Ordering::Relaxed), hard]);
    let result = work();
    let _ = set_kernel_limits([raised, hard]);
    result
}

/// Returns whether the hard limit of open files leaves no room for rings.
pub fn is_limit_too_low() -> bool {
    kernel_limits().is_ok_and(|[_, hard]| hard < LEAST_HARD_LIMIT)
}

fn kernel_limits() -> Result<[u64; 2], Errno> {
    let mut limits = [0u64; 2];
    let address = &raw mut limits as u64;
    SystemCall::new(linux::__NR_prlimit64, [0, u64::from(linux::RLIMIT_NOFILE), 0, address, 0]).run()?;
    Ok(limits)
}

fn set_kernel_limits(limits: [u64; 2]) -> Result<(), Errno> {
    let address = limits.as_ptr() as u64;
    SystemCall::new(linux::__NR_prlimit64, [0, u64::from(linux::RLIMIT_NOFILE), address, 0, 0]).run().map(drop)
}

/// Makes the kernel grow the descriptor table to the size that usring's first numbers need. In a
/// process with one thread this takes microseconds. With several threads each growth waits for an
/// RCU grace period, 10 ms or more.
pub fn prepare_table() {
    let room = Layout::current().base_for(0).unsigned_abs() + FIRST_NUMBERS;
    let last = ((room.next_power_of_two() - 1).min(NUMBERS as u32 - 1)).cast_signed();
    let Ok([soft, hard]) = kernel_limits() else { return };
    let lacks = soft <= width::word(last);
    if lacks && (hard <= width::word(last) || set_kernel_limits([width::word(last) + 1, hard]).is_err()) {
        return;
    }
    // The descriptor is a new eventfd, and no duplicate of a file of the program. To close such a
    // duplicate could drop record locks that the process kept over execve(2).
    if let Ok(event) = eventfd::create() {
        drop(duplicate_from(event.number(), last));
    }
    if lacks {
        let _ = set_kernel_limits([soft, hard]);
    }
}

/// Closes the private descriptors that a forked child inherited, except those for whose number
/// `keeps` returns `true`. Sets the child's soft limit to the program's own.
pub fn close_after_fork(keeps: impl Fn(i32) -> bool) {
    let mut run = 0..0;
    for number in PRIVATE.between(0, u32::MAX) {
        if keeps(number) || !is_private(number) {
            continue;
        }
        PRIVATE.remove(number);
        if run.end != number {
            close_range(&run);
            run.start = number;
        }
        run.end = number + 1;
    }
    close_range(&run);
    HAS_PRIVATE.store(PRIVATE.between(0, u32::MAX).next().is_some(), Ordering::Relaxed);
    forget_reserve();
}

/// Clears this process's record of the reserve (usring's numbers), and leaves usring's descriptors
/// open. For a child that shares its parent's descriptor table: the parent still uses the
/// descriptors.
pub fn leave_to_parent() {
    forget_reserve();
}

fn forget_reserve() {
    with_own_limit();
    for numbers in [&RESERVE, &IDLE] {
        numbers
            .0
            .iter()
            .filter(|word| word.load(Ordering::Relaxed) != 0)
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }
    PLACEHOLDER.store(-1, Ordering::Relaxed);
}

/// Sets a forked child's soft limit to the program's own.
fn with_own_limit() {
    let raised = RAISED.swap(0, Ordering::Relaxed);
    let limit = PROGRAM_LIMIT.swap(0, Ordering::Relaxed);
    LAYOUT.store(0, Ordering::Relaxed);
    let known = if raised == 0 { None } else { kernel_limits().ok() };
    if let Some([_, hard]) = known.filter(|[soft, _]| *soft == raised) {
        let _ = set_kernel_limits([limit, hard]);
    }
}

fn close_range(run: &core::ops::Range<i32>) {
    if !run.is_empty() {
        let arguments = [width::word(run.start), width::word(run.end) - 1, 0, 0, 0];
        let closed = SystemCall::new(linux::__NR_close_range, arguments).run_once();
        if closed.is_err() {
            for number in run.clone() {
                let _ = close_plainly(number);
            }
        }
    }
}
