//! The registrations that the processes of a shared ring see: registered buffers, buffer groups,
//! restrictions, files and an eventfd. For files and the eventfd, the words hold only the number of
//! a deposit: a set of open files that one process keeps for the others ([`usring_sys::deposit`]).
//! Each process takes the descriptors from that deposit. The engine's `registered::published`
//! decides when a process writes and reads these words.
//!
//! All words change under the ring's lock only, except `UNPUBLISHED`. A process may die between any
//! two stores. So it first writes the other words of an entry, and last the word that makes the
//! entry valid:
//!
//! | entry | word that makes it valid | content |
//! |---|---|---|
//! | group | `KIND` | a buffer ring with its head, or a group of provided buffers |
//! | provided buffer | `GROUP_OF` | a buffer of a group of provided buffers, and its position there |
//! | registered buffer | `BUFFER_NUMBER` | an address range |
//!
//! Each registration has a number of its own and the number of the process that made it. From both,
//! another process determines whether it has inherited the memory of the registration.

use alloc::vec::Vec;
use usring_sys::futex;
use usring_sys::shared::SharedMemory;
use usring_sys::sync::{Arc, AtomicU32, Ordering};
use usring_sys::width;

/// Offsets of the first words, in bytes.
const GENERATION: usize = 0;
const COUNTER: usize = 4;
const UNPUBLISHED: usize = 8;
const FILES: usize = 12;
const EVENT: usize = 16;
const BUFFERS: usize = 20;
const RESTRICTIONS: usize = 24;
const NEXT_POSITION: usize = 28;
/// Offset of the restrictions' rules ([`Rules`]), in bytes.
const RULES: usize = 64;

/// Maximum number of buffer groups that a ring's processes can share.
pub const MOST_GROUPS: usize = 64;
/// Maximum number of provided buffers that a ring's processes can share, in all groups of
/// PROVIDE_BUFFERS together.
pub const MOST_PROVIDED: usize = 1024;
/// Maximum number of registered buffers that a ring's processes can share.
pub const MOST_BUFFERS: usize = 1024;

const GROUPS: usize = 128;
const GROUP: usize = 32;
const PROVIDED: usize = GROUPS + MOST_GROUPS * GROUP;
const PROVIDED_BUFFER: usize = 24;
const TABLE: usize = PROVIDED + MOST_PROVIDED * PROVIDED_BUFFER;
const BUFFER: usize = 32;
/// Bytes of all words.
pub(crate) const LENGTH: usize = TABLE + MOST_BUFFERS * BUFFER;
/// Alignment of the words, in bytes: a cache line.
pub(crate) const ALIGNMENT: usize = 64;

/// Offsets of a group's words. The word at `KIND` holds the group's id, and a flag for the group's
/// kind: [`CLASSIC`] or [`RING`]. With `RING`, it may also hold [`INCREMENTAL`].
const KIND: usize = 0;
const NUMBER: usize = 4;
const OWNER: usize = 8;
const ENTRIES: usize = 12;
const HEAD: usize = 16;
const ADDRESS: usize = 24;

const RING: u32 = 1 << 30;
const CLASSIC: u32 = 1 << 31;
const INCREMENTAL: u32 = 1 << 29;
const ID: u32 = 0xffff;

/// The rules of REGISTER_RESTRICTIONS, as the engine encodes them.
pub type Rules = [u64; 6];

/// Origin of a registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Number of the process (`sys::process_number`).
    pub owner: u32,
    /// Number of the registration. Later registrations have larger numbers.
    pub number: u32,
}

/// A buffer ring, as all processes of the ring see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBufferRing {
    pub origin: Origin,
    pub address: u64,
    pub entries: u32,
    pub is_incremental: bool,
}

/// A group of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedGroup {
    /// Buffers that PROVIDE_BUFFERS has provided.
    Classic,
    Ring(SharedBufferRing),
}

/// A registered buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedBuffer {
    pub origin: Origin,
    pub address: u64,
    pub length: u64,
    pub tag: u64,
}

/// A buffer of a classic group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProvidedBuffer {
    pub id: u16,
    pub address: u64,
    pub length: u32,
}

/// A set of open files (a deposit of `sys::deposit`) that a ring's processes keep for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deposit {
    /// The table of registered files.
    Files,
    /// The registered eventfd.
    Event,
}

/// Index of a buffer group's entry in the registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSlot(usize);

