//! The log's records as this process appends them, and the lock that all recording processes share.
//!
//! The lock consists of two locks. A thread first takes a mutex of the process, and then a lock of
//! the log's open file description (F_OFD_SETLKW). The kernel releases the lock of the open file
//! description when a process dies.

use crate::format::{Kind, Page, Record};
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::per_process::PerProcess;
use usring_sys::plain::IoVector;
use usring_sys::set_once::SetOnce;
use usring_sys::unusual::{self, Unusual};
use usring_sys::{Errno, SystemCall, call_hook, file, mapping, signals, width};
use usring_uapi::general as linux;

/// The part of the log's first page that does not change, and the log's path.
pub(crate) struct Settings {
    log: CString,
    pub folder: Vec<u8>,
    pub output_device: u64,
    pub output_inode: u64,
}

struct Log {
    file: Option<OwnedDescriptor>,
    page: &'static [AtomicU64],
    process: u32,
    lock: Mutex<()>,
}

static SETTINGS: SetOnce<Settings> = SetOnce::new();
/// The word of the log's first page that says whether a record was lost ([`Page::Lost`]), as mapped
/// by the process that called [`start`]. Children inherit the mapping.
static WORDS: SetOnce<[AtomicU64; 1]> = SetOnce::new();
static LOG: PerProcess<Log> = PerProcess::new();

/// Returns whether this process records.
#[inline]
pub fn is_on() -> bool {
    unusual::has(Unusual::Recording)
}

/// Begins to record, in the log at this path. Called once, by a process with one thread.
pub fn start(path: &CStr) -> Result<(), Errno> {
    let page = mapping::shared_words(&file::open_shared(path)?)?;
    let word = |index: Page| page[index as usize].load(Ordering::Relaxed);
    let bytes = page[Page::Folder as usize..].iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
    let settings = Settings {
        log: path.to_owned(),
        folder: bytes.take(width::size(word(Page::FolderLength))).collect(),
        output_device: word(Page::OutputDevice),
        output_inode: word(Page::OutputInode),
    };
    SETTINGS.set(Box::leak(Box::new(settings)));
    page.first_chunk().into_iter().for_each(|first| WORDS.set(first));
    if log().file.is_none() {
        return Err(Errno::EBADF);
    }
    call_hook::set(&crate::calls::HOOK);
    unusual::set(Unusual::Recording);
    Ok(())
}

pub(crate) fn settings() -> Option<&'static Settings> {
    SETTINGS.get()
}

fn log() -> &'static Log {
    LOG.get_or_make(|| Log {
        file: open().ok(),
        page: WORDS.get().map_or(&[], |words| words),
        process: width::low(SystemCall::new(linux::__NR_getpid, [0; 5]).run_unhooked().unwrap_or(0)),
        lock: Mutex::new(()),
    })
}

/// Opens the log. The lock (F_OFD_SETLKW) belongs to an open file description, and each process
/// needs its own. So each process opens the log anew.
fn open() -> Result<OwnedDescriptor, Errno> {
    let path = settings().ok_or(Errno::EBADF)?.log.as_ptr() as u64;
    let flags = u64::from(linux::O_WRONLY | linux::O_APPEND | linux::O_CLOEXEC);
    let number =
        SystemCall::new(linux::__NR_openat, [width::word(linux::AT_FDCWD), path, flags, 0, 0]).run_unhooked()?;
    OwnedDescriptor::from_raw(width::int(number)).into_private()
}

/// The lock around a change and its record.
pub(crate) struct Locked {
    _mutex: Guard<'static, ()>,
}

pub(crate) fn lock() -> Locked {
    let log = log();
    let mutex = log.lock.lock();
    let taken = log.file.as_ref().map(|file| file::lock_first_byte(file.number()));
    if taken != Some(Ok(())) {
        note_lost(log);
    }
    Locked { _mutex: mutex }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = log().file.as_ref().map(|file| file::unlock_first_byte(file.number()));
    }
}

/// Notes that a record is missing or out of order.
fn note_lost(log: &Log) {
    log.page.iter().take(1).for_each(|lost| lost.store(1, Ordering::Relaxed));
}

/// Maximum number of vectors of data in one writev(2), without the vector for the header.
const MOST_MEMBERS: usize = linux::UIO_MAXIOV as usize - 1;

/// Appends a record with its data, which lies in the program's memory.
pub(crate) fn append(record: &Record<'_>, data: &[IoVector]) {
    let log = log();
    let length: u64 = data.iter().map(|member| member.length).sum();
    let thread = signals::thread_id();
    let head = Record { process: log.process, thread, data_length: length, ..record.clone() }.encode();
    let mut members = Vec::with_capacity(data.len() + 1);
    members.push(IoVector { base: head.as_ptr() as u64, length: head.len() as u64 });
    members.extend_from_slice(&data[..data.len().min(MOST_MEMBERS)]);
    let number = log.file.as_ref().map_or(-1, OwnedDescriptor::number);
    let arguments = [width::word(number), members.as_ptr() as u64, members.len() as u64, 0, 0];
    let written = SystemCall::new(linux::__NR_writev, arguments).run_unhooked();
    if written != Ok(head.len() as u64 + length) {
        note_lost(log);
    }
}

/// Records that the log lacks changes, and the reason. `path`: the file that the reason concerns,
/// relative to the recorded folder; or the path of a program.
pub fn note_unknown(reason: &[u8], path: &[u8]) {
    if is_on() {
        append(&Record { path: reason, second_path: path, ..Record::new(Kind::Unknown) }, &[]);
    }
}
