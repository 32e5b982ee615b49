//! Memory files (memfd_create(2)) that the launcher shares with the program's processes.

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::ffi::CStr;
use std::fs::File;
use std::io;

/// Makes a memory file of `length` zero bytes. Seals its length, so that no process can shorten the
/// file while other processes have it mapped.
pub fn sealed(name: &CStr, length: u64) -> io::Result<File> {
    let file = File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
    file.set_len(length)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_sealed_file_keeps_its_length_and_takes_bytes() {
        let file = sealed(c"usring-test", 4096).unwrap();
        assert!(file.set_len(0).is_err() && file.set_len(8192).is_err());
        assert_eq!(file.metadata().unwrap().len(), 4096);
        file.write_all_at(b"x", 4095).unwrap();
    }
}
