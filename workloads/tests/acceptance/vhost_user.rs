//! Devices that another process serves: QEMU's storage daemon, with raw and with qcow2 images. The
//! tests kill the daemon and start it again.

use crate::devices::{is_tidy, soon};
use crate::fio::{job, number, report};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use workloads::harness::{FIO, Finished, LIBURING, QEMU_IMG, QEMU_STORAGE_DAEMON, Run, Stage, World, require};

const SIZE: u64 = 16 << 20;
/// Options with which fio's writes take at least three seconds, because fio pauses between them.
/// (With a rate limit instead, fio would write faster after a time without a back end.)
const SLOWLY: [&str; 3] = ["--size=12m", "--thinktime=16ms", "--thinktime_blocks=16"];
/// The errno that fio gets for requests whose back end has ended.
const EIO: u64 = 5;

/// QEMU's storage daemon, which serves one image. Dropping this value kills the daemon.
pub struct BackEnd {
    daemon: Child,
    socket: PathBuf,
}

impl BackEnd {
    pub fn start(stage: &Stage, format: &str) -> BackEnd {
        let (image, socket) = (stage.path("image"), stage.path("back-end"));
        if !image.exists() {
            let mut command = Command::new(require(&QEMU_IMG));
            let created = command.args(["create", "-q", "-f", format]).arg(&image).arg(SIZE.to_string()).status();
            assert!(created.unwrap().success());
        }
        let _ = std::fs::remove_file(&socket);
        let file = format!("driver=file,node-name=file,filename={},locking=off", image.display());
        let node = format!("driver={format},node-name=node,file=file");
        let export = format!(
            "type=vhost-user-blk,id=export,node-name=node,addr.type=unix,addr.path={},writable=on,num-queues=4,writethrough=on",
            socket.display()
        );
        let mut command = Command::new(require(&QEMU_STORAGE_DAEMON));
        command.args(["--blockdev", &file, "--blockdev", &node, "--export", &export]).stdin(Stdio::null());
        let back_end = BackEnd { daemon: command.spawn().unwrap(), socket };
        soon("a back end that listens", || back_end.listens().then_some(()));
        back_end
    }

    /// Returns whether the daemon listens on the socket, by a flag in /proc/net/unix. A test
    /// connection would not do: the daemon serves only one connection, and would serve that one.
    fn listens(&self) -> bool {
        const ACCEPTS: &str = "00010000";
        let path = self.socket.to_str().expect("a path of letters");
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        sockets.lines().any(|line| line.ends_with(path) && line.split_whitespace().nth(3) == Some(ACCEPTS))
    }

