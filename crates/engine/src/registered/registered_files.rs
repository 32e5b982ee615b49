//! The ring's table of registered files. An index of the table is a direct descriptor.
//!
//! Each file is a duplicate that usring owns, so it stays open when the program closes its own
//! descriptor. A file that has left its slot stays open while requests use it. When the last of
//! these requests has completed, the file's tag is posted.

use crate::devices;
use crate::request::conditions::Registration;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_device::OpenDevice;
use usring_sys::Errno;
use usring_sys::deposit::{Contents, DepositedFile, TakenFile};
use usring_sys::descriptor::{self, HeldDescriptor, OwnedDescriptor};
use usring_sys::mutex::Mutex;
use usring_sys::width;
use usring_uapi::io_uring as abi;

/// Value of `file_index`, and of an update's offset, that means "any free slot".
pub(crate) const FILE_INDEX_ALLOC: u32 = abi::IORING_FILE_INDEX_ALLOC.cast_unsigned();
/// A registered file. The ring's table has one reference to it, and each request that uses the file
/// has another.
pub(crate) struct RegisteredFile {
    /// The file's entries in the ring's epoll set. usring deletes the entries before it closes the
    /// descriptor number of the file.
    pub registrations: Mutex<Vec<Registration>>,
    descriptor: HeldDescriptor,
    /// The file system (fstat(2)'s `st_dev`) of a file that was open with O_DIRECT when it was
    /// registered. `None` without O_DIRECT, or if the file is neither a regular file nor a block
    /// device.
    direct: Option<u64>,
    /// The block device of usring that the file stands for, if any.
    device: Option<Arc<OpenDevice>>,
}

impl RegisteredFile {
    pub fn number(&self) -> i32 {
        self.descriptor.number()
    }

    #[inline]
    pub fn direct_on(&self) -> Option<u64> {
        self.direct
    }

    #[inline]
    pub fn device(&self) -> Option<&Arc<OpenDevice>> {
        self.device.as_ref()
    }

    /// Returns whether a request has waited for the file in the ring's epoll set. If so, the file
    /// can be polled.
    pub fn has_been_waited_for(&self) -> bool {
        !self.registrations.lock().is_empty()
    }
}

/// Where a request wants its new descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FileSlot {
    /// An ordinary file descriptor of the program.
    #[default]
    Ordinary,
    /// A direct descriptor in this slot of the table.
    Index(u32),
    /// A direct descriptor in any free slot. The CQE's result is the slot.
    Any,
}

impl FileSlot {
    /// Reads the SQE's `file_index`. 0 means an ordinary descriptor. [`FILE_INDEX_ALLOC`] means any
    /// free slot. Any other value is the slot plus 1.
    pub fn from_sqe(file_index: u32) -> FileSlot {
        match file_index {
            0 => FileSlot::Ordinary,
            FILE_INDEX_ALLOC => FileSlot::Any,
            index => FileSlot::Index(index - 1),
        }
    }
}

/// A slot of the table: empty, or with a file and the file's tag.
#[derive(Default)]
pub(super) struct Entry {
    pub file: Option<Arc<RegisteredFile>>,
    pub tag: u64,
}

#[derive(Default)]
pub(crate) struct RegisteredFiles {
    entries: Option<Vec<Entry>>,
    /// Files with tags that have left their slots while requests still used them.
    retired: Vec<(Arc<RegisteredFile>, u64)>,
    /// Tags to post now: their files have left the table, and no request uses the files.
    released: Vec<u64>,
    /// The slots (first, end) that are searched for a request that asks for any free slot. The
    /// search begins at `next`.
    range: (u32, u32),
    next: u32,
    /// Other processes see the table: see `waiting::shared_registrations`.
    is_published: bool,
    /// Whether this process has changed the table of files, and other processes do not see the
    /// change yet.
    is_changed: bool,
    /// Whether the driver has to do one of two things before it publishes its CQEs: post CQEs of
    /// tags, or publish a change of the table.
    is_due: bool,
}

impl RegisteredFiles {
    #[inline]
    pub fn get(&self, index: u32) -> Option<&RegisteredFile> {
        self.entries.as_ref()?.get(index as usize)?.file.as_deref()
    }

    /// Returns the file in a slot, for a request to share. `None`: the slot is empty.
    pub fn share(&self, index: u32) -> Option<Arc<RegisteredFile>> {
        self.entries.as_ref()?.get(index as usize)?.file.clone()
    }

    pub fn count(&self) -> usize {
        self.entries.as_ref().map_or(0, Vec::len)
    }

    fn entries(&mut self) -> Result<&mut Vec<Entry>, Errno> {
        self.entries.as_mut().ok_or(Errno::ENXIO)
    }

