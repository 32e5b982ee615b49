//! The opcode table: one row per opcode. Only here is written what an opcode needs, and which
//! functions prepare, issue and work it. So PROBE reports from this table alone. A new opcode is a
//! row here and a file (or a few lines) in `op`.

use crate::op::{
    self, accept, attributes, cancel, connect, descriptor, epoll_ctl, epoll_wait, files_update, message_ring, nop,
    open_close, path, pipe, poll, provide_buffers, read_multishot, read_write, receive, send, send_receive, socket,
    splice, sync, timeout, uring_cmd, wait_id,
};
use crate::request::Request;
use crate::ring::LockedRing;
use crate::submission::issue::IssueOutcome;
use crate::waiting::workers::Blocking;
use usring_sys::Errno;
use usring_uapi::opcode::{self, COUNT};

/// Properties of an opcode.
#[doc(alias = "io_issue_def")]
pub(crate) struct Row {
    /// Checks the SQE and makes the family's operation from it; copies whatever the program may
    /// reuse once the call returns.
    pub prepare: fn(&mut LockedRing, &mut Request) -> Result<(), Errno>,
    /// Tries the request without blocking, under the ring's lock.
    pub issue: fn(&mut LockedRing, &mut Request) -> IssueOutcome,
    /// Carries the request out in a worker, and may block; returns the result.
    pub work: Option<fn(&mut Request, &Blocking) -> i32>,
    /// Completes a worker's result with what has to be done under the lock.
    pub finish: Option<fn(&mut LockedRing, &mut Request, i32) -> i32>,
    /// Works on the file in `fd`.
    pub needs_file: bool,
    /// Events to poll the file for when the request would block.
    pub poll_events: u32,
    /// May take a provided buffer.
    pub selects_buffer: bool,
    /// `ioprio` has a meaning.
    pub takes_ioprio: bool,
    /// Workers run it in order with others on the same regular file.
    pub hashes_regular_file: bool,
    /// A worker may have to wait for ever.
    pub waits_for_ever: bool,
    /// Takes something of the ring's, or resolves a number, when it is issued. So it is never left
    /// to a worker before.
    pub takes_of_ring: bool,
    /// The result depends on the issuing thread's rights: a thread with other rights leaves the
    /// request to a worker. (Requests that are never issued in place go to a worker anyway.)
    pub bears_rights: bool,
    /// A worker's error breaks no link, and is silent where success is to be silent, as on the
    /// kernel.
    pub breaks_no_chain: bool,
    /// May be submitted to a ring with IOPOLL.
    pub allowed_on_polled_ring: bool,
    pub supported: bool,
}

const UNSUPPORTED: Row = Row {
    prepare: |_, _| Err(Errno::EINVAL),
    issue: |_, _| IssueOutcome::done(Errno::EINVAL.negative()),
    work: None,
    finish: None,
    needs_file: false,
    poll_events: 0,
    selects_buffer: false,
    takes_ioprio: false,
    hashes_regular_file: false,
    waits_for_ever: false,
    takes_of_ring: false,
    bears_rights: false,
    breaks_no_chain: false,
    allowed_on_polled_ring: false,
    supported: false,
};

const PLAIN: Row = Row { supported: true, ..UNSUPPORTED };
const ON_FILE: Row = Row { needs_file: true, ..PLAIN };

/// An operation that is one system call, made by a worker because it may block.
const CALL: Row =
    Row { issue: |_, _| IssueOutcome::NeedsWorker, work: Some(op::call::work), breaks_no_chain: true, ..PLAIN };
const CALL_ON_FILE: Row = Row { needs_file: true, ..CALL };

const READ: Row = Row {
    allowed_on_polled_ring: true,
    prepare: read_write::prepare,
    issue: read_write::issue,
    work: Some(read_write::work),
    // Only this event marks the end of a datagram socket's data.
    poll_events: usring_sys::epoll::IN | usring_sys::epoll::PEER_HANG_UP,
    takes_ioprio: true,
    ..ON_FILE
};
const WRITE: Row = Row { poll_events: usring_sys::epoll::OUT, hashes_regular_file: true, ..READ };

