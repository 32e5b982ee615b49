//! Child processes of cases. They are forked children, some of which execute this program again.

use std::process::ExitCode;

/// Runs `work` in a forked child. The result of `work` is the child's exit status. Returns how the
/// child has ended, as text such as `exit 0` or `signal 9`.
pub fn forked(work: impl FnOnce() -> i32) -> String {
    let child = start(work);
    ending(child)
}

/// Starts `work` in a forked child. The result of `work` is the child's exit status. Returns the
/// child's process id.
pub fn start(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the process has only one thread at the fork, so the child inherits no locked lock.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let status = work();
        // SAFETY: the call ends the child here.
        unsafe { libc::_exit(status) };
    }
    child
}

/// Waits until the child ends. Returns how it has ended, as text such as `exit 0` or `signal 9`.
pub fn ending(child: i32) -> String {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a variable of this function.
        let answer = unsafe { libc::waitpid(child, &mut status, 0) };
        if answer == child {
            break;
        }
        if crate::syscalls::errno() != libc::EINTR {
            return "not a child".into();
        }
    }
    if libc::WIFEXITED(status) {
        format!("exit {}", libc::WEXITSTATUS(status))
    } else {
        format!("signal {}", libc::WTERMSIG(status))
    }
}

/// Runs the subcommand `conformance child NAME …`, by which some cases execute this program again.
pub fn child(name: &str, arguments: &[&str]) -> ExitCode {
    match crate::cases::child(name, arguments) {
        Some(status) => ExitCode::from(status),
        None => ExitCode::from(2),
    }
}

/// Installs a seccomp filter in this process. From then on, the system call `call` fails with
/// EPERM.
pub fn deny(call: i64) {
    deny_with(call, libc::EPERM);
}

/// Installs a seccomp filter in this process. From then on, the system call `call` fails with
/// `errno`.
pub fn deny_with(call: i64, errno: i32) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = [
        // Loads the first word of struct seccomp_data, which is the number of the system call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32) },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter, and the instructions to which it points, live until prctl(2) returns.
    let answer = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}