    /// Kills the daemon with SIGKILL.
    pub fn kill(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn fio(stage: &Stage, reconnect: &str, options: &[&str]) -> Run {
    fio_with(stage, &[], reconnect, options)
}

/// Runs fio on the device. `more` are additional options of `usring run`.
fn fio_with(stage: &Stage, more: &[&str], reconnect: &str, options: &[&str]) -> Run {
    let device = format!("--device=disk=vhost-user:socket=back-end,reconnect={reconnect}");
    let run_options: Vec<String> = [device].into_iter().chain(more.iter().map(|option| option.to_string())).collect();
    let run = stage.program_with(World::Denied, &run_options, require(&FIO));
    let run = run.args(["--output-format=json", "--name=job", "--filename=disk", "--bs=4k", "--direct=1"]);
    run.args(["--rw=randwrite", "--verify=crc32c", "--verify_fatal=1"]).args(options)
}

/// Runs fio to its end. If the run did not begin within fio's limit of ten seconds, repeats it
/// once. The back end may still be writing the data of the run before to a slow disk.
#[track_caller]
fn finished(make: impl Fn() -> Run) -> Finished {
    let first = make().finish();
    if !first.stderr.contains("fio: job startup hung") {
        return first.succeeded();
    }
    eprintln!("{}", first.report());
    make().finish().succeeded()
}

fn bytes(finished: &Finished, place: &str) -> u64 {
    number(job(&report(finished), "job", finished), place)
}

fn verified(format: &str) {
    let stage = Stage::new();
    let _back_end = BackEnd::start(&stage, format);
    for options in [
        &["--ioengine=io_uring", "--hipri=1", "--iodepth=1", "--size=1m"][..],
        &["--ioengine=io_uring", "--hipri=1", "--iodepth=32", "--size=8m"],
        &["--ioengine=io_uring", "--hipri=1", "--iodepth=32", "--size=8m", "--fixedbufs=1", "--registerfiles=1"],
        &["--ioengine=io_uring", "--hipri=1", "--iodepth=8", "--size=4m", "--sqthread_poll=1"],
        &["--ioengine=psync", "--size=1m", "--end_fsync=1"],
        &["--ioengine=psync", "--size=1m", "--direct=0", "--bs=3k"],
    ] {
        let finished = finished(|| fio(&stage, "off", options));
        let written = bytes(&finished, "/write/io_bytes");
        assert!(written > 1_000_000, "{}", finished.report());
        assert_eq!(bytes(&finished, "/read/io_bytes"), written, "{}", finished.report());
        finished.without_errors(&[]);
        is_tidy(&stage);
    }
}

#[test]
fn fio_verifies_on_a_raw_image_of_another_process() {
    verified("raw");
}

#[test]
fn fio_verifies_on_a_qcow2_image_of_another_process() {
    verified("qcow2");
}

/// fio uses libaio in two ways: with notifications of events, and with polling for events.
#[test]
fn fio_verifies_through_libaio_on_an_image_of_another_process() {
    let stage = Stage::new();
    let _back_end = BackEnd::start(&stage, "raw");
    for more in [&[][..], &["--aio-poll"]] {
        for options in [
            &["--iodepth=1", "--size=1m", "--userspace_reap=1"][..],
            &["--iodepth=32", "--size=8m"],
            &["--iodepth=128", "--size=8m", "--iodepth_batch=16", "--iodepth_batch_complete_min=4"],
            &["--iodepth=8", "--size=1m", "--numjobs=3", "--offset_increment=1m", "--group_reporting=1"],
            &["--iodepth=8", "--size=1m", "--direct=0", "--bs=3k"],
        ] {
            let options = [&["--ioengine=libaio"], options].concat();
            let finished = finished(|| fio_with(&stage, more, "off", &options));
            let written = bytes(&finished, "/write/io_bytes");
            assert!(written > 1_000_000, "{}", finished.report());
            assert_eq!(bytes(&finished, "/read/io_bytes"), written, "{}", finished.report());
            finished.without_errors(&[]);
            is_tidy(&stage);
        }
    }
}

/// A back end is killed with requests in flight. The next back end carries these requests out.
#[test]
fn a_back_end_that_is_killed_and_started_again_loses_nothing() {
    for format in ["raw", "qcow2"] {
        let stage = Stage::new();
        let mut back_end = BackEnd::start(&stage, format);
        let options = [&["--ioengine=io_uring", "--hipri=1", "--iodepth=16"][..], &SLOWLY].concat();
        let started = fio(&stage, "on", &options).start();
        for _ in 0..3 {
            let image = stage.path("image");
            let allocated = || std::os::unix::fs::MetadataExt::blocks(&image.metadata().unwrap());
            let before = allocated();
            soon("more in the image", || (allocated() > before).then_some(()));
            back_end.kill();
            back_end = BackEnd::start(&stage, format);
        }
        let finished = started.finish().succeeded();
        let (written, read) = (bytes(&finished, "/write/io_bytes"), bytes(&finished, "/read/io_bytes"));
        assert_eq!((written, read), (12 << 20, 12 << 20), "{format}: {}", finished.report());
        finished.without_errors(&[]);
        is_tidy(&stage);
    }
}

#[test]
fn without_reconnect_the_end_of_a_back_end_gives_eio_and_no_hang() {
    for options in [&["--ioengine=io_uring", "--hipri=1", "--iodepth=16"][..], &["--ioengine=psync"]] {
        let options = [options, &SLOWLY].concat();
        let stage = Stage::new();
        let mut back_end = BackEnd::start(&stage, "raw");
        let started = fio(&stage, "off", &options).start();
        let image = stage.path("image");
        let allocated = || std::os::unix::fs::MetadataExt::blocks(&image.metadata().unwrap());
        soon("something in the image", || (allocated() > 64).then_some(()));
        back_end.kill();
        let finished = started.finish();
        assert!(!finished.status.success(), "{}", finished.report());
        assert_eq!(number(&report(&finished)["jobs"][0], "/error"), EIO, "{}", finished.report());
        is_tidy(&stage);
    }
}

/// The program runs in the background and has requests in flight when the run ends. Only the
/// launcher could connect to another back end, and it ends with the run. So the requests must fail.
/// (A program that waited for a back end would spin until it is killed.)
#[test]
fn a_program_that_outlives_its_run_gets_eio_and_does_not_wait() {
    let behind = r#"timeout -s KILL 60 "$@" >/dev/null 2>&1 & until test -e enough; do sleep 0.02; done"#;
    for away in [false, true] {
        let stage = Stage::new();
        let mut back_end = BackEnd::start(&stage, "raw");
        let run = stage.program_on_devices(World::Denied, &["disk=vhost-user:socket=back-end,reconnect=on"], "sh");
        let run = run.args(["-c", behind, "sh"]).args([require(&FIO)]);
        let run = run.args(["--output-format=json", "--output=report", "--name=job", "--filename=disk", "--bs=4k"]);
        let run = run.args(["--rw=randwrite", "--direct=1", "--ioengine=io_uring", "--hipri=1", "--iodepth=16"]);
        let started = run.args(["--time_based", "--runtime=1000"]).start();
        let image = stage.path("image");
        let allocated = || std::os::unix::fs::MetadataExt::blocks(&image.metadata().unwrap());
        soon("something in the image", || (allocated() > 64).then_some(()));
        if away {
            back_end.kill();
        }
        std::fs::write(stage.path("enough"), "").unwrap();
        let _ = started.finish().succeeded();
        let report = soon("the end of the program behind", || {
            let text = std::fs::read_to_string(stage.path("report")).ok()?;
            serde_json::from_str::<serde_json::Value>(&text).ok()
        });
        assert_eq!(number(&report["jobs"][0], "/error"), EIO, "{report}");
        is_tidy(&stage);
    }
}

/// The test kills the launcher. Each thread that waits for the back end must get an error, however
/// it waits.
#[test]
fn a_program_that_outlives_a_killed_run_gets_eio() {
    let bounded = ["-s", "KILL", "60", require(&FIO), "--output-format=json", "--output=report", "--name=job"];
    for options in [
        &["--ioengine=io_uring", "--hipri=1", "--iodepth=16"][..],
        &["--ioengine=io_uring", "--iodepth=16"],
        &["--ioengine=io_uring", "--iodepth=4", "--sqthread_poll=1"],
        &["--ioengine=io_uring", "--hipri=1", "--iodepth=4", "--sqthread_poll=1"],
        &["--ioengine=libaio", "--iodepth=16"],
        &["--ioengine=psync"],
        &["--ioengine=psync", "--direct=0", "--bs=3k"],
    ] {
        let stage = Stage::new();
        let _back_end = BackEnd::start(&stage, "raw");
        let run = stage.program_on_devices(World::Denied, &["disk=vhost-user:socket=back-end,reconnect=on"], "timeout");
        let run = run.args(bounded).args(["--filename=disk", "--bs=4k", "--rw=randwrite", "--direct=1"]);
        let started = run.args(["--time_based", "--runtime=1000"]).args(options).start();
        let image = stage.path("image");
        let allocated = || std::os::unix::fs::MetadataExt::blocks(&image.metadata().unwrap());
        soon("something in the image", || (allocated() > 64).then_some(()));
        kill(Pid::from_raw(started.id().cast_signed()), Signal::SIGKILL).unwrap();
        drop(started.finish());
        let report = soon("the end of what was run", || {
            let text = std::fs::read_to_string(stage.path("report")).ok()?;
            serde_json::from_str::<serde_json::Value>(&text).ok()
        });
        assert_eq!(number(&report["jobs"][0], "/error"), EIO, "{options:?}: {report}");
    }
}

/// A batch of requests must notify the back end once, whatever the back end's speed and the number
/// of requests.
#[test]
fn a_batch_of_requests_notifies_the_back_end_once() {
    require(&LIBURING);
    let stage = Stage::new();
    let _back_end = BackEnd::start(&stage, "raw");
    let program = stage.compile("device_batches.c", &["-luring"]);
    let finished = stage.program_on_devices(World::Denied, &["disk=vhost-user:socket=back-end"], &program).finish();
    assert_eq!(finished.succeeded().stdout, "1 checks hold\n");
    is_tidy(&stage);
}

#[test]
fn a_replaced_registered_buffer_is_no_longer_shared_with_the_back_end() {
    require(&LIBURING);
    let stage = Stage::new();
    let _back_end = BackEnd::start(&stage, "raw");
    let program = stage.compile("device_buffers.c", &["-luring"]);
    let device = "disk=vhost-user:socket=back-end,zero-copy=on";
    let finished = stage.program_on_devices(World::Denied, &[device], &program).finish();
    assert_eq!(finished.succeeded().stdout, "7 checks hold\n");
    is_tidy(&stage);
}

#[test]
fn a_run_without_its_back_end_does_not_start() {
    let stage = Stage::new();
    let finished = fio(&stage, "off", &[]).finish();
    assert_eq!(finished.status.code(), Some(125), "{}", finished.report());
    assert!(finished.stderr.contains("back-end"), "{}", finished.report());
    is_tidy(&stage);
}
