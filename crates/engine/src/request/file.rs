//! The file of a request, and the reference that keeps the file's descriptor number valid while the
//! request waits.

use super::conditions::SharedDuplicate;
use crate::registered::registered_files::RegisteredFile;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use usring_device::OpenDevice;
use usring_sys::Errno;
use usring_sys::descriptor::{self, HeldDescriptor};

/// The file that a request works on.
#[derive(Default)]
pub(crate) struct FileUse {
    /// The descriptor number that the request's system calls use.
    pub number: i32,
    pub reference: FileReference,
    /// The device of usring's that the file stands for. `None`: the file stands for no device, or
    /// no later step of the request needs the device.
    pub device: Option<Arc<OpenDevice>>,
}

/// The reference that keeps [`FileUse::number`] valid: the number means one file for the life of
/// the request.
#[derive(Default)]
pub(crate) enum FileReference {
    /// No reference: the number is the program's own, valid until the program's call returns.
    #[default]
    Submitter,
    /// A registered file. The request shares the file, so the file stays open even if the program
    /// updates the file's slot in the table.
    Registered(Arc<RegisteredFile>),
    /// A duplicate that all requests waiting for one file share.
    WaitDuplicate(Arc<SharedDuplicate>),
    /// A duplicate from [`TransferDuplicates`]. All transfers on one file share it.
    TransferDuplicate(#[expect(dead_code, reason = "owned to be closed with the request")] Arc<HeldDescriptor>),
    /// A private duplicate, made when the request had to wait.
    PrivateDuplicate(#[expect(dead_code, reason = "owned to be closed with the request")] HeldDescriptor),
}

impl FileUse {
    /// Duplicates the file if the number is still the program's own. From then on, the program may
    /// close the file or reuse the number, and the request still works on the file.
    pub fn keep(&mut self) -> Result<(), Errno> {
        if matches!(self.reference, FileReference::Submitter) {
            let duplicate = descriptor::hold(self.number)?;
            self.number = duplicate.number();
            self.reference = FileReference::PrivateDuplicate(duplicate);
        }
        Ok(())
    }
}

/// Duplicates of the program's files, by the program's descriptor numbers. Requests on one file
/// share one duplicate, because many requests may wait and descriptors are few. Each duplicate is
/// closed with the last request that shares it.
#[derive(Default)]
pub(crate) struct TransferDuplicates {
    known: BTreeMap<i32, Weak<HeldDescriptor>>,
}

/// If [`TransferDuplicates`] has this many entries, the entries of closed duplicates are removed
/// before a new entry is added.
const KNOWN_NUMBERS: usize = 64;

impl TransferDuplicates {
    /// Returns the duplicate for one of the program's descriptor numbers; makes it on first use.
    pub fn duplicate(&mut self, number: i32) -> Result<Arc<HeldDescriptor>, Errno> {
        let known = self.known.get(&number).and_then(Weak::upgrade);
        // Since the duplicate was made, the program may have closed the file and opened another
        // file under this number.
        let same = known.filter(|duplicate| descriptor::same_file(number, duplicate.number()) == Some(true));
        if let Some(duplicate) = same {
            return Ok(duplicate);
        }
        let fresh = Arc::new(descriptor::hold(number)?);
        if self.known.len() >= KNOWN_NUMBERS {
            self.known.retain(|_, duplicate| duplicate.strong_count() > 0);
        }
        self.known.insert(number, Arc::downgrade(&fresh));
        Ok(fresh)
    }
}
