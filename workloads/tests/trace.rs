//! Tests of `usring run --trace` and `usring trace`, on programs whose requests are known
//! (`programs/traced.c`) and on fio.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;
use workloads::harness::{FIO, Finished, Run, Stage, World, require};

/// Time limit that ends a program that hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// The path of the program `traced`, compiled on first use. Its stage is in a static, so the
/// stage's folder is never removed.
fn traced() -> &'static PathBuf {
    static PROGRAM: OnceLock<(Stage, PathBuf)> = OnceLock::new();
    &PROGRAM
        .get_or_init(|| {
            let stage = Stage::new();
            let program = stage.compile("traced.c", &["-luring"]);
            (stage, program)
        })
        .1
}

/// Prepares a program whose requests usring records in the file `trace` of the stage.
fn recorded(stage: &Stage, world: World, limits: &str, program: &Path) -> Run {
    let trace = format!("--trace={}{limits}", stage.path("trace").display());
    stage.program_with(world, &[trace], program).limit(LIMIT).current_dir(&stage.path(""))
}

/// The launcher, in the folder of the build.
fn usring() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.ancestors().skip(1).find(|folder| folder.join("usring").is_file());
    folder.expect("the launcher is built").join("usring")
}

/// Runs `usring trace` on a file of the stage.
fn usring_trace(stage: &Stage, name: &str, options: &[&str]) -> Output {
    Command::new(usring()).arg("trace").arg(stage.path(name)).args(options).output().unwrap()
}

/// Returns what `usring trace` prints.
#[track_caller]
fn shown(stage: &Stage, options: &[&str]) -> String {
    let output = usring_trace(stage, "trace", options);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the counts in the table of `usring trace -c`: for each opcode its calls, its errors, and
/// its requests in flight.
fn summary(stage: &Stage, options: &[&str]) -> BTreeMap<String, [u64; 3]> {
    let text = shown(stage, &[&["-c"], options].concat());
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let count = |index: usize| words[index].parse().unwrap_or_else(|_| panic!("{text}"));
        (words[0].to_owned(), [count(1), count(2), count(3)])
    };
    text.lines().skip(1).map(row).collect()
}

fn said(finished: &Finished) -> &str {
    let begin = finished.stderr.find(" events of ").unwrap_or_else(|| panic!("{}", finished.report()));
    let begin = finished.stderr[..begin].rfind("usring: ").unwrap();
    finished.stderr[begin..].lines().next().unwrap()
}

/// Returns the line of the request with this user_data.
#[track_caller]
fn line_of<'a>(text: &'a str, user_data: &str) -> &'a str {
    let end = format!("user_data {user_data})");
    let mut lines = text.lines().filter(|line| line.contains(&end));
    let line = lines.next().unwrap_or_else(|| panic!("no {user_data} in {text}"));
    assert_eq!(lines.next(), None);
    line
}

#[test]
fn each_request_has_a_line_with_its_file_its_result_and_its_path() {
    let stage = Stage::new();
    recorded(&stage, World::Transparent, "", traced()).arg("ways").finish().succeeded();
    let text = shown(&stage, &[]);
    let file = stage.path("traced.file");
    let on_file = format!("<{}>, 512 bytes, offset ", file.canonicalize().unwrap().display());
    let expected: [(&str, &[&str]); 12] = [
        ("0x10", &["openat(\"traced.file\", ", " = "]),
        ("0x11", &["write(", &on_file, "1024, IO_LINK", " = 512 <"]),
        ("0x12", &["read(", &on_file, "1024, ", " = 512 <", "> chain "]),
        ("0x13", &["read(", "ASYNC", " = 512 <", "> queue (IOSQE_ASYNC) ", ", worker ", ", task work "]),
        ("0x14", &["fsync(", " = 0 <", "> queue (blocking opcode) ", ", worker "]),
        ("0x15", &["read(", " = -EBADF: bad file number <", "> inline"]),
        ("0x16", &["(unknown)(", " = -EINVAL: invalid argument <", "> inline"]),
        ("0x20", &["recv(", "<socket:[", ", 1 bytes, ", " = 1 <", "> poll "]),
        ("0x21", &["timeout(", " = -ETIME: timer expired <", "> timer "]),
        ("0x22", &["nop(IO_DRAIN, ", " = 0 <", "> drain "]),
        ("0x23", &["poll_add(", " ~ 1 ~ 1 ~ 1 = ? (in flight) ", "poll …"]),
        ("0x24", &["nop(user_data 0x24) = 0 <", "> inline"]),
    ];
    for (user_data, parts) in expected {
        let line = line_of(&text, user_data);
        let mut rest = line;
        for part in parts {
            let begin = rest.find(part).unwrap_or_else(|| panic!("{user_data}: no {part:?} in {rest:?} of {line}"));
            rest = &rest[begin + part.len()..];
        }
    }
    let steps = shown(&stage, &["--steps", "--opcode", "fsync"]);
    let words =
        ["submitted by thread", "is queued for a worker", "is carried out by worker", "task work", "completed = 0"];
    let places: Vec<_> =
        words.iter().map(|word| steps.find(word).unwrap_or_else(|| panic!("{word}: {steps}"))).collect();
    assert!(places.is_sorted(), "{steps}");
    assert!(steps.contains("seen to be reaped"), "{steps}");
}

