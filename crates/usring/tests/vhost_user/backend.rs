//! Starts a real vhost-user back end: Debian's qemu-storage-daemon, with a file as its image.

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use usring_device::driver::vhost_user::Options;
use usring_device::spec;
use usring_device::{Driver, QueueOptions, QueuePair};
use usring_vhost_user::VhostUser;

/// Longest time that a step of a test may wait.
pub const LIMIT: Duration = Duration::from_secs(60);

pub struct Backend {
    daemon: Option<Child>,
    folder: tempfile::TempDir,
    format: &'static str,
    queues: u32,
}

impl Backend {
    pub fn start(format: &'static str, size: u64, queues: u32) -> Backend {
        let daemon = Path::new("/usr/bin/qemu-storage-daemon");
        assert!(daemon.exists(), "it is missing; as root: apt-get install qemu-system-common");
        let folder = tempfile::tempdir().unwrap();
        let mut backend = Backend { daemon: None, folder, format, queues };
        let image = backend.image();
        if format == "raw" {
            File::create(&image).unwrap().set_len(size).unwrap();
        } else {
            let mut make = Command::new("qemu-img");
            make.args(["create", "-q", "-f", format]).arg(&image).arg(size.to_string());
            assert!(make.status().unwrap().success());
        }
        backend.restart();
        backend
    }

    pub fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    pub fn socket(&self) -> String {
        self.folder.path().join("socket").to_str().unwrap().to_owned()
    }

    /// Starts a new daemon with the previous daemon's image and socket.
    pub fn restart(&mut self) {
        let _ = std::fs::remove_file(self.socket());
        let image = self.image();
        // Syncs of the file are left out, because the data need not survive a crash of the machine.
        let file = format!("driver=file,node-name=file,filename={},discard=unmap,cache.no-flush=on", image.display());
        let node = format!("driver={},node-name=node,file=file,discard=unmap,cache.no-flush=on", self.format);
        let export = format!(
            "type=vhost-user-blk,id=export,node-name=node,addr.type=unix,addr.path={},writable=on,num-queues={},writethrough={}",
            self.socket(),
            self.queues,
            // With qcow2 every write goes through to the image. Otherwise the daemon would cache
            // qcow2's tables, and a kill would lose them.
            if self.format == "qcow2" { "on" } else { "off" },
        );
        let daemon = Command::new("qemu-storage-daemon")
            .args(["--blockdev", &file, "--blockdev", &node, "--export", &export])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        self.daemon = Some(daemon);
        let start = Instant::now();
        while !listens(&self.socket()) {
            assert!(start.elapsed() < LIMIT, "the back end does not listen");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops the daemon by SIGSTOP. It then exists but answers nothing.
    pub fn stop(&self) {
        let daemon = Pid::from_raw(self.daemon.as_ref().unwrap().id().cast_signed());
        kill(daemon, Signal::SIGSTOP).unwrap();
        let stopped = waitpid(daemon, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(stopped, WaitStatus::Stopped(daemon, Signal::SIGSTOP));
    }

    /// Kills the daemon by SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
    }

    pub fn connect(&self, options: &str) -> Device {
        Device::connect(&self.socket(), options)
    }
}

/// Returns whether a process listens on the socket, by a flag in /proc/net/unix. (A test connection
/// would be the only one that the back end serves.)
fn listens(path: &str) -> bool {
    const ACCEPTS: &str = "00010000";
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    sockets.lines().any(|line| line.ends_with(path) && line.split_whitespace().nth(3) == Some(ACCEPTS))
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A device's driver and its control plane, both in this process.
pub struct Device {
    pub driver: Box<dyn Driver>,
    pub control: VhostUser,
    /// Receives the messages that the control plane has for the user.
    pub messages: std::sync::mpsc::Receiver<String>,
}

impl Device {
    pub fn connect(socket: &str, options: &str) -> Device {
        let spec = spec::parse(&format!("vhost-user:socket={socket}{options}")).unwrap();
        let (sentences, messages) = std::sync::mpsc::channel();
        let report = Box::new(move |sentence: std::fmt::Arguments<'_>| {
            let _ = sentences.send(sentence.to_string());
        });
        let control = VhostUser::connect(&Options::of(spec.device()).unwrap(), report).unwrap();
        let driver = spec.open(control.supply()).unwrap();
        Device { driver, control, messages }
    }

    pub fn queue(&self, interrupts: bool) -> Box<dyn QueuePair> {
        self.driver.open_queue(QueueOptions { depth: 128, interrupts }).unwrap()
    }
}
