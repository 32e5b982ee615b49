//! Moving contents from pages to pages, for a mapping that is moved (mremap(2)).
//!
//! What is out moves by its slot's number alone. What is in memory is copied, put in place, and only then
//! given up. Where one page cannot be moved, those before it go back.

use crate::page::{Pins, State, Taken};
use crate::pager::Pager;
use alloc::vec;
use core::ops::Range;
use usring_sys::{Errno, UserAddress, page_fault, thread, user_memory};

impl Pager {
    /// The target's pages hold nothing, and nobody knows of them yet; what others do to
    /// the source's meanwhile is lost or not, as with mremap(2). One mover at a time.
    ///
    /// What is pinned stays where it is as well. Errors: what the kernel says where it has no
    /// memory; then all is as it was.
    pub fn move_pages(&self, from: Range<usize>, to: usize) -> Result<(), Errno> {
        let mut bounce = vec![0; self.unit()];
        // A handler could touch the page that this thread has.
        let _closed = thread::close_signals();
        for (step, page) in from.clone().enumerate() {
            if let Err(error) = self.move_page(page, to + step, &mut bounce) {
                (0..step).for_each(|step| self.move_back(to + step, from.start + step, &mut bounce));
                return Err(error);
            }
        }
        Ok(())
    }

    fn move_page(&self, from: usize, to: usize, bounce: &mut [u8]) -> Result<(), Errno> {
        let page = self.page(from);
        loop {
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
                State::Clean | State::Dirty => {
                    // In this order: room, then the cluster, then pages.
                    self.make_room(page_fault::place());
                    match self.move_resident(from, to, bounce) {
                        Ok(Moved::Copied) => return Ok(()),
                        Ok(Moved::Gone) => self.limit.give_back(1),
                        Ok(Moved::Not) => {
                            self.limit.give_back(1);
                            continue;
                        }
                        Err(error) => {
                            self.limit.give_back(1);
                            return Err(error);
                        }
                    }
                    return Ok(());
                }
            }
        }
    }

    /// With room for one page more.
    fn move_resident(&self, from: usize, to: usize, bounce: &mut [u8]) -> Result<Moved, Errno> {
        // Nobody shuts this gate, be it the target's, too.
        let _claim = self.claim_cluster(self.cluster_of(from));
        let page = self.page(from);
        let before = page.state();
        if !before.is_resident() {
            return Ok(Moved::Not);
        }
        let Some(source) = page.take(before, Pins::Ignored) else { return Ok(Moved::Not) };
        // Pins are put on pages that nobody has.
        let goes = !page.is_pinned();
        let is_clean = goes && before == State::Clean;
        let copied = self.copy_to(from, to, is_clean, bounce);
        let Ok(target) = copied else {
            self.reopen(from, source, before);
            return copied.map(|_| Moved::Not);
        };
        if is_clean {
            self.set_slot(&target, to, self.slot(&source, from));
        }
        target.release(if is_clean { State::Clean } else { State::Dirty });
        if !goes {
            self.reopen(from, source, before);
            return Ok(Moved::Copied);
        }
        if self.mechanism.discard(self.offset(from), self.unit()).is_err() {
            // No kernel refuses this; here it has its content a second time.
            self.reopen(from, source, State::Dirty);
            return Ok(Moved::Copied);
        }
        source.release(State::Untouched);
        Ok(Moved::Gone)
    }

    /// Puts a copy of a taken page in another's place, who is answered taken.
    fn copy_to(&self, from: usize, to: usize, is_clean: bool, bounce: &mut [u8]) -> Result<Taken<'_>, Errno> {
        let target = self.page(to).take(State::Untouched, Pins::Ignored).ok_or(Errno::EEXIST)?;
        let content = UserAddress(self.memory.content(self.offset(from), self.unit()) as u64);
        let filled = self.close_for_reading(&(from..from + 1)).and_then(|()| user_memory::copy_in(bounce, content));
        let filled = filled.and_then(|()| {
            let _inside = self.gate_of(to).enter();
            self.mechanism.fill(self.offset(to), bounce, is_clean)
        });
        match filled {
            Ok(()) => Ok(target),
            Err(error) => {
                target.release(State::Untouched);
                Err(error)
            }
        }
    }

    /// Gives a page back that stays. (One that cannot be opened is opened by who touches it.)
    fn reopen(&self, index: usize, taken: Taken, state: State) {
        if state == State::Dirty {
            let _ = self.mechanism.open(self.offset(index), self.unit());
        }
        taken.release(state);
    }

    /// What was moved goes back. What somebody has touched there meanwhile does not count.
    fn move_back(&self, from: usize, to: usize, bounce: &mut [u8]) {
        if self.page(from).state() == State::Untouched {
            return;
        }
        let back = match self.discard(to..to + 1) {
            Ok(()) => self.move_page(from, to, bounce),
            // It is still there, too.
            Err(_) => self.discard(from..from + 1),
        };
        assert!(back.is_ok(), "a page that was just in memory goes back there: {back:?}");
    }
}

/// What became of a page that was in memory.
enum Moved {
    /// The room that was taken is the source's now.
    Gone,
    /// The source stays, too.
    Copied,
    /// It is not in memory any more, or somebody has it.
    Not,
}
