//! Remembers what system calls have reported about the last descriptor number that a submission
//! used.
//!
//! Looking up a number takes system calls. During one submission, many requests use one number. A
//! request that is issued later looks its number up again, because the program may have closed the
//! file and opened another one under the number. Neighbours: `block_device` asks this module. Files
//! in `registered_files` are looked up once, when they are registered.
//!
//! Invariant: a report about a number is used only during the submission that asked for it, and not
//! after a CLOSE within that submission.

use crate::request::file::{FileReference, FileUse, TransferDuplicates};
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_device::OpenDevice;
use usring_sys::Errno;
use usring_sys::descriptor::{self, FileIdentity, HeldDescriptor};

/// Maximum number of file systems without RWF_NOWAIT that are remembered.
const MOST_FILE_SYSTEMS: usize = 8;

#[derive(Default)]
pub(crate) struct NamedFiles {
    remembers: bool,
    /// The last number that was looked up, and the device of usring's that it stands for, if any.
    device: Option<(i32, Option<Arc<OpenDevice>>)>,
    /// Knowledge about the last ordinary file that was looked up.
    last: Option<NamedFile>,
    /// Duplicates of the program's files, which requests share.
    duplicates: TransferDuplicates,
    /// File systems that refuse RWF_NOWAIT, by fstat(2)'s `st_dev`.
    without_nowait: Vec<u64>,
}

/// Facts about an ordinary file, which the kernel serves, from fcntl(2) and fstat(2).
struct NamedFile {
    number: i32,
    status_flags: u32,
    /// The result of fstat(2); `None` until it is needed.
    identity: Option<FileIdentity>,
    /// usring's duplicate of the file; `None` until a request needs one.
    duplicate: Option<Arc<HeldDescriptor>>,
}

impl NamedFiles {
    #[inline]
    pub fn begin_submission(&mut self) {
        self.forget();
        self.remembers = true;
    }

    #[inline]
    pub fn end_submission(&mut self) {
        self.forget();
        self.remembers = false;
    }

    /// Forgets all numbers. Called when a number is closed, and when another thread may have closed
    /// one.
    #[inline]
    pub fn forget(&mut self) {
        if self.device.is_some() {
            self.device = None;
        }
        if self.last.is_some() {
            self.last = None;
        }
    }

    /// Returns the device of usring's that a number stands for, if any. If the number is not
    /// remembered, calls `look_up`, which asks the host.
    #[inline]
    pub fn device(&mut self, number: i32, look_up: fn(i32) -> Option<Arc<OpenDevice>>) -> Option<&Arc<OpenDevice>> {
        if !self.remembers || self.device.as_ref().is_none_or(|(known, _)| *known != number) {
            self.device = Some((number, look_up(number)));
        }
        self.device.as_ref().and_then(|(_, file)| file.as_ref())
    }

    /// Returns what is remembered about this number.
    fn known(&mut self, number: i32) -> Option<&mut NamedFile> {
        self.last.as_mut().filter(|known| known.number == number)
    }

    /// Returns the status flags (fcntl(2)'s F_GETFL) of one of the program's descriptor numbers.
    #[inline]
    pub fn status_flags(&mut self, number: i32) -> Result<u32, Errno> {
        if let Some(known) = self.known(number) {
            return Ok(known.status_flags);
        }
        let status_flags = descriptor::status_flags(number)?;
        if self.remembers {
            self.last = Some(NamedFile { number, status_flags, identity: None, duplicate: None });
        }
        Ok(status_flags)
    }

    /// Returns the result of fstat(2) for one of the program's descriptor numbers.
    #[inline]
    pub fn identity(&mut self, number: i32) -> Result<FileIdentity, Errno> {
        if let Some(identity) = self.known(number).and_then(|known| known.identity) {
            return Ok(identity);
        }
        let identity = descriptor::identity(number)?;
        if let Some(known) = self.known(number) {
            known.identity = Some(identity);
        }
        Ok(identity)
    }

    /// Returns whether a file system is known to refuse RWF_NOWAIT.
    #[inline]
    pub fn lacks_nowait(&self, file_system: u64) -> bool {
        self.without_nowait.contains(&file_system)
    }

    pub fn note_without_nowait(&mut self, file_system: u64) {
        if !self.lacks_nowait(file_system) {
            // The file system that was noted first is forgotten. If a later transfer is on the
            // forgotten file system, that transfer tries RWF_NOWAIT again.
            if self.without_nowait.len() == MOST_FILE_SYSTEMS {
                self.without_nowait.remove(0);
            }
            self.without_nowait.push(file_system);
        }
    }

    /// Makes a request use a duplicate of its file. The duplicate stays open after the program's
    /// call. Requests on one file share the duplicate, because many requests may wait and
    /// descriptors are few.
    pub fn keep(&mut self, file: &mut FileUse) -> Result<(), Errno> {
        if !matches!(file.reference, FileReference::Submitter) {
            return Ok(());
        }
        let number = file.number;
        let duplicate = match self.known(number).and_then(|known| known.duplicate.clone()) {
            Some(duplicate) => duplicate,
            None => self.duplicates.duplicate(number)?,
        };
        if let Some(known) = self.known(number) {
            known.duplicate = Some(duplicate.clone());
        }
        file.number = duplicate.number();
        file.reference = FileReference::TransferDuplicate(duplicate);
        Ok(())
    }
}
