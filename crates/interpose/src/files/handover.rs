//! Rings that reach the next program over execve(2), because a descriptor of theirs has no
//! close-on-exec.
//!
//! 1. Before the exec, [`Handover::prepare`] writes a list of these rings to a memfd: for each
//!    descriptor number, the ring's place ([`places`]). It keeps the descriptors of these places
//!    open over the exec, and also those of the registers of process numbers. A variable of the
//!    environment names the memfd.
//! 2. The next program's library reads the list ([`receive`]), and enters the numbers in the table
//!    of rings. At the first call on such a ring, the process makes its own `Ring`.
//!
//! If no ring reaches the next program, this takes one fcntl(2) for each ring, and nothing else.

use crate::files::descriptors;
use crate::files::numbers::{NUMBERS, ShortText};
use crate::files::places;
use crate::files::reached::{EVENT_LINK, MEMORY_LINK};
use crate::process::{self, environment};
use usring_engine::Place;
use usring_sys::descriptor::{self, OwnedDescriptor};
use usring_sys::process_number::{self, DESCRIPTORS, REGISTERS};
use usring_sys::{Errno, SystemCall, mapping, width};
use usring_uapi::general as linux;

/// How the link of the list begins in /proc.
const LIST_LINK: &[u8] = b"/memfd:usring-handover";
/// The list's first word. A change of the list's form changes it.
const FORM: u64 = 0x7573_7269_6e67_0001;
/// Number of words at the list's start: its form, and the registers' descriptors.
const HEAD: usize = 1 + REGISTERS * DESCRIPTORS;
/// Number of words for each descriptor of a ring: its number, with a flag, and the ring's place.
const ENTRY: usize = 2;
/// Maximum length of the list in bytes.
const LONGEST: u64 = (size_of::<u64>() * (HEAD + ENTRY * NUMBERS)) as u64;
/// Flag above the number: the thread that executes the program is the ring's issuer.
const ISSUER: u64 = 1 << 32;

/// The list of the rings that reach the next program. If the exec fails, the value is dropped, and
/// all descriptors are closed on exec again.
pub struct Handover {
    list: OwnedDescriptor,
    registers: [i32; REGISTERS * DESCRIPTORS],
    entries: usize,
}

impl Handover {
    /// Prepares an exec. `None`: no ring reaches the next program. Allocates no memory, because the
    /// caller may be a vfork child.
    pub fn prepare() -> Option<Handover> {
        let is_own = process::is_own();
        let mut handover = None;
        for number in descriptors::known_between(0, u32::MAX) {
            let word = places::word(number);
            if word == 0 || descriptor::closes_on_exec(number) {
                continue;
            }
            if handover.is_none() {
                handover = Some(Handover::begin().ok()?);
            }
            let flag = if is_own && descriptors::leave_to_next_program(number) { ISSUER } else { 0 };
            if let Some(handover) = &mut handover {
                handover.add(number, flag, word);
            }
        }
        handover
    }

    /// Makes an empty list. Its descriptor is not private to usring: a vfork child must not change
    /// the sets of private numbers, which are its parent's.
    ///
    /// Errors: `EFBIG` if the list could exceed the limit on file lengths; `ENOENT` without /proc,
    /// where the next program could not check what it gets.
    fn begin() -> Result<Handover, Errno> {
        if mapping::most_file_bytes()? < LONGEST {
            return Err(Errno::EFBIG);
        }
        let mut registers = [-1; REGISTERS * DESCRIPTORS];
        registers.copy_from_slice(process_number::descriptors().as_flattened());
        let name = c"usring-handover".as_ptr() as u64;
        let number = SystemCall::new(linux::__NR_memfd_create, [name, 0, 0, 0, 0]).run()?;
        let list = OwnedDescriptor::from_raw(width::int(number));
        if !descriptor::is_linked_to(list.number(), LIST_LINK) {
            return Err(Errno::ENOENT);
        }
        let handover = Handover { list, registers, entries: 0 };
        let mut head = [FORM; HEAD];
        head[1..].iter_mut().zip(registers).for_each(|(word, number)| *word = width::word(number));
        handover.write(0, &head)?;
        handover.close_on_exec(&registers, false);
        Ok(handover)
    }

