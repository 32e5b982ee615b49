//! The file of a request, and the hold by which its number goes on meaning that file.

use super::conditions::SharedHold;
use crate::registered::registered_files::RegisteredFile;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use usring_device::OpenDevice;
use usring_sys::Errno;
use usring_sys::descriptor::{self, HeldDescriptor};

/// The file that a request works on.
#[derive(Default)]
pub(crate) struct FileUse {
    /// The number to use in system calls.
    pub number: i32,
    pub hold: Hold,
    /// The device of usring's that the file stands for. `None`: it stands for none, or the request
    /// need not remember the device.
    pub device: Option<Arc<OpenDevice>>,
}

/// The hold that keeps the number meaning the same file.
#[derive(Default)]
pub(crate) enum Hold {
    /// No hold: the number is the program's own, valid until the program's call returns.
    #[default]
    Submitter,
    /// A registered file, which lives on even if its slot is updated.
    Registered(Arc<RegisteredFile>),
    /// A duplicate that all requests waiting for the same file share.
    Shared(Arc<SharedHold>),
    /// A duplicate that all transfers of that file share.
    Kept(#[expect(dead_code, reason = "owned to be given up with the request")] Arc<HeldDescriptor>),
    /// A private duplicate, made when the request had to wait.
    Duplicate(#[expect(dead_code, reason = "owned to be given up with the request")] HeldDescriptor),
}

impl FileUse {
    /// Ensures that the file stays the same after the call has returned. From then on the program's
    /// close does not cancel the request, and the request does not see a reuse of the number.
    pub fn keep(&mut self) -> Result<(), Errno> {
        if matches!(self.hold, Hold::Submitter) {
            let duplicate = descriptor::hold(self.number)?;
            self.number = duplicate.number();
            self.hold = Hold::Duplicate(duplicate);
        }
        Ok(())
    }
}

/// Duplicates of the program's files by its own numbers. Each lives as long as any request has it:
/// many requests may wait, and descriptors are few.
#[derive(Default)]
pub(crate) struct KeptFiles {
    known: BTreeMap<i32, Weak<HeldDescriptor>>,
}

/// When this many numbers are known, those without a waiting request are dropped.
const KNOWN_NUMBERS: usize = 64;

impl KeptFiles {
    /// Returns the duplicate of a file of the program's; makes it if there is none.
    pub fn duplicate(&mut self, number: i32) -> Result<Arc<HeldDescriptor>, Errno> {
        let known = self.known.get(&number).and_then(Weak::upgrade);
        // The program may have another file by that number now.
        let same = known.filter(|kept| descriptor::same_file(number, kept.number()) == Some(true));
        if let Some(kept) = same {
            return Ok(kept);
        }
        let fresh = Arc::new(descriptor::hold(number)?);
        if self.known.len() >= KNOWN_NUMBERS {
            self.known.retain(|_, kept| kept.strong_count() > 0);
        }
        self.known.insert(number, Arc::downgrade(&fresh));
        Ok(fresh)
    }
}
