//! Giving memory to the kernel: a part of a region ceases to be paged, in place and with
//! what it holds, because its user wants of it what a pager cannot give (another
//! protection, to be locked, to be a stack).
//!
//! 1. Page by page: it is taken, its content copied to memory of the kernel's elsewhere, and
//!    what there is of it in memory is dropped, inside its cluster's gate. Who touches it
//!    from now on waits.
//! 2. All of them are marked [`State::Given`], and each cluster's gate is shut once: whoever evicts later sees that and
//!    ends its runs there.
//! 3. The copy is moved into the region's place. Who touched a page between the last two
//!    steps has touched it again and again.

use crate::lane::Waiting;
use crate::mechanism::Kind;
use crate::page::{Pins, State, Taken};
use crate::pager::Pager;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use usring_sys::mapping::{PAGE, private_pages, unmap};
use usring_sys::{Errno, UserAddress, page_fault, processor, thread, user_memory};

/// Pages on their way out.
struct Parcel<'a> {
    first: usize,
    taken: Vec<Taken<'a>>,
    /// Where the copy lies.
    copy: usize,
    bounce: Vec<u8>,
}

impl Pager {
    pub fn surrender(&self, pages: Range<usize>) -> Result<(), Errno> {
        if self.kind == Kind::Protect {
            return Err(Errno::EOPNOTSUPP);
        }
        let length = pages.len() * self.unit();
        let copy = private_pages(length)?;
        let mut parcel =
            Parcel { first: pages.start, taken: Vec::with_capacity(pages.len()), copy, bounce: vec![0; PAGE] };
        // A handler could touch a page that this thread has.
        let _closed = thread::close_signals();
        let packed = pages.clone().try_for_each(|page| self.pack(&mut parcel, page));
        if let Err(error) = packed {
            self.unpack(parcel);
            let _ = unmap(copy, length);
            return Err(error);
        }
        for (page, taken) in pages.clone().zip(parcel.taken) {
            self.let_go(page, taken);
        }
        for cluster in self.cluster_of(pages.start)..=self.cluster_of(pages.end - 1) {
            self.see_off(cluster);
        }
        self.memory.replace(self.offset(pages.start), length, copy)
    }

    /// Takes a page, and copies what it holds.
    fn pack<'a>(&'a self, parcel: &mut Parcel<'a>, index: usize) -> Result<(), Errno> {
        let page = self.page(index);
        loop {
            let state = page.state();
            match state {
                State::Busy => page.wait(),
                State::Given => return Err(Errno::EBUSY),
                State::Untouched | State::Out => {
                    let Some(taken) = page.take(state, Pins::Ignored) else { continue };
                    let copied = if state == State::Out { self.copy_slot(parcel, index, &taken) } else { Ok(()) };
                    if let Err(error) = copied {
                        taken.release(state);
                        return Err(error);
                    }
                    parcel.taken.push(taken);
                    return Ok(());
                }
                State::Clean | State::Dirty => {
                    if page.is_pinned() {
                        return Err(Errno::EBUSY);
                    }
                    let _inside = self.gate_of(index).enter();
                    let Some(taken) = page.take(state, Pins::Respected) else { continue };
                    let (offset, unit) = (self.offset(index), self.unit());
                    let gone = self
                        .mechanism
                        .close(offset, unit)
                        .and_then(|()| self.copy_content(parcel, index))
                        .and_then(|()| self.mechanism.discard(offset, unit));
                    if let Err(error) = gone {
                        self.keep(index, taken);
                        return Err(error);
                    }
                    parcel.taken.push(taken);
                    return Ok(());
                }
            }
        }
    }

    fn copy_slot(&self, parcel: &Parcel, index: usize, taken: &Taken) -> Result<(), Errno> {
        let place = page_fault::place();
        let slot = self.slot(taken, index);
        let mut lane = self.store.lane(place);
        let content = lane.read(self.store.device(), self.store.offset(slot), self.unit(), Waiting::Asleep)?;
        user_memory::copy_out(parcel.copy_of(index, self.unit()), content)
    }

    /// Of a page that is in memory, closed.
    fn copy_content(&self, parcel: &mut Parcel, index: usize) -> Result<(), Errno> {
        let content = self.memory.content(self.offset(index), self.unit());
        let target = parcel.copy_of(index, self.unit());
        for offset in (0..self.unit()).step_by(PAGE) {
            user_memory::copy_in(&mut parcel.bounce, UserAddress((content + offset) as u64))?;
            user_memory::copy_out(target.offset(offset as u64), &parcel.bounce)?;
        }
        Ok(())
    }

    /// Puts everything back as it was.
    fn unpack(&self, parcel: Parcel) {
        let Parcel { first, taken, copy, mut bounce } = parcel;
        bounce.resize(self.unit(), 0);
        for (step, taken) in taken.into_iter().enumerate() {
            let before = taken.before();
            if !before.is_resident() {
                taken.release(before);
                continue;
            }
            let (page, content) = (first + step, UserAddress((copy + step * self.unit()) as u64));
            let _inside = self.gate_of(page).enter();
            let filled = user_memory::copy_in(&mut bounce, content)
                .and_then(|()| self.mechanism.fill(self.offset(page), &bounce, false));
            assert!(filled.is_ok(), "a page that was just in memory goes back there");
            if before == State::Clean {
                self.store.slots.free(self.slot(&taken, page));
            }
            taken.release(State::Dirty);
        }
    }

    fn let_go(&self, index: usize, taken: Taken) {
        let before = taken.before();
        if before.is_resident() {
            self.limit.give_back(1);
        }
        if matches!(before, State::Clean | State::Out) {
            self.store.slots.free(self.slot(&taken, index));
        }
        taken.release(State::Given);
    }

    /// Waits until whoever evicts from a cluster has done what it was about to do.
    fn see_off(&self, cluster: usize) {
        loop {
            if let Some(mut claim) = self.gate(cluster).claim() {
                drop(claim.shut());
                return;
            }
            processor::give_way();
        }
    }
}

impl Parcel<'_> {
    fn copy_of(&self, page: usize, unit: usize) -> UserAddress {
        UserAddress((self.copy + (page - self.first) * unit) as u64)
    }
}
