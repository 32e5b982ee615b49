//! The priority of the measured processes. It is raised where the user may do so, so that other
//! processes of the machine disturb them little. The table says whether it was raised.

use nix::errno::Errno;
use std::fs;
use std::process::Child;

const HIGHEST: i32 = -20;
/// Priority of this session among the sessions, where the kernel groups processes by session
/// (sched(7)). There a process's own priority counts only within its session.
const GROUP: &str = "/proc/self/autogroup";

/// The raised priority of this process and of the children that it starts from then on.
pub struct Priority {
    words: &'static str,
    /// The session's priority before.
    group: Option<String>,
}

impl Priority {
    /// Raises the priorities as far as allowed. Dropping restores only the session's.
    pub fn raise() -> Priority {
        // SAFETY: the call takes only numbers.
        let raised = Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, HIGHEST) });
        let words = if raised.is_ok() { "at nice -20" } else { "at ordinary priority" };
        let before = fs::read_to_string(GROUP).unwrap_or_default();
        let before = before.split_whitespace().next_back().map(String::from);
        let group = before.filter(|_| fs::write(GROUP, HIGHEST.to_string()).is_ok());
        Priority { words, group }
    }

    /// Returns a phrase for the head of a table.
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

/// Gives a child the real-time policy SCHED_FIFO, which its threads inherit. If that is not
/// allowed, the child keeps its priority.
pub fn make_realtime(child: &Child) {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads one `sched_param`.
    unsafe { libc::sched_setscheduler(child.id().cast_signed(), libc::SCHED_FIFO, &parameter) };
}
