//! Whether the control plane lives. It ends its queues in order ([`super::generation`])
//! when it can; one that was killed cannot, and the back end does not serve queues
//! whose connection it has lost. Then the connection on which a queue came to its
//! user has ended, too: the kernel sees to that.
//!
//! A sleeper wakes of it (the queue's interrupt is an epoll set of the call and the
//! connection). Who polls asks now and then.

use usring_sys::epoll::{self, Epoll, PollDescriptor};
use usring_sys::unix_socket::Connection;
use usring_sys::{Errno, eventfd};

/// Looks in a row that find nothing, before the kernel is asked: far more than a back
/// end takes for a request.
const PATIENCE: u32 = 4096;

/// What poll(2) says of a connection whose other side has gone.
const END: u32 = epoll::HUP | epoll::PEER_HANG_UP | epoll::ERR;

/// Of one queue. Without a connection the control plane is this process.
pub struct Lifeline {
    connection: Option<Connection>,
    /// Readable for the queue's call, and for the end.
    either: Option<Epoll>,
    /// Looks since something was found.
    fruitless: u32,
}

impl Lifeline {
    /// `call`: for a queue with interrupts.
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

    /// Only its end says so, which ends the device for all of the run: not an answer that
    /// waits there, nor a descriptor that the program has closed over our heads.
    pub fn is_cut(&self) -> bool {
        let connection = self.connection.as_ref();
        connection
            .is_some_and(|connection| epoll::poll_now(connection.number(), END).is_ok_and(|ready| ready & END != 0))
    }

    /// Makes the call unreadable before somebody sleeps until it; `false` if it would not come:
    /// the lifeline is cut. The call is seldom there (a look that finds something takes it),
    /// so one question about both costs no more than reading it would.
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

    /// After a look: whether it is cut, if that is asked this time.
    #[inline]
    pub fn looked(&mut self, found: bool) -> bool {
        self.fruitless = if found { 0 } else { self.fruitless + 1 };
        self.fruitless == PATIENCE && {
            self.fruitless = 0;
            self.is_cut()
        }
    }
}
