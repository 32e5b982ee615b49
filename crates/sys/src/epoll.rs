//! usring's own epoll(7) sets.

use crate::descriptor::{self, OwnedDescriptor};
use crate::{Errno, SystemCall, width};
use alloc::ffi::CString;
use alloc::format;
use linux_raw_sys::general as linux;

pub const IN: u32 = linux::EPOLLIN;
pub const OUT: u32 = linux::EPOLLOUT;
pub const ERR: u32 = linux::EPOLLERR;
pub const HUP: u32 = linux::EPOLLHUP;
pub const PRI: u32 = linux::EPOLLPRI;
/// The peer will send no more (EPOLLRDHUP).
pub const PEER_HANG_UP: u32 = linux::EPOLLRDHUP;
pub const ONESHOT: u32 = linux::EPOLLONESHOT;
pub const EDGE: u32 = linux::EPOLLET;
pub const EXCLUSIVE: u32 = linux::EPOLLEXCLUSIVE;

/// `struct epoll_event`, which is packed on x86-64.
#[derive(Clone, Copy, Default)]
#[repr(C, packed)]
pub struct Event {
    pub events: u32,
    /// The `data` from the registration of the descriptor.
    pub data: u64,
}

/// An epoll set, at a descriptor number that is private to usring.
#[derive(Debug)]
pub struct Epoll(OwnedDescriptor);

impl Epoll {
    pub fn new() -> Result<Epoll, Errno> {
        let flags = u64::from(linux::EPOLL_CLOEXEC);
        let number = SystemCall::new(linux::__NR_epoll_create1, [flags, 0, 0, 0, 0]).run()?;
        Ok(Epoll(OwnedDescriptor::from_raw(width::int(number)).into_private()?))
    }

    pub fn number(&self) -> i32 {
        self.0.number()
    }

    fn control(&self, operation: u32, number: i32, event: &Event) -> Result<(), Errno> {
        let arguments =
            [width::word(self.number()), u64::from(operation), width::word(number), &raw const *event as u64, 0];
        SystemCall::new(linux::__NR_epoll_ctl, arguments).run().map(drop)
    }

    /// Adds a descriptor to the epoll set. Errors: `EPERM` if the descriptor's file cannot be
    /// polled (regular files, directories).
    pub fn add(&self, number: i32, events: u32, data: u64) -> Result<(), Errno> {
        self.control(linux::EPOLL_CTL_ADD, number, &Event { events, data })
    }

    pub fn modify(&self, number: i32, events: u32, data: u64) -> Result<(), Errno> {
        self.control(linux::EPOLL_CTL_MOD, number, &Event { events, data })
    }

    pub fn delete(&self, number: i32) -> Result<(), Errno> {
        self.control(linux::EPOLL_CTL_DEL, number, &Event::default())
    }

    /// Returns whether the set has no descriptors, as /proc shows it. The kernel removes a file
    /// from the set when the file's last descriptor in all processes is closed. `None`: not known.
    pub fn is_empty(&self) -> Option<bool> {
        let path = CString::new(format!("/proc/self/fdinfo/{}", self.number())).ok()?;
        let flags = u64::from(linux::O_RDONLY | linux::O_CLOEXEC);
        let arguments = [width::word(linux::AT_FDCWD), path.as_ptr() as u64, flags, 0, 0];
        let file = OwnedDescriptor::from_raw(width::int(SystemCall::new(linux::__NR_openat, arguments).run().ok()?));
        let mut text = [0u8; 256];
        let arguments = [width::word(file.number()), text.as_mut_ptr() as u64, text.len() as u64, 0, 0];
        let length = width::size(SystemCall::new(linux::__NR_read, arguments).run().ok()?);
        // In /proc/self/fdinfo, each descriptor of the set has a line that begins with `tfd:`.
        // Before these lines there are four others.
        Some(!text[..length].windows(4).any(|label| label == b"tfd:"))
    }

    /// Waits until the set has ready events, fills `events` with them, and returns their number.
    /// Waits for at most `most` milliseconds, or without a limit if `most` is `None`. For usring's
    /// own threads, which no signal interrupts.
    pub fn wait(&self, events: &mut [Event], most: Option<u16>) -> Result<usize, Errno> {
        self.collect(events, most.map_or(-1, i32::from))
    }

