//! Which addresses are contexts of this process. A context's `id`, which stands
//! at its address, is its place in the table, as in the kernel: so looking one
//! up is one read of the program's memory, and nonsense there finds nothing.

use crate::context::Context;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::{self, PerProcess};
use usring_sys::{Errno, UserAddress, user_memory};

type Places = Mutex<Vec<Place>>;

enum Place {
    Free,
    /// Somebody is about to put a context there.
    Taken,
    Holds(Arc<Context>),
}

static TABLE: PerProcess<Places> = PerProcess::new();

/// Puts in a context that is made with its id; answers its address.
pub fn insert(make: impl FnOnce(u32) -> Result<Context, Errno>) -> Result<u64, Errno> {
    per_process::prepare()?;
    let table = TABLE.get_or_make(|| Mutex::new(Vec::new()));
    let id = {
        let mut places = table.lock();
        let id = places.iter().position(|place| matches!(place, Place::Free)).unwrap_or(places.len());
        if id == places.len() {
            places.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            places.push(Place::Taken);
        } else {
            places[id] = Place::Taken;
        }
        id
    };
    // Not with the lock held: it may start a thread.
    let made = make(id as u32);
    let mut places = table.lock();
    match made {
        Ok(context) => {
            let address = context.address();
            places[id] = Place::Holds(Arc::new(context));
            Ok(address)
        }
        Err(error) => {
            places[id] = Place::Free;
            Err(error)
        }
    }
}

/// The context at an address. `EINVAL`: there is none.
#[inline]
pub fn find(address: u64) -> Result<Arc<Context>, Errno> {
    look(address, |_, context| context.clone())
}

/// Takes the context at an address out.
pub fn remove(address: u64) -> Result<Arc<Context>, Errno> {
    look(address, |place, context| {
        let context = context.clone();
        *place = Place::Free;
        context
    })
}

#[inline(always)]
fn look(address: u64, found: impl FnOnce(&mut Place, &Arc<Context>) -> Arc<Context>) -> Result<Arc<Context>, Errno> {
    let id: u32 = user_memory::read(UserAddress(address)).map_err(|_| Errno::EINVAL)?;
    let mut places = TABLE.get().ok_or(Errno::EINVAL)?.lock();
    let place = places.get_mut(id as usize).ok_or(Errno::EINVAL)?;
    let context = match place {
        Place::Holds(context) if context.address() == address => context.clone(),
        _ => return Err(Errno::EINVAL),
    };
    Ok(found(place, &context))
}