#[test]
fn a_drain_without_earlier_requests_does_not_wait_and_forces_the_next_request_to_a_worker() {
    let stage = Stage::new();
    recorded(&stage, World::Transparent, "", traced()).arg("drains").finish().succeeded();
    let text = shown(&stage, &[]);
    assert!(!line_of(&text, "0x30").contains("> drain "), "{text}");
    assert!(line_of(&text, "0x31").contains("> queue (after a drain) "), "{text}");
    assert!(!line_of(&text, "0x31").contains("ASYNC"), "{text}");
    assert!(line_of(&text, "0x32").ends_with("> inline"), "{text}");
}

#[test]
fn filters_show_the_requests_that_meet_all_of_them() {
    let stage = Stage::new();
    recorded(&stage, World::Transparent, "", traced()).arg("ways").finish().succeeded();
    let count = |options: &[&str]| shown(&stage, options).lines().count();
    assert_eq!(count(&[]), 12);
    assert_eq!(count(&["--opcode", "read"]), 3);
    assert_eq!(count(&["--opcode", "read,WRITE"]), 4);
    assert_eq!(count(&["--errors"]), 3);
    assert_eq!(count(&["--errors", "--opcode", "read"]), 1);
    assert_eq!(count(&["--path", "traced.file"]), 5);
    assert_eq!(count(&["--ring", "2"]), 0);
    assert_eq!(count(&["--pid", "1"]), 0);
    assert_eq!(count(&["--slower", "1000s"]), 1, "the poll in flight");
    assert_eq!(count(&["--slower", "1ms", "--opcode", "timeout"]), 1);
    assert_eq!(summary(&stage, &["--opcode", "read"])["read"], [3, 1, 0]);
    assert_eq!(summary(&stage, &[])["poll_add"], [1, 0, 1]);
}

#[test]
fn fio_has_as_many_requests_in_the_trace_as_in_the_statistics() {
    for (engine, more) in
        [("io_uring", "--sqthread_poll=1"), ("io_uring", "--registerfiles=1"), ("libaio", "--direct=0")]
    {
        let stage = Stage::new();
        let options = ["--name=job", "--rw=randrw", "--size=2m", "--iodepth=16", "--numjobs=2", more];
        let run = recorded(&stage, World::Denied, "", Path::new(require(&FIO)));
        let finished = run.arg(format!("--ioengine={engine}")).args(options).finish().succeeded();
        let statistics = finished.statistics.as_ref().expect("a table");
        let counted = summary(&stage, &[]);
        assert!(!counted.is_empty(), "{}", finished.report());
        for (opcode, [calls, errors, in_flight]) in counted {
            let counts = ["submitted", "errors"].map(|column| statistics.sum(column, &[&opcode]));
            assert_eq!([calls, errors], counts, "{engine} {opcode}: {}", finished.report());
            let completed = statistics.sum("completed", &[&opcode]);
            assert_eq!(calls - in_flight, completed, "{engine} {opcode}: {}", finished.report());
        }
        assert!(shown(&stage, &[]).contains("job.0.0>, 4096 bytes, offset "));
        assert!(said(&finished).ends_with("; none was lost"), "{}", finished.stderr);
    }
}

