//! Which descriptor numbers are ours, and room for more of them.
//!
//! Linux gives out the lowest free number, and answers `EMFILE` once that one
//! reaches the soft limit (RLIMIT_NOFILE). A duplicate of ours below that limit
//! is a file less that the program can open. So ours lie above it, in the
//! *reserve*:
//!
//! ```text
//! 0 ........ program's limit ........ kernel's limit ........ hard limit
//!   the program's numbers    the reserve: all taken
//! ```
//!
//! - Every number of the reserve is taken, by a duplicate of ours or by a
//!   placeholder. A program that has used its numbers up finds none free below
//!   the kernel's limit, and gets `EMFILE` where it would get it without us.
//! - A duplicate replaces a placeholder by dup3(2), and is replaced by one when
//!   it is given up: no more system calls than a duplicate and a close.
//! - The reserve grows by demand, up to the hard limit.
//! - The program's own limit is what [`limits`] says. Whoever lets a program ask
//!   or change it, or execute another one, uses [`limits`], [`set_limits`] and
//!   [`with_program_limit`]; only a host that does so may [`allow_reserve`].
//!
//! Without a reserve (the hard limit is reached already, or no host allows one)
//! and where the program's limit is so high that nobody reaches it, our numbers
//! are borrowed from the program's, far above those that it has.

use crate::descriptor::{OwnedDescriptor, duplicate_from};
use crate::mutex::Mutex;
use crate::per_process::PerProcess;
use crate::{Errno, SystemCall, eventfd};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// Descriptors from here on are looked at by the trap filter, and only ring
/// descriptors and our own live there (a program rarely has 600 files open,
/// and `select` still takes numbers below 1024).
pub const RESERVED_BASE: i32 = 600;

/// Numbers from here on are never ours.
const NUMBERS: i32 = 65536;

/// A bit for each number. Changed by whoever owns the number at that moment.
struct Numbers([AtomicU64; NUMBERS as usize / 64]);

impl Numbers {
    const fn none() -> Numbers {
        Numbers([const { AtomicU64::new(0) }; NUMBERS as usize / 64])
    }

    fn word(&self, number: i32) -> Option<(&AtomicU64, u64)> {
        self.0.get(number as usize / 64).map(|word| (word, 1 << (number % 64)))
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

    /// Whether it was there, and the caller is the one that took it out.
    fn remove(&self, number: i32) -> bool {
        self.has(number)
            && self.word(number).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Acquire) & bit != 0)
    }

    /// The numbers from `first` to `last`, in order.
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
        bits.filter(move |number| (first as usize..end).contains(number)).map(|number| number as i32)
    }
}

/// What the program may neither use, close nor replace: duplicates and
/// placeholders.
static PRIVATE: Numbers = Numbers::none();
/// Numbers of the reserve. When one is given up, a placeholder takes its place.
static RESERVE: Numbers = Numbers::none();
/// Placeholders that a duplicate may replace.
static IDLE: Numbers = Numbers::none();

/// The host keeps the program from seeing the kernel's limit.
static ALLOWED: AtomicBool = AtomicBool::new(false);
/// The kernel's soft limit, where we have raised it; else 0.
pub static RAISED: AtomicU64 = AtomicU64::new(0);
/// The program's soft limit, where the kernel's is raised.
pub static PROGRAM_LIMIT: AtomicU64 = AtomicU64::new(0);
/// What placeholders are duplicates of; −1 before there are any.
static PLACEHOLDER: AtomicI32 = AtomicI32::new(-1);
/// Held while limits and the size of the reserve change.
static CHANGING: PerProcess<Mutex<()>> = PerProcess::new();

/// A limit above this one is so high that most programs' numbers need no reserve.
const AMPLE: u64 = 8192;
/// Where borrowed numbers begin if the limit is ample: near enough that the
/// kernel's table of numbers stays small.
const BORROWED_ABOVE: u16 = 3040;
/// As many numbers are kept for duplicates that may lie anywhere.
const UNSETTLED: i32 = 32;
/// With an ample limit, files with numbers below this one have borrowed duplicates.
const FEW: u16 = 1024;
/// The first ring, and requests that wait for as many files, have numbers in the
/// table that [`prepare_table`] makes.
const FIRST_NUMBERS: u32 = 512;
/// The reserve grows by no fewer numbers.
const LEAST_GROWTH: i32 = 64;

