//! Regions in restricted processes: unprivileged users, sandboxes, memory limits.

use crate::common::{MIB, is_child, region, run_child, word};
use crate::skipped::skip;
use fastrand::Rng;
use std::os::unix::process::CommandExt;
use std::sync::atomic::Ordering;
use usring_swap::{Mechanism, SwapRegion};

const NOBODY: u32 = 65534;

/// Increments random words, and checks the sum of all words.
pub fn churn(region: &SwapRegion, rounds: usize) {
    const PART: usize = 512;
    let parts = region.size() / PART;
    let mut random = Rng::with_seed(3);
    for _ in 0..rounds {
        word(region, random.usize(..parts) * PART).fetch_add(1, Ordering::Relaxed);
    }
    let sum: u64 = (0..parts).map(|part| word(region, part * PART).load(Ordering::Relaxed)).sum();
    assert_eq!(sum, rounds as u64);
}

/// Makes userfaultfd(2), process_madvise(2) and io_uring_setup(2) fail with EPERM, as the default
/// profile of Docker does.
fn deny_as_docker() -> std::io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let equal = |number: i64, skip| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: skip,
        jf: 0,
        k: number as u32,
    };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        equal(libc::SYS_userfaultfd, 3),
        equal(libc::SYS_process_madvise, 2),
        equal(libc::SYS_io_uring_setup, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `program` points to the instructions of `filter`, which lives until both calls
    // return.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
        {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

fn become_nobody() -> std::io::Result<()> {
    // SAFETY: the calls pass only numbers. The forked child has one thread, so setuid(3) waits for
    // no other thread.
    unsafe {
        if libc::geteuid() == 0 && (libc::setgid(NOBODY) != 0 || libc::setuid(NOBODY) != 0) {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Copies the test binary to a folder where any user may execute it. cp(1) writes the copy. If this
/// process wrote it, a child that another test starts at that moment could inherit the open file.
/// The kernel executes no file that a process has open for writing.
fn binary_for_everybody() -> (tempfile::TempDir, std::path::PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("region");
    let copied = std::process::Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&path).status();
    assert!(copied.expect("cp").success());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    (folder, path)
}

fn child_as_nobody(test: &str, denied: bool) {
    let (_folder, binary) = binary_for_everybody();
    let mut command = std::process::Command::new(binary);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env("USRING_SWAP_TEST_CHILD", "1");
    command.current_dir("/").env("MECHANISM", if denied { "guard" } else { "userfault" });
    // SAFETY: between fork and exec the closure makes only system calls, and it takes no lock.
    unsafe {
        command.pre_exec(move || {
            become_nobody()?;
            if denied { deny_as_docker() } else { Ok(()) }
        });
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{said}", output.status);
}

#[test]
fn the_best_mechanism_is_chosen_for_user_nobody_and_under_dockers_rules() {
    if is_child() {
        let region = region(4 * MIB, MIB, "ram:size=8M").build().unwrap();
        let expected = std::env::var("MECHANISM").unwrap();
        if region.mechanism() != Mechanism::Protect {
            assert_eq!(region.mechanism().name(), expected);
        }
        return churn(&region, 20_000);
    }
    let name = "process::the_best_mechanism_is_chosen_for_user_nobody_and_under_dockers_rules";
    child_as_nobody(name, false);
    child_as_nobody(name, true);
}

/// Bytes of memory that the process may need beyond the region's limit. They are for a word and a
/// page-table entry for each page, for queues, stacks, and the test binary itself.
const SLACK: usize = 4 * MIB;

/// A memory control group. [`Group::new`] makes a group with a limit on its memory in bytes. It
/// returns `None` if the system does not allow this process to make a group.
struct Group(std::path::PathBuf);

impl Group {
    fn new(bytes: usize) -> Option<Group> {
        let name = format!("usring-swap-{}", std::process::id());
        let version_1 = std::path::Path::new("/sys/fs/cgroup/memory").join(&name);
        let version_2 = std::path::Path::new("/sys/fs/cgroup").join(&name);
        let (path, file) = match std::fs::create_dir(&version_1) {
            Ok(()) => (version_1, "memory.limit_in_bytes"),
            Err(_) => {
                std::fs::create_dir(&version_2).ok()?;
                (version_2, "memory.max")
            }
        };
        let group = Group(path);
        std::fs::write(group.0.join(file), bytes.to_string()).ok()?;
        // Forbids the kernel to swap out the group's memory.
        let _ = std::fs::write(group.0.join("memory.swap.max"), "0");
        let _ = std::fs::write(group.0.join("memory.memsw.limit_in_bytes"), bytes.to_string());
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_control_group_of_the_limit_plus_slack_holds_the_process() {
    if is_child() {
        let path = std::env::var("STORE").unwrap();
        let mechanism = Mechanism::of_name(&std::env::var("MECHANISM").unwrap()).unwrap();
        let backing = format!("file:path={path},size=256M,create=on,direct=on");
        // With the default number of queues, the memory of the queues alone could exceed `SLACK`.
        let region = region(96 * MIB, 16 * MIB, &backing).mechanism(mechanism).queues(4).build().unwrap();
        return churn(&region, 15_000);
    }
    let Some(group) = Group::new(16 * MIB + SLACK) else {
        return skip("no memory control group can be made here");
    };
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let store = folder.path().join("store");
    for mechanism in crate::common::mechanisms() {
        std::fs::File::create(&store).unwrap();
        let members = std::ffi::CString::new(group.0.join("cgroup.procs").to_str().unwrap()).unwrap();
        let output = run_child("process::a_control_group_of_the_limit_plus_slack_holds_the_process", |command| {
            command.env("STORE", &store).env("MECHANISM", mechanism.name());
            // SAFETY: between fork and exec the closure makes only system calls, and it takes no
            // lock.
            unsafe {
                command.pre_exec(move || {
                    let file = libc::open(members.as_ptr(), libc::O_WRONLY);
                    let written = libc::write(file, c"0".as_ptr().cast(), 1);
                    if written == 1 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
                });
            }
        });
        let said = String::from_utf8_lossy(&output.stderr);
        let peak = std::fs::read_to_string(group.0.join("memory.max_usage_in_bytes")).unwrap_or_default();
        println!("{mechanism}: peak {}", peak.trim());
        assert!(output.status.success(), "{mechanism}: {:?}\n{said}", output.status);
    }
}