/// One process's view of a ring's registrations.
#[derive(Clone, Debug)]
pub struct Registrations {
    memory: Arc<SharedMemory>,
    start: usize,
}

impl Registrations {
    pub(crate) fn new(memory: Arc<SharedMemory>, start: usize) -> Registrations {
        Registrations { memory, start }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.memory.word(self.start + offset)
    }

    fn get(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Relaxed)
    }

    /// Stores a word, after all earlier stores.
    fn set(&self, offset: usize, value: u32) {
        self.word(offset).store(value, Ordering::Release);
    }

    fn read(&self, offset: usize) -> u64 {
        self.memory.read(self.start + offset)
    }

    fn write(&self, offset: usize, value: u64) {
        self.memory.write(self.start + offset, value);
    }

    /// Returns how often the registrations have changed. 0: no process has published a
    /// registration.
    pub fn generation(&self) -> u32 {
        self.get(GENERATION)
    }

    /// Counts a change of the registrations, after the caller has stored the change. Returns the
    /// new count.
    pub fn count_change(&self) -> u32 {
        let next = self.get(GENERATION).wrapping_add(1).max(1);
        self.set(GENERATION, next);
        next
    }

    /// Returns the number of a new registration.
    pub fn new_number(&self) -> u32 {
        let next = self.get(COUNTER).wrapping_add(1).max(1);
        self.set(COUNTER, next);
        next
    }

    /// Returns the word that marks unpublished registrations. It is not 0 while the process that
    /// made the ring has registrations that no other process sees ([`usring_sys::sharing`]).
    pub fn unpublished(&self) -> &AtomicU32 {
        self.word(UNPUBLISHED)
    }

    /// Marks all registrations as published, and wakes the processes that wait for their
    /// publication.
    pub fn note_published(&self) {
        if self.word(UNPUBLISHED).swap(0, Ordering::AcqRel) != 0 {
            futex::wake_shared(self.word(UNPUBLISHED), u32::MAX >> 1);
        }
    }

    /// Returns whether the process that made the ring has registrations that no other process sees.
    pub fn are_unpublished(&self) -> bool {
        self.word(UNPUBLISHED).load(Ordering::Acquire) != 0
    }

    /// Sleeps for `span` nanoseconds at most while [`Registrations::are_unpublished`].
    pub fn await_publication(&self, span: u64) {
        let _ = futex::wait_shared(self.word(UNPUBLISHED), 1, Some(span));
    }

    fn deposit_word(deposit: Deposit) -> usize {
        match deposit {
            Deposit::Files => FILES,
            Deposit::Event => EVENT,
        }
    }

    /// Returns the number of the current deposit (set of files) of the kind `deposit`. Returns 0 if
    /// nothing of this kind is registered.
    pub fn deposit(&self, deposit: Deposit) -> u32 {
        self.get(Self::deposit_word(deposit))
    }

    pub fn set_deposit(&self, deposit: Deposit, number: u32) {
        self.set(Self::deposit_word(deposit), number);
    }

    /// Returns the state of the restrictions, and their rules. State 0: there are no restrictions.
    pub fn restrictions(&self) -> (u32, Rules) {
        (self.get(RESTRICTIONS), core::array::from_fn(|index| self.read(RULES + 8 * index)))
    }

    pub fn set_restrictions(&self, state: u32, rules: Rules) {
        (0..).step_by(8).zip(rules).for_each(|(offset, word)| self.write(RULES + offset, word));
        self.set(RESTRICTIONS, state);
    }
}

/// The groups.
impl Registrations {
    fn group(slot: GroupSlot) -> usize {
        GROUPS + slot.0 * GROUP
    }

    /// Returns the groups, with their ids.
    pub fn groups(&self) -> impl Iterator<Item = (GroupSlot, u16, SharedGroup)> {
        (0..MOST_GROUPS).map(GroupSlot).filter_map(|slot| {
            let at = Self::group(slot);
            let kind = self.get(at + KIND);
            let group = match kind & (RING | CLASSIC) {
                CLASSIC => SharedGroup::Classic,
                RING => SharedGroup::Ring(SharedBufferRing {
                    origin: Origin { owner: self.get(at + OWNER), number: self.get(at + NUMBER) },
                    address: self.read(at + ADDRESS),
                    entries: self.get(at + ENTRIES),
                    is_incremental: kind & INCREMENTAL != 0,
                }),
                _ => return None,
            };
            Some((slot, (kind & ID) as u16, group))
        })
    }

