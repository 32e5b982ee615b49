//! Tells the observers of requests that a request was submitted.

use crate::observers::{self, HeldBack, Identity, Submitted, Transfer};
use crate::request::operation::Operation;
use crate::request::{Progress, Request};
use crate::ring::LockedRing;
use alloc::sync::Arc;
use usring_sys::plain::IoVector;
use usring_uapi::{opcode, sqe_flags};

/// Tells the observers that a request was taken from the SQ. Called before the request is tried.
#[cold]
#[inline(never)]
pub(crate) fn submitted(locked: &LockedRing, request: &mut Request) {
    if !observers::are_any() || request.progress == Progress::Refused {
        return;
    }
    request.is_watched = true;
    let is_later_member = !locked.queues.chain.members.is_empty();
    let held_back = if is_later_member {
        HeldBack::Chain
    } else if locked.queues.drain.is_active() || request.has_flag(sqe_flags::IO_DRAIN) {
        HeldBack::Drain
    } else {
        HeldBack::No
    };
    let is_fixed = request.has_flag(sqe_flags::FIXED_FILE);
    let submitted = Submitted {
        request: Identity { ring: Arc::as_ptr(locked.ring) as u64, number: request.id.0 },
        ring_number: locked.ring.number,
        sqe: &request.sqe,
        descriptor: request.file_number().filter(|_| !is_fixed),
        transfer: transfer_of(request),
        held_back,
        is_linked: is_later_member || request.is_linked(),
    };
    observers::for_each(|observer| (observer.submitted)(&submitted));
}

fn transfer_of(request: &Request) -> Transfer<'_> {
    if request.has_flag(sqe_flags::BUFFER_SELECT) {
        return Transfer::Unknown;
    }
    match &request.operation {
        Operation::ReadWrite(transfer) if transfer.writes => Transfer::From(transfer.members()),
        Operation::ReadWrite(transfer) => Transfer::Into(transfer.members()),
        Operation::SendReceive(transfer) => {
            let members: &[IoVector] = match &transfer.message {
                Some(message) if message.members.is_any() => message.members.left(),
                _ => core::slice::from_ref(&transfer.part),
            };
            match request.sqe.opcode {
                opcode::RECV | opcode::RECVMSG => Transfer::Into(members),
                _ => Transfer::From(members),
            }
        }
        _ => Transfer::Unknown,
    }
}
