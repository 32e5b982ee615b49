//! Records the calls on open files, and passes those that change names to the module `names`.

use crate::format::{DATA_ONLY, DROPPED, FAILED, Kind, Record, SYNCHRONOUS};
use crate::log::{append, lock, note_unknown};
use crate::names;
use crate::paths::{self, File};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::call_hook::{CallHook, Make};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, SystemCall, UserAddress, descriptor, file, syscall, user_memory, width};
use usring_uapi::general as linux;

/// The calls that the filter has to trap.
pub const TRAPPED: [u32; 35] = [
    linux::__NR_write,
    linux::__NR_pwrite64,
    linux::__NR_writev,
    linux::__NR_pwritev,
    linux::__NR_pwritev2,
    linux::__NR_fsync,
    linux::__NR_fdatasync,
    linux::__NR_sync,
    linux::__NR_syncfs,
    linux::__NR_truncate,
    linux::__NR_ftruncate,
    linux::__NR_fallocate,
    linux::__NR_sendfile,
    linux::__NR_splice,
    linux::__NR_copy_file_range,
    linux::__NR_ioctl,
    linux::__NR_mmap,
    linux::__NR_open,
    linux::__NR_openat,
    linux::__NR_openat2,
    linux::__NR_creat,
    linux::__NR_rename,
    linux::__NR_renameat,
    linux::__NR_renameat2,
    linux::__NR_link,
    linux::__NR_linkat,
    linux::__NR_unlink,
    linux::__NR_unlinkat,
    linux::__NR_rmdir,
    linux::__NR_mkdir,
    linux::__NR_mkdirat,
    linux::__NR_symlink,
    linux::__NR_symlinkat,
    linux::__NR_mknod,
    linux::__NR_mknodat,
];

/// `ioctl` requests by which the kernel copies a file's content.
const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;

/// RWF_* flag of a write that ignores O_APPEND, from linux/fs.h.
const RWF_NOAPPEND: u32 = 0x20;

/// The hook that sees the calls which usring makes.
pub static HOOK: CallHook = CallHook { during };

/// Returns whether the recorder must make this call for the program. A write to the command's
/// standard output is only recorded here: the result is `false`, so that the program's thread makes
/// the call itself.
pub fn concerns(call: &SystemCall) -> bool {
    let [first, second, third, fourth, ..] = call.arguments;
    match call.number {
        linux::__NR_write | linux::__NR_writev => match paths::stat(width::int(first)) {
            Ok(stat) if stat.is(linux::S_IFREG) => true,
            Ok(stat) if paths::is_output(&stat) => {
                output(call);
                false
            }
            _ => false,
        },
        // A ring is not below the recorded folder. So for a ring's descriptor the answer is
        // `false`, and the library serves that mmap(2) as usual.
        linux::__NR_mmap => {
            let shares = width::low(fourth) & linux::MAP_SHARED != 0 && width::low(third) & linux::PROT_WRITE != 0;
            shares && paths::file(width::int(call.arguments[4])).is_some()
        }
        linux::__NR_ioctl => matches!(width::low(second), FICLONE | FICLONERANGE),
        linux::__NR_open | linux::__NR_openat | linux::__NR_openat2 | linux::__NR_creat => names::may_change(call),
        // A call that writes to another kind of file may wait, and a signal must be able to
        // interrupt that wait. So the program's thread makes such a call.
        linux::__NR_sendfile => is_regular(first),
        linux::__NR_splice | linux::__NR_copy_file_range => is_regular(third),
        _ => true,
    }
}

fn is_regular(number: u64) -> bool {
    paths::stat(width::int(number)).is_ok_and(|stat| stat.is(linux::S_IFREG))
}

/// Makes a call. Records the call if it changes something below the recorded folder.
fn during(call: &SystemCall, make: Make<'_>) -> u64 {
    let [first, second, ..] = call.arguments;
    match call.number {
        linux::__NR_write | linux::__NR_pwrite64 | linux::__NR_writev | linux::__NR_pwritev | linux::__NR_pwritev2 => {
            write(call, make)
        }
        linux::__NR_fsync | linux::__NR_fdatasync | linux::__NR_sync | linux::__NR_syncfs => sync(call, 0, make),
        linux::__NR_truncate => names::truncate(call, make),
        linux::__NR_ftruncate => on_file(call, first, make, |file, _| {
            append(&Record { size: second, ..of_file(Kind::Resize, file, call) }, &[])
        }),
        linux::__NR_fallocate => on_file(call, first, make, |file, _| allocated(call, file)),
        linux::__NR_mmap => on_file(call, call.arguments[4], make, |file, _| {
            note_unknown(b"a process writes to a file by a shared mapping (mmap)", &file.path)
        }),
        linux::__NR_sendfile => copy(call, first, make),
        linux::__NR_splice | linux::__NR_copy_file_range => copy(call, call.arguments[2], make),
        linux::__NR_ioctl if matches!(width::low(second), FICLONE | FICLONERANGE) => copy(call, first, make),
        linux::__NR_open | linux::__NR_openat | linux::__NR_openat2 | linux::__NR_creat => names::open(call, make),
        _ => names::during(call, make),
    }
}

