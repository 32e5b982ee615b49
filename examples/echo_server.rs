//! An echo server on io_uring, written as for the kernel: multishot accept, multishot receive, a
//! ring of provided buffers, one io_uring per thread. One executable runs on the kernel's io_uring
//! and under `usring run`.
//!
//! [`Server`] is one thread's server. It owns a ring and everything that its requests point to.
//! [`Server::run`] waits for completions and hands each to the method for its [`Kind`].
//! [`Server::advance`] alone decides a connection's next step.
//!
//! The server handles these events:
//! - a multishot that ends early because the CQ is full;
//! - a receive that finds no buffer;
//! - an accept that finds no free descriptor;
//! - a send of fewer bytes than requested;
//! - a peer that reads nothing, closes one half, or resets.
//!
//! The protocol is in `workloads::dialogue`.

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::ptr;
use workloads::sockets::{self, Signals, checked, listen};

#[path = "echo_server/buffers.rs"]
mod buffers;
#[path = "echo_server/connection.rs"]
mod connection;
#[path = "echo_server/options.rs"]
mod options;

use buffers::{Buffers, GROUP};
use connection::{Connection, Counts};
use options::{HELP, Options};

/// If a connection has this many unsent bytes, the server stops receiving from it, because the peer
/// does not read.
const MOST_UNSENT_BYTES: usize = 256 << 10;
/// Pause after an accept that found no free descriptor.
static PAUSE: types::Timespec = types::Timespec::new().nsec(50_000_000);
/// Time limit for requests to complete after the server has cancelled them.
static LIMIT: types::Timespec = types::Timespec::new().sec(5);

fn main() -> ExitCode {
    match Options::from_arguments() {
        Ok(None) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Ok(Some(options)) => serve(&options).unwrap_or_else(|error| {
            eprintln!("echo_server: {error}");
            ExitCode::FAILURE
        }),
        Err(why) => {
            eprintln!("echo_server: {why}; --help explains");
            ExitCode::from(2)
        }
    }
}

/// Starts the threads, waits for a signal, and stops the threads.
fn serve(options: &Options) -> io::Result<ExitCode> {
    sockets::raise_descriptor_limit();
    let signals = Signals::block();
    let (first, port) = listen(options.port)?;
    let mut listeners = vec![first];
    for _ in 1..options.threads {
        listeners.push(listen(port)?.0);
    }
    println!("listening on 127.0.0.1:{port}");
    let bells = (0..options.threads).map(|_| event()).collect::<io::Result<Vec<_>>>()?;
    let ends = std::thread::scope(|scope| {
        let start = |(listener, bell)| {
            scope.spawn(move || {
                let end = Server::new(options, listener, bell).and_then(Server::run);
                // If a thread fails, the whole program ends.
                end.inspect_err(|_| Signals::send())
            })
        };
        let threads: Vec<_> = listeners.iter().zip(&bells).map(start).collect();
        signals.wait();
        for bell in &bells {
            // SAFETY: the call reads eight bytes, the size of the value passed.
            unsafe { libc::write(bell.as_raw_fd(), ptr::from_ref(&1_u64).cast(), 8) };
        }
        threads.into_iter().map(|thread| thread.join().expect("a server thread")).collect::<io::Result<Vec<_>>>()
    })?;
    let mut counts = Counts::default();
    ends.iter().for_each(|end| counts.add(end));
    println!("{counts}");
    Ok(if counts.lost == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn event() -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is new, and nothing else owns it.
    unsafe { checked(libc::eventfd(0, libc::EFD_CLOEXEC)).map(|number| OwnedFd::from_raw_fd(number)) }
}

/// The kind of a request, in the low byte of its user data. The other bytes have the index of the
/// request's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Accept,
    Receive,
    Send,
    Close,
    /// Cancels the receive of a connection.
    Cancel,
    /// Reads the eventfd. The main thread writes to it to stop this thread.
    Bell,
    CancelAll,
    Pause,
    Limit,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::Accept,
        Kind::Receive,
        Kind::Send,
        Kind::Close,
        Kind::Cancel,
        Kind::Bell,
        Kind::CancelAll,
        Kind::Pause,
        Kind::Limit,
    ];

    fn of(self, place: usize) -> u64 {
        (place as u64) << 8 | self as u64
    }

    fn split(user_data: u64) -> (Kind, usize) {
        (Kind::ALL[usize::from(user_data as u8)], (user_data >> 8) as usize)
    }
}

