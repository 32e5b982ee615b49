//! A system call that moves much data between the kernel and swapped memory.
//!
//! | source or target | method |
//! |---|---|
//! | files (calls end within bounded time) | pinned parts that fit beside other threads' pins |
//! | files with O_APPEND | one pinned part; a bounce buffer if that does not fit |
//! | streams (pipes, stream sockets, terminals) | bounce buffers ([`usring_sys::bounce_buffer`]), in parts |
//! | messages (datagrams, devices, queues, eventfds) | one bounce buffer for the whole |
//!
//! If the data of an append fits neither in one pinned part nor in a bounce buffer, it is
//! transferred in parts. While a call may wait for ever, none of its large data is pinned. Another
//! part follows only where the kernel itself would continue the call, and only if no signal has
//! come.

use crate::data::{Data, EACH_MESSAGE, Form};
use crate::few::Few;
use crate::io_semantics::{self, IoSemantics, Medium};
use crate::pointers::{self, Arguments, MemoryRanges};
use alloc::vec::Vec;
use core::ops::Range;
use usring_swap::Access;
use usring_swap::mappings::{Mappings, PinLimit, WINDOW};
use usring_sys::bounce_buffer::{BounceBuffer, Purpose};
use usring_sys::message::{CONTROL_LENGTH_OFFSET, FLAGS_OFFSET, MessageHeader, NAME_LENGTH_OFFSET};
use usring_sys::plain::IoVector;
use usring_sys::syscall::PASS_MARK_ABOVE_FLAGS;
use usring_sys::{Errno, SystemCall, UserAddress, user_memory, width};
use usring_uapi::general as linux;

/// Length in bytes of the smallest part of a file's data. A part of this length is pinned even if
/// other threads have pinned so much memory that the limit of pinned memory is reached.
const LEAST_PART: u64 = 8 << 10;

/// Ranges of swapped memory that stay pinned until the value is dropped.
pub struct Pinned {
    mappings: &'static Mappings,
    /// Start and end address of each range.
    ranges: Few<(usize, usize)>,
}

impl Pinned {
    pub fn new(mappings: &'static Mappings, ranges: &MemoryRanges, limit: PinLimit) -> Result<Pinned, Errno> {
        let mut pinned = Pinned { mappings, ranges: Few::default() };
        for memory in ranges.iter() {
            let range = memory.start..memory.start.saturating_add(memory.length).min(WINDOW.end);
            let keep = |part: Range<usize>| pinned.ranges.push((part.start, part.end));
            match mappings.pin(&range, memory.access, limit, keep) {
                Ok(()) => {}
                // A page cannot be read back from the store. The program gets EFAULT, as from the
                // kernel.
                Err(Errno::EIO) => return Err(Errno::EFAULT),
                Err(error) => return Err(error),
            }
        }
        Ok(pinned)
    }
}

impl Pinned {
    /// Pins the ranges again in a forked child, which has no pins yet. If pinning fails, the call
    /// continues unpinned, and the kernel answers EFAULT for an evicted page.
    pub fn inherit(&mut self, mappings: &'static Mappings) {
        let mut ranges = Few::default();
        for (start, end) in self.ranges.iter() {
            // All resident memory of a child is writable. So this code requests write access for
            // all ranges, even for ranges that the call only reads.
            let keep = |part: Range<usize>| ranges.push((part.start, part.end));
            let _ = mappings.pin(&(*start..*end), Access::Write, PinLimit::None, keep);
        }
        (self.mappings, self.ranges) = (mappings, ranges);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.ranges.iter().for_each(|(start, end)| self.mappings.unpin(&(*start..*end)));
    }
}

/// `struct mmsghdr`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Numbered {
    header: MessageHeader,
    length: u32,
    padding: u32,
}

const _: () = assert!(size_of::<Numbered>() as u64 == EACH_MESSAGE);

/// The memory of the part of a call's data that is being transferred: pinned, or copied to a bounce
/// buffer.
enum PartMemory {
    Nothing,
    Pinned(Pinned),
    Bounced(BounceBuffer),
}

