//! `--deny-kernel`: a seccomp filter by which the kernel's io_uring calls answer EPERM, in this
//! process and its descendants, as under Docker's default profile. If a program's io_uring calls
//! succeed nevertheless, usring has answered them.

use super::Failure;
use crate::system_error::words;
use nix::libc;
use seccompiler::sock_filter;
use usring_sys::width;

/// io_uring_setup, io_uring_enter and io_uring_register have consecutive numbers.
const FIRST: u32 = width::low(libc::SYS_io_uring_setup.cast_unsigned());
const LAST: u32 = width::low(libc::SYS_io_uring_register.cast_unsigned());
/// Bit that marks calls of the x32 ABI.
const X32_BIT: u32 = 0x4000_0000;

/// Sets no_new_privs and installs the filter. Neither can be undone.
pub fn install() -> Result<(), Failure> {
    seccompiler::apply_filter(&program()).map_err(|error| {
        Failure::new(format!(
            "cannot install the filter that denies the kernel's io_uring ({error}); does this sandbox forbid seccomp(2)?",
            error = words(&error)
        ))
    })
}

/// Returns the filter. It is written by hand, because a filter made by seccompiler kills the
/// process at a call of another architecture. The numbers of the three calls are the same on
/// x86-64, x32 and i386, so this filter denies them on all three.
fn program() -> [sock_filter; 6] {
    let statement = |code: u32, k| sock_filter { code: width::short(code.into()), jt: 0, jf: 0, k };
    let jump = |code: u32, k, jt, jf| sock_filter { code: width::short(code.into()), jt, jf, k };
    [
        // The first word of struct seccomp_data is the number of the system call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, !X32_BIT),
        jump(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, FIRST, 0, 2),
        jump(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, LAST, 1, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ]
}