impl<'a> Record<'a> {
    /// Returns the record with the call's number.
    pub(crate) fn encoded_for(self, call: &SystemCall) -> Record<'a> {
        Record { call: width::short(call.number.into()), ..self }
    }
}

/// Returns a record of this kind about `file`. The caller adds the numbers that the kind needs.
fn of_file<'a>(kind: Kind, file: &'a File, call: &SystemCall) -> Record<'a> {
    Record { node: file.stat.inode, path: &file.path, ..Record::new(kind) }.encoded_for(call)
}

/// Makes the call on the file with the descriptor `number`. If the file is below the recorded
/// folder, holds the log's lock during the call. If the call then succeeds, calls `record`, which
/// records the call.
fn on_file(call: &SystemCall, number: u64, make: Make<'_>, record: impl FnOnce(&File, u64)) -> u64 {
    let Some(file) = paths::file(width::int(number)) else { return make(call) };
    let _locked = lock();
    let answer = make(call);
    if let Ok(value) = syscall::check(answer) {
        record(&file, value);
    }
    answer
}

/// Returns the memory that a write names. If the array of vectors cannot be read, returns no
/// memory, because the kernel then refuses the call.
fn members(call: &SystemCall) -> Vec<IoVector> {
    let [_, base, length, ..] = call.arguments;
    match call.number {
        linux::__NR_write | linux::__NR_pwrite64 => Vec::from([IoVector { base, length }]),
        _ => user_memory::read_array(UserAddress(base), length.min(1024) as usize).unwrap_or_default(),
    }
}

/// Shortens the vectors to `bytes` bytes in all.
fn clip(members: &mut Vec<IoVector>, mut bytes: u64) {
    for member in members.iter_mut() {
        member.length = member.length.min(bytes);
        bytes -= member.length;
    }
    members.retain(|member| member.length != 0);
}

fn write(call: &SystemCall, make: Make<'_>) -> u64 {
    let number = width::int(call.arguments[0]);
    if paths::stat(number).is_ok_and(|stat| paths::is_output(&stat)) {
        output(call);
        return make(call);
    }
    on_file(call, width::word(number), make, |file, written| {
        if written == 0 {
            return;
        }
        let status = descriptor::status_flags(number).unwrap_or(0);
        let mut data = members(call);
        clip(&mut data, written);
        let record = Record {
            offset: offset_of(call, status, written),
            flags: if is_synchronous(call, status) { SYNCHRONOUS } else { 0 },
            ..of_file(Kind::Write, file, call)
        };
        append(&record, &data);
    })
}

/// Returns the `RWF_*` flags of a write.
fn write_flags(call: &SystemCall) -> u32 {
    if call.number == linux::__NR_pwritev2 { width::low(call.arguments[5]) } else { 0 }
}

fn is_synchronous(call: &SystemCall, status: u32) -> bool {
    status & linux::O_DSYNC != 0 || write_flags(call) & (linux::RWF_DSYNC | linux::RWF_SYNC) != 0
}

/// Returns the file offset at which a write has put its bytes. The caller has held the log's lock
/// since before the write, so no other recorded write came in between.
fn offset_of(call: &SystemCall, status: u32, written: u64) -> u64 {
    let number = width::int(call.arguments[0]);
    let flags = write_flags(call);
    let is_at_position = match call.number {
        linux::__NR_write | linux::__NR_writev => true,
        linux::__NR_pwritev2 => call.arguments[3] == u64::MAX,
        _ => false,
    };
    let appends = (status & linux::O_APPEND != 0 || flags & linux::RWF_APPEND != 0) && flags & RWF_NOAPPEND == 0;
    let end = match (appends, is_at_position) {
        (true, _) => paths::stat(number).map_or(0, |stat| stat.size),
        (false, true) => file::position(number).unwrap_or(0),
        (false, false) => return call.arguments[3],
    };
    end.saturating_sub(written)
}

fn output(call: &SystemCall) {
    let data = members(call);
    append(&Record::new(Kind::Output).encoded_for(call), &data);
}

/// Number of syncs of this process so far.
static SYNCS: AtomicU64 = AtomicU64::new(0);

