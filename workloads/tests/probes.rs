//! Tests of the probes in libusring.so (USDT): their notes, and their arguments when they fire
//! (`programs/probed.c`). The tracer is bpftrace, or the test itself, which uses ptrace(2).

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use workloads::harness::skipped::skip;
use workloads::harness::{Stage, World, is_root};

/// Time limit that ends a program that hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A probe, as a note of the library describes it.
struct Probe {
    name: String,
    location: u64,
    semaphore: u64,
    /// For each argument, whether it has a sign, and its register.
    arguments: Vec<(bool, String)>,
}

fn tool(name: &str, options: &[&str], file: &Path) -> String {
    let output = Command::new(name).args(options).arg(file).env("LC_ALL", "C").output().expect(name);
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn number(text: &str) -> u64 {
    u64::from_str_radix(text.trim_end_matches(',').trim_start_matches("0x"), 16).unwrap_or_else(|_| panic!("{text}"))
}

/// Returns the probes in the notes of an ELF file, by name.
fn notes(file: &Path) -> BTreeMap<String, Probe> {
    let text = tool("readelf", &["-nW"], file);
    let mut probes = BTreeMap::new();
    for note in text.split("Provider: ").skip(1) {
        let mut lines = note.lines().map(str::trim);
        assert_eq!(lines.next(), Some("io_uring"));
        let name = lines.next().unwrap().strip_prefix("Name: ").unwrap().to_owned();
        let places: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let arguments = lines.next().unwrap().strip_prefix("Arguments: ").unwrap();
        let argument = |text: &str| {
            let (size, register) = text.split_once("@%").unwrap_or_else(|| panic!("{text}"));
            assert!(matches!(size, "8" | "-8"), "{text}");
            (size == "-8", register.to_owned())
        };
        let probe = Probe {
            location: number(places[1]),
            semaphore: number(places[5]),
            arguments: arguments.split(' ').map(argument).collect(),
            name: name.clone(),
        };
        assert!(probes.insert(name.clone(), probe).is_none(), "{name} has two notes");
    }
    probes
}

/// Returns the fields of each probe, as the documentation names them.
fn documented() -> BTreeMap<String, Vec<String>> {
    let text = include_str!("../../docs/tracing.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `io_uring_"));
    let fields = |cells: &str| cells.split(", ").map(|field| field.trim_matches(['`', ' ']).to_owned()).collect();
    rows.map(|row| {
        let mut cells = row.split('|');
        let name = cells.next().unwrap().trim_end_matches(['`', ' ']);
        (format!("io_uring_{name}"), fields(cells.next().unwrap().trim()))
    })
    .collect()
}

/// Returns the path of the library that the programs load. It is in the launcher's folder.
fn library(stage: &Stage) -> PathBuf {
    stage.path("tools/libusring.so")
}

#[test]
fn the_library_has_the_documented_probes_also_after_strip() {
    let stage = Stage::new();
    let stripped = stage.path("stripped.so");
    fs::copy(library(&stage), &stripped).unwrap();
    tool("strip", &["--strip-all"], &stripped);
    for file in [library(&stage), stripped] {
        let probes = notes(&file);
        let documented = documented();
        assert_eq!(probes.keys().collect::<Vec<_>>(), documented.keys().collect::<Vec<_>>());
        let bytes = fs::read(&file).unwrap();
        let sections = sections(&file);
        for (name, probe) in &probes {
            assert_eq!(probe.arguments.len(), documented[name].len(), "{name}");
            assert!(probe.arguments.len() <= 12, "{name}");
            let mut registers: Vec<_> = probe.arguments.iter().map(|(_, register)| register).collect();
            registers.sort_unstable();
            registers.dedup();
            assert_eq!(registers.len(), probe.arguments.len(), "{name}");
            assert_eq!(bytes[in_file(&sections, ".text", probe.location)], 0x90, "{name}: no nop");
            in_file(&sections, ".probes", probe.semaphore);
            assert_eq!(probe.semaphore % 2, 0);
        }
    }
}

/// Returns the name, address, offset in the file, and size of each section of an ELF file.
fn sections(file: &Path) -> Vec<(String, u64, u64, u64)> {
    let text = tool("readelf", &["-SW"], file);
    let row = |line: &str| {
        let words: Vec<&str> = line.split_once(']')?.1.split_whitespace().collect();
        let is_row = words.len() > 5 && words[0].starts_with('.');
        is_row.then(|| (words[0].to_owned(), number(words[2]), number(words[3]), number(words[4])))
    };
    text.lines().filter_map(row).collect()
}

