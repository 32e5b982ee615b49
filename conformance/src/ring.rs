//! A small io_uring client. One thread fills the SQ, calls io_uring_enter(2), and reads the CQ.
//!
//! Each case controls which system calls are made. Only [`Ring::wait`], and the functions that use
//! it, call io_uring_enter(2) on their own.

use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use usring_uapi::io_uring as u;
use usring_uapi::{Cqe, Sqe};

use crate::names;
use crate::{memory::zeroed, syscalls, time};

pub type Params = u::io_uring_params;

/// Setup flags of a ring with deferred task work. The kernel runs this work only when the ring's
/// owner asks for events.
pub const DEFER: u32 = u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN;

/// The setup flags of two kinds of rings, for cases that repeat their steps: without and with
/// deferred task work.
pub const BOTH: [u32; 2] = [0, DEFER];

/// Most time for which [`Ring::wait`] waits for its completions.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A CQE as a case sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub user_data: u64,
    pub res: i32,
    pub flags: u32,
    /// The second half of a CQE. It is zero unless the ring has CQE32.
    pub extra: [u64; 2],
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.user_data, names::result(self.res))?;
        if self.flags != 0 {
            write!(f, " {}", names::cqe_flags(self.flags))?;
        }
        Ok(())
    }
}

/// The addresses at which a ring is mapped.
#[derive(Clone, Copy)]
struct Memory {
    sq: *mut u8,
    cq: *mut u8,
    sqes: *mut u8,
    /// Addresses and lengths of the mappings to remove when the ring is dropped. An entry with the
    /// length 0 is unused.
    owned: [(usize, usize); 3],
}

pub struct Ring {
    /// The ring's descriptor, or the ring's index in the table of registered rings.
    pub fd: i32,
    pub params: Params,
    memory: Memory,
    /// Number of SQEs that this process has pushed and not submitted yet.
    pending: u32,
    tail: u32,
    /// Flags to add in each io_uring_enter(2). If `fd` is an index, this is
    /// IORING_ENTER_REGISTERED_RING.
    pub enter_flags: u32,
    /// Flags to add to each opcode of io_uring_register(2). If `fd` is an index, this is
    /// [`USE_REGISTERED_RING`](crate::cases::reg::USE_REGISTERED_RING).
    pub register_flags: u32,
    closed: bool,
}

// SAFETY: the ring's memory is made to be shared. If a case uses a ring from two threads, the case
// itself orders their accesses.
unsafe impl Send for Ring {}

impl Ring {
    /// Makes a ring with default parameters.
    pub fn new(entries: u32) -> Ring {
        Ring::with(entries, |_| ()).expect("a plain ring can be made")
    }

    /// Makes a ring with these setup flags.
    pub fn flags(entries: u32, flags: u32) -> Ring {
        Ring::with(entries, |params| params.flags = flags)
            .unwrap_or_else(|error| panic!("setup with {flags:#x}: {}", names::result(error)))
    }

    /// Makes a ring with the parameters that `choose` sets. Error: the negative errno of
    /// io_uring_setup(2).
    pub fn with(entries: u32, choose: impl FnOnce(&mut Params)) -> Result<Ring, i32> {
        let mut params: Params = zeroed();
        choose(&mut params);
        let fd = syscalls::setup(entries, &mut params);
        if fd < 0 {
            return Err(fd);
        }
        Ok(Ring::mapped(fd, params))
    }

    /// Maps the memory of the ring whose descriptor is `fd`. io_uring_setup(2) has returned
    /// `params`.
    pub fn mapped(fd: i32, params: Params) -> Ring {
        let both = sq_length(&params).max(cq_length(&params));
        let shared = must_map(fd, both, u64::from(u::IORING_OFF_SQ_RING));
        let sqes = must_map(fd, sqes_length(&params), u64::from(u::IORING_OFF_SQES));
        let memory = Memory {
            sq: shared,
            cq: shared,
            sqes,
            owned: [(shared as usize, both), (sqes as usize, sqes_length(&params)), (0, 0)],
        };
        let mut ring = Ring::over(fd, params, memory);
        ring.catch_up();
        ring
    }

    /// Wraps a ring that lies in the program's own memory (NO_MMAP). Both queues are at `rings`,
    /// and the SQEs are at `sqes`. The caller keeps the memory mapped until the ring is dropped.
    pub fn over_memory(fd: i32, params: Params, rings: *mut u8, sqes: *mut u8) -> Ring {
        let memory = Memory { sq: rings, cq: rings, sqes, owned: [(0, 0); 3] };
        Ring::over(fd, params, memory)
    }

