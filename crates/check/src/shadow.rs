//! AddressSanitizer's shadow memory. In a program that is built with `-fsanitize=address`, the
//! shadow memory says which bytes of memory the program may use.
//!
//! - A request whose memory the program must not use is found at its submission (`first_bad`).
//! - Memory into which a request in flight reads is poisoned (`poison`): if the program uses it,
//!   AddressSanitizer reports that. The poison ends before the request's CQE is posted.
//!
//! One shadow byte describes a granule of `1 << scale` bytes. 0: the program may use the whole
//! granule. A number below the granule's size: the program may use that many bytes at the granule's
//! start. Any other value: the program may use no byte of the granule.
//!
//! A granule is poisoned only if it lies wholly in the request's memory and the program may use all
//! of it. So the end of the poison restores exactly the shadow bytes that the poison replaced, even
//! if the program has freed the memory. Callers change the table of poisoned memory only under the
//! lock of `watch`.

use crate::format::BadByte;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::plain::IoVector;
use usring_sys::set_once::SetOnce;
use usring_sys::{UserAddress, user_memory, width};

/// Number of return addresses of a recorded stack.
pub const MOST_CALLERS: usize = 24;

/// AddressSanitizer in this process.
pub struct Sanitizer {
    /// Binary logarithm of the bytes that one shadow byte describes.
    pub scale: u32,
    /// Address of the shadow byte for address 0.
    pub offset: u64,
    /// Stores the stack that was recorded when the block at an address was freed (`true`) or
    /// allocated (`false`). Returns the number of return addresses; 0 if no stack was recorded.
    /// Called only in threads of the program.
    pub stack_of: fn(u64, bool, &mut [u64; MOST_CALLERS]) -> usize,
}

static SANITIZER: SetOnce<Sanitizer> = SetOnce::new();

/// Begins to use the shadow memory. Called while the process has one thread.
pub fn start(sanitizer: &'static Sanitizer) {
    SANITIZER.set(sanitizer);
}

/// Returns whether the program has AddressSanitizer.
pub fn is_on() -> bool {
    SANITIZER.get().is_some()
}

/// Shadow byte of poisoned memory. The program's own `__asan_poison_memory_region` writes this
/// value, too. AddressSanitizer reports an access to such memory as `use-after-poison`.
const POISON: u8 = 0xf7;

/// Maximum number of bytes at the start of a member (one buffer of a request) that are examined and
/// poisoned.
const MOST_BYTES: u64 = 64 << 20;
/// Shadow bytes that are read at a time.
const PIECE: usize = 256;

impl Sanitizer {
    fn granule(&self) -> u64 {
        1 << self.scale
    }

    /// Returns the address of the shadow byte for an address.
    fn shadow_of(&self, address: u64) -> u64 {
        (address >> self.scale).wrapping_add(self.offset)
    }

    /// Calls `each` for the granules in a range of addresses, with their first address and their
    /// shadow byte. Returns the first value that `each` returns, or `None`. Ends at a shadow byte
    /// that cannot be read: the program has no memory at the addresses of such a shadow byte.
    fn find<T>(&self, range: Range<u64>, mut each: impl FnMut(u64, u8) -> Option<T>) -> Option<T> {
        let granule = self.granule();
        let mut piece = [0u8; PIECE];
        let mut at = range.start / granule * granule;
        while at < range.end {
            let count = width::size((range.end - at).div_ceil(granule)).min(PIECE);
            user_memory::copy_in(&mut piece[..count], UserAddress(self.shadow_of(at))).ok()?;
            for shadow in &piece[..count] {
                if let Some(found) = each(at, *shadow) {
                    return Some(found);
                }
                at = at.checked_add(granule)?;
            }
        }
        None
    }

    /// Replaces the shadow byte `old` by `new`, for the granules that lie wholly in a range.
    fn replace(&self, range: Range<u64>, old: u8, new: u8) {
        let granule = self.granule();
        let whole = range.start.next_multiple_of(granule)..range.end / granule * granule;
        self.find(whole, |at, shadow| {
            if shadow != old {
                return None;
            }
            user_memory::write(UserAddress(self.shadow_of(at)), new).err()
        });
    }

    fn first_bad(&self, range: Range<u64>, poisoned_until: impl Fn(u64) -> Option<u64>) -> Option<BadByte> {
        let mut poisoned_end = 0;
        self.find(range.clone(), |granule, shadow| {
            let usable = match u64::from(shadow) {
                0 => return None,
                few if few < self.granule() => few,
                _ => 0,
            };
            let first = range.start.max(granule + usable);
            if first >= range.end.min(granule + self.granule()) || granule < poisoned_end {
                return None;
            }
            if shadow == POISON {
                poisoned_end = poisoned_until(granule).unwrap_or(0);
            }
            (granule >= poisoned_end).then_some(BadByte { offset: first - range.start, shadow })
        })
    }
}

/// Returns the addresses of a member (one buffer of a request) that are examined. `None`: no
/// address is examined.
fn examined(member: &IoVector) -> Option<Range<u64>> {
    let end = member.base.checked_add(member.length.min(MOST_BYTES))?;
    (member.base < end).then_some(member.base..end)
}

/// Returns the first byte of a member (one buffer of a request) that the program must not use, if
/// there is one. The program may use memory that usring has poisoned, so such memory is skipped.
/// `poisoned_until` returns the end of the poisoned memory around an address.
pub(crate) fn first_bad(member: &IoVector, poisoned_until: impl Fn(u64) -> Option<u64>) -> Option<BadByte> {
    SANITIZER.get()?.first_bad(examined(member)?, poisoned_until)
}

