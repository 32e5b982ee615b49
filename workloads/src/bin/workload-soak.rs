//! Soak test: an echo server under many kinds of clients for a long time. Thousands of connections
//! come and go. Their clients wait for the echo, close one half, reset the connection, stop reading
//! for a while, send garbage, or send nothing at all.
//!
//! `workload-soak [--seconds N] [--connections N] -- SERVER ARGUMENTS`
//!
//! The program starts the server, reads the server's port from its output, and ends it by SIGTERM
//! while connections are open. It checks that:
//! - every byte of every answer is right;
//! - no client waits for ever;
//! - the server's memory does not grow;
//! - the server closes each connection's descriptor;
//! - the server's own counters show no lost request;
//! - the server exits cleanly.

use fastrand::Rng;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use workloads::dialogue::Dialogue;
use workloads::options::{self, Declared, Options, option};
use workloads::readiness::Readiness;
use workloads::sockets;

/// Timeout for an answer, and for the server's exit.
const LIMIT: Duration = Duration::from_secs(20);
/// Maximum number of bytes that a client of the kind `Stall` or `StallAndReset` sends before it
/// reads.
const STALL: usize = 1 << 20;
/// Growth of the server's memory that the test allows. It is the sum of this number of KiB and one
/// `ALLOWED_GROWTH_PARTS`th of the memory.
const ALLOWED_GROWTH_KIB: u64 = 4096;
const ALLOWED_GROWTH_PARTS: u64 = 10;

const OPTIONS: &[Declared] =
    &[option("seconds", "60", "How long to run"), option("connections", "5000", "Connections open at any time")];

fn main() -> ExitCode {
    options::run(OPTIONS, soak)
}

fn soak(options: &Options) -> Result<(), String> {
    sockets::raise_descriptor_limit();
    let span = Duration::from_secs(options.value("seconds")?);
    let connections = options.value("connections")?;
    let words = options.words();
    let mut server = Server::start(&words)?;
    // The first connection makes the server allocate everything that it needs for itself. That
    // connection stays open until the end of the test.
    let witness = Crowd::connect_idle(server.port, 1)?;
    let idle = server.idle_descriptors();
    let mut crowd = Crowd::new(server.port, connections)?;
    let start = Instant::now();
    let mut memory = Vec::new();
    while start.elapsed() < span {
        crowd.handle_events(true)?;
        if start.elapsed().as_millis() as usize / 500 >= memory.len() {
            memory.push(server.memory()?);
        }
    }
    crowd.drain()?;
    server.wait_until_forgotten(idle)?;
    let left = Crowd::connect_idle(server.port, connections.min(500))?;
    let said = server.end()?;
    drop((witness, left));
    let growth = check_growth(&memory)?;
    println!("{} connections in {:?}: {:?}", crowd.begun, start.elapsed(), crowd.kinds);
    println!("{} bytes of answers, every one right; memory {growth}", crowd.verified);
    println!("server: {said}");
    let others = 1 + connections.min(500) as u64;
    check_account(&said, crowd.answered() + others, crowd.begun + others)
}

/// Compares the server's memory in the last quarter of the time with its memory in the third
/// quarter. Fails if it has grown too much. The first half does not count, because the number of
/// quiet clients still grows then.
fn check_growth(memory: &[u64]) -> Result<String, String> {
    let quarter = memory.len() / 4;
    let mean = |part: &[u64]| part.iter().sum::<u64>() / part.len().max(1) as u64;
    let (before, after) = (mean(&memory[2 * quarter..3 * quarter]), mean(&memory[3 * quarter..]));
    let tenths: Vec<u64> = memory.chunks(memory.len().div_ceil(10).max(1)).map(mean).collect();
    let words = format!("{before} KiB in the third quarter of the time, {after} KiB in the last; {tenths:?}");
    if after > before + ALLOWED_GROWTH_KIB + before / ALLOWED_GROWTH_PARTS {
        Err(format!("memory grows: {words}"))
    } else {
        Ok(words)
    }
}