pub struct Transfer {
    /// The call as the program made it.
    call: SystemCall,
    data: Data,
    semantics: IoSemantics,
    /// Maximum length in bytes of a part of the data. Each part is transferred by one system call.
    most: u64,
    /// The program's buffers for the part that is being transferred. `vector` and `headers`
    /// describe the memory that the kernel gets instead. `asked` is the part's length in bytes, and
    /// `done` is the total length of all earlier parts.
    part: Vec<IoVector>,
    vector: Vec<IoVector>,
    headers: Vec<Numbered>,
    asked: u64,
    done: u64,
    part_memory: PartMemory,
}

impl Transfer {
    /// Prepares the transfer of a call's data. `None`: the kernel will not move any data, so usring
    /// makes the call unchanged.
    pub fn of(mut data: Data, call: &SystemCall, mappings: &Mappings) -> Option<Transfer> {
        let semantics = IoSemantics::of(call, &mut data)?;
        let most = match semantics.medium {
            Medium::File if semantics.appends => {
                data.total().min((mappings.most_pinned().1 as u64).max(io_semantics::MOST))
            }
            Medium::File => mappings.most_pinned().0 as u64,
            Medium::Stream | Medium::Message => semantics.most,
        };
        let mut call = *call;
        if call.number == linux::__NR_vmsplice {
            as_read_or_write(&mut call, data.access);
        }
        let (part, vector, headers, part_memory) = (Vec::new(), Vec::new(), Vec::new(), PartMemory::Nothing);
        Some(Transfer { call, data, semantics, most, part, vector, headers, asked: 0, done: 0, part_memory })
    }

    /// Pins the next part of the data, or copies it to a bounce buffer. Changes `call` to transfer
    /// that part.
    pub fn begin(&mut self, call: &mut SystemCall, mappings: &'static Mappings) -> Result<(), Errno> {
        match self.semantics.medium {
            Medium::File if self.semantics.appends && self.most > mappings.most_pinned().1 as u64 => self.bounce()?,
            Medium::File => self.pin(mappings)?,
            Medium::Stream | Medium::Message => self.bounce()?,
        }
        self.asked = length_of(&self.part);
        *call = self.call;
        let arguments = &mut call.arguments;
        match &mut self.data.form {
            Form::Buffer(buffer) => {
                arguments[buffer.address] = self.vector[0].base;
                arguments[buffer.length] = self.vector[0].length - buffer.header;
                advance_position(arguments, buffer.position, self.done);
            }
            Form::Vector { address, position } => {
                arguments[*address] = self.vector.as_ptr() as u64;
                arguments[*address + 1] = self.vector.len() as u64;
                advance_position(arguments, *position, self.done);
            }
            Form::Messages { headers, counts, single } => {
                if *single {
                    counts[0] = self.vector.len();
                    if self.done > 0 {
                        (headers[0].control, headers[0].control_length) = (UserAddress::NULL, 0);
                    }
                } else {
                    arguments[2] = headers.len() as u64;
                }
                self.headers.clear();
                let mut vector = self.vector.as_ptr() as u64;
                for (header, count) in headers.iter().zip(counts) {
                    let header = MessageHeader { vector: UserAddress(vector), count: *count as u64, ..*header };
                    self.headers.push(Numbered { header, length: 0, padding: 0 });
                    vector += *count as u64 * size_of::<IoVector>() as u64;
                }
                arguments[1] = self.headers.as_mut_ptr() as u64;
            }
        }
        Ok(())
    }

    /// Pins the part again in a forked child.
    pub fn inherit(&mut self, mappings: &'static Mappings) {
        if let PartMemory::Pinned(pins) = &mut self.part_memory {
            pins.inherit(mappings);
        }
    }

    fn pin(&mut self, mappings: &'static Mappings) -> Result<(), Errno> {
        loop {
            self.part = self.data.front(self.most);
            let mut ranges = MemoryRanges::default();
            for IoVector { base, length } in &self.part {
                pointers::add(&mut ranges, *base, *length, self.data.access);
            }
            let limit = if self.most > LEAST_PART { PinLimit::HalfOfMemory } else { PinLimit::None };
            match Pinned::new(mappings, &ranges, limit) {
                Ok(pins) => self.part_memory = PartMemory::Pinned(pins),
                // The limit of pinned memory is reached, because other threads have pinned memory.
                // An append must stay one call, so its data goes through a bounce buffer.
                Err(Errno::ENOMEM) if self.semantics.appends => return self.bounce(),
                Err(Errno::ENOMEM) if self.most > LEAST_PART => {
                    self.most = (self.most / 2 / LEAST_PART * LEAST_PART).max(LEAST_PART);
                    continue;
                }
                Err(error) => return Err(error),
            }
            self.vector.clone_from(&self.part);
            return Ok(());
        }
    }

