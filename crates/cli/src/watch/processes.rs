//! The processes that usring serves, from /proc.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A process into which the library is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub id: u32,
    /// Its process id in its own PID namespace, which is the id that the library knows.
    pub inner_id: u32,
    /// Its name, as in /proc/PID/comm.
    pub name: String,
    pub library: PathBuf,
    /// The statistics file that it has mapped.
    pub statistics: Option<Mapping>,
    /// When it began, in clock ticks since the system's start. A later process with the same id
    /// has another value.
    pub began: u64,
    /// Processor time of all its threads, in clock ticks.
    pub processor: u64,
}

/// A mapping of a file, as /proc/PID/maps describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First and last address, as in the name of the file in /proc/PID/map_files.
    pub range: String,
    /// Device and inode. All processes with the file have the same value.
    pub file: String,
    /// Path of the file; for a memory file, `/memfd:NAME (deleted)`.
    pub path: String,
}

impl Process {
    /// Returns the processor time of all its threads.
    pub fn processor_time(&self) -> Duration {
        // Linux reports times to programs in ticks of 10 ms (USER_HZ).
        Duration::from_millis(self.processor * 10)
    }
}

/// Name of the launcher's statistics file, as /proc shows it.
pub const LAUNCHER_FILE: &str = "/memfd:usring-statistics (deleted)";

/// Returns all processes with the library that this user may look into, by their ids.
pub fn find() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<_> = ids.filter_map(read).collect();
    found.sort_by_key(|process| process.id);
    found
}

/// Returns the process with this id. `None`: there is none, it has not loaded the library, or this
/// user may not look into it.
pub fn read(id: u32) -> Option<Process> {
    let file = |name: &str| fs::read_to_string(format!("/proc/{id}/{name}")).ok();
    let mappings = file("maps")?;
    let (library, statistics) = in_maps(&mappings)?;
    let (began, processor) = times(&file("stat")?)?;
    let inner_id = inner_id(&file("status")?).unwrap_or(id);
    let name = file("comm")?.trim_end().to_owned();
    Some(Process { id, inner_id, name, library, statistics, began, processor })
}

/// Returns the ids of a process's ancestors, the nearest first.
pub fn ancestors(id: u32) -> impl Iterator<Item = u32> {
    let parent = |id: &u32| {
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        field(&status, "PPid:")?.parse().ok().filter(|parent| *parent != 0)
    };
    // A process has few ancestors. The limit ends the walk if ids are used again meanwhile.
    std::iter::successors(Some(id), parent).skip(1).take(64)
}

/// Returns the library and the statistics file among a process's mappings. `None`: the process has
/// no mapping of the library.
fn in_maps(maps: &str) -> Option<(PathBuf, Option<Mapping>)> {
    let mut library = None;
    let mut statistics = None;
    for mapping in maps.lines().filter_map(mapping) {
        if library.is_none() && is_library(&mapping.path) {
            library = Some(PathBuf::from(&mapping.path));
        } else if statistics.is_none() && is_statistics(&mapping.path) {
            statistics = Some(mapping);
        }
    }
    Some((library?, statistics))
}

/// Reads a line of /proc/PID/maps. `None`: the line names no file.
fn mapping(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut next = || {
        let (word, after) = rest.split_once(' ')?;
        rest = after.trim_start();
        Some(word)
    };
    let (range, _, _, device, inode) = (next()?, next()?, next()?, next()?, next()?);
    rest.starts_with('/').then(|| Mapping {
        range: range.to_owned(),
        file: format!("{device}/{inode}"),
        path: rest.to_owned(),
    })
}

/// Returns whether a path is the library's: `libusring.so`, or `libusring.so.VERSION`.
fn is_library(path: &str) -> bool {
    let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name == "libusring.so" || name.starts_with("libusring.so.")
}

/// Returns whether the file is a statistics file: the launcher's by its name, a user's by its first
/// word.
fn is_statistics(path: &str) -> bool {
    path == LAUNCHER_FILE || super::counts::begins_as_statistics(Path::new(path))
}

/// Returns the time of the process's start and its processor time from the text of /proc/PID/stat,
/// both in clock ticks.
fn times(stat: &str) -> Option<(u64, u64)> {
    // The second field, the name, is in parentheses and may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // The numbers are those of proc_pid_stat(5): user time 14, system time 15, start 22.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some((field(22)?, field(14)? + field(15)?))
}

/// Returns the process's id in its own PID namespace, from the text of /proc/PID/status.
fn inner_id(status: &str) -> Option<u32> {
    field(status, "NSpid:")?.split_whitespace().last()?.parse().ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_and_the_statistics_file_are_found_in_the_mappings() {
        let maps = "\
7f3310be8000-7f33117f1000 rw-s 00000000 00:01 205880                     /memfd:usring-statistics (deleted)
7f33119fd000-7f33119fe000 rw-p 00000000 00:00 0
7f3311a00000-7f3311a4a000 r--p 00000000 fe:00 5311575                    /opt/my tools/libusring.so.0.1
7f3311a4a000-7f3311bf8000 r-xp 00049000 fe:00 5311575                    /opt/my tools/libusring.so.0.1
";
        let statistics = Mapping {
            range: "7f3310be8000-7f33117f1000".into(),
            file: "00:01/205880".into(),
            path: LAUNCHER_FILE.into(),
        };
        assert_eq!(in_maps(maps), Some(("/opt/my tools/libusring.so.0.1".into(), Some(statistics))));
        assert_eq!(in_maps("7f0000000000-7f0000001000 r--p 00000000 fe:00 17 /lib/libusring.sorted\n"), None);
    }

    #[test]
    fn the_times_are_read_behind_a_name_with_parentheses() {
        let stat = "17 (a) b) S 1 17 17 0 -1 4194304 102 0 0 0 70 5 0 0 20 0 1 0 388201 3133440 409";
        assert_eq!(times(stat), Some((388_201, 75)));
    }

    #[test]
    fn the_inner_id_is_that_of_the_innermost_namespace() {
        assert_eq!(inner_id("Name:\ta\nNSpid:\t4711\t12\t3\n"), Some(3));
        assert_eq!(inner_id("Name:\ta\n"), None);
    }

    #[test]
    fn a_process_without_the_library_is_not_found() {
        assert_eq!(read(std::process::id()), None);
        assert_eq!(ancestors(std::process::id()).next(), Some(std::os::unix::process::parent_id()));
    }
}
