//! `usring doctor`: reports whether the kernel's io_uring can be used here and, if not, what blocks
//! it. It also reports whether usring works here, by which entry point, and at what cost.

use super::child::{self, System};
use super::probe::{Findings, ProbeResult};
use super::{Failure, Outcome, library, style, swap_probe};
use crate::system_error::words;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit};
use std::process::Command;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  usring doctor
  docker run --rm -v \"$PWD:/usring:ro\" debian /usring/usring doctor
      Reports what a Docker container allows. The current folder has usring and libusring.so.

Exit status: 0 if usring works here, 1 if it does not.";

/// Report what works on this machine, and what blocks the rest: the kernel's io_uring, usring and
/// its swap, with the cost of each.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {}

const TIMEOUT: Duration = Duration::from_secs(20);
/// Column in which the answers begin.
const INDENT: usize = 20;

/// Runs the subcommand.
pub fn run(_options: &Options) -> Outcome {
    if let Err(error) = std::fs::read_link("/proc/self/exe") {
        say("verdict", &format!("usring does not work here: it needs /proc, which is not mounted ({})", words(&error)));
        return Ok(1);
    }
    if is_inside() {
        say(
            "inside a run",
            "this command itself runs under usring, which answers in place of the kernel's io_uring, too",
        );
    }
    say("machine", &machine());
    report_kernel();
    let works = report_usring();
    report_swap();
    say("limits", &limits());
    let verdict = if works { "usring works here" } else { "usring does not work here" };
    say("verdict", &style::verdict(works, verdict));
    Ok(u8::from(!works))
}

/// Returns whether usring's library is loaded in this process: `usring doctor` then runs under
/// `usring run`.
fn is_inside() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(|line| line.rsplit('/').next()).any(|name| name.starts_with("libusring.so"))
}

fn say(what: &str, text: &str) {
    tell!("{what:INDENT$}{text}");
}

fn machine() -> String {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let user = nix::unistd::geteuid();
    format!("Linux {release} on {}, {processors} processors, as user {user}", std::env::consts::ARCH)
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Runs the probe on `system` and returns its findings.
fn probe(system: System) -> Result<Findings, String> {
    let mut command: Command = child::command_on(system, &[], &child::ourselves()?)?;
    let output = child::output_within(command.arg("probe"), TIMEOUT)?;
    if !output.status.success() {
        return Err(child::complaint(&output));
    }
    match serde_json::from_slice(&output.stdout) {
        Ok(ProbeResult::Works(findings)) => Ok(findings),
        Ok(ProbeResult::Fails(error)) => Err(reason(error)),
        Err(_) => Err("the probe's output cannot be parsed".into()),
    }
}

/// Returns the kernel's refusal in words.
fn reason(error: i32) -> String {
    format!("io_uring fails with {}", words(&nix::errno::Errno::from_raw(error)))
}

fn report_kernel() {
    match probe(System::Kernel) {
        Ok(findings) => {
            say("kernel's io_uring", &format!("works, {} per call", nanoseconds(findings.inline)));
        }
        Err(why) => {
            say("kernel's io_uring", &format!("does not work: {why}"));
            say("", &format!("blocked by {}", blocker(&Restrictions::here(), &why)));
        }
    }
    say("restrictions", &Restrictions::here().to_string());
}

/// Settings of this system and process that may block the kernel's io_uring.
struct Restrictions {
    /// The number in /proc/sys/kernel/io_uring_disabled, if the file exists.
    disabled: Option<u32>,
    /// The number in the Seccomp line of /proc/self/status. 2 means that a filter is installed.
    seccomp: Option<u32>,
    filters: u32,
    no_new_privileges: bool,
}

impl Restrictions {
    fn here() -> Restrictions {
        let status = read("/proc/self/status").unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok());
        Restrictions {
            disabled: read("/proc/sys/kernel/io_uring_disabled").and_then(|text| text.parse().ok()),
            seccomp: field("Seccomp:"),
            filters: field("Seccomp_filters:").unwrap_or(0),
            no_new_privileges: field("NoNewPrivs:") == Some(1),
        }
    }
}

impl std::fmt::Display for Restrictions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.disabled {
            Some(value) => write!(f, "io_uring_disabled = {value}, ")?,
            None => f.write_str("no sysctl io_uring_disabled, ")?,
        }
        match (self.seccomp, self.filters) {
            (Some(2), 0 | 1) => f.write_str("a seccomp filter, ")?,
            (Some(2), filters) => write!(f, "{filters} seccomp filters, ")?,
            (Some(1), _) => f.write_str("strict seccomp, ")?,
            _ => f.write_str("no seccomp filter, ")?,
        }
        f.write_str(if self.no_new_privileges { "no_new_privs set" } else { "no_new_privs not set" })
    }
}

