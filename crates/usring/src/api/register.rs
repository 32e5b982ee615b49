//! io_uring_register(2): files, buffers, buffer rings, eventfds, limits and more.

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

/// Converts a number of elements for a register call. A number that is too large becomes
/// [`u32::MAX`], which the ring refuses.
fn count(elements: usize) -> u32 {
    u32::try_from(elements).unwrap_or(u32::MAX)
}

/// Returns a slice's address as a number, as the kernel's structures hold it.
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

    /// Calls io_uring_register(2) with the given arguments, for opcodes that have no function here.
    ///
    /// # Errors
    /// Those of io_uring_register(2), and `EOWNERDEAD` if the ring is a parent process's.
    ///
    /// # Safety
    /// `arg` and `nr_args` are what io_uring_register(2) requires for `opcode`. For some opcodes
    /// the engine writes the answer to `arg`, so that memory must be writable.
    pub unsafe fn register(&self, opcode: u32, arg: *mut libc::c_void, nr_args: u32) -> io::Result<u32> {
        self.register_raw(opcode, UserAddress(arg as u64), nr_args)
    }

    /// Registers buffers for `ReadFixed` and `WriteFixed`, which name a buffer by its index.
    ///
    /// # Errors
    /// - `EBUSY`: the ring has registered buffers already.
    /// - `EINVAL`: `bufs` is empty, or has more than 16,384 buffers.
    /// - `EFAULT`: a buffer cannot be written, is empty, or is longer than 1 GiB.
    ///
    /// # Safety
    /// Requests may read and write each buffer's memory until the buffer is unregistered or the
    /// ring is dropped. The memory must stay valid until then.
    pub unsafe fn register_buffers(&self, bufs: &[libc::iovec]) -> io::Result<()> {
        self.register_raw(op::IORING_REGISTER_BUFFERS as u32, UserAddress(address_of(bufs)), count(bufs.len()))
            .map(drop)
    }

    /// Registers buffers, each with a tag. After a buffer was unregistered and the last request
    /// that uses it has ended, the ring posts a completion whose user data is the tag. Tag 0 posts
    /// nothing.
    ///
    /// # Errors
    /// Those of [`register_buffers`](Submitter::register_buffers).
    ///
    /// # Safety
    /// Requests may read and write each buffer's memory until the buffer is unregistered or the
    /// ring is dropped. The memory must stay valid until then.
    pub unsafe fn register_buffers2(&self, bufs: &[libc::iovec], tags: &[u64]) -> io::Result<()> {
        let resources = abi::io_uring_rsrc_register {
            nr: count(bufs.len().min(tags.len())),
            flags: 0,
            resv2: 0,
            data: address_of(bufs),
            tags: address_of(tags),
        };
        self.register_resources(op::IORING_REGISTER_BUFFERS2, resources)
    }

    /// Registers a table of `nr` empty slots, which
    /// [`register_buffers_update`](Submitter::register_buffers_update) fills.
    ///
    /// # Errors
    /// `EBUSY`: there is a table already. `EINVAL`: 0 or more than 16,384 slots.
    pub fn register_buffers_sparse(&self, nr: u32) -> io::Result<()> {
        self.register_resources(op::IORING_REGISTER_BUFFERS2, sparse(nr))
    }

    /// Registers all buffers of another ring with this ring, too. The memory that the other ring's
    /// caller promised to keep valid must then stay valid until neither ring uses it.
    ///
    /// # Errors
    /// - `EBUSY`: this ring has buffers already.
    /// - `ENXIO`: the other ring has no buffers.
    /// - `EEXIST`: the other ring has a single issuer, which is another thread.
    /// - `EBADF`, `EOPNOTSUPP`: `src_fd` is no ring.
    pub fn register_buffers_clone(&self, src_fd: RawFd) -> io::Result<()> {
        self.register_buffers_clone_offset(src_fd, 0, 0, 0, CloneBuffersFlags::empty())
    }

    /// Registers `nr` buffers of another ring with this ring. The first one comes from the other
    /// ring's slot `src_off` and goes to this ring's slot `dst_off`. The others follow in order.
    ///
    /// # Errors
    /// - Those of [`register_buffers_clone`](Submitter::register_buffers_clone).
    /// - `EINVAL`, `EOVERFLOW`: one of the tables has too few slots.
    pub fn register_buffers_clone_offset(
        &self,
        src_fd: RawFd,
        src_off: u32,
        dst_off: u32,
        nr: u32,
        flags: CloneBuffersFlags,
    ) -> io::Result<()> {
        let argument: [u32; 8] = [src_fd.cast_unsigned(), flags.bits(), src_off, dst_off, nr, 0, 0, 0];
        self.register_with(op::IORING_REGISTER_CLONE_BUFFERS, &argument, 1).map(drop)
    }

    /// Replaces the buffers of the slots from `offset` on. An `iovec` with a null address and
    /// length 0 empties its slot.
    ///
    /// # Errors
    /// - `ENXIO`: the ring has no table of buffers.
    /// - `EINVAL`: the table has too few slots.
    /// - `EFAULT`: the first buffer cannot be registered
    ///   ([`register_buffers`](Submitter::register_buffers)).
    ///
    /// If a later buffer cannot be registered, the update stops there and reports no error.
    ///
    /// # Safety
    /// Requests may read and write each buffer's memory until the buffer is unregistered or the
    /// ring is dropped. The memory must stay valid until then.
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
            nr: count(tags.map_or(bufs.len(), |tags| bufs.len().min(tags.len()))),
            resv2: 0,
        };
        self.register_with(op::IORING_REGISTER_BUFFERS_UPDATE, &update, count(size_of_val(&update))).map(drop)
    }

    fn register_resources(&self, opcode: op, resources: abi::io_uring_rsrc_register) -> io::Result<()> {
        self.register_with(opcode, &resources, count(size_of_val(&resources))).map(drop)
    }

    /// Unregisters all buffers.
    ///
    /// # Errors
    /// `ENXIO`: the ring has no registered buffers.
    pub fn unregister_buffers(&self) -> io::Result<()> {
        self.register_nothing(op::IORING_UNREGISTER_BUFFERS).map(drop)
    }

    /// Registers files, which requests name by their index ([`types::Fixed`](crate::types::Fixed)).
    /// A −1 leaves its slot empty. The ring keeps a duplicate of each descriptor, so the program
    /// may close its own.
    ///
    /// # Errors
    /// - `EBUSY`: the ring has registered files already.
    /// - `EINVAL`: `fds` is empty.
    /// - `EMFILE`: `fds` is longer than the process's limit of open files allows.
    /// - `EBADF`: a descriptor is no open file, or is a ring.
    pub fn register_files(&self, fds: &[RawFd]) -> io::Result<()> {
        self.register_raw(op::IORING_REGISTER_FILES as u32, UserAddress(address_of(fds)), count(fds.len())).map(drop)
    }

    /// Registers a table of `nr` empty slots.
    /// [`register_files_update`](Submitter::register_files_update), `FilesUpdate`, or a request
    /// that opens a file into a slot fills them.
    ///
    /// # Errors
    /// - `EBUSY`: the ring has a table already.
    /// - `EINVAL`: `nr` is 0.
    /// - `EMFILE`: `nr` is more than the process's limit of open files allows.
    pub fn register_files_sparse(&self, nr: u32) -> io::Result<()> {
        self.register_resources(op::IORING_REGISTER_FILES2, sparse(nr))
    }

    /// Replaces the files of the slots from `offset` on. A −1 empties its slot, and [`SKIP_FILE`]
    /// leaves the slot as it is. The update stops at the first file that cannot be registered.
    /// Returns the number of slots updated before that.
    ///
    /// # Errors
    /// - `ENXIO`: the ring has no table of files.
    /// - `EINVAL`: the table has too few slots.
    /// - `EBADF`: the first descriptor is no open file.
    pub fn register_files_update(&self, offset: u32, fds: &[RawFd]) -> io::Result<usize> {
        let update = abi::io_uring_files_update { offset, resv: 0, fds: address_of(fds) };
        self.register_with(op::IORING_REGISTER_FILES_UPDATE, &update, count(fds.len())).map(|done| done as usize)
    }

    /// Limits the slots that a request gets if it asks for any free slot: `len` slots from `off`
    /// on. Without this call such a request may get any free slot of the table.
    ///
    /// # Errors
    /// - `EINVAL`: the table has too few slots.
    /// - `EOVERFLOW`: `off + len` overflows.
    pub fn register_file_alloc_range(&self, off: u32, len: u32) -> io::Result<()> {
        let range = abi::io_uring_file_index_range { off, len, resv: 0 };
        self.register_with(op::IORING_REGISTER_FILE_ALLOC_RANGE, &range, 0).map(drop)
    }

    /// Removes the table of files. Requests in flight keep their files open.
    ///
    /// # Errors
    /// `ENXIO`: the ring has no table.
    pub fn unregister_files(&self) -> io::Result<()> {
        self.register_nothing(op::IORING_UNREGISTER_FILES).map(drop)
    }

    /// Registers an eventfd. Each posted completion raises its counter.
    ///
    /// # Errors
    /// - `EBUSY`: the ring has an eventfd already.
    /// - `EINVAL`: the file is no eventfd.
    /// - `EBADF`: the descriptor is no open file.
    pub fn register_eventfd(&self, eventfd: RawFd) -> io::Result<()> {
        self.register_with(op::IORING_REGISTER_EVENTFD, &eventfd, 1).map(drop)
    }

    /// Registers an eventfd. Posted completions raise its counter, except completions of requests
    /// that end during their own submission.
    ///
    /// # Errors
    /// Those of [`register_eventfd`](Submitter::register_eventfd).
    pub fn register_eventfd_async(&self, eventfd: RawFd) -> io::Result<()> {
        self.register_with(op::IORING_REGISTER_EVENTFD_ASYNC, &eventfd, 1).map(drop)
    }

    /// Unregisters the eventfd.
    ///
    /// # Errors
    /// `ENXIO`: no eventfd is registered.
    pub fn unregister_eventfd(&self) -> io::Result<()> {
        self.register_nothing(op::IORING_UNREGISTER_EVENTFD).map(drop)
    }

    /// Stores in `probe` which opcodes usring supports.
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
        self.register_raw(op::IORING_REGISTER_PROBE as u32, address, count(Probe::COUNT)).map(drop)
    }

    /// Registers the calling thread's present credentials, and returns their number for
    /// [`Entry::personality`](crate::squeue::Entry::personality). Requests with this number run
    /// with these credentials, also after the thread has changed its own.
    ///
    /// # Errors
    /// - `EBUSY`: the ring has 65,535 personalities already.
    /// - `EAGAIN`, `ENOMEM`: the thread that keeps the credentials cannot be started.
    pub fn register_personality(&self) -> io::Result<u16> {
        self.register_nothing(op::IORING_REGISTER_PERSONALITY).map(|number| (number & 0xffff) as u16)
    }

    /// Unregisters the credentials with the number `personality`.
    ///
    /// # Errors
    /// `EINVAL`: the number is not registered.
    pub fn unregister_personality(&self, personality: u16) -> io::Result<()> {
        self.register_raw(op::IORING_UNREGISTER_PERSONALITY as u32, UserAddress::NULL, u32::from(personality)).map(drop)
    }

    /// Restricts the ring to the operations in `res`, permanently, as soon as the ring is enabled.
    /// From then on the ring answers any other operation with `EACCES`.
    ///
    /// # Errors
    /// - `EBADFD`: the ring is enabled already.
    /// - `EBUSY`: the ring has restrictions already.
    /// - `EINVAL`: `res` has more than 128 restrictions, or an invalid restriction.
    pub fn register_restrictions(&self, res: &mut [Restriction]) -> io::Result<()> {
        // `Restriction` is a transparent wrapper of the kernel's structure.
        self.register_raw(op::IORING_REGISTER_RESTRICTIONS as u32, UserAddress(address_of(res)), count(res.len()))
            .map(drop)
    }

    /// Enables a ring made with `setup_r_disabled`.
    ///
    /// # Errors
    /// `EBADFD`: the ring is enabled already.
    pub fn register_enable_rings(&self) -> io::Result<()> {
        self.register_nothing(op::IORING_REGISTER_ENABLE_RINGS).map(drop)
    }

    /// Restricts the workers of all rings of this process to the processors in `cpu_set`, from each
    /// worker's next request on.
    ///
    /// Errors: `EINVAL` if this thread may run on none of the processors.
    pub fn register_iowq_aff(&self, cpu_set: &libc::cpu_set_t) -> io::Result<()> {
        self.register_with(op::IORING_REGISTER_IOWQ_AFF, cpu_set, count(size_of::<libc::cpu_set_t>())).map(drop)
    }

    /// Lets the workers run on any processor that the process may use.
    pub fn unregister_iowq_aff(&self) -> io::Result<()> {
        self.register_nothing(op::IORING_UNREGISTER_IOWQ_AFF).map(drop)
    }

    /// Sets the limits of workers for all rings of this process, and writes the previous limits to
    /// `max`. `max[0]` limits workers for regular files and block devices (bounded work), `max[1]`
    /// workers for requests that may wait for ever (unbounded work). A 0 leaves its limit
    /// unchanged.
    ///
    /// # Errors
    /// `EINVAL`: a limit is over `i32::MAX`.
    pub fn register_iowq_max_workers(&self, max: &mut [u32; 2]) -> io::Result<()> {
        let address = UserAddress((&raw mut *max) as u64);
        self.register_raw(op::IORING_REGISTER_IOWQ_MAX_WORKERS as u32, address, 2).map(drop)
    }

    /// Registers a ring of provided buffers. The older name of
    /// [`register_buf_ring_with_flags`](Submitter::register_buf_ring_with_flags), without flags.
    ///
    /// # Errors
    /// Those of [`register_buf_ring_with_flags`](Submitter::register_buf_ring_with_flags).
    ///
    /// # Safety
    /// The promises of [`register_buf_ring_with_flags`](Submitter::register_buf_ring_with_flags).
    #[deprecated(note = "please use `register_buf_ring_with_flags` instead")]
    pub unsafe fn register_buf_ring(&self, ring_addr: u64, ring_entries: u16, bgid: u16) -> io::Result<()> {
        // SAFETY: the caller makes the promises that the called function asks for.
        unsafe { self.register_buf_ring_with_flags(ring_addr, ring_entries, bgid, 0) }
    }

    /// Registers a ring of provided buffers as group `bgid`: `ring_entries` entries of type
    /// [`BufRingEntry`](crate::types::BufRingEntry) at `ring_addr`. With `IOU_PBUF_RING_MMAP` the
    /// engine allocates the ring's memory, and [`IoUring::map`](crate::IoUring::map) maps it.
    ///
    /// # Errors
    /// - `EINVAL`: `ring_entries` is not a power of two or is over 32,768, `ring_addr` is not at
    ///   the start of a page, or a flag is unknown.
    /// - `EEXIST`: the group has buffers already.
    /// - `EFAULT`: no memory is mapped at `ring_addr`.
    ///
    /// # Safety
    /// Requests may use the entries, and each buffer that an entry names, until the group is
    /// unregistered or the ring is dropped. The memory must stay valid until then.
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

    /// Unregisters a ring of provided buffers.
    ///
    /// # Errors
    /// `ENOENT`: there is no such group. `EINVAL`: the group is not a ring of buffers.
    pub fn unregister_buf_ring(&self, bgid: u16) -> io::Result<()> {
        let buffers = abi::io_uring_buf_reg { ring_addr: 0, ring_entries: 0, bgid, flags: 0, resv: [0; 3] };
        self.register_with(op::IORING_UNREGISTER_PBUF_RING, &buffers, 1).map(drop)
    }

    /// Cancels the requests that `builder` describes, and waits until they have completed. Without
    /// a `timeout` the wait has no limit.
    ///
    /// # Errors
    /// - `ENOENT`: no request matches, and `builder` does not select all matching requests.
    /// - `ETIME`, `EINTR`: the timeout or a signal has ended the wait.
    pub fn register_sync_cancel(&self, timeout: Option<Timespec>, builder: CancelBuilder) -> io::Result<()> {
        // The builder's fields are private, so their values are read from the SQE that it builds.
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

/// Says for each opcode whether usring supports it. [`Submitter::register_probe`] fills in the
/// answers.
#[repr(C, align(8))]
pub struct Probe {
    last_opcode: u8,
    /// Number of records that the ring has filled in.
    count: u8,
    reserved: [u8; 14],
    /// Each record: opcode, a reserved byte, two bytes of flags, and four reserved bytes.
    records: [[u8; 8]; Probe::COUNT],
}

/// Flag of a record whose opcode works (`IO_URING_OP_SUPPORTED`).
const SUPPORTED: u8 = 1;

impl Probe {
    const COUNT: usize = 256;

    /// Makes a probe in which no opcode works.
    pub fn new() -> Probe {
        Probe { last_opcode: 0, count: 0, reserved: [0; 14], records: [[0; 8]; Probe::COUNT] }
    }

    /// Returns whether an opcode (`opcode::Read::CODE` and so on) works.
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
