//! Compares every case of the suite on the kernel and on usring. The transcripts must agree, case
//! by case.
//!
//! There is one test per group of cases. Each case runs in its own process with a time limit of a
//! minute. If it takes longer, its output ends with `hang`.
//!
//! On Linux 6.18, the case also runs on the kernel, and its output must match the transcript below
//! the case. On any other kernel, or if io_uring is off, the recorded transcripts stand in for the
//! kernel, and the test says so. If usring differs on purpose, the case has a second transcript for
//! usring. A case in `not-yet.txt` runs only on the kernel.
//!
//! usring is `$USRING_BIN`, or `target/PROFILE/usring`, which `cargo xtask build` makes. Each case
//! runs on usring twice, once by each entry point: libc's `syscall()`, and a system call
//! instruction in the program itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

#[path = "../../xtask/src/skipped.rs"]
mod skipped;

const PROGRAM: &str = env!("CARGO_BIN_EXE_conformance");
const LIMIT: Duration = Duration::from_secs(60);

/// The kernel release whose output is recorded.
const RECORDED: &str = "6.18";

macro_rules! groups {
    ($($group:ident)*) => {
        const GROUPS: &[&str] = &[$(stringify!($group)),*];
        $(#[test] fn $group() { agree(stringify!($group)); })*
    };
}

groups! {
    setup setup_flags mmap enter nop enter_wait overflow read_write vectored rw_flags advice space
    send_receive message wait_all edges selected_buffer receive_multishot receive_multishot_ends receive_short
    bundle bundle_attempts bundle_turns zero_copy sync fixed_io streams broken_pipe read_multishot open_close direct stat poll poll_multishot timeout timeout_remove
    link_timeout link_wakes link drain forced skip_success sync_cancel cancel file_life one_file registered_files
    files_update registered_buffers pinned_memory buffer_group buffer_ring eventfd probe restrictions ring_fds
    workers clock personality sq_thread iopoll uring_cmd task_work single_issuer shapes readiness descriptor limits fork
    inherited inherited_wait inherited_close inherited_death inherited_cancel inherited_chain inherited_drain
    inherited_overflow inherited_register inherited_multishot inherited_flags inherited_sq_thread inherited_memory inherited_exec
    exec exit signals stress hostile kinds disk direct_io threads
    aio_context aio_moved aio_submit aio_events
    message_ring message_file message_wake epoll_wait socket_command napi rights rights_later
    pipe splice attributes wait_id
    socket accept accept_address accept_direct accept_multishot accept_shared connect
}

/// The output of a case that only root can run.
const NEEDS_SUPERUSER: &str = ": needs a superuser\n";

/// Part of the output of a case that needs a feature of the kernel, if this machine's kernel lacks
/// that feature.
const NEEDS_KERNEL: &str = ": this kernel has no ";

/// Cases that fail on usring for now. Each line is `CASE: REASON`. These cases run on the kernel,
/// and not on usring.
const NOT_YET: &str = include_str!("../not-yet.txt");

/// Returns the cases that fail on usring for now, each with the reason for it.
fn not_yet() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = NOT_YET.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(": ").unwrap_or_else(|| panic!("not-yet.txt: no reason in `{line}`")))
}

/// Whether cases also run on this machine's kernel.
enum Kernel {
    Live,
    /// io_uring is off, or the kernel is another release. The recorded transcripts stand in for it.
    Recorded,
}

fn kernel() -> &'static Kernel {
    static KERNEL: OnceLock<Kernel> = OnceLock::new();
    KERNEL.get_or_init(|| {
        let output = Command::new(PROGRAM).arg("kernel").output().expect("the suite's program");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
        let (release, answer) = text.split_once(' ').unwrap_or((&text, ""));
        let why = if answer.starts_with('-') {
            format!("the kernel's io_uring is off here ({answer})")
        } else if !release.starts_with(&format!("{RECORDED}.")) {
            format!("the kernel here is {release}, not {RECORDED}")
        } else {
            return Kernel::Live;
        };
        // Writes to standard error itself, because the test harness would hide the output of a test
        // that passes.
        let said = format!("conformance: {why}; the transcripts recorded from Linux {RECORDED} stand in for it\n");
        let _ = std::io::stderr().lock().write_all(said.as_bytes());
        Kernel::Recorded
    })
}