    /// Fills `events` with events that are ready now, and returns their number. Never waits.
    pub fn ready(&self, events: &mut [Event]) -> Result<usize, Errno> {
        self.collect(events, 0)
    }

    fn collect(&self, events: &mut [Event], timeout_ms: i32) -> Result<usize, Errno> {
        let arguments =
            [width::word(self.number()), events.as_mut_ptr() as u64, events.len() as u64, width::word(timeout_ms)];
        let [set, address, count, time] = arguments;
        let mut answer = SystemCall::with_six(linux::__NR_epoll_pwait, [set, address, count, time, 0, 8]).run();
        // A filter of the program may deny epoll_pwait(2). epoll_wait(2) serves as well, because
        // there is no signal mask.
        if matches!(answer, Err(Errno::EPERM | Errno::ENOSYS)) {
            answer = SystemCall::new(linux::__NR_epoll_wait, [set, address, count, time, 0]).run();
        }
        answer.map(width::size)
    }
}

/// Returns whether a descriptor can be polled at all, by an attempt to add it to an epoll set. For
/// a device there is no other way to determine this.
pub fn can_be_polled(number: i32) -> bool {
    Epoll::new().and_then(|set| set.add(number, 0, 0)) != Err(Errno::EPERM)
}

/// Returns the readiness of one descriptor now, as poll(2) reports it: the requested `events`,
/// error and hang-up.
pub fn poll_now(number: i32, events: u32) -> Result<u32, Errno> {
    poll(number, events, 0)
}

/// Returns whether `set` is an epoll set to which the descriptor `number` was added. `number` must
/// still refer to the file that was added. If kcmp(2) is denied, the answer is `true` for any epoll
/// set.
pub fn holds(set: i32, number: i32) -> bool {
    const KCMP_EPOLL_TFD: u64 = 7;
    let slot: [i32; 3] = [set, number, 0];
    let process = SystemCall::new(linux::__NR_getpid, [0; 5]).run().unwrap_or(0);
    let arguments = [process, process, KCMP_EPOLL_TFD, width::word(number), &raw const slot as u64];
    match SystemCall::new(linux::__NR_kcmp, arguments).run() {
        Ok(order) => order == 0,
        Err(Errno::EPERM | Errno::ENOSYS | Errno::EACCES) => {
            descriptor::link_of(set).starts_with(b"anon_inode:[eventpoll]")
        }
        Err(_) => false,
    }
}

/// Sleeps until a descriptor is readable. Signals do not end the sleep. So this function also
/// serves for waits that no signal interrupts in Linux.
pub fn wait_readable(number: i32) -> Result<(), Errno> {
    poll(number, IN, -1).map(drop)
}

/// `struct pollfd`.
#[repr(C)]
pub struct PollDescriptor {
    number: i32,
    events: i16,
    returned: i16,
}

impl PollDescriptor {
    pub fn new(number: i32, events: u32) -> Self {
        PollDescriptor { number, events: width::short(u64::from(events)).cast_signed(), returned: 0 }
    }

    /// Builds a poll(2) call for this descriptor alone. A negative `timeout_ms` means no time
    /// limit.
    pub fn call(&mut self, timeout_ms: i32) -> SystemCall {
        SystemCall::new(linux::__NR_poll, [&raw mut *self as u64, 1, width::word(timeout_ms), 0, 0])
    }

    /// Returns the events that poll(2) reported: requested events, error and hang-up.
    pub fn returned(&self) -> u32 {
        u32::from(self.returned.cast_unsigned())
    }
}

/// Stores in `descriptors` which of them are ready, by one poll(2) that does not wait.
pub fn poll_all_now(descriptors: &mut [PollDescriptor]) -> Result<(), Errno> {
    let (address, count) = (descriptors.as_mut_ptr() as u64, descriptors.len() as u64);
    SystemCall::new(linux::__NR_poll, [address, count, 0, 0, 0]).run().map(drop)
}

fn poll(number: i32, events: u32, timeout_ms: i32) -> Result<u32, Errno> {
    let mut one = PollDescriptor::new(number, events);
    one.call(timeout_ms).run()?;
    let returned = one.returned.cast_unsigned();
    const POLLNVAL: u16 = 0x20;
    if returned & POLLNVAL != 0 { Err(Errno::EBADF) } else { Ok(u32::from(returned)) }
}
