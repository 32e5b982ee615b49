//! The environment of a program that usring serves: LD_PRELOAD for the loader, and the variables
//! that the library's constructor reads.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

const PRELOAD: &str = "LD_PRELOAD";
/// If set, the library rewrites no call site, so that every call goes through the trap.
const NO_PATCH: &str = "USRING_NO_PATCH";
/// If set, io_uring_enter polls the devices of a polled ring even if the ring has an SQ thread.
/// `usring bench sqpoll-iopoll` or the user sets it.
pub const POLLING_ENTER: &str = "USRING_POLLING_ENTER";
/// If set, io_getevents of libaio polls devices for events.
pub const AIO_POLL: &str = "USRING_AIO_POLL";
/// Limit in nanoseconds. A thread that waits for a single O_DIRECT transfer polls instead of
/// sleeping if it expects the transfer to take no longer than the limit.
const SPIN: &str = "USRING_SPIN";
/// Descriptor number of an eventfd. The program's first process checks, by an io_uring_enter of its
/// own, that the trap leads to usring. If so, it writes 1 to the eventfd and closes it. Otherwise
/// it says why, and exits with status 125.
const PROBE: &str = "USRING_PROBE_FD";
/// A variable without a meaning. The launcher adds it if the number of variables that the
/// constructor removes would otherwise be odd.
///
/// The kernel puts the auxiliary vector directly after the environment, and Go's runtime looks for
/// it there. So the variables that the constructor removes must leave no gap. The constructor fills
/// their space with entries of the auxiliary vector that every reader ignores. Each entry takes the
/// space of two variables.
const PAD: &str = "USRING_PAD";
/// Path of the launcher's socket, if the run has devices.
const DEVICES: &str = "USRING_DEVICES";
/// Path of the page with the run's rules for faults.
const FAULTS: &str = "USRING_FAULTS";
/// Path of the log in which the library records changes of files, for `usring crash`.
const CRASH: &str = usring_record::format::ENVIRONMENT;
/// Mode of `--check` and path of the file of findings.
const CHECK: &str = "USRING_CHECK";
/// Path of the memory in which the stacks of requests in flight are shared.
const STACKS: &str = "USRING_CHECK_STACKS";
/// Path of the memory in which requests are recorded.
const TRACE: &str = "USRING_TRACE";
/// The options of the run's swapped memory.
const SWAP: &str = "USRING_SWAP";
/// Path of the launcher's socket, if the run's swapped memory is on a back end.
const SWAP_SOCKET: &str = "USRING_SWAP_SOCKET";
/// Path of the file in which the program's processes count what their swapped memory does.
const SWAP_STATISTICS: &str = "USRING_SWAP_STATS";
/// If set, the library ends a program that it cannot serve. The launcher sets it for every program.
const STRICT: &str = "USRING_STRICT";
/// If set, the library serves only programs that Valgrind runs.
const VALGRIND: &str = "USRING_VALGRIND";
/// Path of a file for the library's messages, set by the user.
const LOG: &str = "USRING_LOG";
/// A sanitizer's runtime that the launcher has added to LD_PRELOAD. The constructor removes it from
/// LD_PRELOAD again.
const RUNTIME: &str = "USRING_RUNTIME";
/// Path of the statistics file.
const STATISTICS: &str = usring_engine::statistics::ENVIRONMENT;

/// The variables that the library's constructor removes, except [`PAD`].
const OF_LIBRARY: [&str; 19] = [
    PROBE,
    NO_PATCH,
    POLLING_ENTER,
    AIO_POLL,
    SPIN,
    STATISTICS,
    DEVICES,
    FAULTS,
    CRASH,
    CHECK,
    STACKS,
    TRACE,
    SWAP,
    SWAP_SOCKET,
    SWAP_STATISTICS,
    STRICT,
    VALGRIND,
    LOG,
    RUNTIME,
];