fn usring() -> PathBuf {
    let path = std::env::var_os("USRING_BIN").map(PathBuf::from).unwrap_or_else(|| {
        let program = Path::new(PROGRAM);
        program.parent().expect("a program lies in a directory").join("usring")
    });
    assert!(
        path.is_file(),
        "there is no {}: build it with `cargo xtask build`, or name it in USRING_BIN",
        path.display()
    );
    path
}

/// Returns the recorded outputs of a group's cases, by the names of the cases. They are those on
/// usring if `usring` is true, and otherwise those on the kernel.
fn recorded(group: &str, usring: bool) -> BTreeMap<String, String> {
    let mut outputs = BTreeMap::<String, String>::new();
    let mut arguments = vec!["show", group];
    if usring {
        arguments.insert(1, "--usring");
    }
    for line in listed(&arguments) {
        let name = line.split(':').next().unwrap_or_default();
        let output = outputs.entry(name.to_owned()).or_default();
        output.push_str(&line);
        output.push('\n');
    }
    outputs
}

fn listed(arguments: &[&str]) -> Vec<String> {
    let output = Command::new(PROGRAM).args(arguments).output().expect("the suite's program");
    String::from_utf8_lossy(&output.stdout).lines().map(String::from).collect()
}

/// Runs a case by `command` and returns its output. If the case crashes or hangs, the last line
/// says so.
fn transcript(mut command: Command, name: &str) -> String {
    let child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    collect(child, name)
}

