//! Benchmark: short connections, and their cost for the server. Each client connects, sends 128
//! bytes, receives them back and closes. A fixed number of connections is open at any time.
//!
//! `workload-storm --port N [--server PID] [--connections N] [--at-once N] [--closes
//! server|client]`
//!
//! If the server closes (`echo_server --close-after 128`), the client waits for the end of the
//! stream. If the client closes, it does not wait.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use workloads::options::{self, Declared, Options, option};
use workloads::readiness::Readiness;
use workloads::sockets::{self, processor_time};
use workloads::stopwatch::Sample;

const LENGTH: usize = 128;
/// Timeout for any step of a connection, in milliseconds.
const LIMIT: i32 = 10_000;

const OPTIONS: &[Declared] = &[
    option("port", "0", "The server's port"),
    option("connections", "10000", "Connections in all"),
    option("at-once", "1000", "Connections open at any time"),
    option("closes", "server", "Which side closes first: server or client"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

fn workload(options: &Options) -> Result<(), String> {
    sockets::raise_descriptor_limit();
    let server: i32 = options.value("server")?;
    let (connections, at_once) = (options.value("connections")?, options.value("at-once")?);
    let server_closes = options.value::<String>("closes")? == "server";
    let mut storm = Storm::new(options.value("port")?, at_once, server_closes)?;
    let processor = || if server == 0 { Ok(Duration::ZERO) } else { processor_time(server) };
    let words = |error: std::io::Error| error.to_string();
    let (start, before) = (Instant::now(), processor().map_err(words)?);
    storm.run(connections)?;
    let time = start.elapsed();
    // The server may still work for connections that the clients have closed. So its processor time
    // is read once that time no longer grows.
    let processor = settled_processor_time(processor).map_err(words)? - before;
    println!("{{{}}}", Sample { operations: connections, time, processor, thread: None });
    Ok(())
}

/// Waits until the server's processor time no longer grows, and returns it.
fn settled_processor_time(processor: impl Fn() -> std::io::Result<Duration>) -> std::io::Result<Duration> {
    let mut last = processor()?;
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(5));
        let now = processor()?;
        if now - last < Duration::from_micros(50) {
            return Ok(now);
        }
        last = now;
    }
    Ok(last)
}

struct Client {
    socket: TcpStream,
    bytes: [u8; LENGTH],
    sent: bool,
    received: usize,
}

struct Storm {
    port: u16,
    server_closes: bool,
    readiness: Readiness,
    clients: Vec<Option<Client>>,
    begun: u64,
}

impl Storm {
    fn new(port: u16, at_once: usize, server_closes: bool) -> Result<Storm, String> {
        let readiness = Readiness::new(256).map_err(|error| error.to_string())?;
        let clients = (0..at_once).map(|_| None).collect();
        Ok(Storm { port, server_closes, readiness, clients, begun: 0 })
    }

    /// Makes `connections` connections in all. Each element of `clients` makes one connection at a
    /// time.
    fn run(&mut self, connections: u64) -> Result<(), String> {
        let mut open = 0;
        for index in 0..self.clients.len().min(connections as usize) {
            self.connect(index)?;
            open += 1;
        }
        while open > 0 {
            self.readiness.wait(LIMIT).map_err(|error| error.to_string())?;
            if self.readiness.count() == 0 {
                return Err(format!("{open} connections came to nothing within {LIMIT} ms"));
            }
            for at in 0..self.readiness.count() {
                let index = self.readiness.event(at).1 as usize;
                let Some(client) = &mut self.clients[index] else { continue };
                if !client.advance(self.server_closes)? {
                    continue;
                }
                self.clients[index] = None;
                if self.begun < connections {
                    self.connect(index)?;
                } else {
                    open -= 1;
                }
            }
        }
        Ok(())
    }

    fn connect(&mut self, index: usize) -> Result<(), String> {
        let socket = sockets::connect(self.port).map_err(|error| format!("cannot connect ({error})"))?;
        let edges = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET) as u32;
        self.readiness.add(&socket, edges, index as u64).map_err(|error| error.to_string())?;
        // The bytes that a client sends differ between connections, and never begin with a PING.
        let mut bytes = [0; LENGTH];
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(self.begun << 8 | at as u64 | 1 << 63).to_be_bytes());
        }
        self.begun += 1;
        self.clients[index] = Some(Client { socket, bytes, sent: false, received: 0 });
        Ok(())
    }
}

impl Client {
    /// Sends and receives as much as is possible without waiting. Returns whether the connection is
    /// finished.
    fn advance(&mut self, server_closes: bool) -> Result<bool, String> {
        if !self.sent {
            match self.socket.write(&self.bytes) {
                Ok(LENGTH) => self.sent = true,
                Ok(count) => return Err(format!("only {count} bytes could be sent")),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return Ok(false);
                }
                Err(error) => return Err(format!("cannot send ({error})")),
            }
        }
        let mut buffer = [0; 2 * LENGTH];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) if self.received == LENGTH && server_closes => return Ok(true),
                Ok(0) => return Err(format!("the server closed after {} bytes", self.received)),
                Ok(count) => {
                    let end = self.received + count;
                    if self.bytes.get(self.received..end) != Some(&buffer[..count]) {
                        return Err(format!("from byte {} on something else came back", self.received));
                    }
                    self.received = end;
                    if end == LENGTH && !server_closes {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(format!("cannot receive ({error})")),
            }
        }
    }
}
