//! The plain system calls that can get a fault: their names, classes, and arguments.
//!
//! The dynamic loader makes some calls (mmap, fstat, access, …) before the library is loaded. The
//! table has such a call only if the seccomp filter can tell the loader's calls from the program's.

use usring_uapi::general as linux;

/// A file's name is an argument (strace's `%file`).
pub const FILE: u8 = 1 << 0;
/// Class of the calls that take a descriptor or return one (strace's `%desc`).
pub const DESC: u8 = 1 << 1;
/// Sockets (strace's `%net`).
pub const NET: u8 = 1 << 2;
/// Makes data durable.
pub const SYNC: u8 = 1 << 3;
/// Transfers data.
pub const RW: u8 = 1 << 4;

/// The arguments, by their indices, that describe the memory which a call transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    Nothing,
    /// One piece: address and length.
    Bytes {
        address: Option<u8>,
        length: u8,
    },
    /// An iovec array: its address and its number of vectors.
    Vector {
        address: u8,
        count: u8,
    },
}

/// A plain system call.
#[derive(Debug)]
pub struct PlainCall {
    pub name: &'static str,
    pub number: u32,
    pub classes: u8,
    /// Index of the call's argument that is the descriptor of its file.
    pub descriptor: Option<u8>,
    /// For each argument that is a file name: the index of the argument with its folder's
    /// descriptor, if there is one, and the index of the name itself.
    pub paths: &'static [(Option<u8>, u8)],
    pub moves: Moves,
    /// The transfer goes into the program's memory.
    pub reads: bool,
}

const fn call(name: &'static str, number: u32, classes: u8) -> PlainCall {
    let moves = Moves::Nothing;
    PlainCall { name, number, classes, descriptor: None, paths: &[], moves, reads: false }
}

/// Describes a call whose first argument is the descriptor of a file.
const fn on_file(name: &'static str, number: u32, classes: u8) -> PlainCall {
    let classes = classes | DESC;
    PlainCall { descriptor: Some(0), ..call(name, number, classes) }
}

const fn on_paths(name: &'static str, number: u32, classes: u8, paths: &'static [(Option<u8>, u8)]) -> PlainCall {
    PlainCall { paths, ..call(name, number, classes | FILE) }
}

const fn transfer(name: &'static str, number: u32, reads: bool) -> PlainCall {
    let moves = Moves::Bytes { address: Some(1), length: 2 };
    PlainCall { moves, reads, ..on_file(name, number, RW) }
}

const fn vector(name: &'static str, number: u32, reads: bool) -> PlainCall {
    let moves = Moves::Vector { address: 1, count: 2 };
    PlainCall { moves, reads, ..on_file(name, number, RW) }
}

const fn between(name: &'static str, number: u32, classes: u8, length: u8) -> PlainCall {
    PlainCall { moves: Moves::Bytes { address: None, length }, ..on_file(name, number, classes) }
}

const fn message(name: &'static str, number: u32, reads: bool) -> PlainCall {
    PlainCall { reads, ..on_file(name, number, NET | RW) }
}

const FIRST: &[(Option<u8>, u8)] = &[(None, 0)];
const SECOND: &[(Option<u8>, u8)] = &[(Some(0), 1)];
const TWO: &[(Option<u8>, u8)] = &[(None, 0), (None, 1)];
const TWO_IN_FOLDERS: &[(Option<u8>, u8)] = &[(Some(0), 1), (Some(2), 3)];

