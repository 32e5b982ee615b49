//! WAITID: waitid(2), first without waiting. If there is nothing to report, a worker waits.

use crate::request::operation::{Operation, WaitId};
use crate::request::outcome::IssueOutcome;
use crate::request::{Blocking, Request};
use crate::ring::LockedRing;
use usring_sys::descriptor::{self, HeldDescriptor};
use usring_sys::{Errno, SystemCall, UserAddress, user_memory, width};
use usring_uapi::general::{__NR_waitid, __WNOTHREAD, O_NONBLOCK, P_PIDFD, WNOHANG};

/// `siginfo_t` as an array of words. For a child, the kernel writes signal, errno and code into
/// words 0 to 2, and process, user and status into words 4 to 6.
type Info = [i32; 32];
const SECOND_PART: usize = 4;

/// Prepares WAITID. The SQE has the kind of id in `len`, the id in `fd`, and the options in
/// `file_index`.
pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = &request.sqe;
    if sqe.addr != 0 || sqe.buf_index != 0 || sqe.addr3 != 0 || sqe.op_flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (kind, options, report_to) = (sqe.len, sqe.file_index, UserAddress(sqe.off));
    if options & __WNOTHREAD != 0 {
        // __WNOTHREAD limits the call to children of the calling thread. usring may have to call
        // waitid(2) in a worker, which has no children. So usring refuses the flag.
        return Err(Errno::EINVAL);
    }
    request.operation = Operation::WaitId(WaitId { kind, id: sqe.fd, options, report_to, named: None });
    Ok(())
}

/// Duplicates the pidfd if the request names one, and tries waitid(2) without waiting. If there is
/// nothing to report, a worker waits.
pub(crate) fn issue(_: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Operation::WaitId(wait) = &mut request.operation else { return IssueOutcome::done(Errno::EINVAL.negative()) };
    if wait.kind == P_PIDFD && wait.id >= 0 {
        match wait.hold_pidfd() {
            Ok(duplicate) => wait.named = Some(duplicate),
            Err(error) => return IssueOutcome::done(error.negative()),
        }
    }
    let mut info = Info::default();
    let found = wait.call(&mut info, wait.options | WNOHANG).run();
    if found.is_ok() && info[SECOND_PART] == 0 && wait.options & WNOHANG == 0 {
        return IssueOutcome::NeedsWorker;
    }
    IssueOutcome::done(wait.write_report(found, &info))
}

pub(crate) fn work(request: &mut Request, blocking: &Blocking) -> i32 {
    let Operation::WaitId(wait) = &request.operation else { return Errno::EINVAL.negative() };
    let mut info = Info::default();
    match blocking.run(&wait.call(&mut info, wait.options)) {
        // Only a cancellation of this request interrupts the call.
        Err(Errno::EINTR) => Errno::ECANCELED.negative(),
        found => wait.write_report(found, &info),
    }
}

impl WaitId {
    /// Duplicates the pidfd, so that the request waits for the process that the pidfd names now. If
    /// the pidfd is non-blocking, adds WNOHANG.
    fn hold_pidfd(&mut self) -> Result<HeldDescriptor, Errno> {
        let duplicate = descriptor::hold(self.id)?;
        if descriptor::status_flags(duplicate.number())? & O_NONBLOCK != 0 {
            self.options |= WNOHANG;
        }
        Ok(duplicate)
    }

    fn call(&self, info: &mut Info, options: u32) -> SystemCall {
        let id = self.named.as_ref().map_or(self.id, HeldDescriptor::number);
        let (kind, id, options) = (u64::from(self.kind), width::word(id), u64::from(options));
        SystemCall::new(__NR_waitid, [kind, id, &raw mut *info as u64, options, 0])
    }

    /// Writes waitid(2)'s report into the program's memory. Returns the CQE's result. `found`: the
    /// result of waitid(2). After `ECHILD`, writes an empty report. After any other error, writes
    /// nothing.
    fn write_report(&self, found: Result<u64, Errno>, info: &Info) -> i32 {
        let result = found.map_or_else(Errno::negative, |_| 0);
        if self.report_to.is_null() || !matches!(found, Ok(_) | Err(Errno::ECHILD)) {
            return result;
        }
        let part = |from: usize| [info[from], info[from + 1], info[from + 2]];
        let first = user_memory::write(self.report_to, part(0));
        let second = user_memory::write(self.report_to.offset(4 * SECOND_PART as u64), part(SECOND_PART));
        first.and(second).map_or_else(Errno::negative, |()| result)
    }
}
