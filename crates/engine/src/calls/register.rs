//! io_uring_register(2).

use crate::completion::event_descriptor::EventDescriptor;
use crate::driving::batch;
use crate::registered::restrictions::RECORD_SIZE;
use crate::registered::{program_files, registered_buffers};
use crate::request::conditions::CancelKey;
use crate::ring::{Exit, LockedRing, Registered, Ring};
use crate::submission::opcode_table;
use crate::waiting::remote_changes::{PENDING, result_of};
use crate::waiting::workers::workers;
use crate::waiting::{ask_processes, cancel};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicI32, Ordering};
use usring_sys::clock::{self, Clock, Nanoseconds};
use usring_sys::processor::{self, Mask};
use usring_sys::{Errno, UserAddress, memory_reserve, thread, user_memory, width};
use usring_uapi::Timespec;
use usring_uapi::general as linux;
use usring_uapi::io_uring as abi;
use usring_uapi::io_uring::io_uring_register_op as op;
use usring_uapi::opcode;

/// Flag in a PROBE record: the opcode is supported.
const PROBE_SUPPORTED: u16 = 1;
/// Least time, in nanoseconds, that a synchronous cancellation waits for the answer of another
/// process. If the caller's time limit is shorter, usring extends the limit to this time, because
/// the other process needs time to answer.
const LEAST_WAIT: Nanoseconds = 100_000_000;
/// IOU_PBUF_RING_MMAP: usring makes the memory of the buffer ring, for the program to map.
const BUFFER_RING_MMAP: u16 = 1;
/// IOU_PBUF_RING_INC: each transfer uses up only its own length of a buffer.
const BUFFER_RING_INCREMENTAL: u16 = 2;

const fn number(opcode: op) -> u32 {
    opcode as u32
}

impl Ring {
    /// Runs io_uring_register(2), except for opcodes 20 and 21. These two change the table of
    /// registered ring descriptors, which the library keeps (`host`).
    pub fn register(self: &Arc<Self>, opcode: u32, argument: UserAddress, count: u32) -> Result<u32, Errno> {
        if opcode >= number(op::IORING_REGISTER_LAST) {
            return Err(Errno::EINVAL);
        }
        self.check_process()?;
        memory_reserve::check()?;
        if self.is_other_issuer() {
            return Err(Errno::EEXIST);
        }
        if opcode == number(op::IORING_REGISTER_SYNC_CANCEL) {
            self.lock().registered.restrictions.check_register(opcode)?;
            return self.cancel_and_wait(argument, count);
        }
        if opcode == number(op::IORING_REGISTER_CLONE_BUFFERS) {
            self.lock().registered.restrictions.check_register(opcode)?;
            return self.clone_buffers(argument, count);
        }
        let mut locked = self.lock();
        locked.registered.restrictions.check_register(opcode)?;
        let origin = makes_registration(opcode).then(|| locked.new_origin());
        locked.registered.buffers.origin = origin.unwrap_or_default();
        let answer = dispatch(&mut locked, opcode, argument, count);
        if locked.devices.queues.in_flight() == 0 {
            locked.registered.buffers.unshare_unused();
        }
        if answer.is_ok() {
            locked.note_registration(origin);
        }
        locked.release(Exit::Leave);
        answer
    }
}

/// Returns whether a call registers memory of this process.
fn makes_registration(opcode: u32) -> bool {
    const MAKING: [op; 4] = [
        op::IORING_REGISTER_BUFFERS,
        op::IORING_REGISTER_BUFFERS2,
        op::IORING_REGISTER_BUFFERS_UPDATE,
        op::IORING_REGISTER_PBUF_RING,
    ];
    MAKING.iter().any(|making| number(*making) == opcode)
}

