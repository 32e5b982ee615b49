//! `usring run --swap SPEC,limit=SIZE`: checks the option, makes the text that passes it to the
//! program's processes, and reports their counts. Each process opens the backing store itself
//! (`usring_swap::mappings`).

use super::Failure;
use super::devices::{absolute, connect};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use usring_device::driver::vhost_user;
use usring_device::{OwnSupply, Spec, Supply, spec};
use usring_swap::counters::run;
use usring_swap::mappings::{LEAST_LIMIT, LEAST_MINIMUM, least};
use usring_swap::{LEAST_QUEUES, Mechanism, Refusal, backing};
use usring_sys::Errno;
use usring_vhost_user::VhostUser;

/// The errno of opening the kernel's swap space for writing.
const ETXTBSY: Errno = Errno::new(26);

/// Default of `min=`: the least size of a mapping that is swapped, in bytes.
const MINIMUM: usize = 1 << 20;

/// The value of `--swap`.
#[derive(Clone)]
pub struct SwapOption {
    spec: Spec,
    limit: usize,
    minimum: usize,
    mechanism: Option<Mechanism>,
}

/// Results of the checks that precede the program's start.
pub struct Checked {
    mechanism: Mechanism,
    /// Whether another process serves the store. Then the launcher stays to keep the connection.
    pub is_remote: bool,
}

/// Parses the option's value. The error is one sentence for the user.
pub fn parse(text: &str) -> Result<SwapOption, String> {
    let (mut limit, mut minimum, mut mechanism) = (None, None, None);
    let mut rest = Vec::new();
    for part in parts(text) {
        match part.split_once('=') {
            Some((name @ "limit", value)) => once(&mut limit, name, bytes(name, value, LEAST_LIMIT)?)?,
            Some((name @ "min", value)) => once(&mut minimum, name, bytes(name, value, LEAST_MINIMUM)?)?,
            Some((name @ "mechanism", value)) => once(&mut mechanism, name, mechanism_of(value)?)?,
            _ => rest.push(part),
        }
    }
    let of_swap = "limit=, min= and mechanism= are options of --swap itself";
    let spec = spec::parse(&rest.join(",")).map_err(|error| format!("{error}; {of_swap}"))?;
    let limit =
        limit.ok_or("limit= is missing: add the amount of memory that may be resident, for example limit=256M")?;
    let spec = spec.with_paths(absolute)?;
    Ok(SwapOption { spec, limit, minimum: minimum.unwrap_or(MINIMUM), mechanism })
}

/// Splits the text at commas, except commas in parentheses and those that follow a backslash.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut is_escaped) = (Vec::new(), 0, 0, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn once<T>(place: &mut Option<T>, name: &str, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{name}= is repeated")),
    }
}

fn bytes(name: &str, value: &str, least: usize) -> Result<usize, String> {
    let bytes = spec::size(value).and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| format!("{name}={value} is not a size; write it like {name}=256M"))?;
    if bytes < least {
        return Err(format!("{name}={value} is too small: {name} must be at least {}K", least >> 10));
    }
    Ok(bytes)
}

fn mechanism_of(name: &str) -> Result<Mechanism, String> {
    let known = || Mechanism::ALL.map(Mechanism::name).join(", ");
    Mechanism::of_name(name).ok_or_else(|| format!("mechanism={name} is unknown; the mechanisms are {}", known()))
}

impl SwapOption {
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Checks in advance what each process of the run will do: opening the backing store and using
    /// the mechanism.
    pub fn check(&self) -> Result<Checked, Failure> {
        let checked =
            Checked { mechanism: self.works()?, is_remote: vhost_user::Options::of(self.spec.device()).is_some() };
        if !checked.is_remote {
            self.check_store(Box::new(OwnSupply), checked.mechanism)?;
        }
        Ok(checked)
    }

    /// Connects to the store's back end. Returns `None` if the store has none.
    pub fn connect(&self, checked: &Checked) -> Result<Option<VhostUser>, Failure> {
        let Some(options) = vhost_user::Options::of(self.spec.device()) else { return Ok(None) };
        let back_end = connect(&options, "swap".into())?;
        self.check_store(back_end.supply(), checked.mechanism)?;
        Ok(Some(back_end))
    }

    fn check_store(&self, supply: Box<dyn Supply>, mechanism: Mechanism) -> Result<(), Failure> {
        let (geometry, capacity) = backing::try_out(&self.spec, supply).map_err(|refusal| self.refused(refusal))?;
        if geometry.queues < LEAST_QUEUES {
            return Err(Failure::new(format!(
                "{} has {} of the {LEAST_QUEUES} queues that swapped memory needs; start its back end with \
                 num-queues={LEAST_QUEUES} or more",
                self.spec, geometry.queues
            )));
        }
        let (store, limit) = least(capacity, self.limit, mechanism);
        if capacity < store {
            let size = geometry.size;
            return Err(Failure::new(format!("{} has {size} bytes, less than a header and a page need", self.spec)));
        }
        if self.limit < limit {
            let name = mechanism.name();
            return Err(Failure::new(format!(
                "with a store as large as {}, the mechanism {name} moves much memory at a time: it needs at least limit={}M",
                self.spec,
                limit >> 20
            )));
        }
        Ok(())
    }

