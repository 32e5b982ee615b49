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
//! // SAFETY: the iocb and the buffer live until the event is posted.
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
//! A [polled context](Context::polled) needs no interrupts: the thread that calls
//! [`Context::events`] polls for the completions itself. For a device of the run (`usring run
//! --device`) the thread polls the device's queue pairs. For any other file open with `O_DIRECT` it
//! reads the ring in which the kernel's AIO posts its events.
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
//! // SAFETY: the iocb and the block live until the event is posted.
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
use usring_sys::{Errno, UserAddress, width};
use usring_uapi::Timespec;
pub use usring_uapi::aio::{
    AioRing, IOCB_CMD_FDSYNC, IOCB_CMD_FSYNC, IOCB_CMD_POLL, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE,
    IOCB_CMD_PWRITEV, IOCB_FLAG_HIPRI, IOCB_FLAG_IOPRIO, IOCB_FLAG_RESFD, IOCTX_FLAG_IOPOLL, IoEvent, Iocb,
};

/// An AIO context. Dropping it waits until none of its requests is in flight. A child made by
/// fork(2) cannot use its parent's context: there, every call answers `EINVAL`.
#[derive(Debug)]
pub struct Context {
    address: u64,
}

impl Context {
    /// Makes a context that can have `requests` requests in flight, as io_setup(2) does.
    pub fn new(requests: u32) -> io::Result<Context> {
        Context::made_by(|trust, place| usring_aio::setup(trust, requests, place))
    }

    /// Makes a context for which [`Context::events`] polls, as io_setup2 does with
    /// `IOCTX_FLAG_IOPOLL`.
    ///
    /// - Each request must carry [`IOCB_FLAG_HIPRI`] and must be a transfer of a file open with
    ///   `O_DIRECT`.
    /// - [`Context::submit`] answers `EINVAL` for a request without the flag, with another command,
    ///   or with an eventfd of its own. It answers `EOPNOTSUPP` if the request's file cannot be
    ///   polled.
    /// - [`Context::submit`] takes at most as many requests per call as the context's ring has
    ///   slots (127 for a small context). Any number may be in flight.
    /// - [`Context::events`] spins until it has enough events or no request is in flight. It
    ///   ignores the time limit. A second thread that calls it meanwhile gets `EBUSY`.
    /// - The [ring](Context::ring) in memory stays empty.
    pub fn polled(requests: u32) -> io::Result<Context> {
        Context::with_flags(requests, IOCTX_FLAG_IOPOLL)
    }

    /// Makes a context with the given `IOCTX_FLAG_*`, as io_setup2 does. Without flags, the context
    /// follows the rules of [`Context::new`], but refuses requests with [`IOCB_FLAG_HIPRI`].
    pub fn with_flags(requests: u32, flags: u32) -> io::Result<Context> {
        const NO_RINGS: [UserAddress; 2] = [UserAddress::NULL; 2];
        Context::made_by(|trust, place| usring_aio::setup_with_flags(trust, requests, flags, NO_RINGS, place))
    }

    fn made_by(setup: impl FnOnce(AddressTrust, UserAddress) -> Result<(), Errno>) -> io::Result<Context> {
        process::prepare();
        let mut address = 0u64;
        // SAFETY: the callers of `submit` promise that each request's memory is valid.
        let trust = unsafe { AddressTrust::new() };
        setup(trust, UserAddress(&raw mut address as u64)).map_err(os_error)?;
        Ok(Context { address })
    }

    /// Returns the address of the context's ring of events, in Linux's layout ([`AioRing`]). Events
    /// appear in the ring even if the program never calls [`Context::events`]. The address is valid
    /// until the context is dropped.
    pub fn ring(&self) -> *const AioRing {
        width::size(self.address) as *const AioRing
    }

    /// Submits requests, as io_submit(2) does, and returns how many it has submitted. Submission
    /// stops at the first request that is refused. Its error is returned only if no request was
    /// submitted before it.
    ///
    /// # Safety
    /// Each pointer is valid for an [`Iocb`], which is used only during the call. The memory that
    /// the iocb names stays valid until the iocb's event has been posted, and the caller does not
    /// use it until then.
    pub unsafe fn submit(&self, iocbs: &[*mut Iocb]) -> io::Result<usize> {
        let list = UserAddress(iocbs.as_ptr() as u64);
        usring_aio::submit(self.address, iocbs.len().cast_signed() as i64, list).map(width::size).map_err(os_error)
    }

    /// Waits for `least` events, but no longer than `timeout`, as io_getevents(2) does. Stores as
    /// many events as `events` has room for, and returns their number.
    pub fn events(&self, least: usize, events: &mut [IoEvent], timeout: Option<Duration>) -> io::Result<usize> {
        let time = timeout.map(|span| Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(span.subsec_nanos()),
        });
        let time = time.as_ref().map_or(UserAddress::NULL, |time| UserAddress(&raw const *time as u64));
        let to = UserAddress(events.as_mut_ptr() as u64);
        let taken = usring_aio::get_events(
            self.address,
            least.cast_signed() as i64,
            events.len().cast_signed() as i64,
            to,
            time,
        );
        taken.map(width::size).map_err(os_error)
    }

    /// Cancels a waiting poll request, as io_cancel(2) does. `iocb` is the address that was passed
    /// to [`Context::submit`]. The request's event is posted nevertheless, so a successful call
    /// returns the error `EINPROGRESS`.
    ///
    /// # Safety
    /// `iocb` still points to valid memory.
    pub unsafe fn cancel(&self, iocb: *mut Iocb) -> io::Result<()> {
        usring_aio::cancel(self.address, UserAddress(iocb as u64)).map_err(os_error)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // The error is ignored: in a forked child, where the context does not exist, `destroy`
        // fails.
        let _ = usring_aio::destroy(self.address);
    }
}