    fn over(fd: i32, params: Params, memory: Memory) -> Ring {
        Ring { fd, params, memory, pending: 0, tail: 0, enter_flags: 0, register_flags: 0, closed: false }
    }

    fn sq_word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the offset comes from the kernel, and the mapping lives as long as the ring. The
        // kernel and the program access the word as an atomic.
        unsafe { &*self.memory.sq.add(offset as usize).cast::<AtomicU32>() }
    }

    fn cq_word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the offset comes from the kernel, and the mapping lives as long as the ring. The
        // kernel and the program access the word as an atomic.
        unsafe { &*self.memory.cq.add(offset as usize).cast::<AtomicU32>() }
    }

    /// Reads the word at the byte offset `offset` in the SQ's mapping.
    pub fn word(&self, offset: u32) -> u32 {
        self.sq_word(offset).load(Ordering::Acquire)
    }

    /// Writes to the word at the byte offset `offset` in the SQ's mapping, even if only the kernel
    /// should write that word.
    pub fn set_word(&self, offset: u32, value: u32) {
        self.sq_word(offset).store(value, Ordering::SeqCst);
    }

    /// Returns the address of the SQEs.
    pub fn entries_address(&self) -> u64 {
        self.memory.sqes as u64
    }

    /// Removes the mappings of the ring. From then on, the case may only make calls on the
    /// descriptor.
    pub fn unmap(&mut self) {
        for (address, length) in std::mem::take(&mut self.memory.owned) {
            if length != 0 {
                // SAFETY: this object made the mapping, and the case does not use its memory any
                // more.
                unsafe { libc::munmap(address as *mut c_void, length) };
            }
        }
    }

    /// Calls madvise(2) for each of the ring's mappings. Returns the first error, or 0.
    pub fn advise(&self, advice: i32) -> i32 {
        let owned = self.memory.owned.iter().filter(|(_, length)| *length != 0);
        // SAFETY: this object made the mappings. The cases' advice changes only how fork(2) treats
        // them.
        let answers = owned.map(|(address, length)| unsafe { libc::madvise(*address as *mut c_void, *length, advice) });
        answers.map(syscalls::answer).find(|answer| *answer < 0).unwrap_or(0)
    }

    pub fn sq_head(&self) -> u32 {
        self.sq_word(self.params.sq_off.head).load(Ordering::Acquire)
    }

    pub fn sq_tail(&self) -> u32 {
        self.sq_word(self.params.sq_off.tail).load(Ordering::Acquire)
    }

    pub fn sq_flags(&self) -> u32 {
        self.sq_word(self.params.sq_off.flags).load(Ordering::SeqCst)
    }

    pub fn sq_dropped(&self) -> u32 {
        self.sq_word(self.params.sq_off.dropped).load(Ordering::Acquire)
    }

    pub fn cq_head(&self) -> u32 {
        self.cq_word(self.params.cq_off.head).load(Ordering::Acquire)
    }

    pub fn cq_tail(&self) -> u32 {
        self.cq_word(self.params.cq_off.tail).load(Ordering::Acquire)
    }

    pub fn cq_overflow(&self) -> u32 {
        self.cq_word(self.params.cq_off.overflow).load(Ordering::Acquire)
    }

    pub fn set_cq_flags(&self, flags: u32) {
        self.cq_word(self.params.cq_off.flags).store(flags, Ordering::Release);
    }

    /// Returns the number of CQEs in the CQ.
    pub fn ready(&self) -> u32 {
        self.cq_tail().wrapping_sub(self.cq_head())
    }

    /// Continues after another process has pushed SQEs to the ring: reads the SQ's tail from
    /// memory. Forgets the SQEs that this process has pushed but not submitted.
    pub fn catch_up(&mut self) {
        self.tail = self.sq_tail();
        self.pending = 0;
    }

    /// Writes an SQE at the SQ's tail, so that the next submission includes it.
    pub fn push(&mut self, sqe: Sqe) {
        self.push_wide(sqe, &[]);
    }

    /// Writes an SQE of 128 bytes: `sqe`, followed by the 64 bytes of `rest`.
    pub fn push_wide(&mut self, sqe: Sqe, rest: &[u8]) {
        let mask = self.params.sq_entries - 1;
        let slot = self.tail & mask;
        let stride = if self.params.flags & u::IORING_SETUP_SQE128 != 0 { 128 } else { 64 };
        // SAFETY: the slot is below sq_entries, so the SQE lies in the mapping. The kernel reads
        // the SQE only after the store of the new tail below.
        unsafe {
            let place = self.memory.sqes.add(slot as usize * stride);
            place.cast::<Sqe>().write_volatile(sqe);
            place.add(64).copy_from(rest.as_ptr(), rest.len().min(stride - 64));
        }
        if self.params.flags & u::IORING_SETUP_NO_SQARRAY == 0 {
            self.sq_word(self.params.sq_off.array + slot * 4).store(slot, Ordering::Relaxed);
        }
        self.tail = self.tail.wrapping_add(1);
        self.pending += 1;
        self.sq_word(self.params.sq_off.tail).store(self.tail, Ordering::Release);
    }

    /// Writes `value` to the element `slot` of the SQ's index array. Elements should be indices of
    /// SQEs.
    pub fn poke_array(&mut self, slot: u32, value: u32) {
        self.sq_word(self.params.sq_off.array + slot * 4).store(value, Ordering::Relaxed);
    }

    /// Moves the SQ's tail by `by` entries without writing any SQE.
    pub fn advance_tail(&mut self, by: u32) {
        self.tail = self.tail.wrapping_add(by);
        self.sq_word(self.params.sq_off.tail).store(self.tail, Ordering::Release);
    }

    /// Calls io_uring_enter(2) with exactly these arguments.
    pub fn enter(&self, submit: u32, complete: u32, flags: u32) -> i32 {
        self.enter_with(submit, complete, flags, std::ptr::null(), 0)
    }

    /// Calls io_uring_enter(2) with `argument`, a structure of `size` bytes or a signal mask.
    pub fn enter_with(&self, submit: u32, complete: u32, flags: u32, argument: *const c_void, size: usize) -> i32 {
        syscalls::enter(self.fd, submit, complete, flags | self.enter_flags, argument, size)
    }

    /// Submits the pushed SQEs by one io_uring_enter(2). Returns the result of that call.
    pub fn submit(&mut self) -> i32 {
        let count = std::mem::take(&mut self.pending);
        self.enter(count, 0, 0)
    }

    /// Submits the pushed SQEs and waits for `complete` CQEs, by one io_uring_enter(2). Returns the
    /// result of that call.
    pub fn submit_and_wait(&mut self, complete: u32) -> i32 {
        let count = std::mem::take(&mut self.pending);
        self.enter(count, complete, u::IORING_ENTER_GETEVENTS)
    }

    /// Waits until `count` CQEs are in memory, without a call on the ring. Returns them, and all
    /// other CQEs that arrive within the next 30 ms.
    pub fn reap_in_memory(&mut self, count: u32) -> Vec<Entry> {
        self.wait_in_memory(count);
        time::long_enough_to_notice();
        self.reap()
    }

    /// Returns the number of SQEs that were pushed and not submitted, and sets it to 0. For cases
    /// that then submit these SQEs by calls of their own.
    pub fn forget_pending(&mut self) -> u32 {
        std::mem::take(&mut self.pending)
    }

    /// Calls io_uring_register(2), and returns its result or a negative errno.
    pub fn register<T>(&self, opcode: u32, argument: *const T, count: u32) -> i32 {
        syscalls::register(self.fd, opcode | self.register_flags, argument.cast(), count)
    }

    /// Takes the next CQE from the CQ in memory, if there is one. Makes no system call.
    pub fn peek(&mut self) -> Option<Entry> {
        let head = self.cq_head();
        if head == self.cq_tail() {
            return None;
        }
        let index = (head & (self.params.cq_entries - 1)) as usize;
        let wide = self.params.flags & u::IORING_SETUP_CQE32 != 0;
        let stride = if wide { 32 } else { 16 };
        // SAFETY: the index is masked, so the CQE lies in the mapping. The tail was loaded with
        // acquire ordering, so the kernel has written the CQE.
        let (cqe, extra) = unsafe {
            let place = self.memory.cq.add(self.params.cq_off.cqes as usize + index * stride);
            let extra = if wide { place.add(16).cast::<[u64; 2]>().read_volatile() } else { [0; 2] };
            (place.cast::<Cqe>().read_volatile(), extra)
        };
        self.cq_word(self.params.cq_off.head).store(head.wrapping_add(1), Ordering::Release);
        Some(Entry { user_data: cqe.user_data, res: cqe.res, flags: cqe.flags, extra })
    }

    /// Takes all CQEs from the CQ in memory. Makes no system call.
    pub fn reap(&mut self) -> Vec<Entry> {
        std::iter::from_fn(|| self.peek()).collect()
    }

    /// Waits in io_uring_enter(2) until `count` CQEs have arrived, and returns all CQEs. Returns
    /// fewer after 30 seconds, or if a call fails.
    pub fn wait(&mut self, count: usize) -> Vec<Entry> {
        let mut entries = self.reap();
        let deadline = Instant::now() + TIMEOUT;
        while entries.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let answer = self.enter_for(0, 1, left);
            entries.extend(self.reap());
            if answer < 0 && answer != -libc::EINTR && answer != -libc::ETIME {
                break;
            }
        }
        entries
    }

    /// Submits `submit` SQEs and waits for `complete` CQEs, by one io_uring_enter(2) with the
    /// timeout `limit`. Returns the result of that call, such as -ETIME.
    pub fn enter_for(&self, submit: u32, complete: u32, limit: Duration) -> i32 {
        let time = crate::time::from_duration(limit);
        let mut argument: u::io_uring_getevents_arg = zeroed();
        argument.ts = &raw const time as u64;
        self.enter_with(
            submit,
            complete,
            u::IORING_ENTER_GETEVENTS | u::IORING_ENTER_EXT_ARG,
            (&raw const argument).cast(),
            size_of_val(&argument),
        )
    }

    /// Submits `sqes` and waits for one CQE of each. Returns the CQEs, sorted by user_data. If a
    /// refused SQE ends a submission, another call submits the SQEs behind it.
    pub fn run(&mut self, sqes: &[Sqe]) -> Vec<Entry> {
        for sqe in sqes {
            self.push(*sqe);
        }
        let mut left = self.forget_pending();
        while left > 0 {
            let answer = self.enter(left, 0, 0);
            if answer <= 0 {
                break;
            }
            left -= answer as u32;
        }
        let mut entries = self.wait(sqes.len());
        entries.sort_by_key(|entry| entry.user_data);
        entries
    }

    /// Submits one request and returns its CQE. Panics if another CQE arrives instead or as well.
    pub fn one(&mut self, sqe: Sqe) -> Entry {
        match self.run(&[sqe]).as_slice() {
            [entry] if entry.user_data == sqe.user_data => *entry,
            entries => {
                for entry in entries {
                    println!("unexpected: cqe {entry}");
                }
                panic!("request {} did not complete by itself", sqe.user_data)
            }
        }
    }

    /// Polls the CQ in memory until it contains `count` CQEs. Makes no call on the ring. Returns
    /// `false` after 30 seconds.
    pub fn wait_in_memory(&self, count: u32) -> bool {
        crate::time::until(|| self.ready() >= count)
    }

    /// Closes the ring's descriptor. Returns the result of close(2). The mappings remain.
    pub fn close(&mut self) -> i32 {
        self.closed = true;
        syscalls::close(self.fd)
    }

    /// Changes what the drop of this object does: it leaves the mappings and the descriptor alone.
    pub fn abandon(&mut self) {
        self.closed = true;
        self.memory.owned = [(0, 0); 3];
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for (address, length) in self.memory.owned {
            if length != 0 {
                // SAFETY: this object made the mapping, and no pointer into the mapping outlives
                // the object.
                unsafe { libc::munmap(address as *mut c_void, length) };
            }
        }
        if !self.closed {
            syscalls::close(self.fd);
        }
    }
}

/// Returns the length of the SQ's mapping in bytes.
pub fn sq_length(params: &Params) -> usize {
    if params.flags & u::IORING_SETUP_NO_SQARRAY != 0 {
        return cq_length(params);
    }
    params.sq_off.array as usize + params.sq_entries as usize * 4
}

/// Returns the length of the CQ's mapping in bytes.
pub fn cq_length(params: &Params) -> usize {
    let entry = if params.flags & u::IORING_SETUP_CQE32 != 0 { 32 } else { 16 };
    params.cq_off.cqes as usize + params.cq_entries as usize * entry
}

/// Returns the length of the SQEs' mapping in bytes.
pub fn sqes_length(params: &Params) -> usize {
    let entry = if params.flags & u::IORING_SETUP_SQE128 != 0 { 128 } else { 64 };
    params.sq_entries as usize * entry
}

fn must_map(fd: i32, length: usize, offset: u64) -> *mut u8 {
    let address = syscalls::map(fd, length, offset);
    assert!(address > 0, "mmap at {offset:#x}: {}", names::outcome(address));
    address as *mut u8
}