#[test]
fn children_and_executed_programs_are_traced() {
    let stage = Stage::new();
    let finished = recorded(&stage, World::Transparent, "", traced()).arg("children").finish().succeeded();
    assert!(said(&finished).contains(" of 15 requests "), "{}", finished.stderr);
    assert_eq!(summary(&stage, &[])["nop"], [15, 0, 0]);
    let text = shown(&stage, &[]);
    let mut of_process: BTreeMap<&str, u32> = BTreeMap::new();
    text.lines().for_each(|line| *of_process.entry(line.split(']').next().unwrap()).or_default() += 1);
    let mut counts: Vec<u32> = of_process.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [3, 5, 7], "{text}");
}

#[test]
fn a_signal_handler_on_a_small_stack_can_submit() {
    let stage = Stage::new();
    let file = stage.write("file", "some bytes");
    let untraced = stage.program(World::Transparent, traced()).limit(LIMIT);
    untraced.arg("handler").stdin(File::open(&file).unwrap()).finish().succeeded();
    let run = recorded(&stage, World::Transparent, "", traced()).arg("handler");
    run.stdin(File::open(&file).unwrap()).finish().succeeded();
    assert_eq!(summary(&stage, &[])["read"], [1, 0, 0]);
}

#[test]
fn the_trace_of_a_killed_program_can_be_read() {
    const SIGKILL: i32 = 9;
    let stage = Stage::new();
    let finished = recorded(&stage, World::Transparent, "", traced()).arg("killed").finish();
    assert_eq!(finished.status.signal(), Some(SIGKILL), "{}", finished.report());
    assert_eq!(summary(&stage, &[])["nop"], [10, 0, 0]);
}

#[test]
fn a_program_that_writes_to_the_memory_of_the_trace_does_not_end_the_launcher() {
    let stage = Stage::new();
    for limits in [",size=1M", ",last=1M"] {
        let finished = recorded(&stage, World::Transparent, limits, traced()).arg("hostile").finish().succeeded();
        assert!(finished.stderr.contains(" events, of ") || !said(&finished).is_empty(), "{}", finished.stderr);
        usring_trace(&stage, "trace", &[]);
    }
}

#[test]
fn a_small_trace_keeps_the_first_or_the_last_events_and_counts_the_others() {
    let stage = Stage::new();
    // The trace has space for 64 KiB, which are 1,024 records. Each of these requests takes three
    // records or fewer.
    let first = recorded(&stage, World::Transparent, ",size=64K", traced()).args(["nops", "5000"]).finish().succeeded();
    assert!(said(&first).contains("usring: 1024 events of "), "{}", first.stderr);
    assert!(said(&first).contains(" were lost, because 64K were full"), "{}", first.stderr);
    let early = shown(&stage, &[]);
    let output = usring_trace(&stage, "trace", &[]);
    assert!(String::from_utf8_lossy(&output.stderr).contains(" later events are not in the trace"));
    let last = recorded(&stage, World::Transparent, ",last=64K", traced()).args(["nops", "5000"]).finish().succeeded();
    assert!(last.stderr.contains("usring: the last 1024 events, of "), "{}", last.stderr);
    let late = shown(&stage, &[]);
    let time = |line: &str| line.split(' ').next().unwrap().parse::<f64>().unwrap();
    let spans = [&early, &late].map(|text| (time(text.lines().next().unwrap()), text.lines().count()));
    assert!(spans.iter().all(|(_, count)| (300..=1024).contains(count)), "{spans:?}");
    let end = time(late.lines().last().unwrap());
    let in_flight = late.lines().filter(|line| line.contains("in flight")).count();
    assert!(in_flight <= 1 && end > spans[1].0, "{late}");
    let none = recorded(&stage, World::Transparent, ",ring=2", traced()).args(["nops", "5"]).finish().succeeded();
    assert!(none.stderr.contains(" of 0 requests "), "{}", none.stderr);
}

#[test]
fn a_file_that_is_no_trace_is_neither_overwritten_nor_shown() {
    const FAILED: i32 = 125;
    let stage = Stage::new();
    stage.write("trace", "my notes");
    let finished = recorded(&stage, World::Transparent, "", traced()).args(["nops", "1"]).finish();
    assert_eq!(finished.status.code(), Some(FAILED));
    assert!(finished.stderr.contains("does not overwrite it"), "{}", finished.stderr);
    assert_eq!(stage.read("trace"), b"my notes");
    let refused = |name: &str, words: &str| {
        let output = usring_trace(&stage, name, &[]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(FAILED) && errors.contains(words), "{name}: {errors}");
    };
    refused("trace", "is not a trace");
    refused("missing", "ENOENT");
    refused("/dev/zero", "is not a trace");
    let run = stage.program_with(World::Transparent, &["--trace=no/folder".into()], traced());
    let finished = run.args(["nops", "1"]).finish();
    assert!(finished.status.code() == Some(FAILED) && finished.stderr.contains("cannot write"), "{}", finished.stderr);
}

