//! The counters of served processes, read from the statistics file that they have mapped.

use super::processes::{LAUNCHER_FILE, Mapping, Process, ancestors};
use crate::statistics::{RingCounts, Snapshot, StatisticsFile};
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The open statistics files, by device and inode.
#[derive(Default)]
pub struct Files(BTreeMap<String, Option<StatisticsFile>>);

/// The counts of one statistics file at one moment.
pub struct Reading {
    /// The sums over all rings, the closed ones included.
    pub sums: Snapshot,
    /// The counts of each open ring.
    pub rings: Vec<RingCounts>,
}

/// Returns whether a mapped file of a process is a statistics file. Recognises the launcher's file
/// by its name, and a user's file by its first word.
pub fn is_statistics(process: u32, mapping: &Mapping) -> bool {
    mapping.path == LAUNCHER_FILE
        || open_mapped(&in_root_of(process, mapping), mapping).is_ok_and(|file| file.begins_as_one().unwrap_or(false))
}

/// Opens the file at `path` if it is the file that `mapping` maps. Does not open any other file.
fn open_mapped(path: &Path, mapping: &Mapping) -> io::Result<StatisticsFile> {
    StatisticsFile::open_mapped(path, |found| is_mapped(found, mapping))
}

/// Returns whether a file has the device and inode of a mapping.
fn is_mapped(found: &Metadata, mapping: &Mapping) -> bool {
    let (major, minor) = (nix::sys::stat::major(found.dev()), nix::sys::stat::minor(found.dev()));
    let Some((device, inode)) = mapping.file.split_once('/') else { return false };
    // A device with the major number 0 is not compared: on btrfs and overlayfs, stat(2) shows
    // another device number than /proc/PID/maps.
    inode == found.ino().to_string() && (major == 0 || device == format!("{major:02x}:{minor:02x}"))
}

/// Returns the path of a mapped file in the process's root folder, which may be a container's.
fn in_root_of(process: u32, mapping: &Mapping) -> PathBuf {
    PathBuf::from(format!("/proc/{process}/root{}", mapping.path))
}

impl Files {
    /// Opens the statistics files that these processes have mapped, unless they are open already.
    /// Closes the files that none of these processes has mapped.
    pub fn update(&mut self, processes: &[Process]) {
        let mapped = |process: &Process| process.statistics.clone().map(|mapping| (mapping.file, process.id));
        let wanted: Vec<_> = processes.iter().filter_map(mapped).collect();
        self.0.retain(|file, _| wanted.iter().any(|(wanted, _)| wanted == file));
        for process in processes {
            if let Some(mapping) = &process.statistics {
                let known = self.0.entry(mapping.file.clone()).or_default();
                if known.is_none() {
                    *known = open(process.id, mapping);
                }
            }
        }
    }

    /// Reads all files. A file that cannot be read is left out.
    pub fn read(&self) -> BTreeMap<String, Reading> {
        let open = self.0.iter().filter_map(|(key, file)| Some((key, file.as_ref()?)));
        let read = |(key, file): (&String, &StatisticsFile)| {
            Some((key.clone(), Reading { sums: file.read().ok()?, rings: file.read_rings().ok()? }))
        };
        open.filter_map(read).collect()
    }
}

/// Opens the statistics file that a process has mapped. `None`: this user may not open it, or it
/// has the layout of another build.
fn open(process: u32, mapping: &Mapping) -> Option<StatisticsFile> {
    let paths = if mapping.path == LAUNCHER_FILE {
        // Only privileged users may open files in /proc/PID/map_files. For other users, this
        // function searches the process's ancestors for the launcher, whose /proc/PID/fd has the
        // file, too.
        let mut paths = vec![PathBuf::from(format!("/proc/{process}/map_files/{}", mapping.range))];
        paths.extend(ancestors(process).filter_map(|ancestor| descriptor(ancestor, mapping)));
        paths
    } else {
        vec![in_root_of(process, mapping)]
    };
    let opened = paths.iter().filter_map(|path| open_mapped(path, mapping).ok());
    opened.into_iter().find(|file| file.is_valid().unwrap_or(false))
}

/// Returns the path of the descriptor by which a process holds the mapped memory file.
fn descriptor(process: u32, mapping: &Mapping) -> Option<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find(|path| {
        let is_statistics = fs::read_link(path).is_ok_and(|target| target == Path::new(LAUNCHER_FILE));
        let inode = |path| fs::metadata(path).map(|metadata| metadata.ino().to_string()).unwrap_or_default();
        is_statistics && mapping.file.ends_with(&format!("/{}", inode(path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
    use nix::sys::stat::Mode;
    use std::fs::File;
    use usring_engine::statistics::SIZE;

    fn mapping(path: &Path) -> Mapping {
        let found = fs::metadata(path).unwrap();
        let (major, minor) = (nix::sys::stat::major(found.dev()), nix::sys::stat::minor(found.dev()));
        let file = format!("{major:02x}:{minor:02x}/{}", found.ino());
        Mapping { range: "1000-2000".into(), file, path: path.display().to_string() }
    }

    /// Returns whether this module examines and opens the process's mapping without an open(2) of
    /// `target`.
    fn leaves_alone(target: &Path, mapping: &Mapping) -> bool {
        let watched = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        watched.add_watch(target, AddWatchFlags::IN_OPEN).unwrap();
        assert!(!is_statistics(std::process::id(), mapping));
        assert!(open(std::process::id(), mapping).is_none());
        watched.read_events().is_err()
    }

    #[test]
    fn only_the_mapped_statistics_file_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let [fifo, link, large, file] = ["fifo", "link", "large", "file"].map(|name| folder.path().join(name));
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        assert!(leaves_alone(&fifo, &mapping(&link)));
        File::create(&large).unwrap().set_len(SIZE as u64 + 1).unwrap();
        assert!(leaves_alone(&large, &mapping(&large)));
        // This file has the right size and content, and is at the path of the mapping. But it is
        // not the file that the process has mapped.
        let made = StatisticsFile::create().unwrap();
        fs::copy(made.path(), &file).unwrap();
        assert!(is_statistics(std::process::id(), &mapping(&file)));
        assert!(open(std::process::id(), &mapping(&file)).is_some());
        assert!(leaves_alone(&file, &Mapping { path: file.display().to_string(), ..mapping(&large) }));
    }
}