fn dispatch(locked: &mut LockedRing, opcode: u32, argument: UserAddress, count: u32) -> Result<u32, Errno> {
    let call = RegisterCall { argument, count };
    let Registered { files, buffers, .. } = &mut locked.registered;
    match opcode {
        n if n == number(op::IORING_REGISTER_BUFFERS) => {
            call.need_argument(Errno::EFAULT)?;
            registered_buffers::register(buffers, argument, UserAddress::NULL, count)
        }
        n if n == number(op::IORING_UNREGISTER_BUFFERS) => {
            call.need_nothing()?;
            registered_buffers::unregister(buffers)
        }
        n if n == number(op::IORING_REGISTER_FILES) => {
            call.need_argument(Errno::EFAULT)?;
            program_files::register(files, argument, UserAddress::NULL, count)
        }
        n if n == number(op::IORING_UNREGISTER_FILES) => {
            call.need_nothing()?;
            files.unregister()
        }
        n if n == number(op::IORING_REGISTER_FILES_UPDATE) => files_update(locked, call),
        n if n == number(op::IORING_REGISTER_FILES2) => resources(files, call, program_files::register),
        n if n == number(op::IORING_REGISTER_BUFFERS2) => resources(buffers, call, registered_buffers::register),
        n if n == number(op::IORING_REGISTER_FILES_UPDATE2) => update(files, call, program_files::update),
        n if n == number(op::IORING_REGISTER_BUFFERS_UPDATE) => update(buffers, call, registered_buffers::update),
        n if n == number(op::IORING_REGISTER_EVENTFD) => register_eventfd(locked, call, false),
        n if n == number(op::IORING_REGISTER_EVENTFD_ASYNC) => register_eventfd(locked, call, true),
        n if n == number(op::IORING_UNREGISTER_EVENTFD) => {
            call.need_nothing()?;
            locked.set_event(None).map(|_| 0).ok_or(Errno::ENXIO)
        }
        n if n == number(op::IORING_REGISTER_PROBE) => probe(call),
        n if n == number(op::IORING_REGISTER_PERSONALITY) => {
            call.need_nothing()?;
            locked.waiting.rights.register()
        }
        n if n == number(op::IORING_UNREGISTER_PERSONALITY) => unregister_personality(locked, call),
        n if n == number(op::IORING_REGISTER_ENABLE_RINGS) => enable(locked, call),
        n if n == number(op::IORING_REGISTER_RESTRICTIONS) => restrict(locked, call),
        n if n == number(op::IORING_REGISTER_IOWQ_MAX_WORKERS) => worker_limits(call),
        n if n == number(op::IORING_REGISTER_IOWQ_AFF) => place_workers(call),
        n if n == number(op::IORING_UNREGISTER_IOWQ_AFF) => {
            call.need_nothing()?;
            workers().set_affinity(None);
            Ok(0)
        }
        n if n == number(op::IORING_REGISTER_PBUF_RING) => register_buffer_ring(locked, call),
        n if n == number(op::IORING_UNREGISTER_PBUF_RING) => unregister_buffer_ring(locked, call),
        n if n == number(op::IORING_REGISTER_PBUF_STATUS) => buffer_ring_status(locked, call),
        n if n == number(op::IORING_REGISTER_FILE_ALLOC_RANGE) => file_range(locked, call),
        n if n == number(op::IORING_REGISTER_CLOCK) => register_clock(locked, call),
        n if n == number(op::IORING_REGISTER_NAPI) => register_napi(locked, call),
        n if n == number(op::IORING_UNREGISTER_NAPI) => unregister_napi(locked, call),
        _ => Err(Errno::EINVAL),
    }
}

#[derive(Clone, Copy)]
struct RegisterCall {
    argument: UserAddress,
    count: u32,
}

