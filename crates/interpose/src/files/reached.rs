//! Rings that reach this process by pidfd_getfd(2), which gives the program a duplicate of another
//! process's descriptor.
//!
//! The ring also needs private descriptors of the other process: the file with the ring's memory,
//! and the eventfd of a ring watcher. Their numbers are in the other process's table of places
//! ([`places`]). usring reads that table, and takes duplicates of these descriptors. The kernel
//! demands the same rights for this as for the program's call. At the first call on the ring, this
//! process makes its own `Ring`.
//!
//! Processes that share a ring have a common register of process numbers (`sys::process_number`).
//! This process joins all registers of the other process. If it cannot, the duplicate is a plain
//! eventfd.

use crate::call::{Call, Outcome};
use crate::files::descriptors;
use crate::files::numbers::{self, duplicate_reserved};
use crate::files::places;
use crate::process;
use alloc::ffi::CString;
use alloc::format;
use alloc::sync::Arc;
use usring_engine::{Place, Ring};
use usring_sys::descriptor::{self, FileIdentity, OwnedDescriptor, RESERVED_BASE};
use usring_sys::mutex::Mutex;
use usring_sys::other_process::{Counterpart, descriptor_of};
use usring_sys::per_process::PerProcess;
use usring_sys::process_number::{self, DESCRIPTORS, REGISTERS};
use usring_sys::syscall::PASS_MARK;
use usring_sys::{Errno, SystemCall, UserAddress, width};
use usring_uapi::general as linux;

/// How the links of a file with rings, and of an eventfd, begin in /proc.
pub const MEMORY_LINK: &[u8] = b"/memfd:usring-rings";
pub const EVENT_LINK: &[u8] = b"anon_inode:[eventfd]";

/// Held while a thread of this process takes over a ring. If a thread closed a duplicate of a
/// register that another thread has just joined, the kernel would release this process's lock in
/// that register (`sys::process_number`).
static ENTERING: PerProcess<Mutex<()>> = PerProcess::new();

/// Answers pidfd_getfd(2).
pub fn get_descriptor(call: &mut Call) -> Outcome {
    let [pidfd, number, ..] = call.arguments;
    let (pidfd, number) = (width::int(pidfd), width::int(number));
    if !process::is_own() {
        return call.pass();
    }
    let source = numbers::process_of(pidfd).map(|process| Source { pidfd, process });
    let _one_at_a_time = ENTERING.get_or_make(|| Mutex::new(())).lock();
    // The program must not get a register that this process uses: the program's close(2) of it
    // would release this process's lock.
    if source.as_ref().is_some_and(|source| source.file(number).is_ok_and(|file| process_number::uses(&file))) {
        return Err::<u64, _>(Errno::EBADF).into();
    }
    let mut arguments = call.arguments;
    arguments[5] = PASS_MARK;
    let answer = SystemCall::with_six(width::low(call.number), arguments).run_once();
    let Ok(taken) = answer.map(|number| OwnedDescriptor::from_raw(width::int(number))) else {
        return answer.into();
    };
    if !descriptor::is_linked_to(taken.number(), EVENT_LINK) {
        return Ok(width::word(taken.into_raw())).into();
    }
    let entered = source.map_or(Ok(None), |source| source.enter(number, &taken));
    entered.map(|entered| width::word(entered.unwrap_or(taken).into_raw())).into()
}

/// The process from which the program gets a descriptor.
struct Source {
    pidfd: i32,
    process: u32,
}

/// A ring's place in the other process, and the descriptors of its registers there, each plus 1.
struct Known {
    place: Place,
    registers: [u32; REGISTERS * DESCRIPTORS],
}

impl Source {
    /// Enters `taken`, a duplicate of the other process's descriptor `number`, in the table of
    /// rings. Returns a new descriptor of it, in the reserved range. `None`: it is not that of a
    /// ring that this process can use.
    ///
    /// Errors: `EMFILE`.
    fn enter(&self, number: i32, taken: &OwnedDescriptor) -> Result<Option<OwnedDescriptor>, Errno> {
        if self.process == process::id() {
            let file = descriptors::get(number);
            return file.map(|file| insert(taken, |number| descriptors::insert(number, file))).transpose();
        }
        let Some(known) = self.look_up(number) else { return Ok(None) };
        let Some(memory) = self.take(known.place.memory, MEMORY_LINK) else { return Ok(None) };
        if let Some(file) = known_here(&memory, known.place.offset) {
            return insert(taken, |number| descriptors::insert(number, file)).map(Some);
        }
        let registers = known.registers.as_chunks().0;
        if !registers.iter().take_while(|register| register[0] != 0).all(|register| self.share_register(register)) {
            return Ok(None);
        }
        let watcher = self.take(known.place.watcher, EVENT_LINK).map_or(-1, keep);
        let place = Place { memory: keep(memory), offset: known.place.offset, watcher };
        let word = places::word_of(place).ok_or(Errno::EMFILE)?;
        insert(taken, |number| descriptors::insert_reached(number, word, false)).map(Some)
    }

