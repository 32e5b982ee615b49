//! A plain echo server on epoll(7), edge-triggered, without io_uring: the baseline for
//! `echo_server`, which gives the same answers.
//!
//! `workload-epoll [--port N] [--close-after BYTES]`
//!
//! At an event of the listener the server accepts all waiting connections, and registers each one
//! once in its epoll set. After a read that does not fill the buffer, the server makes no further
//! read: the socket is empty then (epoll(7)).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::ExitCode;
use workloads::dialogue::Dialogue;
use workloads::options::{self, Declared, option};
use workloads::readiness::Readiness;
use workloads::sockets::{self, Signals};

const LISTENER: u64 = u64::MAX;
const SIGNAL: u64 = u64::MAX - 1;

const OPTIONS: &[Declared] = &[
    option("port", "0", "Port to listen on; 0: a free one"),
    option("close-after", "18446744073709551615", "Close a connection after this many bytes"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, |options| {
        let close_after = options.value("close-after")?;
        serve(options.value("port")?, close_after).map_err(|error| error.to_string())
    })
}

fn serve(port: u16, close_after: u64) -> io::Result<()> {
    sockets::raise_descriptor_limit();
    let signals = Signals::block().descriptor()?;
    let (listener, port) = sockets::listen(port)?;
    listener.set_nonblocking(true)?;
    let mut readiness = Readiness::new(256)?;
    let edges = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
    readiness.add(&signals, libc::EPOLLIN as u32, SIGNAL)?;
    readiness.add(&listener, libc::EPOLLIN as u32 | libc::EPOLLET as u32, LISTENER)?;
    println!("listening on 127.0.0.1:{port}");
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut buffer = vec![0; 2048];
    loop {
        readiness.wait(-1)?;
        for at in 0..readiness.count() {
            match readiness.event(at).1 {
                SIGNAL => return Ok(()),
                LISTENER => {
                    while let Some(socket) = accept(&listener)? {
                        let number = socket.as_raw_fd() as usize;
                        readiness.add(&socket, edges, number as u64)?;
                        connections.resize_with(connections.len().max(number + 1), || None);
                        connections[number] = Some(Connection::new(socket));
                    }
                }
                number => {
                    let place = &mut connections[number as usize];
                    let goes_on = place.as_mut().is_some_and(|it| it.ready(&mut buffer, close_after).unwrap_or(false));
                    if !goes_on {
                        *place = None;
                    }
                }
            }
        }
    }
}

/// Accepts a connection by one system call. (`TcpListener::accept` may make more.)
fn accept(listener: &TcpListener) -> io::Result<Option<TcpStream>> {
    let none = std::ptr::null_mut();
    // SAFETY: the call gets no address.
    let number =
        unsafe { libc::accept4(listener.as_raw_fd(), none, none.cast(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) };
    if number >= 0 {
        // SAFETY: the descriptor is new, and nothing else owns it.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(number) }.into()));
    }
    match io::Error::last_os_error() {
        error if error.kind() == ErrorKind::WouldBlock => Ok(None),
        error => Err(error),
    }
}

struct Connection {
    socket: TcpStream,
    dialogue: Dialogue,
    outgoing: Vec<u8>,
    received: u64,
    ended: bool,
}

impl Connection {
    fn new(socket: TcpStream) -> Connection {
        Connection { socket, dialogue: Dialogue::default(), outgoing: Vec::new(), received: 0, ended: false }
    }

    /// Reads from the connection and answers. Returns whether the connection stays open.
    fn ready(&mut self, buffer: &mut [u8], close_after: u64) -> io::Result<bool> {
        loop {
            self.send()?;
            if self.ended || self.received >= close_after || !self.outgoing.is_empty() {
                break;
            }
            match self.socket.read(buffer) {
                Ok(0) => {
                    self.ended = true;
                    self.dialogue.finish(&mut self.outgoing);
                }
                Ok(count) => {
                    self.received += count as u64;
                    self.dialogue.answer(&buffer[..count], &mut self.outgoing);
                    if count < buffer.len() {
                        self.send()?;
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(!(self.ended || self.received >= close_after) || !self.outgoing.is_empty())
    }

    /// Sends as many bytes as the socket accepts. The remaining bytes are sent when the socket is
    /// writable again.
    fn send(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match self.socket.write(&self.outgoing) {
                Ok(count) if count == self.outgoing.len() => self.outgoing.clear(),
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
