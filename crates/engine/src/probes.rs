//! Fires the probes for tracers ([`usring_sys::probes`]), at the places where the kernel has the
//! tracepoints of the same names. `completion::observation` and `submission::observation` call this
//! module for events that [`crate::observers`] get, too. Other modules call it directly.
//!
//! - Each caller asks [`is_on`] first: one load, of the word that submissions load anyway.
//! - A tracer may attach while a request is in flight. So no probe needs data that an earlier probe
//!   of the request would have stored.
//! - Contexts of libaio fire no probe.
//! - A request is named by its address, as in the kernel. After its completion, another request may
//!   have the same address.

use crate::request::operation::Operation;
use crate::request::operation::read_write::FILE_POSITION;
use crate::request::{Progress, Request, RequestEntry};
use crate::ring::{Exit, LockedRing, Ring};
use alloc::sync::Arc;
use usring_sys::{Errno, probes, unusual};
use usring_uapi::io_uring as abi;
use usring_uapi::{Cqe, opcode, sqe_flags};

/// Bytes of an opcode's name, with NULs behind it.
const NAME: usize = 18;

/// The kernel's names of the opcodes, as C strings. The last one is for unknown opcodes.
static OP_STRINGS: [[u8; NAME]; opcode::COUNT + 1] = op_strings();

const fn op_strings() -> [[u8; NAME]; opcode::COUNT + 1] {
    let mut strings = [[0; NAME]; opcode::COUNT + 1];
    let mut index = 0;
    while index <= opcode::COUNT {
        let name = if index < opcode::COUNT { opcode::NAMES[index].as_bytes() } else { b"invalid" };
        assert!(name.len() < NAME);
        let mut at = 0;
        while at < name.len() {
            strings[index][at] = name[at].to_ascii_uppercase();
            at += 1;
        }
        index += 1;
    }
    strings
}

/// Returns whether the ring's events fire probes: a tracer uses a probe, and the ring does not
/// belong to an AIO context.
#[inline(always)]
pub(crate) fn is_on(ring: &Ring) -> bool {
    unusual::is_probed() && !ring.posts_events()
}

/// The fields that most tracepoints of requests have.
struct Fields {
    ctx: u64,
    req: u64,
    user_data: u64,
    opcode: u64,
    flags: u64,
    op_str: u64,
}

impl Fields {
    fn of(ring: &Ring, request: &Request) -> Fields {
        let sqe = &request.sqe;
        Fields {
            ctx: address_of_ring(ring),
            req: address_of(request),
            user_data: sqe.user_data,
            opcode: sqe.opcode.into(),
            flags: (sqe.flags & sqe_flags::ALL).into(),
            op_str: OP_STRINGS[usize::from(sqe.opcode).min(opcode::COUNT)].as_ptr() as u64,
        }
    }
}

fn address_of_ring(ring: &Ring) -> u64 {
    core::ptr::from_ref(ring) as u64
}

fn address_of(request: &Request) -> u64 {
    core::ptr::from_ref(request) as u64
}

impl Ring {
    /// Notifies tracers that the program has got a ring with this descriptor.
    pub fn note_created(&self, descriptor: i32) {
        if is_on(self) {
            let layout = self.memory.layout();
            let (sq_entries, cq_entries) = (layout.sq_entries.into(), layout.cq_entries.into());
            probes::create(descriptor.into(), address_of_ring(self), sq_entries, cq_entries, self.flags.into());
        }
    }

    /// Notifies tracers of a call of io_uring_register(2) and its result.
    #[cold]
    pub fn note_registered(self: &Arc<Self>, opcode: u32, result: Result<u32, Errno>) {
        if !is_on(self) || self.check_process().is_err() {
            return;
        }
        let locked = self.lock();
        let files = locked.registered.files.count() as u64;
        let buffers = locked.registered.buffers.count() as u64;
        locked.release(Exit::Leave);
        let result = result.map_or_else(|error| error.negative().into(), i64::from);
        probes::register(address_of_ring(self), opcode.into(), files, buffers, result);
    }
}

/// Fires the probes of a request that was taken from the SQ, and is not yet part of a chain.
pub(crate) fn submitted(locked: &LockedRing, request: &Request) {
    let fields = Fields::of(locked.ring, request);
    let Fields { ctx, req, user_data, opcode, flags, op_str } = fields;
    if request.progress == Progress::Refused {
        let sqe = &request.sqe;
        let (priority, length, op_flags) = (sqe.ioprio.into(), sqe.len.into(), sqe.op_flags.into());
        let error = request.result.into();
        return probes::req_failed(
            ctx, req, user_data, opcode, flags, error, priority, sqe.off, sqe.addr, length, op_flags, op_str,
        );
    }
    let by_sq_thread = locked.ring.has(abi::IORING_SETUP_SQPOLL).into();
    probes::submit_req(ctx, req, user_data, opcode, flags, by_sq_thread, op_str);
    if let Some(before) = locked.queues.chain.members.last() {
        probes::link(ctx, req, address_of(before));
    } else if !request.is_linked() && !locked.queues.drain.may_hold_back(request) {
        file_get(locked, request);
    }
}

