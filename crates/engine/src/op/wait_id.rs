//! WAITID: waitid(2), in place where there is something to tell, and by a
//! worker that waits for it where there is not.

use super::Operation;
use crate::issue::IssueOutcome;
use crate::request::Request;
use crate::ring::LockedRing;
use crate::workers::Blocking;
use usring_sys::descriptor::{self, HeldDescriptor};
use usring_sys::{Errno, SystemCall, UserAddress, user_memory};
use usring_uapi::general::{__NR_waitid, __WNOTHREAD, O_NONBLOCK, P_PIDFD, WNOHANG};

/// What is waited for, and where to tell of it.
pub(crate) struct WaitId {
    kind: u32,
    id: i32,
    options: u32,
    told: UserAddress,
    /// Of a process that a descriptor names: the program may close that meanwhile.
    named: Option<HeldDescriptor>,
}

/// `siginfo_t` by words. Those that the kernel writes for a child: signal, errno
/// and code, then, from the fifth on, process, user and status.
type Info = [i32; 32];
const SECOND_PART: usize = 4;

/// The kind of id stands in `len`, the id in `fd`, the options in `file_index`.
pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = &request.sqe;
    if sqe.addr != 0 || sqe.buf_index != 0 || sqe.addr3 != 0 || sqe.op_flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (kind, options, told) = (sqe.len, sqe.file_index, UserAddress(sqe.off));
    if options & __WNOTHREAD != 0 {
        // Who would wait is another thread.
        return Err(Errno::EINVAL);
    }
    request.operation = Operation::WaitId(WaitId { kind, id: sqe.fd, options, told, named: None });
    Ok(())
}

/// Finds out which process it is; the rest may wait.
pub(crate) fn issue(_: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Operation::WaitId(wait) = &mut request.operation else { return IssueOutcome::done(Errno::EINVAL.negative()) };
    if wait.kind == P_PIDFD && wait.id >= 0 {
        match wait.hold() {
            Ok(duplicate) => wait.named = Some(duplicate),
            Err(error) => return IssueOutcome::done(error.negative()),
        }
    }
    let mut info = Info::default();
    let found = wait.call(&mut info, wait.options | WNOHANG).run();
    if found.is_ok() && info[SECOND_PART] == 0 && wait.options & WNOHANG == 0 {
        return IssueOutcome::NeedsWorker;
    }
    IssueOutcome::done(wait.end(found, &info))
}

pub(crate) fn work(request: &mut Request, blocking: &Blocking) -> i32 {
    let Operation::WaitId(wait) = &request.operation else { return Errno::EINVAL.negative() };
    let mut info = Info::default();
    match blocking.run(&wait.call(&mut info, wait.options)) {
        // Nothing breaks it off but its being cancelled.
        Err(Errno::EINTR) => Errno::ECANCELED.negative(),
        found => wait.end(found, &info),
    }
}

impl WaitId {
    pub fn owns_memory(&self) -> bool {
        self.named.is_some()
    }

    /// Keeps the process that its descriptor names now. One that does not wait is not
    /// waited for.
    fn hold(&mut self) -> Result<HeldDescriptor, Errno> {
        let duplicate = descriptor::hold(self.id)?;
        if descriptor::status_flags(duplicate.number())? & O_NONBLOCK != 0 {
            self.options |= WNOHANG;
        }
        Ok(duplicate)
    }

    fn call(&self, info: &mut Info, options: u32) -> SystemCall {
        let id = self.named.as_ref().map_or(self.id, HeldDescriptor::number);
        let (kind, id, options) = (u64::from(self.kind), id as u64, u64::from(options));
        SystemCall::new(__NR_waitid, [kind, id, &raw mut *info as u64, options, 0])
    }

    /// Tells the program, also that there was nothing, unless it has asked for
    /// what cannot be.
    fn end(&self, found: Result<u64, Errno>, info: &Info) -> i32 {
        let result = found.map_or_else(Errno::negative, |_| 0);
        if self.told.is_null() || !matches!(found, Ok(_) | Err(Errno::ECHILD)) {
            return result;
        }
        let part = |from: usize| [info[from], info[from + 1], info[from + 2]];
        let first = user_memory::write(self.told, part(0));
        let second = user_memory::write(self.told.offset(4 * SECOND_PART as u64), part(SECOND_PART));
        first.and(second).map_or_else(Errno::negative, |()| result)
    }
}
