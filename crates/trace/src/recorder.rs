//! Turns the reports of the engine into events of the trace. The engine reports under a ring's
//! lock, or in a worker.

use crate::format::{self, EventKind, Record};
use crate::names::{self, Names};
use crate::page::Page;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use usring_engine::observers::{Closed, Completed, HeldBack, Observer, Opened, Step, Stepped, Submitted, Transfer};
use usring_sys::per_process::PerProcess;
use usring_sys::set_once::SetOnce;
use usring_sys::ticks::{self, Ticks};
use usring_sys::{SystemCall, thread_ids, width};
use usring_uapi::general as linux;
use usring_uapi::{opcode, sqe_flags};

/// The recorder as an observer of the engine's requests.
pub static OBSERVER: Observer = Observer { submitted, completed, stepped: Some(stepped), opened, closed };

/// Number of CQ heads that the recorder remembers per process. Two rings whose numbers are equal
/// modulo this number share an entry and overwrite each other's head. A [`EventKind::Reaped`] may
/// then be recorded although the head did not change.
const RINGS: usize = 256;

/// The recorder's state in one process.
struct Process {
    id: u32,
    /// The number that the process has claimed in the trace ([`Page::claim_process`]).
    turn: u32,
    /// Whether a thread has recorded, or is recording, that the process begins.
    has_begun: AtomicBool,
    names: Names,
    /// The head of each ring's CQ when the ring's last event was recorded.
    heads: Box<[AtomicU32]>,
}

static PAGE: SetOnce<Page> = SetOnce::new();
static PROCESS: PerProcess<Process> = PerProcess::new();

/// Begins to record in this memory. Called once, by a process with one thread.
pub fn start(page: Page) {
    ticks::calibrate();
    thread_ids::find_word();
    PAGE.set(Box::leak(Box::new(page)));
    process(&page);
}

/// Forgets the name of a descriptor's file, because the descriptor begins to refer to another file.
pub fn forget_descriptor(number: i32) {
    PROCESS.get().into_iter().for_each(|process| process.names.forget(number));
}

fn process(page: &Page) -> &'static Process {
    PROCESS.get().unwrap_or_else(|| begin(page))
}

/// Makes the recorder's state in this process, and records the event that the process begins,
/// unless another thread records it. Called by [`start`] and, in a forked child, by each thread
/// that finds no state of the process yet.
#[cold]
fn begin(page: &Page) -> &'static Process {
    let process = PROCESS.get_or_make(|| Process {
        turn: page.claim_process(),
        id: width::low(SystemCall::new(linux::__NR_getpid, [0; 5]).run_unhooked().unwrap_or(0)),
        has_begun: AtomicBool::new(false),
        names: Names::new(),
        heads: (0..RINGS).map(|_| AtomicU32::new(0)).collect(),
    });
    if !process.has_begun.swap(true, Ordering::Relaxed) {
        let name = process.names.add(page, &names::link_target(names::PROGRAM));
        write(page, process, Record { name, ..Record::new(EventKind::Process) });
    }
    process
}

/// Adds time, process and thread to an event, and records it.
#[inline]
fn write(page: &Page, process: &Process, record: Record) {
    write_at(page, process, Ticks::now().0, record);
}

#[inline]
fn write_at(page: &Page, process: &Process, ticks: u64, record: Record) {
    page.record(&Record { ticks, process: process.id, turn: process.turn, thread: thread_ids::current(), ..record });
}

/// Returns the trace's memory and this process's state. `None` if events of this ring are not
/// recorded.
#[inline]
fn recording(ring: u32) -> Option<(&'static Page, &'static Process)> {
    let page = PAGE.get()?;
    page.has_ring(ring).then(|| (page, process(page)))
}

fn submitted(submitted: &Submitted) {
    let ring = submitted.ring_number;
    let Some((page, process)) = recording(ring) else { return };
    note_head(page, process, ring, submitted.consumed);
    let ticks = Ticks::now().0;
    let sqe = submitted.sqe;
    let name = match (submitted.path, submitted.file) {
        (Some(path), _) => process.names.add(page, path.strip_suffix(b"\0").unwrap_or(path)),
        (None, Some(number)) => process.names.of_descriptor(page, number, ticks),
        (None, None) => 0,
    };
    let held = match submitted.held_back {
        HeldBack::No => 0,
        HeldBack::Chain => format::HELD_BY_CHAIN,
        HeldBack::Drain => format::HELD_BY_DRAIN,
    };
    let has_file = if submitted.file.is_some() || submitted.descriptor.is_some() { format::HAS_FILE } else { 0 };
    let length = match submitted.transfer {
        Transfer::Unknown => sqe.len,
        Transfer::Into(members) | Transfer::From(members) => {
            let total = members.iter().fold(0u64, |sum, member| sum.saturating_add(member.length));
            u32::try_from(total).unwrap_or(u32::MAX)
        }
    };
    let record = Record {
        opcode: sqe.opcode,
        sqe_flags: sqe.flags & sqe_flags::ALL,
        detail: held | has_file,
        extra: sqe.op_flags,
        ring: format::ring_of(ring),
        request: width::low(submitted.request.number),
        name,
        user_data: submitted.user_data,
        a: sqe.off,
        b: [sqe.fd.cast_unsigned(), length],
        ..Record::new(EventKind::Submitted)
    };
    write_at(page, process, ticks, record);
}

