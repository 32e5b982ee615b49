//! `--deny-kernel`: the kernel's io_uring answers EPERM from here on, in this
//! process and everything it starts, as under Docker's default profile. What
//! works then is usring's doing: nothing can fall through.

use super::Failure;
use nix::libc;
use seccompiler::sock_filter;

/// io_uring_setup, io_uring_enter and io_uring_register lie side by side.
const FIRST: u32 = libc::SYS_io_uring_setup as u32;
const LAST: u32 = libc::SYS_io_uring_register as u32;
/// Bit by which the x32 ABI marks its calls.
const X32_BIT: u32 = 0x4000_0000;

/// Installs no_new_privs and the filter; there is no way back.
pub fn install() -> Result<(), Failure> {
    seccompiler::apply_filter(&program()).map_err(|error| {
        Failure::new(format!("cannot install the --deny-kernel filter ({error}); does this sandbox forbid seccomp(2)?"))
    })
}

/// Written by hand where seccompiler would compile a rule set, because that
/// kills calls of other architectures; the three numbers are the same on
/// x86-64, x32 and i386, so here they simply get the same answer.
fn program() -> [sock_filter; 6] {
    let statement = |code: u32, k| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = |code: u32, k, jt, jf| sock_filter { code: code as u16, jt, jf, k };
    [
        // The number is the first word of struct seccomp_data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, !X32_BIT),
        jump(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, FIRST, 0, 2),
        jump(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, LAST, 1, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ]
}