/// Returns the offset, in an ELF file, of a symbol's address. `sections` are the file's sections.
/// The address must lie in the section `name`.
#[track_caller]
fn in_file(sections: &[(String, u64, u64, u64)], name: &str, address: u64) -> usize {
    let section = sections.iter().find(|section| section.0 == name).expect(name);
    assert!((section.1..section.1 + section.3).contains(&address), "{address:#x} is not in {name}");
    usize::try_from(address - section.1 + section.2).unwrap()
}

/// Only one segment may map the page of the probes' semaphore. If a program starts after its
/// tracer, the kernel could otherwise increment the semaphore in another mapping of this page.
#[test]
fn no_second_segment_maps_the_semaphores_page() {
    let stage = Stage::new();
    let file = library(&stage);
    let semaphore = notes(&file).values().next().unwrap().semaphore;
    let page = in_file(&sections(&file), ".probes", semaphore) as u64 / 4096;
    let text = tool("readelf", &["-lW"], &file);
    let segments = text.lines().filter(|line| line.trim_start().starts_with("LOAD"));
    let maps_it = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (offset, size) = (number(words[1]), number(words[4]));
        (offset / 4096..=(offset + size - 1) / 4096).contains(&page)
    };
    assert_eq!(segments.filter(maps_it).count(), 1, "{text}");
}

/// A probe that has fired: its name without the prefix, and its fields.
#[derive(Debug)]
struct Hit {
    name: String,
    fields: BTreeMap<String, i64>,
    /// The opcode's name, if the probe has it.
    op_str: String,
}

impl Hit {
    fn field(&self, name: &str) -> i64 {
        *self.fields.get(name).unwrap_or_else(|| panic!("{self:?} has no {name}"))
    }

    fn is_of(&self, user_data: i64) -> bool {
        let field = if self.name == "defer" { "data" } else { "user_data" };
        self.fields.get(field) == Some(&user_data)
    }
}

/// A traced program. The thread of the test traces all threads of this program.
struct Traced {
    process: Pid,
    memory: File,
    /// Address at which the library is mapped.
    base: u64,
    probes: BTreeMap<String, Probe>,
}

impl Traced {
    /// Stops all threads of the process.
    fn attach(process: Pid, probes: BTreeMap<String, Probe>) -> Traced {
        for thread in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
            let thread = Pid::from_raw(thread.unwrap().file_name().to_str().unwrap().parse().unwrap());
            ptrace::seize(thread, ptrace::Options::PTRACE_O_TRACECLONE).unwrap();
            ptrace::interrupt(thread).unwrap();
            assert!(matches!(waitpid(thread, Some(WaitPidFlag::__WALL)), Ok(WaitStatus::PtraceEvent(..))));
        }
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        let first = maps.lines().find(|line| line.ends_with("/libusring.so")).expect("the library is mapped");
        let base = number(first.split('-').next().unwrap());
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{process}/mem")).unwrap();
        Traced { process, memory, base, probes }
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, self.base + address).unwrap();
    }

    /// Replaces the nop of each probe by a breakpoint.
    fn set_breakpoints(&self) {
        self.probes.values().for_each(|probe| self.write(probe.location, &[0xcc]));
    }

    /// Sets the probes' semaphore, as the kernel does for a uprobe.
    fn set_semaphore(&self, value: u16) {
        self.write(self.probes.values().next().unwrap().semaphore, &value.to_le_bytes());
    }

    /// Lets the stopped threads run.
    fn resume(&self) {
        for thread in fs::read_dir(format!("/proc/{}/task", self.process)).unwrap() {
            let thread = Pid::from_raw(thread.unwrap().file_name().to_str().unwrap().parse().unwrap());
            ptrace::cont(thread, None).unwrap();
        }
    }

    /// Runs the process until it exits with success. Returns the probes that have fired.
    fn run(&self, documented: &BTreeMap<String, Vec<String>>) -> Vec<Hit> {
        let (begin, mut hits) = (Instant::now(), Vec::new());
        // `__WNOTHREAD` leaves out the children of other threads, which run other tests.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD | WaitPidFlag::WNOHANG;
        loop {
            match waitpid(None, Some(flags)).unwrap() {
                WaitStatus::Stopped(thread, Signal::SIGTRAP) => {
                    hits.extend(self.hit(thread, documented));
                    let _ = ptrace::cont(thread, None);
                }
                WaitStatus::Stopped(thread, signal) => drop(ptrace::cont(thread, signal)),
                WaitStatus::PtraceEvent(thread, ..) => drop(ptrace::cont(thread, None)),
                WaitStatus::Exited(thread, code) if thread == self.process => {
                    assert_eq!(code, 0, "{hits:?}");
                    return hits;
                }
                WaitStatus::StillAlive => std::thread::sleep(Duration::from_micros(100)),
                _ => {}
            }
            assert!(begin.elapsed() < LIMIT, "{hits:?}");
        }
    }

    /// Returns the probe at whose breakpoint the thread has stopped. The thread can then continue
    /// at once, because the breakpoint has replaced a NOP instruction.
    fn hit(&self, thread: Pid, documented: &BTreeMap<String, Vec<String>>) -> Option<Hit> {
        let registers = ptrace::getregs(thread).unwrap();
        let probe = self.probes.values().find(|probe| registers.rip == self.base + probe.location + 1)?;
        let value = |register: &str| match register {
            "rdi" => registers.rdi,
            "rsi" => registers.rsi,
            "rdx" => registers.rdx,
            "rcx" => registers.rcx,
            "rax" => registers.rax,
            "r8" => registers.r8,
            "r9" => registers.r9,
            "r10" => registers.r10,
            "r11" => registers.r11,
            "r12" => registers.r12,
            "r13" => registers.r13,
            "r14" => registers.r14,
            _ => panic!("{register}"),
        };
        let values = probe.arguments.iter().map(|(_, register)| value(register).cast_signed());
        let fields: BTreeMap<_, _> = documented[&probe.name].iter().cloned().zip(values).collect();
        let op_str = fields.get("op_str").map_or(String::new(), |address| {
            let mut bytes = [0; 17];
            self.memory.read_exact_at(&mut bytes, address.cast_unsigned()).unwrap();
            let end = bytes.iter().position(|byte| *byte == 0).unwrap();
            String::from_utf8(bytes[..end].to_vec()).unwrap()
        });
        Some(Hit { name: probe.name.strip_prefix("io_uring_").unwrap().to_owned(), fields, op_str })
    }
}

