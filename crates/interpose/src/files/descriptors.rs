//! The descriptor numbers of rings.
//!
//! A ring's descriptor is an eventfd with a number in the reserved range. By that range the filter
//! recognises every call that closes, duplicates or maps a ring. A table has the ring of each
//! number. A look-up takes no lock and no locked instruction ([`usring_sys::hazard`]); a change
//! takes the lock `descriptors`.
//!
//! Like a file, a ring is closed when its last number is closed and no thread uses it any more.
//!
//! A forked child inherits the table with its parent's entries, and marks them
//! ([`reset_in_child`]). A ring that the child does not use costs it nothing else. The first call
//! on such a ring makes the child's own [`File`] ([`adopt`]).

use crate::files::devices;
use crate::files::numbers::{NUMBERS, duplicate_reserved, end_inside, eventfd_id};
use crate::process;
use alloc::sync::Arc;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use usring_engine::Ring;
use usring_sys::descriptor::{self, OwnedDescriptor, RESERVED_BASE};
use usring_sys::mutex::Mutex;
use usring_sys::{Errno, eventfd, hazard, width};
use usring_uapi::io_uring as abi;

/// Bit that marks the table entry of an inherited ring. The other bits are the address of the
/// parent's `File`, which the child has in its copy of the memory. No thread of the child owns or
/// frees that `File`.
const INHERITED: usize = 1;

/// Each table entry is 0, an `Arc<File>` from `into_raw`, or a parent's `File` with the bit
/// `INHERITED`.
static TABLE: [AtomicUsize; NUMBERS] = [const { AtomicUsize::new(0) }; NUMBERS];

/// The highest descriptor number that a ring ever had, plus 1.
static USED_END: AtomicI32 = AtomicI32::new(0);

/// Number of descriptors of rings that dup2(2) has made below the reserved range. While there are
/// any, the entry points of libc's symbols check every descriptor number.
pub static LOW_ALIASES: AtomicU32 = AtomicU32::new(0);

/// Number of rings whose descriptors do not show the rings' readiness yet, plus the number of
/// inherited table entries. A ring counts until the program polls it in a call that usring sees.
pub static UNWATCHED: AtomicU32 = AtomicU32::new(0);

/// A ring as an open file, in the kernel's sense: its descriptors and registrations share it. When
/// the last reference is dropped, the ring is closed.
pub struct File {
    pub ring: Arc<Ring>,
    watched: AtomicBool,
    /// Locked while a thread begins to watch the ring's descriptor, so that no second thread begins
    /// this as well.
    beginning: Mutex<()>,
    /// The id of the ring's eventfd ([`eventfd_id`]). It is 0 until dup2(2) gives the ring a number
    /// below the reserved range.
    identity: AtomicU64,
    /// Address at which the program has mapped the CQ; 0 if it has not.
    cq_address: AtomicU64,
}

/// Result of looking up which ring a descriptor number refers to.
pub enum Found<T> {
    Ring(T),
    /// The number belongs to a ring of the parent process that this process cannot use. The errno
    /// is the reason.
    Inherited(Errno),
    Other,
}

impl File {
    pub fn new(ring: Arc<Ring>) -> Arc<File> {
        UNWATCHED.fetch_add(1, Ordering::Relaxed);
        let watched = AtomicBool::new(false);
        let (identity, cq_address) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(File { ring, watched, beginning: Mutex::new(()), identity, cq_address })
    }

    /// Maps memory of the ring for the program: [`Ring::map`].
    pub fn map(&self, offset: u64, length: usize) -> Result<usize, Errno> {
        let address = self.ring.map(offset, length)?;
        // Programs map SQ and CQ at once by the SQ's offset, or map the CQ later by an offset of
        // its own.
        if offset == u64::from(abi::IORING_OFF_SQ_RING) || offset == u64::from(abi::IORING_OFF_CQ_RING) {
            self.cq_address.store(address as u64, Ordering::Relaxed);
        }
        Ok(address)
    }

    /// Returns the address of the CQ tail in the program's mapping. If the program has not mapped
    /// the CQ, returns the address of the ring's object, which also identifies the ring.
    pub fn cq_tail(&self) -> u64 {
        match self.cq_address.load(Ordering::Relaxed) {
            0 => Arc::as_ptr(&self.ring) as u64,
            address => address + self.ring.cq_tail_offset(),
        }
    }

