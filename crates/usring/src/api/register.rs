//! io_uring_register(2): files, buffers, buffer rings, eventfds, limits.

use super::os_error;
use super::submitter::Submitter;
use crate::opcode::AsyncCancel2;
use crate::types::{CancelBuilder, CloneBuffersFlags, Timespec};
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::RawFd;
use usring_sys::UserAddress;
use usring_uapi::general::__kernel_timespec;
use usring_uapi::io_uring as abi;
use usring_uapi::io_uring::io_uring_register_op as op;

pub use io_uring::register::{Restriction, SKIP_FILE};

/// How a slice is handed over.
fn address_of<T>(slice: &[T]) -> u64 {
    slice.as_ptr() as u64
}

impl Submitter<'_> {
    pub(super) fn register_raw(&self, opcode: u32, argument: UserAddress, count: u32) -> io::Result<u32> {
        self.core.ring.register(opcode, argument, count).map_err(os_error)
    }

    pub(super) fn register_nothing(&self, opcode: op) -> io::Result<u32> {
        self.register_raw(opcode as u32, UserAddress::NULL, 0)
    }

    pub(super) fn register_with<T>(&self, opcode: op, argument: &T, count: u32) -> io::Result<u32> {
        self.register_raw(opcode as u32, UserAddress((&raw const *argument) as u64), count)
    }

    /// io_uring_register(2) as it is, for what has no function of its own here.
    ///
    /// # Errors
    /// Those of io_uring_register(2), and `EOWNERDEAD` for a parent's ring.
    ///
    /// # Safety
    /// `arg` is what `opcode` takes, with `nr_args` as it counts it, and is
    /// written to where the opcode answers in it.
    pub unsafe fn register(&self, opcode: u32, arg: *mut libc::c_void, nr_args: u32) -> io::Result<u32> {
        self.register_raw(opcode, UserAddress(arg as u64), nr_args)
    }

    /// Registers buffers for `ReadFixed` and `WriteFixed`, which name them by
    /// their index.
    ///
    /// # Errors
    /// `EBUSY`: there are some already. `EINVAL`: none, or more than 16,384.
    /// `EFAULT`: one cannot be written, is empty or longer than 1 GiB.
    ///
    /// # Safety
    /// Each is memory that the operations may use, until it is unregistered or
    /// the ring is dropped.
    pub unsafe fn register_buffers(&self, bufs: &[libc::iovec]) -> io::Result<()> {
        self.register_raw(op::IORING_REGISTER_BUFFERS as u32, UserAddress(address_of(bufs)), bufs.len() as u32)
            .map(drop)
    }

    /// The same, each with a tag: when a buffer is gone, and no request uses it
    /// any more, a completion with its tag as user data is posted. 0 is no tag.
    ///
    /// # Errors
    /// Those of [`register_buffers`](Submitter::register_buffers).
    ///
    /// # Safety
    /// As [`register_buffers`](Submitter::register_buffers).
    pub unsafe fn register_buffers2(&self, bufs: &[libc::iovec], tags: &[u64]) -> io::Result<()> {
        let resources = abi::io_uring_rsrc_register {
            nr: bufs.len().min(tags.len()) as u32,
            flags: 0,
            resv2: 0,
            data: address_of(bufs),
            tags: address_of(tags),
        };
        self.register_resources(op::IORING_REGISTER_BUFFERS2, resources)
    }

    /// Registers a table of `nr` empty slots, to be filled by
    /// [`register_buffers_update`](Submitter::register_buffers_update).
    ///
    /// # Errors
    /// `EBUSY`: there is a table already. `EINVAL`: 0 or more than 16,384 slots.
    pub fn register_buffers_sparse(&self, nr: u32) -> io::Result<()> {
        self.register_resources(op::IORING_REGISTER_BUFFERS2, sparse(nr))
    }

    /// Registers the buffers of another ring with this one, too: the memory that
    /// was vouched for there has to stay for both.
    ///
    /// # Errors
    /// `EBUSY`: this ring has some already. `ENXIO`: the other has none. `EEXIST`: it is another
    /// thread's alone. `EBADF`, `EOPNOTSUPP`: it is no ring.
    pub fn register_buffers_clone(&self, src_fd: RawFd) -> io::Result<()> {
        self.register_buffers_clone_offset(src_fd, 0, 0, 0, CloneBuffersFlags::empty())
    }

    /// The same with a part of the other's: `nr` buffers from `src_off` on, to the
    /// slots from `dst_off` on.
    ///
    /// # Errors
    /// Those above; `EINVAL`, `EOVERFLOW`: it has not so many.
    pub fn register_buffers_clone_offset(
        &self,
        src_fd: RawFd,
        src_off: u32,
        dst_off: u32,
        nr: u32,
        flags: CloneBuffersFlags,
    ) -> io::Result<()> {
        let argument: [u32; 8] = [src_fd as u32, flags.bits(), src_off, dst_off, nr, 0, 0, 0];
        self.register_with(op::IORING_REGISTER_CLONE_BUFFERS, &argument, 1).map(drop)
    }

    /// Replaces the buffers of the slots from `offset` on. An `iovec` of null
    /// and 0 empties its slot.
    ///
    /// # Errors
    /// `ENXIO`: there is no table. `EINVAL`: it has not so many slots. `EFAULT`
    /// as for [`register_buffers`](Submitter::register_buffers), if it is the
    /// first one; a later one ends the update early.
    ///
    /// # Safety
    /// As [`register_buffers`](Submitter::register_buffers).
    pub unsafe fn register_buffers_update(
        &self,
        offset: u32,
        bufs: &[libc::iovec],
        tags: Option<&[u64]>,
    ) -> io::Result<()> {
        let update = abi::io_uring_rsrc_update2 {
            offset,
            resv: 0,
            data: address_of(bufs),
            tags: tags.map_or(0, address_of),
            nr: tags.map_or(bufs.len(), |tags| bufs.len().min(tags.len())) as u32,
            resv2: 0,
        };
        self.register_with(op::IORING_REGISTER_BUFFERS_UPDATE, &update, size_of_val(&update) as u32).map(drop)
    }

    fn register_resources(&self, opcode: op, resources: abi::io_uring_rsrc_register) -> io::Result<()> {
        self.register_with(opcode, &resources, size_of_val(&resources) as u32).map(drop)
    }

    /// Forgets all registered buffers.
    ///
    /// # Errors
    /// `ENXIO`: there are none.
    pub fn unregister_buffers(&self) -> io::Result<()> {
        self.register_nothing(op::IORING_UNREGISTER_BUFFERS).map(drop)
    }

    /// Registers files, which requests name by their index
    /// ([`types::Fixed`](crate::types::Fixed)). −1 leaves a slot empty. The ring
    /// keeps a duplicate of each, so the descriptors may be closed.
    ///
    /// # Errors
    /// `EBUSY`: there are some already. `EINVAL`: none. `EMFILE`: too many for
    /// the process. `EBADF`: one is no open file, or a ring.
    pub fn register_files(&self, fds: &[RawFd]) -> io::Result<()> {
        self.register_raw(op::IORING_REGISTER_FILES as u32, UserAddress(address_of(fds)), fds.len() as u32).map(drop)
    }

    /// Registers a table of `nr` empty slots, to be filled by
    /// [`register_files_update`](Submitter::register_files_update), by
    /// `FilesUpdate`, or by a request that opens a file into one.
    ///
    /// # Errors
    /// `EBUSY`: there is a table already. `EINVAL`: no slots. `EMFILE`: too many
    /// for the process.
    pub fn register_files_sparse(&self, nr: u32) -> io::Result<()> {
        self.register_resources(op::IORING_REGISTER_FILES2, sparse(nr))
    }

    /// Replaces the files of the slots from `offset` on; −1 empties a slot,
    /// [`SKIP_FILE`] leaves it. Answers how many were done before the first that
    /// could not be.
    ///
    /// # Errors
    /// `ENXIO`: there is no table. `EINVAL`: it has not so many slots. `EBADF`:
    /// the first is no open file.
    pub fn register_files_update(&self, offset: u32, fds: &[RawFd]) -> io::Result<usize> {
        let update = abi::io_uring_files_update { offset, resv: 0, fds: address_of(fds) };
        self.register_with(op::IORING_REGISTER_FILES_UPDATE, &update, fds.len() as u32).map(|done| done as usize)
    }

    /// Requests that ask for any free slot get one of the `len` from `off` on;
    /// without this, of all.
    ///
    /// # Errors
    /// `EINVAL`: the table has not so many slots. `EOVERFLOW`: the sum of both
    /// does not fit.
    pub fn register_file_alloc_range(&self, off: u32, len: u32) -> io::Result<()> {
        let range = abi::io_uring_file_index_range { off, len, resv: 0 };
        self.register_with(op::IORING_REGISTER_FILE_ALLOC_RANGE, &range, 0).map(drop)
    }

    /// Closes the table of files. Requests in flight keep theirs.
    ///
    /// # Errors
    /// `ENXIO`: there is none.
    pub fn unregister_files(&self) -> io::Result<()> {
        self.register_nothing(op::IORING_UNREGISTER_FILES).map(drop)
    }

    /// Counts up an eventfd when completions are posted.
    ///
    /// # Errors
    /// `EBUSY`: there is one already. `EINVAL`: it is no eventfd. `EBADF`: it is
    /// no open file.
    pub fn register_eventfd(&self, eventfd: RawFd) -> io::Result<()> {
        self.register_with(op::IORING_REGISTER_EVENTFD, &eventfd, 1).map(drop)
    }

    /// The same, but not for requests that complete while they are submitted.
    ///
    /// # Errors
    /// Those of [`register_eventfd`](Submitter::register_eventfd).
    pub fn register_eventfd_async(&self, eventfd: RawFd) -> io::Result<()> {
        self.register_with(op::IORING_REGISTER_EVENTFD_ASYNC, &eventfd, 1).map(drop)
    }

    /// Lets go of the eventfd.
    ///
    /// # Errors
    /// `ENXIO`: there is none.
    pub fn unregister_eventfd(&self) -> io::Result<()> {
        self.register_nothing(op::IORING_UNREGISTER_EVENTFD).map(drop)
    }

    /// Fills in which opcodes work.
    ///
    /// ```
    /// use usring::{IoUring, Probe, opcode};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let ring = IoUring::new(1)?;
    /// let mut probe = Probe::new();
    /// ring.submitter().register_probe(&mut probe)?;
    /// assert!(probe.is_supported(opcode::Read::CODE));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: the probe was filled in before.
    pub fn register_probe(&self, probe: &mut Probe) -> io::Result<()> {
        let address = UserAddress((&raw mut *probe) as u64);
        self.register_raw(op::IORING_REGISTER_PROBE as u32, address, Probe::COUNT as u32).map(drop)
    }

    /// A number for [`Entry::personality`](crate::squeue::Entry::personality): requests that name
    /// it run with the credentials that the calling thread has now.
    ///
    /// # Errors
    /// Those of a thread that cannot be started.
    pub fn register_personality(&self) -> io::Result<u16> {
        self.register_nothing(op::IORING_REGISTER_PERSONALITY).map(|number| number as u16)
    }

    /// Gives the number back.
    ///
    /// # Errors
    /// `EINVAL`: it was not handed out.
    pub fn unregister_personality(&self, personality: u16) -> io::Result<()> {
        self.register_raw(op::IORING_UNREGISTER_PERSONALITY as u32, UserAddress::NULL, u32::from(personality)).map(drop)
    }

    /// Allows what is named and nothing else, for good, from the moment the ring
    /// is enabled; the rest is answered with `EACCES`.
    ///
    /// # Errors
    /// `EBADFD`: the ring is enabled already. `EBUSY`: it has restrictions.
    pub fn register_restrictions(&self, res: &mut [Restriction]) -> io::Result<()> {
        // `Restriction` is a transparent wrapper of the kernel's structure.
        self.register_raw(op::IORING_REGISTER_RESTRICTIONS as u32, UserAddress(address_of(res)), res.len() as u32)
            .map(drop)
    }

    /// Enables a ring made with `setup_r_disabled`.
    ///
    /// # Errors
    /// `EBADFD`: it is enabled.
    pub fn register_enable_rings(&self) -> io::Result<()> {
        self.register_nothing(op::IORING_REGISTER_ENABLE_RINGS).map(drop)
    }

    /// Workers, those of all rings of this process, run on these processors from
    /// their next request on.
    ///
    /// Errors: `EINVAL` (not one that this thread may run on).
    pub fn register_iowq_aff(&self, cpu_set: &libc::cpu_set_t) -> io::Result<()> {
        self.register_with(op::IORING_REGISTER_IOWQ_AFF, cpu_set, size_of::<libc::cpu_set_t>() as u32).map(drop)
    }

    /// Workers run wherever the process may again.
    pub fn unregister_iowq_aff(&self) -> io::Result<()> {
        self.register_nothing(op::IORING_UNREGISTER_IOWQ_AFF).map(drop)
    }

    /// Exchanges the limits of workers, for all rings of this process: of those
    /// that work on regular files and block devices, and of those that may wait
    /// for ever. 0 leaves a limit as it is.
    pub fn register_iowq_max_workers(&self, max: &mut [u32; 2]) -> io::Result<()> {
        let address = UserAddress((&raw mut *max) as u64);
        self.register_raw(op::IORING_REGISTER_IOWQ_MAX_WORKERS as u32, address, 2).map(drop)
    }

    /// The older name of
    /// [`register_buf_ring_with_flags`](Submitter::register_buf_ring_with_flags)
    /// without flags.
    ///
    /// # Errors
    /// Those of that.
    ///
    /// # Safety
    /// As for that.
    #[deprecated(note = "please use `register_buf_ring_with_flags` instead")]
    pub unsafe fn register_buf_ring(&self, ring_addr: u64, ring_entries: u16, bgid: u16) -> io::Result<()> {
        // SAFETY: as the caller vouches.
        unsafe { self.register_buf_ring_with_flags(ring_addr, ring_entries, bgid, 0) }
    }

    /// Registers a ring of provided buffers as group `bgid`: `ring_entries`
    /// [`BufRingEntry`](crate::types::BufRingEntry)s at `ring_addr`, or with
    /// `IOU_PBUF_RING_MMAP` memory of the engine's, which
    /// [`IoUring::map`](crate::IoUring::map) maps.
    ///
    /// # Errors
    /// `EINVAL`: not a power of two, 32,768 at most, an address that is not at a
    /// page's start, or unknown flags. `EEXIST`: the group is taken. `EFAULT`:
    /// the address points nowhere.
    ///
    /// # Safety
    /// The entries, and each buffer in them, are memory that requests may use
    /// until the group is unregistered or the ring is dropped.
    pub unsafe fn register_buf_ring_with_flags(
        &self,
        ring_addr: u64,
        ring_entries: u16,
        bgid: u16,
        flags: u16,
    ) -> io::Result<()> {
        let entries = u32::from(ring_entries);
        let buffers = abi::io_uring_buf_reg { ring_addr, ring_entries: entries, bgid, flags, resv: [0; 3] };
        self.register_with(op::IORING_REGISTER_PBUF_RING, &buffers, 1).map(drop)
    }

    /// Forgets a ring of provided buffers.
    ///
    /// # Errors
    /// `ENOENT`: no such group. `EINVAL`: the group is no ring.
    pub fn unregister_buf_ring(&self, bgid: u16) -> io::Result<()> {
        let buffers = abi::io_uring_buf_reg { ring_addr: 0, ring_entries: 0, bgid, flags: 0, resv: [0; 3] };
        self.register_with(op::IORING_UNREGISTER_PBUF_RING, &buffers, 1).map(drop)
    }

    /// Cancels what the builder describes and waits until it is gone, `timeout`
    /// at most or, without one, as long as it takes.
    ///
    /// # Errors
    /// `ENOENT`: nothing matches. `ETIME`: the time is over.
    pub fn register_sync_cancel(&self, timeout: Option<Timespec>, builder: CancelBuilder) -> io::Result<()> {
        // The builder keeps its fields to itself, but for the request that it
        // makes.
        let sqe = super::entry::sqe(&AsyncCancel2::new(builder).build());
        let time = match timeout {
            None => __kernel_timespec { tv_sec: -1, tv_nsec: -1 },
            Some(time) => {
                const { assert!(size_of::<Timespec>() == size_of::<__kernel_timespec>()) };
                // SAFETY: `Timespec` is a transparent wrapper of this structure.
                unsafe { mem::transmute::<Timespec, __kernel_timespec>(time) }
            }
        };
        let cancel = abi::io_uring_sync_cancel_reg {
            addr: sqe.addr,
            fd: sqe.fd,
            flags: sqe.op_flags,
            timeout: abi::__kernel_timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec },
            opcode: 0,
            pad: [0; 7],
            pad2: [0; 3],
        };
        self.register_with(op::IORING_REGISTER_SYNC_CANCEL, &cancel, 1).map(drop)
    }
}