    fn add(&mut self, number: i32, flag: u64, word: u64) {
        let Some(Place { memory, watcher, .. }) = places::place_of(word) else { return };
        if self.write(HEAD + ENTRY * self.entries, &[width::word(number) | flag, word]).is_ok() {
            self.entries += 1;
            self.close_on_exec(&[memory, watcher], false);
        }
    }

    /// Writes words to the list, from the word `index` on.
    fn write(&self, index: usize, words: &[u64]) -> Result<(), Errno> {
        let (from, length) = (words.as_ptr() as u64, size_of_val(words) as u64);
        let arguments = [width::word(self.list.number()), from, length, (index * size_of::<u64>()) as u64, 0];
        let written = SystemCall::new(linux::__NR_pwrite64, arguments).run()?;
        if written == length { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    fn close_on_exec(&self, numbers: &[i32], closes: bool) {
        for number in numbers.iter().filter(|number| **number >= 0) {
            let _ = descriptor::set_close_on_exec(*number, closes);
        }
    }

    /// Returns the variable for the next program's environment.
    pub fn variable(&self) -> ShortText {
        let mut text = ShortText::default();
        text.push(environment::RINGS);
        text.push_number(self.list.number().cast_unsigned());
        text
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        self.close_on_exec(&self.registers, true);
        for index in 0..self.entries {
            if let Some([_, word]) = read(&self.list, HEAD + ENTRY * index)
                && let Some(Place { memory, watcher, .. }) = places::place_of(word)
            {
                self.close_on_exec(&[memory, watcher], true);
            }
        }
    }
}

/// Reads words of the list, from the word `index` on. `None`: the list is shorter.
fn read<const COUNT: usize>(list: &OwnedDescriptor, index: usize) -> Option<[u64; COUNT]> {
    let mut words = [0u64; COUNT];
    let length = size_of_val(&words) as u64;
    let offset = (index * size_of::<u64>()) as u64;
    let arguments = [width::word(list.number()), words.as_mut_ptr() as u64, length, offset, 0];
    let got = SystemCall::new(linux::__NR_pread64, arguments).run().ok()?;
    (got == length).then_some(words)
}

/// Takes over the rings that an earlier program of this process has left to this one. `number`: the
/// descriptor of their list. Ignores another file, and entries that are no rings.
pub fn receive(number: i32) {
    if number < 0 || !descriptor::is_linked_to(number, LIST_LINK) {
        return;
    }
    let list = OwnedDescriptor::from_raw(number);
    let Some([form, registers @ ..]) = read::<HEAD>(&list, 0) else { return };
    if form != FORM {
        return;
    }
    for register in registers.as_chunks::<DESCRIPTORS>().0 {
        let files: [_; DESCRIPTORS] = core::array::from_fn(|kind| taken_over(kind, register[kind]));
        if files[0].is_some() && process_number::join(files).is_err() {
            return;
        }
    }
    let mut index = HEAD;
    while let Some([number, word]) = read::<ENTRY>(&list, index) {
        index += ENTRY;
        receive_ring(width::int(number & u64::from(u32::MAX)), number & ISSUER != 0, word);
    }
}

/// Makes a register's descriptor that is open after the exec private to usring. `None`: there is
/// none, or the number means another file, because a program without usring was executed in
/// between. `kind`: the descriptor's position in the register.
fn taken_over(kind: usize, number: u64) -> Option<OwnedDescriptor> {
    let number = width::int(number);
    (number > 2 && process_number::is_descriptor(kind, number) && descriptor::take_over(number).is_ok())
        .then(|| OwnedDescriptor::from_raw(number))
}

fn receive_ring(number: i32, is_issuer: bool, word: u64) {
    let Some(Place { memory, watcher, .. }) = places::place_of(word) else { return };
    if !descriptor::is_linked_to(number, EVENT_LINK) || !descriptor::is_linked_to(memory, MEMORY_LINK) {
        return;
    }
    let is_event =
        watcher < 0 || descriptor::is_linked_to(watcher, EVENT_LINK) && descriptor::take_over(watcher).is_ok();
    if is_event && descriptor::take_over(memory).is_ok() {
        let _ = descriptors::insert_reached(number, word, is_issuer);
    }
}
