//! The opcode table: one row per opcode, in the order of the opcodes. Only the row says what the
//! opcode needs, and which functions prepare, issue and (in a worker) carry out its requests. PROBE
//! reports from this table. A new opcode is a row here, and a file or some lines in `op`.
//!
//! A property that a row does not set is absent.

use crate::op::{
    accept, attributes, call, cancel, connect, descriptor, epoll_ctl, epoll_wait, files_update, message_ring, nop,
    open_close, path, pipe, poll, provide_buffers, read_multishot, read_write, receive, send, send_receive, socket,
    splice, sync, timeout, uring_cmd, wait_id,
};
use crate::request::operation::send_receive::RECEIVE_EVENTS;
use crate::request::outcome::IssueOutcome;
use crate::request::{Properties, Request, UNSUPPORTED, Work};
use crate::ring::LockedRing;
use usring_sys::Errno;
use usring_sys::epoll::{IN, OUT, PEER_HANG_UP};
use usring_uapi::opcode::{self, COUNT};

/// Checks the SQE, and makes the request's operation from it. Copies all memory that the program
/// may reuse when its call returns.
type Prepare = fn(&mut LockedRing, &mut Request) -> Result<(), Errno>;
/// Tries the request without blocking, under the ring's lock.
pub(super) type Issue = fn(&mut LockedRing, &mut Request) -> IssueOutcome;
/// Takes the steps that need the ring, after a worker has run the request. Called under the ring's
/// lock. Gets the worker's result, and returns the result of the CQE.
type Finish = fn(&mut LockedRing, &mut Request, i32) -> i32;

/// An opcode's functions and properties.
#[doc(alias = "io_issue_def")]
pub(crate) struct Row {
    opcode: u8,
    pub prepare: Prepare,
    pub issue: Issue,
    pub finish: Option<Finish>,
    pub properties: Properties,
}