    /// Reads in the other process's memory what its library knows of the descriptor `number`.
    fn look_up(&self, number: i32) -> Option<Known> {
        let counterpart = Counterpart::find(self.process, get_descriptor as *const () as usize)?;
        let [low, high] = counterpart.read(places::address_of(number)?).ok()?;
        let place = places::place_of(u64::from(high) << 32 | u64::from(low))?;
        let registers = counterpart.read(process_number::address_of_descriptors()).ok()?;
        Some(Known { place, registers })
    }

    /// Takes a private duplicate of the other process's descriptor, if the duplicate is linked to a
    /// file as expected.
    fn take(&self, number: i32, link: &[u8]) -> Option<OwnedDescriptor> {
        let file = (number >= 0).then(|| descriptor_of(self.pidfd, number).ok())??;
        descriptor::is_linked_to(file.number(), link).then_some(file)
    }

    /// Returns the identity of the file that is open at a number of the other process.
    fn file(&self, number: i32) -> Result<FileIdentity, Errno> {
        let path = CString::new(format!("/proc/{}/fd/{number}", self.process)).map_err(|_| Errno::EINVAL)?;
        descriptor::identity_of_path(linux::AT_FDCWD, UserAddress(path.as_ptr() as u64))
    }

    /// Makes this process a user of a register of the other process. `numbers`: its descriptors
    /// there, each plus 1. Returns whether it is a user now. A descriptor of a register that this
    /// process uses must not be closed, because that would release its lock. So the register is
    /// first looked up by its path.
    fn share_register(&self, numbers: &[u32; DESCRIPTORS]) -> bool {
        let number = |plus_one: u32| plus_one.cast_signed().wrapping_sub(1);
        match self.file(number(numbers[0])) {
            Ok(file) if process_number::uses(&file) => true,
            Ok(_) => {
                let take =
                    |plus_one| (plus_one != 0).then(|| descriptor_of(self.pidfd, number(plus_one)).ok()).flatten();
                process_number::join(numbers.map(take)).is_ok()
            }
            Err(_) => false,
        }
    }
}

fn is_same(one: Result<FileIdentity, Errno>, other: Result<FileIdentity, Errno>) -> bool {
    matches!((one, other), (Ok(one), Ok(other)) if (one.device, one.inode) == (other.device, other.inode))
}

/// Makes this process's descendants keep a descriptor open. Returns its number.
fn keep(file: OwnedDescriptor) -> i32 {
    descriptor::keep_in_children(file.number());
    file.into_raw()
}

/// Makes a duplicate of a ring's descriptor in the reserved range, closed on exec, and enters it in
/// the table of rings by `enter`.
fn insert(taken: &OwnedDescriptor, enter: impl FnOnce(i32) -> Result<(), Errno>) -> Result<OwnedDescriptor, Errno> {
    let reserved = duplicate_reserved(taken.number(), RESERVED_BASE, true)?;
    enter(reserved.number())?;
    Ok(reserved)
}

/// Returns the file of the ring at `offset` in a file of memory, if this process has a descriptor
/// of that ring.
fn known_here(memory: &OwnedDescriptor, offset: usize) -> Option<Arc<descriptors::File>> {
    let is_it = |number: &i32| {
        let place = places::place_of(places::word(*number)).filter(|place| place.offset == offset);
        place.is_some_and(|place| is_same(descriptor::identity(place.memory), descriptor::identity(memory.number())))
    };
    descriptors::known_between(0, u32::MAX).find(is_it).and_then(descriptors::get)
}

/// Makes this process's `Ring` for the ring at a place. `issuer`: the thread pointer of the ring's
/// issuer, if it is a thread of this process.
///
/// Errors: those of [`Ring::reach`]; `EOWNERDEAD` if there is no place; `EMFILE`.
pub fn begin(word: u64, issuer: Option<usize>) -> Result<Arc<Ring>, Errno> {
    let place = places::place_of(word).ok_or(Errno::EOWNERDEAD)?;
    let memory = descriptor::duplicate_private(place.memory)?;
    let watcher = (place.watcher >= 0).then(|| descriptor::duplicate_private(place.watcher)).transpose()?;
    watcher.iter().for_each(|watcher| _ = descriptor::keep_in_children(watcher.number()));
    Ring::reach(memory, place.offset, watcher, issuer)
}
