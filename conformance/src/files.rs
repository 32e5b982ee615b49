//! Files and descriptors for the cases, and functions that read and write them by ordinary system
//! calls.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use usring_uapi::{Sqe, opcode};

use crate::sqe::{Change, sqe};

fn owned(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Makes a memfd with the content `content`. Its position is 0.
pub fn memory_file(content: &[u8]) -> OwnedFd {
    // SAFETY: the name is a C string.
    let fd = owned(unsafe { libc::memfd_create(c"conformance".as_ptr(), libc::MFD_CLOEXEC) });
    // SAFETY: `content` is readable.
    let written = unsafe { libc::pwrite(fd.as_raw_fd(), content.as_ptr().cast(), content.len(), 0) };
    assert_eq!(written, content.len() as isize);
    fd
}

/// Returns the file's content.
pub fn content(fd: &OwnedFd) -> Vec<u8> {
    let mut content = vec![0; 1 << 16];
    // SAFETY: `content` is writable for its length.
    let count = unsafe { libc::pread(fd.as_raw_fd(), content.as_mut_ptr().cast(), content.len(), 0) };
    content.truncate(count.max(0) as usize);
    content
}

/// Returns the file's whole content as text, to be printed.
pub fn text(fd: &OwnedFd) -> String {
    String::from_utf8_lossy(&content(fd)).into_owned()
}

/// Returns the file's position.
pub fn position(fd: &OwnedFd) -> i64 {
    // SAFETY: the call touches no memory.
    unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_CUR) }
}

/// Makes a pipe, and returns its reading end and its writing end.
pub fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(0)
}

pub fn pipe_with(flags: i32) -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | flags) }, 0);
    (owned(ends[0]), owned(ends[1]))
}

/// Makes two connected stream sockets.
pub fn sockets() -> (OwnedFd, OwnedFd) {
    sockets_of(libc::SOCK_STREAM)
}

pub fn sockets_of(kind: i32) -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    let kind = kind | libc::SOCK_CLOEXEC;
    // SAFETY: the array has room for the two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }, 0);
    (owned(ends[0]), owned(ends[1]))
}

/// Makes an unconnected socket of the address family `domain` and the type `kind`.
pub fn socket(domain: i32, kind: i32) -> OwnedFd {
    // SAFETY: the call touches no memory.
    owned(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, 0) })
}

/// Makes two connected TCP sockets.
pub fn tcp() -> (OwnedFd, OwnedFd) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let one = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (other, _) = listener.accept().expect("a connection");
    for end in [&one, &other] {
        end.set_nodelay(true).expect("an option of TCP");
    }
    (one.into(), other.into())
}

/// Makes two UDP sockets. The second one is connected to the first. Also returns the address of the
/// first socket.
pub fn udp() -> (OwnedFd, OwnedFd, libc::sockaddr_in) {
    let one = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let other = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = one.local_addr().expect("an address");
    other.connect(address).expect("a destination");
    let mut raw: libc::sockaddr_in = crate::memory::zeroed();
    raw.sin_family = libc::AF_INET as u16;
    raw.sin_port = address.port().to_be();
    raw.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
    (one.into(), other.into(), raw)
}

/// Sets SO_LINGER with a time of 0 on a TCP socket. The close of the socket then sends a reset.
pub fn reset_on_close(fd: &OwnedFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of_val(&linger) as u32;
    let at = (&raw const linger).cast();
    // SAFETY: the call reads only `linger`.
    assert_eq!(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, size) }, 0);
}

/// Calls shutdown(2). `how` is SHUT_RD (0), which ends receiving, or SHUT_WR (1), which ends
/// sending.
pub fn shut_down(fd: &OwnedFd, how: i32) {
    // SAFETY: the call touches no memory.
    unsafe { libc::shutdown(fd.as_raw_fd(), how) };
}

/// Opens /dev/null for reading and writing.
pub fn null() -> OwnedFd {
    std::fs::File::options().read(true).write(true).open("/dev/null").expect("it is there").into()
}

/// Makes an eventfd whose counter is `count`.
pub fn eventfd(count: u32) -> OwnedFd {
    // SAFETY: the call touches no memory.
    owned(unsafe { libc::eventfd(count, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Writes bytes by write(2), and returns its result.
pub fn put(fd: &OwnedFd, bytes: &[u8]) -> isize {
    // SAFETY: `bytes` is readable.
    unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) }
}

/// Reads up to `most` bytes by read(2). Returns the bytes, or a negative errno.
pub fn take(fd: &OwnedFd, most: usize) -> Result<Vec<u8>, i32> {
    let mut bytes = vec![0; most];
    // SAFETY: `bytes` is writable for `most`.
    let count = unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), most) };
    if count < 0 {
        return Err(-crate::syscalls::errno());
    }
    bytes.truncate(count as usize);
    Ok(bytes)
}

