//! System calls of the program, and ours for it, on memory that is swapped: what they
//! name is brought in first, and stays until the kernel has answered.
//!
//! The kernel's own answer for a page that is out is EFAULT, and a datagram that was to
//! be received there is lost; so nothing is tried first. A call whose buffers are larger than what
//! may be kept at a time is made in parts, where that is no different from one: a file
//! is read and written on, a stream is received in part and sent on. What can be neither
//! kept as a whole nor made in parts is answered ENOMEM.
//!
//! The door makes the call in its own place ([`Outcome::GUARDED`]), so that signals meet
//! it as they would meet the program's, and then asks [`after`]. (A handler that never
//! returns to the call leaves what was kept in memory for good.)

use crate::doors::door::{Call, Outcome};
use crate::swapped::managed;
use crate::swapped::pointers::{self, Arguments, MOST_VECTORS, Span};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use usring_swap::Access;
use usring_swap::mappings::Mappings;
use usring_sys::kept_memory::{self, Keeper};
use usring_sys::mapping::PAGE;
use usring_sys::plain::IoVector;
use usring_sys::syscall::PASS_MARK_ABOVE_FLAGS;
use usring_sys::{Errno, SystemCall, UserAddress, user_memory};
use usring_uapi::general as linux;

/// Looks at the system calls that the engine makes.
pub static KEEPER: Keeper = Keeper {
    keep,
    // SAFETY: the number is `keep`'s, which gave the box up.
    let_go: |kept| drop(unsafe { Box::from_raw(kept as *mut Held) }),
};

/// How often, a millisecond apart, it is tried to keep what does not fit beside what
/// other threads keep.
const PATIENCE: u32 = 2_000;

/// Memory that stays where it is until this is dropped.
struct Held {
    mappings: &'static Mappings,
    ranges: Vec<Range<usize>>,
    transfer: Option<Transfer>,
}

impl Held {
    fn new(mappings: &'static Mappings, spans: &[Span]) -> Result<Held, Errno> {
        let mut tries = 0;
        loop {
            let mut held = Held { mappings, ranges: Vec::with_capacity(spans.len()), transfer: None };
            match spans.iter().try_for_each(|span| held.keep(span)) {
                Ok(()) => return Ok(held),
                Err(Errno::ENOMEM) if tries < PATIENCE => {
                    drop(held);
                    tries += 1;
                    pause();
                }
                // The kernel's answer where a page cannot be read back.
                Err(Errno::EIO) => return Err(Errno::EFAULT),
                Err(error) => return Err(error),
            }
        }
    }