fn sparse(nr: u32) -> abi::io_uring_rsrc_register {
    abi::io_uring_rsrc_register { nr, flags: abi::IORING_RSRC_REGISTER_SPARSE, resv2: 0, data: 0, tags: 0 }
}

/// Which opcodes work; filled in by
/// [`Submitter::register_probe`](Submitter::register_probe).
#[repr(C, align(8))]
pub struct Probe {
    last_opcode: u8,
    /// Records that follow.
    count: u8,
    reserved: [u8; 14],
    /// Opcode, a reserved byte, flags in two, and four more reserved.
    records: [[u8; 8]; Probe::COUNT],
}

/// The record's opcode works (`IO_URING_OP_SUPPORTED`).
const SUPPORTED: u8 = 1;

impl Probe {
    const COUNT: usize = 256;

    /// A probe in which nothing works.
    pub fn new() -> Probe {
        Probe { last_opcode: 0, count: 0, reserved: [0; 14], records: [[0; 8]; Probe::COUNT] }
    }

    /// Whether an opcode (`opcode::Read::CODE` and so on) works.
    pub fn is_supported(&self, opcode: u8) -> bool {
        opcode <= self.last_opcode && self.records[usize::from(opcode)][2] & SUPPORTED != 0
    }
}

impl Default for Probe {
    fn default() -> Probe {
        Probe::new()
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((0..=self.last_opcode).filter(|&opcode| self.is_supported(opcode))).finish()
    }
}