/// Makes a sync. Records the sync's beginning and end, unless the sync concerns only a file outside
/// the recorded folder. If the sync fails, the record of its end gets the flag [`FAILED`] and the
/// flags `when_failed`.
fn sync(call: &SystemCall, when_failed: u32, make: Make<'_>) -> u64 {
    let is_of_file = matches!(call.number, linux::__NR_fsync | linux::__NR_fdatasync);
    let file = if call.number == linux::__NR_sync { None } else { paths::file(width::int(call.arguments[0])) };
    if call.number != linux::__NR_sync && file.is_none() {
        return make(call);
    }
    let id = SYNCS.fetch_add(1, Ordering::Relaxed) + 1;
    let begin = Record {
        id,
        node: file.as_ref().filter(|_| is_of_file).map_or(0, |file| file.stat.inode),
        flags: if call.number == linux::__NR_fdatasync { DATA_ONLY } else { 0 },
        path: file.as_ref().map_or(b"", |file| &file.path),
        ..Record::new(Kind::SyncBegin)
    };
    append(&begin.encoded_for(call), &[]);
    let answer = make(call);
    let flags = if syscall::check(answer).is_ok() { 0 } else { FAILED | when_failed };
    append(&Record { id, flags, ..Record::new(Kind::SyncEnd) }, &[]);
    answer
}

/// Records a sync that an injected fault answers with an error, so that the sync is not made. Does
/// nothing for any other call. A sync that fails may lose the data that it should have written. If
/// `drops` is set, the sync certainly loses these data.
pub fn note_failure(call: &SystemCall, drops: bool) {
    if matches!(call.number, linux::__NR_fsync | linux::__NR_fdatasync | linux::__NR_sync | linux::__NR_syncfs) {
        let io_error = Errno::EIO.negative();
        sync(call, if drops { DROPPED } else { 0 }, &|_| i64::from(io_error).cast_unsigned());
    }
}

// fallocate(2)'s modes, from linux/falloc.h.
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;
const UNSHARE_RANGE: u32 = 0x40;

fn allocated(call: &SystemCall, file: &File) {
    let [_, mode, offset, length, ..] = call.arguments;
    let mode = width::low(mode);
    if mode & !(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE | UNSHARE_RANGE) != 0 {
        return note_unknown(b"fallocate(2) moved the bytes of a file", &file.path);
    }
    if mode & KEEP_SIZE == 0 {
        append(&Record { size: offset + length, ..of_file(Kind::Grow, file, call) }, &[]);
    }
    if mode & (PUNCH_HOLE | ZERO_RANGE) != 0 {
        append(&Record { offset, size: length, ..of_file(Kind::Clear, file, call) }, &[]);
    }
}

/// Bytes of a copied file that are read back at a time.
const PIECE: u64 = 1 << 20;

/// Makes and records a call by which the kernel itself copies data to a file. For the record, reads
/// back the bytes that the call has written; for FICLONE and FICLONERANGE, the whole file.
fn copy(call: &SystemCall, target: u64, make: Make<'_>) -> u64 {
    on_file(call, target, make, |file, copied| {
        let number = width::int(target);
        let size = paths::stat(number).map_or(0, |stat| stat.size);
        let offset = match call.number {
            linux::__NR_sendfile => file::position(number).map(|end| end.saturating_sub(copied)),
            linux::__NR_ioctl => Ok(0),
            _ if call.arguments[3] != 0 => {
                // The call has moved the file offset at this address to the end of the copied
                // bytes.
                user_memory::read::<u64>(UserAddress(call.arguments[3])).map(|end| end.saturating_sub(copied))
            }
            _ => file::position(number).map(|end| end.saturating_sub(copied)),
        };
        let length = if call.number == linux::__NR_ioctl { size } else { copied };
        let read = offset.ok().and_then(|offset| read_back(call, file, number, offset, length));
        if read.is_none() {
            note_unknown(b"bytes that the kernel copied to a file could not be read back", &file.path);
        }
    })
}

fn read_back(call: &SystemCall, file: &File, number: i32, offset: u64, length: u64) -> Option<()> {
    let reader = if length == 0 { return Some(()) } else { paths::reopen(number)? };
    let mut buffer = alloc::vec![0u8; length.min(PIECE) as usize];
    let mut done = 0;
    while done < length {
        let wanted = (length - done).min(PIECE);
        let at = [width::word(reader.number()), buffer.as_mut_ptr() as u64, wanted, offset + done, 0];
        let count = SystemCall::new(linux::__NR_pread64, at).run_unhooked().ok().filter(|count| *count != 0)?;
        let record = Record { offset: offset + done, ..of_file(Kind::Write, file, call) };
        append(&record, &[IoVector { base: buffer.as_ptr() as u64, length: count }]);
        done += count;
    }
    Some(())
}
