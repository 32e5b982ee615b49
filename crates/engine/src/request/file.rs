//! The file of a request, and the hold that keeps its descriptor number valid.

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
    /// The device of usring's behind the file. `None`: there is no such device, or the request has
    /// no need to remember it.
    pub device: Option<Arc<OpenDevice>>,
}

/// The hold that makes a request's descriptor number refer to one file throughout.
#[derive(Default)]
pub(crate) enum Hold {
    /// No hold: the number is the program's own, valid until the program's call returns.
    #[default]
    Submitter,
    /// A registered file, which lives on even if its slot is updated.
    Registered(Arc<RegisteredFile>),
    /// A duplicate that all requests waiting for the same file share.
    Shared(Arc<SharedHold>),
    /// A duplicate from [`KeptFiles`], shared by all transfers of the file.
    Kept(#[expect(dead_code, reason = "owned to be given up with the request")] Arc<HeldDescriptor>),
    /// A private duplicate, made when the request had to wait.
    Duplicate(#[expect(dead_code, reason = "owned to be given up with the request")] HeldDescriptor),
}

impl FileUse {
    /// Duplicates the file, if no hold keeps it yet. After that the program may close its number or
    /// reuse it, and the request still works on its file.
    pub fn keep(&mut self) -> Result<(), Errno> {
        if matches!(self.hold, Hold::Submitter) {
            let duplicate = descriptor::hold(self.number)?;
            self.number = duplicate.number();
            self.hold = Hold::Duplicate(duplicate);
        }
        Ok(())
    }
}

/// Duplicates of the program's files, found by the program's descriptor numbers. Requests share
/// them, because many requests may wait and descriptors are few. A duplicate is closed when no
/// request holds it any more.
#[derive(Default)]
pub(crate) struct KeptFiles {
    known: BTreeMap<i32, Weak<HeldDescriptor>>,
}

/// Number of entries at which those without a waiting request are dropped.
const KNOWN_NUMBERS: usize = 64;

impl KeptFiles {
    /// Returns the duplicate of one of the program's files; makes it on first use.
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
