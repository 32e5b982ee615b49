//! `examples/echo_server.rs` on usring. Its clients, which use plain sockets, are Debian's
//! redis-benchmark, many short connections, and clients that misbehave.
//!
//! The server prints its counters when it ends. If they differ from the clients' counters, a byte,
//! a descriptor or a completion was lost.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};
use workloads::harness::{Finished, REDIS_BENCHMARK, Stage, Started, World, require};

/// A running, listening server.
struct Server<'a> {
    stage: &'a Stage,
    started: Started,
    port: String,
}

/// The counters in the server's last line.
struct Account {
    accepted: u64,
    closed: u64,
    reset: u64,
    received: u64,
    sent: u64,
    finished: Finished,
}

impl Server<'_> {
    fn start<'a>(stage: &'a Stage, world: World, arguments: &[&str]) -> Server<'a> {
        let program = stage.path("echo_server");
        if !program.exists() {
            stage.copy(Path::new(env!("CARGO_BIN_EXE_echo_server")), "echo_server");
        }
        let mut started = stage.program(world, program).args(arguments).start();
        let first = started.wait_for_line(Duration::from_secs(60));
        let (_, port) = first.rsplit_once("listening on 127.0.0.1:").expect("the port");
        Server { stage, port: port.to_owned(), started }
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(("127.0.0.1", self.port.parse().unwrap())).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket
    }

    fn client(&self, program: &Path, arguments: &[&str]) -> Finished {
        let run = self.stage.program(World::Bare, program);
        run.args(arguments).limit(Duration::from_secs(180)).finish().succeeded()
    }

    /// Waits until the number of open descriptors no longer changes, and returns it.
    fn idle_descriptors(&self) -> usize {
        let (mut last, mut same) = (self.descriptors(), 0);
        let start = Instant::now();
        while same < 20 {
            assert!(start.elapsed() < Duration::from_secs(60), "descriptors come and go");
            std::thread::sleep(Duration::from_millis(5));
            let now = self.descriptors();
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
        last
    }

    /// Returns the number of open descriptors of the server's process. If a launcher stays as the
    /// server's parent, the started process is the launcher, and the server is its child.
    fn descriptors(&self) -> usize {
        let mut process = self.started.id();
        let child = |process: u32| std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok();
        while let Some(next) = child(process).and_then(|all| all.split_whitespace().next()?.parse().ok()) {
            process = next;
        }
        std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
    }

    /// Waits until the server has exactly `descriptors` open descriptors. Fails the test after a
    /// time limit.
    fn comes_to_hold(&self, descriptors: usize) {
        let start = Instant::now();
        while self.descriptors() != descriptors {
            assert!(start.elapsed() < Duration::from_secs(60), "{} are open, not {descriptors}", self.descriptors());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGTERM, as a user would, and parses the server's last line.
    fn end(self) -> Account {
        self.started.terminate();
        let finished = self.started.finish().succeeded();
        let said = finished.stdout.lines().last().unwrap().to_owned();
        let number = |behind: &str| -> u64 {
            let before = said.split(behind).next().unwrap();
            let word = before.rsplit([' ', ',', ';']).next().unwrap();
            word.parse().unwrap_or_else(|_| panic!("{behind}: {}", finished.report()))
        };
        assert_eq!(number(" requests lost"), 0, "{}", finished.report());
        let account = Account {
            accepted: number(" connections accepted"),
            closed: number(" closed"),
            reset: number(" reset"),
            received: number(" bytes received"),
            sent: number(" sent"),
            finished,
        };
        assert_eq!(account.accepted, account.closed, "{}", account.finished.report());
        account
    }
}

/// Runs redis-benchmark with 50 and 500 connections, each with 1 and 16 PINGs in flight. The tool
/// sends PING in two forms: as a user types it, and as client libraries send it.
fn redis_benchmark(world: World, mode: &str) {
    const REQUESTS: u64 = 20_000;
    let benchmark = Path::new(require(&REDIS_BENCHMARK));
    let stage = Stage::new();
    let server = Server::start(&stage, world, &["--mode", mode]);
    let _witness = answered(&server);
    let idle = server.idle_descriptors();
    let requests = REQUESTS.to_string();
    for connections in ["50", "500"] {
        for pipeline in ["1", "16"] {
            let shape = ["-c", connections, "-P", pipeline, "-n", &requests, "-q", "-p", &server.port];
            let finished = server.client(benchmark, &[&shape[..], &["-t", "ping_inline,ping_mbulk"]].concat());
            for test in ["PING_INLINE", "PING_MBULK"] {
                let done = format!("{test}: ");
                let rate = finished.stdout.split(&done).last().and_then(|rest| rest.split(' ').next());
                let rate: f64 = rate.and_then(|rate| rate.parse().ok()).expect("a rate");
                assert!(rate > 0.0, "{}", finished.report());
            }
        }
    }
    server.comes_to_hold(idle);
    let account = server.end();
    // Each of four runs sends 20,000 PINGs of each form. The tool also sends a request for the
    // configuration.
    let least = 4 * REQUESTS * (b"PING\r\n".len() + b"*1\r\n$4\r\nPING\r\n".len()) as u64;
    assert!(account.received >= least, "{}", account.finished.report());
    account.finished.served(&["recv"], 1).served(&["accept"], 1).served(&["send"], 4 * 2 * REQUESTS / 16);
}

/// Opens a connection and waits for an answer. After the answer, the server has opened all
/// descriptors that it needs for itself.
fn answered(server: &Server) -> TcpStream {
    let mut socket = server.connect();
    socket.write_all(b"known").unwrap();
    let mut answer = [0; 5];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"known");
    socket
}

/// Makes 10,000 short connections, up to 1,000 at a time. `closes` says which side closes first.
fn storm(world: World, closes: &str, arguments: &[&str]) {
    const CONNECTIONS: u64 = 10_000;
    let stage = Stage::new();
    let server = Server::start(&stage, world, arguments);
    let _witness = answered(&server);
    let idle = server.idle_descriptors();
    let program = Path::new(env!("CARGO_BIN_EXE_workload-storm"));
    // The client program compares every byte that it receives.
    server.client(program, &["--port", &server.port, "--closes", closes, "--at-once", "1000"]);
    server.comes_to_hold(idle);
    let account = server.end();
    let report = account.finished.report();
    assert_eq!(account.accepted, CONNECTIONS + 1, "{report}");
    assert_eq!([account.received, account.sent], [CONNECTIONS * 128 + 5; 2], "{report}");
    assert_eq!(account.reset, 0, "{report}");
    account.finished.served(&["send"], CONNECTIONS).served(&["close"], CONNECTIONS);
}

/// Runs the clients that misbehave, one at a time. Meanwhile another connection is open, and the
/// server must still answer it.
fn peers(world: World, arguments: &[&str]) {
    let stage = Stage::new();
    let server = Server::start(&stage, world, arguments);
    let mut witness = answered(&server);
    let idle = server.idle_descriptors();
    half_close(&server);
    stall(&server);
    split_ping(&server);
    drop(server.connect());
    server.comes_to_hold(idle);
    witness.write_all(b"still").unwrap();
    let mut answer = [0; 5];
    witness.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"still");
    // These connections stay open, with requests in flight, until the server ends.
    let mut open: Vec<_> = (0..50).map(|_| answered(&server)).collect();
    let account = server.end();
    assert_eq!(account.accepted, 1 + 4 + 50, "{}", account.finished.report());
    assert_eq!(open[7].read(&mut answer).unwrap(), 0, "an open connection is closed at the end");
}

