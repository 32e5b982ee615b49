//! Records the calls that change names: open(2) with O_CREAT or O_TRUNC, rename(2), link(2),
//! unlink(2), mkdir(2) and their variants.

use crate::format::{Kind, Record};
use crate::log::{append, lock, note_unknown};
use crate::paths::{self, DirectoryEntry, Stat};
use usring_sys::call_hook::Make;
use usring_sys::{SystemCall, UserAddress, descriptor, syscall, user_memory, width};
use usring_uapi::general as linux;

const HERE: u64 = width::word(linux::AT_FDCWD);

/// Makes a call that may change names of files, and records the change.
pub(crate) fn during(call: &SystemCall, make: Make<'_>) -> u64 {
    let [a, b, c, d, e, _] = call.arguments;
    match call.number {
        linux::__NR_rename => rename(call, make, [HERE, a, HERE, b], 0),
        linux::__NR_renameat => rename(call, make, [a, b, c, d], 0),
        linux::__NR_renameat2 => rename(call, make, [a, b, c, d], width::low(e)),
        linux::__NR_link => link(call, make, [HERE, a, HERE, b]),
        linux::__NR_linkat => link(call, make, [a, b, c, d]),
        linux::__NR_unlink | linux::__NR_rmdir => remove(call, make, HERE, a),
        linux::__NR_unlinkat => remove(call, make, a, b),
        linux::__NR_mkdir => create(call, make, HERE, a),
        linux::__NR_mkdirat => create(call, make, a, b),
        linux::__NR_mknod => create(call, make, HERE, a),
        linux::__NR_mknodat => create(call, make, a, b),
        linux::__NR_symlink => create(call, make, HERE, b),
        linux::__NR_symlinkat => create(call, make, b, c),
        _ => make(call),
    }
}

/// Records a new inode under its name.
fn created(call: &SystemCall, entry: &DirectoryEntry, stat: &Stat) {
    let target = if stat.is(linux::S_IFLNK) { entry.target() } else { None };
    let record = Record {
        node: stat.inode,
        folder: entry.folder_inode,
        size: stat.mode.into(),
        path: &entry.path,
        second_path: target.as_deref().unwrap_or_default(),
        ..Record::new(Kind::Create)
    };
    append(&record.encoded_for(call), &[]);
}

fn create(call: &SystemCall, make: Make<'_>, folder: u64, path: u64) -> u64 {
    let Some(entry) = DirectoryEntry::of(width::int(folder), path) else { return make(call) };
    let _locked = lock();
    let answer = make(call);
    if syscall::check(answer).is_ok()
        && let Some(stat) = entry.stat(false).filter(Stat::is_known)
    {
        created(call, &entry, &stat);
    }
    answer
}

fn remove(call: &SystemCall, make: Make<'_>, folder: u64, path: u64) -> u64 {
    let Some(entry) = DirectoryEntry::of(width::int(folder), path) else { return make(call) };
    let _locked = lock();
    let stat = entry.stat(false).filter(Stat::is_known);
    let answer = make(call);
    if syscall::check(answer).is_ok()
        && let Some(stat) = stat
    {
        let removed =
            Record { node: stat.inode, folder: entry.folder_inode, path: &entry.path, ..Record::new(Kind::Remove) };
        append(&removed.encoded_for(call), &[]);
    }
    answer
}

fn link(call: &SystemCall, make: Make<'_>, [from, old, to, new]: [u64; 4]) -> u64 {
    let Some(entry) = DirectoryEntry::of(width::int(to), new) else { return make(call) };
    let source = DirectoryEntry::of(width::int(from), old);
    let _locked = lock();
    let answer = make(call);
    if syscall::check(answer).is_ok()
        && let Some(stat) = entry.stat(false).filter(Stat::is_known)
    {
        let record = Record {
            node: stat.inode,
            folder: entry.folder_inode,
            path: source.as_ref().map_or(b"", |source| &source.path),
            second_path: &entry.path,
            ..Record::new(Kind::Link)
        };
        append(&record.encoded_for(call), &[]);
    }
    answer
}

/// renameat2(2)'s flag by which two names are exchanged.
const EXCHANGE: u32 = 2;

