//! The data that a system call moves: the program's buffers, and the form in which the call names
//! these buffers.

use crate::is_in_window;
use crate::pointers::{Arguments, MemoryRanges, add};
use alloc::vec::Vec;
use usring_swap::Access;
use usring_sys::message::{MessageHeader, VECTOR_LIMIT};
use usring_sys::plain::IoVector;
use usring_sys::{UserAddress, user_memory, width};
use usring_uapi::general as linux;

/// Data of up to this many bytes counts as small: usring pins it together with the structures and
/// names that the call points to.
const SMALL: u64 = 8 << 10;

/// Maximum number of bytes that the kernel moves in one call (MAX_RW_COUNT). The kernel ignores
/// buffers beyond that length.
const MOST_AT_ONCE: u64 = 0x7fff_f000;

/// The form in which a call names its buffers.
pub enum Form {
    Buffer(Buffer),
    /// Each field is the index of one of the call's arguments. `address`: the address of the
    /// `iovec` array; the next argument is the array's length. `position`: the file position, if
    /// the call has one.
    Vector {
        address: usize,
        position: Option<usize>,
    },
    /// The headers of a call's messages, and in `counts` the number of buffers of each message.
    /// `single`: the call is sendmsg(2) or recvmsg(2), which has one message.
    Messages {
        headers: Vec<MessageHeader>,
        counts: Vec<usize>,
        single: bool,
    },
}

/// A call's only buffer. The first three fields are indices of the call's arguments: those with the
/// buffer's address, the buffer's length, and the file position (if the call has one).
#[derive(Clone, Copy)]
pub struct Buffer {
    pub address: usize,
    pub length: usize,
    pub position: Option<usize>,
    /// Number of bytes in front of the data that the length argument does not count: the message's
    /// type in msgsnd(2) and msgrcv(2).
    pub header: u64,
    pub access: Access,
}

/// Data that usring transfers separately from the other memory that a call names: large data, and
/// the data of vmsplice(2).
pub struct Data {
    pub form: Form,
    pub access: Access,
    pub buffers: Vec<IoVector>,
}

/// Size of `struct mmsghdr` in bytes.
pub const EACH_MESSAGE: u64 = 64;

const fn buffer(address: usize, access: Access) -> Option<Buffer> {
    Some(Buffer { address, length: address + 1, position: None, header: 0, access })
}

/// Returns which arguments describe a call's only buffer. `None`: the call has no buffer, or names
/// its buffers by an `iovec` array.
fn buffer_of(number: u32) -> Option<Buffer> {
    let at = |buffer: Option<Buffer>| buffer.map(|buffer| Buffer { position: Some(3), ..buffer });
    let behind_type = |buffer: Option<Buffer>| buffer.map(|buffer| Buffer { header: 8, ..buffer });
    match number {
        linux::__NR_read
        | linux::__NR_recvfrom
        | linux::__NR_getdents
        | linux::__NR_getdents64
        | linux::__NR_syslog
        | linux::__NR_mq_timedreceive => buffer(1, Access::Write),
        linux::__NR_getrandom => buffer(0, Access::Write),
        linux::__NR_pread64 => at(buffer(1, Access::Write)),
        linux::__NR_msgrcv => behind_type(buffer(1, Access::Write)),
        linux::__NR_write | linux::__NR_sendto | linux::__NR_mq_timedsend => buffer(1, Access::Read),
        linux::__NR_pwrite64 => at(buffer(1, Access::Read)),
        linux::__NR_msgsnd => behind_type(buffer(1, Access::Read)),
        _ => None,
    }
}

/// Returns the length of a call's only buffer, as the kernel reads it from the argument.
fn length_argument(number: u32, length: u64) -> u64 {
    match number {
        // The length argument of these calls is a C `int`, so the kernel ignores the argument's
        // upper half.
        linux::__NR_getdents | linux::__NR_getdents64 | linux::__NR_syslog => u64::from(width::low(length)),
        _ => length,
    }
}

/// Returns whether the kernel reads or writes the buffers of a call with an `iovec` array, and
/// whether the call has a file position. `None`: the call has no `iovec` array.
fn vector_of(number: u32) -> Option<(Access, bool)> {
    match number {
        linux::__NR_readv | linux::__NR_process_vm_readv => Some((Access::Write, false)),
        linux::__NR_preadv | linux::__NR_preadv2 => Some((Access::Write, true)),
        // (vmsplice may also fill the buffers. `IoSemantics::of` then corrects the access to
        // `Write`.)
        linux::__NR_writev | linux::__NR_vmsplice | linux::__NR_process_vm_writev => Some((Access::Read, false)),
        linux::__NR_pwritev | linux::__NR_pwritev2 => Some((Access::Read, true)),
        _ => None,
    }
}

