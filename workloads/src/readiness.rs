//! A small wrapper of epoll(7) for the servers and clients of this crate.

use crate::sockets::checked;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// An epoll set, and the events that its last wait returned.
pub struct Readiness {
    set: OwnedFd,
    events: Vec<libc::epoll_event>,
    count: usize,
}

impl Readiness {
    /// Makes an empty set. A wait returns at most `most` events.
    pub fn new(most: usize) -> io::Result<Readiness> {
        // SAFETY: the descriptor is new, and nothing else owns it.
        let set = unsafe { OwnedFd::from_raw_fd(checked(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Readiness { set, events: vec![libc::epoll_event { events: 0, u64: 0 }; most], count: 0 })
    }

    pub fn add(&self, file: &impl AsRawFd, events: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: the event lives through the call.
        checked(unsafe { libc::epoll_ctl(self.set.as_raw_fd(), libc::EPOLL_CTL_ADD, file.as_raw_fd(), &mut event) })?;
        Ok(())
    }

    /// Waits for events for up to `milliseconds`. With −1 there is no limit.
    pub fn wait(&mut self, milliseconds: i32) -> io::Result<()> {
        // SAFETY: the array has as many elements as the call says.
        let answer = checked(unsafe {
            libc::epoll_wait(self.set.as_raw_fd(), self.events.as_mut_ptr(), self.events.len() as i32, milliseconds)
        });
        self.count = match answer {
            Ok(count) => count as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// Returns the number of events of the last wait.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns an event of the last wait: its flags and the registered value.
    pub fn event(&self, at: usize) -> (u32, u64) {
        let event = self.events[at];
        (event.events, event.u64)
    }
}