    /// Returns a group and its entry; `None` if no process has published a group with this id.
    pub fn find_group(&self, id: u16) -> Option<(GroupSlot, SharedGroup)> {
        self.groups().find(|(_, other, _)| *other == id).map(|(slot, _, group)| (slot, group))
    }

    /// Enters a group in the registrations. Replaces the group with this id, if there is one.
    /// `head`: the head of a buffer ring; ignored for a classic group. `None`: all entries are in
    /// use.
    pub fn enter_group(&self, id: u16, group: SharedGroup, head: u16) -> Option<GroupSlot> {
        let is_free = |slot: &GroupSlot| self.get(Self::group(*slot) + KIND) == 0;
        let known = self.find_group(id).map(|(slot, _)| slot);
        let slot = known.or_else(|| (0..MOST_GROUPS).map(GroupSlot).find(is_free))?;
        let at = Self::group(slot);
        self.set(at + KIND, 0);
        let kind = match group {
            SharedGroup::Classic => CLASSIC,
            SharedGroup::Ring(ring) => {
                self.set(at + NUMBER, ring.origin.number);
                self.set(at + OWNER, ring.origin.owner);
                self.set(at + ENTRIES, ring.entries);
                self.set(at + HEAD, u32::from(head));
                self.write(at + ADDRESS, ring.address);
                RING | if ring.is_incremental { INCREMENTAL } else { 0 }
            }
        };
        self.set(at + KIND, kind | u32::from(id));
        Some(slot)
    }

    pub fn remove_group(&self, slot: GroupSlot) {
        self.set(Self::group(slot) + KIND, 0);
    }

    /// Returns the index of a buffer ring's next buffer.
    #[inline]
    pub fn head(&self, slot: GroupSlot) -> u16 {
        width::short(self.get(Self::group(slot) + HEAD).into())
    }

    #[inline]
    pub fn set_head(&self, slot: GroupSlot, head: u16) {
        self.set(Self::group(slot) + HEAD, u32::from(head));
    }
}

/// Offsets of a provided buffer's words. The word at `GROUP_OF` holds the group's id and
/// [`IN_USE`]. The word at `POSITION` holds the buffer's position in the order of its group.
const GROUP_OF: usize = 0;
const POSITION: usize = 4;
const ADDRESS_OF: usize = 8;
const LENGTH_OF: usize = 16;
const ID_OF: usize = 20;
const IN_USE: u32 = 1 << 16;

/// The buffers of classic groups: those that PROVIDE_BUFFERS has provided.
impl Registrations {
    fn provided(index: usize) -> usize {
        PROVIDED + index * PROVIDED_BUFFER
    }

    fn is_provided(&self, index: usize, group: u16) -> bool {
        self.get(Self::provided(index)) == IN_USE | u32::from(group)
    }

    /// Returns the number of buffers of a group.
    pub fn count_provided(&self, group: u16) -> usize {
        (0..MOST_PROVIDED).filter(|index| self.is_provided(*index, group)).count()
    }

    /// Returns the index of the group's first buffer, and that buffer's word at `POSITION`.
    fn first_index(&self, group: u16) -> Option<(usize, u32)> {
        let mut first: Option<(usize, u32)> = None;
        for index in (0..MOST_PROVIDED).filter(|index| self.is_provided(*index, group)) {
            let place = self.get(Self::provided(index) + POSITION);
            if first.is_none_or(|(_, other)| place.wrapping_sub(other).cast_signed() < 0) {
                first = Some((index, place));
            }
        }
        first
    }

    /// Returns the group's first buffer.
    pub fn first_provided(&self, group: u16) -> Option<ProvidedBuffer> {
        let at = Self::provided(self.first_index(group)?.0);
        let (id, length) = (width::short(self.get(at + ID_OF).into()), self.get(at + LENGTH_OF));
        Some(ProvidedBuffer { id, address: self.read(at + ADDRESS_OF), length })
    }

    /// Removes and returns the group's first buffer.
    pub fn take_provided(&self, group: u16) -> Option<ProvidedBuffer> {
        let buffer = self.first_provided(group);
        if let Some((index, _)) = self.first_index(group) {
            self.set(Self::provided(index), 0);
        }
        buffer
    }