/// Returns the likeliest reason for which the kernel refuses io_uring. `why`: the kernel's error in
/// words.
fn blocker(here: &Restrictions, why: &str) -> &'static str {
    let answered = |error: i32| why.contains(&reason(error));
    match here.disabled {
        Some(2) => "the sysctl kernel.io_uring_disabled = 2 (for all users)",
        Some(1) if answered(libc::EPERM) => {
            "the sysctl kernel.io_uring_disabled = 1 (for users who are neither privileged nor in io_uring_group)"
        }
        _ if answered(libc::ENOMEM) => "the limit on locked memory (kernels before 5.12 charge rings to it)",
        _ if here.seccomp == Some(2) => "a seccomp filter, such as the default profile of Docker or podman",
        _ if answered(libc::ENOSYS) => "the kernel, which was built without io_uring",
        _ if answered(libc::EPERM) => "a security module (SELinux, AppArmor) or a sandbox that /proc does not show",
        _ => "a cause that /proc does not show",
    }
}

/// Prints how usring works here with rewritten call sites, and how without them. Returns whether
/// usring serves a program here.
fn report_usring() -> bool {
    if let Err(Failure { sentence, .. }) = library::find() {
        say("usring", &format!("does not work: {sentence}"));
        return false;
    }
    let works = match probe(System::Usring(&["--deny-kernel"])) {
        Ok(findings) => {
            let inline = nanoseconds(findings.inline);
            let libc = nanoseconds(findings.libc);
            let site = if findings.patched { "rewritten" } else { "trapped (code cannot be rewritten here)" };
            say("usring", &format!("works: call sites are {site}, {inline} per call; through libc {libc}"));
            true
        }
        Err(why) => {
            say("usring", &format!("does not work: {why}"));
            if let Some(remedy) = super::limits::too_low() {
                say("", &remedy);
            }
            false
        }
    };
    match probe(System::Usring(&["--deny-kernel", "--no-patch"])) {
        Ok(findings) => say("  without patching", &format!("works: {} per call", nanoseconds(findings.inline))),
        Err(why) => say("  without patching", &format!("does not work: {why}")),
    }
    works
}

/// Prints lines on each mechanism of swap, and on whether `run --swap` works for a program.
fn report_swap() {
    for (index, finding) in swap_probe::findings().into_iter().enumerate() {
        say(if index == 0 { "swap" } else { "" }, &finding);
    }
    say("  run --swap", &swap_probe::of_a_program());
}

fn nanoseconds(value: f64) -> String {
    if value < 1000.0 { format!("{value:.0} ns") } else { format!("{:.1} µs", value / 1000.0) }
}

fn limits() -> String {
    let limit = |resource, unit: u64, name: &str| match getrlimit(resource) {
        Ok((libc::RLIM_INFINITY, _)) => "unlimited".to_owned(),
        Ok((soft, _)) => format!("{}{name}", soft / unit),
        Err(_) => "unknown".to_owned(),
    };
    let files = limit(Resource::RLIMIT_NOFILE, 1, "");
    let memory = limit(Resource::RLIMIT_AS, 1 << 20, " MiB");
    let locked = limit(Resource::RLIMIT_MEMLOCK, 1 << 10, " KiB");
    let group = read("/sys/fs/cgroup/memory.max").filter(|text| text != "max");
    let group = group.map_or(String::new(), |bytes| format!(", control group {bytes} bytes"));
    format!("open files {files}, address space {memory}, locked memory {locked}{group}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restrictions(disabled: Option<u32>, seccomp: u32) -> Restrictions {
        Restrictions { disabled, seccomp: Some(seccomp), filters: 1, no_new_privileges: false }
    }

    #[test]
    fn the_sysctl_is_named_before_the_sandbox() {
        let blocked = |disabled, seccomp, error| blocker(&restrictions(disabled, seccomp), &reason(error));
        assert!(blocked(Some(2), 2, libc::EPERM).contains("io_uring_disabled = 2"));
        assert!(blocked(Some(1), 0, libc::EPERM).contains("io_uring_disabled = 1"));
        assert!(blocked(Some(0), 2, libc::EPERM).contains("seccomp"));
        assert!(blocked(None, 2, libc::ENOSYS).contains("seccomp"));
        assert!(blocked(None, 0, libc::ENOSYS).contains("built without"));
        assert!(blocked(Some(0), 0, libc::EPERM).contains("security module"));
        assert!(blocked(Some(0), 0, libc::ENOMEM).contains("locked memory"));
    }
}
