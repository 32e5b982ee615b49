//! A client that inserts rows until it is stopped, and remembers the rows whose commit the server
//! has reported. If its connection ends, it connects again.

use super::Client;
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time limit of a connection, after which the recorder connects again.
const LIMIT: Duration = Duration::from_secs(3600);
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Shared {
    stopping: AtomicBool,
    committed: Mutex<Vec<u64>>,
}

pub struct Recorder {
    client: Client,
    number: u32,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Number of committed rows that were found in the table, and the last of these rows.
    checked: (usize, u64),
}

impl Recorder {
    /// Makes the table that all recorders use.
    pub fn make_table(client: &Client) -> Result<(), String> {
        client.ask("CREATE TABLE recorded (recorder int, row bigint, filler text)").map(drop)
    }

    /// Starts inserting rows. `number` identifies the recorder.
    pub fn start(client: &Client, number: u32) -> Recorder {
        let shared = Arc::new(Shared::default());
        let thread = {
            let (client, shared) = (client.clone(), Arc::clone(&shared));
            std::thread::spawn(move || {
                let mut row = 0;
                while !shared.stopping.load(Ordering::Relaxed) {
                    let _ = insert(&client, number, &mut row, &shared);
                    std::thread::sleep(PAUSE);
                }
            })
        };
        Recorder { client: client.clone(), number, shared, thread: Some(thread), checked: (0, 0) }
    }

    /// Returns how many commits were reported.
    pub fn count(&self) -> usize {
        self.shared.committed.lock().map_or(0, |committed| committed.len())
    }

    /// Fails if the table lacks a row whose commit the server has reported since the last check.
    pub fn check(&mut self) -> Result<(), String> {
        let (checked, last) = self.checked;
        // Copies the list of committed rows before the query. So the query must find each row of
        // the copy.
        let committed = match self.shared.committed.lock() {
            Ok(committed) => committed[checked..].to_vec(),
            Err(_) => return Err("the recorder's thread has panicked".into()),
        };
        let found = self.rows_behind(last)?;
        let missing: Vec<_> = committed.iter().filter(|row| !found.contains(row)).collect();
        if !missing.is_empty() {
            return Err(format!("recorder {}: rows are missing whose commit was reported: {missing:?}", self.number));
        }
        self.checked = (checked + committed.len(), committed.last().copied().unwrap_or(last));
        Ok(())
    }

    /// Stops inserting. Fails if the table lacks any row whose commit the server has ever reported.
    /// Returns the number of these rows.
    pub fn finish(mut self) -> Result<usize, String> {
        self.stop();
        self.checked = (0, 0);
        self.check()?;
        Ok(self.count())
    }

    fn rows_behind(&self, row: u64) -> Result<HashSet<u64>, String> {
        let number = self.number;
        let rows = self.client.ask(&format!("SELECT row FROM recorded WHERE recorder = {number} AND row > {row}"))?;
        rows.lines().map(|line| line.parse().map_err(|_| format!("{line} is no row"))).collect()
    }

    fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Inserts rows on one connection, one row per transaction, until the connection ends or the
/// recorder is stopped. psql prints a row's number once the server has reported the commit.
fn insert(client: &Client, number: u32, row: &mut u64, shared: &Shared) -> std::io::Result<()> {
    let mut psql = client.psql(LIMIT);
    let mut psql = psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let (Some(mut statements), Some(answers)) = (psql.stdin.take(), psql.stdout.take()) else { return Ok(()) };
    let mut answers = BufReader::new(answers).lines();
    while !shared.stopping.load(Ordering::Relaxed) {
        // A later transaction never uses this number again, even if the server does not report this
        // commit.
        *row += 1;
        let statement = format!("INSERT INTO recorded VALUES ({number}, {row}, repeat('x', 300)) RETURNING row;\n");
        if statements.write_all(statement.as_bytes()).is_err() {
            break;
        }
        match answers.next() {
            Some(Ok(answer)) if answer == row.to_string() => {
                shared.committed.lock().map(|mut committed| committed.push(*row)).unwrap_or_default();
            }
            _ => break,
        }
    }
    drop(statements);
    psql.wait().map(drop)
}
