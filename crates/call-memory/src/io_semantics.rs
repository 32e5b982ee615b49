//! The I/O semantics of a call: properties that follow from the source or target of the call's
//! data, such as a descriptor. They say whether the call may wait for ever, and whether usring may
//! transfer the data in parts.

use crate::data::{Data, Form};
use usring_swap::Access;
use usring_sys::message::{self, ERROR_QUEUE, PEEK, WAIT_ALL};
use usring_sys::{SystemCall, UserAddress, width};
use usring_uapi::general as linux;

/// The kind of a source or target of data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// A file: a call waits at most for a bounded time.
    File,
    /// A stream: a call may wait for ever, and the bytes have no boundaries.
    Stream,
    /// Messages: a call may wait for ever, and each message is transferred as a whole.
    Message,
}

/// How a call moves its data.
#[derive(Clone, Copy)]
pub struct IoSemantics {
    pub medium: Medium,
    /// Whether usring makes the call again for the next part of the data, if the kernel has
    /// transferred the last part completely.
    pub continues: bool,
    /// Whether the kernel may still read the data after the call has returned (MSG_ZEROCOPY).
    pub lingers: bool,
    /// Whether the kernel only counts received bytes and drops them, without changing the buffers
    /// (MSG_TRUNC on TCP).
    pub discards_truncated: bool,
    /// Whether the call appends to a file. If so, usring must write all data by a single call.
    /// Otherwise another process could append its data in between.
    pub appends: bool,
    /// Address of the program's `struct msghdr`, or of its first `struct mmsghdr`.
    pub messages: UserAddress,
    /// Maximum number of bytes that one system call transfers.
    pub most: u64,
    /// For messages to send: most bytes of a message; `None` if there is no limit. A longer message
    /// goes to the kernel without its data, and the kernel refuses that message.
    pub longest: Option<u64>,
}

/// Bytes that one system call transfers on a stream, if the data is transferred in parts.
const STREAM_PART: u64 = 64 << 10;
/// Maximum number of bytes that one system call receives.
pub const MOST: u64 = 16 << 20;

/// Request of ioctl(2): how many bytes can be read.
const FIONREAD: u32 = 0x541b;
/// MSG_OOB, MSG_TRUNC, MSG_ZEROCOPY.
const URGENT: u64 = 1;
const TRUNCATE: u64 = 0x20;
const ZERO_COPY: u64 = 0x400_0000;

/// Flag of pwritev2(2): the file's O_APPEND is ignored.
const RWF_NOAPPEND: u32 = 0x20;

// File types in `st_mode` (fstat(2)).
const KIND: u32 = 0o170_000;
const FIFO: u32 = 0o010_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const DIRECTORY: u32 = 0o040_000;
const BLOCK_DEVICE: u32 = 0o060_000;
const REGULAR: u32 = 0o100_000;
const SOCKET: u32 = 0o140_000;

impl IoSemantics {
    /// Returns the I/O semantics of a medium (a kind of source or target), for a call without
    /// special flags.
    const fn plain(medium: Medium, continues: bool) -> IoSemantics {
        IoSemantics {
            medium,
            continues,
            lingers: false,
            discards_truncated: false,
            appends: false,
            messages: UserAddress::NULL,
            most: MOST,
            longest: None,
        }
    }

    /// Returns the I/O semantics of a call. `None`: the kernel will not move any data.
    pub fn of(call: &SystemCall, data: &mut Data) -> Option<IoSemantics> {
        let descriptor = width::int(call.arguments[0]);
        match call.number {
            linux::__NR_getrandom => return Some(IoSemantics::plain(Medium::File, true)),
            linux::__NR_getdents | linux::__NR_getdents64 => return Some(IoSemantics::plain(Medium::File, false)),
            linux::__NR_syslog
            | linux::__NR_msgsnd
            | linux::__NR_msgrcv
            | linux::__NR_mq_timedsend
            | linux::__NR_mq_timedreceive
            | linux::__NR_process_vm_readv
            | linux::__NR_process_vm_writev => return Some(IoSemantics::plain(Medium::Message, false)),
            linux::__NR_vmsplice => {
                data.access = if is_written(descriptor)? { Access::Read } else { Access::Write };
            }
            _ => {}
        }
        let sends = data.access == Access::Read;
        let flags = flags_of_transfer(call, &data.form);
        let peeks = flags & u64::from(PEEK) != 0;
        let waits_for_all = flags & u64::from(WAIT_ALL) != 0;
        let is_one = !matches!(&data.form, Form::Messages { single: false, .. });
        // Messages may carry control data, which the kernel returns only once. So a receive into
        // message headers is not split.
        let is_plain = !matches!(&data.form, Form::Messages { .. });
        let stream = IoSemantics::plain(Medium::Stream, sends || waits_for_all && is_plain && !peeks);
        let as_messages = IoSemantics::plain(Medium::Message, false);
        let semantics = match Descriptor::of(descriptor)? {
            // With MSG_OOB, the last byte of a call becomes urgent data. So such a call is not
            // split.
            Descriptor { kind: SOCKET, .. } if is_one && flags & URGENT == 0 && is_stream(descriptor) => stream,
            Descriptor { kind: FIFO, .. } => IoSemantics::plain(Medium::Stream, sends),
            other if other.is_terminal() => IoSemantics::plain(Medium::Stream, sends),
            other if other.is_file() => IoSemantics::plain(Medium::File, true),
            _ => as_messages,
        };
        let lingers = sends && flags & ZERO_COPY != 0;
        let most = match semantics.medium {
            Medium::Stream if sends || waits_for_all && is_plain && !peeks => STREAM_PART,
            // A part has as many bytes as the stream holds now, between `STREAM_PART` and `MOST`.
            // So a large bounce buffer is made only for data that is there.
            Medium::Stream if !waits_for_all && !peeks => waiting(descriptor).clamp(STREAM_PART, MOST),
            _ => MOST,
        };
        let counts_alone = !sends && flags & TRUNCATE != 0 && flags & u64::from(ERROR_QUEUE) == 0;
        let discards_truncated = counts_alone && message::discards_truncated(descriptor);
        let longest =
            if semantics.medium == Medium::Message && sends { message::longest_message(descriptor) } else { None };
        let appends = semantics.medium == Medium::File && sends && is_appended(call);
        let messages = UserAddress(call.arguments[1]);
        Some(IoSemantics { lingers, discards_truncated, appends, messages, most, longest, ..semantics })
    }
}

