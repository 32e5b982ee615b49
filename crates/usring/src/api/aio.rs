//! AIO contexts in this process: the interface of libaio on usring's engine.
//!
//! ```
//! use std::fs::File;
//! use std::os::fd::AsRawFd;
//! use usring::aio::{Context, IOCB_CMD_PREAD, IoEvent, Iocb};
//!
//! # fn main() -> std::io::Result<()> {
//! let context = Context::new(8)?;
//! let file = File::open("Cargo.toml")?;
//! let mut buffer = vec![0; 64];
//! let mut read = Iocb {
//!     aio_data: 42,
//!     aio_lio_opcode: IOCB_CMD_PREAD,
//!     aio_fildes: file.as_raw_fd() as u32,
//!     aio_buf: buffer.as_mut_ptr() as u64,
//!     aio_nbytes: buffer.len() as u64,
//!     ..Iocb::default()
//! };
//! // SAFETY: the iocb and the buffer live until the event is there.
//! assert_eq!(unsafe { context.submit(&[&raw mut read]) }?, 1);
//!
//! let mut events = [IoEvent::default(); 8];
//! assert_eq!(context.events(1, &mut events, None)?, 1);
//! assert_eq!(events[0].data, 42);
//! assert!(events[0].res > 0, "bytes read, or a negative errno");
//! # Ok(())
//! # }
//! ```

use super::os_error;
use super::process;
use std::io;
use std::time::Duration;
use usring_sys::UserAddress;
use usring_sys::syscall::AddressTrust;
use usring_uapi::Timespec;
pub use usring_uapi::aio::{
    AioRing, IOCB_CMD_FDSYNC, IOCB_CMD_FSYNC, IOCB_CMD_POLL, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE,
    IOCB_CMD_PWRITEV, IOCB_FLAG_IOPRIO, IOCB_FLAG_RESFD, IoEvent, Iocb,
};

/// An AIO context. Dropping it waits until nothing of it is under way; in a
/// child made by fork(2) it is the parent's, and every call answers `EINVAL`.
#[derive(Debug)]
pub struct Context {
    address: u64,
}

impl Context {
    /// io_setup(2): for so many requests at a time.
    pub fn new(requests: u32) -> io::Result<Context> {
        process::prepare();
        let mut address = 0u64;
        // SAFETY: whoever submits vouches for each request's memory.
        let trust = unsafe { AddressTrust::new() };
        usring_aio::setup(trust, requests, UserAddress(&raw mut address as u64)).map_err(os_error)?;
        Ok(Context { address })
    }

    /// Where the events appear, whether they are asked for or not: the ring of an
    /// AIO context, as Linux lays it out ([`AioRing`]), until the context is dropped.
    pub fn ring(&self) -> *const AioRing {
        self.address as usize as *const AioRing
    }

    /// io_submit(2): answers how many were taken. An error is that of the first.
    ///
    /// # Safety
    /// Each points to an [`Iocb`], which is only used during the call; the memory
    /// that it names stays valid, and nobody else uses it, until its event is there.
    pub unsafe fn submit(&self, iocbs: &[*mut Iocb]) -> io::Result<usize> {
        let list = UserAddress(iocbs.as_ptr() as u64);
        usring_aio::submit(self.address, iocbs.len() as i64, list).map(|taken| taken as usize).map_err(os_error)
    }

    /// io_getevents(2): waits for `least` events, at most for `timeout`, and takes
    /// as many as there is room for; answers how many.
    pub fn events(&self, least: usize, events: &mut [IoEvent], timeout: Option<Duration>) -> io::Result<usize> {
        let time = timeout.map(|span| Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(span.subsec_nanos()),
        });
        let time = time.as_ref().map_or(UserAddress::NULL, |time| UserAddress(&raw const *time as u64));
        let to = UserAddress(events.as_mut_ptr() as u64);
        let taken = usring_aio::get_events(self.address, least as i64, events.len() as i64, to, time);
        taken.map(|taken| taken as usize).map_err(os_error)
    }

    /// io_cancel(2) of a poll that waits, by the address at which its iocb was
    /// submitted. Its event comes all the same, which `EINPROGRESS` says.
    ///
    /// # Safety
    /// The iocb is still there.
    pub unsafe fn cancel(&self, iocb: *mut Iocb) -> io::Result<()> {
        usring_aio::cancel(self.address, UserAddress(iocb as u64)).map_err(os_error)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // In a child there is none.
        let _ = usring_aio::destroy(self.address);
    }
}
