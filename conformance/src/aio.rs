//! Kernel AIO for cases: wrappers of its system calls, an AIO context, and the event ring that the
//! kernel maps into the program's memory for each context.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use usring_uapi::Timespec;
use usring_uapi::aio::{self, AioRing, IoEvent, Iocb};

use crate::syscalls;
use crate::transcript::Transcript;

/// Calls io_setup(2), which writes the new context's id to `place`. Returns the result or a
/// negative errno.
pub fn setup(requests: u32, place: *mut u64) -> i32 {
    // SAFETY: the kernel checks the pointer.
    unsafe { syscalls::call(libc::SYS_io_setup, [requests as usize, place as usize, 0, 0, 0, 0]) as i32 }
}

/// Calls io_destroy(2), and returns its result or a negative errno.
pub fn destroy(context: u64) -> i32 {
    // SAFETY: the kernel frees only the context's own memory, which nothing uses after this call.
    unsafe { syscalls::call(libc::SYS_io_destroy, [context as usize, 0, 0, 0, 0, 0]) as i32 }
}

/// Calls io_submit(2), and returns its result or a negative errno.
pub fn submit(context: u64, count: i64, list: *const *mut Iocb) -> i32 {
    // SAFETY: the kernel checks the pointers. The iocbs name further memory, which each case keeps
    // alive until the iocbs complete.
    unsafe { syscalls::call(libc::SYS_io_submit, [context as usize, count as usize, list as usize, 0, 0, 0]) as i32 }
}

/// Calls io_getevents(2), and returns its result or a negative errno.
pub fn get(context: u64, least: i64, most: i64, events: *mut IoEvent, timeout: *const Timespec) -> i32 {
    let arguments = [context as usize, least as usize, most as usize, events as usize, timeout as usize, 0];
    // SAFETY: the kernel checks the pointers.
    unsafe { syscalls::call(libc::SYS_io_getevents, arguments) as i32 }
}

/// Calls io_pgetevents(2), and returns its result or a negative errno.
pub fn get_masked(
    context: u64,
    least: i64,
    most: i64,
    events: *mut IoEvent,
    timeout: *const Timespec,
    mask: *const [u64; 2],
) -> i32 {
    let arguments = [context as usize, least as usize, most as usize, events as usize, timeout as usize, mask as usize];
    // SAFETY: the kernel checks the pointers.
    unsafe { syscalls::call(i64::from(usring_uapi::general::__NR_io_pgetevents), arguments) as i32 }
}

/// Calls io_cancel(2), and returns its result or a negative errno.
pub fn cancel(context: u64, iocb: *mut Iocb) -> i32 {
    let mut event = IoEvent::default();
    let arguments = [context as usize, iocb as usize, &raw mut event as usize, 0, 0, 0];
    // SAFETY: the kernel checks the pointers.
    unsafe { syscalls::call(libc::SYS_io_cancel, arguments) as i32 }
}

/// An AIO context, which is destroyed when this object is dropped.
pub struct Context(pub u64);

impl Context {
    pub fn new(requests: u32) -> Context {
        let mut address = 0;
        assert_eq!(setup(requests, &mut address), 0, "io_setup");
        Context(address)
    }

    pub fn submit(&self, iocbs: &mut [Iocb]) -> i32 {
        let mut list: Vec<*mut Iocb> = iocbs.iter_mut().map(|iocb| &raw mut *iocb).collect();
        submit(self.0, list.len() as i64, list.as_mut_ptr())
    }

    /// Waits up to 30 seconds for `least` events and returns them. If the time runs out, the list
    /// has fewer events.
    pub fn wait(&self, least: usize) -> Vec<IoEvent> {
        self.get(least as i64, 64, Duration::from_secs(30)).unwrap_or_default()
    }

    pub fn get(&self, least: i64, most: i64, limit: Duration) -> Result<Vec<IoEvent>, i32> {
        let timeout = crate::time::from_duration(limit);
        let mut events = vec![IoEvent::default(); most.max(0) as usize];
        let answer = get(self.0, least, most, events.as_mut_ptr(), &timeout);
        if answer < 0 {
            return Err(answer);
        }
        events.truncate(answer as usize);
        Ok(events)
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the kernel maps the context's ring at this address until the context is
        // destroyed. The kernel and the program access the ring's words as atomics.
        unsafe { &*((self.0 as usize + offset) as *const AtomicU32) }
    }

