//! Devices whose back end usring starts: QEMU's storage daemon, on an NBD export or on an image.
//! The tests kill the daemon, the server and the launcher.

use crate::devices::{is_tidy, soon};
use crate::fio::{job, number, report};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use workloads::harness::{FIO, Finished, QEMU_IMG, QEMU_NBD, QEMU_STORAGE_DAEMON, Run, Stage, Started, World, require};

const SIZE: u64 = 16 << 20;
const NBD: &str = "nbd:uri=nbd+unix:///?socket=nbd";
const QCOW2: &str = "qcow2:path=image";
const LUKS: &str =
    "qemu:node=(driver=luks,key-secret=k,file.driver=file,file.filename=image),object=(secret,id=k,file=key)";
/// qemu-img's options for an image of the format LUKS, whose key takes little time to derive.
const LUKS_OPTIONS: [&str; 4] = ["--object", "secret,id=k,file=key", "-o", "key-secret=k,iter-time=10"];
/// qemu-img's message if it measured no processor time while it derived the key of an image. On a
/// fast processor, 40 of 100 calls end with this message.
const QEMU_IMG_TOO_FAST: &str = "Unable to get accurate CPU usage";
const QEMU_IMG_ATTEMPTS: usize = 64;
/// The errno that fio gets for requests whose daemon has ended.
const EIO: u64 = 5;
const POLLED: [&str; 3] = ["--ioengine=io_uring", "--hipri=1", "--iodepth=16"];
/// How long a daemon may live after its launcher.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The NBD server qemu-nbd, which serves the raw file `image` at the socket `nbd`. Dropping this
/// value kills the server.
struct Server(Child);