/// The server of one thread: its ring and its connections.
struct Server<'a> {
    ring: IoUring,
    buffers: Buffers,
    options: &'a Options,
    listener: &'a TcpListener,
    bell: &'a OwnedFd,
    /// The buffer into which the eventfd `bell` is read.
    rung: Box<u64>,
    connections: Vec<Connection>,
    free: Vec<usize>,
    /// Connections whose receives found no buffer. The server submits those receives again once
    /// buffers have been returned.
    starved: Vec<usize>,
    accepting: bool,
    /// Requests in flight. Requests of the kinds `Pause` and `Limit` are not counted, because the
    /// server does not wait for them when it stops.
    under_way: u64,
    stopping: bool,
    overdue: bool,
    counts: Counts,
}

impl Server<'_> {
    fn new<'a>(options: &'a Options, listener: &'a TcpListener, bell: &'a OwnedFd) -> io::Result<Server<'a>> {
        let ring = options.ring()?;
        let buffers = Buffers::new(&ring, options.buffers, options.buffer_size)?;
        Ok(Server {
            ring,
            buffers,
            options,
            listener,
            bell,
            rung: Box::default(),
            connections: Vec::new(),
            free: Vec::new(),
            starved: Vec::new(),
            accepting: false,
            under_way: 0,
            stopping: false,
            overdue: false,
            counts: Counts::default(),
        })
    }

    fn run(mut self) -> io::Result<Counts> {
        let bell = opcode::Read::new(types::Fd(self.bell.as_raw_fd()), ptr::from_mut(&mut *self.rung).cast(), 8);
        self.request(bell.build().user_data(Kind::Bell.of(0)))?;
        self.accept()?;
        let mut arrived = Vec::new();
        while !(self.stopping && self.under_way == 0 || self.overdue) {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                // EINTR: a signal arrived. EBUSY: the CQ still has too little room for the backlog.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) => {}
                Err(error) => return Err(error),
            }
            arrived.extend(self.ring.completion());
            for completion in arrived.drain(..) {
                self.completed(&completion)?;
            }
            for place in std::mem::take(&mut self.starved) {
                self.advance(place)?;
            }
        }
        self.counts.lost = self.under_way;
        Ok(self.counts)
    }

    /// Puts a request into the SQ, and submits if the SQ is full.
    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the memory that requests name (bytes being sent, the eventfd's word, timeouts)
        // neither moves nor is freed before they have completed.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }

    /// Puts a request into the SQ and counts it as in flight.
    fn request(&mut self, entry: squeue::Entry) -> io::Result<()> {
        self.under_way += 1;
        self.push(&entry)
    }

    fn completed(&mut self, completion: &cqueue::Entry) -> io::Result<()> {
        let ((kind, place), result) = (Kind::split(completion.user_data()), completion.result());
        let is_last = !cqueue::more(completion.flags());
        if is_last && !matches!(kind, Kind::Pause | Kind::Limit) {
            self.under_way -= 1;
        }
        match kind {
            Kind::Accept => self.accepted(result, is_last),
            Kind::Receive => self.received(place, result, completion.flags(), is_last),
            Kind::Send => self.sent(place, result),
            Kind::Close => self.closed(place),
            Kind::Cancel => {
                self.connections[place].cancelling = false;
                self.advance(place)
            }
            Kind::Bell => self.stop(),
            Kind::Pause => self.accept(),
            Kind::CancelAll => Ok(()),
            Kind::Limit => {
                self.overdue = true;
                Ok(())
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        if self.accepting || self.stopping {
            return Ok(());
        }
        self.accepting = true;
        let listener = types::Fd(self.listener.as_raw_fd());
        let entry = if self.options.multishot_accept {
            opcode::AcceptMulti::new(listener).flags(libc::SOCK_CLOEXEC).build()
        } else {
            opcode::Accept::new(listener, ptr::null_mut(), ptr::null_mut()).flags(libc::SOCK_CLOEXEC).build()
        };
        self.request(entry.user_data(Kind::Accept.of(0)))
    }

    fn accepted(&mut self, result: i32, is_last: bool) -> io::Result<()> {
        self.accepting &= !is_last;
        match -result {
            ..=0 => {
                self.counts.accepted += 1;
                self.counts.rearmed += u64::from(is_last && self.options.multishot_accept);
                let place = self.free.pop().unwrap_or_else(|| {
                    self.connections.push(Connection::default());
                    self.connections.len() - 1
                });
                self.connections[place].socket = result;
                self.accept()?;
                self.advance(place)
            }
            libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM => {
                // Accepts again after a pause: a descriptor becomes free when a thread closes a
                // connection.
                self.counts.without_descriptor += 1;
                let pause = opcode::Timeout::new(&PAUSE).build().user_data(Kind::Pause.of(0));
                self.push(&pause)
            }
            libc::EINVAL | libc::EOPNOTSUPP | libc::EBADF => Err(io::Error::from_raw_os_error(-result)),
            // The peer has closed the connection before the accept, or the server is stopping.
            _ => self.accept(),
        }
    }

    fn received(&mut self, place: usize, result: i32, flags: u32, is_last: bool) -> io::Result<()> {
        let connection = &mut self.connections[place];
        connection.receiving &= !is_last;
        match result {
            1.. => {
                self.counts.received += result as u64;
                self.counts.rearmed += u64::from(is_last && self.options.multishot_receive && !connection.cancelling);
                connection.received += result as u64;
                let id = cqueue::buffer_select(flags).expect("received bytes are in a buffer");
                let (dialogue, answers) = connection.answers();
                dialogue.answer(self.buffers.received(id, result as usize), answers);
                self.buffers.give(id);
            }
            0 => {
                connection.ended = true;
                let (dialogue, answers) = connection.answers();
                dialogue.finish(answers);
            }
            _ if -result == libc::ENOBUFS => {
                self.counts.without_buffer += 1;
                // The server returns each buffer as soon as it has handled the completion. So it
                // submits this receive again after it has handled all completions that have
                // arrived.
                self.starved.push(place);
                return Ok(());
            }
            _ if matches!(-result, libc::ECANCELED | libc::EINTR | libc::EAGAIN) => {}
            _ => {
                self.counts.reset += 1;
                (connection.ended, connection.broken) = (true, true);
            }
        }
        self.advance(place)
    }

    fn sent(&mut self, place: usize, result: i32) -> io::Result<()> {
        let connection = &mut self.connections[place];
        connection.sending = false;
        match result {
            0.. => {
                self.counts.sent += result as u64;
                connection.sent += result as usize;
            }
            _ if matches!(-result, libc::ECANCELED | libc::EINTR | libc::EAGAIN) => {}
            _ => {
                self.counts.reset += u64::from(!connection.broken);
                (connection.ended, connection.broken) = (true, true);
            }
        }
        self.advance(place)
    }

    /// Decides a connection's next step: send, receive, stop receiving, or close.
    fn advance(&mut self, place: usize) -> io::Result<()> {
        let connection = &mut self.connections[place];
        let socket = types::Fd(connection.socket);
        if connection.closing {
            return Ok(());
        }
        connection.ended |= self.stopping || self.options.close_after.is_some_and(|end| connection.received >= end);
        connection.broken |= self.stopping;
        if !connection.sending && !connection.broken {
            let bytes = connection.next_to_send();
            if !bytes.is_empty() {
                let send = opcode::Send::new(socket, bytes.as_ptr(), bytes.len() as u32);
                connection.sending = true;
                self.request(send.build().user_data(Kind::Send.of(place)))?;
            }
        }
        let connection = &mut self.connections[place];
        let wants_more = !connection.ended && connection.unsent() < MOST_UNSENT_BYTES;
        if wants_more && !connection.receiving && !connection.cancelling {
            connection.receiving = true;
            self.receive(place, socket)
        } else if !wants_more && connection.receiving && !connection.cancelling && !self.stopping {
            connection.cancelling = true;
            let cancel = opcode::AsyncCancel::new(Kind::Receive.of(place));
            self.request(cancel.build().user_data(Kind::Cancel.of(place)))
        } else if connection.ended && !connection.sending && !connection.receiving && !connection.cancelling {
            connection.closing = true;
            self.request(opcode::Close::new(socket).build().user_data(Kind::Close.of(place)))
        } else {
            Ok(())
        }
    }

    fn receive(&mut self, place: usize, socket: types::Fd) -> io::Result<()> {
        let entry = if self.options.multishot_receive {
            opcode::RecvMulti::new(socket, GROUP).build()
        } else {
            let receive = opcode::Recv::new(socket, ptr::null_mut(), self.options.buffer_size as u32);
            receive.buf_group(GROUP).build().flags(squeue::Flags::BUFFER_SELECT)
        };
        self.request(entry.user_data(Kind::Receive.of(place)))
    }

    fn closed(&mut self, place: usize) -> io::Result<()> {
        self.counts.closed += 1;
        self.connections[place].reset();
        self.free.push(place);
        // Submits an accept if none is in flight: the last one may have failed because no
        // descriptor was free.
        self.accept()
    }

    /// Cancels all requests. The server closes each connection when its last request has completed.
    fn stop(&mut self) -> io::Result<()> {
        self.stopping = true;
        let all = opcode::AsyncCancel2::new(types::CancelBuilder::any().all());
        self.request(all.build().user_data(Kind::CancelAll.of(0)))?;
        self.push(&opcode::Timeout::new(&LIMIT).build().user_data(Kind::Limit.of(0)))
    }
}