/// Where duplicates go.
#[derive(Clone, Copy)]
struct Layout {
    /// The program's limit, above which the reserve lies; 0 where there is none.
    limit: u32,
    /// Where borrowed numbers begin.
    above: u16,
    /// Files with numbers from here on have no borrowed duplicate.
    few: u16,
}

/// The layout, once it is known; see [`Layout::word`].
static LAYOUT: AtomicU64 = AtomicU64::new(0);

impl Layout {
    fn current() -> Layout {
        match LAYOUT.load(Ordering::Relaxed) {
            0 => Layout::make(),
            word => Layout { limit: (word >> 32) as u32, above: (word >> 16) as u16, few: word as u16 },
        }
    }

    #[cold]
    fn make() -> Layout {
        let [soft, hard] = limits().unwrap_or([0, 0]);
        let has_reserve = ALLOWED.load(Ordering::Relaxed) && hard > soft && soft < NUMBERS as u64;
        let base = RESERVED_BASE as u64;
        let above = match soft {
            _ if soft > AMPLE => BORROWED_ABOVE,
            _ if soft > base => base.max(soft / 2) as u16,
            _ => 3,
        };
        let few = match has_reserve {
            true if soft > AMPLE => FEW,
            true => 0,
            false => u16::MAX,
        };
        let layout = Layout { limit: if has_reserve { soft.max(1) as u32 } else { 0 }, above, few };
        LAYOUT.store(layout.word(), Ordering::Relaxed);
        layout
    }

    fn word(self) -> u64 {
        u64::from(self.limit) << 32 | u64::from(self.above) << 16 | u64::from(self.few)
    }

    /// Whether a file's duplicate goes into the reserve. A program whose files
    /// come near its limit has nothing to lend from then on.
    fn reserves_for(self, number: i32) -> bool {
        if self.limit != 0 && self.few != 0 && number as u32 >= self.limit / 2 {
            LAYOUT.store(Layout { few: 0, ..self }.word(), Ordering::Relaxed);
        }
        self.limit != 0 && number as u32 >= u32::from(self.few)
    }

    /// From where on a file's duplicate may lie.
    fn base_for(self, number: i32) -> i32 {
        if self.reserves_for(number) { self.limit.max(RESERVED_BASE as u32) as i32 } else { i32::from(self.above) }
    }
}

/// Where the duplicate of a file with this number lies if nothing else does.
pub fn settled(number: i32) -> i32 {
    number.saturating_add(Layout::current().base_for(number) + UNSETTLED)
}

/// Whether any number has been ours alone since the process began.
static HAS_PRIVATE: AtomicBool = AtomicBool::new(false);

/// Whether a process that is forked now may have numbers that were its parent's alone.
pub fn has_private() -> bool {
    HAS_PRIVATE.load(Ordering::Relaxed)
}

fn make_private(number: i32) {
    if !HAS_PRIVATE.load(Ordering::Relaxed) {
        HAS_PRIVATE.store(true, Ordering::Relaxed);
    }
    PRIVATE.insert(number);
}

/// Whether a number is ours alone.
#[inline]
pub fn is_private(number: i32) -> bool {
    PRIVATE.has(number)
}

/// The numbers from `first` to `last` that are ours alone, in order.
pub fn private_between(first: u32, last: u32) -> impl Iterator<Item = u32> {
    PRIVATE.between(first, last).map(|number| number as u32)
}

/// Lets the reserve be made: for a host that shows the program its own limit.
pub fn allow_reserve() {
    ALLOWED.store(true, Ordering::Relaxed);
    LAYOUT.store(0, Ordering::Relaxed);
}