/// Fires `file_get` for a request that is about to be tried for the first time.
pub(crate) fn file_get(locked: &LockedRing, request: &Request) {
    if let Some(number) = request.file_number()
        && !request.has_flag(sqe_flags::FIXED_FILE)
    {
        let Fields { ctx, req, user_data, .. } = Fields::of(locked.ring, request);
        probes::file_get(ctx, req, user_data, number.into());
    }
}

/// A request that a drain may hold back.
pub(crate) struct Deferral(Fields);

impl Deferral {
    pub fn of(locked: &LockedRing, request: &Request) -> Deferral {
        Deferral(Fields::of(locked.ring, request))
    }

    /// Fires `defer`, because the request has to wait.
    pub fn fire(&self) {
        let Fields { ctx, req, user_data, opcode, op_str, .. } = self.0;
        probes::defer(ctx, req, user_data, opcode, op_str);
    }
}

/// Fires the probes of a request that is queued for a worker. `is_ordered`: workers carry out the
/// file's requests in order.
pub(crate) fn queued(locked: &LockedRing, request: &Request, is_ordered: bool) {
    let Fields { ctx, req, user_data, opcode, flags, op_str } = Fields::of(locked.ring, request);
    if let Operation::ReadWrite(transfer) = &request.operation
        && transfer.writes()
        && transfer.done != 0
    {
        let begin = match transfer.offset {
            FILE_POSITION => FILE_POSITION,
            offset => offset - transfer.done,
        };
        probes::short_write(ctx, begin, transfer.total, transfer.done);
    }
    probes::queue_async_work(ctx, req, user_data, opcode, flags, req, is_ordered.into(), op_str);
}

/// Fires `poll_arm` for a request that begins to wait for its file. As in the kernel, a POLL_ADD
/// does not fire it.
pub(crate) fn armed(locked: &LockedRing, request: &Request) {
    if !matches!(request.operation, Operation::Poll(_)) {
        let Fields { ctx, req, user_data, opcode, op_str, .. } = Fields::of(locked.ring, request);
        let events = request.poll_events().into();
        probes::poll_arm(ctx, req, user_data, opcode, events, events, op_str);
    }
}

/// Fires `task_add` for a request whose file is ready for `mask`.
#[cold]
pub(crate) fn reported(locked: &LockedRing, request: &Request, mask: u32) {
    let Fields { ctx, req, user_data, opcode, op_str, .. } = Fields::of(locked.ring, request);
    probes::task_add(ctx, req, user_data, opcode, mask.into(), op_str);
}

/// Fires `fail_link` for `member`, a request that is cancelled because `failed`, an earlier request
/// of its chain, has failed.
#[cold]
pub(crate) fn cancelled(locked: &LockedRing, failed: &Request, member: &Request) {
    let Fields { ctx, req, user_data, opcode, op_str, .. } = Fields::of(locked.ring, failed);
    probes::fail_link(ctx, req, user_data, opcode, address_of(member), op_str);
}

/// Fires `fail_link` for the requests of a chain that is refused, except for the first request and
/// its LINK_TIMEOUT.
#[cold]
pub(crate) fn refused(locked: &LockedRing, chain: &[RequestEntry]) {
    let Some((first, rest)) = chain.split_first() else { return };
    let watcher = usize::from(rest.first().is_some_and(|next| next.is_link_timeout()));
    rest[watcher..].iter().for_each(|member| cancelled(locked, first, member));
}

/// Fires `complete` or `cqe_overflow` for a CQE that is about to be posted. `request`: the request
/// whose last CQE this is. `None`: the CQE is not the last of any request.
#[cold]
pub(crate) fn posts(locked: &mut LockedRing, request: Option<&Request>, cqe: Cqe) {
    let ctx = address_of_ring(locked.ring);
    let (result, flags) = (cqe.res.into(), cqe.flags.into());
    if locked.queues.cq.is_full() {
        return probes::cqe_overflow(ctx, cqe.user_data, result, flags, 0);
    }
    let [extra1, extra2] = request.map_or([0; 2], |request| request.operation.cqe_extra());
    probes::complete(ctx, request.map_or(0, address_of), cqe.user_data, result, flags, extra1, extra2);
}

/// Fires `cqring_wait` for a thread that is about to wait for this many CQEs.
#[cold]
pub(crate) fn waits(ring: &Ring, completions: u32) {
    probes::cqring_wait(address_of_ring(ring), completions.into());
}

/// Fires the probe of a driver that has run this many entries of the ring's task-work list.
#[cold]
pub(crate) fn ran(ring: &Ring, entries: u32) {
    match ring.defers_task_work() {
        true => probes::local_work_run(address_of_ring(ring), entries.into(), 1),
        false => probes::task_work_run(address_of_ring(ring), entries.into()),
    }
}
