//! The priority of the measured processes. It is raised if the user has the right to raise it, so
//! that other processes of the machine hardly disturb the measurement. The table says whether the
//! priority was raised.

use nix::errno::Errno;
use std::fs;
use std::process::Child;

const HIGHEST: i32 = -20;
/// File with the priority of this session among all sessions. It exists if the kernel groups
/// processes by session (sched(7)). A process's own priority then counts only within its session.
const GROUP: &str = "/proc/self/autogroup";

/// The raised priority of this process. Children that this process starts later inherit it.
pub struct Priority {
    words: &'static str,
    /// The session's previous priority.
    group: Option<String>,
}

impl Priority {
    /// Raises the priorities of this process and of its session as far as the user may. Dropping
    /// the [`Priority`] restores only the session's priority.
    pub fn raise() -> Priority {
        // SAFETY: the call takes only numbers.
        let raised = Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, HIGHEST) });
        let words = if raised.is_ok() { "at nice -20" } else { "at ordinary priority" };
        let before = fs::read_to_string(GROUP).unwrap_or_default();
        let before = before.split_whitespace().next_back().map(String::from);
        let group = before.filter(|_| fs::write(GROUP, HIGHEST.to_string()).is_ok());
        Priority { words, group }
    }

    /// Returns the priority as a phrase for the head of a table.
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

/// Gives a child the real-time policy SCHED_FIFO, which the child's threads inherit. If the user
/// may not do so, the child keeps its priority.
pub fn make_realtime(child: &Child) {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads one `sched_param`.
    unsafe { libc::sched_setscheduler(child.id().cast_signed(), libc::SCHED_FIFO, &parameter) };
}