/// Runs the program's steps with breakpoints at the probes. The tracer gives the probes' semaphore
/// the value `semaphore` while a request of the program already waits.
fn traced_steps(semaphore: u16) -> Vec<Hit> {
    let stage = Stage::new();
    let program = stage.compile("probed.c", &["-luring"]);
    let fifo = stage.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let run = stage.program(World::Transparent, &program).arg("steps").arg(&fifo).limit(LIMIT);
    let mut started = run.start();
    assert_eq!(started.wait_for_line(LIMIT), "ready");
    let traced = Traced::attach(Pid::from_raw(started.id().cast_signed()), notes(&library(&stage)));
    traced.set_breakpoints();
    traced.set_semaphore(semaphore);
    traced.resume();
    let open = std::thread::spawn(move || drop(OpenOptions::new().write(true).open(&fifo)));
    let hits = traced.run(&documented());
    open.join().unwrap();
    hits
}

#[test]
fn a_tracer_sees_the_steps_of_each_request_also_of_one_that_was_submitted_before() {
    let hits = traced_steps(1);
    let names_of = |user_data| {
        let of = hits.iter().filter(|hit| hit.is_of(user_data));
        of.map(|hit| hit.name.as_str()).collect::<Vec<_>>().join(" ")
    };
    for (user_data, names) in [
        (0x10, "task_add complete"),
        (0x11, "submit_req complete"),
        (0x12, "req_failed complete"),
        (0x20, "submit_req file_get poll_arm task_add complete"),
        (0x30, "submit_req file_get queue_async_work complete"),
        (0x31, "submit_req file_get queue_async_work complete"),
        (0x40, "submit_req file_get complete fail_link"),
        (0x41, "submit_req complete"),
        (0x50, "submit_req complete"),
        (0x51, "submit_req defer complete"),
        (0x63, "submit_req complete"),
        (0x64, "submit_req cqe_overflow"),
    ] {
        assert_eq!(names_of(user_data), names, "{user_data:#x}: {hits:#?}");
    }
    let one = |name: &str, user_data| hits.iter().find(|hit| hit.name == name && hit.is_of(user_data)).unwrap();
    assert_eq!(one("complete", 0x10).field("res"), 1);
    assert_eq!(one("submit_req", 0x11).op_str, "NOP");
    assert_eq!(one("req_failed", 0x12).field("error"), -22);
    assert_eq!((one("req_failed", 0x12).field("opcode"), one("req_failed", 0x12).op_str.as_str()), (200, "INVALID"));
    assert_eq!(one("poll_arm", 0x20).op_str, "RECV");
    assert_eq!(one("task_add", 0x20).field("mask") & 1, 1);
    assert_eq!(one("complete", 0x41).field("res"), -125);
    assert_eq!(one("complete", 0x50).field("res"), -62);
    assert_eq!(one("submit_req", 0x51).field("flags"), 2);
    let (first, second) = (one("submit_req", 0x40).field("req"), one("submit_req", 0x41).field("req"));
    assert_eq!(one("fail_link", 0x40).field("link"), second);
    let all = |name: &str| hits.iter().filter(|hit| hit.name == name).collect::<Vec<_>>();
    let link = all("link");
    assert_eq!(link.len(), 1, "{link:?}");
    assert_eq!((link[0].field("req"), link[0].field("target_req")), (second, first));
    let created = all("create");
    assert_eq!(created.iter().map(|hit| hit.field("sq_entries")).collect::<Vec<_>>(), [8, 2, 1]);
    assert_eq!(created[0].field("ctx"), one("submit_req", 0x11).field("ctx"));
    assert!(created[0].field("fd") >= 0);
    let registered = all("register");
    assert_eq!(registered.len(), 1, "{registered:?}");
    assert_eq!((registered[0].field("nr_files"), registered[0].field("ret")), (3, 0));
    assert!(all("cqring_wait").iter().any(|hit| hit.field("min_events") == 1));
    assert!(all("task_work_run").iter().any(|hit| hit.field("count") == 1));
    assert!(all("local_work_run").iter().any(|hit| hit.field("count") == 1));
}