/// Returns the MSG_* flags of a call that sends or receives.
fn flags_of_transfer(call: &SystemCall, form: &Form) -> u64 {
    match (form, call.number) {
        (_, linux::__NR_sendto | linux::__NR_recvfrom | linux::__NR_sendmmsg | linux::__NR_recvmmsg) => {
            call.arguments[3]
        }
        (Form::Messages { .. }, _) => call.arguments[2],
        _ => 0,
    }
}

/// Returns the status flags of a descriptor. `None`: the descriptor is not open.
fn flags_of(descriptor: i32) -> Option<u32> {
    let get = [width::word(descriptor), u64::from(linux::F_GETFL), 0, 0, 0];
    SystemCall::new(linux::__NR_fcntl, get).run().ok().map(width::low)
}

/// Returns whether a descriptor is the write end of a pipe. `None`: the descriptor belongs to no
/// pipe.
fn is_written(descriptor: i32) -> Option<bool> {
    Descriptor::of(descriptor).filter(|descriptor| descriptor.kind == FIFO)?;
    Some(flags_of(descriptor)? & linux::O_ACCMODE != linux::O_RDONLY)
}

/// Returns whether a call appends its data to the file (O_APPEND or RWF_APPEND).
fn is_appended(call: &SystemCall) -> bool {
    let flags = if call.number == linux::__NR_pwritev2 { width::low(call.arguments[5]) } else { 0 };
    let is_opened_so = || flags_of(width::int(call.arguments[0])).is_some_and(|flags| flags & linux::O_APPEND != 0);
    flags & linux::RWF_APPEND != 0 || flags & RWF_NOAPPEND == 0 && is_opened_so()
}

/// The result of fstat(2).
struct Descriptor {
    kind: u32,
    major: u32,
    minor: u32,
}

impl Descriptor {
    fn of(descriptor: i32) -> Option<Descriptor> {
        let mut status = [0u64; 18];
        SystemCall::new(linux::__NR_fstat, [width::word(descriptor), &raw mut status as u64, 0, 0, 0]).run().ok()?;
        // In `struct stat`, `st_mode` comes after device, inode and number of links. `st_rdev`
        // comes after user and group.
        let (kind, device) = (width::low(status[3]) & KIND, width::low(status[5]));
        Some(Descriptor { kind, major: device >> 8 & 0xfff, minor: device & 0xff | device >> 12 & 0xfff00 })
    }

    /// Returns whether the descriptor is a terminal, by its major number (Linux's
    /// Documentation/admin-guide/devices.txt): 4 (consoles, serial lines), 5 (/dev/tty, /dev/ptmx),
    /// 136 to 143 (pseudo-terminals). The data of other character devices counts as messages.
    fn is_terminal(&self) -> bool {
        self.kind == CHARACTER_DEVICE && matches!(self.major, 4 | 5 | 136..=143)
    }

    /// Returns whether the descriptor is a file, or memory that behaves like one (`/dev/zero`).
    fn is_file(&self) -> bool {
        const MEMORY: u32 = 1;
        const KERNEL_LOG: u32 = 11;
        match self.kind {
            REGULAR | DIRECTORY | BLOCK_DEVICE => true,
            CHARACTER_DEVICE => self.major == MEMORY && self.minor != KERNEL_LOG,
            _ => false,
        }
    }
}

/// Returns how many bytes a stream holds for its reader (FIONREAD). 0 if the stream does not report
/// this number.
fn waiting(descriptor: i32) -> u64 {
    let mut waiting = 0u32;
    let ask = [width::word(descriptor), u64::from(FIONREAD), &raw mut waiting as u64, 0, 0];
    SystemCall::new(linux::__NR_ioctl, ask).run().map_or(0, |_| u64::from(waiting))
}

fn is_stream(descriptor: i32) -> bool {
    const SOL_SOCKET: u64 = 1;
    const SO_TYPE: u64 = 3;
    const SOCK_STREAM: i32 = 1;
    let (mut kind, mut length) = (0i32, 4u32);
    let arguments = [width::word(descriptor), SOL_SOCKET, SO_TYPE, &raw mut kind as u64, &raw mut length as u64];
    SystemCall::new(linux::__NR_getsockopt, arguments).run().is_ok() && kind == SOCK_STREAM
}