    /// Puts a new file into the slot that a request names. Returns the CQE's result.
    pub fn install(&mut self, slot: FileSlot, descriptor: OwnedDescriptor) -> Result<i32, Errno> {
        let device = if devices::are_any() { devices::recognise(descriptor.number()) } else { None };
        self.put_in_slot(slot, Arc::new(RegisteredFile::new(HeldDescriptor::new(descriptor), device)))
    }

    /// Puts a new socket, or an end of a new pipe, into the slot that a request names. Such a file
    /// has no record locks and is no device, so this function makes no check for them. Returns the
    /// CQE's result.
    pub fn install_unlocked(&mut self, slot: FileSlot, file: OwnedDescriptor) -> Result<i32, Errno> {
        let mut descriptor = HeldDescriptor::new(file);
        descriptor.assume_never_locked();
        let registrations = Mutex::default();
        self.put_in_slot(slot, Arc::new(RegisteredFile { registrations, descriptor, direct: None, device: None }))
    }

    fn put_in_slot(&mut self, slot: FileSlot, file: Arc<RegisteredFile>) -> Result<i32, Errno> {
        let file = Some(file);
        match slot {
            FileSlot::Ordinary => Err(if self.count() == 0 { Errno::ENXIO } else { Errno::EINVAL }),
            FileSlot::Any => {
                if self.entries.is_none() {
                    return Err(Errno::ENFILE);
                }
                let index = self.free_slot().ok_or(Errno::ENFILE)?;
                self.fill(index, Entry { file, tag: 0 })?;
                Ok(index.cast_signed())
            }
            FileSlot::Index(index) => {
                let count = self.count();
                if count == 0 {
                    return Err(Errno::ENXIO);
                }
                if index as usize >= count {
                    return Err(Errno::EINVAL);
                }
                let replaces = self.get(index).is_some();
                let next = self.next;
                self.retire(index);
                self.fill(index, Entry { file, tag: 0 })?;
                if replaces {
                    self.next = next;
                }
                Ok(0)
            }
        }
    }

    /// Fills an empty slot of the table. As in the kernel, the next search for a free slot begins
    /// after the filled slot.
    pub(super) fn fill(&mut self, index: u32, entry: Entry) -> Result<(), Errno> {
        self.entries()?[index as usize] = entry;
        self.next = index + 1;
        self.note_change();
        Ok(())
    }

    /// Puts a file that a MSG_RING brings from another ring into the slot that the MSG_RING names.
    pub fn receive(&mut self, slot: FileSlot, file: Arc<RegisteredFile>) -> Result<i32, Errno> {
        self.put_in_slot(slot, file)
    }

    fn free_slot(&self) -> Option<u32> {
        let (first, last) = self.range;
        let next = self.next.clamp(first, last);
        let entries = self.entries.as_ref()?;
        let free = |index: &u32| entries[*index as usize].file.is_none();
        (next..last).find(free).or_else(|| (first..next).find(free))
    }

    /// Empties a slot. Errors: `ENXIO` without a table; `EINVAL` if `index` is beyond the table;
    /// `EBADF` if the slot is empty.
    pub fn remove(&mut self, index: u32) -> Result<(), Errno> {
        let count = self.count();
        if count == 0 {
            return Err(Errno::ENXIO);
        }
        if index as usize >= count {
            return Err(Errno::EINVAL);
        }
        if self.get(index).is_none() {
            return Err(Errno::EBADF);
        }
        self.retire(index);
        Ok(())
    }

    pub(super) fn retire(&mut self, index: u32) {
        let Some(entry) = self.entries.as_mut().and_then(|entries| entries.get_mut(index as usize)) else { return };
        let Entry { file, tag } = core::mem::take(entry);
        let Some(file) = file else { return };
        self.next = index;
        self.note_change();
        self.note_removed(file, tag);
    }

    fn note_change(&mut self) {
        self.is_changed = true;
        self.is_due |= self.is_published;
    }

    fn note_removed(&mut self, file: Arc<RegisteredFile>, tag: u64) {
        if tag == 0 {
            return;
        }
        self.is_due = true;
        if Arc::strong_count(&file) > 1 {
            self.retired.push((file, tag));
        } else {
            self.released.push(tag);
        }
    }

