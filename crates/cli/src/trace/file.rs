//! The file of a trace: written by the launcher at the end of a run, read by `usring trace`.

use crate::Failure;
use crate::system_error::words;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use usring_trace::format::{HEADER_BYTES, Header, Kind, NotATrace, RECORD_BYTES, Record, read_name};
use usring_trace::page::Page;

/// Opens FILE for writing. Refuses a file with other contents than a trace.
pub fn open_output(path: &Path) -> Result<File, Failure> {
    let failed = |error: io::Error| {
        Failure::new(format!("cannot write the trace {} ({error})", path.display(), error = words(&error)))
    };
    if let Ok(known) = path.metadata() {
        let is_ours = known.is_file() && (known.len() == 0 || is_trace(path).map_err(failed)?);
        if !is_ours {
            return Err(Failure::new(format!(
                "{} exists and is no trace of usring, so --trace does not overwrite it; remove it, or name another file",
                path.display()
            )));
        }
    }
    // The old trace stays until the new one is written.
    OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(failed)
}

/// Creates a file that `usring trace` makes. Refuses to overwrite a trace.
pub fn create_other(path: &Path) -> Result<File, Failure> {
    if path.is_file() && is_trace(path).unwrap_or(false) {
        let path = path.display();
        return Err(Failure::new(format!("{path} is a trace, which is not overwritten; name another file")));
    }
    File::create(path)
        .map_err(|error| Failure::new(format!("cannot write {} ({error})", path.display(), error = words(&error))))
}

fn is_trace(path: &Path) -> io::Result<bool> {
    let mut bytes = [0; HEADER_BYTES];
    let file = File::open(path)?;
    let read = file.read_exact_at(&mut bytes, 0);
    Ok(read.is_ok() && Header::decode(&bytes) != Err(NotATrace::Other))
}

/// The contents of a written file.
pub struct Written {
    header: Header,
    requests: usize,
}

impl Written {
    /// Returns the sentence that tells the user what is in the file. `size`: bytes of the memory.
    pub fn sentence(&self, path: &Path, size: u64) -> String {
        let Header { records, lost, lost_names, keeps_last, .. } = self.header;
        let events = plural(records, "event", "events");
        let requests = plural(self.requests as u64, "request", "requests");
        let path = path.display();
        let mut text = match (lost, keeps_last) {
            (0, _) => format!("{events} of {requests} are in {path}; none was lost"),
            (_, 0) => format!(
                "{events} of {requests} are in {path}; {} lost, because {} were full: use {path},size=SIZE for more, or \
                 {path},last=SIZE for the last ones",
                if lost == 1 { "1 was".to_owned() } else { format!("{lost} were") },
                Bytes(size),
            ),
            _ => format!("the last {events}, of {requests}, are in {path}; {lost} earlier ones were overwritten"),
        };
        if lost_names != 0 {
            text.push_str(&format!("; {} without room", plural(lost_names, "file name was", "file names were")));
        }
        text
    }
}

fn plural(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

/// A number of bytes, in the unit of the command line.
struct Bytes(u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mut count, mut unit) = (self.0, 0);
        while count >= 1024 && count.is_multiple_of(1024) && unit < 3 {
            (count, unit) = (count / 1024, unit + 1);
        }
        write!(f, "{count}{}", ["", "K", "M", "G"][unit])
    }
}

/// Writes the events so far.
pub fn write(page: &Page, mut output: &File) -> io::Result<Written> {
    let (header, names, records) = page.read();
    output.rewind()?;
    output.set_len(0)?;
    let mut file = BufWriter::with_capacity(1 << 20, output);
    file.write_all(&header.encode())?;
    names.iter().try_for_each(|word| file.write_all(&word.to_le_bytes()))?;
    let mut requests = 0;
    for words in &records {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all(&bytes)?;
        requests += usize::from(Record::read(words).is_some_and(|(_, record)| record.kind == Kind::Submitted));
    }
    file.flush()?;
    Ok(Written { header, requests })
}

/// An event with its time.
pub struct Event {
    /// Nanoseconds since the begin of the run.
    pub at: u64,
    pub record: Record,
}

/// A trace that was read from its file.
pub struct Loaded {
    pub header: Header,
    names: Vec<u64>,
    /// In the order of time.
    pub events: Vec<Event>,
    /// Records that the file should have, but does not.
    pub missing: u64,
}

impl Loaded {
    /// Reads a file. The error says what the file is instead of a trace.
    pub fn read(path: &Path) -> Result<Loaded, Failure> {
        let name = path.display();
        let failed = |error: io::Error| Failure::new(format!("cannot read {name} ({error})", error = words(&error)));
        let mut bytes = Vec::new();
        File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(failed)?;
        let not_a_trace =
            || Failure::new(format!("{name} is no trace; `usring run --trace FILE -- PROGRAM` makes one"));
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or_else(not_a_trace)?;
        let header = match Header::decode(header) {
            Ok(header) => header,
            Err(NotATrace::Other) => return Err(not_a_trace()),
            Err(NotATrace::Version(version)) => {
                return Err(Failure::new(format!(
                    "{name} is a trace of another version of usring (layout {version}); read it with that version"
                )));
            }
        };
        let (words, _) = rest.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let names = usize::try_from(header.names).unwrap_or(usize::MAX).min(words.len());
        let (names, records) = words.split_at(names);
        let (records, _) = records.as_chunks();
        let mut events: Vec<Event> = records
            .iter()
            .filter_map(Record::read)
            .map(|(_, record)| Event { at: header.nanoseconds(record.ticks), record })
            .collect();
        // The sort is stable: events of one moment stay in the order in which they were recorded.
        events.sort_by_key(|event| event.at);
        let missing = header.records.saturating_sub(events.len() as u64);
        Ok(Loaded { header, names: names.into(), events, missing })
    }

    /// Returns the name that a record refers to.
    pub fn name(&self, name: u32) -> Option<String> {
        read_name(&self.names, name).map(|name| String::from_utf8_lossy(&name).into_owned())
    }
}

const _: () = assert!(RECORD_BYTES == 64);

#[cfg(test)]
mod tests {
    use super::*;

    fn written(lost: u64, keeps_last: u64) -> String {
        let header = Header { records: 9, lost, keeps_last, ..Header::default() };
        Written { header, requests: 1 }.sentence(Path::new("x"), 64 << 20)
    }

    #[test]
    fn the_sentence_says_what_was_lost() {
        assert_eq!(written(0, 0), "9 events of 1 request are in x; none was lost");
        assert!(written(5, 0).contains("5 were lost, because 64M were full: use x,size=SIZE"));
        assert_eq!(written(5, 1), "the last 9 events, of 1 request, are in x; 5 earlier ones were overwritten");
    }

    #[test]
    fn a_file_with_other_contents_is_neither_overwritten_nor_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, "my notes").unwrap();
        assert!(open_output(&path).unwrap_err().sentence.contains("does not overwrite it"));
        assert!(Loaded::read(&path).err().unwrap().sentence.contains("is no trace"));
        assert!(open_output(folder.path()).is_err());
        assert!(Loaded::read(&folder.path().join("none")).err().unwrap().sentence.contains("ENOENT"));
        std::fs::write(&path, Header::default().encode()).unwrap();
        open_output(&path).unwrap();
        let mut other = Header { records: 3, ..Header::default() }.encode();
        std::fs::write(&path, other).unwrap();
        assert_eq!(Loaded::read(&path).unwrap().missing, 3);
        other[8] = 77;
        std::fs::write(&path, other).unwrap();
        assert!(Loaded::read(&path).err().unwrap().sentence.contains("another version"));
    }
}