    /// Notes that the program polls the descriptor `number`. From now on, the descriptor is
    /// readable whenever a ring's descriptor would be readable in the kernel.
    pub fn watch(&self, number: i32) {
        self.ring.is_polled_as(number);
        let one_at_a_time = self.beginning.lock();
        if self.watched.load(Ordering::Relaxed) {
            return;
        }
        if let Some(private) = self.duplicate(number) {
            eventfd::drain(private.number());
            self.ring.attach_descriptor(Arc::new(private));
            self.watched.store(true, Ordering::Relaxed);
            UNWATCHED.fetch_sub(1, Ordering::Relaxed);
            drop(one_at_a_time);
            self.ring.watch_readiness();
        }
    }

    /// Duplicates the ring's descriptor `number` to a private number, which usring keeps. The
    /// program may close and reuse `number` at any moment, while another number keeps the ring
    /// open: usring then uses the duplicate. `None`: the program has closed `number`, or no private
    /// number is left.
    fn duplicate(&self, number: i32) -> Option<OwnedDescriptor> {
        let private = descriptor::duplicate_private(number).ok()?;
        // A number leaves the table of rings before it is closed. So if the table still has this
        // ring under `number` now, `number` referred to this ring when it was duplicated.
        let stands = entry(number).map(|entry| entry.load(Ordering::Acquire));
        (stands == Some(&raw const *self as usize)).then_some(private)
    }

    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// Stores the id of the ring's eventfd. By this id, usring recognises a number below the
    /// reserved range as the ring's.
    fn identify(&self, number: i32) {
        self.identity.store(eventfd_id(None, number).unwrap_or(0), Ordering::Relaxed);
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !self.is_watched() {
            UNWATCHED.fetch_sub(1, Ordering::Relaxed);
        }
        self.ring.close();
    }
}

fn entry(number: i32) -> Option<&'static AtomicUsize> {
    TABLE.get(width::index(number))
}

/// A reference to a ring's file. The file stays alive at least until this value is dropped.
pub struct Using {
    file: ManuallyDrop<Arc<File>>,
    /// The hazard pointer that protects the table's reference to the file. `None`: this value has a
    /// counted reference of its own.
    held: Option<hazard::Use>,
}

impl Deref for Using {
    type Target = Arc<File>;

    #[inline(always)]
    fn deref(&self) -> &Arc<File> {
        &self.file
    }
}