    /// Returns whether the driver has to post CQEs of tags, or to publish a change of the table,
    /// before it publishes its CQEs.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    pub fn take_released(&mut self) -> Vec<u64> {
        let mut tags = core::mem::take(&mut self.released);
        self.retired.retain(|(file, tag)| {
            let held = Arc::strong_count(file) > 1;
            if !held {
                tags.push(*tag);
            }
            held
        });
        self.is_due = !self.retired.is_empty() || self.is_changed && self.is_published;
        tags
    }

    /// Removes the table (UNREGISTER_FILES).
    ///
    /// Error: `ENXIO` if there is no table.
    pub fn unregister(&mut self) -> Result<u32, Errno> {
        let entries = self.entries.take().ok_or(Errno::ENXIO)?;
        self.note_change();
        for Entry { file, tag } in entries {
            if let Some(file) = file {
                self.note_removed(file, tag);
            }
        }
        Ok(0)
    }

    /// Makes the table from these slots.
    pub(super) fn set(&mut self, entries: Vec<Entry>) {
        self.range = (0, width::count(entries.len()));
        self.next = 0;
        self.entries = Some(entries);
        self.note_change();
    }

    pub fn is_registered(&self) -> bool {
        self.entries.is_some()
    }

    /// Limits the search for a free slot to a range of slots (REGISTER_FILE_ALLOC_RANGE).
    pub fn set_range(&mut self, first: u32, length: u32) -> Result<(), Errno> {
        let last = first.checked_add(length).ok_or(Errno::EOVERFLOW)?;
        if last as usize > self.count() {
            return Err(Errno::EINVAL);
        }
        self.range = (first, last);
        self.next = first;
        self.note_change();
        Ok(())
    }
}

/// A table that the processes of a ring share.
impl RegisteredFiles {
    /// From now on, publishes the table for the other processes of the ring.
    pub fn begin_publishing(&mut self) {
        self.is_published = true;
        self.is_changed = self.is_registered();
        self.is_due |= self.is_changed;
    }

    /// Returns the table to publish, if this process has changed it since the last call.
    /// `Some(None)`: there is no table any more.
    pub fn take_change(&mut self) -> Option<Option<TableForOthers>> {
        if !self.is_published || !core::mem::take(&mut self.is_changed) {
            return None;
        }
        self.is_due = !self.retired.is_empty() || !self.released.is_empty();
        Some(self.entries.as_ref().map(|entries| {
            let item = |(slot, entry): (usize, &Entry)| {
                let file = entry.file.as_ref()?.number();
                Some(DepositedFile { file, words: [slot as u64, entry.tag] })
            };
            let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
            let words = [pair(width::count(entries.len()), self.next), pair(self.range.0, self.range.1)];
            TableForOthers { words, items: entries.iter().enumerate().filter_map(item).collect() }
        }))
    }

    /// Replaces the table by `table`, which another process has published. Posts no tags of files
    /// that leave the table. `None`: the other process has removed the table.
    pub fn follow(&mut self, table: Option<Contents>) {
        self.entries = None;
        self.is_changed = false;
        let Some(Contents { words: [sizes, range], files }) = table else { return };
        let halves = |word: u64| (width::low(word), (word >> 32) as u32);
        let (count, next) = halves(sizes);
        let mut entries = Vec::new();
        if entries.try_reserve_exact(count as usize).is_ok() {
            entries.resize_with(count as usize, Entry::default);
        }
        for TakenFile { file, words: [slot, tag] } in files {
            let device = if devices::are_any() { devices::recognise(file.number()) } else { None };
            let file = Arc::new(RegisteredFile::new(HeldDescriptor::new(file), device));
            if let Some(entry) = entries.get_mut(width::size(slot)) {
                *entry = Entry { file: Some(file), tag };
            }
        }
        (self.range, self.next) = (halves(range), next);
        self.entries = Some(entries);
    }
}

/// A table of registered files, for the other processes of a ring.
pub(crate) struct TableForOthers {
    /// First word: the size of the table, and the slot at which the next search for a free slot
    /// begins. Second word: the range (first, end) of this search. Each of the four numbers has 32
    /// bits.
    pub words: [u64; 2],
    /// The files, each with its slot and its tag.
    pub items: Vec<DepositedFile>,
}

impl RegisteredFile {
    /// Makes a registered file from a duplicate of the program's file. `device`: the block device
    /// of usring that the file stands for, if any.
    pub(super) fn new(descriptor: HeldDescriptor, device: Option<Arc<OpenDevice>>) -> Self {
        let number = descriptor.number();
        let identity = if descriptor::is_direct(number) { descriptor::identity(number).ok() } else { None };
        let direct = identity.filter(|identity| identity.is_stored()).map(|identity| identity.device);
        RegisteredFile { registrations: Mutex::default(), descriptor, direct, device }
    }

    /// Returns a duplicate of the open file for another ring's table, with its own entries in that
    /// ring's epoll set.
    pub fn for_another(&self) -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(RegisteredFile {
            registrations: Mutex::default(),
            descriptor: descriptor::hold(self.number())?,
            direct: self.direct,
            device: self.device.clone(),
        }))
    }
}