    /// Removes all buffers of a group.
    pub fn clear_provided(&self, group: u16) {
        (0..MOST_PROVIDED)
            .filter(|index| self.is_provided(*index, group))
            .for_each(|index| self.set(Self::provided(index), 0));
    }

    /// Returns how many more provided buffers the registrations have room for.
    pub fn room_for_provided(&self) -> usize {
        (0..MOST_PROVIDED).filter(|index| self.get(Self::provided(*index)) == 0).count()
    }

    /// Adds buffers at the end of a classic group. Buffers for which the registrations have no room
    /// are not added: see [`Registrations::room_for_provided`].
    pub fn provide(&self, group: u16, buffers: impl IntoIterator<Item = ProvidedBuffer>) {
        let free: Vec<usize> = (0..MOST_PROVIDED).filter(|index| self.get(Self::provided(*index)) == 0).collect();
        for (index, buffer) in free.into_iter().zip(buffers) {
            let place = self.get(NEXT_POSITION);
            self.set(NEXT_POSITION, place.wrapping_add(1));
            self.fill(index, group, place, buffer);
        }
    }

    /// Puts a buffer back into its group, where it becomes the first buffer. If the registrations
    /// have no room for it, the buffer is lost.
    pub fn give_back_provided(&self, group: u16, buffer: ProvidedBuffer) {
        let Some(index) = (0..MOST_PROVIDED).find(|index| self.get(Self::provided(*index)) == 0) else { return };
        let place = match self.first_index(group) {
            Some((_, first)) => first.wrapping_sub(1),
            None => self.get(NEXT_POSITION).wrapping_sub(1),
        };
        self.fill(index, group, place, buffer);
    }

    fn fill(&self, index: usize, group: u16, place: u32, buffer: ProvidedBuffer) {
        let at = Self::provided(index);
        self.set(at + POSITION, place);
        self.set(at + ID_OF, u32::from(buffer.id));
        self.set(at + LENGTH_OF, buffer.length);
        self.write(at + ADDRESS_OF, buffer.address);
        self.set(at + GROUP_OF, IN_USE | u32::from(group));
    }
}

/// Offsets of a registered buffer's words, behind its address, length and tag.
const BUFFER_OWNER: usize = 24;
const BUFFER_NUMBER: usize = 28;

/// Value of the word at [`BUFFERS`] for a table that is too large to be published.
const TOO_LARGE: u32 = u32::MAX;

/// The table of registered buffers.
impl Registrations {
    /// Returns the slots of the table of registered buffers. An empty slot is `None`. Returns
    /// `None` if there is no table. If the table is too large to be published, returns no slots.
    pub fn buffers(&self) -> Option<Vec<Option<SharedBuffer>>> {
        let slots = match self.get(BUFFERS) {
            0 => return None,
            TOO_LARGE => 0,
            slots => (slots as usize - 1).min(MOST_BUFFERS),
        };
        Some((0..slots).map(|slot| self.buffer(slot)).collect())
    }

    fn buffer(&self, slot: usize) -> Option<SharedBuffer> {
        let at = TABLE + slot * BUFFER;
        let origin = Origin { owner: self.get(at + BUFFER_OWNER), number: self.get(at + BUFFER_NUMBER) };
        let [address, length, tag] = [0, 8, 16].map(|offset| self.read(at + offset));
        (origin.number != 0).then_some(SharedBuffer { origin, address, length, tag })
    }

    /// Publishes a table of `slots` slots; `None`: there is no table.
    pub fn set_buffers(&self, slots: Option<usize>, buffers: impl Iterator<Item = Option<SharedBuffer>>) {
        let word = match slots {
            None => 0,
            Some(slots) if slots > MOST_BUFFERS => TOO_LARGE,
            Some(slots) => width::count(slots) + 1,
        };
        for (slot, buffer) in buffers.take(MOST_BUFFERS).enumerate() {
            let at = TABLE + slot * BUFFER;
            self.set(at + BUFFER_NUMBER, 0);
            let Some(SharedBuffer { origin, address, length, tag }) = buffer else { continue };
            [address, length, tag].into_iter().zip([0, 8, 16]).for_each(|(value, offset)| {
                self.write(at + offset, value);
            });
            self.set(at + BUFFER_OWNER, origin.owner);
            self.set(at + BUFFER_NUMBER, origin.number);
        }
        self.set(BUFFERS, word);
    }
}
