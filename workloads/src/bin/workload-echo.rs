//! Benchmark: clients of an echo server that send PING and wait for +PONG. Each connection has a
//! fixed number of PINGs in flight. The result includes the server's processor time.
//!
//! `workload-echo --port N [--server PID] [--connections N] [--pipeline N] [--milliseconds N]`
//!
//! One thread drives all connections by epoll(7), edge-triggered. A latency is the time from
//! sending all PINGs of a connection until the last answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use workloads::latencies::Latencies;
use workloads::options::{self, Declared, Options, option};
use workloads::readiness::Readiness;
use workloads::sockets::processor_time;
use workloads::stopwatch::Sample;

const PING: &[u8] = b"PING\r\n";
const PONG: &[u8] = b"+PONG\r\n";
/// Timeout for an answer, in milliseconds.
const LIMIT: i32 = 10_000;

const OPTIONS: &[Declared] = &[
    option("port", "0", "The server's port"),
    option("connections", "50", "Number of clients"),
    option("pipeline", "1", "PINGs in flight per connection"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

fn workload(options: &Options) -> Result<(), String> {
    let span = options.span()?;
    let port = options.value("port")?;
    let server = options.value("server")?;
    let (connections, pipeline) = (options.value("connections")?, options.value("pipeline")?);
    let mut clients = Clients::connect(port, connections, pipeline)?;
    clients.run(span / 5, server)?;
    let sample = clients.run(span, server)?;
    let latency = |share| clients.latencies.within(share).unwrap_or_default();
    println!("{{{sample}, \"p50\": {}, \"p95\": {}, \"p99\": {}}}", latency(0.5), latency(0.95), latency(0.99));
    Ok(())
}

struct Client {
    socket: TcpStream,
    /// Received bytes of the current answer.
    answered: usize,
    sent: Instant,
}

struct Clients {
    all: Vec<Client>,
    readiness: Readiness,
    /// The bytes that each client sends, and the answer that it expects.
    question: Vec<u8>,
    answer: Vec<u8>,
    pipeline: u64,
    latencies: Latencies,
}

impl Clients {
    fn connect(port: u16, connections: usize, pipeline: usize) -> Result<Clients, String> {
        let words = |error: std::io::Error| error.to_string();
        let readiness = Readiness::new(connections.max(1)).map_err(words)?;
        let mut all = Vec::new();
        for place in 0..connections {
            let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(words)?;
            socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).map_err(words)?;
            readiness.add(&socket, (libc::EPOLLIN | libc::EPOLLET) as u32, place as u64).map_err(words)?;
            all.push(Client { socket, answered: 0, sent: Instant::now() });
        }
        let (question, answer) = (PING.repeat(pipeline), PONG.repeat(pipeline));
        Ok(Clients { all, readiness, question, answer, pipeline: pipeline as u64, latencies: Latencies::default() })
    }

    /// Sends requests for about `span`, and then waits for the answers to all of them.
    fn run(&mut self, span: Duration, server: i32) -> Result<Sample, String> {
        self.latencies.clear();
        let processor = || if server == 0 { Ok(Duration::ZERO) } else { processor_time(server) };
        let words = |error: std::io::Error| error.to_string();
        let (start, before) = (Instant::now(), processor().map_err(words)?);
        let mut open = self.all.len();
        let mut operations = 0;
        for place in 0..open {
            self.ask(place, Instant::now())?;
        }
        while open > 0 {
            self.readiness.wait(LIMIT).map_err(words)?;
            if self.readiness.count() == 0 {
                return Err(format!("{open} connections were not answered within {LIMIT} ms"));
            }
            for at in 0..self.readiness.count() {
                let place = self.readiness.event(at).1 as usize;
                if !self.take(place)? {
                    continue;
                }
                let now = Instant::now();
                self.latencies.add(now - self.all[place].sent);
                operations += self.pipeline;
                if now - start < span {
                    self.ask(place, now)?;
                } else {
                    open -= 1;
                }
            }
        }
        let processor = processor().map_err(words)? - before;
        Ok(Sample { operations, time: start.elapsed(), processor, thread: None })
    }

    fn ask(&mut self, place: usize, now: Instant) -> Result<(), String> {
        let client = &mut self.all[place];
        (client.answered, client.sent) = (0, now);
        match client.socket.write(&self.question) {
            Ok(count) if count == self.question.len() => Ok(()),
            Ok(count) => Err(format!("only {count} bytes could be sent")),
            Err(error) => Err(format!("cannot send ({error})")),
        }
    }

    /// Receives bytes on one connection. Returns whether all answers of that connection have
    /// arrived.
    fn take(&mut self, place: usize) -> Result<bool, String> {
        let client = &mut self.all[place];
        let mut buffer = [0; 4096];
        loop {
            match client.socket.read(&mut buffer) {
                Ok(0) => return Err("the server closed a connection".into()),
                Ok(count) => {
                    let (begin, end) = (client.answered, client.answered + count);
                    if self.answer.get(begin..end) != Some(&buffer[..count]) {
                        return Err(format!("the answer was {:?}", String::from_utf8_lossy(&buffer[..count])));
                    }
                    client.answered = end;
                    if end == self.answer.len() {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(format!("cannot receive ({error})")),
            }
        }
    }
}