    /// Reads the header of the context's event ring.
    pub fn header(&self) -> AioRing {
        let word = |index: usize| self.word(4 * index).load(Ordering::Acquire);
        AioRing {
            id: word(0),
            nr: word(1),
            head: word(2),
            tail: word(3),
            magic: word(4),
            compat_features: word(5),
            incompat_features: word(6),
            header_length: word(7),
        }
    }

    pub fn set_head(&self, head: u32) {
        self.word(8).store(head, Ordering::Release);
    }

    pub fn set_tail(&self, tail: u32) {
        self.word(12).store(tail, Ordering::Release);
    }

    pub fn set_id(&self, id: u32) {
        self.word(0).store(id, Ordering::Release);
    }

    /// Takes the next event from the event ring in memory, without a system call. Returns `None` if
    /// the event ring is empty.
    pub fn reap(&self) -> Option<IoEvent> {
        let header = self.header();
        if header.head == header.tail {
            return None;
        }
        let event = self.0 as usize + header.header_length as usize + 32 * header.head as usize;
        // SAFETY: the event lies before the ring's tail, which was read above. So the kernel has
        // written the event.
        let event = unsafe { (event as *const IoEvent).read_volatile() };
        self.set_head((header.head + 1) % header.nr);
        Some(event)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        destroy(self.0);
    }
}

fn iocb(command: u16, file: i32, data: u64) -> Iocb {
    Iocb { aio_data: data, aio_lio_opcode: command, aio_fildes: file as u32, ..Iocb::default() }
}

pub fn read(file: i32, to: &mut [u8], offset: i64, data: u64) -> Iocb {
    let (aio_buf, aio_nbytes) = (to.as_mut_ptr() as u64, to.len() as u64);
    Iocb { aio_buf, aio_nbytes, aio_offset: offset, ..iocb(aio::IOCB_CMD_PREAD, file, data) }
}

pub fn write(file: i32, from: &[u8], offset: i64, data: u64) -> Iocb {
    let (aio_buf, aio_nbytes) = (from.as_ptr() as u64, from.len() as u64);
    Iocb { aio_buf, aio_nbytes, aio_offset: offset, ..iocb(aio::IOCB_CMD_PWRITE, file, data) }
}

pub fn read_vector(file: i32, to: &[libc::iovec], offset: i64, data: u64) -> Iocb {
    let (aio_buf, aio_nbytes) = (to.as_ptr() as u64, to.len() as u64);
    Iocb { aio_buf, aio_nbytes, aio_offset: offset, ..iocb(aio::IOCB_CMD_PREADV, file, data) }
}

pub fn write_vector(file: i32, from: &[libc::iovec], offset: i64, data: u64) -> Iocb {
    Iocb { aio_lio_opcode: aio::IOCB_CMD_PWRITEV, ..read_vector(file, from, offset, data) }
}

pub fn sync(file: i32, data: u64) -> Iocb {
    iocb(aio::IOCB_CMD_FSYNC, file, data)
}

pub fn data_sync(file: i32, data: u64) -> Iocb {
    iocb(aio::IOCB_CMD_FDSYNC, file, data)
}

pub fn poll(file: &OwnedFd, events: i16, data: u64) -> Iocb {
    Iocb { aio_buf: u64::from(events as u16), ..iocb(aio::IOCB_CMD_POLL, file.as_raw_fd(), data) }
}

/// Prints events, sorted by the `data` that their iocbs have chosen. An errno as a result is
/// printed by its name.
pub fn events(t: &mut Transcript, mut events: Vec<IoEvent>) {
    events.sort_by_key(|event| event.data);
    for event in &events {
        t.say(format_args!("event {}: {} {}", event.data, crate::names::result(event.res as i32), event.res2));
    }
    if events.is_empty() {
        t.say("no event");
    }
}

/// Prints the events of poll requests. The output leaves out POLLRDNORM, POLLWRNORM and the like:
/// the kernel reports these bits although the request did not ask for them.
pub fn poll_events(t: &mut Transcript, mut events: Vec<IoEvent>) {
    const KINDS: i64 = 0x40 | 0x80 | 0x100 | 0x200;
    events.sort_by_key(|event| event.data);
    for event in &events {
        t.say(format_args!("event {}: {}", event.data, crate::names::events((event.res & !KINDS) as i32)));
    }
    if events.is_empty() {
        t.say("no event");
    }
}