const SEND: Row = Row {
    prepare: send_receive::prepare_send,
    issue: send::issue,
    work: Some(send::work),
    bears_rights: true,
    poll_events: usring_sys::epoll::OUT,
    takes_ioprio: true,
    ..ON_FILE
};
const RECEIVE: Row = Row {
    prepare: send_receive::prepare_receive,
    issue: receive::issue,
    poll_events: send_receive::RECEIVE_EVENTS,
    selects_buffer: true,
    takes_ioprio: true,
    ..ON_FILE
};

static TABLE: [Row; COUNT] = table();

const fn table() -> [Row; COUNT] {
    let mut rows = [const { UNSUPPORTED }; COUNT];
    transfers(&mut rows);
    files(&mut rows);
    waits(&mut rows);
    sockets(&mut rows);
    messages(&mut rows);
    rows
}

/// Opcodes that move bytes of a file, and those for their buffers.
const fn transfers(rows: &mut [Row; COUNT]) {
    rows[opcode::READ as usize] = Row { selects_buffer: true, ..READ };
    rows[opcode::READ_MULTISHOT as usize] = Row {
        prepare: read_multishot::prepare,
        issue: read_multishot::issue,
        work: None,
        selects_buffer: true,
        allowed_on_polled_ring: false,
        takes_ioprio: false,
        ..READ
    };
    rows[opcode::READV as usize] = Row { selects_buffer: true, ..READ };
    rows[opcode::READ_FIXED as usize] = Row { takes_of_ring: true, ..READ };
    rows[opcode::READV_FIXED as usize] = Row { takes_of_ring: true, ..READ };
    rows[opcode::WRITE as usize] = WRITE;
    rows[opcode::WRITEV as usize] = WRITE;
    rows[opcode::WRITE_FIXED as usize] = Row { takes_of_ring: true, ..WRITE };
    rows[opcode::WRITEV_FIXED as usize] = Row { takes_of_ring: true, ..WRITE };
    rows[opcode::SPLICE as usize] = SPLICE;
    rows[opcode::TEE as usize] = SPLICE;
    rows[opcode::URING_CMD as usize] = COMMAND;
    rows[opcode::FSYNC as usize] = Row { prepare: sync::prepare_fsync, ..CALL_ON_FILE };
    rows[opcode::SYNC_FILE_RANGE as usize] = Row { prepare: sync::prepare_sync_file_range, ..CALL_ON_FILE };
    rows[opcode::PROVIDE_BUFFERS as usize] = Row {
        allowed_on_polled_ring: true,
        prepare: provide_buffers::prepare_provide,
        issue: provide_buffers::issue_provide,
        ..PLAIN
    };
    rows[opcode::REMOVE_BUFFERS as usize] = Row {
        allowed_on_polled_ring: true,
        prepare: provide_buffers::prepare_remove,
        issue: provide_buffers::issue_remove,
        ..PLAIN
    };
}