/// A duplicate for ourselves, closed on exec, at `wish` if that number is free.
///
/// Errors: `EBADF`; `EMFILE` where the limits leave nothing.
pub fn duplicate(of: i32, wish: Option<i32>) -> Result<OwnedDescriptor, Errno> {
    match duplicate_by(Layout::current(), of, wish) {
        // The program has lowered its limit.
        Err(Errno::EINVAL) => duplicate_by(Layout::make(), of, None),
        answer => answer,
    }
    // As the kernel has it where no number is left.
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

/// A duplicate with a number of the reserve that is not ours alone: a ring's
/// descriptor, which the program closes.
pub fn duplicate_for_program(of: i32, close_on_exec: bool) -> Result<OwnedDescriptor, Errno> {
    if !ALLOWED.load(Ordering::Relaxed) {
        return Err(Errno::EMFILE);
    }
    let flags = if close_on_exec { linux::O_CLOEXEC } else { 0 };
    let number = reserved(of, RESERVED_BASE, flags)?;
    PRIVATE.remove(number);
    Ok(OwnedDescriptor::from_raw(number))
}

/// Replaces a placeholder by a duplicate of `of`.
fn reserved(of: i32, wish: i32, flags: u32) -> Result<i32, Errno> {
    for _ in 0..2 {
        let number = take(wish).ok_or(Errno::EMFILE)?;
        let answer = replace(of, number, flags);
        if answer.is_ok() {
            return Ok(number);
        }
        IDLE.insert(number);
        crate::descriptor::status_flags(of)?;
        // The program has lowered the limit by a call that nobody saw.
        RAISED.store(0, Ordering::Relaxed);
    }
    Err(Errno::EMFILE)
}

fn replace(of: i32, number: i32, flags: u32) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_dup3, [of as u64, number as u64, u64::from(flags), 0, 0]).run().map(drop)
}

/// A placeholder that is the caller's to replace: `wish`, or any other.
fn take(wish: i32) -> Option<i32> {
    let end = || RAISED.load(Ordering::Relaxed) as i32;
    if wish >= end() {
        grow(wish + 1);
    }
    // What lies above the kernel's limit cannot be replaced.
    if wish < end() && IDLE.remove(wish) {
        return Some(wish);
    }
    loop {
        let known = end();
        let any = |end: u32| IDLE.between(RESERVED_BASE as u32, end).find(|number| IDLE.remove(*number));
        let found = (known as u32).checked_sub(1).and_then(any);
        if found.is_some() || !grow(known + 1) {
            return found;
        }
    }
}

/// Makes the reserve end at `least` or further up. `false` if it does not grow.
#[cold]
fn grow(least: i32) -> bool {
    let _one_at_a_time = CHANGING.get_or_make(|| Mutex::new(())).lock();
    let Ok([soft, hard]) = kernel_limits() else { return false };
    let mut end = RAISED.load(Ordering::Relaxed);
    if end != soft {
        // It is the program's own: we have not raised it, or the program has
        // changed it since.
        begin_at(soft);
        end = soft;
    }
    let begin = PROGRAM_LIMIT.load(Ordering::Relaxed);
    let step = (end - begin).max(LEAST_GROWTH as u64);
    let aim = (end.max(RESERVED_BASE as u64) + step).max(least as u64).min(hard).min(NUMBERS as u64);
    if !ALLOWED.load(Ordering::Relaxed) || aim <= end || set_kernel_limits([aim, hard]).is_err() {
        return false;
    }
    RAISED.store(aim, Ordering::Relaxed);
    fill(end.min(begin) as i32, aim as i32);
    true
}

/// Takes all free numbers from `first` to before `end`.
fn fill(first: i32, end: i32) {
    let mut next = first;
    while next < end {
        let known = PLACEHOLDER.load(Ordering::Relaxed);
        let made = if known >= 0 { Err(Errno::EEXIST) } else { eventfd::create() };
        let of = made.as_ref().map_or(known, OwnedDescriptor::number);
        let Ok(placeholder) = duplicate_from(of, next) else { return };
        let number = placeholder.into_raw();
        if number >= end {
            let _ = close_plainly(number);
            return;
        }
        make_private(number);
        RESERVE.insert(number);
        if known < 0 {
            PLACEHOLDER.store(number, Ordering::Relaxed);
        } else if number >= RESERVED_BASE {
            IDLE.insert(number);
        }
        next = number + 1;
    }
}

/// The program's soft limit is another one: what of the reserve lies below
/// becomes the program's.
fn begin_at(limit: u64) {
    PROGRAM_LIMIT.store(limit, Ordering::Relaxed);
    RAISED.store(0, Ordering::Relaxed);
    LAYOUT.store(0, Ordering::Relaxed);
    let Some(last) = limit.checked_sub(1) else { return };
    for number in RESERVE.between(0, last.min(u64::from(u32::MAX)) as u32) {
        let is_placeholder = PLACEHOLDER.load(Ordering::Relaxed) == number;
        if is_placeholder {
            PLACEHOLDER.store(-1, Ordering::Relaxed);
        }
        // A number in use is closed for good by whoever has it.
        RESERVE.remove(number);
        let is_below = number < RESERVED_BASE && PRIVATE.has(number);
        if IDLE.remove(number) || is_placeholder || is_below {
            PRIVATE.remove(number);
            let _ = close_plainly(number);
        }
    }
}

