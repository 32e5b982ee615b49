//! Joins the events of each request: when it was submitted, what it waited for, and how it ended.

use super::file::{Event, Loaded};
use std::collections::{HashMap, HashSet, VecDeque};
use usring_engine::observers::WorkerReason;
use usring_trace::format::{self, EventKind, Record};

/// Something that a request waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The request before it in its chain.
    Chain,
    /// Earlier requests, because of an IO_DRAIN.
    Drain,
    /// The request's file, until it is ready.
    File,
    /// The end of a timeout's time, or the number of completions that the timeout names.
    Time,
    /// An answer of other processes that share its ring.
    Processes,
    /// A delay of `usring run --inject` or `--order`.
    Fault,
    /// A free worker. The [`WorkerReason`] says why the request needs one.
    Queue(WorkerReason),
    /// The worker with this thread id, which carries the request out during the wait.
    Worker(u32),
    /// A thread that drives the ring. A worker has carried the request out, and this thread has to
    /// complete it.
    TaskWork,
    /// A device: the ring's channel with this index.
    Device(u64),
    /// Another ring, to which the request was handed.
    OtherRing,
}

/// A time during which a request waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub cause: Cause,
    pub from: u64,
    /// When the request's wait ended. `None`: the trace ends before the wait does.
    pub until: Option<u64>,
}

/// A CQE that a request has posted, or the result of a request that has posted none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedCqe {
    pub at: u64,
    pub result: i32,
    pub flags: u32,
    pub has_cqe: bool,
    /// When usring first noticed that the program had taken the CQE.
    pub reaped: Option<u64>,
}

/// A process of the run, from the start of its program to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub id: u32,
    /// Tells processes with one id apart ([`Record::turn`]).
    pub turn: u32,
    pub program: Option<String>,
    pub from: u64,
}

/// A ring that appears in the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingInfo {
    pub process: usize,
    pub number: u32,
    /// The flags of io_uring_setup(2), if the trace has them.
    pub flags: Option<u32>,
}

impl RingInfo {
    /// Returns the ring's process and number.
    pub fn key(&self) -> (usize, u32) {
        (self.process, self.number)
    }
}

/// A request. Times are nanoseconds since the begin of the run.
#[derive(Clone, Debug)]
pub struct Request {
    /// Index of the request's process.
    pub process: usize,
    /// The record of the request's submission, or of its first event if the submission was lost.
    pub first: Record,
    /// When the request was submitted. `None`: the trace has lost the event of the submission.
    pub submitted: Option<u64>,
    /// The time of `first`.
    pub from: u64,
    pub waits: Vec<Wait>,
    /// The CQEs that a multishot request has posted, all but the last.
    pub posted: Vec<PostedCqe>,
    pub completed: Option<PostedCqe>,
    /// The request never began, because its chain broke.
    pub not_begun: bool,
}

impl Request {
    /// Returns the time from the request's submission to its completion. `None`: the request has
    /// not completed, or its submission was lost.
    pub fn latency(&self) -> Option<u64> {
        Some(self.completed?.at.saturating_sub(self.submitted?))
    }
}

/// All requests of a trace, in the order of their first events.
#[derive(Default)]
pub struct Requests {
    pub processes: Vec<Process>,
    pub rings: Vec<RingInfo>,
    pub all: Vec<Request>,
}

/// Identifies a request in flight: index of its process, number of its ring, and its own number.
type Key = (usize, u32, u32);

/// A CQE that the program has not taken yet: its position in the CQ and the index of its request.
/// The last number is the CQE's index among the request's posted CQEs (`None`: the last CQE).
type Ready = (u32, usize, Option<usize>);

/// The state of [`join`] after the events that it has read.
#[derive(Default)]
struct Joined {
    requests: Requests,
    /// Index of the process with each id and turn.
    processes: HashMap<(u32, u32), usize>,
    /// The processes whose [`EventKind::Process`] was seen.
    begun: HashSet<usize>,
    rings: HashMap<(usize, u32), usize>,
    in_flight: HashMap<Key, usize>,
    ready: HashMap<(usize, u32), VecDeque<Ready>>,
}

