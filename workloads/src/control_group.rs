//! A memory control group for tests, if the process may make one. The kernel limits the memory that
//! the group's processes use together. If the kernel cannot free enough memory, it kills one of the
//! processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A control group. Dropping it removes the group, which must have no process left.
pub struct ControlGroup {
    path: PathBuf,
}

impl ControlGroup {
    /// Makes a group with a limit of `bytes` as a child of this process's group. The error says in
    /// words why no group can be made.
    pub fn make(bytes: usize) -> Result<ControlGroup, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("usring-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let groups = read(Path::new("/proc/self/cgroup"))?;
        // Finds this process's memory group. In cgroup version 1, the controller `memory` has a
        // hierarchy of its own.
        let own = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|controller| controller == "memory").then_some(path)
        });
        let (parent, file) = match own {
            Some(own) => (Path::new("/sys/fs/cgroup/memory").join(&own[1..]), "memory.limit_in_bytes"),
            None => (PathBuf::from("/sys/fs/cgroup"), "memory.max"),
        };
        let path = parent.join(name);
        fs::create_dir(&path).map_err(|error| format!("no memory control group: {}: {error}", path.display()))?;
        let group = ControlGroup { path };
        write(&group.path.join(file), &bytes.to_string())?;
        Ok(group)
    }

    /// Keeps the memory of the group's processes out of the system's swap, if the kernel has such a
    /// setting.
    pub fn without_swap(self) -> ControlGroup {
        let limit = read(&self.path.join("memory.limit_in_bytes")).unwrap_or_default();
        let _ = write(&self.path.join("memory.memsw.limit_in_bytes"), limit.trim());
        let _ = write(&self.path.join("memory.swap.max"), "0");
        self
    }

    /// Returns the path of the group's `cgroup.procs`. A process joins the group by writing 0 to
    /// it.
    pub fn members(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Moves the calling process into the group whose `cgroup.procs` is at `members`.
    pub fn enter(members: &Path) -> Result<(), String> {
        write(members, "0")
    }

    /// Returns the group's peak memory use in bytes, if the kernel reports it.
    pub fn peak(&self) -> Option<u64> {
        let files = ["memory.max_usage_in_bytes", "memory.peak"];
        files.iter().find_map(|file| read(&self.path.join(file)).ok()?.trim().parse().ok())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