#[test]
fn a_trace_that_was_cut_short_is_shown_and_reported() {
    let stage = Stage::new();
    recorded(&stage, World::Transparent, "", traced()).args(["nops", "100"]).finish().succeeded();
    let whole = stage.read("trace");
    stage.write("cut", &whole[..whole.len() - 100 * 64 - 10]);
    let output = usring_trace(&stage, "cut", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is cut short: 101 of its "), "{output:?}");
    assert!(output.stdout.split(|byte| *byte == b'\n').count() > 20);
}

// The messages of Perfetto that `usring trace --perfetto` writes, as far as the test reads them.

#[derive(Clone, PartialEq, prost::Message)]
struct PerfettoTrace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Packet {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(message, optional, tag = "11")]
    event: Option<Event>,
    #[prost(message, optional, tag = "60")]
    track: Option<Track>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Event {
    #[prost(int32, tag = "9")]
    kind: i32,
    #[prost(uint64, tag = "11")]
    track: u64,
    #[prost(string, repeated, tag = "22")]
    categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    counter: Option<i64>,
    #[prost(fixed64, repeated, tag = "47")]
    flows: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Track {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(uint64, optional, tag = "5")]
    parent: Option<u64>,
}

#[test]
fn perfetto_gets_a_slice_for_each_request_and_its_waits() {
    let stage = Stage::new();
    recorded(&stage, World::Transparent, "", traced()).arg("ways").finish().succeeded();
    let text = shown(&stage, &[]);
    let (requests, by_workers) = (text.lines().count(), text.matches(", worker ").count());
    let out = stage.path("out.pftrace");
    assert_eq!(shown(&stage, &["--perfetto", out.to_str().unwrap()]), "");
    let trace = <PerfettoTrace as prost::Message>::decode(&stage.read("out.pftrace")[..]).unwrap();
    let tracks: Vec<&Track> = trace.packet.iter().filter_map(|packet| packet.track.as_ref()).collect();
    let mut events: Vec<(u64, &Event)> =
        trace.packet.iter().filter_map(|packet| Some((packet.timestamp?, packet.event.as_ref()?))).collect();
    let of = |category: &str| events.iter().filter(|(_, it)| it.categories.iter().any(|it| it == category)).count();
    assert_eq!(of("request"), requests);
    assert_eq!(of("submit"), requests);
    assert!(by_workers >= 2, "fsync, and the read with IOSQE_ASYNC: {text}");
    assert_eq!(of("worker"), by_workers);
    assert_eq!(of("cqe"), 3);
    let flows = events.iter().filter(|(_, event)| event.categories == ["worker"]).map(|(_, event)| event.flows.clone());
    for flow in flows {
        assert!(events.iter().any(|(_, event)| event.categories == ["request"] && event.flows == flow));
    }
    for name in ["ring 1", "requests", "ring 1: in flight", "ring 1: CQ ready"] {
        assert!(tracks.iter().any(|track| track.name.as_deref() == Some(name)), "{name}: {tracks:?}");
    }
    let known = |id: u64| tracks.iter().any(|track| track.id == id);
    assert!(tracks.iter().all(|track| track.parent.is_none_or(known)));
    assert!(events.iter().all(|(_, event)| known(event.track) && event.counter.is_none_or(|count| count >= 0)));
    // In Perfetto, the slices of a track nest, so at no time have more slices ended than begun. At
    // the end, the slice of the request in flight and the slice of its wait are still open.
    events.sort_by_key(|(at, _)| *at);
    let mut open: BTreeMap<u64, i64> = BTreeMap::new();
    for (_, event) in events {
        let change = [0, 1, -1].get(usize::try_from(event.kind).unwrap()).copied().unwrap_or(0);
        let depth = open.entry(event.track).or_default();
        *depth += change;
        assert!(*depth >= 0, "{event:?}");
    }
    assert_eq!(open.values().sum::<i64>(), 2, "the poll in flight, and its wait");
    let refused = usring_trace(&stage, "trace", &["--perfetto", stage.path("trace").to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(125));
}
