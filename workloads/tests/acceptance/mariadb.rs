//! MariaDB's InnoDB on io_uring and on libaio. The tests create and fill a database, kill the
//! server while it commits, recover, check, and shut down.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use workloads::harness::{Finished, MARIADB, Run, Stage, Started, World, is_root, kill, require};

const ROWS: u32 = 20_000;
const ROWS_PER_TRANSACTION: u32 = 100;
/// Rows that each transaction inserts. The test kills the server while these transactions run.
const ROWS_PER_BATCH: u32 = 10;
const BATCHES_BEFORE_KILL: u32 = 40;
/// Time limit for a start or shutdown of the server, and for a statement.
const SERVER_TIMEOUT: Duration = Duration::from_secs(180);

/// The kernel interface that InnoDB uses.
#[derive(Clone, Copy)]
pub enum Interface {
    IoUring,
    Libaio,
    /// libaio with `--aio-poll`: io_getevents polls the devices.
    PolledLibaio,
}

impl Interface {
    /// Returns the server's option that selects this interface, and the message by which the server
    /// confirms it.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Interface::IoUring => ("--innodb-linux-aio=io_uring", "InnoDB: Using io_uring"),
            Interface::Libaio | Interface::PolledLibaio => ("--innodb-linux-aio=aio", "InnoDB: Using Linux native AIO"),
        }
    }
}

/// Prepares a program of the server with the server's options. The program reads no configuration
/// of this machine. The buffer pool is smaller than the rows, so that the server has to read from
/// disk.
fn server_program(stage: &Stage, (world, interface): (World, Interface), program: &str) -> Run {
    let run = match interface {
        Interface::PolledLibaio => stage.program_with(world, &["--aio-poll".into()], program),
        Interface::IoUring | Interface::Libaio => stage.program(world, program),
    };
    let run = run.arg("--no-defaults");
    let run = run.arg(format!("--datadir={}", stage.path("data").display()));
    let run = run.arg(interface.words().0);
    let run = run.args(["--innodb-use-native-aio=1", "--innodb-buffer-pool-size=6M", "--innodb-log-file-size=8M"]);
    // As root the server refuses to run without this option.
    let run = if is_root() && world == World::Denied { run.arg("--user=root") } else { run };
    run.limit(SERVER_TIMEOUT)
}

fn make_database(stage: &Stage, world: (World, Interface)) {
    let run = server_program(stage, world, "/usr/bin/mariadb-install-db");
    let options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"];
    run.args(options).finish().succeeded().served(&["read", "readv", "write", "writev"], 20);
}

/// A server that accepts connections.
struct Server<'stage> {
    stage: &'stage Stage,
    process: Started,
    log: String,
    interface: Interface,
}

impl<'stage> Server<'stage> {
    fn start(stage: &'stage Stage, world: (World, Interface), log: &str) -> Server<'stage> {
        let notifications = stage.path("notify");
        let _ = fs::remove_file(&notifications);
        let socket = UnixDatagram::bind(&notifications).unwrap();
        fs::set_permissions(&notifications, Permissions::from_mode(0o777)).unwrap();
        let run = server_program(stage, world, require(&MARIADB)).env("NOTIFY_SOCKET", &notifications);
        let run =
            run.args(["--skip-networking", "--socket=socket", "--pid-file=pid"]).arg(format!("--log-error={log}"));
        // The log's path is relative to the data folder, which is the server's working directory.
        let process = run.arg("--socket").arg(stage.path("socket")).start();
        let mut server = Server { stage, process, log: format!("data/{log}"), interface: world.1 };
        server.wait_until_ready(&socket);
        server
    }

    /// Waits for the server's readiness message to the socket (sd_notify(3)).
    fn wait_until_ready(&mut self, socket: &UnixDatagram) {
        let deadline = Instant::now() + SERVER_TIMEOUT;
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut message = [0; 4096];
        while Instant::now() < deadline && !self.process.has_ended() {
            let length = socket.recv(&mut message).unwrap_or(0);
            if String::from_utf8_lossy(&message[..length]).lines().any(|line| line == "READY=1") {
                return;
            }
        }
        panic!("the server is not ready:\n{}\n{}", self.log(), self.process.stderr_so_far());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.stage.path(&self.log)).unwrap_or_default()
    }

    /// Returns the process id of the server itself. (A launcher may be its parent.)
    fn process_id(&self) -> i32 {
        String::from_utf8(self.stage.read("data/pid")).unwrap().trim().parse().expect("a process id")
    }

    /// Prepares the client program for this server.
    fn client(&self) -> Command {
        let mut client = Command::new("timeout");
        client.arg(SERVER_TIMEOUT.as_secs().to_string()).args(["mariadb", "--no-defaults", "--user=root", "--batch"]);
        client.args(["--skip-column-names", "--unbuffered", "--socket"]).arg(self.stage.path("socket"));
        client
    }

