//! `usring ctl metrics`: the counts of all served programs, in the text form of OpenMetrics. With
//! `--listen` a server sends them to Prometheus and similar collectors.

use super::counts::Files;
use super::processes;
use crate::export::open_metrics;
use crate::statistics::Snapshot;
use crate::system_error::words;
use crate::{Failure, Outcome};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  usring ctl metrics
      Prints the counts of all programs that usring serves and counts.
  usring ctl metrics --listen 127.0.0.1:9464
      Serves the counts at http://127.0.0.1:9464/metrics until ^C.

usring counts the requests of programs that were started by `usring run --stats` or with the
variable USRING_STATS. The counts of a run are the sums over its processes. The labels `pid` and
`program` are those of the process with the lowest id. Everyone who can reach the address can read
the counts.

Exit status: 0, or 1 without --listen if no program is counted.";

/// Print the counts of all served programs as OpenMetrics, or serve them to a collector.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Serve the counts by HTTP at this numeric address, for example 127.0.0.1:9464 or
    /// [::1]:9464.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
}

/// Runs the subcommand.
pub fn run(options: &Options) -> Outcome {
    if let Some(address) = options.listen {
        return serve(address);
    }
    let (text, programs) = text();
    crate::print(format_args!("{text}"));
    Ok((programs == 0).into())
}

/// Returns the counts, and the number of programs that they come from. Processes that share a
/// statistics file count as one program, which is labelled with the lowest of their process ids.
fn text() -> (String, usize) {
    let processes = processes::find();
    let mut files = Files::default();
    files.update(&processes);
    let mut readings = files.read();
    let mut programs: BTreeMap<(u32, String), Snapshot> = BTreeMap::new();
    for process in &processes {
        let reading = process.statistics.as_ref().and_then(|mapping| readings.remove(&mapping.file));
        if let Some(reading) = reading {
            programs.insert((process.id, process.name.clone()), reading.sums);
        }
    }
    let sources: Vec<(String, &Snapshot)> =
        programs.iter().map(|((id, name), sums)| (labels(*id, name), sums)).collect();
    (open_metrics(&sources), sources.len())
}

/// Returns the labels of a program. `name` must have no control characters.
fn labels(id: u32, name: &str) -> String {
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    format!("pid=\"{id}\",program=\"{name}\"")
}

/// Longest time that a client may take to send its request, and for each write of the answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(5);
/// Maximum size of a request's head in bytes.
const MOST_HEAD: usize = 8 << 10;
/// Maximum number of clients at a time. Further clients get no answer.
const MOST_CLIENTS: usize = 16;
/// Pause after a failed accept(2), for example when no descriptor is free.
const PAUSE: Duration = Duration::from_millis(100);

fn serve(address: SocketAddr) -> Outcome {
    let failed = |error: io::Error| Failure::new(format!("cannot listen on {address} ({})", words(&error)));
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tell!("metrics are at http://{address}/metrics");
    // Each client's thread has a clone, so the reference count tells the number of clients.
    let clients = Arc::new(());
    loop {
        // accept(2) also returns errors of a client's connection, so the next call may succeed.
        let Ok((client, _)) = listener.accept() else {
            thread::sleep(PAUSE);
            continue;
        };
        let guard = clients.clone();
        if Arc::strong_count(&clients) <= MOST_CLIENTS + 1 {
            thread::spawn(move || {
                // A client that ends early, or is too slow, gets no answer.
                let _ = answer(client);
                drop(guard);
            });
        }
    }
}

/// Reads a client's request, and sends the answer.
fn answer(mut client: TcpStream) -> io::Result<()> {
    client.set_write_timeout(Some(CLIENT_LIMIT))?;
    let head = head(&mut client)?;
    let mut words = head.split(' ');
    let (status, kind, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/" | "/metrics")) => {
            ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text().0)
        }
        (Some("GET"), _) => ("404 Not Found", "text/plain", "The counts are at /metrics.\n".into()),
        _ => ("405 Method Not Allowed", "text/plain", "Use GET.\n".into()),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    client.write_all(answer.as_bytes())
}

/// Returns the head of a request. Error: the client sent none within the limits.
fn head(client: &mut TcpStream) -> io::Result<String> {
    let end = Instant::now() + CLIENT_LIMIT;
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > MOST_HEAD {
            return Err(ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_escapes_quotes_and_backslashes() {
        assert_eq!(labels(7, r#"a"b\c"#), r#"pid="7",program="a\"b\\c""#);
    }
}
