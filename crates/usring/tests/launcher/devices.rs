//! `usring run --device` and `usring ctl`, as a user sees them: refusals, the devices' placeholder
//! files, and the run's socket. Tests which users may access the files and the socket, and that
//! the files and the socket are gone after the program's end. (The library's own tests cover the
//! use of devices by programs.)

use crate::backend::{Backend, LIMIT};
use crate::{run, text, usring};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use usring_device::control::{Control, RemoteSupply};
use usring_device::{
    Completions, DeviceRequest, Driver, NamedFile, Operation, QueueOptions, QueuePair, Submission, Supply, spec,
};
use usring_sys::Errno;
use usring_sys::plain::IoVector;

/// A temporary folder: the working directory of each `usring run`, and the folder of their sockets.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn usring(&self, arguments: &[&str]) -> Command {
        let mut command = usring(arguments);
        command.current_dir(self.0.path()).env("XDG_RUNTIME_DIR", self.0.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.usring(&["run"]).args(arguments).output().unwrap()
    }

    fn ctl(&self, arguments: &[&str]) -> Output {
        self.usring(&["ctl"]).args(arguments).output().unwrap()
    }

    /// Starts a `usring run` whose program is a shell. The shell exits at the end of its standard
    /// input.
    fn start(&self, devices: &[&str]) -> Child {
        let mut command = self.usring(&["run"]);
        command.args(devices.iter().map(|device| format!("--device={device}")));
        command.args(["sh", "-c", "echo $$; read -r line; exit 7"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().unwrap()
    }

    fn sockets(&self) -> usize {
        std::fs::read_dir(self.path("usring")).map_or(0, Iterator::count)
    }

    fn assert_tidy(&self) {
        assert!(!self.path("disk").exists(), "the device's file is still there");
        assert_eq!(self.sockets(), 0, "the run's socket is still there");
    }
}

/// Reads the process id that the program, a shell, prints first.
fn program(child: &mut Child) -> i32 {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.trim().parse().unwrap()
}

/// Makes a socket that a process listens on but never accepts from. The kernel queues the
/// connections.
fn silent(folder: &Path) -> (UnixListener, String) {
    let socket = folder.join("silent").to_str().unwrap().to_owned();
    (UnixListener::bind(&socket).unwrap(), socket)
}

#[test]
fn a_back_end_that_does_not_answer_is_named_and_a_signal_ends_the_wait() {
    let folder = tempfile::tempdir().unwrap();
    let (_listener, socket) = silent(folder.path());
    let device = format!("{}=vhost-user:socket={socket}", folder.path().join("disk").display());
    let swap = format!("vhost-user:socket={socket},limit=8M");
    for options in [["--device", &device], ["--swap", &swap]] {
        let output = run(&[&options[..], &["true"]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("does not answer within 5 s; it may be stopped, or serve another"), "{said}");

        let mut child = usring(&["run"]).args(options).arg("true").stderr(Stdio::null()).spawn().unwrap();
        // Waits until the launcher has connected. The launcher then waits for the back end's
        // answer.
        let queue = format!(" {socket}");
        let connected = || std::fs::read_to_string("/proc/net/unix").unwrap().matches(&queue).count() > 1;
        let start = Instant::now();
        while !connected() && start.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        // The test sends SIGTERM, because the launcher may ignore SIGINT: a shell that starts the
        // tests in the background makes them and their children ignore it.
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(15), "{options:?}");
    }
    assert!(!folder.path().join("disk").exists());
}

#[test]
fn an_invalid_device_is_reported_and_no_program_starts() {
    let place = Place::new();
    for (device, reason) in [
        ("disk", "expected PATH=SPEC"),
        ("=ram:size=1M", "the PATH before '=' is empty"),
        ("disk=floppy:size=1M", "floppy"),
        ("disk=ram:size=1X", "a size like 4096"),
        ("disk=ram:block=512", "size"),
        ("disk=ram:size=1M,poll=never", "interrupt, classic"),
        ("disk=ram:size=100", "whole number of blocks"),
        ("disk=file:path=", "a path"),
        ("disk=error(ram:size=1M,eio=0.7,short=0.7)", "more than 1"),
        ("disk=file:path=missing", "missing"),
        ("disk=vhost-user:socket=missing", "missing cannot be reached (ENOENT: no such file or directory)"),
        ("nowhere/disk=ram:size=1M", "cannot make"),
    ] {
        let output = place.run(&["--device", device, "sh", "-c", "echo started"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{device}: {said}");
        assert!(said.contains(reason), "{device}: {said}");
        assert!(output.stdout.is_empty(), "{device}");
        place.assert_tidy();
    }
}

#[test]
fn a_wrong_spec_is_shown_with_a_caret_below_the_mistake() {
    let place = Place::new();
    let said = text(&place.run(&["--device", "disk=ram:sise=1G", "true"]).stderr);
    assert!(said.contains("\n  disk=ram:sise=1G\n           ^\n"), "{said}");
    // The place of the caret counts characters, not bytes.
    let said = text(&place.run(&["--device", "plätze/ü=ram:sise=1G", "true"]).stderr);
    assert!(said.contains(&format!("\n  plätze/ü=ram:sise=1G\n  {}^\n", " ".repeat(13))), "{said}");
    let said = text(&place.run(&["--swap", "ram:size=1G,limit=64M,block=513", "true"]).stderr);
    assert!(said.contains("unknown option 'block'") || said.contains("'513'"), "{said}");
    let said = text(&place.run(&["--device", "disk=ram", "true"]).stderr);
    assert!(said.contains("ram at column 1 needs size=, for example ram:size=1G"), "{said}");
}

#[test]
fn a_file_gets_another_length_only_with_create() {
    let place = Place::new();
    let length = || std::fs::metadata(place.path("file")).map(|found| found.len()).ok();
    let run = |spec: &str| {
        let output = place.run(&["--device", &format!("disk=file:path=file{spec}"), "stat", "-c", "%s", "disk"]);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (status, _, said) = run(",size=1M");
    assert!(status == Some(125) && said.contains("does not exist; with size= and create=on"), "{said}");
    assert_eq!(length(), None);
    let (status, _, said) = run(",create=on");
    assert!(status == Some(125) && said.contains("create=on needs size="), "{said}");
    std::fs::write(place.path("file"), [7; 1000]).unwrap();
    let (status, _, said) = run(",size=1M");
    assert!(status == Some(125) && said.contains("the file has 1000 bytes, fewer than size= says"), "{said}");
    let (status, size, said) = run("");
    assert_eq!((status, size.as_str()), (Some(0), "512\n"));
    assert!(
        said.contains("has 1000 bytes; a device has whole blocks, so it ends after the first 512 of them"),
        "{said}"
    );
    assert_eq!(length(), Some(1000));
    assert_eq!(run(",size=1MiB,create=on"), (Some(0), "1048576\n".into(), String::new()));
    assert_eq!(length(), Some(1 << 20));
    assert!(std::fs::read(place.path("file")).unwrap().starts_with(&[7; 1000]));
}

#[test]
fn ctl_finds_a_run_that_has_another_folder_for_temporary_files() {
    let place = Place::new();
    let elsewhere = tempfile::tempdir().unwrap();
    // Without XDG_RUNTIME_DIR, the socket of `usring run` is in one of the system's folders.
    let mut command = usring(&["run", "--device", "disk=ram:size=1M", "sh", "-c", "echo $$; read -r line"]);
    command.current_dir(place.0.path()).env_remove("XDG_RUNTIME_DIR").env("TMPDIR", elsewhere.path());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    program(&mut child);
    let mut ctl = usring(&["ctl"]);
    ctl.arg(place.path("disk")).env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
    let shown = text(&ctl.output().unwrap().stdout);
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(shown.contains(&format!("run     {}", child.id())), "{shown}");
}

#[test]
fn an_existing_file_at_a_devices_path_is_not_changed() {
    let place = Place::new();
    std::fs::write(place.path("file"), "precious").unwrap();
    std::fs::create_dir(place.path("folder")).unwrap();
    std::os::unix::fs::symlink("elsewhere", place.path("link")).unwrap();
    for name in ["file", "folder", "link", "/dev/null"] {
        // The launcher refuses the second device, and must then remove the first device's file.
        let second = format!("{name}=ram:size=1M");
        let output = place.run(&["--device", "disk=ram:size=1M", "--device", &second, "true"]);
        assert_eq!(output.status.code(), Some(125));
        assert!(text(&output.stderr).contains("exists already"), "{}", text(&output.stderr));
        place.assert_tidy();
    }
    std::fs::File::create(place.path("left")).unwrap().set_len(1 << 20).unwrap();
    for (name, is_hinted) in [("left", true), ("file", false), ("folder", false)] {
        let said = text(&place.run(&["--device", &format!("{name}=ram:size=1M"), "true"]).stderr);
        assert_eq!(said.contains("if a killed run left it, remove it"), is_hinted, "{said}");
    }
    assert_eq!(std::fs::read(place.path("file")).unwrap(), b"precious");
    assert!(!place.path("elsewhere").exists() && place.path("link").is_symlink() && place.path("folder").is_dir());
}

#[test]
fn the_devices_files_exist_while_the_program_runs() {
    let place = Place::new();
    let script = "test $(stat -c %s,%a disk) = 1048576,600 && test $(stat -c %s other) = 1099511627776 && exit 3";
    let devices = ["--device", "disk=ram:size=1M", "--device", "other=null:size=1T"];
    let output = place.run(&[&devices[..], &["sh", "-c", script]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(!place.path("other").exists());
    place.assert_tidy();
}

#[test]
fn no_file_or_socket_is_left_however_the_program_ends() {
    let place = Place::new();
    let output = place.run(&["--device", "disk=ram:size=1M", "no-such-program"]);
    assert_eq!(output.status.code(), Some(127));
    place.assert_tidy();
    // In the first round the test kills the program itself. In the other rounds it sends the signal
    // to the launcher, which passes the signal on to the program.
    for (signal, to_program) in [(Signal::SIGKILL, true), (Signal::SIGTERM, false), (Signal::SIGUSR1, false)] {
        let mut child = place.start(&["disk=ram:size=1M"]);
        let shell = program(&mut child);
        let target = if to_program { shell } else { child.id().cast_signed() };
        // The program's input stays open. `wait` would close it, and the program would then exit by
        // itself.
        let _input = child.stdin.take();
        kill(Pid::from_raw(target), signal).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(signal as i32));
        place.assert_tidy();
    }
}

#[test]
fn a_file_that_replaced_the_devices_file_stays() {
    let place = Place::new();
    let output = place.run(&["--device", "disk=ram:size=1M", "sh", "-c", "rm disk && echo mine > disk"]);
    assert!(output.status.success());
    assert_eq!(std::fs::read(place.path("disk")).unwrap(), b"mine\n");
}

#[test]
fn ctl_shows_and_changes_the_devices_of_running_programs() {
    let place = Place::new();
    assert!(text(&place.ctl(&[]).stdout).contains("no devices"));
    std::fs::write(place.path("backing"), vec![0; 1 << 20]).unwrap();
    let mut child = place.start(&["disk=ram:size=1M", "other=error(file:path=backing,eio=0.1),poll=hybrid:5us"]);
    program(&mut child);
    let all = text(&place.ctl(&[]).stdout);
    let (disk, other) = (place.path("disk"), place.path("other"));
    assert!(all.contains(disk.to_str().unwrap()) && all.contains(other.to_str().unwrap()), "{all}");
    // The path must be absolute, because a process of the program may have another working
    // directory.
    let backing = place.path("backing");
    assert!(all.contains(&format!("error(file:path={},eio=0.1),poll=hybrid:5us", backing.display())), "{all}");
    assert!(all.contains(&format!("run     {}", child.id())), "{all}");
    let one = text(&place.ctl(&["disk"]).stdout);
    assert!(one.contains("poll    classic") && !one.contains("other"), "{one}");
    for policy in ["interrupt", "hybrid", "hybrid:50us", "classic"] {
        let change = format!("poll={policy}");
        assert!(text(&place.ctl(&["disk", &change]).stdout).contains(&format!("poll    {policy}\n")));
        assert!(text(&place.ctl(&["disk"]).stdout).contains(&format!("poll    {policy}\n")));
        assert!(text(&place.ctl(&["other"]).stdout).contains("poll    hybrid:5us\n"));
    }
    let wrong = place.ctl(&["disk", "poll=sometimes"]);
    assert!(!wrong.status.success() && text(&wrong.stderr).contains("poll=interrupt"), "{}", text(&wrong.stderr));
    let unknown = place.ctl(&["elsewhere"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("none of your runs has a device"), "{}", text(&unknown.stderr));
    assert!(text(&unknown.stderr).contains(&format!("they have {}, ", disk.display())), "{}", text(&unknown.stderr));
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert!(text(&place.ctl(&[]).stdout).contains("no devices"));
    place.assert_tidy();
}

#[test]
fn the_socket_of_a_killed_run_is_removed() {
    let place = Place::new();
    let mut child = place.start(&["disk=ram:size=1M"]);
    let shell = program(&mut child);
    // The program's input stays open. `wait` would close it, and the program would then exit by
    // itself.
    let _input = child.stdin.take();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(place.sockets(), 1);
    let listed = place.ctl(&[]);
    assert!(listed.status.success() && text(&listed.stdout).contains("no devices"), "{}", text(&listed.stderr));
    assert_eq!(place.sockets(), 0);
    kill(Pid::from_raw(shell), Signal::SIGKILL).unwrap();
}

#[test]
fn other_users_cannot_enter_the_folder_of_the_sockets() {
    let place = Place::new();
    let mut child = place.start(&["disk=ram:size=1M"]);
    program(&mut child);
    let mode = std::fs::metadata(place.path("usring")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    drop(child.stdin.take());
    child.wait().unwrap();
    // usring must refuse a folder that other users can enter.
    std::fs::set_permissions(place.path("usring"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = place.run(&["--device", "disk=ram:size=1M", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("only you can enter"), "{}", text(&output.stderr));
    place.assert_tidy();
    // This file stands for the socket of another user's run, which would never answer.
    std::fs::write(place.path("usring/1.sock"), "").unwrap();
    let listed = place.ctl(&[]);
    let said = text(&listed.stderr);
    assert!(listed.status.success() && text(&listed.stdout).contains("no devices"), "{said}");
    assert!(said.contains("is not a folder that only you can enter, so it is not searched for runs"), "{said}");
    assert_eq!(place.sockets(), 1, "it was taken for the socket of a killed run");
}

#[test]
fn ctl_says_that_a_stopped_run_does_not_answer() {
    let place = Place::new();
    let mut child = place.start(&["disk=ram:size=1M"]);
    program(&mut child);
    let launcher = Pid::from_raw(child.id().cast_signed());
    kill(launcher, Signal::SIGSTOP).unwrap();
    for arguments in [&[][..], &["inject", "list"]] {
        let mut ctl = place.usring(&["ctl"]).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let start = Instant::now();
        while ctl.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = ctl.kill();
        let said = text(&ctl.wait_with_output().unwrap().stderr);
        let sentence = format!("the run {launcher} does not answer within 5 s; is its process stopped?");
        assert!(said.contains(&sentence), "{arguments:?}: {said}");
    }
    kill(launcher, Signal::SIGCONT).unwrap();
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

/// Starts a `usring run` with a device whose back end has one queue. Opens the device in this
/// process, as a process of that run would.
fn remote_device(place: &Place, backend: &Backend) -> (Child, RemoteSupply, Box<dyn Driver>) {
    let spec = format!("vhost-user:socket={}", backend.socket());
    let mut child = place.start(&[&format!("disk={spec}")]);
    program(&mut child);
    let socket = std::fs::read_dir(place.path("usring")).unwrap().next().unwrap().unwrap().path();
    let supply = || RemoteSupply::new(Control::at(socket.as_os_str().as_bytes()), 0);
    let driver = spec::parse(&spec).unwrap().open(Box::new(supply())).unwrap();
    (child, supply(), driver)
}

/// Writes one block and returns the request's result.
fn write(queue: &mut dyn QueuePair) -> i32 {
    let bytes = [5u8; 4096];
    let segments = [IoVector { base: bytes.as_ptr() as u64, length: 4096 }];
    let (operation, file) = (Operation::Write, NamedFile::default());
    let request = DeviceRequest {
        token: 0,
        operation,
        durable: false,
        registered: false,
        offset: 0,
        length: 4096,
        segments: &segments,
        file,
    };
    assert_eq!(queue.submit(&request), Submission::Accepted);
    queue.ring_doorbell();
    let (start, mut completions) = (Instant::now(), Completions::new());
    while completions.as_slice().is_empty() {
        assert!(start.elapsed() < LIMIT, "the back end does not answer");
        queue.poll(&mut completions);
    }
    completions.as_slice()[0].result
}

#[test]
fn a_returned_queue_is_not_taken_from_its_next_user() {
    let (place, backend) = (Place::new(), Backend::start("raw", 1 << 20, 1));
    let (mut child, supply, driver) = remote_device(&place, &backend);
    let options = QueueOptions { depth: 8, interrupts: false };
    let grant = supply.queue().unwrap();
    supply.return_queue(grant.index, grant.connection.as_ref());
    let mut next = driver.open_queue(options).unwrap();
    // The first user returned its queue and only now closes its connection. The server must not
    // take the queue from the second user.
    drop(grant);
    assert!(text(&place.ctl(&["disk"]).stdout).contains("poll    classic"));
    assert_eq!(write(&mut *next), 4096);
    drop(next);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn concurrent_users_never_share_a_queue() {
    let (place, backend) = (Place::new(), Backend::start("raw", 1 << 20, 1));
    let (mut child, _, driver) = remote_device(&place, &backend);
    let options = QueueOptions { depth: 8, interrupts: false };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let (start, mut served) = (Instant::now(), 0);
                while served < 40 {
                    assert!(start.elapsed() < LIMIT, "{served} queues in all the time");
                    match driver.open_queue(options) {
                        Ok(mut queue) => {
                            assert_eq!(write(&mut *queue), 4096);
                            served += 1;
                        }
                        Err(error) => assert_eq!(error, Errno::EBUSY),
                    }
                }
            });
        }
    });
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(7));
}
