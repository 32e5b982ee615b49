//! A transfer that a worker makes, and that may block.

use super::nothing::move_nothing;
use crate::request::operation::Operation;
use crate::request::operation::read_write::{FILE_POSITION, ReadWrite};
use crate::request::outcome::IssueOutcome;
use crate::request::{Blocking, Request};
use usring_sys::{Errno, descriptor, file, width};
use usring_uapi::general as linux;

/// Makes the transfer in a worker. On a regular file, repeats the call until all bytes are
/// transferred.
pub(crate) fn work(request: &mut Request, blocking: &Blocking) -> i32 {
    let number = request.file.number;
    let Operation::ReadWrite(transfer) = &mut request.operation else { return Errno::EINVAL.negative() };
    if let Some(file) = &request.file.device {
        return transfer.on_block_file(file, number);
    }
    if transfer.flags & linux::RWF_HIPRI != 0 {
        return transfer.refuse_to_poll(number).negative();
    }
    if transfer.total == 0
        && let IssueOutcome::Done(answer) = move_nothing(transfer, number)
    {
        return answer.result;
    }
    transfer.flags = transfer.asked_flags();
    let has_fixed_position = request.sqe.off == FILE_POSITION && !transfer.is_at_position();
    if !has_fixed_position {
        return transfer.work(number, blocking);
    }
    // The issue has replaced the file position by an offset, so the transfer has not moved that
    // position. In two cases the kernel would have made the transfer at once and moved the file
    // position: on a file in memory, and for a write beyond the file's end. In these cases, this
    // function moves the file position.
    let moves = file::is_in_memory(number);
    let size = descriptor::identity(number).map_or(u64::MAX, |identity| identity.size);
    let result = transfer.work(number, blocking);
    if moves || transfer.writes && transfer.offset > size {
        let _ = file::set_position(number, transfer.offset);
    }
    result
}

impl ReadWrite {
    /// Makes the transfer on an ordinary file. May block.
    fn work(&mut self, number: i32, blocking: &Blocking) -> i32 {
        loop {
            match blocking.run(&self.call(number, 0)) {
                Ok(bytes) => {
                    self.advance(bytes);
                    let regular = || descriptor::identity(number).is_ok_and(|identity| identity.is_regular());
                    if bytes == 0 || self.done >= self.total || !regular() {
                        return width::int(self.done);
                    }
                }
                Err(Errno::ESPIPE) if self.offset != FILE_POSITION => {
                    if let Err(error) = self.forget_offset(number) {
                        return error.negative();
                    }
                }
                Err(error) => return self.result(error),
            }
        }
    }
}
