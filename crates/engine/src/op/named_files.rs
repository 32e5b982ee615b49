//! Remembers, for one submission, the file of the last descriptor number that the program has used.
//!
//! A look-up of a number takes system calls. A request that is issued later looks its number up
//! again: the program may have closed the file and opened another one under the number. Neighbours:
//! `block_device`, which asks here; `registered_files`, whose files are looked up when they are
//! registered.
//!
//! Invariant: nothing is remembered outside a submission, nor behind a CLOSE in it.

use crate::request::file::{FileUse, Hold, KeptFiles};
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_device::OpenDevice;
use usring_sys::Errno;
use usring_sys::descriptor::{self, FileIdentity, HeldDescriptor};

/// Most file systems that are remembered.
const MOST_FILE_SYSTEMS: usize = 8;

#[derive(Default)]
pub(crate) struct NamedFiles {
    remembers: bool,
    /// The number that was looked up last, and the device of usring's that it stands for, if any.
    device: Option<(i32, Option<Arc<OpenDevice>>)>,
    /// The ordinary file that was looked up last.
    last: Option<NamedFile>,
    /// Duplicates that requests share.
    kept: KeptFiles,
    /// File systems, by fstat(2)'s device number, that take no RWF_NOWAIT.
    without_nowait: Vec<u64>,
}

/// An ordinary file, which the kernel serves.
struct NamedFile {
    number: i32,
    status_flags: u32,
    /// The file's kind and file system, once fstat(2) has been asked.
    identity: Option<FileIdentity>,
    /// usring's duplicate of the file, once a request has kept the file.
    kept: Option<Arc<HeldDescriptor>>,
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

    /// Forgets all numbers. Called when a number has been closed, or when another thread may have
    /// closed one.
    #[inline]
    pub fn forget(&mut self) {
        if self.device.is_some() {
            self.device = None;
        }
        if self.last.is_some() {
            self.last = None;
        }
    }

    /// Returns the device of usring's that a number stands for, if any. `look_up` asks the host if
    /// the number is not remembered.
    #[inline]
    pub fn device(&mut self, number: i32, look_up: fn(i32) -> Option<Arc<OpenDevice>>) -> Option<&Arc<OpenDevice>> {
        if !self.remembers || self.device.as_ref().is_none_or(|(known, _)| *known != number) {
            self.device = Some((number, look_up(number)));
        }
        self.device.as_ref().and_then(|(_, file)| file.as_ref())
    }

    /// Returns the remembered file, if it has this number.
    fn known(&mut self, number: i32) -> Option<&mut NamedFile> {
        self.last.as_mut().filter(|known| known.number == number)
    }

    /// Returns the result of fcntl(F_GETFL) for the program's file.
    #[inline]
    pub fn status_flags(&mut self, number: i32) -> Result<u32, Errno> {
        if let Some(known) = self.known(number) {
            return Ok(known.status_flags);
        }
        let status_flags = descriptor::status_flags(number)?;
        if self.remembers {
            self.last = Some(NamedFile { number, status_flags, identity: None, kept: None });
        }
        Ok(status_flags)
    }

    /// Returns the result of fstat(2) for the program's file.
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

    /// Returns whether a file system is known to take no RWF_NOWAIT.
    #[inline]
    pub fn lacks_nowait(&self, file_system: u64) -> bool {
        self.without_nowait.contains(&file_system)
    }

    pub fn note_without_nowait(&mut self, file_system: u64) {
        if !self.lacks_nowait(file_system) {
            // The oldest file system is forgotten. If it is used again, its next transfer is tried
            // with RWF_NOWAIT.
            if self.without_nowait.len() == MOST_FILE_SYSTEMS {
                self.without_nowait.remove(0);
            }
            self.without_nowait.push(file_system);
        }
    }

    /// Has a request keep its file after the program's call has returned. Requests for one file
    /// share a duplicate, because many may wait and descriptors are few.
    pub fn keep(&mut self, file: &mut FileUse) -> Result<(), Errno> {
        if !matches!(file.hold, Hold::Submitter) {
            return Ok(());
        }
        let number = file.number;
        let kept = match self.known(number).and_then(|known| known.kept.clone()) {
            Some(kept) => kept,
            None => self.kept.duplicate(number)?,
        };
        if let Some(known) = self.known(number) {
            known.kept = Some(kept.clone());
        }
        file.number = kept.number();
        file.hold = Hold::Kept(kept);
        Ok(())
    }
}