#[rustfmt::skip]
const ROWS: [Row; COUNT] = [
    Row::new(opcode::NOP, nop::prepare, nop::issue).allowed_on_polled_ring(),
    Row::new(opcode::READV, read_write::prepare, read_write::issue).work(read_write::work)
        .on_file().polls(IN | PEER_HANG_UP).selects_buffer().takes_ioprio().allowed_on_polled_ring(),
    Row::new(opcode::WRITEV, read_write::prepare, read_write::issue).work(read_write::work)
        .on_file().polls(OUT).takes_ioprio().hashes_regular_file().allowed_on_polled_ring(),
    Row::new(opcode::FSYNC, sync::prepare_fsync, call::issue).work(call::work)
        .on_file().errors_keep_link(),
    Row::new(opcode::READ_FIXED, read_write::prepare, read_write::issue).work(read_write::work)
        .on_file().polls(IN | PEER_HANG_UP).takes_ioprio().needs_ring_at_issue().allowed_on_polled_ring(),
    Row::new(opcode::WRITE_FIXED, read_write::prepare, read_write::issue).work(read_write::work)
        .on_file().polls(OUT).takes_ioprio().hashes_regular_file().needs_ring_at_issue().allowed_on_polled_ring(),
    Row::new(opcode::POLL_ADD, poll::prepare_add, poll::issue_add).on_file(),
    Row::new(opcode::POLL_REMOVE, poll::prepare_remove, poll::issue_remove),
    Row::new(opcode::SYNC_FILE_RANGE, sync::prepare_sync_file_range, call::issue).work(call::work)
        .on_file().errors_keep_link(),
    Row::new(opcode::SENDMSG, send_receive::prepare_send, send::issue).work(send::work)
        .on_file().polls(OUT).takes_ioprio().bears_rights(),
    Row::new(opcode::RECVMSG, send_receive::prepare_receive, receive::issue)
        .on_file().polls(RECEIVE_EVENTS).selects_buffer().takes_ioprio(),
    Row::new(opcode::TIMEOUT, timeout::prepare, timeout::issue),
    Row::new(opcode::TIMEOUT_REMOVE, timeout::prepare_remove, timeout::issue_remove),
    Row::new(opcode::ACCEPT, accept::prepare, accept::issue).work(accept::work).finish(accept::finish)
        .on_file().polls(IN).takes_ioprio(),
    Row::new(opcode::ASYNC_CANCEL, cancel::prepare, cancel::issue),
    Row::new(opcode::LINK_TIMEOUT, timeout::prepare_link, timeout::issue_link),
    Row::new(opcode::CONNECT, connect::prepare, connect::issue).work(connect::work)
        .on_file().polls(OUT).bears_rights(),
    Row::new(opcode::FALLOCATE, sync::prepare_fallocate, call::issue).work(call::work)
        .on_file().hashes_regular_file().errors_keep_link(),
    Row::new(opcode::OPENAT, open_close::prepare_openat, open_close::issue_open).work(open_close::work_open).finish(open_close::finish_open)
        .bears_rights(),
    Row::new(opcode::CLOSE, open_close::prepare_close, open_close::issue_close),
    Row::new(opcode::FILES_UPDATE, files_update::prepare, files_update::issue).allowed_on_polled_ring(),
    Row::new(opcode::STATX, open_close::prepare_statx, call::issue).work(call::work).errors_keep_link(),
    Row::new(opcode::READ, read_write::prepare, read_write::issue).work(read_write::work)
        .on_file().polls(IN | PEER_HANG_UP).selects_buffer().takes_ioprio().allowed_on_polled_ring(),
    Row::new(opcode::WRITE, read_write::prepare, read_write::issue).work(read_write::work)
        .on_file().polls(OUT).takes_ioprio().hashes_regular_file().allowed_on_polled_ring(),
    Row::new(opcode::FADVISE, sync::prepare_fadvise, sync::issue_fadvise).work(call::work).on_file(),
    Row::new(opcode::MADVISE, sync::prepare_madvise, call::issue).work(call::work).errors_keep_link(),
    Row::new(opcode::SEND, send_receive::prepare_send, send::issue).work(send::work)
        .on_file().polls(OUT).selects_buffer().takes_ioprio().bears_rights(),
    Row::new(opcode::RECV, send_receive::prepare_receive, receive::issue)
        .on_file().polls(RECEIVE_EVENTS).selects_buffer().takes_ioprio(),
    Row::new(opcode::OPENAT2, open_close::prepare_openat2, open_close::issue_open).work(open_close::work_open).finish(open_close::finish_open)
        .bears_rights(),
    Row::new(opcode::EPOLL_CTL, epoll_ctl::prepare, epoll_ctl::issue),
    Row::new(opcode::SPLICE, splice::prepare, splice::issue).work(splice::work)
        .on_file().hashes_regular_file().needs_ring_at_issue(),
    Row::new(opcode::PROVIDE_BUFFERS, provide_buffers::prepare_provide, provide_buffers::issue_provide)
        .allowed_on_polled_ring(),
    Row::new(opcode::REMOVE_BUFFERS, provide_buffers::prepare_remove, provide_buffers::issue_remove)
        .allowed_on_polled_ring(),
    Row::new(opcode::TEE, splice::prepare, splice::issue).work(splice::work)
        .on_file().hashes_regular_file().needs_ring_at_issue(),
    Row::new(opcode::SHUTDOWN, socket::prepare_shutdown, socket::issue_shutdown).on_file(),
    Row::new(opcode::RENAMEAT, path::prepare_rename, call::issue).work(call::work).errors_keep_link(),
    Row::new(opcode::UNLINKAT, path::prepare_unlink, call::issue).work(call::work).errors_keep_link(),
    Row::new(opcode::MKDIRAT, path::prepare_mkdir, call::issue).work(call::work).errors_keep_link(),
    Row::new(opcode::SYMLINKAT, path::prepare_symlink, call::issue).work(call::work).errors_keep_link(),
    Row::new(opcode::LINKAT, path::prepare_link, call::issue).work(call::work).errors_keep_link(),
    Row::new(opcode::MSG_RING, message_ring::prepare, message_ring::issue)
        .on_file().allowed_on_polled_ring(),
    Row::new(opcode::FSETXATTR, attributes::prepare, call::issue).work(call::work)
        .on_file().errors_keep_link(),
    Row::new(opcode::SETXATTR, attributes::prepare, call::issue).work(call::work).errors_keep_link(),
    Row::new(opcode::FGETXATTR, attributes::prepare, call::issue).work(call::work)
        .on_file().errors_keep_link(),
    Row::new(opcode::GETXATTR, attributes::prepare, call::issue).work(call::work).errors_keep_link(),
    Row::new(opcode::SOCKET, socket::prepare_socket, socket::issue_socket).work(socket::work_socket).finish(socket::finish_socket)
        .needs_ring_at_issue().bears_rights(),
    Row::new(opcode::URING_CMD, uring_cmd::prepare, uring_cmd::issue).work(uring_cmd::work)
        .on_file().selects_buffer().bears_rights().allowed_on_polled_ring(),
    Row::new(opcode::SEND_ZC, send_receive::prepare_send, send::issue).work(send::work)
        .on_file().polls(OUT).takes_ioprio().bears_rights(),
    Row::new(opcode::SENDMSG_ZC, send_receive::prepare_send, send::issue).work(send::work)
        .on_file().polls(OUT).takes_ioprio().bears_rights(),
    Row::new(opcode::READ_MULTISHOT, read_multishot::prepare, read_multishot::issue)
        .on_file().polls(IN | PEER_HANG_UP).selects_buffer(),
    Row::new(opcode::WAITID, wait_id::prepare, wait_id::issue).work(wait_id::work)
        .waits_for_ever().needs_ring_at_issue(),
    Row::unsupported(opcode::FUTEX_WAIT),
    Row::unsupported(opcode::FUTEX_WAKE),
    Row::unsupported(opcode::FUTEX_WAITV),
    Row::new(opcode::FIXED_FD_INSTALL, descriptor::prepare_install, descriptor::issue_install).on_file(),
    Row::new(opcode::FTRUNCATE, sync::prepare_ftruncate, call::issue).work(call::work)
        .on_file().hashes_regular_file().errors_keep_link(),
    Row::new(opcode::BIND, connect::prepare_bind, connect::issue_bind).work(connect::work_bind)
        .on_file().needs_ring_at_issue().bears_rights(),
    Row::new(opcode::LISTEN, socket::prepare_listen, socket::issue_listen).work(socket::work_listen)
        .on_file().needs_ring_at_issue().bears_rights(),
    Row::unsupported(opcode::RECV_ZC),
    Row::new(opcode::EPOLL_WAIT, epoll_wait::prepare, epoll_wait::issue).on_file().polls(IN),
    Row::new(opcode::READV_FIXED, read_write::prepare, read_write::issue).work(read_write::work)
        .on_file().polls(IN | PEER_HANG_UP).takes_ioprio().needs_ring_at_issue().allowed_on_polled_ring(),
    Row::new(opcode::WRITEV_FIXED, read_write::prepare, read_write::issue).work(read_write::work)
        .on_file().polls(OUT).takes_ioprio().hashes_regular_file().needs_ring_at_issue().allowed_on_polled_ring(),
    Row::new(opcode::PIPE, pipe::prepare, pipe::issue),
];

