//! The page of poll policies that all processes of a run share. For each device it has a word that
//! says how threads wait for completions ([`usring_device::PolicyWord`]). The program's processes
//! map the page. The launcher and `usring ctl` read and write it as a file.

use crate::Failure;
use crate::memory_file;
use crate::system_error::words;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use usring_device::PollPolicy;
use usring_sys::width;

/// Bytes of the page.
const LENGTH: u64 = 4096;
/// Number of devices that can have a word in the page of poll policies.
pub const ROOM: usize = width::size(LENGTH) / 8;

pub struct Policies(File);

impl Policies {
    pub fn create(policies: impl Iterator<Item = PollPolicy>) -> Result<Policies, Failure> {
        let create = || {
            let page = Policies(memory_file::sealed(c"usring-policies", LENGTH)?);
            for (index, policy) in policies.enumerate() {
                page.set(index, policy)?;
            }
            Ok(page)
        };
        create().map_err(|error: io::Error| {
            Failure::new(format!("cannot make the devices' shared page ({error})", error = words(&error)))
        })
    }

    /// Wraps the descriptor of a run's page of poll policies, which the run's launcher has sent.
    pub fn from_file(file: File) -> Policies {
        Policies(file)
    }

    pub fn get(&self, index: usize) -> io::Result<PollPolicy> {
        let mut word = [0; 8];
        self.0.read_exact_at(&mut word, index as u64 * 8)?;
        Ok(PollPolicy::from_word(u64::from_ne_bytes(word)))
    }

    /// Writes a device's policy. The policy's word in the page is aligned, so the kernel stores the
    /// word in one step, and no process sees only half of it.
    pub fn set(&self, index: usize, policy: PollPolicy) -> io::Result<()> {
        self.0.write_all_at(&policy.to_word().to_ne_bytes(), index as u64 * 8)
    }
}

impl AsRawFd for Policies {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
