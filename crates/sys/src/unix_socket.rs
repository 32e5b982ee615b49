//! Unix sockets that preserve message boundaries (SOCK_SEQPACKET) and carry descriptors. A process
//! that `usring run` has started uses such a socket to make requests to the launcher.

use crate::descriptor::OwnedDescriptor;
use crate::{Errno, SystemCall, width};
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

// linux/socket.h, linux/un.h.
pub(crate) const AF_UNIX: u64 = 1;
const SOCK_SEQPACKET: u64 = 5;
pub(crate) const SOCK_CLOEXEC: u64 = linux::O_CLOEXEC as u64;
pub(crate) const SOL_SOCKET: i32 = 1;
pub(crate) const SCM_RIGHTS: i32 = 1;
pub(crate) const MSG_NOSIGNAL: u64 = 0x4000;
pub(crate) const MSG_CMSG_CLOEXEC: u64 = 0x4000_0000;
const SO_RCVTIMEO: u64 = 20;
const SO_SNDTIMEO: u64 = 21;
const PATH_LIMIT: usize = 108;

/// Maximum number of descriptors in one message.
pub const DESCRIPTORS: usize = 8;

/// `struct sockaddr_un`.
#[repr(C)]
struct Address {
    family: u16,
    path: [u8; PATH_LIMIT],
}

/// The kernel's `struct msghdr`.
#[repr(C)]
pub(crate) struct Header {
    pub name: u64,
    pub name_length: u64,
    pub vectors: u64,
    pub vector_count: u64,
    pub control: u64,
    pub control_length: u64,
    pub flags: u64,
}

/// A control message that carries up to `N` descriptors (SCM_RIGHTS).
#[repr(C, align(8))]
pub(crate) struct Control<const N: usize> {
    length: u64,
    level: i32,
    kind: i32,
    numbers: [i32; N],
}

impl<const N: usize> Control<N> {
    /// Makes a message that carries these descriptors.
    pub fn of(numbers: &[i32]) -> Self {
        let length = CONTROL_HEAD + 4 * numbers.len() as u64;
        let mut control = Control { length, level: SOL_SOCKET, kind: SCM_RIGHTS, numbers: [-1; N] };
        control.numbers[..numbers.len()].copy_from_slice(numbers);
        control
    }

    /// Makes room for a message to receive.
    pub fn empty() -> Self {
        Control { length: 0, level: 0, kind: 0, numbers: [-1; N] }
    }

    /// Returns the length of this control message for sendmsg(2), in bytes.
    pub fn sent_length(&self) -> u64 {
        self.length.next_multiple_of(8)
    }

    /// Returns owners of the descriptors that a call has received. `length` is the total length of
    /// the control messages, as the call reports it.
    pub fn received(&self, length: u64) -> Vec<OwnedDescriptor> {
        let came = length >= CONTROL_HEAD && self.level == SOL_SOCKET && self.kind == SCM_RIGHTS;
        let count = if came { (self.length.saturating_sub(CONTROL_HEAD) / 4) as usize } else { 0 };
        self.numbers.iter().take(count).map(|number| OwnedDescriptor::from_raw(*number)).collect()
    }
}

/// Length of a control message's header, in bytes.
pub(crate) const CONTROL_HEAD: u64 = 16;

/// A connected SOCK_SEQPACKET socket.
pub struct Connection(OwnedDescriptor);

impl Connection {
    /// Connects to the socket at a path. `limit_seconds`: a time limit for connecting, for each
    /// send and for each receive, after which it fails with `EAGAIN`. `None`: no limit.
    ///
    /// Errors: `EINVAL` if the path has 108 bytes or more; those of connect(2).
    pub fn open(path: &[u8], limit_seconds: Option<u64>) -> Result<Connection, Errno> {
        let mut address = Address { family: width::short(AF_UNIX), path: [0; PATH_LIMIT] };
        if path.len() >= PATH_LIMIT {
            return Err(Errno::EINVAL);
        }
        address.path[..path.len()].copy_from_slice(path);
        let kind = SOCK_SEQPACKET | SOCK_CLOEXEC;
        let number = SystemCall::new(linux::__NR_socket, [AF_UNIX, kind, 0, 0, 0]).run()?;
        let socket = OwnedDescriptor::from_raw(width::int(number)).into_private()?;
        if let Some(seconds) = limit_seconds {
            // `struct timeval`: seconds and microseconds.
            let limit = [seconds, 0];
            for option in [SO_SNDTIMEO, SO_RCVTIMEO] {
                let (level, value) = (width::word(SOL_SOCKET), limit.as_ptr() as u64);
                let arguments = [width::word(socket.number()), level, option, value, size_of_val(&limit) as u64];
                SystemCall::new(linux::__NR_setsockopt, arguments).run()?;
            }
        }
        let length = size_of::<u16>() + path.len() + 1;
        let arguments = [width::word(socket.number()), &raw const address as u64, length as u64, 0, 0];
        SystemCall::new(linux::__NR_connect, arguments).run()?;
        Ok(Connection(socket))
    }

    pub fn number(&self) -> i32 {
        self.0.number()
    }

    /// Sends one message, with the descriptor `lent` if it is not `None`. The descriptor stays open
    /// in this process.
    pub fn send(&self, message: &[u8], lent: Option<i32>) -> Result<(), Errno> {
        let vector = [message.as_ptr() as u64, message.len() as u64];
        let control = Control::<DESCRIPTORS>::of(lent.as_slice());
        let header = Header {
            name: 0,
            name_length: 0,
            vectors: vector.as_ptr() as u64,
            vector_count: 1,
            control: lent.map_or(0, |_| &raw const control as u64),
            control_length: lent.map_or(0, |_| control.sent_length()),
            flags: 0,
        };
        let arguments = [width::word(self.0.number()), &raw const header as u64, MSG_NOSIGNAL, 0, 0];
        SystemCall::new(linux::__NR_sendmsg, arguments).run().map(drop)
    }

    /// Receives one message and its descriptors. Moves the descriptors to numbers that are private
    /// to usring. Returns the message's length, and the descriptors.
    ///
    /// Errors: `EPIPE` if the peer has closed the connection; `EOVERFLOW` if the message did not
    /// fit.
    pub fn receive(&self, message: &mut [u8]) -> Result<(usize, Vec<OwnedDescriptor>), Errno> {
        let vector = [message.as_mut_ptr() as u64, message.len() as u64];
        let mut control = Control::<DESCRIPTORS>::empty();
        let mut header = Header {
            name: 0,
            name_length: 0,
            vectors: vector.as_ptr() as u64,
            vector_count: 1,
            control: &raw mut control as u64,
            control_length: size_of::<Control<DESCRIPTORS>>() as u64,
            flags: 0,
        };
        let arguments = [width::word(self.0.number()), &raw mut header as u64, MSG_CMSG_CLOEXEC, 0, 0];
        let length = width::size(SystemCall::new(linux::__NR_recvmsg, arguments).run()?);
        // All descriptors get owners before the first of them is moved. If a move fails, the owners
        // close the other descriptors.
        let raw = control.received(header.control_length);
        let descriptors = raw.into_iter().map(OwnedDescriptor::into_private).collect::<Result<_, _>>()?;
        const TRUNCATED: u64 = 0x20 | 0x8;
        match (length, header.flags & TRUNCATED) {
            (0, _) => Err(Errno::EPIPE),
            (_, 0) => Ok((length, descriptors)),
            _ => Err(Errno::EOVERFLOW),
        }
    }
}
