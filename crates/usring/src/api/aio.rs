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
//!
//! # Polled
//! The events of a [polled context](Context::polled) are looked for by whoever asks for them, and nothing
//! interrupts anybody: of devices of the run (`usring run --device`) their queue pairs are polled, of
//! any other file that is open with `O_DIRECT` the ring by which the kernel's AIO answers.
//!
//! ```
//! use std::fs::File;
//! use std::os::fd::AsRawFd;
//! use std::os::unix::fs::OpenOptionsExt;
//! use usring::aio::{Context, IOCB_CMD_PREAD, IOCB_FLAG_HIPRI, IoEvent, Iocb};
//!
//! #[repr(align(4096))]
//! struct Block([u8; 4096]);
//!
//! # fn main() -> std::io::Result<()> {
//! let context = Context::polled(8)?;
//! let file = File::options().read(true).custom_flags(libc::O_DIRECT).open("Cargo.toml")?;
//! let mut block = Block([0; 4096]);
//! let mut read = Iocb {
//!     aio_lio_opcode: IOCB_CMD_PREAD,
//!     aio_fildes: file.as_raw_fd() as u32,
//!     aio_buf: &raw mut block as u64,
//!     aio_nbytes: 4096,
//!     aio_flags: IOCB_FLAG_HIPRI,
//!     ..Iocb::default()
//! };
//! // SAFETY: the iocb and the block live until the event is there.
//! unsafe { context.submit(&[&raw mut read]) }?;
//! let mut events = [IoEvent::default(); 1];
//! assert_eq!(context.events(1, &mut events, None)?, 1);
//! assert!(block.0.starts_with(b"[package]"));
//! # Ok(())
//! # }
//! ```

use super::os_error;
use super::process;
use std::io;
use std::time::Duration;
use usring_sys::syscall::AddressTrust;
use usring_sys::{Errno, UserAddress};
use usring_uapi::Timespec;
pub use usring_uapi::aio::{
    AioRing, IOCB_CMD_FDSYNC, IOCB_CMD_FSYNC, IOCB_CMD_POLL, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE,
    IOCB_CMD_PWRITEV, IOCB_FLAG_HIPRI, IOCB_FLAG_IOPRIO, IOCB_FLAG_RESFD, IOCTX_FLAG_IOPOLL, IoEvent, Iocb,
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
        Context::made_by(|trust, place| usring_aio::setup(trust, requests, place))
    }

    /// io_setup2 with `IOCTX_FLAG_IOPOLL`: a context whose events are polled for.
    ///
    /// Each of its requests carries [`IOCB_FLAG_HIPRI`] and is a transfer of a file open with `O_DIRECT`; others
    /// are refused: `EINVAL` for the flag and for other commands, and for an eventfd
    /// of the request's own, `EOPNOTSUPP` for a file that cannot be polled for.
    /// [`Context::submit`] takes 127 at once, and however many all in all; [`Context::events`] spins
    /// until there are enough or nothing is under way, whatever the time limit, for one
    /// thread at a time (`EBUSY`). The [ring](Context::ring) stays empty.
    pub fn polled(requests: u32) -> io::Result<Context> {
        Context::with_flags(requests, IOCTX_FLAG_IOPOLL)
    }

    /// io_setup2: with these `IOCTX_FLAG_*`. Without any, requests with
    /// [`IOCB_FLAG_HIPRI`] are refused, and all else is as in [`Context::new`].
    pub fn with_flags(requests: u32, flags: u32) -> io::Result<Context> {
        const NO_RINGS: [UserAddress; 2] = [UserAddress::NULL; 2];
        Context::made_by(|trust, place| usring_aio::setup_with_flags(trust, requests, flags, NO_RINGS, place))
    }

    fn made_by(setup: impl FnOnce(AddressTrust, UserAddress) -> Result<(), Errno>) -> io::Result<Context> {
        process::prepare();
        let mut address = 0u64;
        // SAFETY: whoever submits vouches for each request's memory.
        let trust = unsafe { AddressTrust::new() };
        setup(trust, UserAddress(&raw mut address as u64)).map_err(os_error)?;
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
