//! The counters of served processes, read from the statistics file that they have mapped.

use super::processes::{LAUNCHER_FILE, Mapping, Process, ancestors};
use crate::statistics::{RingCounts, Snapshot, StatisticsFile};
use std::collections::BTreeMap;
use std::fs;
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

/// Returns whether a mapped file of a process is a statistics file: the launcher's by its name, and
/// a user's by its first word.
pub fn is_statistics(process: u32, mapping: &Mapping) -> bool {
    mapping.path == LAUNCHER_FILE
        || StatisticsFile::open(&in_root_of(process, mapping)).is_ok_and(|file| file.begins_as_one().unwrap_or(false))
}

/// Returns the path of a mapped file in the process's root folder, which may be a container's.
fn in_root_of(process: u32, mapping: &Mapping) -> PathBuf {
    PathBuf::from(format!("/proc/{process}/root{}", mapping.path))
}

impl Files {
    /// Opens the statistics files of these processes that are not open yet. Closes those that no
    /// process has any more.
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
        // Only privileged users may open files by map_files. Others find the launcher's descriptor.
        let mut paths = vec![PathBuf::from(format!("/proc/{process}/map_files/{}", mapping.range))];
        paths.extend(ancestors(process).filter_map(|ancestor| descriptor(ancestor, mapping)));
        paths
    } else {
        vec![in_root_of(process, mapping)]
    };
    let opened = paths.iter().filter_map(|path| StatisticsFile::open(path).ok());
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