/// Returns whether a call names its buffers by an `iovec` array, or by message headers in memory.
pub fn is_indirect(number: u32) -> bool {
    vector_of(number).is_some()
        || matches!(number, linux::__NR_sendmsg | linux::__NR_recvmsg | linux::__NR_sendmmsg | linux::__NR_recvmmsg)
}

impl Data {
    /// Returns the data that a call moves, if usring transfers the data separately from the other
    /// memory that the call names. `None`: the call has no data, or its data is small. Small data
    /// is added to `ranges`.
    pub fn of(number: u32, arguments: &Arguments, ranges: &mut MemoryRanges) -> Option<Data> {
        if let Some(buffer) = buffer_of(number) {
            let base = arguments[buffer.address];
            let length = length_argument(number, arguments[buffer.length]).saturating_add(buffer.header);
            if !is_in_window(base) || length <= SMALL {
                add(ranges, base, length, buffer.access);
                return None;
            }
            let buffers = alloc::vec![IoVector { base, length: length.min(MOST_AT_ONCE) }];
            return Some(Data { form: Form::Buffer(buffer), access: buffer.access, buffers });
        }
        match number {
            linux::__NR_sendmsg | linux::__NR_recvmsg | linux::__NR_sendmmsg | linux::__NR_recvmmsg => {
                Data::of_messages(number, arguments, ranges)
            }
            _ => Data::of_vector(number, arguments, ranges),
        }
    }

    fn of_vector(number: u32, arguments: &Arguments, ranges: &mut MemoryRanges) -> Option<Data> {
        let (access, has_position) = vector_of(number)?;
        let mut buffers = Vec::new();
        // The kernel ignores the upper half of the argument that holds the number of buffers.
        let (address, count) = (arguments[1], u64::from(width::low(arguments[2])));
        if !read_vector(&mut buffers, address, count)? {
            add(ranges, address, count * size_of::<IoVector>() as u64, Access::Read);
            return None;
        }
        let form = Form::Vector { address: 1, position: has_position.then_some(3) };
        let data = Data { form, access, buffers };
        // vmsplice(2) would make the pipe refer to the program's pages, which usring may evict
        // later. So the pipe gets a copy of the data instead.
        if number == linux::__NR_vmsplice && data.is_in_window() || data.is_large() {
            return Some(data);
        }
        add(ranges, address, count * size_of::<IoVector>() as u64, Access::Read);
        data.add_to(ranges);
        None
    }

    fn of_messages(number: u32, arguments: &Arguments, ranges: &mut MemoryRanges) -> Option<Data> {
        let single = matches!(number, linux::__NR_sendmsg | linux::__NR_recvmsg);
        let sends = matches!(number, linux::__NR_sendmsg | linux::__NR_sendmmsg);
        let access = if sends { Access::Read } else { Access::Write };
        let count = if single { 1 } else { u64::from(width::low(arguments[2])).min(VECTOR_LIMIT) };
        let (mut headers, mut counts, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
        let mut vectors = Vec::new();
        for index in 0..count {
            let place = UserAddress(arguments[1]).offset(index * EACH_MESSAGE);
            let header = user_memory::read::<MessageHeader>(place).ok()?;
            add(ranges, header.name.0, u64::from(header.name_length), access);
            add(ranges, header.control.0, header.control_length, access);
            let before = buffers.len();
            let is_sound = read_vector(&mut buffers, header.vector.0, header.count)?;
            if !is_sound && index > 0 {
                // The kernel sends or receives the messages before the invalid message, and reports
                // no error.
                break;
            }
            if !is_sound {
                add(ranges, place.0, EACH_MESSAGE, Access::Read);
                add(ranges, header.vector.0, header.count * size_of::<IoVector>() as u64, Access::Read);
                return None;
            }
            vectors.push((header.vector.0, header.count * size_of::<IoVector>() as u64));
            counts.push(buffers.len() - before);
            headers.push(header);
        }
        let data = Data { form: Form::Messages { headers, counts, single }, access, buffers };
        if data.is_large() {
            return Some(data);
        }
        add(ranges, arguments[1], count * EACH_MESSAGE, Access::Write);
        vectors.iter().for_each(|(vector, length)| add(ranges, *vector, *length, Access::Read));
        data.add_to(ranges);
        None
    }

    fn is_in_window(&self) -> bool {
        self.buffers.iter().any(|buffer| is_in_window(buffer.base))
    }

    fn is_large(&self) -> bool {
        let lengths = self.buffers.iter().filter(|buffer| is_in_window(buffer.base)).map(|buffer| buffer.length);
        lengths.fold(0u64, u64::saturating_add) > SMALL
    }

    fn add_to(&self, ranges: &mut MemoryRanges) {
        self.buffers.iter().for_each(|buffer| add(ranges, buffer.base, buffer.length, self.access));
    }

    pub fn total(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.length).fold(0, u64::saturating_add)
    }

