//! A memory control group of our own, where one may be made: what its processes use
//! together is bounded by the kernel, who kills one of them where nothing can be freed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Gone when this is dropped, which is after its last process.
pub struct ControlGroup {
    path: PathBuf,
}

impl ControlGroup {
    /// For so many bytes, below the group that we are in. Errors: why there is none, in words.
    pub fn make(bytes: usize) -> Result<ControlGroup, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("usring-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let groups = read(Path::new("/proc/self/cgroup"))?;
        // Version 1: a hierarchy of its own.
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

    /// The system's swap is not for its processes, as far as the kernel can say so.
    pub fn without_swap(self) -> ControlGroup {
        let limit = read(&self.path.join("memory.limit_in_bytes")).unwrap_or_default();
        let _ = write(&self.path.join("memory.memsw.limit_in_bytes"), limit.trim());
        let _ = write(&self.path.join("memory.swap.max"), "0");
        self
    }

    /// The file to which a process writes 0 to be one of it.
    pub fn members(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// By its path: puts the calling process into it.
    pub fn enter(members: &Path) -> Result<(), String> {
        write(members, "0")
    }

    /// Most bytes that were ever used, where the kernel tells.
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
