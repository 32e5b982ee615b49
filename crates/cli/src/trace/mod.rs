//! `usring run --trace FILE`: the memory in which the program's processes record their requests.
//! The launcher writes the records to FILE at the end of the run. [`show`] is `usring trace FILE`.
//!
//! - `file` writes and reads the file.
//! - `requests` joins the events of each request.
//! - `select` has the filters, `print` the lines, and `summary` the table.
//! - `perfetto` writes the trace for ui.perfetto.dev, by `proto`.
//! - `live` reads the memory while the run goes on.

mod file;
pub mod live;
mod perfetto;
mod print;
mod proto;
mod requests;
mod select;
pub mod show;
mod summary;

use super::Failure;
use crate::system_error::words;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use usring_device::spec;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::{mapping, ticks};
use usring_trace::page::{Page, SIZES, Settings};

/// Bytes of memory for the records of a trace, unless the option `--trace` names a size.
const DEFAULT_SIZE: u64 = 256 << 20;

/// A value of `--trace`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOption {
    path: PathBuf,
    settings: Settings,
}

/// Parses `FILE[,ring=N][,size=SIZE][,last=SIZE]`. The error is one sentence for the user.
pub fn parse(text: &str) -> Result<TraceOption, String> {
    let mut parts = text.split(',');
    let path = parts.next().filter(|path| !path.is_empty()).ok_or("expected FILE, for example out.trace")?;
    let mut settings = Settings { size: DEFAULT_SIZE, keeps_last: false, ring: 0 };
    let mut has_size = false;
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match key {
            "ring" => {
                let number = value.parse().ok().filter(|number| *number != 0);
                settings.ring = number.ok_or_else(|| {
                    format!("'{value}' is not the number of a ring: the rings of a process are numbered from 1")
                })?;
            }
            "size" | "last" if has_size => return Err("give only one of size= and last=, and only once".into()),
            "size" | "last" => {
                let size = spec::size(value).filter(|size| SIZES.contains(size));
                settings.size = size.ok_or_else(|| format!("'{value}' is not a size from 64K to 64G, such as 64M"))?;
                settings.keeps_last = key == "last";
                has_size = true;
            }
            _ => return Err(format!("'{part}' is not ring=N, size=SIZE or last=SIZE; FILE cannot contain a comma")),
        }
    }
    Ok(TraceOption { path: path.into(), settings })
}

/// The trace of a run.
pub struct Trace {
    option: TraceOption,
    /// The file FILE of the option `--trace FILE`, open since the start of the run.
    output: File,
    memory: OwnedDescriptor,
    page: Page,
}

impl Trace {
    /// Opens FILE before the program starts, so that usring reports at once if it cannot write
    /// FILE. Makes the memory of the trace.
    pub fn create(option: &TraceOption) -> Result<Trace, Failure> {
        let output = file::open_output(&option.path)?;
        ticks::calibrate();
        let memory = mapping::sealed_memory_file(c"usring-trace", option.settings.length());
        let made = memory.and_then(|memory| Page::create(&memory, &option.settings).map(|page| (memory, page)));
        let (memory, page) = made.map_err(|error| {
            Failure::new(format!(
                "cannot make the memory for --trace ({error}); try a smaller one, such as --trace {path},size=16M",
                error = words(&error),
                path = option.path.display()
            ))
        })?;
        Ok(Trace { option: option.clone(), output, memory, page })
    }

    /// Returns a path in /proc by which the program's processes open the trace's memory.
    pub fn text(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.memory.number())
    }

    /// Writes the trace to FILE, and says on standard error what is in FILE.
    pub fn finish(&self) {
        let path = self.option.path.display();
        let text = match file::write(&self.page, &self.output) {
            Ok(written) => written.sentence(&self.option.path, self.option.settings.size),
            Err(error) => format!("cannot write the trace {path} ({error})", error = words(&error)),
        };
        // A failed write must not change the exit status, which is the program's, so errors are
        // ignored.
        let _ = writeln!(std::io::stderr(), "usring: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_has_a_file_and_limits() {
        let settings = Settings { size: DEFAULT_SIZE, keeps_last: false, ring: 0 };
        assert_eq!(parse("a.trace"), Ok(TraceOption { path: "a.trace".into(), settings }));
        let settings = Settings { size: 64 << 20, keeps_last: true, ring: 2 };
        assert_eq!(parse("a.trace,ring=2,last=64M"), Ok(TraceOption { path: "a.trace".into(), settings }));
        for wrong in ["", ",ring=1", "a,ring=0", "a,ring=x", "a,last=1", "a,size=64M,last=64M", "a,b", "a,size=0"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