    /// What is not mapped is left to the kernel, which says so.
    fn keep(&mut self, span: &Span) -> Result<(), Errno> {
        let Some(around) = self.mappings.around(span.start) else { return Ok(()) };
        let end = span.start.saturating_add(span.length).min(around.end);
        let range = span.start / PAGE * PAGE..end.next_multiple_of(PAGE);
        match self.mappings.pin(&range, span.access) {
            Ok(()) => self.ranges.push(range),
            // The kernel's by now.
            Err(Errno::ENXIO) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn let_go(&mut self) {
        self.ranges.drain(..).for_each(|range| self.mappings.unpin(&range));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.let_go();
    }
}

fn pause() {
    let span = [0u64, 1_000_000];
    let _ = SystemCall::new(linux::__NR_nanosleep, [&raw const span as u64, 0, 0, 0, 0]).run_once();
}

fn keep(call: &SystemCall) -> usize {
    let Some(mappings) = managed::mappings() else { return 0 };
    let is_direct = || call.arguments.iter().any(|argument| managed::is_in_window(*argument));
    if !(is_direct() || names_by_memory(call.number)) || kept_memory::is_exempt() {
        return 0;
    }
    let spans = pointers::of(call.number, &call.arguments);
    if spans.is_empty() {
        return 0;
    }
    if matches!(call.number, linux::__NR_execve | linux::__NR_execveat) {
        // Nobody would let go of it: in a vfork child the memory outlives the call.
        spans.iter().for_each(touch);
        return 0;
    }
    Held::new(mappings, &spans).map_or(0, |held| Box::into_raw(Box::new(held)) as usize)
}

fn names_by_memory(number: u32) -> bool {
    pointers::vector(number).is_some()
        || matches!(
            number,
            linux::__NR_sendmsg
                | linux::__NR_recvmsg
                | linux::__NR_sendmmsg
                | linux::__NR_recvmmsg
                | linux::__NR_execve
                | linux::__NR_execveat
        )
}

fn touch(span: &Span) {
    for address in (span.start..span.start + span.length).step_by(PAGE) {
        if user_memory::read::<u8>(UserAddress(address as u64)).is_err() {
            return;
        }
    }
}

/// Serves a call; one that the kernel is to answer finds its memory.
pub fn guard(call: &mut Call, serve: fn(&mut Call) -> Outcome) -> Outcome {
    let outcome = serve(call);
    match managed::mappings() {
        Some(mappings) if outcome.kind == Outcome::FORWARD => hold(call, mappings),
        _ => outcome,
    }
}

const FORWARD: Outcome = Outcome { answer: 0, kind: Outcome::FORWARD };
const GUARDED: Outcome = Outcome { answer: 0, kind: Outcome::GUARDED };

fn hold(call: &mut Call, mappings: &'static Mappings) -> Outcome {
    let number = call.forward.number as u32;
    let spans = pointers::of(number, &call.forward.arguments);
    if spans.is_empty() {
        return FORWARD;
    }
    let most = mappings.most_pinned();
    let mut transfer = Transfer::of(number, &call.forward.arguments, most as u64);
    let spans = transfer.as_mut().map_or(spans, |transfer| transfer.begin(call));
    match Held::new(mappings, &spans) {
        Ok(mut held) => {
            held.transfer = transfer;
            call.held = Box::into_raw(Box::new(held)) as u64;
            GUARDED
        }
        Err(error) => Err::<u64, _>(error).into(),
    }
}

/// For the door: the kernel has answered a call that is [`Outcome::GUARDED`].
pub extern "C" fn after(call: &mut Call, answer: u64) -> Outcome {
    let done = Outcome { answer, kind: Outcome::DONE };
    // SAFETY: `hold` gave it up for this call, which has come back once.
    let mut held = unsafe { Box::from_raw(call.held as *mut Held) };
    held.let_go();
    let Some(mut transfer) = held.transfer.take() else { return done };
    if !transfer.goes_on(answer) {
        return transfer.result(answer);
    }
    match Held::new(held.mappings, &transfer.begin(call)) {
        Ok(mut next) => {
            next.transfer = Some(transfer);
            call.held = Box::into_raw(Box::new(next)) as u64;
            GUARDED
        }
        Err(_) => transfer.result(0),
    }
}

/// A call on more than may be kept at a time, made in parts.
struct Transfer {
    form: Form,
    access: Access,
    /// Most bytes of a part.
    most: u64,
    /// Whether a part that was done as a whole is followed by another.
    continues: bool,
    /// Bytes of the part that is out, and of those before.
    asked: u64,
    done: u64,
}

enum Form {
    /// Arguments: where the address stands, the length, and, perhaps, the position.
    Buffer {
        address: usize,
        length: usize,
        position: Option<usize>,
        left: u64,
    },
    Vector {
        left: Vec<IoVector>,
        part: Vec<IoVector>,
        position: u64,
    },
}

/// "Where the file stands."
const HERE: u64 = u64::MAX;

impl Transfer {
    /// `None`: it is no more than may be kept, or nothing that has parts.
    fn of(number: u32, arguments: &Arguments, most: u64) -> Option<Transfer> {
        let (form, access, total) = if let Some(buffer) = pointers::buffer(number) {
            let left = arguments[buffer.length];
            let position = matches!(number, linux::__NR_pread64 | linux::__NR_pwrite64).then_some(3);
            (Form::Buffer { address: buffer.address, length: buffer.length, position, left }, buffer.access, left)
        } else {
            let position = match number {
                linux::__NR_readv | linux::__NR_writev => HERE,
                linux::__NR_preadv | linux::__NR_pwritev | linux::__NR_preadv2 | linux::__NR_pwritev2 => arguments[3],
                _ => return None,
            };
            if arguments[2] > MOST_VECTORS {
                return None;
            }
            let left = user_memory::read_array::<IoVector>(UserAddress(arguments[1]), arguments[2] as usize).ok()?;
            let total = left.iter().fold(0u64, |sum, vector| sum.saturating_add(vector.length));
            let (_, access) = pointers::vector(number)?;
            (Form::Vector { left, part: Vec::new(), position }, access, total)
        };
        if total <= most {
            return None;
        }
        let continues = Manner::of(number, arguments)?.continues;
        Some(Transfer { form, access, most, continues, asked: 0, done: 0 })
    }

    /// Has the door make the next part; answers what that names.
    fn begin(&mut self, call: &mut Call) -> Vec<Span> {
        let mut arguments = call.forward.arguments;
        let mut spans = Vec::new();
        match &mut self.form {
            Form::Buffer { address, length, position, left } => {
                arguments[*address] += self.asked;
                self.asked = (*left).min(self.most);
                arguments[*length] = self.asked;
                if let Some(position) = position {
                    arguments[*position] = call.arguments[*position].wrapping_add(self.done);
                }
                spans.push(Span {
                    start: arguments[*address] as usize,
                    length: self.asked as usize,
                    access: self.access,
                });
            }
            Form::Vector { left, part, position } => {
                self.asked = take_part(left, part, self.most);
                let is_read = self.access == Access::Write;
                let flagged = matches!(call.number as u32, linux::__NR_preadv2 | linux::__NR_pwritev2);
                let flags = if flagged { call.arguments[5] & 0xffff_ffff } else { 0 };
                call.forward.number = u64::from(if is_read { linux::__NR_preadv2 } else { linux::__NR_pwritev2 });
                let position = if *position == HERE { HERE } else { position.wrapping_add(self.done) };
                let vector = part.as_ptr() as u64;
                arguments = [arguments[0], vector, part.len() as u64, position, 0, flags | PASS_MARK_ABOVE_FLAGS];
                spans.extend(part.iter().filter(|vector| managed::is_in_window(vector.base)).map(|vector| Span {
                    start: vector.base as usize,
                    length: vector.length as usize,
                    access: self.access,
                }));
            }
        }
        call.forward.arguments = arguments;
        spans.retain(|span| managed::is_in_window(span.start as u64));
        spans
    }

    /// The part that was out is answered: whether another follows.
    fn goes_on(&mut self, answer: u64) -> bool {
        if is_error(answer) {
            return false;
        }
        self.done += answer;
        let rest = match &mut self.form {
            Form::Buffer { left, .. } => {
                *left = left.saturating_sub(answer);
                *left
            }
            Form::Vector { left, .. } => left.len() as u64,
        };
        self.continues && answer == self.asked && rest > 0
    }

    fn result(&self, answer: u64) -> Outcome {
        let answer = if is_error(answer) && self.done == 0 { answer } else { self.done };
        Outcome { answer, kind: Outcome::DONE }
    }
}

fn is_error(answer: u64) -> bool {
    answer > -4096i64 as u64
}

/// Moves up to so many bytes from the front of a vector to a part; says how many.
fn take_part(left: &mut Vec<IoVector>, part: &mut Vec<IoVector>, most: u64) -> u64 {
    part.clear();
    let mut total = 0;
    let mut whole = 0;
    for vector in left.iter_mut() {
        let length = vector.length.min(most - total);
        part.push(IoVector { base: vector.base, length });
        total += length;
        if length < vector.length {
            vector.base += length;
            vector.length -= length;
            break;
        }
        whole += 1;
    }
    left.drain(..whole);
    total
}

/// How a descriptor is read and written.
struct Manner {
    continues: bool,
}

// fstat(2)'s.
const KIND: u32 = 0o170_000;
const FIFO: u32 = 0o010_000;
const SOCKET: u32 = 0o140_000;

impl Manner {
    /// `None`: what is asked for must be asked for as a whole.
    fn of(number: u32, arguments: &Arguments) -> Option<Manner> {
        let writes = matches!(
            number,
            linux::__NR_write
                | linux::__NR_pwrite64
                | linux::__NR_writev
                | linux::__NR_pwritev
                | linux::__NR_pwritev2
                | linux::__NR_sendto
        );
        if number == linux::__NR_getrandom {
            return Some(Manner { continues: true });
        }
        let descriptor = arguments[0] as i32;
        let kind = kind_of(descriptor)?;
        if kind == SOCKET && !is_stream(descriptor) {
            return None;
        }
        const WAIT_FOR_ALL: u64 = 0x100;
        let waits = number == linux::__NR_recvfrom && arguments[3] & WAIT_FOR_ALL != 0;
        // Nothing says whether a stream has more: it is not waited for.
        Some(Manner { continues: writes || waits || !matches!(kind, FIFO | SOCKET) })
    }
}

fn kind_of(descriptor: i32) -> Option<u32> {
    let mut status = [0u64; 18];
    SystemCall::new(linux::__NR_fstat, [descriptor as u64, &raw mut status as u64, 0, 0, 0]).run().ok()?;
    // `st_mode`, behind device, inode and number of links.
    Some(status[3] as u32 & KIND)
}

fn is_stream(descriptor: i32) -> bool {
    const SOL_SOCKET: u64 = 1;
    const SO_TYPE: u64 = 3;
    const SOCK_STREAM: i32 = 1;
    let (mut kind, mut length) = (0i32, 4u32);
    let arguments = [descriptor as u64, SOL_SOCKET, SO_TYPE, &raw mut kind as u64, &raw mut length as u64];
    SystemCall::new(linux::__NR_getsockopt, arguments).run().is_ok() && kind == SOCK_STREAM
}