/// Returns the stack that was recorded when the heap block with a bad byte was freed or allocated.
/// The form is that of [`crate::format::Finding::recorded`].
pub(crate) fn recorded_stack(member: &IoVector, bad: BadByte) -> Vec<u8> {
    let Some(sanitizer) = SANITIZER.get() else { return Vec::new() };
    let mut callers = [0; MOST_CALLERS];
    // If the bad byte lies behind the end of a heap block, the byte before the bad byte is the
    // block's last.
    let is_freed = bad.shadow == BadByte::FREED;
    let address = member.base + bad.offset;
    let address = if is_freed { address } else { address.saturating_sub(1).max(member.base) };
    let count = (sanitizer.stack_of)(address, is_freed, &mut callers).min(MOST_CALLERS);
    callers[..count].iter().flat_map(|caller| caller.to_le_bytes()).collect()
}

/// A range of poisoned memory. A length of 0 marks a free entry.
struct Poisoned {
    start: AtomicU64,
    length: AtomicU64,
}

/// Maximum number of ranges that are poisoned at one time. Further ranges are only examined.
const MOST: usize = 4096;

/// The poisoned memory of this process. A forked child gets a copy with its parent's entries.
static TABLE: [Poisoned; MOST] = [const { Poisoned { start: AtomicU64::new(0), length: AtomicU64::new(0) } }; MOST];

impl Poisoned {
    fn range(&self) -> Range<u64> {
        let start = self.start.load(Ordering::Relaxed);
        start..start + self.length.load(Ordering::Relaxed)
    }
}

/// Poisons the memory of a member (one buffer of a request). Returns the index of the new entry in
/// the table. `None`: the table is full.
pub(crate) fn poison(member: &IoVector) -> Option<u16> {
    let (sanitizer, range) = (SANITIZER.get()?, examined(member)?);
    let index = TABLE.iter().position(|entry| entry.length.load(Ordering::Relaxed) == 0)?;
    TABLE[index].start.store(range.start, Ordering::Relaxed);
    TABLE[index].length.store(range.end - range.start, Ordering::Release);
    sanitizer.replace(range, 0, POISON);
    Some(width::short(index as u64))
}

/// Ends the poison of the memory in a table entry, and frees the entry.
pub(crate) fn unpoison(entry: u16) {
    let (Some(sanitizer), entry) = (SANITIZER.get(), &TABLE[usize::from(entry)]) else { return };
    sanitizer.replace(entry.range(), POISON, 0);
    entry.length.store(0, Ordering::Release);
}

/// Poisons the memory in a table entry again. The poison of another entry has just ended. Bytes
/// that both entries contain have lost their poison with it.
pub(crate) fn poison_again(entry: u16) {
    if let Some(sanitizer) = SANITIZER.get() {
        sanitizer.replace(TABLE[usize::from(entry)].range(), 0, POISON);
    }
}

/// Ends all poison in a forked child. The child has a copy of the memory, and the requests are its
/// parent's.
pub fn forget_after_fork() {
    if is_on() {
        let used = (0..MOST).filter(|index| TABLE[*index].length.load(Ordering::Acquire) != 0);
        used.for_each(|index| unpoison(width::short(index as u64)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU8;

    /// Returns a sanitizer whose shadow memory is an array. The array describes the addresses from
    /// 0 on.
    fn sanitizer(shadow: &[AtomicU8]) -> Sanitizer {
        Sanitizer { scale: 3, offset: shadow.as_ptr() as u64, stack_of: |_, _, _| 0 }
    }

    #[test]
    fn only_whole_granules_are_poisoned_and_only_poison_is_removed() {
        let shadow = [0, 0, 0, 0, 4, 0xfa].map(AtomicU8::new);
        let now = || shadow.each_ref().map(|byte| byte.load(Ordering::Relaxed));
        let sanitizer = sanitizer(&shadow);
        sanitizer.replace(3..36, 0, POISON);
        assert_eq!(now(), [0, POISON, POISON, POISON, 4, 0xfa]);
        // The program frees a part of the memory.
        shadow[2].store(BadByte::FREED, Ordering::Relaxed);
        sanitizer.replace(3..36, POISON, 0);
        assert_eq!(now(), [0, 0, BadByte::FREED, 0, 4, 0xfa]);
    }

    #[test]
    fn the_first_byte_that_must_not_be_used_is_found() {
        let shadow = [0xfa, 0, 0, 4, 0xfa, 0xfa].map(AtomicU8::new);
        let sanitizer = sanitizer(&shadow);
        let first_bad = |range| sanitizer.first_bad(range, |_| None).map(|bad| (bad.offset, bad.shadow));
        assert_eq!(first_bad(8..28), None);
        assert_eq!(first_bad(8..29), Some((20, 4)));
        assert_eq!(first_bad(7..9), Some((0, 0xfa)));
        assert_eq!(first_bad(32..40), Some((0, 0xfa)));
    }

    #[test]
    fn memory_that_usring_has_poisoned_is_not_bad() {
        let shadow = [POISON, POISON, 0, POISON, 0, 0xfd].map(AtomicU8::new);
        let sanitizer = sanitizer(&shadow);
        let until = |address| (address < 16).then_some(16);
        assert_eq!(sanitizer.first_bad(0..24, until), None);
        assert_eq!(sanitizer.first_bad(0..32, until), Some(BadByte { offset: 24, shadow: POISON }));
    }
}