/// Opcodes that make, name, change or describe files.
const fn files(rows: &mut [Row; COUNT]) {
    rows[opcode::FALLOCATE as usize] =
        Row { prepare: sync::prepare_fallocate, hashes_regular_file: true, ..CALL_ON_FILE };
    rows[opcode::FTRUNCATE as usize] =
        Row { prepare: sync::prepare_ftruncate, hashes_regular_file: true, ..CALL_ON_FILE };
    rows[opcode::FADVISE as usize] =
        Row { prepare: sync::prepare_fadvise, issue: sync::issue_fadvise, breaks_no_chain: false, ..CALL_ON_FILE };
    rows[opcode::MADVISE as usize] = Row { prepare: sync::prepare_madvise, ..CALL };
    rows[opcode::OPENAT as usize] =
        Row { prepare: open_close::prepare_openat, finish: Some(open_close::finish_open), ..OPEN };
    rows[opcode::OPENAT2 as usize] =
        Row { prepare: open_close::prepare_openat2, finish: Some(open_close::finish_open), ..OPEN };
    rows[opcode::CLOSE as usize] = Row { prepare: open_close::prepare_close, issue: open_close::issue_close, ..PLAIN };
    rows[opcode::STATX as usize] = Row { prepare: open_close::prepare_statx, ..CALL };
    rows[opcode::FILES_UPDATE as usize] =
        Row { allowed_on_polled_ring: true, prepare: files_update::prepare, issue: files_update::issue, ..PLAIN };
    rows[opcode::RENAMEAT as usize] = Row { prepare: path::prepare_rename, ..CALL };
    rows[opcode::UNLINKAT as usize] = Row { prepare: path::prepare_unlink, ..CALL };
    rows[opcode::MKDIRAT as usize] = Row { prepare: path::prepare_mkdir, ..CALL };
    rows[opcode::SYMLINKAT as usize] = Row { prepare: path::prepare_symlink, ..CALL };
    rows[opcode::LINKAT as usize] = Row { prepare: path::prepare_link, ..CALL };
    rows[opcode::SETXATTR as usize] = ATTRIBUTE;
    rows[opcode::GETXATTR as usize] = ATTRIBUTE;
    rows[opcode::FSETXATTR as usize] = Row { needs_file: true, ..ATTRIBUTE };
    rows[opcode::FGETXATTR as usize] = Row { needs_file: true, ..ATTRIBUTE };
    rows[opcode::PIPE as usize] = Row { prepare: pipe::prepare, issue: pipe::issue, ..PLAIN };
    rows[opcode::FIXED_FD_INSTALL as usize] =
        Row { prepare: descriptor::prepare_install, issue: descriptor::issue_install, ..ON_FILE };
}

/// Opcodes that send and receive on sockets.
const fn messages(rows: &mut [Row; COUNT]) {
    rows[opcode::SEND as usize] = Row { selects_buffer: true, ..SEND };
    rows[opcode::SENDMSG as usize] = SEND;
    rows[opcode::SEND_ZC as usize] = SEND;
    rows[opcode::SENDMSG_ZC as usize] = SEND;
    rows[opcode::RECV as usize] = RECEIVE;
    rows[opcode::RECVMSG as usize] = RECEIVE;
}

/// Opcodes that wait, end a wait, wake others, or do nothing.
const fn waits(rows: &mut [Row; COUNT]) {
    rows[opcode::NOP as usize] =
        Row { allowed_on_polled_ring: true, prepare: nop::prepare, issue: nop::issue, ..PLAIN };
    rows[opcode::POLL_ADD as usize] = Row { prepare: poll::prepare_add, issue: poll::issue_add, ..ON_FILE };
    rows[opcode::POLL_REMOVE as usize] = Row { prepare: poll::prepare_remove, issue: poll::issue_remove, ..PLAIN };
    rows[opcode::TIMEOUT as usize] = Row { prepare: timeout::prepare, issue: timeout::issue, ..PLAIN };
    rows[opcode::TIMEOUT_REMOVE as usize] =
        Row { prepare: timeout::prepare_remove, issue: timeout::issue_remove, ..PLAIN };
    rows[opcode::LINK_TIMEOUT as usize] = Row { prepare: timeout::prepare_link, issue: timeout::issue_link, ..PLAIN };
    rows[opcode::ASYNC_CANCEL as usize] = Row { prepare: cancel::prepare, issue: cancel::issue, ..PLAIN };
    rows[opcode::MSG_RING as usize] =
        Row { allowed_on_polled_ring: true, prepare: message_ring::prepare, issue: message_ring::issue, ..ON_FILE };
    rows[opcode::EPOLL_WAIT as usize] =
        Row { prepare: epoll_wait::prepare, issue: epoll_wait::issue, poll_events: usring_sys::epoll::IN, ..ON_FILE };
    rows[opcode::WAITID as usize] = Row {
        prepare: wait_id::prepare,
        issue: wait_id::issue,
        work: Some(wait_id::work),
        waits_for_ever: true,
        takes_of_ring: true,
        ..PLAIN
    };
    rows[opcode::EPOLL_CTL as usize] = Row { prepare: epoll_ctl::prepare, issue: epoll_ctl::issue, ..PLAIN };
}

