//! Detects that the control plane has ended. A control plane that exits ends its queues itself
//! ([`super::generation`]). A killed control plane cannot end them. The back end loses its
//! connection to the control plane, and stops serving the queues. But the kernel also closes the
//! *lifeline*: the connection on which a user got its queue.
//!
//! - A sleeping user is woken, because the queue's interrupt is an epoll set of the queue's call
//!   eventfd and the connection.
//! - A polling user checks the connection after some polls without a completion.

use usring_sys::epoll::{self, Epoll, PollDescriptor};
use usring_sys::unix_socket::Connection;
use usring_sys::{Errno, eventfd};

/// A polling user checks whether the control plane has died after this number of consecutive polls
/// without a completion. A back end completes a request in far less time than these polls take.
const POLLS_PER_CHECK: u32 = 4096;

/// Events of poll(2) on a connection whose other side has closed.
const END_EVENTS: u32 = epoll::HUP | epoll::PEER_HANG_UP | epoll::ERR;

/// The lifeline of one queue. It has no connection if this process is the control plane.
pub struct Lifeline {
    connection: Option<Connection>,
    /// Epoll set that is readable when the queue's call eventfd is, or when the connection has
    /// ended.
    either: Option<Epoll>,
    /// Number of polls since the last completion or check.
    empty_polls: u32,
}

impl Lifeline {
    /// Makes a lifeline. `call` is the call eventfd of a queue with interrupts.
    pub fn new(connection: Option<Connection>, call: Option<i32>) -> Result<Lifeline, Errno> {
        let mut either = None;
        if let Some((connection, call)) = connection.as_ref().zip(call) {
            let set = Epoll::new()?;
            set.add(call, epoll::IN, 0)?;
            set.add(connection.number(), epoll::IN, 0)?;
            either = Some(set);
        }
        Ok(Lifeline { connection, either, empty_polls: 0 })
    }

    pub fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    pub fn interrupt(&self) -> Option<i32> {
        self.either.as_ref().map(Epoll::number)
    }

    /// Returns whether the control plane has closed the connection, which ends the device for the
    /// whole run. Returns `false` if only an unread answer is on the connection, or if the program
    /// has closed the descriptor.
    pub fn is_cut(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|connection| {
            epoll::poll_now(connection.number(), END_EVENTS).is_ok_and(|ready| ready & END_EVENTS != 0)
        })
    }

    /// Clears the call eventfd before the queue's user sleeps on it. Returns `false` if the
    /// connection has ended, because no signal would then wake the user. One poll(2) checks eventfd
    /// and connection. It costs no more than a read of the eventfd, which is rarely needed: each
    /// poll that finds completions clears the eventfd.
    pub fn take_call(&self, call: i32) -> bool {
        let Some(connection) = &self.connection else {
            eventfd::drain(call);
            return true;
        };
        let mut both = [PollDescriptor::new(call, epoll::IN), PollDescriptor::new(connection.number(), END_EVENTS)];
        let asked = epoll::poll_all_now(&mut both);
        if asked.is_err() || both[0].returned() != 0 {
            eventfd::drain(call);
        }
        both[1].returned() & END_EVENTS == 0
    }

    /// Counts a poll, and checks the connection after enough polls without a completion. `found`:
    /// this poll has found a completion. Returns whether the connection has ended.
    #[inline]
    pub fn count_poll(&mut self, found: bool) -> bool {
        self.empty_polls = if found { 0 } else { self.empty_polls + 1 };
        self.empty_polls == POLLS_PER_CHECK && {
            self.empty_polls = 0;
            self.is_cut()
        }
    }
}
