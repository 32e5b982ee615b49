//! A ring's spare requests and messages. Because of these spares, the hot path allocates no memory.

use super::conditions::RequestId;
use super::operation::Operation;
use super::operation::send_receive::SocketMessage;
use super::{Request, RequestEntry};
use alloc::boxed::Box;
use alloc::vec::Vec;
use usring_sys::memory_reserve;
use usring_sys::queue::Entry;

/// The spare requests and messages of one ring.
#[derive(Default)]
pub(crate) struct RequestPool {
    spare: Vec<RequestEntry>,
    /// Spare values for the messages of SENDMSG and RECVMSG.
    #[expect(clippy::vec_box, reason = "requests own them by these boxes")]
    messages: Vec<Box<SocketMessage>>,
    last_id: u64,
}

/// Maximum number of a ring's spare requests, and of its spare messages (of SENDMSG and RECVMSG).
/// Further ones are freed.
const SPARE_LIMIT: usize = 256;

impl RequestPool {
    /// Returns a spare request with a new id. `None`: no request is spare, and memory is low.
    #[inline(always)]
    pub fn take(&mut self) -> Option<RequestEntry> {
        let mut request = match self.spare.pop() {
            Some(request) => request,
            None => new_entry_if_possible()?,
        };
        self.last_id += 1;
        request.id = RequestId(self.last_id);
        Some(request)
    }

    #[inline(always)]
    pub fn give_back(&mut self, mut request: RequestEntry) {
        if let Operation::SendReceive(transfer) = &mut request.operation
            && let Some(message) = transfer.message.take()
        {
            self.keep_message(message);
        }
        request.release();
        if self.spare.len() < self.spare.capacity() {
            self.spare.push(request);
        } else {
            self.keep_or_free(request);
        }
    }

    /// Returns a spare message; makes one if none is spare.
    pub fn message(&mut self) -> Box<SocketMessage> {
        self.messages.pop().unwrap_or_default()
    }

    #[inline(never)]
    fn keep_message(&mut self, mut message: Box<SocketMessage>) {
        if self.messages.len() < SPARE_LIMIT {
            message.clear();
            self.messages.push(message);
        }
    }

    #[cold]
    fn keep_or_free(&mut self, request: RequestEntry) {
        if self.spare.capacity() == 0 {
            self.spare.reserve_exact(SPARE_LIMIT);
            self.spare.push(request);
        }
    }
}

#[cold]
fn new_entry_if_possible() -> Option<RequestEntry> {
    memory_reserve::check().ok().map(|()| new_entry())
}

/// Makes a request that belongs to no ring. Before a ring uses the request, it has to give the
/// request an id.
#[cold]
pub(crate) fn new_entry() -> RequestEntry {
    Entry::new(Request::new())
}