/// The variables for an execve(2), in the order in which this process has them.
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// Returns this process's environment, for the program of a new run. Leaves out the variables
    /// by which an outer `usring run` has configured this process.
    pub fn inherited() -> Environment {
        let for_us = |name: &OsStr| {
            let ours = [PROBE, STATISTICS, DEVICES, FAULTS, CRASH, CHECK, TRACE, SWAP, SWAP_SOCKET, SWAP_STATISTICS];
            ours.iter().chain(&[STRICT, STACKS, VALGRIND, RUNTIME, PAD]).any(|ours| name == *ours)
        };
        Environment(std::env::vars_os().filter(|(name, _)| !for_us(name)).collect())
    }

    /// Returns a reference to the value of a variable. Adds the variable with an empty value if it
    /// is missing.
    fn entry(&mut self, name: &str) -> &mut OsString {
        let index = self.0.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.0.push((name.into(), OsString::new()));
            self.0.len() - 1
        });
        &mut self.0[index].1
    }

    /// Adds `library` to LD_PRELOAD, unless LD_PRELOAD names it already. Libraries that the user
    /// preloads stay in front of `library`. So they get the program's calls first, as if the kernel
    /// served the program. `runtime`, the sanitizer's runtime that the program is linked to, comes
    /// first, because it must be loaded first.
    pub fn preload(&mut self, library: &Path, runtime: Option<&OsStr>) {
        let list = self.entry(PRELOAD);
        if names(list, library.as_os_str()) {
            return;
        }
        let runtime = runtime.filter(|runtime| !names(list, runtime));
        let given = (!list.is_empty()).then(|| list.clone());
        let parts: Vec<&OsStr> = runtime.into_iter().chain(given.as_deref()).chain([library.as_os_str()]).collect();
        *list = parts.join(OsStr::new(":"));
        if let Some(runtime) = runtime {
            *self.entry(RUNTIME) = runtime.into();
        }
    }

    pub fn forbid_patching(&mut self) {
        *self.entry(NO_PATCH) = "1".into();
    }

    /// Makes the library serve only programs that Valgrind runs.
    pub fn of_valgrind(&mut self) {
        *self.entry(VALGRIND) = "1".into();
    }

    pub fn poll_for_aio(&mut self) {
        *self.entry(AIO_POLL) = "1".into();
    }

    pub fn spin(&mut self, limit: u64) {
        *self.entry(SPIN) = limit.to_string().into();
    }

    pub fn probe(&mut self, descriptor: i32) {
        *self.entry(PROBE) = descriptor.to_string().into();
    }

    pub fn statistics(&mut self, path: &str) {
        *self.entry(STATISTICS) = path.into();
    }

    pub fn swap(&mut self, text: &str) {
        *self.entry(SWAP) = text.into();
    }

    pub fn swap_statistics(&mut self, path: &str) {
        *self.entry(SWAP_STATISTICS) = path.into();
    }

    /// Makes the library end a program that it cannot serve.
    pub fn refuse_unserved(&mut self) {
        *self.entry(STRICT) = "1".into();
    }

    pub fn swap_socket(&mut self, socket: &Path) {
        *self.entry(SWAP_SOCKET) = socket.into();
    }

    pub fn faults(&mut self, path: &str) {
        *self.entry(FAULTS) = path.into();
    }

    pub fn check(&mut self, text: &str) {
        *self.entry(CHECK) = text.into();
    }

    pub fn stacks(&mut self, path: &str) {
        *self.entry(STACKS) = path.into();
    }

    pub fn trace(&mut self, text: &str) {
        *self.entry(TRACE) = text.into();
    }

    pub fn record(&mut self, log: &Path) {
        *self.entry(CRASH) = log.into();
    }

    pub fn devices(&mut self, socket: &Path) {
        *self.entry(DEVICES) = socket.into();
    }

    /// Returns whether the constructor removes this variable from the environment. It removes
    /// usring's own variables. It also removes LD_PRELOAD, unless LD_PRELOAD names a library of the
    /// user's.
    fn is_for_library(&self, (name, value): &(OsString, OsString)) -> bool {
        let runtime = usize::from(self.0.iter().any(|(name, _)| name == RUNTIME));
        let alone = || parts(value).count() == 1 + runtime;
        OF_LIBRARY.iter().any(|known| name == known) || (name == PRELOAD && alone())
    }

    /// Returns the variables as execve(2) takes them: `NAME=VALUE`.
    pub fn strings(mut self) -> Vec<CString> {
        if !self.0.iter().filter(|variable| self.is_for_library(variable)).count().is_multiple_of(2) {
            *self.entry(PAD) = "1".into();
        }
        let join = |(mut name, value): (OsString, OsString)| {
            name.push("=");
            name.push(value);
            // Names and values of environment variables contain no NUL byte, so no variable is lost
            // here.
            CString::new(name.into_vec()).ok()
        };
        self.0.into_iter().filter_map(join).collect()
    }
}

/// Returns the paths in a value of LD_PRELOAD.
fn parts(list: &OsStr) -> impl Iterator<Item = &[u8]> {
    list.as_bytes().split(|byte| matches!(byte, b' ' | b':')).filter(|part| !part.is_empty())
}

fn names(list: &OsStr, path: &OsStr) -> bool {
    parts(list).any(|part| part == path.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preloaded(before: Option<&str>, runtime: Option<&str>) -> String {
        let mut environment = Environment(Vec::new());
        if let Some(list) = before {
            *environment.entry(PRELOAD) = list.into();
        }
        environment.preload(Path::new("/opt/libusring.so"), runtime.map(OsStr::new));
        environment.entry(PRELOAD).to_string_lossy().into_owned()
    }

    #[test]
    fn an_existing_preload_is_kept_in_front() {
        assert_eq!(preloaded(None, None), "/opt/libusring.so");
        assert_eq!(preloaded(Some(""), None), "/opt/libusring.so");
        assert_eq!(preloaded(Some("/lib/libfirst.so"), None), "/lib/libfirst.so:/opt/libusring.so");
    }

    #[test]
    fn the_library_is_never_preloaded_twice() {
        assert_eq!(preloaded(Some("/opt/libusring.so"), None), "/opt/libusring.so");
        assert_eq!(preloaded(Some("/a.so /opt/libusring.so:/b.so"), None), "/a.so /opt/libusring.so:/b.so");
    }

    #[test]
    fn a_sanitizers_runtime_is_preloaded_first_and_only_once() {
        let runtime = Some("libasan.so.8");
        assert_eq!(preloaded(None, runtime), "libasan.so.8:/opt/libusring.so");
        assert_eq!(preloaded(Some("/a.so"), runtime), "libasan.so.8:/a.so:/opt/libusring.so");
        assert_eq!(preloaded(Some("libasan.so.8"), runtime), "libasan.so.8:/opt/libusring.so");
    }
}
