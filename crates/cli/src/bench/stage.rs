//! Sets up a benchmark's surroundings: a folder of its own with a file, and a back end for devices.
//! Dropping the [`Stage`] removes everything.

use crate::child;
use crate::cleanup::{self, Registered};
use crate::system_error::words;
use std::fs::{self, DirBuilder};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use usring_sys::width;

/// A file or back end that a benchmark needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prop {
    /// The file `{folder}/file`, of the given size in MiB.
    File(usize),
    /// qemu-storage-daemon, which serves a device of 1 GiB at the socket `{folder}/socket`. The
    /// device stores nothing and answers at once.
    BackEnd { queues: u32 },
}

const DAEMON: &str = "qemu-storage-daemon";
const NODE: &str = "driver=null-co,node-name=node,size=1073741824,read-zeroes=off";
const LIMIT: Duration = Duration::from_secs(10);

pub struct Stage {
    folder: PathBuf,
    back_end: Option<Child>,
    missing: Option<String>,
    /// Removes the folder, also if ^C ends the benchmark.
    _removal: Registered,
}

impl Stage {
    pub fn set(props: &[Prop]) -> Result<Stage, String> {
        let folder = std::env::temp_dir().join(format!("usring-bench-{}", std::process::id()));
        let failed = |error| format!("cannot make {} ({error})", folder.display(), error = words(&error));
        DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
        let _removal = cleanup::remove(&folder);
        let mut stage = Stage { folder, back_end: None, missing: None, _removal };
        for prop in props {
            match *prop {
                Prop::File(size) => stage
                    .make_file(size)
                    .map_err(|error| format!("cannot write a file ({error})", error = words(&error)))?,
                Prop::BackEnd { queues } => {
                    if let Err(why) = stage.start_back_end(queues) {
                        stage.missing = Some(why);
                    }
                }
            }
        }
        Ok(stage)
    }

    /// Returns whether every file and back end of the benchmark could be set up. If not, a failing
    /// case is no fault of usring's.
    pub fn is_complete(&self) -> bool {
        self.missing.is_none()
    }

    /// Replaces `{folder}` by the folder's path and `{server}` by the back end's process id.
    pub fn fill_in(&self, word: &str) -> String {
        let server = self.back_end.as_ref().map_or(0, Child::id);
        word.replace("{folder}", &self.folder.to_string_lossy()).replace("{server}", &server.to_string())
    }

    fn make_file(&self, size: usize) -> std::io::Result<()> {
        let mut file = fs::File::create_new(self.folder.join("file"))?;
        for part in 0..size {
            file.write_all(&vec![width::byte(part as u64); 1 << 20])?;
        }
        file.sync_all()
    }

    fn start_back_end(&mut self, queues: u32) -> Result<(), String> {
        let socket = self.folder.join("socket");
        let export = format!(
            "type=vhost-user-blk,id=export,node-name=node,addr.type=unix,addr.path={},writable=on,num-queues={queues}",
            socket.display()
        );
        let mut command = Command::new(DAEMON);
        command.args(["--blockdev", NODE, "--export", &export]).stdin(Stdio::null()).stdout(Stdio::null());
        let daemon = child::spawn(&mut command)
            .map_err(|error| format!("cannot start {DAEMON} ({error})", error = words(&error)))?;
        self.back_end = Some(daemon);
        let start = Instant::now();
        while !listens(&socket) {
            if start.elapsed() > LIMIT {
                return Err(format!("{DAEMON} does not listen"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(back_end) = &mut self.back_end {
            let _ = back_end.kill();
            let _ = back_end.wait();
        }
    }
}

/// Returns whether a socket accepts connections, by a flag in /proc/net/unix. A test connection
/// would not do: the back end would serve that connection and no other.
fn listens(path: &Path) -> bool {
    const ACCEPTS: &str = "00010000";
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let path = path.to_string_lossy();
    sockets.lines().any(|line| line.ends_with(&*path) && line.split_whitespace().nth(3) == Some(ACCEPTS))
}