/// A number that no file of the program's is near; where there is none, any.
/// `EINVAL`: the limit is lower than `base`.
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

/// close(2) of any number, past our own filter. One of the reserve becomes a
/// placeholder.
pub fn close(number: i32) -> Result<(), Errno> {
    if RESERVE.has(number) {
        make_private(number);
        let placeholder = PLACEHOLDER.load(Ordering::Relaxed);
        if replace(placeholder, number, linux::O_CLOEXEC).is_ok() {
            IDLE.insert(number);
            return Ok(());
        }
        // The program has lowered the limit by a call that nobody saw.
        RESERVE.remove(number);
    }
    PRIVATE.remove(number);
    close_plainly(number)
}

fn close_plainly(number: i32) -> Result<(), Errno> {
    // Linux frees the number even when close answers EINTR: never twice.
    SystemCall::new(linux::__NR_close, [number as u64, 0, 0, 0, 0]).run_once().map(drop)
}

/// The program's soft and hard limit.
pub fn limits() -> Result<[u64; 2], Errno> {
    let [soft, hard] = kernel_limits()?;
    let is_raised = is_raised() && soft == RAISED.load(Ordering::Relaxed);
    Ok([if is_raised { PROGRAM_LIMIT.load(Ordering::Relaxed) } else { soft }, hard])
}

/// setrlimit(2) for the program: from now on the limits are these.
pub fn set_limits(limits: [u64; 2]) -> Result<(), Errno> {
    let _one_at_a_time = CHANGING.get_or_make(|| Mutex::new(())).lock();
    set_kernel_limits(limits)?;
    begin_at(limits[0]);
    Ok(())
}

/// Whether the kernel's limit is another than the program's.
pub fn is_raised() -> bool {
    RAISED.load(Ordering::Relaxed) != 0
}

/// Runs `work`, an exec, with the program's own limit in force: the next
/// program has it. A vfork child, which has limits of its own, may have set
/// others: they stay.
pub fn with_program_limit<T>(work: impl FnOnce() -> T) -> T {
    let raised = RAISED.load(Ordering::Relaxed);
    let known = if raised == 0 { None } else { kernel_limits().ok() };
    let Some([_, hard]) = known.filter(|[soft, _]| *soft == raised) else { return work() };
    let _ = set_kernel_limits([PROGRAM_LIMIT.load(Ordering::Relaxed), hard]);
    let result = work();
    let _ = set_kernel_limits([raised, hard]);
    result
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

/// Makes the kernel's table of numbers as large as the first of ours need it. In
/// a process with one thread that costs microseconds; later each growth waits
/// until all processors have been through the scheduler, 10 ms and more.
pub fn prepare_table() {
    let room = Layout::current().base_for(0).unsigned_abs() + FIRST_NUMBERS;
    let last = (room.next_power_of_two() - 1).min(NUMBERS as u32 - 1) as i32;
    let Ok([soft, hard]) = kernel_limits() else { return };
    let lacks = soft <= last as u64;
    if lacks && (hard <= last as u64 || set_kernel_limits([last as u64 + 1, hard]).is_err()) {
        return;
    }
    // A duplicate of the program's own files would not do: close(2) of it drops record locks that
    // the process kept over execve(2).
    if let Ok(event) = eventfd::create() {
        drop(duplicate_from(event.number(), last));
    }
    if lacks {
        let _ = set_kernel_limits([soft, hard]);
    }
}

/// In a forked child: closes what was its parent's alone, but for what `keeps`
/// names, and gives the child the program's own limit.
pub fn close_after_fork(keeps: impl Fn(i32) -> bool) {
    let mut run = 0..0;
    for number in PRIVATE.between(0, u32::MAX) {
        if keeps(number) {
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

/// In a child that shares its parent's descriptors: they stay the parent's.
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

/// The child's limit is the program's.
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
        let arguments = [run.start as u64, run.end as u64 - 1, 0, 0, 0];
        let closed = SystemCall::new(linux::__NR_close_range, arguments).run_once();
        if closed.is_err() {
            for number in run.clone() {
                let _ = close_plainly(number);
            }
        }
    }
}
