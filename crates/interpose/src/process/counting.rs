//! The file in which this process counts its rings (`USRING_STATS`). For `--stats`, the launcher
//! makes the file. Without a launcher, the first process makes it, and `usring stats` prints it.

use crate::process::environment;
use crate::runtime::message;
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};
use usring_engine::statistics::{self, Statistics};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::{Errno, SystemCall, file, width};
use usring_uapi::general as linux;

static FILE: AtomicPtr<Statistics> = AtomicPtr::new(core::ptr::null_mut());

/// Counts the rings of this process, if the environment names a file for the counters. A forked
/// child calls this function again, with its own process id.
pub fn count_for(process: u32) {
    // SAFETY: the stored pointer is null, or points to the mapping, which is never unmapped.
    let known = unsafe { FILE.load(Ordering::Acquire).as_ref() };
    if let Some(statistics) = known {
        return usring_engine::set_statistics(statistics, process);
    }
    let Some(path) = environment::statistics() else { return };
    match open(path) {
        Ok(statistics) => {
            statistics.header.processes.fetch_add(1, Ordering::Relaxed);
            FILE.store(&raw const *statistics as *mut Statistics, Ordering::Release);
            usring_engine::set_statistics(statistics, process);
        }
        // Under the launcher, a process may lack the rights to open the file of counters. Such a
        // process counts nothing.
        Err(_) if environment::is_strict() => {}
        Err(error) => message::say(format_args!(
            "nothing is counted: {} cannot be used for USRING_STATS ({error}){}",
            path.to_str().unwrap_or("its file"),
            if error == Errno::EEXIST { "; it is not a statistics file of this build: name another file" } else { "" }
        )),
    }
}

/// Opens and maps the file of the counters. If the file is empty, writes its header.
///
/// Errors: those of the system calls; `EEXIST` if the file has other contents.
fn open(path: &CStr) -> Result<&'static Statistics, Errno> {
    let creates = if environment::is_strict() { 0 } else { linux::O_CREAT };
    let flags = u64::from(linux::O_RDWR | linux::O_CLOEXEC | creates);
    let arguments = [width::word(linux::AT_FDCWD), path.as_ptr() as u64, flags, 0o600, 0];
    let opened = OwnedDescriptor::from_raw(width::int(SystemCall::new(linux::__NR_openat, arguments).run()?));
    let number = opened.number();
    let size = statistics::SIZE as u64;
    match file::measure(number)?.size {
        0 => file::resize(number, size)?,
        found if found != size => return Err(Errno::EEXIST),
        _ => {}
    }
    let protection = u64::from(linux::PROT_READ | linux::PROT_WRITE);
    let flags = u64::from(linux::MAP_SHARED | linux::MAP_DENYWRITE);
    let address = SystemCall::with_six(linux::__NR_mmap, [0, size, protection, flags, width::word(number), 0]).run()?;
    // SAFETY: 1. The mapping is as long as the structure, page-aligned, and never unmapped. 2. The
    // structure consists of atomics, for which any bytes are valid.
    let statistics = unsafe { &*(address as *const Statistics) };
    // A new file is all zeroes. If two processes write its header at the same time, both write
    // equal words.
    if statistics.is_empty() {
        statistics.fill_header();
    }
    if statistics.is_valid() { Ok(statistics) } else { Err(Errno::EEXIST) }
}
