//! Where the counts of `--stats` go: to a table on standard error, or to a file for programs.

use super::Failure;
use super::statistics::Snapshot;
use crate::system_error::words;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use usring_engine::statistics::Column;

/// A value of `--stats`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    Table,
    Json(PathBuf),
    OpenMetrics(PathBuf),
}

/// An open destination.
pub enum Export {
    Table,
    Json(Output),
    OpenMetrics(Output),
}

/// An open file, and its path for messages.
pub struct Output {
    file: File,
    path: PathBuf,
}

impl Destination {
    /// Parses the option's value. The error is one sentence for the user.
    pub fn parse(text: &str) -> Result<Destination, String> {
        match text.split_once(':') {
            _ if text == "table" => Ok(Destination::Table),
            Some(("json", file)) if !file.is_empty() => Ok(Destination::Json(file.into())),
            Some(("openmetrics", file)) if !file.is_empty() => Ok(Destination::OpenMetrics(file.into())),
            _ => Err("expected json:FILE or openmetrics:FILE; --stats alone prints a table".into()),
        }
    }

    /// Opens the file.
    pub fn open(&self) -> Result<Export, Failure> {
        let create = |path: &PathBuf| match File::create(path) {
            Ok(file) => Ok(Output { file, path: path.clone() }),
            Err(error) => Err(Failure::new(cannot_write(path, &error))),
        };
        Ok(match self {
            Destination::Table => Export::Table,
            Destination::Json(path) => Export::Json(create(path)?),
            Destination::OpenMetrics(path) => Export::OpenMetrics(create(path)?),
        })
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> String {
    format!("cannot write the statistics to {} ({})", path.display(), words(error))
}

impl Export {
    /// Writes the counts. A table goes to `errors`.
    pub fn write(&self, snapshot: &Snapshot, errors: &mut impl Write) -> io::Result<()> {
        let (output, text) = match self {
            Export::Table => return write!(errors, "{snapshot}"),
            Export::Json(output) => (output, json(snapshot)),
            Export::OpenMetrics(output) => (output, open_metrics(&[(String::new(), snapshot)])),
        };
        match (&output.file).write_all(text.as_bytes()) {
            Ok(()) => Ok(()),
            Err(error) => writeln!(errors, "usring: {}", cannot_write(&output.path, &error)),
        }
    }
}

/// Returns a column's name in the files.
pub fn key(column: Column) -> &'static str {
    match column {
        Column::Worker => "worker",
        other => other.name(),
    }
}

fn json(snapshot: &Snapshot) -> String {
    let counts = |row: &[u64]| {
        Map::from_iter(Column::ALL.iter().map(|column| (key(*column).to_owned(), json!(row[*column as usize]))))
    };
    let opcodes = snapshot.opcodes().map(|(name, row)| (name.to_owned(), Value::Object(counts(row))));
    let value = json!({
        "processes": snapshot.processes(),
        "running": snapshot.running(),
        "rings": snapshot.rings(),
        "uncounted_rings": snapshot.uncounted_rings(),
        "opcodes": opcodes.collect::<Map<_, _>>(),
    });
    format!("{value:#}\n")
}

/// Returns the counts of each source in the text form of OpenMetrics 1.0. An element of `sources`
/// has the labels of a source, such as `pid="1"`, and its counts. The labels are empty if there is
/// only one source.
pub fn open_metrics(sources: &[(String, &Snapshot)]) -> String {
    let mut text = String::new();
    let value: fn(&Snapshot) -> u64 = Snapshot::processes;
    let totals = [
        ("usring_processes", "Processes that usring served", value),
        ("usring_rings", "Rings that were set up", Snapshot::rings),
        ("usring_uncounted_rings", "Rings whose requests are not counted", Snapshot::uncounted_rings),
    ];
    for (name, help, value) in totals {
        let _ = writeln!(text, "# TYPE {name} counter\n# HELP {name} {help}.");
        for (labels, snapshot) in sources {
            let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            let _ = writeln!(text, "{name}_total{labels} {}", value(snapshot));
        }
    }
    for column in Column::ALL {
        let (name, help) = match column {
            Column::Submitted => ("usring_requests_submitted", "Requests taken from the submission queue"),
            Column::Completed => ("usring_completions", "Completions, of which a multishot request has many"),
            Column::Errors => ("usring_completion_errors", "Completions with a negative result"),
            Column::Inline => ("usring_requests_inline", "Requests that the submitting thread finished at once"),
            Column::Polled => ("usring_requests_polled", "Waits for a file to become ready, and requests of devices"),
            Column::Worker => ("usring_requests_worker", "Requests that a worker carried out"),
        };
        let _ = writeln!(text, "# TYPE {name} counter\n# HELP {name} {help}.");
        for (labels, snapshot) in sources {
            let comma = if labels.is_empty() { "" } else { "," };
            for (opcode, row) in snapshot.opcodes() {
                let _ = writeln!(text, "{name}_total{{{labels}{comma}opcode=\"{opcode}\"}} {}", row[column as usize]);
            }
        }
    }
    text + "# EOF\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_destination_is_a_table_or_a_file_of_a_known_kind() {
        assert_eq!(Destination::parse("table"), Ok(Destination::Table));
        assert_eq!(Destination::parse("json:a:b"), Ok(Destination::Json("a:b".into())));
        assert_eq!(Destination::parse("openmetrics:/x"), Ok(Destination::OpenMetrics("/x".into())));
        for wrong in ["", "json", "json:", "xml:file", "file"] {
            assert!(Destination::parse(wrong).is_err(), "{wrong}");
        }
    }
}