/// Shuts down the sending direction of a connection, reads all answers, and then closes.
fn half_close(server: &Server) {
    let mut socket = server.connect();
    let sent: Vec<u8> = (0..100_000_u32).map(|at| (at * 7) as u8 | 0x80).collect();
    let mut writer = socket.try_clone().unwrap();
    let wanted = sent.clone();
    let write = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    write.join().unwrap();
    assert!(answer == wanted, "{} bytes came back of {}", answer.len(), wanted.len());
}

/// Sends without reading. The server must then stop receiving from this client, so that its unsent
/// answers take a bounded amount of memory. When the client reads, the server must receive again.
fn stall(server: &Server) {
    const MOST: usize = 64 << 20;
    let mut socket = server.connect();
    socket.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let mut last = Instant::now();
    let piece = [0x81; 1 << 16];
    while last.elapsed() < Duration::from_millis(300) {
        match socket.write(&piece) {
            Ok(count) => (sent, last) = (sent + count, Instant::now()),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        assert!(sent < MOST, "the server takes whatever is sent and keeps it");
    }
    socket.set_nonblocking(false).unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    assert!(answer.len() == sent && answer.iter().all(|byte| *byte == 0x81), "{} of {sent}", answer.len());
}

/// Sends a PING byte by byte.
fn split_ping(server: &Server) {
    let mut socket = server.connect();
    socket.set_nodelay(true).unwrap();
    for byte in b"*1\r\n$4\r\nPING\r\nPING\r\n" {
        socket.write_all(&[*byte]).unwrap();
    }
    let mut answer = [0; 14];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n+PONG\r\n");
}

#[test]
fn redis_benchmark_is_answered_by_an_echo_server_on_usring() {
    redis_benchmark(World::Denied, "defer");
}

#[test]
fn redis_benchmark_is_answered_on_a_ring_without_flags() {
    redis_benchmark(World::Denied, "default");
}

#[test]
fn ten_thousand_short_connections_that_the_server_closes_lose_nothing() {
    storm(World::Denied, "server", &["--close-after", "128", "--singleshot", "receive"]);
}

#[test]
fn ten_thousand_short_connections_that_the_client_closes_lose_nothing() {
    storm(World::Denied, "client", &[]);
}

/// The server has a small CQ and fewer buffers than connections, so the CQ overflows and multishots
/// end early. Nothing may be lost.
#[test]
fn ten_thousand_short_connections_lose_nothing_with_scarce_resources() {
    storm(World::Denied, "client", &["--entries", "8", "--buffers", "32", "--mode", "default"]);
}

#[test]
fn ten_thousand_short_connections_lose_nothing_between_two_threads() {
    storm(World::Denied, "client", &["--threads", "2", "--mode", "coop", "--singleshot", "both"]);
}

#[test]
fn peers_that_stall_and_half_close_are_served_to_their_end() {
    peers(World::Denied, &[]);
    peers(World::Denied, &["--singleshot", "both", "--mode", "default"]);
}
