//! Reads the memory of another process, and takes duplicates of its descriptors. Both need the
//! rights that ptrace(2) needs.

use crate::descriptor::OwnedDescriptor;
use crate::process_maps::{Line, Maps};
use crate::syscall::PASS_MARK_ABOVE_FLAGS;
use crate::{Errno, SystemCall, width};
use linux_raw_sys::general as linux;

/// Another process that runs the same file of code as this process: the library, or a program.
pub struct Counterpart {
    process: u32,
    /// Distance from an address in this process's copy of the file to the same place in the other
    /// process's copy.
    shift: usize,
}

impl Counterpart {
    /// Finds the file that has the address `code` in this process among the mappings of `process`.
    /// `None`: the other process does not run it, or may not be examined.
    pub fn find(process: u32, code: usize) -> Option<Counterpart> {
        let own_maps = Maps::open()?;
        let file = own_maps.area_of(code).filter(|area| area.inode != 0)?;
        let base = |maps: &Maps| {
            let mut lines = maps.lines();
            loop {
                let area = Line::parse(lines.next()?)?.area;
                if area.inode == file.inode && area.device == file.device && area.offset == 0 {
                    return Some(area.range.start);
                }
            }
        };
        let own_base = base(&Maps::open()?)?;
        Some(Counterpart { process, shift: base(&Maps::of(process)?)?.wrapping_sub(own_base) })
    }

    /// Reads the other process's words at the place that has `address` in this process.
    pub fn read<const COUNT: usize>(&self, address: usize) -> Result<[u32; COUNT], Errno> {
        let mut words = [0u32; COUNT];
        let length = size_of_val(&words) as u64;
        let to = [words.as_mut_ptr() as u64, length];
        let from = [address.wrapping_add(self.shift) as u64, length];
        // Linux reads only the lower half of the first argument, a process id.
        let process = u64::from(self.process) | PASS_MARK_ABOVE_FLAGS;
        let arguments = [process, to.as_ptr() as u64, 1, from.as_ptr() as u64, 1, 0];
        let copied = SystemCall::with_six(linux::__NR_process_vm_readv, arguments).run()?;
        if copied == length { Ok(words) } else { Err(Errno::EFAULT) }
    }
}

/// Takes a duplicate of the descriptor `number` of the process of a pidfd (pidfd_getfd(2)). The
/// duplicate is private to usring.
pub fn descriptor_of(pidfd: i32, number: i32) -> Result<OwnedDescriptor, Errno> {
    let arguments = [width::word(pidfd), width::word(number), 0, 0, 0];
    let taken = SystemCall::new(linux::__NR_pidfd_getfd, arguments).run()?;
    OwnedDescriptor::from_raw(width::int(taken)).into_private()
}
