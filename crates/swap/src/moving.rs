//! Moving contents from pages to pages, for a mapping that is moved (mremap(2)).
//!
//! What is out moves by its slot's number alone. What is in memory is copied, in
//! the way of any thread that touches it, and then given up.

use crate::page::{Pins, State};
use crate::pager::Pager;
use alloc::vec;
use core::ops::Range;
use usring_sys::mapping::PAGE;
use usring_sys::{Errno, UserAddress, thread, user_memory};

impl Pager {
    /// The target's pages were discarded, and nobody knows of them yet; what others do to
    /// the source's meanwhile is lost or not, as with mremap(2).
    pub fn move_pages(&self, from: Range<usize>, to: usize) -> Result<(), Errno> {
        let mut bounce = vec![0; PAGE];
        let mut answer = Ok(());
        for (step, page) in from.enumerate() {
            let moved = {
                // A handler could touch the page that this thread has.
                let _closed = thread::close_signals();
                self.move_page(page, to + step, &mut bounce)
            };
            match moved {
                Ok(()) => {}
                Err(Errno::EBUSY) => answer = Err(Errno::EBUSY),
                Err(error) => return Err(error),
            }
        }
        answer
    }

    fn move_page(&self, from: usize, to: usize, bounce: &mut [u8]) -> Result<(), Errno> {
        loop {
            let page = self.page(from);
            match page.state() {
                State::Busy => page.wait(),
                State::Untouched => return Ok(()),
                State::Given => return Err(Errno::EBUSY),
                State::Out => {
                    let Some(source) = page.take(State::Out, Pins::Ignored) else { continue };
                    let Some(target) = self.page(to).take(State::Untouched, Pins::Ignored) else {
                        source.release(State::Out);
                        return Err(Errno::EEXIST);
                    };
                    self.set_slot(&target, to, self.slot(&source, from));
                    target.release(State::Out);
                    source.release(State::Untouched);
                    return Ok(());
                }
                _ => {
                    self.copy_page(from, to, bounce)?;
                    return self.discard(from..from + 1);
                }
            }
        }
    }

    fn copy_page(&self, from: usize, to: usize, bounce: &mut [u8]) -> Result<(), Errno> {
        let address =
            |page: usize, offset: usize| UserAddress((self.memory.address() + self.offset(page) + offset) as u64);
        for offset in (0..self.unit()).step_by(bounce.len()) {
            user_memory::copy_in(bounce, address(from, offset))?;
            user_memory::copy_out(address(to, offset), bounce)?;
        }
        Ok(())
    }
}