    fn bounce(&mut self) -> Result<(), Errno> {
        if self.data.access == Access::Write {
            // A received message may fill all of the program's buffers, so the bounce buffer is as
            // long as all these buffers together. A page of the bounce buffer takes no memory until
            // it is written to.
            let is_whole = self.semantics.medium == Medium::Message && matches!(self.data.form, Form::Messages { .. });
            self.part = self.data.front(if is_whole { u64::MAX } else { self.most });
            return self.bounce_part(Purpose::Offered);
        }
        let purpose = if self.semantics.lingers { Purpose::Lingers } else { Purpose::Filled };
        if self.semantics.medium != Medium::Message {
            return self.fill_what_can_be(purpose);
        }
        let is_refused = self.semantics.longest.is_some_and(|longest| self.data.drop_unsendable(longest));
        self.part = self.data.front(u64::MAX);
        if is_refused {
            return self.bounce_part(Purpose::Refused);
        }
        self.bounce_part(purpose)?;
        self.fill_messages()
    }

    /// Copies the messages to the bounce buffer, up to the first message that cannot be read. The
    /// call then sends the messages before that message, as in the kernel. `EFAULT` if the first
    /// message of all cannot be read.
    fn fill_messages(&mut self) -> Result<(), Errno> {
        let PartMemory::Bounced(bounce) = &mut self.part_memory else { return Ok(()) };
        let filled = bounce.fill(&self.part);
        if filled < length_of(&self.part) {
            if self.data.keep_messages_within(filled) == 0 {
                return Err(Errno::EFAULT);
            }
            self.part = self.data.front(u64::MAX);
            self.vector = bounce.vectors_for(&self.part);
        }
        Ok(())
    }

    /// Copies the next part of the program's data to a bounce buffer, up to the first byte that
    /// cannot be read. The call then transfers the data before that byte, as in the kernel.
    /// `EFAULT` if the part's first byte cannot be read.
    fn fill_what_can_be(&mut self, purpose: Purpose) -> Result<(), Errno> {
        loop {
            self.part = self.data.front(self.most);
            match self.bounce_part(purpose) {
                Ok(()) => break,
                Err(Errno::ENOMEM) if self.most > LEAST_PART => self.most = (self.most / 2).max(LEAST_PART),
                Err(error) => return Err(error),
            }
        }
        let asked = length_of(&self.part);
        let PartMemory::Bounced(bounce) = &mut self.part_memory else { return Ok(()) };
        let filled = bounce.fill(&self.part);
        if filled == 0 && asked > 0 {
            return Err(Errno::EFAULT);
        }
        if filled < asked {
            self.part = self.data.front(filled);
            self.vector = bounce.vectors_for(&self.part);
        }
        Ok(())
    }

    fn bounce_part(&mut self, purpose: Purpose) -> Result<(), Errno> {
        let bounce = BounceBuffer::new(length_of(&self.part), purpose)?;
        self.vector = bounce.vectors_for(&self.part);
        self.part_memory = PartMemory::Bounced(bounce);
        Ok(())
    }

    /// Handles the kernel's answer to the call that transferred a part of the data. Returns whether
    /// another part follows.
    pub fn finish_part(&mut self, answer: u64) -> Result<bool, Errno> {
        let part_memory = core::mem::replace(&mut self.part_memory, PartMemory::Nothing);
        if is_error(answer) {
            return Ok(false);
        }
        let moved = if let PartMemory::Bounced(bounce) = part_memory { self.copy_out(bounce, answer)? } else { answer };
        self.done += moved;
        if !self.semantics.continues || moved != self.asked {
            return Ok(false);
        }
        self.data.advance(moved);
        Ok(self.data.total() > 0)
    }

