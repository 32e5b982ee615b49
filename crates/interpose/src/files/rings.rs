//! The three system calls of io_uring. Finds the ring that a descriptor refers to, and calls the
//! engine, which implements the calls.

use crate::call::Call;
use crate::files::descriptors::{self, File, Found, Using};
use crate::files::registered::{self, not_a_ring};
use crate::runtime::ALLOCATOR;
use usring_engine::{EnterCall, Ring};
use usring_sys::syscall::AddressTrust;
use usring_sys::{Errno, UserAddress, unusual, user_memory, width};
use usring_uapi::io_uring as abi;

/// Value of `to_submit` in a test call of io_uring_enter(2) with the descriptor −1. The call tests
/// whether io_uring calls reach usring.
const PROBE: u64 = 0x7573_7270;
/// usring's answer to the test call of io_uring_enter(2). No other call returns it.
const PROBE_ANSWER: u64 = 0x0050_524f;

/// Answers io_uring_enter(2).
#[inline(always)]
pub fn enter(call: &Call) -> Result<u64, Errno> {
    let [descriptor, to_submit, min_complete, flags, argument, argument_size] = call.arguments;
    if to_submit == PROBE && width::int(descriptor) == -1 {
        return Ok(PROBE_ANSWER);
    }
    // Most calls pass no `argument`. Then `argument_size` means nothing and is not read. (If both
    // were read, the compiler would read them by one load of 16 bytes. The entry point has just
    // stored the two words separately, and such a load waits until both stores are done.)
    let has_argument = argument != 0 || width::low(flags) & abi::IORING_ENTER_EXT_ARG != 0;
    let argument_size = if has_argument { argument_size } else { 0 };
    let enter = EnterCall {
        to_submit: width::low(to_submit),
        min_complete: width::low(min_complete),
        flags: width::low(flags),
        argument: UserAddress(argument),
        argument_size,
    };
    enter.check_flags()?;
    let (by_index, by_number);
    let file = if enter.flags & abi::IORING_ENTER_REGISTERED_RING != 0 {
        // SAFETY: io_uring_enter removes none of the thread's registered rings.
        by_index = unsafe { registered::find(width::low(descriptor))? };
        &*by_index
    } else {
        by_number = find(width::int(descriptor))?;
        &*by_number
    };
    file.ring.enter(&enter).map(u64::from)
}

#[inline(always)]
fn find(number: i32) -> Result<Using, Errno> {
    match descriptors::find(number) {
        Found::Ring(using) => Ok(using),
        Found::Inherited(error) => Err(error),
        Found::Other => Err(not_a_ring(number)),
    }
}

/// Returns the address of a CQ tail, as [`File::cq_tail`] does, for the ring that an io_uring_enter
/// call names. `None`: the call names no ring that this process can use.
pub fn cq_tail(call: &Call) -> Option<u64> {
    let [descriptor, _, _, flags, ..] = call.arguments;
    if width::low(flags) & abi::IORING_ENTER_REGISTERED_RING != 0 {
        // SAFETY: this closure removes none of the thread's registered rings.
        return unsafe { registered::find(width::low(descriptor)) }.ok().map(|file| file.cq_tail());
    }
    find(width::int(descriptor)).ok().map(|file| file.cq_tail())
}

/// Answers io_uring_register(2).
pub fn register(call: &Call) -> Result<u64, Errno> {
    use abi::io_uring_register_op as op;
    let [descriptor, opcode, argument, count, ..] = call.arguments;
    let (opcode, argument, count) = (width::low(opcode), UserAddress(argument), width::low(count));
    let by_index = opcode & op::IORING_REGISTER_USE_REGISTERED_RING as u32 != 0;
    let opcode = opcode & !(op::IORING_REGISTER_USE_REGISTERED_RING as u32);
    if opcode >= op::IORING_REGISTER_LAST as u32 {
        return Err(Errno::EINVAL);
    }
    if width::int(descriptor) == -1 {
        return register_without_ring(opcode, argument, count);
    }
    let (registered, by_number);
    let file = if by_index {
        // SAFETY: only `register` and `unregister` below remove registered rings, and `file` is not
        // used after them.
        registered = unsafe { registered::find(width::low(descriptor))? };
        &*registered
    } else {
        by_number = find(width::int(descriptor))?;
        &*by_number
    };
    // The call may unregister `file`. So a reference to the ring is taken now, for a tracer that
    // gets the ring after the call.
    let probed = unusual::is_probed().then(|| file.ring.clone());
    let answer = if opcode == op::IORING_REGISTER_RING_FDS as u32 {
        registered::register(argument, count)
    } else if opcode == op::IORING_UNREGISTER_RING_FDS as u32 {
        registered::unregister(argument, count)
    } else {
        file.ring.register(opcode, argument, count)
    };
    if let Some(ring) = probed {
        ring.note_registered(opcode, answer);
    }
    answer.map(u64::from)
}

/// Answers calls of io_uring_register(2) that need no ring. Their descriptor is −1.
fn register_without_ring(opcode: u32, argument: UserAddress, count: u32) -> Result<u64, Errno> {
    if opcode == abi::io_uring_register_op::IORING_REGISTER_SEND_MSG_RING as u32 {
        return usring_engine::send_without_ring(argument, count).map(u64::from);
    }
    Err(Errno::EINVAL)
}

/// Answers io_uring_setup(2). Returns the new ring's descriptor.
pub fn setup(call: &Call) -> Result<u64, Errno> {
    let [entries, address, ..] = call.arguments;
    let address = UserAddress(address);
    let mut params: abi::io_uring_params = user_memory::read(address)?;
    // SAFETY: the program requested a ring by a system call. So it guarantees to usring, as to the
    // kernel, that usring may access the addresses in its requests.
    let trust = unsafe { AddressTrust::new() };
    ALLOCATOR.keep_reserve()?;
    let ring = Ring::setup(trust, width::low(entries), &mut params)?;
    let file = File::new(ring);
    registered::claim_row();
    if params.flags & abi::IORING_SETUP_REGISTERED_FD_ONLY != 0 {
        user_memory::write(address, params)?;
        let index = registered::put_anywhere(file.clone())?;
        file.ring.note_created(index.cast_signed());
        return Ok(index.into());
    }
    let descriptor = descriptors::reserve()?;
    user_memory::write(address, params)?;
    descriptors::insert(descriptor.number(), file.clone())?;
    file.ring.note_created(descriptor.number());
    Ok(width::word(descriptor.into_raw()))
}

/// Makes the test call of io_uring_enter(2) by a bare `syscall` instruction. Returns whether usring
/// answered it.
pub fn probe() -> bool {
    // SAFETY: the call names no descriptor, so neither usring nor the kernel touches memory.
    let answer = unsafe {
        usring_sys::syscall::syscall6(
            usring_uapi::general::__NR_io_uring_enter,
            [(-1i64).cast_unsigned(), PROBE, 0, 0, 0, 0],
        )
    };
    answer == PROBE_ANSWER
}