impl Drop for Using {
    #[inline(always)]
    fn drop(&mut self) {
        if self.held.is_none() {
            // SAFETY: without a hazard pointer, this value owns the reference, and does not use it
            // again.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

/// Returns the file of the ring that `number` refers to.
#[inline(always)]
pub fn find(number: i32) -> Found<Using> {
    let Some(entry) = entry(number) else { return Found::Other };
    // This load pairs with the release store in `insert`.
    let Some((object, held)) = hazard::protect(|| entry.load(Ordering::Acquire)) else {
        return find_with_lock(number, entry);
    };
    if object == 0 {
        return Found::Other;
    }
    if object & INHERITED != 0 {
        drop(held);
        return find_with_lock(number, entry);
    }
    // SAFETY: the pointer comes from `Arc::into_raw`. If a thread removes it from the table, it
    // does not drop the reference while `held` lives.
    let file = ManuallyDrop::new(unsafe { Arc::from_raw(object as *const File) });
    checked(Using { file, held }, number)
}

/// Returns the file of the ring that `number` refers to, under the lock `descriptors`. Called if
/// the thread has no hazard pointer, or if the table entry is inherited.
#[cold]
#[inline(never)]
fn find_with_lock(number: i32, entry: &AtomicUsize) -> Found<Using> {
    match share(entry) {
        Found::Ring(file) => checked(Using { file: ManuallyDrop::new(file), held: None }, number),
        Found::Inherited(error) => Found::Inherited(error),
        Found::Other => Found::Other,
    }
}

/// Returns a counted reference to the file of a table entry. The function takes and releases the
/// lock `descriptors`.
fn share(entry: &AtomicUsize) -> Found<Arc<File>> {
    if entry.load(Ordering::Relaxed) == 0 {
        return Found::Other;
    }
    let _removers_wait = process::current().descriptors.lock();
    match entry.load(Ordering::Acquire) {
        0 => Found::Other,
        object if object & INHERITED != 0 => adopt(object).map_or_else(Found::Inherited, Found::Ring),
        // SAFETY: the pointer comes from `Arc::into_raw`, and stays in the table while the lock is
        // held.
        object => Found::Ring(Arc::clone(&ManuallyDrop::new(unsafe { Arc::from_raw(object as *const File) }))),
    }
}

/// Makes this process's own `File` for an inherited ring, and enters it in the table under all
/// numbers of the ring. The caller holds the lock `descriptors`.
#[cold]
fn adopt(object: usize) -> Result<Arc<File>, Errno> {
    // SAFETY: 1. The parent's entry comes from `Arc::into_raw`. 2. This process has a copy of the
    // `File` as it was at the fork, which nothing frees. 3. Only parts that never change are read.
    let inherited = ManuallyDrop::new(unsafe { Arc::from_raw((object & !INHERITED) as *const File) });
    let file = File::new(Ring::adopt(&inherited.ring)?);
    file.identity.store(inherited.identity.load(Ordering::Relaxed), Ordering::Relaxed);
    hazard::prepare();
    for number in known_between(0, u32::MAX) {
        let entry = &TABLE[width::index(number)];
        if entry.load(Ordering::Relaxed) == object {
            UNWATCHED.fetch_sub(1, Ordering::Relaxed);
            entry.store(Arc::into_raw(file.clone()) as usize, Ordering::Release);
        }
    }
    Ok(file)
}

/// Returns `using` if `number` is still a number of its ring, else `Other`. usring does not see
/// every close of a number below the reserved range. So the number may belong to another file now.
#[inline(always)]
fn checked(using: Using, number: i32) -> Found<Using> {
    if number < RESERVED_BASE && !is_still(&using, number) {
        drop(using);
        drop(remove(number));
        return Found::Other;
    }
    Found::Ring(using)
}

/// Runs `work` on the file of the ring that `number` refers to.
pub fn with<T>(number: i32, work: impl FnOnce(&Arc<File>) -> T) -> Found<T> {
    match find(number) {
        Found::Ring(using) => Found::Ring(work(&using)),
        Found::Inherited(error) => Found::Inherited(error),
        Found::Other => Found::Other,
    }
}

/// A reference to a ring's file, for the engine. The engine looks the file up while it holds the
/// lock of a ring, perhaps of this ring. The program may close the ring's last number while this
/// reference exists. The ring is then closed later, when the thread holds no lock.
pub struct Inside(Option<Arc<File>>);

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(file) = self.0.take().and_then(Arc::into_inner) {
            usring_engine::host::run_later(move || drop(file));
        }
    }
}

/// Runs `work` on the file of the ring that `number` refers to. For the engine, which may hold the
/// lock of a ring.
pub fn with_inside<T>(number: i32, work: impl FnOnce(&File) -> T) -> Found<T> {
    let Some(entry) = entry(number) else { return Found::Other };
    // After a fork, the child sets the bit `INHERITED` in all entries once, before its other calls.
    // From then on, entries only lose the bit. So a check before the look-up is enough.
    let is_inherited = entry.load(Ordering::Acquire) & INHERITED != 0;
    if number >= RESERVED_BASE
        && !is_inherited
        && let Some((object, held)) = hazard::protect(|| entry.load(Ordering::Acquire))
    {
        let found = match object {
            0 => Found::Other,
            // SAFETY: the pointer comes from `Arc::into_raw`, and is not dropped while `held`
            // lives.
            _ => Found::Ring(work(&ManuallyDrop::new(unsafe { Arc::from_raw(object as *const File) }))),
        };
        if let Some(held) = held {
            end_inside(held);
        }
        return found;
    }
    let file = match share(entry) {
        Found::Ring(file) => file,
        Found::Inherited(error) => return Found::Inherited(error),
        Found::Other => return Found::Other,
    };
    if number < RESERVED_BASE && !is_still(&file, number) {
        let _removed = Inside(remove(number));
        let _shared = Inside(Some(file));
        return Found::Other;
    }
    let result = work(&file);
    drop(Inside(Some(file)));
    Found::Ring(result)
}

/// Finds this process's descriptor of a ring, and attaches a private duplicate of its eventfd to
/// the ring. The thread that drives the ring calls this function before it makes the descriptor
/// readable for another process.
pub fn attach(ring: &Ring) {
    for number in in_use() {
        let duplicate = |file: &File| match core::ptr::eq(&raw const *file.ring, ring) {
            true => file.duplicate(number),
            false => None,
        };
        if let Found::Ring(Some(private)) = with_inside(number, duplicate) {
            return ring.attach_descriptor(Arc::new(private));
        }
    }
}

/// Returns whether a number below the reserved range still refers to the ring of `file`. usring may
/// have missed a call that closed the number. If /proc is not available, always returns `true`.
#[cold]
#[inline(never)]
fn is_still(file: &File, number: i32) -> bool {
    let identity = file.identity.load(Ordering::Relaxed);
    identity == 0 || eventfd_id(None, number) == Some(identity)
}

/// Returns a counted reference to the file of the ring that `number` refers to. `None`: the number
/// does not refer to a ring that this process can use.
pub fn get(number: i32) -> Option<Arc<File>> {
    match with(number, Arc::clone) {
        Found::Ring(file) => Some(file),
        _ => None,
    }
}

/// Returns whether the table of rings has an entry for a number. The number then refers to a ring,
/// perhaps to one that this process has only inherited.
pub fn is_known(number: i32) -> bool {
    entry(number).is_some_and(|entry| entry.load(Ordering::Relaxed) != 0)
}

/// Enters a ring in the table of rings, under a number that has no entry. Error: `EMFILE` if the
/// number is beyond the table.
pub fn insert(number: i32, file: Arc<File>) -> Result<(), Errno> {
    let entry = entry(number).ok_or(Errno::EMFILE)?;
    if number < RESERVED_BASE {
        file.identify(number);
        LOW_ALIASES.fetch_add(1, Ordering::Relaxed);
    }
    USED_END.fetch_max(number + 1, Ordering::Relaxed);
    hazard::prepare();
    devices::forget(number);
    entry.store(Arc::into_raw(file) as usize, Ordering::Release);
    Ok(())
}

/// Removes a number from the table. Returns a reference to the file of the number's ring. `None`:
/// the number did not refer to a ring of this process. If the ring has no other number, it is
/// closed when the reference is dropped and no thread uses the ring any more.
pub fn remove(number: i32) -> Option<Arc<File>> {
    let entry = entry(number)?;
    let object = {
        let _one_at_a_time = process::current().descriptors.lock();
        let object = entry.swap(0, Ordering::AcqRel);
        if object != 0 && number < RESERVED_BASE {
            LOW_ALIASES.fetch_sub(1, Ordering::Relaxed);
        }
        if object & INHERITED != 0 {
            UNWATCHED.fetch_sub(1, Ordering::Relaxed);
        }
        if object == 0 || object & INHERITED != 0 {
            return None;
        }
        object
    };
    // SAFETY: the pointer comes from `Arc::into_raw`. This function now owns the table's reference,
    // which `retire` drops once.
    unsafe {
        let file = Arc::clone(&ManuallyDrop::new(Arc::from_raw(object as *const File)));
        hazard::retire(object, drop_share);
        Some(file)
    }
}

/// Drops a reference to a file.
///
/// # Safety
/// `object` must come from `Arc::into_raw`, and the caller must own that reference.
unsafe fn drop_share(object: usize) {
    // SAFETY: the caller owns this reference.
    drop(unsafe { Arc::from_raw(object as *const File) });
}

/// Returns the numbers from `first` to `last` that have an entry in the table of rings.
pub fn known_between(first: u32, last: u32) -> impl Iterator<Item = i32> {
    let end = USED_END.load(Ordering::Relaxed).cast_unsigned().min(last.saturating_add(1));
    (first..end).map(|number| number.cast_signed()).filter(|number| is_known(*number))
}

/// Returns the descriptor numbers of the rings that this process uses. A ring that it has inherited
/// and never used does not count.
pub fn in_use() -> impl Iterator<Item = i32> {
    let is_used = |number: &i32| TABLE[width::index(*number)].load(Ordering::Acquire) & INHERITED == 0;
    known_between(0, u32::MAX).filter(is_used)
}

/// Marks all table entries as inherited, in a forked child. Does not change the parent's `File`s.
pub fn reset_in_child() {
    let mut inherited = 0;
    for number in known_between(0, u32::MAX) {
        TABLE[width::index(number)].fetch_or(INHERITED, Ordering::Relaxed);
        inherited += 1;
    }
    UNWATCHED.store(inherited, Ordering::Relaxed);
}

/// Makes a descriptor for a ring, with a number in the reserved range, closed on exec. The
/// descriptor is always readable until [`File::watch`] is called, because usring does not see every
/// poll: the program may poll by a bare `syscall` instruction, or in another process. Such a poll
/// may wake without need, but misses no event.
pub fn reserve() -> Result<OwnedDescriptor, Errno> {
    let low = eventfd::create_readable()?;
    let reserved = duplicate_reserved(low.number(), RESERVED_BASE, true)?;
    if width::index(reserved.number()) >= NUMBERS {
        return Err(Errno::EMFILE);
    }
    Ok(reserved)
}