    /// Returns the mechanism that the processes will use. Fails if it does not work here.
    fn works(&self) -> Result<Mechanism, Failure> {
        let Some(mechanism) = self.mechanism else {
            let works = Mechanism::BY_ITSELF.into_iter().find(|kind| usring_swap::probe(*kind).is_ok());
            return works.ok_or_else(|| Failure::new("no mechanism of swap works here; `usring doctor` says why"));
        };
        usring_swap::probe(mechanism).map(|()| mechanism).map_err(|error| {
            let name = mechanism.name();
            Failure::new(format!(
                "mechanism={name} does not work here ({error}); `usring doctor` lists the mechanisms that work"
            ))
        })
    }

    fn refused(&self, refusal: Refusal) -> Failure {
        match (refusal, self.spec.device().text("path")) {
            (Refusal::Failed(error), _) => self.cannot_be_opened(error),
            (refusal, Some(path)) => Failure::new(refusal.of(&path).to_string()),
            (refusal, None) => Failure::new(refusal.of(&self.spec).to_string()),
        }
    }

    fn cannot_be_opened(&self, error: Errno) -> Failure {
        let Some(path) = self.spec.device().text("path") else {
            return Failure::new(format!("cannot open {} for swapped memory ({error})", self.spec));
        };
        let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
        let make = "make a file as large as the memory to be swapped, with `truncate -s 8G";
        Failure::new(match error {
            Errno::ENOENT => format!("{path} does not exist; {make} {path}`"),
            Errno::EISDIR => format!("{path} is a folder; {make} {path}/swap`"),
            Errno::EINVAL if is_file => format!("{path} is too small to hold a page; {make} swap`"),
            Errno::EINVAL => format!("{path} is neither a file nor a block device; {make} swap`"),
            ETXTBSY => format!("{path} is swap space that the kernel uses; run `swapoff {path}` first"),
            Errno::EACCES | Errno::EPERM => {
                format!("{path} cannot be written to ({error}); choose a file that you can write to")
            }
            _ => format!("cannot open {} for swapped memory ({error})", self.spec),
        })
    }

    /// Returns the option as text for the library (`USRING_SWAP`).
    pub fn text(&self, statistics: Option<&CountedFile>) -> String {
        let mechanism = self.mechanism.map_or("-", Mechanism::name);
        let path = statistics.map_or("-".into(), CountedFile::path);
        format!("{} {} {mechanism} {path} {}", self.limit, self.minimum, self.spec)
    }
}

/// A memory file (memfd) in which the program's processes count.
pub struct CountedFile(File);

impl CountedFile {
    pub fn create() -> Result<CountedFile, Failure> {
        let create = || {
            let file =
                File::from(memfd_create(c"usring-swap-statistics", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?);
            file.set_len(run::SIZE as u64)?;
            Ok(file)
        };
        create().map(CountedFile).map_err(|error: io::Error| {
            Failure::new(format!("cannot make the file for --stats ({error}); run without --stats"))
        })
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Returns the counts so far: a line for each process that had swapped memory.
    pub fn read(&self) -> io::Result<Report> {
        let mut bytes = vec![0; run::SIZE];
        self.0.read_exact_at(&mut bytes, 0)?;
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        run::sums(&words).map(Report).map_err(|error| io::Error::other(error.to_string()))
    }
}

/// The counters of the processes of a run, one entry per process.
pub struct Report(Vec<run::Sums>);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return writeln!(f, "usring: swap: the program mapped no memory that usring swaps");
        }
        for sums in &self.0 {
            let kibibytes = |pages: u64| (pages * sums.page_size) >> 10;
            writeln!(
                f,
                "usring: swap: limit {} KiB, resident at most {} KiB; pages of {} KiB: {} first touched, {} read back by \
                 their thread, {} ahead of it, {} evicted, {} written, {} above the limit",
                kibibytes(sums.limit),
                kibibytes(sums.peak),
                sums.page_size >> 10,
                sums.first_touches,
                sums.swap_ins,
                sums.read_ahead,
                sums.evicted,
                sums.written,
                sums.over_limit,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_swap_are_removed_from_the_device_text() {
        let option = parse("file:path=/tmp/a\\,b,limit=8M,size=1G,min=256K,mechanism=guard").unwrap();
        assert_eq!(option.text(None), "8388608 262144 guard - file:path=/tmp/a\\,b,size=1G");
        let option = parse("delay(ram:size=1G,read=uniform(1us,2us)),limit=256M").unwrap();
        assert!(option.text(None).starts_with("268435456 1048576 - - delay(ram:size=1G,"));
    }

    #[test]
    fn error_messages_name_the_wrong_option() {
        let wrong = |text: &str| parse(text).err().unwrap_or_else(|| panic!("{text} is right"));
        assert!(wrong("ram:size=1G").contains("limit= is missing"));
        assert!(wrong("ram:size=1G,limit=1K").contains("at least 4096K"));
        assert!(wrong("ram:size=1G,limit=8M,limit=16M").contains("limit= is repeated"));
        assert!(wrong("ram:size=1G,limit=8M,min=1M,min=1M").contains("min= is repeated"));
        assert!(wrong("ram:size=1G,limit=x").contains("is not a size"));
        assert!(wrong("ram:size=1G,limit=8M,min=4K").contains("at least 128K"));
        assert!(wrong("ram:size=1G,limit=8M,mechanism=magic").contains("userfault, guard"));
        assert!(wrong("ram,limit=8M").contains("an option should be"));
    }
}