static TABLE: [Row; COUNT] = ROWS;

/// Makes the table for requests that may get a fault, from a copy of [`ROWS`]. `issue` replaces the
/// issue function of each row. `work` replaces the blocking work of each row that has blocking
/// work. [`Properties::is_armed`] is set in all rows.
pub(super) const fn armed(issue: Issue, work: Work) -> [Row; COUNT] {
    let mut rows = ROWS;
    let mut index = 0;
    while index < COUNT {
        rows[index].issue = issue;
        if rows[index].properties.work.is_some() {
            rows[index].properties.work = Some(work);
        }
        rows[index].properties.is_armed = true;
        index += 1;
    }
    rows
}

/// Builders for a row. The fields of [`Properties`] say what each property means.
impl Row {
    const fn new(opcode: u8, prepare: Prepare, issue: Issue) -> Row {
        Row { opcode, prepare, issue, finish: None, properties: Properties { supported: true, ..UNSUPPORTED } }
    }

    const fn unsupported(opcode: u8) -> Row {
        let refused = Row::new(opcode, |_, _| Err(Errno::EINVAL), |_, _| IssueOutcome::done(Errno::EINVAL.negative()));
        Row { properties: UNSUPPORTED, ..refused }
    }

    const fn work(mut self, work: Work) -> Row {
        self.properties.work = Some(work);
        self
    }

    /// Sets the function that runs under the ring's lock after a worker has run the request.
    const fn finish(mut self, finish: Finish) -> Row {
        self.finish = Some(finish);
        self
    }

    const fn on_file(mut self) -> Row {
        self.properties.needs_file = true;
        self
    }

    const fn polls(mut self, events: u32) -> Row {
        self.properties.poll_events = events;
        self
    }

    const fn selects_buffer(mut self) -> Row {
        self.properties.selects_buffer = true;
        self
    }

    const fn takes_ioprio(mut self) -> Row {
        self.properties.takes_ioprio = true;
        self
    }

    const fn hashes_regular_file(mut self) -> Row {
        self.properties.hashes_regular_file = true;
        self
    }

    const fn waits_for_ever(mut self) -> Row {
        self.properties.waits_for_ever = true;
        self
    }

    const fn needs_ring_at_issue(mut self) -> Row {
        self.properties.needs_ring_at_issue = true;
        self
    }

    const fn bears_rights(mut self) -> Row {
        self.properties.bears_rights = true;
        self
    }

    const fn errors_keep_link(mut self) -> Row {
        self.properties.errors_keep_link = true;
        self
    }

    const fn allowed_on_polled_ring(mut self) -> Row {
        self.properties.allowed_on_polled_ring = true;
        self
    }
}

/// Returns the row of an opcode. Unknown opcodes have a row whose prepare fails with `EINVAL`.
#[inline]
pub(crate) fn row(opcode: u8) -> &'static Row {
    static REFUSE: Row = Row::unsupported(u8::MAX);
    TABLE.get(usize::from(opcode)).unwrap_or(&REFUSE)
}

/// Returns whether the table is consistent. Row `n` must belong to opcode `n`, and for each
/// supported opcode:
///
/// - An opcode with poll events needs a file.
/// - An opcode with a `finish` or with `bears_rights` has blocking work.
const fn is_sound(rows: &[Row; COUNT]) -> bool {
    let mut index = 0;
    while index < COUNT {
        let row = &rows[index];
        let has = &row.properties;
        let polls_nothing = has.poll_events != 0 && !has.needs_file;
        let needs_work = row.finish.is_some() || has.bears_rights;
        let is_possible = !polls_nothing && (!needs_work || has.work.is_some());
        if row.opcode as usize != index || has.supported && !is_possible {
            return false;
        }
        index += 1;
    }
    true
}

const _: () = assert!(is_sound(&ROWS));

/// Returns whether PROBE reports the opcode.
pub(crate) fn is_supported(opcode: u8) -> bool {
    row(opcode).properties.supported
}
