//! The processes that usring serves, from /proc.

use super::counts;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A process into which the library is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub id: u32,
    /// The process's id in its own PID namespace. The library writes this id to the statistics
    /// file.
    pub inner_id: u32,
    /// The process's name from /proc/PID/comm, without control characters: a program can choose any
    /// name, and usring prints it on a terminal.
    pub name: String,
    pub library: PathBuf,
    /// The statistics file that the process has mapped.
    pub statistics: Option<Mapping>,
    /// When the process began, in clock ticks since the system's start. A later process with the
    /// same id has another value.
    pub began: u64,
    /// Processor time of all threads of the process, in clock ticks.
    pub processor: u64,
}

/// A mapping of a file, as /proc/PID/maps describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses at which the file is mapped, in the form of the names in /proc/PID/map_files.
    pub range: String,
    /// Device and inode of the mapped file. They are the same in all processes that have mapped it.
    pub file: String,
    /// Path of the mapped file; for a memory file, `/memfd:NAME (deleted)`.
    pub path: String,
}

impl Process {
    /// Returns the processor time of all threads of the process.
    pub fn processor_time(&self) -> Duration {
        // Linux reports times to programs in ticks of 10 ms (USER_HZ).
        Duration::from_millis(self.processor * 10)
    }
}

/// Name of the launcher's statistics file, as /proc shows it.
pub const LAUNCHER_FILE: &str = "/memfd:usring-statistics (deleted)";

/// Returns all processes that have loaded libusring.so and whose files in /proc this user may read,
/// sorted by their ids.
pub fn find() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<_> = ids.filter_map(read).collect();
    found.sort_by_key(|process| process.id);
    found
}

/// Returns the process with this id. `None`: there is none, it has not loaded libusring.so, or this
/// user may not read its files in /proc.
pub fn read(id: u32) -> Option<Process> {
    let maps = text(id, "maps")?;
    let library = library(&maps)?;
    let statistics = shared_files(&maps).find(|mapping| counts::is_statistics(id, mapping));
    let (began, processor) = times(&text(id, "stat")?)?;
    let inner_id = inner_id(&text(id, "status")?).unwrap_or(id);
    let name = printable(text(id, "comm")?.trim_end_matches('\n'));
    Some(Process { id, inner_id, name, library, statistics, began, processor })
}

/// Returns the text of a file of /proc/PID. Names in the text may contain any bytes. Bytes that are
/// no UTF-8 become `�`.
fn text(id: u32, name: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/{id}/{name}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Replaces control characters by `?`.
fn printable(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { '?' } else { it }).collect()
}

/// Returns the ids of a process's ancestors, the nearest first.
pub fn ancestors(id: u32) -> impl Iterator<Item = u32> {
    let parent = |id: &u32| field(&text(*id, "status")?, "PPid:")?.parse().ok().filter(|parent| *parent != 0);
    // A process has few ancestors. The limit ends a search that goes in a circle, because the
    // system has reused process ids meanwhile.
    std::iter::successors(Some(id), parent).skip(1).take(64)
}

/// Returns the path of libusring.so in the text of /proc/PID/maps. `None`: it is not mapped.
fn library(maps: &str) -> Option<PathBuf> {
    let paths = maps.lines().filter_map(mapping).map(|(_, mapping)| mapping.path);
    paths.map(PathBuf::from).find(|path| is_library(path))
}

/// Returns the files that the process has mapped in the way in which usring maps a statistics file:
/// shared and writable.
fn shared_files(maps: &str) -> impl Iterator<Item = Mapping> {
    let mappings = maps.lines().filter_map(mapping);
    mappings.filter(|(permissions, _)| *permissions == "rw-s").map(|(_, mapping)| mapping)
}

/// Reads a line of /proc/PID/maps: the permissions and the mapping. `None`: the line names no file.
fn mapping(line: &str) -> Option<(&str, Mapping)> {
    let mut rest = line;
    let mut next = || {
        let (word, after) = rest.split_once(' ')?;
        rest = after.trim_start();
        Some(word)
    };
    let (range, permissions, _, device, inode) = (next()?, next()?, next()?, next()?, next()?);
    let mapping = || Mapping { range: range.to_owned(), file: format!("{device}/{inode}"), path: rest.to_owned() };
    rest.starts_with('/').then(|| (permissions, mapping()))
}

/// Returns whether a path is the library's: `libusring.so`, or `libusring.so.VERSION`.
fn is_library(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name == "libusring.so" || name.starts_with("libusring.so.")
}

/// Returns the time of the process's start and its processor time from the text of /proc/PID/stat,
/// both in clock ticks.
fn times(stat: &str) -> Option<(u64, u64)> {
    // The second field of /proc/PID/stat, the name, is in parentheses and may contain any
    // character.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // The field numbers are those of proc_pid_stat(5): user time 14, system time 15, start 22.
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
        assert_eq!(library(maps), Some("/opt/my tools/libusring.so.0.1".into()));
        assert_eq!(shared_files(maps).collect::<Vec<_>>(), [statistics]);
        assert_eq!(library("7f0000000000-7f0000001000 r--p 00000000 fe:00 17 /lib/libusring.sorted\n"), None);
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(printable("a\x1b[2J\u{9b}b\tc"), "a?[2J?b?c");
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
