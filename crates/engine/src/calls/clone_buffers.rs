//! REGISTER_CLONE_BUFFERS: copies another ring's table of registered buffers into this ring's
//! table. The function never holds the locks of two rings at one time. Two threads that copy in
//! opposite directions could otherwise wait for each other for ever.

use crate::host;
use crate::registered::registered_buffers::{self, Part};
use crate::ring::{Exit, Ring};
use alloc::sync::Arc;
use usring_sys::{Errno, UserAddress, descriptor, user_memory};
use usring_uapi::io_uring as abi;

/// Flag: `src_fd` is an index among the thread's registered rings, and not a descriptor.
const SOURCE_IS_INDEX: u32 = abi::IORING_REGISTER_SRC_REGISTERED as u32;
/// Flag: the copies may replace buffers that this ring already has. Without the flag, the call
/// fails with `EBUSY` if this ring has a table of buffers.
const REPLACE: u32 = abi::IORING_REGISTER_DST_REPLACE as u32;

impl Ring {
    pub(super) fn clone_buffers(self: &Arc<Self>, argument: UserAddress, count: u32) -> Result<u32, Errno> {
        if argument.is_null() || count != 1 {
            return Err(Errno::EINVAL);
        }
        // `struct io_uring_clone_buffers`.
        let [source, flags, from, to, count, padding @ ..]: [u32; 8] = user_memory::read(argument)?;
        if flags & !(SOURCE_IS_INDEX | REPLACE) != 0 {
            return Err(Errno::EINVAL);
        }
        self.check_room(flags)?;
        if padding != [0; 3] {
            return Err(Errno::EINVAL);
        }
        let source =
            if flags & SOURCE_IS_INDEX != 0 { host::ring_at_index(source)? } else { ring_at(source.cast_signed())? };
        if !Arc::ptr_eq(&source, self) {
            source.check_process()?;
            if source.is_other_issuer() {
                return Err(Errno::EEXIST);
            }
        }
        let locked = source.lock();
        let copies = registered_buffers::copy_slots(&locked.registered.buffers, &Part { from, to, count });
        locked.release(Exit::Leave);
        let copies = copies?;
        let mut locked = self.lock();
        let room =
            if flags & REPLACE == 0 && locked.registered.buffers.are_registered() { Err(Errno::EBUSY) } else { Ok(()) };
        let origin = locked.new_origin();
        locked.registered.buffers.origin = origin;
        let adopted = room.map(|()| registered_buffers::install_copies(&mut locked.registered.buffers, copies, to));
        locked.note_registration(Some(origin));
        locked.release(Exit::Leave);
        adopted
    }

    fn check_room(self: &Arc<Self>, flags: u32) -> Result<(), Errno> {
        let locked = self.lock();
        let is_full = flags & REPLACE == 0 && locked.registered.buffers.are_registered();
        locked.release(Exit::Leave);
        if is_full { Err(Errno::EBUSY) } else { Ok(()) }
    }
}

fn ring_at(number: i32) -> Result<Arc<Ring>, Errno> {
    match host::ring_at(number) {
        Some(ring) => Ok(ring),
        None => Err(descriptor::status_flags(number).err().unwrap_or(Errno::EOPNOTSUPP)),
    }
}
