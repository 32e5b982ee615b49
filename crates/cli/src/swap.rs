//! `usring run --swap SPEC,limit=SIZE`: checks the option, makes the text that passes the option to
//! the program's processes, and reports the counts of their swapped memory. Each process opens the
//! backing store itself (`usring_swap::mappings`).

use super::Failure;
use super::devices::{absolute, connect};
use crate::memory_file;
use crate::system_error::words;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use usring_device::driver::vhost_user;
use usring_device::{OwnSupply, Spec, Supply};
use usring_swap::counters::run;
use usring_swap::mappings::minimum_sizes;
use usring_swap::text::{self, SwapText};
use usring_swap::{LEAST_QUEUES, Mechanism, Refusal, backing};
use usring_sys::Errno;
use usring_vhost_user::VhostUser;

/// The errno of an open(2) for writing if the kernel uses the file as swap space.
const ETXTBSY: Errno = Errno::new(26);

/// The value of `--swap`, with absolute paths.
#[derive(Clone)]
pub struct SwapOption(SwapText);

/// Results of the checks that precede the program's start.
pub struct Checked {
    mechanism: Mechanism,
    /// Whether another process serves the backing store. The launcher then stays to keep the
    /// connection to that process.
    pub is_remote: bool,
}

/// Parses the option's value. Its paths become absolute, because a process of the run may be in
/// another folder. The error is one sentence for the user.
pub fn parse(value: &str) -> Result<SwapOption, String> {
    let parsed = text::parse(value)?;
    Ok(SwapOption(SwapText { spec: parsed.spec.with_paths(absolute)?, ..parsed }))
}

impl SwapOption {
    pub fn spec(&self) -> &Spec {
        &self.0.spec
    }

    /// Checks in advance that each process of the run will be able to use the mechanism. Unless a
    /// back end has the store, also checks that each process will be able to open the store.
    pub fn check(&self) -> Result<Checked, Failure> {
        let checked =
            Checked { mechanism: self.works()?, is_remote: vhost_user::Options::of(self.0.spec.device()).is_some() };
        if !checked.is_remote {
            self.check_store(Box::new(OwnSupply), checked.mechanism)?;
        }
        Ok(checked)
    }

    /// Connects to the back end of the backing store. Returns `None` if the store has no back end.
    pub fn connect(&self, checked: &Checked) -> Result<Option<VhostUser>, Failure> {
        let Some(options) = vhost_user::Options::of(self.0.spec.device()) else { return Ok(None) };
        let back_end = connect(&options, "swap".into())?;
        self.check_store(back_end.supply(), checked.mechanism)?;
        Ok(Some(back_end))
    }

    fn check_store(&self, supply: Box<dyn Supply>, mechanism: Mechanism) -> Result<(), Failure> {
        let (geometry, capacity) = backing::try_out(&self.0.spec, supply).map_err(|refusal| self.refused(refusal))?;
        if geometry.queues < LEAST_QUEUES {
            return Err(Failure::new(format!(
                "{} has {} of the {LEAST_QUEUES} queues that swapped memory needs; start its back end with \
                 num-queues={LEAST_QUEUES} or more",
                self.0.spec, geometry.queues
            )));
        }
        let (store, limit) = minimum_sizes(capacity, self.0.limit, mechanism);
        if capacity < store {
            let size = geometry.size;
            return Err(Failure::new(format!(
                "{} has {size} bytes, less than a header and a page need; use a larger store",
                self.0.spec
            )));
        }
        if self.0.limit < limit {
            let name = mechanism.name();
            return Err(Failure::new(format!(
                "with a store as large as {}, the mechanism {name} moves much memory at a time: it needs at least limit={}M",
                self.0.spec,
                limit >> 20
            )));
        }
        Ok(())
    }

    /// Returns the mechanism that the processes will use. Fails if it does not work here.
    fn works(&self) -> Result<Mechanism, Failure> {
        let Some(mechanism) = self.0.mechanism else {
            let works = Mechanism::BY_ITSELF.into_iter().find(|kind| usring_swap::probe(*kind).is_ok());
            return works.ok_or_else(|| Failure::new("no mechanism of swap works here; `usring doctor` says why"));
        };
        usring_swap::probe(mechanism).map(|()| mechanism).map_err(|error| {
            let name = mechanism.name();
            Failure::new(format!(
                "mechanism={name} does not work here ({error}); `usring doctor` lists the mechanisms that work",
                error = words(&error)
            ))
        })
    }

    fn refused(&self, refusal: Refusal) -> Failure {
        match (refusal, self.0.spec.device().text("path")) {
            (Refusal::Failed(error), _) => self.cannot_be_opened(error),
            (refusal, Some(path)) => Failure::new(refusal.message(&path).to_string()),
            (refusal, None) => Failure::new(refusal.message(&self.0.spec).to_string()),
        }
    }

    fn cannot_be_opened(&self, error: Errno) -> Failure {
        let Some(path) = self.0.spec.device().text("path") else {
            return Failure::new(format!(
                "cannot open {} for swapped memory ({error})",
                self.0.spec,
                error = words(&error)
            ));
        };
        let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
        let make = "make a file as large as the memory to be swapped, with `truncate -s 8G";
        Failure::new(match error {
            Errno::ENOENT => {
                format!(
                    "{path} does not exist; with size= and create=on, usring makes it, as large as the memory to be swapped"
                )
            }
            Errno::EISDIR => format!("{path} is a folder; {make} {path}/swap`"),
            Errno::EINVAL if is_file => format!("{path} is too small to hold a page; {make} swap`"),
            Errno::ENOSPC if is_file => {
                format!("{path} is smaller than size= says; with create=on, usring makes it longer")
            }
            Errno::EINVAL => format!("{path} is neither a file nor a block device; {make} swap`"),
            ETXTBSY => format!("{path} is swap space that the kernel uses; run `swapoff {path}` first"),
            Errno::EACCES | Errno::EPERM => {
                format!(
                    "{path} cannot be written to ({error}); choose a file that you can write to",
                    error = words(&error)
                )
            }
            _ => format!("cannot open {} for swapped memory ({error})", self.0.spec, error = words(&error)),
        })
    }

    /// Returns the option as text for the library (`USRING_SWAP`).
    pub fn text(&self) -> String {
        self.0.to_string()
    }
}

/// A memory file (memfd) in which the program's processes count what their swapped memory does.
pub struct CountedFile(File);

impl CountedFile {
    pub fn create() -> Result<CountedFile, Failure> {
        let created = memory_file::sealed(c"usring-swap-statistics", run::SIZE as u64);
        created.map(CountedFile).map_err(|error: io::Error| {
            Failure::new(format!(
                "cannot make the memory for the counts of --stats ({error}); run without --stats",
                error = words(&error)
            ))
        })
    }

    /// Returns a path in /proc by which the program's processes open the file of counts.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Returns the counts of swapped memory so far: a line for each process that has had swapped
    /// memory.
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
