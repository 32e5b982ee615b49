//! How a descriptor, or what else a call reads from or writes to, takes data: whether it may
//! wait for ever, and whether it can be given a part and then the next.

use crate::swapped::data::{Data, Form};
use usring_swap::Access;
use usring_sys::message::{PEEK, WAIT_ALL};
use usring_sys::{SystemCall, UserAddress};
use usring_uapi::general as linux;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It answers in its time.
    File,
    /// It may wait; bytes have no bounds.
    Stream,
    /// It may wait, and what is asked for is asked for as a whole.
    Message,
}

#[derive(Clone, Copy)]
pub struct Manner {
    pub kind: Kind,
    /// Whether a part that was done as a whole is followed by another.
    pub continues: bool,
    /// Whether the kernel may look at what it was given after the call.
    pub lingers: bool,
    /// Where the program has its messages.
    pub messages: UserAddress,
}

const ZERO_COPY: u64 = 0x400_0000;

// fstat(2)'s.
const KIND: u32 = 0o170_000;
const FIFO: u32 = 0o010_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const DIRECTORY: u32 = 0o040_000;
const BLOCK_DEVICE: u32 = 0o060_000;
const REGULAR: u32 = 0o100_000;
const SOCKET: u32 = 0o140_000;

impl Manner {
    /// `None`: the kernel will not move anything.
    pub fn of(call: &SystemCall, data: &mut Data) -> Option<Manner> {
        let manner = |kind, continues| Manner { kind, continues, lingers: false, messages: UserAddress::NULL };
        let descriptor = call.arguments[0] as i32;
        match call.number {
            linux::__NR_getrandom => return Some(manner(Kind::File, true)),
            linux::__NR_getdents | linux::__NR_getdents64 => return Some(manner(Kind::File, false)),
            linux::__NR_syslog
            | linux::__NR_msgsnd
            | linux::__NR_msgrcv
            | linux::__NR_mq_timedsend
            | linux::__NR_mq_timedreceive
            | linux::__NR_process_vm_readv
            | linux::__NR_process_vm_writev => return Some(manner(Kind::Message, false)),
            linux::__NR_vmsplice => {
                data.access = if is_written(descriptor)? { Access::Read } else { Access::Write };
            }
            _ => {}
        }
        let sends = data.access == Access::Read;
        let flags = match (&data.form, call.number) {
            (_, linux::__NR_sendto | linux::__NR_recvfrom | linux::__NR_sendmmsg | linux::__NR_recvmmsg) => {
                call.arguments[3]
            }
            (Form::Messages { .. }, _) => call.arguments[2],
            _ => 0,
        };
        let peeks = flags & u64::from(PEEK) != 0;
        let waits_for_all = flags & u64::from(WAIT_ALL) != 0;
        let is_one = !matches!(&data.form, Form::Messages { single: false, .. });
        let stream = manner(Kind::Stream, sends || waits_for_all && !peeks);
        let message = manner(Kind::Message, false);
        let manner = match Descriptor::of(descriptor)? {
            Descriptor { kind: SOCKET, .. } if is_one && is_stream(descriptor) => stream,
            Descriptor { kind: FIFO, .. } => manner(Kind::Stream, sends),
            other if other.is_terminal() => manner(Kind::Stream, sends),
            other if other.is_file() => manner(Kind::File, true),
            _ => message,
        };
        let lingers = sends && flags & ZERO_COPY != 0;
        Some(Manner { lingers, messages: UserAddress(call.arguments[1]), ..manner })
    }
}

/// Of a pipe: which end it is. `None`: it is no pipe's.
fn is_written(descriptor: i32) -> Option<bool> {
    Descriptor::of(descriptor).filter(|descriptor| descriptor.kind == FIFO)?;
    let get = [descriptor as u64, u64::from(linux::F_GETFL), 0, 0, 0];
    let flags = SystemCall::new(linux::__NR_fcntl, get).run().ok()?;
    Some(flags & u64::from(linux::O_ACCMODE) != u64::from(linux::O_RDONLY))
}

/// What fstat(2) says.
struct Descriptor {
    kind: u32,
    major: u32,
    minor: u32,
}

impl Descriptor {
    fn of(descriptor: i32) -> Option<Descriptor> {
        let mut status = [0u64; 18];
        SystemCall::new(linux::__NR_fstat, [descriptor as u64, &raw mut status as u64, 0, 0, 0]).run().ok()?;
        // `st_mode` stands behind device, inode and number of links, `st_rdev` behind user and group.
        let (kind, device) = (status[3] as u32 & KIND, status[5] as u32);
        Some(Descriptor { kind, major: device >> 8 & 0xfff, minor: device & 0xff | device >> 12 & 0xfff00 })
    }

    /// Of Documentation/admin-guide/devices.txt: consoles, serial lines' alternates, and both
    /// sides of pseudo-terminals. (Others are taken for devices that have messages.)
    fn is_terminal(&self) -> bool {
        self.kind == CHARACTER_DEVICE && matches!(self.major, 4 | 5 | 136..=143)
    }

    /// Files, and memory that behaves as one (`/dev/zero`).
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

fn is_stream(descriptor: i32) -> bool {
    const SOL_SOCKET: u64 = 1;
    const SO_TYPE: u64 = 3;
    const SOCK_STREAM: i32 = 1;
    let (mut kind, mut length) = (0i32, 4u32);
    let arguments = [descriptor as u64, SOL_SOCKET, SO_TYPE, &raw mut kind as u64, &raw mut length as u64];
    SystemCall::new(linux::__NR_getsockopt, arguments).run().is_ok() && kind == SOCK_STREAM
}