/// Checks the server's own counters, which are in its last line of output. The counters may lack
/// connections that the clients closed before the server accepted them.
fn check_account(said: &str, certain: u64, begun: u64) -> Result<(), String> {
    let number = |behind: &str| {
        let before = said.split(behind).next().unwrap_or_default();
        before.rsplit([' ', ',', ';', '\n']).next().and_then(|word| word.parse::<u64>().ok())
    };
    let counts = [" connections accepted", " closed", " requests lost"].map(number);
    match counts {
        [Some(accepted), Some(closed), Some(0)] if accepted == closed && (certain..=begun).contains(&accepted) => {
            Ok(())
        }
        _ => Err(format!("of {certain} to {begun} connections it counts {counts:?} accepted, closed, requests lost")),
    }
}

/// The server under test. If a launcher starts it, `process` is the server's own process id.
struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    port: u16,
    process: u32,
}

impl Server {
    fn start(words: &[String]) -> Result<Server, String> {
        let (program, arguments) = words.split_first().ok_or("which server? name it behind --")?;
        let mut command = Command::new(program);
        let child = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("cannot start {program} ({error})"))?;
        let mut output = BufReader::new(child.stdout.take().ok_or("the output is not piped")?);
        let mut line = String::new();
        output.read_line(&mut line).map_err(|error| error.to_string())?;
        let port = line.trim().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let port = port.ok_or_else(|| format!("the server printed {line:?} instead of its address"))?;
        let mut process = child.id();
        // If a launcher stays as the parent, the server is its child.
        while let Some(next) = child_of(process) {
            process = next;
        }
        Ok(Server { child, output, port, process })
    }

    /// Waits until the number of open descriptors no longer changes, and returns it.
    fn idle_descriptors(&self) -> usize {
        let (mut last, mut same, start) = (self.descriptors(), 0, Instant::now());
        while same < 20 && start.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(5));
            let now = self.descriptors();
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
        last
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process)).map_or(0, Iterator::count)
    }

    /// Returns the server's resident memory in KiB.
    fn memory(&self) -> Result<u64, String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process));
        let status = status.map_err(|error| format!("the server is gone ({error})"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).ok_or_else(|| "no VmRSS".into())
    }

    /// Waits until the server has at most `idle` open descriptors. Fails after [`LIMIT`].
    fn wait_until_forgotten(&self, idle: usize) -> Result<(), String> {
        let start = Instant::now();
        while self.descriptors() > idle {
            if start.elapsed() > LIMIT {
                return Err(format!("{} descriptors are open, and {idle} were before", self.descriptors()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Sends SIGTERM and returns the server's last output.
    fn end(&mut self) -> Result<String, String> {
        // SAFETY: the call takes no address, and the child has not been reaped.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGTERM) };
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if start.elapsed() > LIMIT => return Err("the server does not end".into()),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut said = String::new();
        self.output.read_to_string(&mut said).map_err(|error| error.to_string())?;
        if status.success() {
            Ok(said.trim().to_owned())
        } else {
            Err(format!("the server ended with {status}: {said}"))
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn child_of(process: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// The behaviour of a client on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// Sends a question and reads the answer a few times, then closes.
    Echo,
    /// Sends, shuts down its sending direction, and reads to the end.
    HalfClose,
    /// Sends, and resets the connection without reading the answer.
    Reset,
    /// Sends without reading until the socket is full, waits, and then reads.
    Stall,
    /// Sends without reading until the socket is full, waits, reads, and ends with a reset.
    StallAndReset,
    /// Connects, waits and closes.
    Silent,
}

const PEERS: [Peer; 6] = [Peer::Echo, Peer::HalfClose, Peer::Reset, Peer::Stall, Peer::StallAndReset, Peer::Silent];

struct Client {
    socket: TcpStream,
    peer: Peer,
    /// Computes the answer that the client expects.
    dialogue: Dialogue,
    /// The bytes to send, and how many of them have been sent.
    question: Vec<u8>,
    sent: usize,
    /// The expected answer, and how many of its bytes have been received.
    answer: Vec<u8>,
    received: usize,
    rounds: u32,
    /// The client does not read until this time. A client of the kind `Silent` neither sends nor
    /// reads, and closes at this time.
    quiet_until: Option<Instant>,
    half_closed: bool,
    progress: Instant,
}

/// All clients.
struct Crowd {
    port: u16,
    readiness: Readiness,
    clients: Vec<Option<Client>>,
    random: Rng,
    begun: u64,
    verified: u64,
    kinds: [(Peer, u64); 6],
    swept: Instant,
}

impl Crowd {
    fn new(port: u16, connections: usize) -> Result<Crowd, String> {
        Ok(Crowd {
            port,
            readiness: Readiness::new(512).map_err(|error| error.to_string())?,
            clients: (0..connections).map(|_| None).collect(),
            random: Rng::with_seed(1),
            begun: 0,
            verified: 0,
            kinds: PEERS.map(|peer| (peer, 0)),
            swept: Instant::now(),
        })
    }

    /// Opens connections. Each sends one line and waits for the answer, which shows that the server
    /// has accepted the connection. Then it sends nothing more.
    fn connect_idle(port: u16, count: usize) -> Result<Vec<TcpStream>, String> {
        let mut idle = Vec::new();
        for _ in 0..count {
            let mut socket = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
            socket.set_read_timeout(Some(LIMIT)).map_err(|error| error.to_string())?;
            let mut answer = [0; 6];
            socket.write_all(b"known\n").and_then(|()| socket.read_exact(&mut answer)).map_err(|e| e.to_string())?;
            idle.push(socket);
        }
        Ok(idle)
    }

    /// Returns the number of clients whose answers were complete.
    fn answered(&self) -> u64 {
        let to_the_end = |kind: &&(Peer, u64)| matches!(kind.0, Peer::Echo | Peer::HalfClose | Peer::Stall);
        self.kinds.iter().filter(to_the_end).map(|(_, count)| count).sum()
    }

    /// Waits up to 10 ms for events and handles them. Every 100 ms, also handles the clients
    /// without an event, because their pauses may be over. `refill`: whether new clients replace
    /// finished ones.
    fn handle_events(&mut self, refill: bool) -> Result<(), String> {
        self.readiness.wait(10).map_err(|error| error.to_string())?;
        for at in 0..self.readiness.count() {
            let index = self.readiness.event(at).1 as usize;
            self.serve_client(index, refill)?;
        }
        if self.swept.elapsed() > Duration::from_millis(100) {
            self.swept = Instant::now();
            for index in 0..self.clients.len() {
                self.serve_client(index, refill)?;
            }
        }
        Ok(())
    }

    /// Handles events until every client is done.
    fn drain(&mut self) -> Result<(), String> {
        while self.clients.iter().any(Option::is_some) {
            self.handle_events(false)?;
        }
        Ok(())
    }

    fn serve_client(&mut self, index: usize, refill: bool) -> Result<(), String> {
        if let Some(client) = &mut self.clients[index] {
            let before = client.received;
            let done = client.advance(&mut self.random).map_err(|why| format!("{:?}: {why}", client.peer))?;
            self.verified += (client.received.max(before) - before) as u64;
            if !done {
                return Ok(());
            }
            self.clients[index] = None;
        }
        if refill {
            self.clients[index] = Some(self.connect(index)?);
        }
        Ok(())
    }

    fn connect(&mut self, index: usize) -> Result<Client, String> {
        let socket = sockets::connect(self.port).map_err(|error| format!("cannot connect ({error})"))?;
        let edges = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        self.readiness.add(&socket, edges, index as u64).map_err(|error| error.to_string())?;
        // Quiet clients stay longest, so they are a small part of the new clients.
        let kind = match self.random.u64(..100) {
            0..50 => 0,
            50..70 => 1,
            70..88 => 2,
            88..92 => 3,
            92..96 => 4,
            _ => 5,
        };
        self.begun += 1;
        self.kinds[kind].1 += 1;
        let mut client = Client {
            socket,
            peer: PEERS[kind],
            dialogue: Dialogue::default(),
            question: Vec::new(),
            sent: 0,
            answer: Vec::new(),
            received: 0,
            rounds: 1 + self.random.u64(..8) as u32,
            quiet_until: None,
            half_closed: false,
            progress: Instant::now(),
        };
        let quiet = Duration::from_millis(200 + self.random.u64(..3000));
        match client.peer {
            Peer::Silent => client.quiet_until = Some(Instant::now() + quiet),
            Peer::Stall | Peer::StallAndReset => {
                client.quiet_until = Some(Instant::now() + quiet);
                client.make_question(&mut self.random, STALL);
            }
            _ => client.make_question(&mut self.random, 4096),
        }
        Ok(client)
    }
}

impl Client {
    /// Makes up the bytes that the client sends: PINGs, pieces of PINGs, or random bytes.
    fn make_question(&mut self, random: &mut Rng, most: usize) {
        let length = 1 + random.u64(..most as u64) as usize;
        let mut question = Vec::with_capacity(length);
        while question.len() < length {
            match random.u64(..4) {
                0 => question.extend_from_slice(b"PING\r\n"),
                1 => question.extend_from_slice(&b"*1\r\n$4\r\nPING\r\n"[..1 + random.u64(..14) as usize]),
                2 => question.extend_from_slice(b"PIN no ping\r\n"),
                _ => question.extend_from_slice(&random.u64(..).to_le_bytes().repeat(64)),
            }
        }
        self.answer.clear();
        self.dialogue.answer(&question, &mut self.answer);
        (self.question, self.sent, self.received) = (question, 0, 0);
    }

    /// Sends and receives as much as is possible without waiting. Returns whether the connection is
    /// finished.
    fn advance(&mut self, random: &mut Rng) -> Result<bool, String> {
        let quiet = self.quiet_until.is_some_and(|until| Instant::now() < until);
        if self.peer == Peer::Silent {
            return Ok(!quiet);
        }
        self.send()?;
        if self.peer == Peer::Reset && self.sent > 0 || self.peer == Peer::StallAndReset && !quiet {
            return self.reset();
        }
        if quiet {
            self.progress = Instant::now();
            return Ok(false);
        }
        let ended = self.receive()?;
        let complete = self.sent == self.question.len() && self.received == self.answer.len();
        if ended && !(complete && self.half_closed) {
            return Err(format!("it was closed after {} of {} bytes", self.received, self.answer.len()));
        }
        if ended || complete && self.peer != Peer::HalfClose && self.rounds == 0 {
            return Ok(true);
        }
        if complete && self.rounds > 0 {
            self.rounds -= 1;
            if self.rounds == 0 && self.peer == Peer::HalfClose {
                self.half_closed = true;
                self.dialogue.finish(&mut self.answer);
                self.socket.shutdown(Shutdown::Write).map_err(|error| format!("cannot close half ({error})"))?;
            } else if self.rounds > 0 {
                self.make_question(random, 4096);
                self.send()?;
            } else {
                return Ok(true);
            }
        }
        if self.progress.elapsed() > LIMIT {
            let (sent, received) = (self.sent, self.received);
            let (question, answer) = (self.question.len(), self.answer.len());
            return Err(format!("{sent} of {question} bytes sent, {received} of {answer} received, and nothing comes"));
        }
        Ok(false)
    }

    fn send(&mut self) -> Result<(), String> {
        while self.sent < self.question.len() {
            match self.socket.write(&self.question[self.sent..]) {
                Ok(count) => {
                    self.sent += count;
                    self.progress = Instant::now();
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => break,
                Err(error) => return Err(format!("cannot send ({error})")),
            }
        }
        Ok(())
    }

    /// Receives bytes and compares them with the expected answer. Returns whether the server has
    /// closed the connection.
    fn receive(&mut self) -> Result<bool, String> {
        let mut buffer = [0; 16 << 10];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return Ok(true),
                Ok(count) => {
                    let end = self.received + count;
                    if self.answer.get(self.received..end) != Some(&buffer[..count]) {
                        return Err(format!("a wrong answer, somewhere from byte {} on", self.received));
                    }
                    (self.received, self.progress) = (end, Instant::now());
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return Ok(false);
                }
                Err(error) => return Err(format!("cannot receive ({error})")),
            }
        }
    }

    /// Closes the connection with a reset (SO_LINGER with 0).
    fn reset(&self) -> Result<bool, String> {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let length = size_of::<libc::linger>() as libc::socklen_t;
        let value = std::ptr::from_ref(&linger).cast();
        // SAFETY: the value lives through the call and has the length that the call names.
        let answer =
            unsafe { libc::setsockopt(self.socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, length) };
        if answer == 0 { Ok(true) } else { Err(std::io::Error::last_os_error().to_string()) }
    }
}
