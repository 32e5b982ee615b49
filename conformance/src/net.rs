//! Sockets for the cases: addresses of each family, listeners, and clients that connect by
//! connect(2).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{Sqe, opcode};

use crate::memory::zeroed;
use crate::sqe::sqe;
use crate::syscalls;

/// The address families. Many cases repeat their steps with each of them.
pub const FAMILIES: [Family; 3] = [Family::V4, Family::V6, Family::Unix];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
    Unix,
}

impl Family {
    pub fn number(self) -> i32 {
        match self {
            Family::V4 => libc::AF_INET,
            Family::V6 => libc::AF_INET6,
            Family::Unix => libc::AF_UNIX,
        }
    }

    /// Returns an address of this machine for bind(2). It has no port or name: the kernel chooses
    /// one.
    pub fn any(self) -> Address {
        match self {
            Family::V4 => Address::v4(0),
            Family::V6 => {
                let mut address: libc::sockaddr_in6 = zeroed();
                address.sin6_family = libc::AF_INET6 as u16;
                address.sin6_addr.s6_addr[15] = 1;
                Address::of(&address, size_of_val(&address))
            }
            // This address consists of the family alone. For such an address, bind(2) chooses a
            // name in the abstract namespace.
            Family::Unix => {
                let mut address: libc::sockaddr_un = zeroed();
                address.sun_family = libc::AF_UNIX as u16;
                Address::of(&address, 2)
            }
        }
    }
}

/// A socket address of any family, and its length.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct Address {
    pub bytes: [u8; 128],
    pub length: u32,
}

impl Address {
    pub fn of<T>(address: &T, length: usize) -> Address {
        let mut bytes = [0; 128];
        assert!(length <= size_of::<T>() && length <= bytes.len());
        // SAFETY: the assertion above limits the length to the size of both objects.
        unsafe { std::ptr::copy_nonoverlapping((&raw const *address).cast::<u8>(), bytes.as_mut_ptr(), length) };
        Address { bytes, length: length as u32 }
    }

    /// Returns the address 127.0.0.1 with a port.
    pub fn v4(port: u16) -> Address {
        let mut address: libc::sockaddr_in = zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_port = port.to_be();
        address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        Address::of(&address, size_of_val(&address))
    }

    /// Returns a buffer of `length` bytes, to which a system call can write an address. The buffer
    /// is filled with a pattern. By this pattern, [`Address::written`] recognises the bytes that
    /// the call has not written.
    pub fn room(length: u32) -> Address {
        Address { bytes: [0xaa; 128], length }
    }

    pub fn at(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    /// Returns the address of the field `length`, for system calls that take a `socklen_t *`.
    pub fn length_at(&self) -> u64 {
        &raw const self.length as u64
    }

    /// Returns how many bytes a system call has written to this buffer, which [`Address::room`] has
    /// made.
    pub fn written(&self) -> usize {
        self.bytes.iter().rposition(|byte| *byte != 0xaa).map_or(0, |last| last + 1)
    }

    pub fn family(&self) -> u16 {
        u16::from_ne_bytes([self.bytes[0], self.bytes[1]])
    }
}

fn owned(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Makes a blocking stream socket.
pub fn stream(family: Family) -> OwnedFd {
    of_kind(family, libc::SOCK_STREAM)
}

pub fn of_kind(family: Family, kind: i32) -> OwnedFd {
    // SAFETY: the call touches no memory.
    owned(unsafe { libc::socket(family.number(), kind | libc::SOCK_CLOEXEC, 0) })
}

/// Calls bind(2), and returns its result or a negative errno.
pub fn bind(fd: &OwnedFd, address: &Address) -> i32 {
    // SAFETY: the address is readable for its length.
    syscalls::answer(unsafe { libc::bind(fd.as_raw_fd(), address.bytes.as_ptr().cast(), address.length) })
}

/// Returns the address to which a socket is bound.
pub fn address_of(fd: i32) -> Address {
    let mut address = Address { bytes: [0; 128], length: 128 };
    // SAFETY: the address is writable for the length that getsockname(2) gets.
    let answer = unsafe { libc::getsockname(fd, address.bytes.as_mut_ptr().cast(), &mut address.length) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    address
}

/// Makes a blocking listener of the family `family`. Returns it and its address.
pub fn listener(family: Family) -> (OwnedFd, Address) {
    listener_for(family, 64)
}

pub fn listener_for(family: Family, backlog: i32) -> (OwnedFd, Address) {
    let fd = stream(family);
    assert_eq!(bind(&fd, &family.any()), 0);
    // SAFETY: the call touches no memory.
    assert_eq!(unsafe { libc::listen(fd.as_raw_fd(), backlog) }, 0);
    let address = address_of(fd.as_raw_fd());
    (fd, address)
}

/// Connects a new blocking socket to `address`.
pub fn connected(family: Family, address: &Address) -> OwnedFd {
    let fd = stream(family);
    assert_eq!(connect_now(fd.as_raw_fd(), address), 0);
    fd
}

/// Calls connect(2), and returns its result or a negative errno.
pub fn connect_now(fd: i32, address: &Address) -> i32 {
    // SAFETY: the address is readable for its length.
    syscalls::answer(unsafe { libc::connect(fd, address.bytes.as_ptr().cast(), address.length) })
}

/// Returns an address at which no socket listens: the listener that had it is closed.
pub fn refusing_address(family: Family) -> Address {
    listener(family).1
}

/// Sends a byte from `from`. Returns whether a read of `to` finds that byte at once.
pub fn delivers_byte(from: &OwnedFd, to: i32) -> bool {
    let mut byte = [0u8; 1];
    crate::files::put(from, b"x");
    // SAFETY: the buffer has one byte.
    unsafe { libc::recv(to, byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT) == 1 && byte == *b"x" }
}

pub fn accept(fd: i32, user_data: u64) -> Sqe {
    sqe(opcode::ACCEPT, fd, user_data)
}

pub fn accept_from(fd: i32, address: &Address, user_data: u64) -> Sqe {
    Sqe { addr: address.at(), off: address.length_at(), ..accept(fd, user_data) }
}

pub fn connect(fd: i32, address: &Address, user_data: u64) -> Sqe {
    Sqe { addr: address.at(), off: u64::from(address.length), ..sqe(opcode::CONNECT, fd, user_data) }
}

pub fn socket(domain: i32, kind: i32, protocol: i32, user_data: u64) -> Sqe {
    Sqe { off: kind as u64, len: protocol as u32, ..sqe(opcode::SOCKET, domain, user_data) }
}

pub fn bind_to(fd: i32, address: &Address, user_data: u64) -> Sqe {
    Sqe { opcode: opcode::BIND, ..connect(fd, address, user_data) }
}

pub fn listen(fd: i32, backlog: u32, user_data: u64) -> Sqe {
    Sqe { len: backlog, ..sqe(opcode::LISTEN, fd, user_data) }
}

pub fn shutdown(fd: i32, how: i32, user_data: u64) -> Sqe {
    Sqe { len: how as u32, ..sqe(opcode::SHUTDOWN, fd, user_data) }
}