fn collect(mut child: Child, name: &str) -> String {
    let mut output = child.stdout.take().expect("the output is a pipe");
    let mut errors = child.stderr.take().expect("the errors are a pipe");
    let output = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = output.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = errors.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Ok(Some(status)) = child.try_wait() {
            break Some(status);
        }
        if Instant::now() >= deadline {
            break None;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    // The processes that the case has forked are in its process group. None of them may outlive the
    // case.
    // SAFETY: the call accesses no memory. The process group was made for this child.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    let _ = child.wait();
    let mut text = output.join().unwrap_or_default();
    let _ = match status {
        None => writeln!(text, "{name}: hang"),
        Some(status) if status.success() => Ok(()),
        Some(status) => match status.signal() {
            Some(signal) => writeln!(text, "{name}: died of signal {signal}"),
            None => writeln!(text, "{name}: exit status {}", status.code().unwrap_or(-1)),
        },
    };
    if status.is_none_or(|status| !status.success()) {
        for line in errors.join().unwrap_or_default().lines().take(12) {
            let _ = writeln!(text, "  | {line}");
        }
    }
    text
}

fn on_kernel(name: &str) -> String {
    let mut command = Command::new(PROGRAM);
    command.args(["run", name]);
    transcript(command, name)
}

/// Returns the output of a case on usring, which shows whether the case needs root. If the user is
/// root, returns an empty text instead, because every case can run then.
fn would_say(name: &str) -> String {
    // SAFETY: the call only returns a number.
    if unsafe { libc::geteuid() } == 0 { String::new() } else { on_usring(name, false) }
}

fn on_usring(name: &str, inline: bool) -> String {
    let mut command = Command::new(usring());
    command.args(["run", "--deny-kernel", "--", PROGRAM, "run"]);
    if inline {
        command.arg("--inline");
    }
    command.arg(name);
    transcript(command, name)
}

/// The outputs of a case. `on_kernel` is `None` if the case did not run on the kernel, so that the
/// recorded transcript stands in for it.
struct Transcripts {
    on_kernel: Option<String>,
    /// The outputs on usring, each with the name of its entry point: libc's `syscall()`, or an
    /// instruction.
    on_usring: Vec<(&'static str, String)>,
}

/// Runs a case on the kernel and on usring. On usring, the case runs once by each entry point. If
/// `is_held` is false (a case of `not-yet.txt`), it does not run on usring. All runs take place at
/// one time, because most cases wait most of the time.
fn in_all_ways(name: &str, is_held: bool) -> Transcripts {
    let is_live = matches!(kernel(), Kernel::Live);
    let forms = [("libc", false), ("instruction", true)].into_iter().filter(|_| is_held);
    std::thread::scope(|scope| {
        let kernel = is_live.then(|| scope.spawn(|| on_kernel(name)));
        let forms: Vec<_> = forms.map(|(form, inline)| (form, scope.spawn(move || on_usring(name, inline)))).collect();
        let answer = "a run of a case does not panic";
        Transcripts {
            on_kernel: kernel.map(|run| run.join().expect(answer)),
            on_usring: forms.into_iter().map(|(form, run)| (form, run.join().expect(answer))).collect(),
        }
    })
}

fn difference(report: &mut String, what: &str, wanted: &str, got: &str) {
    if wanted == got {
        return;
    }
    let _ = writeln!(report, "--- {what}");
    let (wanted, got): (Vec<&str>, Vec<&str>) = (wanted.lines().collect(), got.lines().collect());
    for index in 0..wanted.len().max(got.len()) {
        let (left, right) = (wanted.get(index), got.get(index));
        if left != right {
            let _ = writeln!(report, "  line {}", index + 1);
            let _ = writeln!(report, "    wanted {}", left.unwrap_or(&"(nothing)"));
            let _ = writeln!(report, "    got    {}", right.unwrap_or(&"(nothing)"));
        }
    }
}

fn agree(group: &str) {
    let usring = usring();
    let prefix = format!("{group}.");
    let mut report = String::new();
    let mut skipped = 0;
    let mut later: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let (of_kernel, of_usring) = (recorded(group, false), recorded(group, true));
    let expected = |outputs: &BTreeMap<String, String>, name| outputs.get(name).cloned().unwrap_or_default();
    for name in listed(&["list"]).iter().filter(|name| name.starts_with(&prefix)) {
        if would_say(name).contains(NEEDS_SUPERUSER) {
            skipped += 1;
            continue;
        }
        let missing = not_yet().find(|(case, _)| case == name);
        let transcripts = in_all_ways(name, missing.is_none());
        let lacks = |got: &String| got.lines().find(|line| line.contains(NEEDS_KERNEL)).map(str::to_owned);
        if let Some(why) = transcripts.on_kernel.as_ref().and_then(lacks) {
            skipped::skip(&why);
            continue;
        }
        if let Some(got) = transcripts.on_kernel {
            difference(&mut report, &format!("{name}: kernel, against its record"), &expected(&of_kernel, name), &got);
        }
        for (form, got) in transcripts.on_usring {
            difference(&mut report, &format!("{name}: usring, by {form}"), &expected(&of_usring, name), &got);
        }
        if let Some((_, reason)) = missing {
            later.entry(reason).or_default().push(name.clone());
        }
    }
    if skipped > 0 {
        skipped::skip(&format!("{skipped} cases of {group} need a superuser"));
    }
    for (reason, names) in later {
        skipped::skip(&format!("{} cases on usring, because {reason}: {}", names.len(), names.join(" ")));
    }
    assert!(report.is_empty(), "{} disagrees on {group}:\n{report}", usring.display());
}

/// Runs the fixed seeds of the random programs on usring. Compares each output with the kernel's,
/// which is recorded in `random-seeds.txt`.
#[test]
fn random_programs_answer_as_the_kernel() {
    let mut command = Command::new(PROGRAM);
    command.arg("seeds");
    if let Kernel::Live = kernel() {
        command.arg("--kernel");
    }
    let output = command.arg(usring()).output().expect("the suite's program");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn every_module_of_cases_has_a_test() {
    for name in listed(&["list"]) {
        let group = name.split('.').next().unwrap_or_default();
        assert!(GROUPS.contains(&group), "no test runs the group of {name}: add it to `groups!` in tests/agree.rs");
    }
}

#[test]
fn every_case_of_not_yet_txt_exists() {
    let cases = listed(&["list"]);
    for (case, _) in not_yet() {
        assert!(cases.iter().any(|name| name == case), "not-yet.txt: there is no case {case}");
    }
}

/// Each file with a transcript in `src/cases` must be included by a `case!`.
#[test]
fn every_transcript_belongs_to_a_case() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if let Some(stray) = files(&root.join("expected")).first() {
        panic!(
            "{}: a transcript is written below its case now. Write `case!(NAME => \"\");` below the function in \
             src/cases/MODULE.rs, remove this file, and run `cargo run -p conformance -- record MODULE.NAME`.",
            stray.display()
        );
    }
    let (sources, others): (Vec<_>, Vec<_>) = files(&root.join("src/cases"))
        .into_iter()
        .partition(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let sources: Vec<String> = sources.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect();
    for path in others {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let group = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let included = [format!("include_str!(\"{group}/{name}\")"), format!("include_str!(\"{name}\")")];
        let includes = |source: &String| included.iter().any(|text| source.contains(text));
        assert!(sources.iter().any(includes), "{}: no `case!` includes this transcript; remove it", path.display());
    }
}

/// Returns all files of a folder, including those of its subfolders.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.flat_map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { vec![entry.path()] }).collect()
}