/// Joins the events of a trace.
pub fn join(trace: &Loaded) -> Requests {
    let mut joined = Joined::default();
    for event in &trace.events {
        joined.add(event, trace);
    }
    joined.requests
}

impl Joined {
    fn add(&mut self, event: &Event, trace: &Loaded) {
        let (at, record) = (event.at, &event.record);
        if record.kind == EventKind::Process {
            self.note_process(record, trace.name(record.name), at);
            return;
        }
        let process = match self.processes.get(&(record.process, record.turn)) {
            Some(process) => *process,
            None => self.begin_process(record, None, 0),
        };
        self.note_ring(process, record);
        match record.kind {
            EventKind::Opened => {}
            EventKind::Closed | EventKind::Reaped => self.reap((process, record.ring), record.b[1], at),
            EventKind::Submitted => self.submit(process, record, at),
            EventKind::Posted | EventKind::Completed => self.add_cqe(process, record, at),
            _ => self.step(process, record, at),
        }
    }

    /// Notes an [`EventKind::Process`] record: a process begins to record, or begins again after
    /// execve(2) with another program.
    fn note_process(&mut self, record: &Record, program: Option<String>, at: u64) {
        let known = self.processes.get(&(record.process, record.turn)).copied();
        let process = match known.filter(|process| !self.begun.contains(process)) {
            // Another thread of the forked child recorded an event before this record.
            Some(process) => {
                self.requests.processes[process].program = program;
                process
            }
            None => self.begin_process(record, program, at),
        };
        self.begun.insert(process);
    }

    fn begin_process(&mut self, record: &Record, program: Option<String>, from: u64) -> usize {
        // A later program in this process, or a later process with the same id, has other rings. So
        // it gets an entry of its own.
        let index = self.requests.processes.len();
        let Record { process: id, turn, .. } = *record;
        self.requests.processes.push(Process { id, turn, program, from });
        self.processes.insert((id, turn), index);
        index
    }

    fn note_ring(&mut self, process: usize, record: &Record) {
        let rings = &mut self.requests.rings;
        let index = *self.rings.entry((process, record.ring)).or_insert_with(|| {
            rings.push(RingInfo { process, number: record.ring, flags: None });
            rings.len() - 1
        });
        if record.kind == EventKind::Opened {
            rings[index].flags = Some(record.extra);
        }
    }

    fn submit(&mut self, process: usize, record: &Record, at: u64) {
        let cause = match record.detail {
            detail if detail & format::HELD_BY_CHAIN != 0 => Some(Cause::Chain),
            detail if detail & format::HELD_BY_DRAIN != 0 => Some(Cause::Drain),
            _ => None,
        };
        let waits = cause.map(|cause| Wait { cause, from: at, until: None }).into_iter().collect();
        let request = Request { submitted: Some(at), waits, ..Request::of(process, record, at) };
        self.in_flight.insert((process, record.ring, record.request), self.requests.all.len());
        self.requests.all.push(request);
    }

    /// Returns the index of the request in flight that an event belongs to. If the trace has no
    /// record of the request's submission, adds a request that begins with this event.
    fn find(&mut self, process: usize, record: &Record, at: u64) -> usize {
        let all = &mut self.requests.all;
        *self.in_flight.entry((process, record.ring, record.request)).or_insert_with(|| {
            all.push(Request::of(process, record, at));
            all.len() - 1
        })
    }

    fn step(&mut self, process: usize, record: &Record, at: u64) {
        let index = self.find(process, record, at);
        let request = &mut self.requests.all[index];
        request.end_wait(at);
        let cause = match record.kind {
            EventKind::AwaitsFile => Cause::File,
            EventKind::AwaitsTime => Cause::Time,
            EventKind::AwaitsProcesses => Cause::Processes,
            EventKind::Delayed => Cause::Fault,
            EventKind::Queued => Cause::Queue(format::reason_of(record.detail).unwrap_or(WorkerReason::Opcode)),
            EventKind::WorkerBegan => Cause::Worker(record.thread),
            EventKind::WorkerEnded => Cause::TaskWork,
            EventKind::OnDevice => Cause::Device(record.a),
            EventKind::OnOtherRing => Cause::OtherRing,
            _ => return,
        };
        request.waits.push(Wait { cause, from: at, until: None });
    }