impl RegisterCall {
    fn need_nothing(self) -> Result<(), Errno> {
        if self.argument.is_null() && self.count == 0 { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn need_argument(self, missing: Errno) -> Result<(), Errno> {
        if self.argument.is_null() { Err(missing) } else { Ok(()) }
    }

    fn need_one(self) -> Result<(), Errno> {
        if self.argument.is_null() || self.count != 1 { Err(Errno::EINVAL) } else { Ok(()) }
    }
}

fn files_update(locked: &mut LockedRing, call: RegisterCall) -> Result<u32, Errno> {
    let header: abi::io_uring_files_update = user_memory::read(call.argument)?;
    if call.count == 0 || header.resv != 0 {
        return Err(Errno::EINVAL);
    }
    program_files::update(
        &mut locked.registered.files,
        header.offset,
        UserAddress(header.fds),
        UserAddress::NULL,
        call.count,
    )
    .map(|done| done.cast_unsigned())
}

type Register<T> = fn(&mut T, UserAddress, UserAddress, u32) -> Result<u32, Errno>;

/// Registers files or buffers by `struct io_uring_rsrc_register`, whose size is in `count`.
fn resources<T>(table: &mut T, call: RegisterCall, register: Register<T>) -> Result<u32, Errno> {
    if call.count as usize != size_of::<abi::io_uring_rsrc_register>() {
        return Err(Errno::EINVAL);
    }
    let header: abi::io_uring_rsrc_register = user_memory::read(call.argument)?;
    if header.nr == 0 || header.resv2 != 0 || header.flags & !abi::IORING_RSRC_REGISTER_SPARSE != 0 {
        return Err(Errno::EINVAL);
    }
    let sparse = header.flags & abi::IORING_RSRC_REGISTER_SPARSE != 0;
    if sparse && header.data != 0 {
        return Err(Errno::EINVAL);
    }
    register(table, UserAddress(header.data), UserAddress(header.tags), header.nr)
}

type Update<T> = fn(&mut T, u32, UserAddress, UserAddress, u32) -> Result<i32, Errno>;

fn update<T>(table: &mut T, call: RegisterCall, update: Update<T>) -> Result<u32, Errno> {
    if call.count as usize != size_of::<abi::io_uring_rsrc_update2>() {
        return Err(Errno::EINVAL);
    }
    let header: abi::io_uring_rsrc_update2 = user_memory::read(call.argument)?;
    if header.nr == 0 || header.resv != 0 || header.resv2 != 0 {
        return Err(Errno::EINVAL);
    }
    update(table, header.offset, UserAddress(header.data), UserAddress(header.tags), header.nr)
        .map(|done| done.cast_unsigned())
}

fn register_eventfd(locked: &mut LockedRing, call: RegisterCall, only_async: bool) -> Result<u32, Errno> {
    if call.count != 1 {
        return Err(Errno::EINVAL);
    }
    let number: i32 = user_memory::read(call.argument)?;
    if locked.notify.event_descriptor.is_some() {
        return Err(Errno::EBUSY);
    }
    let event = Arc::new(EventDescriptor::new(number, only_async)?);
    locked.set_event(Some(event));
    Ok(0)
}

/// Writes `struct io_uring_probe` and its records, one per opcode.
fn probe(call: RegisterCall) -> Result<u32, Errno> {
    const HEADER_SIZE: u64 = 16;
    const RECORD: u64 = 8;
    if call.argument.is_null() || call.count > 256 {
        return Err(Errno::EINVAL);
    }
    let length = width::size(HEADER_SIZE + RECORD * u64::from(call.count));
    let given = user_memory::read_array::<u8>(call.argument, length)?;
    if given.iter().any(|&byte| byte != 0) {
        return Err(Errno::EINVAL);
    }
    let records = (call.count as usize).min(opcode::COUNT);
    let header: [u8; 16] = {
        let mut header = [0; 16];
        header[0] = width::byte((opcode::COUNT - 1) as u64);
        header[1] = width::byte(records as u64);
        header
    };
    user_memory::write(call.argument, header)?;
    for index in 0..records {
        let flags = if opcode_table::is_supported(width::byte(index as u64)) { PROBE_SUPPORTED } else { 0 };
        let record = [u16::from(width::byte(index as u64)), flags, 0, 0];
        user_memory::write(call.argument.offset(HEADER_SIZE + RECORD * index as u64), record)?;
    }
    Ok(0)
}

fn unregister_personality(locked: &mut LockedRing, call: RegisterCall) -> Result<u32, Errno> {
    if !call.argument.is_null() {
        return Err(Errno::EINVAL);
    }
    locked.waiting.rights.unregister(call.count).map(|()| 0)
}

fn enable(locked: &mut LockedRing, call: RegisterCall) -> Result<u32, Errno> {
    call.need_nothing()?;
    if !locked.ring.is_disabled() {
        return Err(Errno::EBADFD);
    }
    if locked.ring.has(abi::IORING_SETUP_SINGLE_ISSUER) {
        locked.ring.issuer.store(thread::current().0, Ordering::Relaxed);
    }
    locked.registered.restrictions.enforce();
    if !locked.ring.is_adopted() && !locked.ring.is_shared() {
        locked.ring.control.expect_unjournaled();
    }
    locked.ring.control.enable();
    locked.ring.sq_thread.wake();
    Ok(0)
}

fn restrict(locked: &mut LockedRing, call: RegisterCall) -> Result<u32, Errno> {
    if !locked.ring.is_disabled() {
        return Err(Errno::EBADFD);
    }
    if locked.registered.restrictions.are_registered() {
        return Err(Errno::EBUSY);
    }
    if call.argument.is_null() || call.count > 128 {
        return Err(Errno::EINVAL);
    }
    let records = user_memory::read_array::<[u8; width::size(RECORD_SIZE)]>(call.argument, call.count as usize)?;
    locked.registered.restrictions.register(&records).map(|()| 0)
}

fn worker_limits(call: RegisterCall) -> Result<u32, Errno> {
    if call.argument.is_null() || call.count != 2 {
        return Err(Errno::EINVAL);
    }
    let new: [u32; 2] = user_memory::read(call.argument)?;
    if new.iter().any(|&limit| limit > i32::MAX as u32) {
        return Err(Errno::EINVAL);
    }
    let old = workers().exchange_limits(new);
    user_memory::write(call.argument, old).map(|()| 0)
}

/// Sets the processors on which workers may run, from a mask of `count` bytes. Bits beyond the last
/// possible processor are ignored. Error: `EINVAL` if no processor in the mask is allowed.
fn place_workers(call: RegisterCall) -> Result<u32, Errno> {
    if call.argument.is_null() || call.count == 0 {
        return Err(Errno::EINVAL);
    }
    let mut mask: Mask = Default::default();
    let length = (call.count as usize).min(size_of::<Mask>());
    for (index, byte) in user_memory::read_array::<u8>(call.argument, length)?.into_iter().enumerate() {
        mask[index / 8] |= u64::from(byte) << (index % 8 * 8);
    }
    if !processor::are_allowed(&mask) {
        return Err(Errno::EINVAL);
    }
    workers().set_affinity(Some(mask));
    Ok(0)
}

/// The fields of `struct io_uring_buf_reg`.
struct BufferRingHeader {
    address: u64,
    entries: u32,
    group: u16,
    flags: u16,
}

fn read_buffer_ring(call: RegisterCall) -> Result<BufferRingHeader, Errno> {
    call.need_one()?;
    let words: [u64; 5] = user_memory::read(call.argument)?;
    let [address, sizes, reserved @ ..] = words;
    if reserved != [0; 3] {
        return Err(Errno::EINVAL);
    }
    let (group, flags) = (width::short(sizes >> 32), (sizes >> 48) as u16);
    Ok(BufferRingHeader { address, entries: width::low(sizes), group, flags })
}

fn register_buffer_ring(locked: &mut LockedRing, call: RegisterCall) -> Result<u32, Errno> {
    let header = read_buffer_ring(call)?;
    if header.flags & !(BUFFER_RING_MMAP | BUFFER_RING_INCREMENTAL) != 0 {
        return Err(Errno::EINVAL);
    }
    let address = if header.flags & BUFFER_RING_MMAP != 0 {
        None
    } else {
        if header.address == 0 {
            return Err(Errno::EFAULT);
        }
        if header.address % 4096 != 0 {
            return Err(Errno::EINVAL);
        }
        Some(UserAddress(header.address))
    };
    let incremental = header.flags & BUFFER_RING_INCREMENTAL != 0;
    let origin = locked.registered.buffers.origin;
    let groups = &mut locked.registered.buffer_groups;
    groups.register_ring(header.group, header.entries, address, incremental, origin).map(|()| 0)
}

fn unregister_buffer_ring(locked: &mut LockedRing, call: RegisterCall) -> Result<u32, Errno> {
    let header = read_buffer_ring(call)?;
    if header.flags != 0 {
        return Err(Errno::EINVAL);
    }
    locked.registered.buffer_groups.unregister_ring(header.group).map(|()| 0)
}

/// REGISTER_PBUF_STATUS, by `struct io_uring_buf_status`: group, head, reserved words.
fn buffer_ring_status(locked: &mut LockedRing, call: RegisterCall) -> Result<u32, Errno> {
    call.need_one()?;
    let words: [u32; 10] = user_memory::read(call.argument)?;
    if words[2..].iter().any(|&word| word != 0) {
        return Err(Errno::EINVAL);
    }
    let head = locked.registered.buffer_groups.ring_head(width::short(words[0].into()))?;
    user_memory::write(call.argument.offset(4), head).map(|()| 0)
}

fn file_range(locked: &mut LockedRing, call: RegisterCall) -> Result<u32, Errno> {
    if call.argument.is_null() || call.count != 0 {
        return Err(Errno::EINVAL);
    }
    let range: abi::io_uring_file_index_range = user_memory::read(call.argument)?;
    if range.resv != 0 {
        return Err(Errno::EINVAL);
    }
    locked.registered.files.set_range(range.off, range.len).map(|()| 0)
}

fn register_clock(locked: &mut LockedRing, call: RegisterCall) -> Result<u32, Errno> {
    if call.argument.is_null() || call.count != 0 {
        return Err(Errno::EINVAL);
    }
    let clock: [u32; 4] = user_memory::read(call.argument)?;
    if clock[1..] != [0; 3] {
        return Err(Errno::EINVAL);
    }
    locked.waiting.clock = match clock[0] {
        linux::CLOCK_MONOTONIC => Clock::Monotonic,
        linux::CLOCK_BOOTTIME => Clock::Boottime,
        _ => return Err(Errno::EINVAL),
    };
    Ok(0)
}

fn register_napi(locked: &mut LockedRing, call: RegisterCall) -> Result<u32, Errno> {
    call.need_one()?;
    let ring = locked.ring;
    locked.registered.napi.register(ring.is_polled(), call.argument).map(|()| 0)
}

fn unregister_napi(locked: &mut LockedRing, call: RegisterCall) -> Result<u32, Errno> {
    if call.count != 1 {
        return Err(Errno::EINVAL);
    }
    locked.registered.napi.unregister(call.argument).map(|()| 0)
}

/// The fields of `struct io_uring_sync_cancel_reg` (64 bytes).
struct SyncCancel {
    key: CancelKey,
    timeout: Timespec,
}

fn read_sync_cancel(argument: UserAddress) -> Result<SyncCancel, Errno> {
    let words: [u64; 8] = user_memory::read(argument)?;
    let [user_data, fd_and_flags, seconds, nanoseconds, opcode_word, pads @ ..] = words;
    let (opcode, padding) = (width::byte(opcode_word), opcode_word >> 8);
    if padding != 0 || pads != [0; 3] {
        return Err(Errno::EINVAL);
    }
    let key = CancelKey {
        user_data,
        fd: width::int(fd_and_flags),
        opcode,
        flags: (fd_and_flags >> 32) as u32,
        file: -1,
        process: None,
    };
    crate::op::cancel::check(&key)?;
    Ok(SyncCancel { key, timeout: Timespec { tv_sec: seconds.cast_signed(), tv_nsec: nanoseconds.cast_signed() } })
}

impl Ring {
    /// REGISTER_SYNC_CANCEL: cancels requests. If a worker runs one of these requests, waits until
    /// the worker has finished.
    ///
    /// Error: `ETIME` at the end of the caller's time limit.
    fn cancel_and_wait(self: &Arc<Self>, argument: UserAddress, count: u32) -> Result<u32, Errno> {
        RegisterCall { argument, count }.need_one()?;
        let SyncCancel { key, timeout } = read_sync_cancel(argument)?;
        let for_ever = timeout.tv_sec == -1 && timeout.tv_nsec == -1;
        let deadline = if for_ever { None } else { Some(Clock::Monotonic.now().saturating_add(clock::limit(timeout))) };
        let mut broken_off = false;
        loop {
            let mut locked = self.lock();
            let outcome = cancel::cancel(&mut locked, &key);
            batch::run_issuable(&mut locked);
            let answer = ask_processes::begin_call(&mut locked, &key, outcome);
            locked.release(Exit::Leave);
            let outcome = match answer {
                Err(answer_word) => self.wait_for_answer(&answer_word, deadline)?,
                Ok(outcome) => outcome,
            };
            match outcome {
                // A worker runs the request. The cancellation has interrupted the worker's system
                // call. The loop cancels again later, until it finds no such request (ENOENT).
                Err(Errno::EALREADY) => broken_off = true,
                Err(Errno::ENOENT) if broken_off => return Ok(0),
                other => return other.map(|number| number.cast_unsigned()),
            }
            if deadline.is_some_and(|deadline| Clock::Monotonic.now() >= deadline) {
                return Err(Errno::ETIME);
            }
            crate::driving::wait::pause(self)?;
        }
    }

    /// Waits until other processes have answered a synchronous cancellation, and returns their
    /// answer. The wait ends at the call's time limit, but not before [`LEAST_WAIT`] has passed. If
    /// no answer has come by then, for example from a stopped process, this process no longer asks
    /// for the cancellation.
    ///
    /// Errors: `EINTR`; `ETIME`.
    fn wait_for_answer(
        self: &Arc<Self>,
        answer_word: &Arc<AtomicI32>,
        deadline: Option<Nanoseconds>,
    ) -> Result<Result<i32, Errno>, Errno> {
        let end = deadline.map(|deadline| deadline.max(Clock::Monotonic.now() + LEAST_WAIT));
        let is_over = || end.is_some_and(|end| Clock::Monotonic.now() >= end);
        let mut ending = Ok(());
        while answer_word.load(Ordering::Acquire) == PENDING && ending.is_ok() {
            ending = if is_over() { Err(Errno::ETIME) } else { crate::driving::wait::pause(self) };
        }
        if ending.is_err() {
            let mut locked = self.lock();
            ask_processes::withdraw(&mut locked, answer_word);
            locked.release(Exit::Leave);
        }
        match answer_word.load(Ordering::Acquire) {
            PENDING => Err(ending.err().unwrap_or(Errno::EINTR)),
            answer => Ok(result_of(answer)),
        }
    }
}
