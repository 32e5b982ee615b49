//! The file of a trace: written by the launcher at the end of a run, read by `usring trace`.

use crate::Failure;
use crate::system_error::words;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use usring_trace::format::{EventKind, HEADER_BYTES, Header, NotATrace, RECORD, RECORD_BYTES, Record, read_name};
use usring_trace::page::Page;

/// Size of the buffer through which a trace's file is written and read, in bytes.
const BUFFER: usize = 1 << 20;

/// Opens FILE for writing. Refuses a file that has contents but is no trace.
pub fn open_output(path: &Path) -> Result<File, Failure> {
    let failed = |error: io::Error| {
        Failure::new(format!("cannot write the trace {} ({error})", path.display(), error = words(&error)))
    };
    if let Ok(known) = path.metadata() {
        let is_ours = known.is_file() && (known.len() == 0 || is_trace(path).map_err(failed)?);
        if !is_ours {
            return Err(Failure::new(format!(
                "{} exists and is not a trace, so usring does not overwrite it; remove it, or name another file",
                path.display()
            )));
        }
    }
    // An old trace stays until `write` begins.
    OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(failed)
}

/// Creates a file for the output of `usring trace`. Refuses to overwrite a trace.
pub fn create_other(path: &Path) -> Result<File, Failure> {
    if path.is_file() && is_trace(path).unwrap_or(false) {
        let path = path.display();
        return Err(Failure::new(format!(
            "{path} is a trace, which `usring trace` does not overwrite; name another file"
        )));
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
    requests: u64,
}

impl Written {
    /// Returns the sentence that tells the user what is in the trace's file. `size`: bytes of the
    /// memory that held the records.
    pub fn sentence(&self, path: &Path, size: u64) -> String {
        let Header { records, events: events_of_run, lost, lost_names, keeps_last, .. } = self.header;
        let events = plural(records, "event", "events");
        let requests = plural(self.requests, "request", "requests");
        let path = path.display();
        let mut text = match (lost, keeps_last) {
            (0, _) => format!("{events} of {requests} are in {path}; none was lost"),
            (_, 0) => format!(
                "{events} of {requests} are in {path}; {} lost, because {} were full: use --trace FILE,size=SIZE for \
                 more, or FILE,last=SIZE for the last ones",
                if lost == 1 { "1 was".to_owned() } else { format!("{lost} were") },
                Bytes(size),
            ),
            _ => format!("the last {events}, of {requests}, are in {path}; {lost} earlier ones were overwritten"),
        };
        let unfinished = events_of_run.saturating_sub(lost).saturating_sub(records);
        if unfinished != 0 {
            text.push_str(&format!(
                "; {} left out, because no thread has finished it",
                plural(unfinished, "event was", "events were")
            ));
        }
        if lost_names != 0 {
            let names = plural(lost_names, "file name was", "file names were");
            text.push_str(&format!("; {names} lost, because the memory for names was full"));
        }
        text
    }
}

fn plural(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

/// A number of bytes, shown as a user would write it for `--trace FILE,size=SIZE`: in whole K, M or
/// G if it is a multiple of 1024, otherwise in bytes.
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

/// Writes the events so far. Writes the header once to reserve its space, and once more at the end,
/// because it contains the number of records.
pub fn write(page: &Page, mut output: &File) -> io::Result<Written> {
    let mut header = page.header();
    output.rewind()?;
    output.set_len(0)?;
    let mut file = BufWriter::with_capacity(BUFFER, output);
    file.write_all(&header.encode())?;
    page.names(&header).try_for_each(|word| file.write_all(&word.to_le_bytes()))?;
    let (mut records, mut requests) = (0, 0);
    for (record, words) in page.records(&header) {
        words.iter().try_for_each(|word| file.write_all(&word.to_le_bytes()))?;
        records += 1;
        requests += u64::from(record.kind == EventKind::Submitted);
    }
    file.flush()?;
    header.records = records;
    output.write_all_at(&header.encode(), 0)?;
    Ok(Written { header, requests })
}

/// An event with its time.
pub struct Event {
    /// Nanoseconds since the start of the run.
    pub at: u64,
    pub record: Record,
}

/// A trace that was read from its file.
pub struct Loaded {
    pub header: Header,
    names: Vec<u64>,
    /// The events in order of time.
    pub events: Vec<Event>,
    /// Number of records that the header counts, but that the file lacks.
    pub missing: u64,
}

impl Loaded {
    /// Reads a trace. Fails if the file is no trace, or is a trace of another version of usring.
    pub fn read(path: &Path) -> Result<Loaded, Failure> {
        let name = path.display();
        let failed = |error: io::Error| Failure::new(format!("cannot read {name} ({error})", error = words(&error)));
        let mut input = BufReader::with_capacity(BUFFER, File::open(path).map_err(failed)?);
        let not_a_trace =
            || Failure::new(format!("{name} is not a trace; `usring run --trace FILE -- PROGRAM` makes one"));
        let header = read_array::<HEADER_BYTES>(&mut input).map_err(failed)?.ok_or_else(not_a_trace)?;
        match Header::decode(&header) {
            Ok(header) => Loaded::read_rest(header, &mut input).map_err(failed),
            Err(NotATrace::Other) => Err(not_a_trace()),
            Err(NotATrace::Version(version)) => Err(Failure::new(format!(
                "{name} is a trace of another version of usring (layout {version}); read it with that version"
            ))),
        }
    }

    /// Reads what follows the header.
    pub fn read_rest(header: Header, input: &mut impl Read) -> io::Result<Loaded> {
        let mut names = Vec::new();
        while (names.len() as u64) < header.names
            && let Some(word) = read_array(input)?
        {
            names.push(u64::from_le_bytes(word));
        }
        let mut events: Vec<Event> = Vec::new();
        for _ in 0..header.records {
            let Some(bytes) = read_array::<RECORD_BYTES>(input)? else { break };
            let (words, _) = bytes.as_chunks::<8>();
            let words: [u64; RECORD] = std::array::from_fn(|index| u64::from_le_bytes(words[index]));
            if let Some((_, record)) = Record::read(&words) {
                events.push(Event { at: header.nanoseconds(record.ticks), record });
            }
        }
        // The sort is stable: events with the same time stay in the order in which they were
        // recorded.
        events.sort_by_key(|event| event.at);
        let missing = header.records.saturating_sub(events.len() as u64);
        Ok(Loaded { header, names, events, missing })
    }

    /// Returns a trace of these events.
    #[cfg(test)]
    pub fn of(header: Header, events: Vec<Event>) -> Loaded {
        Loaded { header, names: Vec::new(), events, missing: 0 }
    }

    /// Returns the name that a record refers to.
    pub fn name(&self, name: u32) -> Option<String> {
        read_name(&self.names, name).map(|name| String::from_utf8_lossy(&name).into_owned())
    }
}

/// Reads `N` bytes. `None`: the input has fewer bytes left.
fn read_array<const N: usize>(input: &mut impl Read) -> io::Result<Option<[u8; N]>> {
    let mut bytes = [0; N];
    match input.read_exact(&mut bytes) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

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
        assert!(written(5, 0).contains("5 were lost, because 64M were full: use --trace FILE,size=SIZE"));
        let header = Header { records: 9, lost_names: 3, ..Header::default() };
        let text = Written { header, requests: 1 }.sentence(Path::new("x"), 64 << 20);
        assert!(text.ends_with("; 3 file names were lost, because the memory for names was full"), "{text}");
        assert_eq!(written(5, 1), "the last 9 events, of 1 request, are in x; 5 earlier ones were overwritten");
    }

    #[test]
    fn a_file_with_other_contents_is_neither_overwritten_nor_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, "my notes").unwrap();
        assert!(open_output(&path).unwrap_err().sentence.contains("does not overwrite it"));
        assert!(Loaded::read(&path).err().unwrap().sentence.contains("is not a trace"));
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
