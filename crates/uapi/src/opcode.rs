//! Values of the `opcode` byte of an SQE (`enum io_uring_op`).

pub const NOP: u8 = 0;
pub const READV: u8 = 1;
pub const WRITEV: u8 = 2;
pub const FSYNC: u8 = 3;
pub const READ_FIXED: u8 = 4;
pub const WRITE_FIXED: u8 = 5;
pub const POLL_ADD: u8 = 6;
pub const POLL_REMOVE: u8 = 7;
pub const SYNC_FILE_RANGE: u8 = 8;
pub const SENDMSG: u8 = 9;
pub const RECVMSG: u8 = 10;
pub const TIMEOUT: u8 = 11;
pub const TIMEOUT_REMOVE: u8 = 12;
pub const ACCEPT: u8 = 13;
pub const ASYNC_CANCEL: u8 = 14;
pub const LINK_TIMEOUT: u8 = 15;
pub const CONNECT: u8 = 16;
pub const FALLOCATE: u8 = 17;
pub const OPENAT: u8 = 18;
pub const CLOSE: u8 = 19;
pub const FILES_UPDATE: u8 = 20;
pub const STATX: u8 = 21;
pub const READ: u8 = 22;
pub const WRITE: u8 = 23;
pub const FADVISE: u8 = 24;
pub const MADVISE: u8 = 25;
pub const SEND: u8 = 26;
pub const RECV: u8 = 27;
pub const OPENAT2: u8 = 28;
pub const EPOLL_CTL: u8 = 29;
pub const SPLICE: u8 = 30;
pub const PROVIDE_BUFFERS: u8 = 31;
pub const REMOVE_BUFFERS: u8 = 32;
pub const TEE: u8 = 33;
pub const SHUTDOWN: u8 = 34;
pub const RENAMEAT: u8 = 35;
pub const UNLINKAT: u8 = 36;
pub const MKDIRAT: u8 = 37;
pub const SYMLINKAT: u8 = 38;
pub const LINKAT: u8 = 39;
pub const MSG_RING: u8 = 40;
pub const FSETXATTR: u8 = 41;
pub const SETXATTR: u8 = 42;
pub const FGETXATTR: u8 = 43;
pub const GETXATTR: u8 = 44;
pub const SOCKET: u8 = 45;
pub const URING_CMD: u8 = 46;
pub const SEND_ZC: u8 = 47;
pub const SENDMSG_ZC: u8 = 48;
pub const READ_MULTISHOT: u8 = 49;
pub const WAITID: u8 = 50;
pub const FUTEX_WAIT: u8 = 51;
pub const FUTEX_WAKE: u8 = 52;
pub const FUTEX_WAITV: u8 = 53;
pub const FIXED_FD_INSTALL: u8 = 54;
pub const FTRUNCATE: u8 = 55;
pub const BIND: u8 = 56;
pub const LISTEN: u8 = 57;
pub const RECV_ZC: u8 = 58;
pub const EPOLL_WAIT: u8 = 59;
pub const READV_FIXED: u8 = 60;
pub const WRITEV_FIXED: u8 = 61;
pub const PIPE: u8 = 62;

/// Number of opcodes of Linux 6.18, the newest known kernel. IORING_REGISTER_PROBE reports on each
/// of them.
pub const COUNT: usize = 63;

/// The kernel's names of the opcodes, in lower case, indexed by opcode.
pub const NAMES: [&str; COUNT] = [
    "nop",
    "readv",
    "writev",
    "fsync",
    "read_fixed",
    "write_fixed",
    "poll_add",
    "poll_remove",
    "sync_file_range",
    "sendmsg",
    "recvmsg",
    "timeout",
    "timeout_remove",
    "accept",
    "async_cancel",
    "link_timeout",
    "connect",
    "fallocate",
    "openat",
    "close",
    "files_update",
    "statx",
    "read",
    "write",
    "fadvise",
    "madvise",
    "send",
    "recv",
    "openat2",
    "epoll_ctl",
    "splice",
    "provide_buffers",
    "remove_buffers",
    "tee",
    "shutdown",
    "renameat",
    "unlinkat",
    "mkdirat",
    "symlinkat",
    "linkat",
    "msg_ring",
    "fsetxattr",
    "setxattr",
    "fgetxattr",
    "getxattr",
    "socket",
    "uring_cmd",
    "send_zc",
    "sendmsg_zc",
    "read_multishot",
    "waitid",
    "futex_wait",
    "futex_wake",
    "futex_waitv",
    "fixed_fd_install",
    "ftruncate",
    "bind",
    "listen",
    "recv_zc",
    "epoll_wait",
    "readv_fixed",
    "writev_fixed",
    "pipe",
];