/// All calls.
#[rustfmt::skip]
pub static CALLS: [PlainCall; 99] = [
    transfer("read", linux::__NR_read, true),
    transfer("write", linux::__NR_write, false),
    transfer("pread64", linux::__NR_pread64, true),
    transfer("pwrite64", linux::__NR_pwrite64, false),
    vector("readv", linux::__NR_readv, true),
    vector("writev", linux::__NR_writev, false),
    vector("preadv", linux::__NR_preadv, true),
    vector("pwritev", linux::__NR_pwritev, false),
    vector("preadv2", linux::__NR_preadv2, true),
    vector("pwritev2", linux::__NR_pwritev2, false),
    on_paths("open", linux::__NR_open, DESC, FIRST),
    on_paths("openat", linux::__NR_openat, DESC, SECOND),
    on_paths("openat2", linux::__NR_openat2, DESC, SECOND),
    on_paths("creat", linux::__NR_creat, DESC, FIRST),
    on_file("close", linux::__NR_close, 0),
    on_file("lseek", linux::__NR_lseek, 0),
    on_file("fsync", linux::__NR_fsync, SYNC),
    on_file("fdatasync", linux::__NR_fdatasync, SYNC),
    on_file("sync_file_range", linux::__NR_sync_file_range, SYNC),
    on_file("syncfs", linux::__NR_syncfs, SYNC),
    call("sync", linux::__NR_sync, SYNC),
    call("msync", linux::__NR_msync, SYNC),
    on_paths("truncate", linux::__NR_truncate, 0, FIRST),
    on_file("ftruncate", linux::__NR_ftruncate, 0),
    on_file("fallocate", linux::__NR_fallocate, 0),
    on_file("flock", linux::__NR_flock, 0),
    on_file("getdents64", linux::__NR_getdents64, 0),
    on_paths("rename", linux::__NR_rename, 0, TWO),
    on_paths("renameat", linux::__NR_renameat, DESC, TWO_IN_FOLDERS),
    on_paths("renameat2", linux::__NR_renameat2, DESC, TWO_IN_FOLDERS),
    on_paths("unlink", linux::__NR_unlink, 0, FIRST),
    on_paths("unlinkat", linux::__NR_unlinkat, DESC, SECOND),
    on_paths("link", linux::__NR_link, 0, TWO),
    on_paths("linkat", linux::__NR_linkat, DESC, TWO_IN_FOLDERS),
    on_paths("symlink", linux::__NR_symlink, 0, TWO),
    on_paths("symlinkat", linux::__NR_symlinkat, DESC, &[(None, 0), (Some(1), 2)]),
    on_paths("mkdir", linux::__NR_mkdir, 0, FIRST),
    on_paths("mkdirat", linux::__NR_mkdirat, DESC, SECOND),
    on_paths("rmdir", linux::__NR_rmdir, 0, FIRST),
    on_paths("mknod", linux::__NR_mknod, 0, FIRST),
    on_paths("mknodat", linux::__NR_mknodat, DESC, SECOND),
    on_paths("chdir", linux::__NR_chdir, 0, FIRST),
    on_file("fchdir", linux::__NR_fchdir, 0),
    on_paths("chmod", linux::__NR_chmod, 0, FIRST),
    on_file("fchmod", linux::__NR_fchmod, 0),
    on_paths("fchmodat", linux::__NR_fchmodat, DESC, SECOND),
    on_paths("chown", linux::__NR_chown, 0, FIRST),
    on_paths("lchown", linux::__NR_lchown, 0, FIRST),
    on_file("fchown", linux::__NR_fchown, 0),
    on_paths("fchownat", linux::__NR_fchownat, DESC, SECOND),
    on_paths("utimensat", linux::__NR_utimensat, DESC, SECOND),
    on_paths("statfs", linux::__NR_statfs, 0, FIRST),
    on_file("fstatfs", linux::__NR_fstatfs, 0),
    on_paths("setxattr", linux::__NR_setxattr, 0, FIRST),
    on_file("fsetxattr", linux::__NR_fsetxattr, 0),
    on_paths("getxattr", linux::__NR_getxattr, 0, FIRST),
    on_file("fgetxattr", linux::__NR_fgetxattr, 0),
    between("sendfile", linux::__NR_sendfile, RW | NET, 3),
    between("splice", linux::__NR_splice, RW, 4),
    between("tee", linux::__NR_tee, RW, 2),
    between("copy_file_range", linux::__NR_copy_file_range, RW, 4),
    call("socket", linux::__NR_socket, NET | DESC),
    call("socketpair", linux::__NR_socketpair, NET | DESC),
    on_file("connect", linux::__NR_connect, NET),
    on_file("accept", linux::__NR_accept, NET),
    on_file("accept4", linux::__NR_accept4, NET),
    on_file("bind", linux::__NR_bind, NET),
    on_file("listen", linux::__NR_listen, NET),
    PlainCall { classes: NET | RW | DESC, ..transfer("sendto", linux::__NR_sendto, false) },
    PlainCall { classes: NET | RW | DESC, ..transfer("recvfrom", linux::__NR_recvfrom, true) },
    message("sendmsg", linux::__NR_sendmsg, false),
    message("recvmsg", linux::__NR_recvmsg, true),
    message("sendmmsg", linux::__NR_sendmmsg, false),
    message("recvmmsg", linux::__NR_recvmmsg, true),
    on_file("shutdown", linux::__NR_shutdown, NET),
    on_file("getsockopt", linux::__NR_getsockopt, NET),
    on_file("setsockopt", linux::__NR_setsockopt, NET),
    on_file("getsockname", linux::__NR_getsockname, NET),
    on_file("getpeername", linux::__NR_getpeername, NET),
    call("poll", linux::__NR_poll, DESC),
    call("ppoll", linux::__NR_ppoll, DESC),
    call("select", linux::__NR_select, DESC),
    call("pselect6", linux::__NR_pselect6, DESC),
    on_file("epoll_wait", linux::__NR_epoll_wait, 0),
    on_file("epoll_pwait", linux::__NR_epoll_pwait, 0),
    on_file("epoll_pwait2", linux::__NR_epoll_pwait2, 0),
    call("pipe", linux::__NR_pipe, DESC),
    call("pipe2", linux::__NR_pipe2, DESC),
    call("eventfd2", linux::__NR_eventfd2, DESC),
    call("memfd_create", linux::__NR_memfd_create, DESC),
    call("nanosleep", linux::__NR_nanosleep, 0),
    call("clock_nanosleep", linux::__NR_clock_nanosleep, 0),
    call("io_setup", linux::__NR_io_setup, 0),
    call("io_submit", linux::__NR_io_submit, 0),
    call("io_getevents", linux::__NR_io_getevents, 0),
    call("io_destroy", linux::__NR_io_destroy, 0),
    call("io_uring_setup", linux::__NR_io_uring_setup, DESC),
    on_file("io_uring_enter", linux::__NR_io_uring_enter, 0),
    on_file("io_uring_register", linux::__NR_io_uring_register, 0),
];

/// Shorter names of calls, for rules.
const ALIASES: [(&str, &str); 5] = [
    ("setup", "io_uring_setup"),
    ("enter", "io_uring_enter"),
    ("register", "io_uring_register"),
    ("pread", "pread64"),
    ("pwrite", "pwrite64"),
];

/// Returns the call with this name.
pub fn by_name(name: &str) -> Option<&'static PlainCall> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
    CALLS.iter().find(|call| call.name == name)
}

/// Returns the call with this number.
pub fn by_number(number: u32) -> Option<&'static PlainCall> {
    CALLS.iter().find(|call| call.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_name_and_a_number_of_its_own() {
        for (index, call) in CALLS.iter().enumerate() {
            assert!(CALLS[..index].iter().all(|other| other.name != call.name && other.number != call.number));
            assert!(call.number < 512, "{}", call.name);
        }
    }

    #[test]
    fn short_names_mean_the_calls_of_io_uring() {
        assert_eq!(by_name("enter").unwrap().number, linux::__NR_io_uring_enter);
        assert_eq!(by_name("pread").unwrap().number, linux::__NR_pread64);
        assert!(by_name("mmap").is_none());
    }
}