#[test]
fn no_probe_fires_while_the_semaphore_is_zero() {
    let hits = traced_steps(0);
    assert!(hits.is_empty(), "{hits:?}");
}

/// A running bpftrace, which ends when this value is dropped.
struct Tracer {
    child: Child,
    said: PathBuf,
}

impl Tracer {
    fn start(stage: &Stage, script: &str) -> Tracer {
        let said = stage.path("bpftrace.out");
        let mut command = Command::new("bpftrace");
        command.args(["-B", "line", "-e", script]).stdin(Stdio::null()).stdout(File::create(&said).unwrap());
        Tracer { child: command.spawn().expect("bpftrace"), said }
    }

    /// Waits until bpftrace has printed the text, and returns all that it has printed.
    fn wait_for(&mut self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            let said = fs::read_to_string(&self.said).unwrap();
            if said.contains(text) {
                return said;
            }
            assert!(self.child.try_wait().unwrap().is_none() && begin.elapsed() < LIMIT, "no {text} in {said}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn has_bpftrace() -> bool {
    let mut command = Command::new("bpftrace");
    let output = command.args(["-e", "BEGIN { exit(); }"]).stdin(Stdio::null()).output();
    is_root() && output.is_ok_and(|output| output.status.success())
}

#[test]
fn bpftrace_runs_the_documented_script_on_programs_before_and_after_their_start() {
    if !has_bpftrace() {
        return skip("bpftrace cannot trace here");
    }
    const LIBRARY: &str = "/usr/lib/usring/libusring.so";
    let stage = Stage::new();
    let text = include_str!("../../docs/tracing.md");
    let begin = text.find("bpftrace -e '").expect("a script is documented");
    let (_, script) = text[begin..].split_once('\'').unwrap();
    let (script, _) = script.split_once('\'').unwrap();
    let library = library(&stage).display().to_string();
    let script = format!(
        "{} usdt:{library}:io_uring:io_uring_create {{ printf(\"create %d.\\n\", pid); }} \
         usdt:{library}:io_uring:io_uring_cqe_overflow, usdt:{library}:io_uring:io_uring_complete \
         /!@seen[pid]/ {{ @seen[pid] = 1; printf(\"complete %d.\\n\", pid); }} interval:s:1 {{ print(@ns); }}",
        script.replace(LIBRARY, &library)
    );
    let program = stage.compile("probed.c", &["-luring"]);
    let start = || stage.program(World::Transparent, &program).arg("nops").limit(LIMIT).start();
    let early = start();
    let mut tracer = Tracer::start(&stage, &script);
    tracer.wait_for(&format!("complete {}.", early.id()));
    let late = start();
    tracer.wait_for(&format!("create {}.\n", late.id()));
    tracer.wait_for(&format!("complete {}.\n", late.id()));
    // The latencies of opcode 0, NOP.
    tracer.wait_for("@ns[0]:");
}