    /// Copies the kernel's results from `bounce` into the program's memory: the data, and the
    /// lengths and flags of messages. Returns the answer for the program. If a message cannot be
    /// written, the answer is the number of messages before it, or `EFAULT` if there are none.
    fn copy_out(&mut self, mut bounce: BounceBuffer, answer: u64) -> Result<u64, Errno> {
        let gives = self.data.access == Access::Write && !self.semantics.discards_truncated;
        let Form::Messages { counts, single, .. } = &self.data.form else {
            let header = if let Form::Buffer(buffer) = &self.data.form { buffer.header } else { 0 };
            if gives {
                bounce.copy_out(0, &self.part, answer + header)?;
            }
            return Ok(answer);
        };
        let (mut offset, mut first) = (0, 0);
        for (index, count) in counts.iter().enumerate() {
            if !single && index as u64 >= answer {
                break;
            }
            let buffers = &self.part[first..first + count];
            let length = if *single { answer } else { u64::from(self.headers[index].length) };
            let given = if gives { bounce.copy_out(offset, buffers, length) } else { Ok(()) };
            match given.and_then(|()| self.report_message(index, *single)) {
                Ok(()) => {}
                Err(_) if index > 0 => return Ok(index as u64),
                Err(error) => return Err(error),
            }
            offset += buffers.iter().map(|buffer| width::size(buffer.length)).sum::<usize>();
            first += count;
        }
        Ok(answer)
    }

    /// Copies into the program's `struct mmsghdr` the lengths and flags that the kernel has
    /// returned for one message. If the call has a single message, copies them into its `struct
    /// msghdr`.
    fn report_message(&self, index: usize, single: bool) -> Result<(), Errno> {
        let Numbered { header, length, .. } = self.headers[index];
        let place = self.semantics.messages.offset(index as u64 * EACH_MESSAGE);
        if self.data.access == Access::Write {
            user_memory::write(place.offset(NAME_LENGTH_OFFSET), header.name_length)?;
            user_memory::write(place.offset(CONTROL_LENGTH_OFFSET), header.control_length)?;
            user_memory::write(place.offset(FLAGS_OFFSET), header.flags)?;
        }
        if !single {
            user_memory::write(place.offset(size_of::<MessageHeader>() as u64), length)?;
        }
        Ok(())
    }

    /// Returns the answer for the program after the last part: the number of bytes transferred, or
    /// the error in `answer` if no byte was transferred.
    pub fn result(&self, answer: u64) -> u64 {
        if is_error(answer) && self.done == 0 { answer } else { self.done }
    }

    /// Gives up the transfer of the next part of the data, and releases the part's memory. Returns
    /// the number of bytes that earlier parts have transferred.
    pub fn cancel_part(&mut self) -> u64 {
        self.part_memory = PartMemory::Nothing;
        self.done
    }
}

fn length_of(buffers: &[IoVector]) -> u64 {
    buffers.iter().map(|buffer| buffer.length).sum()
}

/// Changes vmsplice(2) to pwritev2(2) or preadv2(2), which copy content instead of moving pages.
fn as_read_or_write(call: &mut SystemCall, access: Access) {
    let does_not_wait = call.arguments[3] & SPLICE_DOES_NOT_WAIT != 0;
    let flags = if does_not_wait { u64::from(linux::RWF_NOWAIT) } else { 0 };
    call.number = if access == Access::Read { linux::__NR_pwritev2 } else { linux::__NR_preadv2 };
    (call.arguments[3], call.arguments[4]) = (HERE, 0);
    call.arguments[5] = flags | PASS_MARK_ABOVE_FLAGS;
}

/// SPLICE_F_NONBLOCK.
const SPLICE_DOES_NOT_WAIT: u64 = 2;

/// Value of a position argument that stands for the file's current position.
const HERE: u64 = u64::MAX;

/// Advances the file position by the bytes that earlier parts have transferred.
fn advance_position(arguments: &mut Arguments, position: Option<usize>, done: u64) {
    if let Some(position) = position
        && arguments[position] != HERE
    {
        arguments[position] = arguments[position].wrapping_add(done);
    }
}

pub fn is_error(answer: u64) -> bool {
    answer > (-4096i64).cast_unsigned()
}