impl Server {
    fn start(stage: &Stage) -> Server {
        let socket = stage.path("nbd");
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new(require(&QEMU_NBD));
        command.args(["-f", "raw", "--persistent", "-e", "4", "-k"]).arg(&socket).arg(stage.path("image"));
        let server = Server(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        soon("an NBD server", || std::os::unix::net::UnixStream::connect(&socket).ok());
        server
    }

    /// Kills the server with SIGKILL, and starts it again.
    fn replace(&mut self, stage: &Stage) {
        self.end();
        *self = Server::start(stage);
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes the image file `image`. If the format is LUKS, also makes the file `key` with its key.
fn make_image(stage: &Stage, format: &str) {
    stage.write("key", "secret");
    for _ in 0..QEMU_IMG_ATTEMPTS {
        let mut command = Command::new(require(&QEMU_IMG));
        command.args(["create", "-q", "-f", format]).args(if format == "luks" { &LUKS_OPTIONS[..] } else { &[] });
        let made = command.args(["image", &SIZE.to_string()]).current_dir(stage.path("")).output().unwrap();
        if made.status.success() {
            return;
        }
        let reason = String::from_utf8_lossy(&made.stderr);
        assert!(reason.contains(QEMU_IMG_TOO_FAST), "qemu-img: {reason}");
    }
    panic!("qemu-img made no image in {QEMU_IMG_ATTEMPTS} attempts");
}

/// Makes the files that the SPEC needs. Returns the NBD server, if the SPEC has one.
fn prepare(stage: &Stage, spec: &str) -> Option<Server> {
    require(&QEMU_STORAGE_DAEMON);
    let formats = [(NBD, "raw"), (QCOW2, "qcow2"), (LUKS, "luks")];
    make_image(stage, formats.into_iter().find(|(known, _)| *known == spec).expect("a known SPEC").1);
    (spec == NBD).then(|| Server::start(stage))
}

/// Prepares fio's job of random writes, which it reads back and verifies.
fn fio(stage: &Stage, spec: &str, options: &[&str]) -> Run {
    let run = stage.program_on_devices(World::Denied, &[&format!("disk={spec}")], require(&FIO));
    run.arg("--filename=disk").args(job_of_writes()).args(options)
}

fn job_of_writes() -> [&'static str; 7] {
    let [format, name, size] = ["--output-format=json", "--name=job", "--bs=4k"];
    [format, name, size, "--direct=1", "--rw=randwrite", "--verify=crc32c", "--verify_fatal=1"]
}

fn bytes(finished: &Finished, place: &str) -> u64 {
    number(job(&report(finished), "job", finished), place)
}

/// The line that `usring ctl` prints about a daemon.
struct Shown {
    process: Option<i32>,
    is_alive: bool,
    restarts: u64,
}

/// Asks `usring ctl` for the daemon of the run's only device. `None` if `usring ctl` shows no
/// daemon.
fn daemon(stage: &Stage) -> Option<Shown> {
    let mut command = Command::new(stage.path("tools/usring"));
    let output = command.arg("ctl").env("XDG_RUNTIME_DIR", stage.path("")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("daemon"))?;
    let parts: Vec<_> = line.trim().split(", ").collect();
    let [process, condition, restarts] = parts[..] else { panic!("a daemon without three facts: {text}") };
    let process = process.strip_prefix("process ").map(|process| process.parse().expect("a process id"));
    let restarts = restarts.strip_prefix("restarts: ").and_then(|restarts| restarts.parse().ok());
    Some(Shown { process, is_alive: condition == "alive", restarts: restarts.expect("a number of restarts") })
}

/// Waits until the daemon serves the device and the launcher has started it again `restarts` times.
/// Returns the daemon's process id.
fn serving(stage: &Stage, restarts: u64) -> i32 {
    soon("a daemon that serves", || {
        daemon(stage).filter(|shown| shown.is_alive && shown.restarts == restarts).and_then(|shown| shown.process)
    })
}

fn send(process: i32, signal: Signal) {
    kill(Pid::from_raw(process), signal).unwrap();
}

/// Fails the test unless the process ends within [`END_LIMIT`].
fn ends(process: i32) {
    let start = Instant::now();
    while kill(Pid::from_raw(process), None) != Err(Errno::ESRCH) {
        assert!(start.elapsed() < END_LIMIT, "the daemon {process} is still there");
        std::thread::yield_now();
    }
}

/// Waits until the image has more blocks than now.
fn progress(stage: &Stage) {
    let allocated = || stage.path("image").metadata().unwrap().blocks();
    let before = allocated();
    soon("more in the image", || (allocated() > before).then_some(()));
}

/// Reads the image without usring, by fio on the kernel's files, and verifies what the run has
/// written. A qcow2 image is checked first: its metadata must be sound, apart from lost clusters.
fn verify_image(stage: &Stage, size: &str) {
    const ONLY_LEAKS: i32 = 3;
    let format = if stage.read("image").starts_with(b"QFI") { "qcow2" } else { "raw" };
    if format == "qcow2" {
        let checked = Command::new(QEMU_IMG.path).args(["check", "-q"]).arg(stage.path("image")).output().unwrap();
        assert!(matches!(checked.status.code(), Some(0 | ONLY_LEAKS)), "{checked:?}");
    }
    let mut command = Command::new(QEMU_IMG.path);
    let files = [stage.path("image"), stage.path("raw")];
    assert!(command.args(["convert", "-f", format, "-O", "raw"]).args(files).status().unwrap().success());
    let run = stage.program(World::Bare, require(&FIO)).arg("--filename=raw").args(job_of_writes());
    run.args(["--ioengine=psync", "--verify_only=1", size]).finish().succeeded();
}

#[test]
fn fio_verifies_on_devices_whose_back_end_usring_starts() {
    for (spec, programs) in [(NBD, 4), (QCOW2, 4), (LUKS, 1)] {
        let stage = Stage::new();
        let _server = prepare(&stage, spec);
        let all = [
            &["--ioengine=io_uring", "--hipri=1", "--iodepth=32", "--fixedbufs=1", "--size=4m"][..],
            &["--ioengine=io_uring", "--iodepth=8", "--sqthread_poll=1", "--size=1m", "--fsync=16"],
            &["--ioengine=libaio", "--iodepth=8", "--size=1m", "--numjobs=2", "--offset_increment=1m"],
            &["--ioengine=psync", "--size=1m", "--direct=0", "--bs=3k", "--end_fsync=1"],
        ];
        for options in &all[..programs] {
            let finished = fio(&stage, spec, options).finish().succeeded();
            let written = bytes(&finished, "/write/io_bytes");
            assert!(written > 1_000_000, "{}", finished.report());
            assert_eq!(bytes(&finished, "/read/io_bytes"), written, "{}", finished.report());
            finished.without_errors(&[]);
            is_tidy(&stage);
        }
    }
}

/// A run that ends cleanly writes everything to the image, also without a flush.
#[test]
fn an_image_has_all_writes_of_a_run_that_has_ended() {
    let stage = Stage::new();
    prepare(&stage, QCOW2);
    fio(&stage, QCOW2, &[&POLLED[..], &["--size=4m"]].concat()).finish().succeeded();
    verify_image(&stage, "--size=4m");
}

/// Kills the daemon and the NBD server in turn while fio writes. Each of the `rounds` rounds takes
/// about half a second. The job pauses between blocks, so that it still writes in the last round.
fn killed_in_turn(spec: &str, rounds: u64) {
    let stage = Stage::new();
    let mut server = prepare(&stage, spec);
    let thinktime = format!("--thinktime={}ms", 4 * rounds);
    let ring = ["--ioengine=io_uring", "--iodepth=16", "--size=12m", &thinktime, "--thinktime_blocks=16", "--fsync=32"];
    let started = fio(&stage, &format!("{spec},reconnect=on"), &ring).start();
    let mut restarts = 0;
    for round in 0..rounds {
        let process = serving(&stage, restarts);
        progress(&stage);
        match &mut server {
            Some(server) if round % 2 == 1 => server.replace(&stage),
            _ => {
                send(process, Signal::SIGKILL);
                restarts += 1;
            }
        }
    }
    serving(&stage, restarts);
    let finished = started.finish().succeeded();
    let (written, read) = (bytes(&finished, "/write/io_bytes"), bytes(&finished, "/read/io_bytes"));
    assert_eq!((written, read), (12 << 20, 12 << 20), "{spec}: {}", finished.report());
    finished.without_errors(&[]);
    is_tidy(&stage);
    drop(server);
    verify_image(&stage, "--size=12m");
}

#[test]
fn killed_daemons_and_servers_lose_nothing() {
    killed_in_turn(NBD, 4);
    killed_in_turn(QCOW2, 2);
}

#[test]
#[ignore = "takes minutes"]
fn daemons_and_servers_that_are_killed_twenty_times_lose_nothing() {
    killed_in_turn(NBD, 40);
    killed_in_turn(QCOW2, 20);
}

/// Without `reconnect=on`, a program gets EIO after the daemon was killed. A killed daemon loses
/// the writes that only its caches had, but the image keeps all data that was flushed before.
#[test]
fn without_reconnect_a_killed_daemon_gives_eio_and_keeps_what_was_flushed() {
    let stage = Stage::new();
    prepare(&stage, QCOW2);
    let script = r#"
        dd if=/dev/urandom of=data bs=64k count=32 status=none &&
        dd if=data of=disk bs=64k count=32 oflag=direct conv=notrunc,fsync status=none && echo flushed &&
        until test -e killed; do sleep 0.02; done
        dd if=disk of=/dev/null bs=4k count=1 iflag=direct"#;
    let shell = stage.program_on_devices(World::Denied, &[&format!("disk={QCOW2}")], "/bin/sh");
    let mut started = shell.args(["-c", script]).start();
    assert_eq!(started.wait_for_line(Duration::from_secs(60)), "flushed");
    let process = serving(&stage, 0);
    send(process, Signal::SIGKILL);
    let shown = soon("a daemon that is not alive", || daemon(&stage).filter(|shown| !shown.is_alive));
    assert_eq!((shown.process, shown.restarts), (None, 0));
    stage.write("killed", "");
    let finished = started.finish();
    assert!(finished.stderr.contains("Input/output error"), "{}", finished.report());
    assert!(finished.stderr.contains("disk: qemu-storage-daemon ended with signal: 9"), "{}", finished.report());
    is_tidy(&stage);
    let mut command = Command::new(QEMU_IMG.path);
    let files = [stage.path("image"), stage.path("raw")];
    assert!(command.args(["convert", "-f", "qcow2", "-O", "raw"]).args(files).status().unwrap().success());
    assert!(stage.read("raw").starts_with(&stage.read("data")), "flushed data is not in the image");
}

#[test]
fn without_reconnect_fio_gets_eio_when_the_daemon_is_killed() {
    let stage = Stage::new();
    let _server = prepare(&stage, NBD);
    let slowly = ["--size=12m", "--thinktime=16ms", "--thinktime_blocks=16"];
    let started = fio(&stage, NBD, &[&POLLED[..], &slowly].concat()).start();
    let process = serving(&stage, 0);
    progress(&stage);
    send(process, Signal::SIGKILL);
    let finished = started.finish();
    assert_eq!(number(&report(&finished)["jobs"][0], "/error"), EIO, "{}", finished.report());
    is_tidy(&stage);
}

/// Starts a shell that reads the device once, prints a line, and then sleeps.
fn sleeper(stage: &Stage, before: &str) -> Started {
    let script = format!("{before} dd if=disk of=/dev/null bs=4k count=1 status=none && echo read; sleep 60 & wait $!");
    let shell = stage.program_on_devices(World::Denied, &[&format!("disk={QCOW2},reconnect=on")], "/bin/sh");
    let mut started = shell.args(["-c", &script]).start();
    assert_eq!(started.wait_for_line(Duration::from_secs(60)), "read");
    started
}

#[test]
fn the_daemon_ends_when_the_launcher_is_killed() {
    let stage = Stage::new();
    prepare(&stage, QCOW2);
    let started = sleeper(&stage, "");
    let process = serving(&stage, 0);
    send(started.id().cast_signed(), Signal::SIGKILL);
    drop(started.finish());
    ends(process);
    std::fs::remove_file(stage.path("disk")).unwrap();
    // The next run removes the folder of the killed run's daemon, and opens the image again.
    let run = stage.program_on_devices(World::Denied, &[&format!("disk={QCOW2}")], "/bin/true");
    run.finish().succeeded();
    let left: Vec<_> = stage.sockets().into_iter().filter(|path| path.is_dir()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_daemon_ends_when_a_signal_ends_the_run() {
    let stage = Stage::new();
    prepare(&stage, QCOW2);
    let started = sleeper(&stage, "");
    let process = serving(&stage, 0);
    started.terminate();
    let finished = started.finish();
    assert_eq!(finished.status.signal(), Some(Signal::SIGTERM as i32), "{}", finished.report());
    ends(process);
    is_tidy(&stage);
}

/// A service manager sends a signal to each process of a service. Here the daemon gets the signal
/// first. The program writes to its device after it has got the signal, and the write must succeed.
#[test]
fn a_program_writes_after_a_signal_to_all_processes() {
    let stage = Stage::new();
    prepare(&stage, QCOW2);
    let script = r#"
        trap 'dd if=/dev/zero of=disk bs=64k count=8 oflag=direct conv=notrunc,fsync status=none && exit 7' TERM
        echo ready; sleep 60 & wait $!"#;
    let shell = stage.program_on_devices(World::Denied, &[&format!("disk={QCOW2}")], "/bin/sh");
    let mut started = shell.args(["-c", script]).start();
    assert_eq!(started.wait_for_line(Duration::from_secs(60)), "ready");
    let process = serving(&stage, 0);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        send(process, signal);
    }
    started.terminate();
    let finished = started.finish();
    assert_eq!((finished.status.code(), finished.stderr.as_str()), (Some(7), ""), "{}", finished.report());
    ends(process);
    is_tidy(&stage);
}

/// Makes a folder with a script that stands for the daemon, and returns a PATH that begins with the
/// folder. The script runs the daemon to its end, and then `after`.
fn path_with(stage: &Stage, after: &str) -> String {
    let script = format!("#!/bin/sh\n{} \"$@\"\n{after}\n", require(&QEMU_STORAGE_DAEMON));
    let folder = stage.make_folder("wrapped");
    let file = folder.join("qemu-storage-daemon");
    std::fs::write(&file, script).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

#[test]
fn a_daemon_that_fails_at_the_end_of_the_run_says_why() {
    let stage = Stage::new();
    prepare(&stage, QCOW2);
    let path = path_with(&stage, "echo 'the image is full' >&2; exit 3");
    let run = stage.program_on_devices(World::Denied, &[&format!("disk={QCOW2}")], "/bin/true");
    let finished = run.env("PATH", path).finish().succeeded();
    let lines: Vec<_> = finished.stderr.lines().collect();
    assert_eq!(
        lines,
        [
            "usring: disk: qemu-storage-daemon: the image is full",
            "usring: disk: qemu-storage-daemon ended with exit status: 3; writes that were not flushed may be lost"
        ]
    );
    is_tidy(&stage);
}

/// The launcher must end all daemons at once. In this test, a daemon ends only after the other one
/// has been asked to end, too.
#[test]
fn the_daemons_of_a_run_end_at_the_same_time() {
    let stage = Stage::new();
    let ended = stage.make_folder("ended");
    let path =
        path_with(&stage, &format!("cd {}; touch $$; until test $(ls | wc -l) = 2; do :; done", ended.display()));
    let devices = ["disk", "second"].map(|path| format!("{path}=qemu:node=(driver=null-co,size=16777216)"));
    let run = stage.program_on_devices(World::Denied, &devices.each_ref().map(String::as_str), "/bin/true");
    let finished = run.env("PATH", path).finish().succeeded();
    assert_eq!(finished.stderr, "");
    is_tidy(&stage);
}

#[test]
fn a_read_only_image_is_read_and_refuses_writes() {
    let stage = Stage::new();
    prepare(&stage, QCOW2);
    let before = stage.read("image");
    let script = r#"
        cp disk copy && echo read
        dd if=/dev/zero of=disk bs=4k count=1 oflag=direct conv=notrunc status=none || echo refused"#;
    let shell = stage.program_on_devices(World::Denied, &[&format!("disk={QCOW2},read-only=on")], "/bin/sh");
    let finished = shell.args(["-c", script]).finish().succeeded();
    assert_eq!(finished.stdout, "read\nrefused\n", "{}", finished.report());
    assert!(finished.stderr.contains("Operation not permitted"), "{}", finished.report());
    assert_eq!(stage.read("copy"), vec![0; 16 << 20]);
    assert!(stage.read("image") == before, "the image has changed");
    is_tidy(&stage);
}

/// A terminal sends ^C to the whole process group. The program here ignores it, and its device must
/// still work.
#[test]
fn a_program_that_ignores_an_interrupt_keeps_its_device() {
    let stage = Stage::new();
    prepare(&stage, QCOW2);
    let after = "trap 'dd if=disk of=/dev/null bs=4k count=1 status=none && exit 7' INT;";
    let started = sleeper(&stage, after);
    let process = serving(&stage, 0);
    killpg(Pid::from_raw(started.id().cast_signed()), Signal::SIGINT).unwrap();
    let finished = started.finish();
    assert_eq!(finished.status.code(), Some(7), "{}", finished.report());
    ends(process);
    is_tidy(&stage);
}

/// Runs a program that usring must refuse to start. Returns usring's message.
fn refused(stage: &Stage, spec: &str) -> String {
    let finished = stage.program_on_devices(World::Denied, &[&format!("disk={spec}")], "/bin/true").finish();
    assert_eq!(finished.status.code(), Some(125), "{}", finished.report());
    assert_eq!(finished.stderr.trim().lines().count(), 1, "{}", finished.report());
    is_tidy(stage);
    finished.stderr
}

#[test]
fn a_daemon_that_cannot_open_its_storage_says_why() {
    let stage = Stage::new();
    prepare(&stage, QCOW2);
    std::fs::write(stage.path("plain"), [0; 4096]).unwrap();
    for (spec, why) in [
        ("qcow2:path=missing", "No such file or directory"),
        ("qcow2:path=plain", "Image is not in qcow2 format"),
        (NBD, "Failed to connect to"),
        ("qemu:node=(driver=nonsense)", "does not accept value 'nonsense'"),
    ] {
        let message = refused(&stage, spec);
        assert!(message.starts_with("usring run: cannot open the device ") && message.contains(why), "{message}");
    }
    let started = sleeper(&stage, "");
    let finished = stage.program_on_devices(World::Denied, &[&format!("second={QCOW2}")], "/bin/true").finish();
    assert_eq!(finished.status.code(), Some(125), "{}", finished.report());
    assert!(finished.stderr.contains("Failed to get \"write\" lock"), "{}", finished.report());
    started.terminate();
    drop(started.finish());
}

#[test]
fn without_the_daemon_a_run_names_the_package() {
    let stage = Stage::new();
    make_image(&stage, "qcow2");
    let run = stage.program_on_devices(World::Denied, &[&format!("disk={QCOW2}")], "/bin/true");
    let finished = run.env("PATH", stage.path("tools")).finish();
    assert_eq!(finished.status.code(), Some(125), "{}", finished.report());
    assert!(finished.stderr.contains("apt-get install qemu-system-common"), "{}", finished.report());
    is_tidy(&stage);
}

/// The NBD server accepts the daemon's connection and sends nothing.
#[test]
fn a_server_that_never_answers_ends_the_run_at_the_limit_or_at_an_interrupt() {
    let stage = Stage::new();
    let server = UnixListener::bind(stage.path("nbd")).unwrap();
    let message = refused(&stage, NBD);
    assert!(message.contains("was not ready within 10 s"), "{message}");
    let (_first, _) = server.accept().unwrap();
    let started = stage.program_on_devices(World::Denied, &[&format!("disk={NBD}")], "/bin/true").start();
    let (waiting, _) = server.accept().unwrap();
    send(started.id().cast_signed(), Signal::SIGINT);
    let finished = started.finish();
    assert_eq!(finished.status.signal(), Some(Signal::SIGINT as i32), "{}", finished.report());
    // The daemon must end, and its connection ends with it.
    waiting.set_read_timeout(Some(END_LIMIT)).unwrap();
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut &waiting, &mut rest).unwrap();
    // The launcher had no time to remove the daemon's folder, but the next `usring ctl` does.
    assert!(daemon(&stage).is_none());
    is_tidy(&stage);
}
