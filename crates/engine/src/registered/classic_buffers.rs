//! The buffers that PROVIDE_BUFFERS has put into one group (a classic group).

use alloc::collections::VecDeque;
use usring_ring::{ProvidedBuffer, Registrations};
use usring_sys::Errno;

/// The buffers of a group, in order.
pub(super) enum ClassicBuffers {
    Own(VecDeque<ProvidedBuffer>),
    /// All processes of the ring share the buffers of the group with this id.
    Shared(Registrations, u16),
}

impl ClassicBuffers {
    pub fn len(&self) -> usize {
        match self {
            ClassicBuffers::Own(buffers) => buffers.len(),
            ClassicBuffers::Shared(registrations, group) => registrations.count_provided(*group),
        }
    }

    pub fn front(&self) -> Option<ProvidedBuffer> {
        match self {
            ClassicBuffers::Own(buffers) => buffers.front().copied(),
            ClassicBuffers::Shared(registrations, group) => registrations.first_provided(*group),
        }
    }

    pub fn pop_front(&mut self) -> Option<ProvidedBuffer> {
        match self {
            ClassicBuffers::Own(buffers) => buffers.pop_front(),
            ClassicBuffers::Shared(registrations, group) => registrations.take_provided(*group),
        }
    }

    pub fn push_front(&mut self, buffer: ProvidedBuffer) {
        match self {
            ClassicBuffers::Own(buffers) => buffers.push_front(buffer),
            ClassicBuffers::Shared(registrations, group) => registrations.give_back_provided(*group, buffer),
        }
    }

    /// Adds `count` buffers, if there is room for all. Error: `ENOMEM`.
    pub fn extend(&mut self, count: usize, new: impl Iterator<Item = ProvidedBuffer>) -> Result<(), Errno> {
        match self {
            ClassicBuffers::Own(buffers) => {
                buffers.try_reserve(count).map_err(|_| Errno::ENOMEM)?;
                buffers.extend(new);
            }
            ClassicBuffers::Shared(registrations, _) if registrations.room_for_provided() < count => {
                return Err(Errno::ENOMEM);
            }
            ClassicBuffers::Shared(registrations, group) => registrations.provide(*group, new),
        }
        Ok(())
    }

    /// Moves the group's buffers to the registrations that all processes of the ring see. If there
    /// is no room for the buffers, returns `false`, and they stay private to this process.
    pub fn publish(&mut self, registrations: &Registrations, group: u16) -> bool {
        if let ClassicBuffers::Own(buffers) = self {
            if registrations.room_for_provided() < buffers.len() {
                return false;
            }
            registrations.clear_provided(group);
            registrations.provide(group, buffers.drain(..));
        }
        *self = ClassicBuffers::Shared(registrations.clone(), group);
        true
    }
}