    /// Runs statements and returns their output, line by line.
    fn ask(&self, statements: &str) -> Vec<String> {
        let script = self.stage.write("statements", statements);
        let script = fs::File::open(script).unwrap();
        let output = self.client().stdin(script).output().expect("a client");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}\n{}", output.status, self.log());
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }

    /// Kills the server while it commits batches of rows. Returns the number of the last batch
    /// whose commit the server has reported.
    fn kill_while_committing(self) -> u32 {
        let statements: String = (1..100_000).map(batch).collect();
        let script = fs::File::open(self.stage.write("batches", statements)).unwrap();
        let mut client = self.client();
        let mut client = client.stdin(script).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut last = 0;
        for line in BufReader::new(client.stdout.take().unwrap()).lines() {
            last = line.unwrap().parse().expect("the number of a batch");
            if last == BATCHES_BEFORE_KILL {
                kill(self.process_id());
            }
        }
        let _ = client.wait();
        assert!(last >= BATCHES_BEFORE_KILL, "the client ended after batch {last}:\n{}", self.log());
        let finished = self.process.finish();
        assert_eq!(finished.status.signal(), Some(9), "{}", finished.report());
        finished.served(&["write", "writev"], 20);
        last
    }

    fn shut_down(self) -> Finished {
        self.ask("SHUTDOWN;");
        let log = self.stage.path(&self.log);
        let finished = self.process.finish().succeeded();
        let log = fs::read_to_string(log).unwrap();
        assert!(log.contains("Shutdown complete"), "{log}\n{}", finished.report());
        finished
    }

    fn uses_its_interface(&self) {
        let log = self.log();
        assert!(log.contains(self.interface.words().1), "{log}");
    }
}

/// Returns the statements of a transaction that inserts a batch, and a statement that prints the
/// batch's number after the commit.
fn batch(number: u32) -> String {
    let rows: Vec<_> = (0..ROWS_PER_BATCH).map(|row| format!("({number}, {row}, REPEAT('b', 300))")).collect();
    format!("BEGIN; INSERT INTO t.batches VALUES {}; COMMIT; SELECT {number};\n", rows.join(", "))
}

/// Creates the tables and fills the first one, with 100 rows per transaction.
fn load(server: &Server) {
    let mut statements = String::from(
        "CREATE DATABASE t CHARACTER SET utf8mb4;
         CREATE TABLE t.loaded (id INT PRIMARY KEY, digest CHAR(64), filler VARCHAR(600), KEY (digest)) ENGINE=InnoDB;
         CREATE TABLE t.batches (batch INT, line INT, filler VARCHAR(600), PRIMARY KEY (batch, line)) ENGINE=InnoDB;\n",
    );
    for first in (0..ROWS).step_by(ROWS_PER_TRANSACTION as usize) {
        let row = |id| format!("({id}, SHA2('{id}', 256), REPEAT(SHA2('{id}', 224), 1 + {id} % 9))");
        let rows: Vec<_> = (first..first + ROWS_PER_TRANSACTION).map(row).collect();
        statements += &format!("BEGIN; INSERT INTO t.loaded VALUES {}; COMMIT;\n", rows.join(", "));
    }
    server.ask(&statements);
}

/// Returns the number of rows, their range and a checksum, followed by the ids of rows with wrong
/// content.
fn contents(server: &Server) -> Vec<String> {
    server.ask(
        "SELECT COUNT(*), MIN(id), MAX(id), SUM(CRC32(CONCAT(id, digest, filler))) FROM t.loaded;
         SELECT id FROM t.loaded WHERE digest <> SHA2(id, 256) OR filler <> REPEAT(SHA2(id, 224), 1 + id % 9);",
    )
}

fn nothing_committed_was_lost(server: &Server, before: &[String], last_batch: u32) {
    assert_eq!(contents(server), before, "the loaded rows have changed");
    let committed = format!("SELECT COUNT(*) FROM t.batches WHERE batch <= {last_batch};");
    assert_eq!(server.ask(&committed), [(last_batch * ROWS_PER_BATCH).to_string()]);
    // A batch whose commit the server has not reported must be there completely or not at all.
    let torn = format!("SELECT batch FROM t.batches GROUP BY batch HAVING COUNT(*) <> {ROWS_PER_BATCH};");
    assert_eq!(server.ask(&torn), [""; 0]);
    let checked = server.ask("CHECK TABLE t.loaded, t.batches EXTENDED;");
    assert_eq!(checked, ["t.loaded\tcheck\tstatus\tOK", "t.batches\tcheck\tstatus\tOK"]);
}

pub fn survives_a_kill(world: World, interface: Interface) {
    let world = (world, interface);
    let stage = Stage::new();
    require(&MARIADB);
    assert!(Path::new("/usr/bin/mariadb").exists(), "apt-get install mariadb-client");
    make_database(&stage, world);

    let server = Server::start(&stage, world, "first.log");
    server.uses_its_interface();
    load(&server);
    let before = contents(&server);
    assert!(before.len() == 1 && before[0].starts_with(&format!("{ROWS}\t0\t{}\t", ROWS - 1)), "{before:?}");
    let last_batch = server.kill_while_committing();

    let server = Server::start(&stage, world, "second.log");
    server.uses_its_interface();
    assert!(server.log().contains("Starting crash recovery"), "{}", server.log());
    nothing_committed_was_lost(&server, &before, last_batch);
    server.shut_down().served(&["read", "readv", "write", "writev"], 20);

    // After a clean shutdown the server must find nothing to recover.
    let server = Server::start(&stage, world, "third.log");
    assert!(!server.log().contains("Starting crash recovery"), "{}", server.log());
    nothing_committed_was_lost(&server, &before, last_batch);
    server.shut_down();
}

#[test]
fn mariadb_loses_no_committed_row_when_it_is_killed() {
    survives_a_kill(World::Denied, Interface::IoUring);
}

#[test]
fn mariadb_on_libaio_loses_no_committed_row_when_it_is_killed() {
    survives_a_kill(World::Denied, Interface::Libaio);
}

#[test]
fn mariadb_on_libaio_loses_no_committed_row_with_aio_poll() {
    survives_a_kill(World::Denied, Interface::PolledLibaio);
}