fn rename(call: &SystemCall, make: Make<'_>, [from, old, to, new]: [u64; 4], flags: u32) -> u64 {
    let (old, new) = (DirectoryEntry::of(width::int(from), old), DirectoryEntry::of(width::int(to), new));
    if old.is_none() && new.is_none() {
        return make(call);
    }
    let _locked = lock();
    let stat =
        |entry: &Option<DirectoryEntry>| entry.as_ref().and_then(|entry| entry.stat(false)).filter(Stat::is_known);
    let (source, target) = (stat(&old), stat(&new));
    let answer = make(call);
    if syscall::check(answer).is_err() {
        return answer;
    }
    let (Some(old), Some(new)) = (&old, &new) else {
        let inside = old.as_ref().or(new.as_ref()).map_or(&b""[..], |entry| &entry.path);
        note_unknown(b"a rename moves a file into the folder or out of it", inside);
        return answer;
    };
    let (Some(source), true) = (source, source.map(|it| it.inode) != target.map(|it| it.inode)) else {
        // There is nothing to record, for one of two reasons. Either the recorder does not record
        // files of this kind, or both names lead to one inode, and rename(2) did nothing.
        return answer;
    };
    let record = Record {
        node: source.inode,
        folder: old.folder_inode,
        second_folder: new.folder_inode,
        size: target.map_or(0, |target| target.inode),
        path: &old.path,
        second_path: &new.path,
        ..Record::new(if flags & EXCHANGE != 0 { Kind::Exchange } else { Kind::Rename })
    };
    append(&record.encoded_for(call), &[]);
    answer
}

/// Records truncate(2).
pub(crate) fn truncate(call: &SystemCall, make: Make<'_>) -> u64 {
    let [path, size, ..] = call.arguments;
    let Some(entry) = DirectoryEntry::of(linux::AT_FDCWD, path) else { return make(call) };
    let _locked = lock();
    let answer = make(call);
    if syscall::check(answer).is_ok()
        && let Some(stat) = entry.stat(true)
    {
        let record = Record { node: stat.inode, size, path: &entry.path, ..Record::new(Kind::Resize) };
        append(&record.encoded_for(call), &[]);
    }
    answer
}

/// Bit of O_TMPFILE that O_DIRECTORY does not have.
const UNNAMED: u32 = linux::O_TMPFILE & !linux::O_DIRECTORY;

/// Returns the folder's descriptor, the path and the flags of open(2) or a variant.
fn arguments_of_open(call: &SystemCall) -> (u64, u64, u32) {
    let [first, second, third, ..] = call.arguments;
    match call.number {
        linux::__NR_open => (HERE, first, width::low(second)),
        linux::__NR_creat => (HERE, first, linux::O_CREAT | linux::O_TRUNC),
        linux::__NR_openat => (first, second, width::low(third)),
        _ => (first, second, width::low(user_memory::read::<u64>(UserAddress(third)).unwrap_or(0))),
    }
}

/// Returns whether open(2) or a variant may create or truncate a file.
pub(crate) fn may_change(call: &SystemCall) -> bool {
    let (_, _, flags) = arguments_of_open(call);
    flags & (linux::O_CREAT | linux::O_TRUNC | UNNAMED) != 0
}

/// Records open(2) and its variants.
pub(crate) fn open(call: &SystemCall, make: Make<'_>) -> u64 {
    if !may_change(call) {
        return make(call);
    }
    let (folder, path, flags) = arguments_of_open(call);
    if flags & UNNAMED != 0 {
        return open_unnamed(call, make);
    }
    let Some(entry) = DirectoryEntry::of(width::int(folder), path) else { return make(call) };
    let before = entry.stat(true);
    if before.is_some_and(|stat| !stat.is(linux::S_IFREG)) {
        // An open of a FIFO may wait until another process opens the FIFO. That process may need
        // the log's lock meanwhile, so this process must not hold the lock during the open.
        return make(call);
    }
    let _locked = lock();
    let before = entry.stat(true);
    let answer = make(call);
    let Ok(number) = syscall::check(answer) else { return answer };
    let Some(file) = paths::file(width::int(number)) else { return answer };
    match before {
        None if entry.stat(false).is_some_and(|stat| stat.inode == file.stat.inode) => {
            created(call, &entry, &file.stat);
        }
        None => note_unknown(b"a file was created through a symbolic link", &file.path),
        Some(before) if flags & linux::O_TRUNC != 0 && before.size != 0 => {
            let record = Record { node: file.stat.inode, path: &file.path, ..Record::new(Kind::Resize) };
            append(&record.encoded_for(call), &[]);
        }
        Some(_) => {}
    }
    answer
}

/// Makes an open with O_TMPFILE, and records the new file, which has no name.
fn open_unnamed(call: &SystemCall, make: Make<'_>) -> u64 {
    let _locked = lock();
    let answer = make(call);
    if let Ok(number) = syscall::check(answer)
        && descriptor::status_flags(width::int(number)).is_ok()
        && let Some(file) = paths::file(width::int(number))
    {
        let record = Record {
            node: file.stat.inode,
            size: file.stat.mode.into(),
            path: &file.path,
            ..Record::new(Kind::CreateUnnamed)
        };
        append(&record.encoded_for(call), &[]);
    }
    answer
}