/// Opcodes that make and connect sockets.
const fn sockets(rows: &mut [Row; COUNT]) {
    rows[opcode::SOCKET as usize] = Row {
        prepare: socket::prepare_socket,
        issue: socket::issue_socket,
        work: Some(socket::work_socket),
        finish: Some(socket::finish_socket),
        takes_of_ring: true,
        bears_rights: true,
        ..PLAIN
    };
    rows[opcode::BIND as usize] = Row {
        prepare: connect::prepare_bind,
        issue: connect::issue_bind,
        work: Some(connect::work_bind),
        takes_of_ring: true,
        bears_rights: true,
        ..ON_FILE
    };
    rows[opcode::LISTEN as usize] = Row {
        prepare: socket::prepare_listen,
        issue: socket::issue_listen,
        work: Some(socket::work_listen),
        takes_of_ring: true,
        bears_rights: true,
        ..ON_FILE
    };
    rows[opcode::SHUTDOWN as usize] =
        Row { prepare: socket::prepare_shutdown, issue: socket::issue_shutdown, ..ON_FILE };
    rows[opcode::CONNECT as usize] = CONNECT;
    rows[opcode::ACCEPT as usize] = ACCEPT;
}

const ATTRIBUTE: Row = Row { prepare: attributes::prepare, ..CALL };

const SPLICE: Row = Row {
    prepare: splice::prepare,
    issue: splice::issue,
    work: Some(splice::work),
    hashes_regular_file: true,
    takes_of_ring: true,
    ..ON_FILE
};

const COMMAND: Row = Row {
    prepare: uring_cmd::prepare,
    issue: uring_cmd::issue,
    work: Some(uring_cmd::work),
    bears_rights: true,
    selects_buffer: true,
    allowed_on_polled_ring: true,
    ..ON_FILE
};

const CONNECT: Row = Row {
    prepare: connect::prepare,
    issue: connect::issue,
    work: Some(connect::work),
    bears_rights: true,
    poll_events: usring_sys::epoll::OUT,
    ..ON_FILE
};

const ACCEPT: Row = Row {
    prepare: accept::prepare,
    issue: accept::issue,
    work: Some(accept::work),
    finish: Some(accept::finish),
    poll_events: usring_sys::epoll::IN,
    takes_ioprio: true,
    ..ON_FILE
};

const OPEN: Row = Row {
    issue: open_close::issue_open,
    work: Some(open_close::work_open),
    bears_rights: true,
    breaks_no_chain: false,
    ..CALL
};

/// Returns the row of a known opcode; for every other byte, the row that refuses.
#[inline]
pub(crate) fn row(opcode: u8) -> &'static Row {
    static REFUSE: Row = UNSUPPORTED;
    TABLE.get(usize::from(opcode)).unwrap_or(&REFUSE)
}

/// Returns whether every supported row can be carried out. An opcode that polls needs a file. An
/// opcode that finishes a worker's result, or may go to a worker for its rights, needs work for
/// one.
const fn is_sound(rows: &[Row; COUNT]) -> bool {
    let mut index = 0;
    while index < COUNT {
        let row = &rows[index];
        let polls_nothing = row.poll_events != 0 && !row.needs_file;
        let needs_work = row.finish.is_some() || row.bears_rights;
        if row.supported && (polls_nothing || needs_work && row.work.is_none()) {
            return false;
        }
        index += 1;
    }
    true
}

const _: () = assert!(is_sound(&table()));

/// Returns whether PROBE reports the opcode.
pub(crate) fn is_supported(opcode: u8) -> bool {
    row(opcode).supported
}