/// Returns the counter of a non-blocking eventfd, and resets it to 0.
pub fn event_count(fd: &OwnedFd) -> u64 {
    match take(fd, 8) {
        Ok(bytes) if bytes.len() == 8 => u64::from_ne_bytes(bytes.try_into().expect("eight bytes")),
        _ => 0,
    }
}

/// Waits until the descriptor `fd` is readable. Returns `false` if it is not readable within
/// `limit`.
pub fn is_readable_within(fd: i32, limit: Duration) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry.
    unsafe { libc::poll(&raw mut entry, 1, limit.as_millis() as i32) == 1 }
}

/// Writes to a pipe or socket, without blocking, until it is full. Returns the number of bytes
/// written.
pub fn fill(fd: &OwnedFd) -> usize {
    let mut total = 0;
    set_nonblocking(fd, true);
    loop {
        let count = put(fd, &[b'.'; 4096]);
        if count <= 0 {
            break;
        }
        total += count as usize;
    }
    set_nonblocking(fd, false);
    total
}

pub fn set_nonblocking(fd: &OwnedFd, on: bool) {
    let flags = if on { libc::O_NONBLOCK } else { 0 };
    // SAFETY: the call touches no memory.
    assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) }, 0);
}

/// Makes a pseudo-terminal. Returns the end that a program would use (slave), and the end that
/// controls the terminal (master).
pub fn terminal() -> (OwnedFd, OwnedFd) {
    let (mut other, mut program) = (-1, -1);
    let null: *mut libc::c_char = std::ptr::null_mut();
    // SAFETY: openpty(3) writes the two descriptors. The null pointers mean that there is no name,
    // and that there are no settings.
    let answer = unsafe { libc::openpty(&raw mut other, &raw mut program, null, std::ptr::null(), std::ptr::null()) };
    assert_eq!(answer, 0);
    (owned(program), owned(other))
}

/// Returns whether `fd` is the number of an open descriptor.
pub fn is_open(fd: i32) -> bool {
    // SAFETY: the call touches no memory.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// Returns how many descriptors of this process are open.
pub fn open_numbers() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Makes a ring with a waiting poll, closes it, and returns how many descriptors of this process
/// are then open. This number includes descriptors that usring opens for the first ring and keeps.
pub fn open_numbers_after_a_ring() -> usize {
    let (reader, _writer) = pipe();
    let mut ring = crate::ring::Ring::new(2);
    ring.push(crate::sqe::poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.submit();
    let with_ring = open_numbers();
    drop((ring, reader, _writer));
    crate::time::until(|| open_numbers() < with_ring);
    let mut last = open_numbers();
    crate::time::until(|| {
        crate::time::long_enough_to_notice();
        std::mem::replace(&mut last, open_numbers()) == last
    });
    last
}

/// A FIFO without a writer. An open of it for reading waits for a writer, and no poll can wait for
/// that. So a request that opens it occupies a worker.
pub struct Fifo {
    path: CString,
    _scratch: Scratch,
}

impl Fifo {
    pub fn new() -> Fifo {
        let scratch = Scratch::new();
        let path = scratch.path_of("fifo");
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        Fifo { path, _scratch: scratch }
    }

    /// Returns a request with IOSQE_ASYNC that opens the FIFO for reading.
    pub fn open(&self, user_data: u64) -> Sqe {
        sqe(opcode::OPENAT, libc::AT_FDCWD, user_data).forced_async().with(|sqe| {
            sqe.addr = self.path.as_ptr() as u64;
        })
    }

    /// Opens the FIFO for writing, which ends the waits of the opens for reading. The returned
    /// descriptor keeps the writing end open.
    pub fn release(&self) -> OwnedFd {
        // SAFETY: the path is a C string. The open is for reading and writing, so it does not wait.
        owned(unsafe { libc::open(self.path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) })
    }

    /// Returns whether no thread waits in an open of the FIFO for reading. The check itself ends
    /// such a wait.
    pub fn has_no_reader(&self) -> bool {
        let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
        // SAFETY: the path is a C string. This function closes the descriptor.
        let fd = unsafe { libc::open(self.path.as_ptr(), flags) };
        if fd >= 0 {
            crate::syscalls::close(fd);
        }
        fd < 0
    }
}

/// A temporary directory. When this object is dropped, the directory is removed with its content.
pub struct Scratch {
    pub path: PathBuf,
}

impl Scratch {
    pub fn new() -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory under TMPDIR");
        Scratch { path }
    }

    /// Returns the path of the file `name` in the directory, as a C string for system calls.
    pub fn path_of(&self, name: &str) -> CString {
        CString::new(self.path.join(name).into_os_string().into_encoded_bytes()).expect("no zero byte in a path")
    }

    /// Makes the file `name` in the directory, and returns it opened for reading and writing.
    pub fn file(&self, name: &str, content: &[u8]) -> OwnedFd {
        std::fs::write(self.path.join(name), content).expect("a file in the scratch directory");
        let path = self.path_of(name);
        // SAFETY: the path is a C string.
        owned(unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
