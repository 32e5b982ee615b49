//! Detects the end of the control plane. If it can, the control plane ends its queues itself
//! ([`super::generation`]). A killed control plane cannot, and the back end no longer serves queues
//! whose connection it has lost. But the kernel then closes the connection on which the user got
//! its queue.
//!
//! - A sleeping user is woken: the queue's interrupt is an epoll set of the call and the
//!   connection.
//! - A polling user checks the connection now and then.

use usring_sys::epoll::{self, Epoll, PollDescriptor};
use usring_sys::unix_socket::Connection;
use usring_sys::{Errno, eventfd};

/// Number of fruitless polls in a row before a check. That takes far longer than a back end's
/// request.
const PATIENCE: u32 = 4096;

/// Events of poll(2) on a connection whose other side has closed.
const END: u32 = epoll::HUP | epoll::PEER_HANG_UP | epoll::ERR;

/// The lifeline of one queue. Without a connection this process is the control plane.
pub struct Lifeline {
    connection: Option<Connection>,
    /// Readable for the queue's call and for the end of the connection.
    either: Option<Epoll>,
    /// Polls since the last completion.
    fruitless: u32,
}

impl Lifeline {
    /// Makes a lifeline. `call`: the eventfd of a queue with interrupts.
    pub fn new(connection: Option<Connection>, call: Option<i32>) -> Result<Lifeline, Errno> {
        let mut either = None;
        if let Some((connection, call)) = connection.as_ref().zip(call) {
            let set = Epoll::new()?;
            set.add(call, epoll::IN, 0)?;
            set.add(connection.number(), epoll::IN, 0)?;
            either = Some(set);
        }
        Ok(Lifeline { connection, either, fruitless: 0 })
    }

    pub fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    pub fn interrupt(&self) -> Option<i32> {
        self.either.as_ref().map(Epoll::number)
    }

    /// Returns whether the connection has ended, which ends the device for the whole run. An unread
    /// answer on the connection does not count, nor does a descriptor that the program has closed.
    pub fn is_cut(&self) -> bool {
        let connection = self.connection.as_ref();
        connection
            .is_some_and(|connection| epoll::poll_now(connection.number(), END).is_ok_and(|ready| ready & END != 0))
    }

    /// Drains the call before the user sleeps on it. `false` if the lifeline is cut, so that no
    /// call would come. The call is rarely readable, because a poll that finds completions drains
    /// it. So one poll(2) of both descriptors costs no more than reading the call.
    pub fn take_call(&self, call: i32) -> bool {
        let Some(connection) = &self.connection else {
            eventfd::drain(call);
            return true;
        };
        let mut both = [PollDescriptor::new(call, epoll::IN), PollDescriptor::new(connection.number(), END)];
        let asked = epoll::poll_all_now(&mut both);
        if asked.is_err() || both[0].returned() != 0 {
            eventfd::drain(call);
        }
        both[1].returned() & END == 0
    }

    /// Counts a poll, and checks the connection if it is time. Returns whether the lifeline is cut.
    #[inline]
    pub fn looked(&mut self, found: bool) -> bool {
        self.fruitless = if found { 0 } else { self.fruitless + 1 };
        self.fruitless == PATIENCE && {
            self.fruitless = 0;
            self.is_cut()
        }
    }
}