    fn add_cqe(&mut self, process: usize, record: &Record, at: u64) {
        let ring = (process, record.ring);
        self.reap(ring, record.b[1], at);
        let index = self.find(process, record, at);
        let request = &mut self.requests.all[index];
        let has_cqe = record.kind == EventKind::Posted || record.detail & format::NO_CQE == 0;
        let cqe = PostedCqe { at, result: record.result(), flags: record.extra, has_cqe, reaped: None };
        let place = if record.kind == EventKind::Posted {
            request.posted.push(cqe);
            Some(request.posted.len() - 1)
        } else {
            request.end_wait(at);
            request.completed = Some(cqe);
            request.not_begun = record.detail & format::NOT_BEGUN != 0;
            self.in_flight.remove(&(process, record.ring, record.request));
            None
        };
        if has_cqe {
            self.ready.entry(ring).or_default().push_back((record.b[0], index, place));
        }
    }

    /// Notes that the program has taken the CQEs before the CQ's head `head`.
    fn reap(&mut self, ring: (usize, u32), head: u32, at: u64) {
        let Some(ready) = self.ready.get_mut(&ring) else { return };
        while let Some((position, index, place)) = ready.front().copied() {
            // Positions wrap around, so this code examines only their difference. The CQ has at
            // most 2^16 entries: a large difference means that `head` has not passed `position`.
            if head.wrapping_sub(position).wrapping_sub(1) >= 1 << 31 {
                return;
            }
            ready.pop_front();
            let request = &mut self.requests.all[index];
            let cqe = match place {
                Some(place) => request.posted.get_mut(place),
                None => request.completed.as_mut(),
            };
            cqe.into_iter().for_each(|cqe| cqe.reaped = Some(at));
        }
    }
}

impl Request {
    fn of(process: usize, record: &Record, at: u64) -> Request {
        Request {
            process,
            first: *record,
            submitted: None,
            from: at,
            waits: Vec::new(),
            posted: Vec::new(),
            completed: None,
            not_begun: false,
        }
    }

    fn end_wait(&mut self, at: u64) {
        if let Some(wait) = self.waits.last_mut() {
            wait.until.get_or_insert(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usring_trace::format::Header;

    fn joined(records: &[Record]) -> Requests {
        let events = records.iter().zip(0..).map(|(record, at)| Event { at, record: *record }).collect();
        join(&Loaded::of(Header::default(), events))
    }

    #[test]
    fn requests_of_a_forked_child_may_come_before_its_first_event() {
        let of = |kind, turn, request| Record { process: 7, turn, ring: 1, request, ..Record::new(kind) };
        let found = joined(&[
            of(EventKind::Submitted, 1, 1),
            of(EventKind::Process, 1, 0),
            of(EventKind::Completed, 1, 1),
            of(EventKind::Process, 2, 0),
            of(EventKind::Submitted, 2, 1),
        ]);
        let spans: Vec<_> = found.all.iter().map(|request| (request.process, request.latency())).collect();
        assert_eq!(spans, [(0, Some(2)), (1, None)]);
        assert_eq!(found.processes.len(), 2, "the child, and the program that it executes");
    }

    #[test]
    fn processes_with_one_id_at_the_same_time_are_told_apart() {
        let of = |kind, turn| Record { process: 7, turn, ring: 1, request: 1, ..Record::new(kind) };
        let found = joined(&[
            of(EventKind::Process, 1),
            of(EventKind::Process, 2),
            of(EventKind::Submitted, 1),
            of(EventKind::Submitted, 2),
            of(EventKind::Completed, 2),
            of(EventKind::Completed, 1),
        ]);
        let spans: Vec<_> = found.all.iter().map(|request| (request.process, request.latency())).collect();
        assert_eq!(spans, [(0, Some(3)), (1, Some(1))]);
    }
}
