//! Sockets and signals for the servers and clients of this crate.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

/// Raises this process's soft limit of open files to the hard limit.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get one `rlimit` that lives through them.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Returns the processor time that all threads of a process have used.
pub fn processor_time(process: i32) -> io::Result<Duration> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock and the time live through the calls.
    unsafe {
        match libc::clock_getcpuclockid(process, &mut clock) {
            0 => checked(libc::clock_gettime(clock, &mut time))?,
            error => return Err(io::Error::from_raw_os_error(error)),
        };
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Converts a libc result into a `Result`, with errno as the error.
pub fn checked(answer: i32) -> io::Result<i32> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn local(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    }
}

const ADDRESS_LENGTH: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;

/// Starts a connection to `port` of 127.0.0.1 by a non-blocking socket, and returns before it is
/// established.
pub fn connect(port: u16) -> io::Result<TcpStream> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the socket is new, and nothing else owns it.
    let socket = unsafe { TcpStream::from_raw_fd(checked(libc::socket(libc::AF_INET, kind, 0))?) };
    let address = local(port);
    // SAFETY: the address is a `sockaddr_in` of the length that the call names.
    match checked(unsafe { libc::connect(socket.as_raw_fd(), ptr::from_ref(&address).cast(), ADDRESS_LENGTH) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// Makes a listening socket on 127.0.0.1, and returns it with its port. With `port` 0 the kernel
/// chooses a free port. Other processes may listen on the same port (SO_REUSEPORT). Accepted
/// connections inherit TCP_NODELAY.
pub fn listen(port: u16) -> io::Result<(TcpListener, u16)> {
    // SAFETY: the socket is new, and nothing else owns it.
    let socket = unsafe {
        let number = checked(libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0))?;
        TcpListener::from_raw_fd(number)
    };
    let number = socket.as_raw_fd();
    for (level, option) in [
        (libc::SOL_SOCKET, libc::SO_REUSEADDR),
        (libc::SOL_SOCKET, libc::SO_REUSEPORT),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    ] {
        // SAFETY: the value is an `int` that lives through the call.
        checked(unsafe { libc::setsockopt(number, level, option, ptr::from_ref(&1_i32).cast(), 4) })?;
    }
    let address = local(port);
    // SAFETY: the address is a `sockaddr_in` of the length that the call names.
    checked(unsafe { libc::bind(number, ptr::from_ref(&address).cast(), ADDRESS_LENGTH) })?;
    // SAFETY: the call takes no address.
    checked(unsafe { libc::listen(number, 4096) })?;
    let port = socket.local_addr()?.port();
    Ok((socket, port))
}

/// The signals SIGTERM and SIGINT. They are blocked, so that the process can wait for them.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks both signals in this thread and in threads that it starts later.
    pub fn block() -> Signals {
        // SAFETY: each call gets a set that lives through it. An all-zero set may be passed to
        // sigemptyset(3).
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGINT);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut());
            Signals(set)
        }
    }

    /// Returns a signalfd(2), which is readable once one of the signals has arrived.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: 1. The set lives through the call. 2. The descriptor is new, and nothing else
        // owns it.
        unsafe { checked(libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC)).map(|number| OwnedFd::from_raw_fd(number)) }
    }

    pub fn wait(&self) {
        let mut signal = 0;
        // SAFETY: the set and the number live through the call.
        unsafe { libc::sigwait(&self.0, &mut signal) };
    }

    /// Sends SIGTERM to this process.
    pub fn send() {
        // SAFETY: the call takes no address.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    }
}