/// Records that the program has taken CQEs, if the CQ's head differs from the last known one.
#[inline]
fn note_head(page: &Page, process: &Process, ring: u32, head: u32) {
    let known = &process.heads[width::size(ring.into()) % RINGS];
    if known.load(Ordering::Relaxed) != head {
        known.store(head, Ordering::Relaxed);
        write(page, process, Record { ring: format::ring_of(ring), b: [0, head], ..Record::new(EventKind::Reaped) });
    }
}

fn stepped(stepped: &Stepped) {
    let Some((page, process)) = recording(stepped.ring_number) else { return };
    let (kind, detail, a) = match stepped.step {
        Step::Issued => (EventKind::Issued, 0, 0),
        Step::AwaitsFile => (EventKind::AwaitsFile, 0, 0),
        Step::AwaitsTime => (EventKind::AwaitsTime, 0, 0),
        Step::AwaitsProcesses => (EventKind::AwaitsProcesses, 0, 0),
        Step::Delayed => (EventKind::Delayed, 0, 0),
        Step::Queued(reason) => (EventKind::Queued, format::detail_of(reason), 0),
        Step::WorkerBegan => (EventKind::WorkerBegan, 0, 0),
        Step::WorkerEnded(result) => (EventKind::WorkerEnded, 0, u64::from(result.cast_unsigned())),
        Step::OnDevice(index) => (EventKind::OnDevice, 0, index.into()),
        Step::OnOtherRing => (EventKind::OnOtherRing, 0, 0),
        Step::Posted { result, .. } => (EventKind::Posted, 0, u64::from(result.cast_unsigned())),
    };
    let (extra, b) = match stepped.step {
        Step::Posted { flags, position, consumed, .. } => (flags, [position, consumed]),
        _ => (0, [0; 2]),
    };
    if let Step::Posted { result, .. } = stepped.step {
        forget_changed(process, stepped.sqe.opcode, stepped.sqe.fd, result);
    }
    let record = Record {
        opcode: stepped.sqe.opcode,
        sqe_flags: stepped.sqe.flags & sqe_flags::ALL,
        detail,
        extra,
        ring: format::ring_of(stepped.ring_number),
        request: width::low(stepped.number),
        user_data: stepped.user_data,
        a,
        b,
        ..Record::new(kind)
    };
    write(page, process, record);
}

fn completed(completed: &Completed) {
    let Some((page, process)) = recording(completed.ring_number) else { return };
    let sqe = completed.sqe;
    forget_changed(process, sqe.opcode, sqe.fd, completed.result);
    process.heads[width::size(completed.ring_number.into()) % RINGS].store(completed.consumed, Ordering::Relaxed);
    let no_cqe = if completed.position.is_none() { format::NO_CQE } else { 0 };
    let not_begun = if completed.has_not_begun { format::NOT_BEGUN } else { 0 };
    let record = Record {
        opcode: sqe.opcode,
        sqe_flags: sqe.flags & sqe_flags::ALL,
        detail: no_cqe | not_begun,
        extra: completed.flags,
        ring: format::ring_of(completed.ring_number),
        request: width::low(completed.request.number),
        user_data: completed.user_data,
        a: u64::from(completed.result.cast_unsigned()),
        b: [completed.position.unwrap_or(0), completed.consumed],
        ..Record::new(EventKind::Completed)
    };
    write(page, process, record);
}

/// Forgets the name of a descriptor's file if a request has closed or made the descriptor.
#[inline]
fn forget_changed(process: &Process, opcode: u8, descriptor: i32, result: i32) {
    match opcode {
        opcode::CLOSE => process.names.forget(descriptor),
        opcode::OPENAT | opcode::OPENAT2 | opcode::ACCEPT | opcode::SOCKET | opcode::FIXED_FD_INSTALL => {
            process.names.forget(result);
        }
        _ => {}
    }
}

fn opened(opened: &Opened) {
    let Some((page, process)) = recording(opened.ring_number) else { return };
    let record = Record {
        extra: opened.flags,
        ring: format::ring_of(opened.ring_number),
        b: [opened.sq_entries, opened.cq_entries],
        ..Record::new(EventKind::Opened)
    };
    write(page, process, record);
}

fn closed(closed: &Closed) {
    let Some((page, process)) = recording(closed.ring_number) else { return };
    let (ring, b) = (format::ring_of(closed.ring_number), [closed.tail, closed.consumed]);
    write(page, process, Record { ring, b, ..Record::new(EventKind::Closed) });
}
