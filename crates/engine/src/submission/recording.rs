//! Records when requests that change files were submitted and completed (`usring crash`). Their
//! system calls are recorded where usring makes them ([`usring_record::calls`]).
//!
//! In the recording, all requests of a batch begin at one moment. A request that a link or a drain
//! has held back begins when it is issued.

use crate::observers::Step;
use crate::request::operation::Operation;
use crate::request::outcome::IssueOutcome;
use crate::request::{Blocking, Request};
use crate::ring::LockedRing;
use crate::submission::{observation, opcode_table};
use usring_record::{calls, requests};
use usring_sys::Errno;
use usring_sys::unusual::{self, Unusual};
use usring_sys::width;

/// Records that a batch is submitted. Returns the batch's number in the recording; 0 if nothing is
/// recorded.
pub(crate) fn begin_batch() -> u64 {
    if unusual::has(Unusual::Recording) { requests::submit_batch() } else { 0 }
}

/// Returns the request's number and its batch's number in the recording; `None`: its calls are not
/// recorded.
fn recorded(request: &mut Request) -> Option<(u64, u64)> {
    let changes_files = match &request.operation {
        Operation::ReadWrite(transfer) => transfer.writes(),
        Operation::Call(_) | Operation::Open(_) | Operation::Splice(_) => true,
        _ => false,
    };
    if !changes_files || !unusual::has(Unusual::Recording) {
        return None;
    }
    if request.recorded == 0 {
        request.recorded = requests::new_request();
        (request.is_watched, request.is_only_probed) = (true, false);
    }
    Some((request.recorded, request.recorded_batch))
}

/// Issues a request by the row of `opcode_table`, and records its calls if it changes files.
pub(super) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let issue = opcode_table::row(request.sqe.opcode).issue;
    match recorded(request) {
        Some((number, batch)) => requests::during(number, batch, || issue(locked, request)),
        None => issue(locked, request),
    }
}

/// Carries a request out in a worker, by the row of `opcode_table`. Records the request's calls if
/// it changes files. If observers want to know of the request, notifies them when the work begins
/// and ends.
pub(super) fn work(request: &mut Request, blocking: &Blocking) -> i32 {
    if !request.is_watched {
        return work_recorded(request, blocking);
    }
    observation::stepped(request, Step::WorkerBegan);
    let result = work_recorded(request, blocking);
    observation::stepped(request, Step::WorkerEnded(result));
    result
}

fn work_recorded(request: &mut Request, blocking: &Blocking) -> i32 {
    let Some(work) = opcode_table::row(request.sqe.opcode).properties.work else { return Errno::EINVAL.negative() };
    match recorded(request) {
        Some((number, batch)) => requests::during(number, batch, || work(request, blocking)),
        None => work(request, blocking),
    }
}

/// Records that a request fails without being made, because a rule of `usring run --inject` says
/// so. `drops`: the request is a sync, and the data that it should have made durable is lost.
pub(super) fn note_failure(request: &mut Request, drops: bool) {
    let Some((number, batch)) = recorded(request) else { return };
    let Operation::Call(call) = &request.operation else { return };
    let mut call = call.call;
    call.arguments[0] = width::word(request.file.number);
    requests::during(number, batch, || calls::note_failure(&call, drops));
}