    /// Returns the first `most` bytes of the buffers.
    pub fn front(&self, most: u64) -> Vec<IoVector> {
        let mut left = most;
        let mut part = Vec::new();
        for buffer in &self.buffers {
            if left == 0 {
                break;
            }
            let length = buffer.length.min(left);
            part.push(IoVector { base: buffer.base, length });
            left -= length;
        }
        part
    }

    /// Drops the first message of sendmmsg(2) that is longer than `longest` bytes, and all messages
    /// after it. The kernel then returns how many of the remaining messages it sent. If the first
    /// message of all is too long, keeps only that message and returns `true`, because the kernel
    /// will refuse that message. For data in any other form, only returns whether the data is too
    /// long.
    pub fn drop_unsendable(&mut self, longest: u64) -> bool {
        let Form::Messages { headers, counts, single: false } = &mut self.form else {
            return self.total() > longest;
        };
        let mut kept = 0;
        for (index, count) in counts.iter().enumerate() {
            let length: u64 = self.buffers[kept..kept + count].iter().map(|buffer| buffer.length).sum();
            if length > longest {
                let is_first = index == 0;
                let (messages, buffers) = if is_first { (1, *count) } else { (index, kept) };
                headers.truncate(messages);
                counts.truncate(messages);
                self.buffers.truncate(buffers);
                return is_first;
            }
            kept += count;
        }
        false
    }

    /// Drops the first message that does not lie completely within the first `bytes` bytes of the
    /// buffers, and all messages after it. Returns the number of messages left. For data in any
    /// other form than that of sendmmsg(2), returns 0.
    pub fn keep_messages_within(&mut self, bytes: u64) -> usize {
        let Form::Messages { headers, counts, single: false } = &mut self.form else { return 0 };
        let (mut messages, mut buffers, mut end) = (0, 0, 0);
        for count in counts.iter() {
            end += self.buffers[buffers..buffers + count].iter().map(|buffer| buffer.length).sum::<u64>();
            if end > bytes {
                break;
            }
            (messages, buffers) = (messages + 1, buffers + count);
        }
        headers.truncate(messages);
        counts.truncate(messages);
        self.buffers.truncate(buffers);
        messages
    }

    /// Removes the first `bytes` bytes, which were transferred.
    pub fn advance(&mut self, mut bytes: u64) {
        let mut whole = 0;
        for buffer in &mut self.buffers {
            let length = buffer.length.min(bytes);
            buffer.base += length;
            buffer.length -= length;
            bytes -= length;
            if buffer.length > 0 {
                break;
            }
            whole += 1;
        }
        self.buffers.drain(..whole);
    }
}

/// Appends the elements of an `iovec` array of the program to `buffers`. `None` if the array cannot
/// be read or is too long. `Some(false)` if an element is invalid: the kernel then reports the
/// error.
fn read_vector(buffers: &mut Vec<IoVector>, address: u64, count: u64) -> Option<bool> {
    if count > VECTOR_LIMIT {
        return None;
    }
    let vector = user_memory::read_array::<IoVector>(UserAddress(address), width::size(count)).ok()?;
    if vector.iter().any(|buffer| buffer.length > i64::MAX as u64) {
        return Some(false);
    }
    let mut left = MOST_AT_ONCE;
    buffers.extend(vector.into_iter().map(|IoVector { base, length }| {
        let length = length.min(left);
        left -= length;
        IoVector { base, length }
    }));
    Some(true)
}
