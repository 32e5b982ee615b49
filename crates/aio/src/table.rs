//! The contexts of this process, by address.
//!
//! - A context's `id` is its index in the table, as in the kernel. The program's memory at the
//!   context's address begins with the id, and a lookup reads it there once. If the program has
//!   overwritten the id, the lookup finds no context.
//! - A lookup takes no lock ([`SharedTable`]), so threads that use different contexts share no
//!   data.

use crate::context::Context;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::{self, PerProcess};
use usring_sys::shared_table::{SharedTable, Using};
use usring_sys::{Errno, UserAddress, user_memory, width};

#[derive(Default)]
struct Table {
    contexts: SharedTable<Context>,
    /// For each index of the table, whether it is in use. A thread marks an index before it makes a
    /// context for that index. So no other thread gets this index.
    taken: Mutex<Vec<bool>>,
}

static TABLE: PerProcess<Table> = PerProcess::new();

impl Table {
    /// Reserves the first free index.
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

/// Makes a context with its table index as `id`, inserts the context, and returns its address.
pub fn insert(make: impl FnOnce(u32) -> Result<Context, Errno>) -> Result<u64, Errno> {
    per_process::prepare()?;
    let table = TABLE.get_or_make(Table::default);
    let place = table.take_place()?;
    // The lock of `taken` is free during `make`, because `make` may start a thread.
    match make(width::count(place)) {
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

/// Finds the context at an address. Error: `EINVAL` if there is none.
#[inline]
pub fn find(address: u64) -> Result<Using<Context>, Errno> {
    let (table, place) = locate(address)?;
    let found = table.contexts.find(place).filter(|context| context.is_at(address));
    found.ok_or(Errno::EINVAL)
}

/// Removes the context at an address. Error: `EINVAL` if there is none.
pub fn remove(address: u64) -> Result<Arc<Context>, Errno> {
    let (table, place) = locate(address)?;
    // The program may have moved the mapping of the events. `find` then stores the context's new
    // address, for which it makes system calls. So `find` comes before `take`, which holds a lock.
    drop(find(address)?);
    let context = table.contexts.take(place, |context| context.address() == address).ok_or(Errno::EINVAL)?;
    table.give_back(place);
    Ok(context)
}

#[inline(always)]
fn locate(address: u64) -> Result<(&'static Table, usize), Errno> {
    let id: u32 = user_memory::read(UserAddress(address)).map_err(|_| Errno::EINVAL)?;
    Ok((TABLE.get().ok_or(Errno::EINVAL)?, id as usize))
}
