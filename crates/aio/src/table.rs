//! Which addresses are contexts of this process. A context's `id`, which stands
//! at its address, is its place in the table, as in the kernel: so looking one
//! up is one read of the program's memory, and nonsense there finds nothing.
//!
//! Looking takes no lock ([`SharedTable`]): contexts that are used at the same time have
//! nothing in common.

use crate::context::Context;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::{self, PerProcess};
use usring_sys::shared_table::{SharedTable, Using};
use usring_sys::{Errno, UserAddress, user_memory};

#[derive(Default)]
struct Table {
    contexts: SharedTable<Context>,
    /// Which places are somebody's, also where the context is only being made.
    taken: Mutex<Vec<bool>>,
}

static TABLE: PerProcess<Table> = PerProcess::new();

impl Table {
    /// The first place that is nobody's.
    fn take_place(&self) -> Result<usize, Errno> {
        let mut taken = self.taken.lock();
        let place = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
        self.contexts.reserve(place)?;
        if place == taken.len() {
            taken.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            taken.push(false);
        }
        taken[place] = true;
        Ok(place)
    }

    fn give_back(&self, place: usize) {
        self.taken.lock()[place] = false;
    }
}

/// Puts in a context that is made with its id; answers its address.
pub fn insert(make: impl FnOnce(u32) -> Result<Context, Errno>) -> Result<u64, Errno> {
    per_process::prepare()?;
    let table = TABLE.get_or_make(Table::default);
    let place = table.take_place()?;
    // Not with the lock held: it may start a thread.
    match make(place as u32) {
        Ok(context) => {
            let address = context.address();
            table.contexts.put(place, Arc::new(context));
            Ok(address)
        }
        Err(error) => {
            table.give_back(place);
            Err(error)
        }
    }
}

/// The context at an address. `EINVAL`: there is none.
#[inline]
pub fn find(address: u64) -> Result<Using<Context>, Errno> {
    let (table, place) = locate(address)?;
    let found = table.contexts.find(place).filter(|context| context.address() == address);
    found.ok_or(Errno::EINVAL)
}

/// Takes the context at an address out.
pub fn remove(address: u64) -> Result<Arc<Context>, Errno> {
    let (table, place) = locate(address)?;
    let context = table.contexts.take(place, |context| context.address() == address).ok_or(Errno::EINVAL)?;
    table.give_back(place);
    Ok(context)
}

#[inline(always)]
fn locate(address: u64) -> Result<(&'static Table, usize), Errno> {
    let id: u32 = user_memory::read(UserAddress(address)).map_err(|_| Errno::EINVAL)?;
    Ok((TABLE.get().ok_or(Errno::EINVAL)?, id as usize))
}
