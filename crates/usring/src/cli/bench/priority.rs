//! The priority of what is measured, so that other processes of the machine disturb
//! it little. It is raised where the user may do so, and the table says whether.

use nix::errno::Errno;
use std::fs;
use std::process::Child;

const HIGHEST: i32 = -20;
/// The priority of this session among others, where the kernel groups processes by
/// session (sched(7)): there a process's own holds within its session alone.
const GROUP: &str = "/proc/self/autogroup";

/// The priority of this process and its children, from when it is made.
pub struct Priority {
    words: &'static str,
    /// What the session had before.
    group: Option<String>,
}

impl Priority {
    /// Raises it as far as that is allowed. It stays so, but for the session's.
    pub fn raise() -> Priority {
        // SAFETY: the call takes numbers alone.
        let raised = Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, HIGHEST) });
        let words = if raised.is_ok() { "at nice -20" } else { "at ordinary priority" };
        let before = fs::read_to_string(GROUP).unwrap_or_default();
        let before = before.split_whitespace().next_back().map(String::from);
        let group = before.filter(|_| fs::write(GROUP, HIGHEST.to_string()).is_ok());
        Priority { words, group }
    }

    /// For the head of a table.
    pub fn words(&self) -> &'static str {
        self.words
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        if let Some(before) = &self.group {
            let _ = fs::write(GROUP, before);
        }
    }
}

/// Gives a child the real-time policy SCHED_FIFO, which its threads inherit. Where that
/// is not allowed, it keeps its priority.
pub fn make_realtime(child: &Child) {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads one `sched_param`.
    unsafe { libc::sched_setscheduler(child.id().cast_signed(), libc::SCHED_FIFO, &parameter) };
}
