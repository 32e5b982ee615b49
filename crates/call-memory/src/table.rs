//! The kernel's calls on x86-64: which arguments of a call are addresses, how long the memory at
//! such an address is, and whether the kernel writes to this memory. Taken from the manual pages of
//! these calls.
//!
//! Not in this file:
//! - buffers of data: [`crate::data`];
//! - memory that is named by other memory: [`crate::pointers`];
//! - addresses that name a mapping and not its content.

use self::Extent::{Bits, Bytes, Declared, Each, EachOfInt, Pages, Text};
use usring_swap::Access::{self, Read, Write};
use usring_uapi::general as linux;

/// The length of the memory at an address.
#[derive(Clone, Copy)]
pub enum Extent {
    Bytes(u64),
    /// `Each(count, size)`: an array of elements of `size` bytes. `count` is the index of the
    /// argument that holds the number of elements, in 64 bits.
    Each(usize, u64),
    /// `EachOfInt(count, size)`: an array of elements of `size` bytes. `count` is the index of the
    /// argument that holds the number of elements, a C `int`. The kernel ignores the argument's
    /// upper half, in which a C compiler may leave any bits.
    EachOfInt(usize, u64),
    /// `Declared(address)`: a 32-bit word in memory holds the length in bytes. `address` is the
    /// index of the argument that points to this word.
    Declared(usize),
    /// `Bits(count)`: a bit set. `count` is the index of the argument that holds the number of
    /// bits.
    Bits(usize),
    /// `Pages(length)`: one byte for each page of a range. `length` is the index of the argument
    /// that holds the length of the range in bytes.
    Pages(usize),
    /// A string with its NUL, at most as long as a path may be.
    Text,
}

/// An argument of a call that is an address: the argument's index, the length of the memory at the
/// address, and the kernel's access to that memory.
pub type Pointer = (usize, Extent, Access);

type Entry = (&'static [u32], &'static [Pointer]);

const TIME: Extent = Bytes(16);
const TIMER: Extent = Bytes(32);
const STATUS: Extent = Bytes(144);
const USAGE: Extent = Bytes(144);
const SIGNAL: Extent = Bytes(128);
const SIGNAL_SET: Extent = Bytes(8);
const WORD: Extent = Bytes(4);
const OFFSET: Extent = Bytes(8);
const HANDLE: Extent = Bytes(8 + 128);
const EVENT: u64 = 12;

const PATHS: &[Entry] = &[
    (
        &[
            linux::__NR_open,
            linux::__NR_access,
            linux::__NR_truncate,
            linux::__NR_chdir,
            linux::__NR_mkdir,
            linux::__NR_rmdir,
            linux::__NR_creat,
            linux::__NR_unlink,
            linux::__NR_chmod,
            linux::__NR_chown,
            linux::__NR_lchown,
            linux::__NR_mknod,
            linux::__NR_uselib,
            linux::__NR_chroot,
            linux::__NR_acct,
            linux::__NR_umount2,
            linux::__NR_swapon,
            linux::__NR_swapoff,
            linux::__NR_delete_module,
            linux::__NR_mq_unlink,
            linux::__NR_memfd_create,
            linux::__NR_fsopen,
        ],
        &[(0, Text, Read)],
    ),
    (
        &[
            linux::__NR_inotify_add_watch,
            linux::__NR_openat,
            linux::__NR_mkdirat,
            linux::__NR_mknodat,
            linux::__NR_fchownat,
            linux::__NR_unlinkat,
            linux::__NR_fchmodat,
            linux::__NR_fchmodat2,
            linux::__NR_faccessat,
            linux::__NR_faccessat2,
            linux::__NR_fremovexattr,
            linux::__NR_finit_module,
            linux::__NR_open_tree,
            linux::__NR_fspick,
        ],
        &[(1, Text, Read)],
    ),
    (
        &[
            linux::__NR_rename,
            linux::__NR_link,
            linux::__NR_symlink,
            linux::__NR_pivot_root,
            linux::__NR_removexattr,
            linux::__NR_lremovexattr,
        ],
        &[(0, Text, Read), (1, Text, Read)],
    ),
    (
        &[linux::__NR_renameat, linux::__NR_renameat2, linux::__NR_linkat, linux::__NR_move_mount],
        &[(1, Text, Read), (3, Text, Read)],
    ),
    (&[linux::__NR_symlinkat], &[(0, Text, Read), (2, Text, Read)]),
    (&[linux::__NR_fanotify_mark], &[(4, Text, Read)]),
    (&[linux::__NR_request_key], &[(0, Text, Read), (1, Text, Read), (2, Text, Read)]),
    (&[linux::__NR_add_key], &[(0, Text, Read), (1, Text, Read), (2, Each(3, 1), Read)]),
    (&[linux::__NR_mount], &[(0, Text, Read), (1, Text, Read), (2, Text, Read), (4, Bytes(4096), Read)]),
    (&[linux::__NR_fsconfig], &[(2, Text, Read), (3, Bytes(4096), Read), (3, EachOfInt(4, 1), Read)]),
    (&[linux::__NR_mount_setattr], &[(1, Text, Read), (3, Each(4, 1), Read)]),
    (&[linux::__NR_openat2], &[(1, Text, Read), (2, Each(3, 1), Read)]),
    (&[linux::__NR_mq_open], &[(0, Text, Read), (3, Bytes(64), Read)]),
    (&[linux::__NR_execve], &[(0, Text, Read)]),
    (&[linux::__NR_execveat], &[(1, Text, Read)]),
];

const FILES: &[Entry] = &[
    (&[linux::__NR_stat, linux::__NR_lstat], &[(0, Text, Read), (1, STATUS, Write)]),
    (&[linux::__NR_fstat], &[(1, STATUS, Write)]),
    (&[linux::__NR_newfstatat], &[(1, Text, Read), (2, STATUS, Write)]),
    (&[linux::__NR_statx], &[(1, Text, Read), (4, Bytes(256), Write)]),
    (&[linux::__NR_statfs], &[(0, Text, Read), (1, Bytes(120), Write)]),
    (&[linux::__NR_fstatfs], &[(1, Bytes(120), Write)]),
    (&[linux::__NR_ustat], &[(1, TIMER, Write)]),
    (&[linux::__NR_statmount], &[(0, Bytes(64), Read), (1, Each(2, 1), Write)]),
    (&[linux::__NR_listmount], &[(0, Bytes(64), Read), (1, Each(2, 8), Write)]),
    (&[linux::__NR_cachestat], &[(1, Bytes(16), Read), (2, Bytes(40), Write)]),
    (&[linux::__NR_readlink], &[(0, Text, Read), (1, EachOfInt(2, 1), Write)]),
    (&[linux::__NR_readlinkat], &[(1, Text, Read), (2, EachOfInt(3, 1), Write)]),
    (&[linux::__NR_getcwd], &[(0, Each(1, 1), Write)]),
    (&[linux::__NR_utime], &[(0, Text, Read), (1, TIME, Read)]),
    (&[linux::__NR_utimes], &[(0, Text, Read), (1, TIMER, Read)]),
    (&[linux::__NR_futimesat, linux::__NR_utimensat], &[(1, Text, Read), (2, TIMER, Read)]),
    (&[linux::__NR_name_to_handle_at], &[(1, Text, Read), (2, HANDLE, Write), (3, OFFSET, Write)]),
    (&[linux::__NR_open_by_handle_at], &[(1, HANDLE, Read)]),
    (&[linux::__NR_quotactl], &[(1, Text, Read), (3, Bytes(256), Write)]),
    (&[linux::__NR_quotactl_fd], &[(3, Bytes(256), Write)]),
    (&[linux::__NR_setxattr, linux::__NR_lsetxattr], &[(0, Text, Read), (1, Text, Read), (2, Each(3, 1), Read)]),
    (&[linux::__NR_fsetxattr], &[(1, Text, Read), (2, Each(3, 1), Read)]),
    (&[linux::__NR_getxattr, linux::__NR_lgetxattr], &[(0, Text, Read), (1, Text, Read), (2, Each(3, 1), Write)]),
    (&[linux::__NR_fgetxattr], &[(1, Text, Read), (2, Each(3, 1), Write)]),
    (&[linux::__NR_listxattr, linux::__NR_llistxattr], &[(0, Text, Read), (1, Each(2, 1), Write)]),
    (&[linux::__NR_flistxattr], &[(1, Each(2, 1), Write)]),
    (&[linux::__NR_pipe, linux::__NR_pipe2], &[(0, Bytes(8), Write)]),
    (&[linux::__NR_sendfile], &[(2, OFFSET, Write)]),
    (&[linux::__NR_splice, linux::__NR_copy_file_range], &[(1, OFFSET, Write), (3, OFFSET, Write)]),
    (&[linux::__NR_fcntl], &[(2, Bytes(64), Write)]),
    (&[linux::__NR_poll], &[(0, EachOfInt(1, 8), Write)]),
    (&[linux::__NR_ppoll], &[(0, EachOfInt(1, 8), Write), (2, TIME, Write), (3, SIGNAL_SET, Read)]),
    (&[linux::__NR_select], &[(1, Bits(0), Write), (2, Bits(0), Write), (3, Bits(0), Write), (4, TIME, Write)]),
    (
        &[linux::__NR_pselect6],
        &[(1, Bits(0), Write), (2, Bits(0), Write), (3, Bits(0), Write), (4, TIME, Write), (5, Bytes(16), Read)],
    ),
    (&[linux::__NR_epoll_ctl], &[(3, Bytes(EVENT), Read)]),
    (&[linux::__NR_epoll_wait], &[(1, EachOfInt(2, EVENT), Write)]),
    (&[linux::__NR_epoll_pwait], &[(1, EachOfInt(2, EVENT), Write), (4, SIGNAL_SET, Read)]),
    (&[linux::__NR_epoll_pwait2], &[(1, EachOfInt(2, EVENT), Write), (3, TIME, Read), (4, SIGNAL_SET, Read)]),
    (&[linux::__NR_signalfd, linux::__NR_signalfd4], &[(1, SIGNAL_SET, Read)]),
    (&[linux::__NR_timerfd_settime], &[(2, TIMER, Read), (3, TIMER, Write)]),
    (&[linux::__NR_timerfd_gettime], &[(1, TIMER, Write)]),
];

const SOCKETS_AND_MESSAGES: &[Entry] = &[
    (&[linux::__NR_bind, linux::__NR_connect], &[(1, EachOfInt(2, 1), Read)]),
    (
        &[linux::__NR_accept, linux::__NR_accept4, linux::__NR_getsockname, linux::__NR_getpeername],
        &[(1, Declared(2), Write), (2, WORD, Write)],
    ),
    (&[linux::__NR_sendto], &[(4, EachOfInt(5, 1), Read)]),
    (&[linux::__NR_recvfrom], &[(4, Declared(5), Write), (5, WORD, Write)]),
    (&[linux::__NR_recvmmsg], &[(4, TIME, Write)]),
    (&[linux::__NR_socketpair], &[(3, Bytes(8), Write)]),
    (&[linux::__NR_setsockopt], &[(3, EachOfInt(4, 1), Read)]),
    (&[linux::__NR_getsockopt], &[(3, Declared(4), Write), (4, WORD, Write)]),
    (&[linux::__NR_mq_timedsend], &[(4, TIME, Read)]),
    (&[linux::__NR_mq_timedreceive], &[(3, WORD, Write), (4, TIME, Read)]),
    (&[linux::__NR_mq_notify], &[(1, Bytes(64), Read)]),
    (&[linux::__NR_mq_getsetattr], &[(1, Bytes(64), Read), (2, Bytes(64), Write)]),
    (&[linux::__NR_semop], &[(1, EachOfInt(2, 6), Read)]),
    (&[linux::__NR_semtimedop], &[(1, EachOfInt(2, 6), Read), (3, TIME, Read)]),
    // The buffer gets the values of all semaphores of a set, which may have up to 32,000.
    (&[linux::__NR_semctl], &[(3, Bytes(64 << 10), Write)]),
    (&[linux::__NR_shmctl, linux::__NR_msgctl], &[(2, Bytes(128), Write)]),
];

const SIGNALS_AND_TIME: &[Entry] = &[
    (&[linux::__NR_rt_sigaction], &[(1, Bytes(32), Read), (2, Bytes(32), Write)]),
    (&[linux::__NR_rt_sigprocmask], &[(1, SIGNAL_SET, Read), (2, SIGNAL_SET, Write)]),
    (&[linux::__NR_rt_sigpending], &[(0, SIGNAL_SET, Write)]),
    (&[linux::__NR_rt_sigsuspend], &[(0, SIGNAL_SET, Read)]),
    (&[linux::__NR_rt_sigtimedwait], &[(0, SIGNAL_SET, Read), (1, SIGNAL, Write), (2, TIME, Read)]),
    (&[linux::__NR_rt_sigqueueinfo, linux::__NR_pidfd_send_signal], &[(2, SIGNAL, Read)]),
    (&[linux::__NR_rt_tgsigqueueinfo], &[(3, SIGNAL, Read)]),
    (&[linux::__NR_sigaltstack], &[(0, Bytes(24), Read), (1, Bytes(24), Write)]),
    (&[linux::__NR_nanosleep], &[(0, TIME, Read), (1, TIME, Write)]),
    (&[linux::__NR_clock_nanosleep], &[(2, TIME, Read), (3, TIME, Write)]),
    (&[linux::__NR_clock_gettime, linux::__NR_clock_getres], &[(1, TIME, Write)]),
    (&[linux::__NR_clock_settime], &[(1, TIME, Read)]),
    (&[linux::__NR_clock_adjtime], &[(1, Bytes(208), Write)]),
    (&[linux::__NR_adjtimex], &[(0, Bytes(208), Write)]),
    (&[linux::__NR_gettimeofday, linux::__NR_settimeofday], &[(0, TIME, Write), (1, Bytes(8), Write)]),
    (&[linux::__NR_time], &[(0, Bytes(8), Write)]),
    (&[linux::__NR_times], &[(0, Bytes(32), Write)]),
    (&[linux::__NR_getitimer], &[(1, TIMER, Write)]),
    (&[linux::__NR_setitimer], &[(1, TIMER, Read), (2, TIMER, Write)]),
    (&[linux::__NR_timer_create], &[(1, Bytes(64), Read), (2, WORD, Write)]),
    (&[linux::__NR_timer_settime], &[(2, TIMER, Read), (3, TIMER, Write)]),
    (&[linux::__NR_timer_gettime], &[(1, TIMER, Write)]),
    (&[linux::__NR_futex], &[(0, WORD, Write), (3, TIME, Read), (4, WORD, Write)]),
    (&[linux::__NR_futex_wait], &[(0, WORD, Write), (4, TIME, Read)]),
    (&[linux::__NR_futex_wake], &[(0, WORD, Write)]),
    (&[linux::__NR_futex_waitv], &[(0, EachOfInt(1, 24), Read), (3, TIME, Read)]),
    (&[linux::__NR_futex_requeue], &[(0, Bytes(48), Read)]),
];

const PROCESSES: &[Entry] = &[
    (&[linux::__NR_wait4], &[(1, WORD, Write), (3, USAGE, Write)]),
    (&[linux::__NR_waitid], &[(2, SIGNAL, Write), (4, USAGE, Write)]),
    (&[linux::__NR_getrusage], &[(1, USAGE, Write)]),
    (&[linux::__NR_getrlimit], &[(1, TIME, Write)]),
    (&[linux::__NR_setrlimit], &[(1, TIME, Read)]),
    (&[linux::__NR_prlimit64], &[(2, TIME, Read), (3, TIME, Write)]),
    (&[linux::__NR_uname], &[(0, Bytes(390), Write)]),
    (&[linux::__NR_sysinfo], &[(0, Bytes(112), Write)]),
    (&[linux::__NR_getcpu], &[(0, WORD, Write), (1, WORD, Write)]),
    (&[linux::__NR_getresuid, linux::__NR_getresgid], &[(0, WORD, Write), (1, WORD, Write), (2, WORD, Write)]),
    (&[linux::__NR_getgroups], &[(1, EachOfInt(0, 4), Write)]),
    (&[linux::__NR_setgroups], &[(1, EachOfInt(0, 4), Read)]),
    (&[linux::__NR_capget], &[(0, Bytes(8), Write), (1, Bytes(24), Write)]),
    (&[linux::__NR_capset], &[(0, Bytes(8), Write), (1, Bytes(24), Read)]),
    (&[linux::__NR_sethostname, linux::__NR_setdomainname], &[(0, EachOfInt(1, 1), Read)]),
    (&[linux::__NR_sched_setparam, linux::__NR_sched_getparam], &[(1, WORD, Write)]),
    (&[linux::__NR_sched_setscheduler], &[(2, WORD, Read)]),
    (&[linux::__NR_sched_rr_get_interval], &[(1, TIME, Write)]),
    (&[linux::__NR_sched_setaffinity], &[(2, EachOfInt(1, 1), Read)]),
    (&[linux::__NR_sched_getaffinity], &[(2, EachOfInt(1, 1), Write)]),
    (&[linux::__NR_sched_setattr], &[(1, Bytes(128), Write)]),
    (&[linux::__NR_sched_getattr], &[(1, EachOfInt(2, 1), Write)]),
    (&[linux::__NR_get_robust_list], &[(1, Bytes(8), Write), (2, Bytes(8), Write)]),
    (&[linux::__NR_arch_prctl], &[(1, Bytes(8), Write)]),
    (&[linux::__NR_modify_ldt], &[(1, Each(2, 1), Write)]),
    (&[linux::__NR_set_thread_area, linux::__NR_get_thread_area], &[(0, Bytes(16), Write)]),
    (
        &[linux::__NR_prctl],
        &[(1, Bytes(1024), Write), (2, Bytes(1024), Write), (3, Bytes(1024), Write), (4, Bytes(1024), Write)],
    ),
    (&[linux::__NR_ptrace], &[(2, Bytes(1024), Write), (3, Bytes(4096), Write)]),
    (&[linux::__NR_seccomp], &[(2, Bytes(64), Write)]),
    (&[linux::__NR_bpf], &[(1, EachOfInt(2, 1), Write)]),
    (&[linux::__NR_perf_event_open], &[(0, Bytes(256), Write)]),
    (&[linux::__NR_init_module], &[(0, Each(1, 1), Read), (2, Text, Read)]),
    (&[linux::__NR_kexec_load], &[(2, Each(1, 32), Read)]),
    (&[linux::__NR_kexec_file_load], &[(3, Each(2, 1), Read)]),
    (
        &[linux::__NR_keyctl],
        &[
            (1, Bytes(4096), Write),
            (2, Bytes(4096), Write),
            (2, Each(3, 1), Write),
            (3, Bytes(4096), Write),
            (4, Bytes(4096), Write),
        ],
    ),
    (&[linux::__NR_landlock_create_ruleset], &[(0, Each(1, 1), Read)]),
    (&[linux::__NR_landlock_add_rule], &[(2, Bytes(32), Read)]),
    (&[linux::__NR_lsm_get_self_attr], &[(1, Declared(2), Write), (2, WORD, Write)]),
    (&[linux::__NR_lsm_set_self_attr], &[(1, EachOfInt(2, 1), Read)]),
    (&[linux::__NR_lsm_list_modules], &[(0, Declared(1), Write), (1, WORD, Write)]),
];

const MEMORY: &[Entry] = &[
    (&[linux::__NR_mincore], &[(2, Pages(1), Write)]),
    (&[linux::__NR_mbind], &[(3, Bits(4), Read)]),
    (&[linux::__NR_set_mempolicy], &[(1, Bits(2), Read)]),
    (&[linux::__NR_get_mempolicy], &[(0, WORD, Write), (1, Bits(2), Write)]),
    (&[linux::__NR_migrate_pages], &[(2, Bits(1), Read), (3, Bits(1), Read)]),
    (&[linux::__NR_move_pages], &[(2, Each(1, 8), Read), (3, Each(1, 4), Read), (4, Each(1, 4), Write)]),
    (&[linux::__NR_process_madvise], &[(1, Each(2, 16), Read)]),
];

/// Calls for which this table has no pointers. The arguments of these calls may name:
/// - data ([`crate::data`]), or a mapping and not its content;
/// - structures that [`crate::pointers`] reads;
/// - memory that usring itself reads and writes.
const NOTHING: &[Entry] = &[(
    &[
        linux::__NR_read,
        linux::__NR_write,
        linux::__NR_pread64,
        linux::__NR_pwrite64,
        linux::__NR_readv,
        linux::__NR_writev,
        linux::__NR_preadv,
        linux::__NR_pwritev,
        linux::__NR_preadv2,
        linux::__NR_pwritev2,
        linux::__NR_vmsplice,
        linux::__NR_process_vm_readv,
        linux::__NR_process_vm_writev,
        linux::__NR_sendmsg,
        linux::__NR_recvmsg,
        linux::__NR_sendmmsg,
        linux::__NR_msgsnd,
        linux::__NR_msgrcv,
        linux::__NR_getrandom,
        linux::__NR_getdents,
        linux::__NR_getdents64,
        linux::__NR_syslog,
        linux::__NR_mmap,
        linux::__NR_munmap,
        linux::__NR_mremap,
        linux::__NR_mprotect,
        linux::__NR_pkey_mprotect,
        linux::__NR_madvise,
        linux::__NR_msync,
        linux::__NR_mlock,
        linux::__NR_mlock2,
        linux::__NR_munlock,
        linux::__NR_brk,
        linux::__NR_shmat,
        linux::__NR_shmdt,
        linux::__NR_ioctl,
        linux::__NR_set_tid_address,
        linux::__NR_set_robust_list,
        linux::__NR_rseq,
        linux::__NR_io_submit,
        linux::__NR_io_uring_enter,
        linux::__NR_io_uring_setup,
        linux::__NR_io_uring_register,
        linux::__NR_rt_sigreturn,
        linux::__NR_clone,
        linux::__NR_clone3,
        linux::__NR_exit,
        linux::__NR_exit_group,
        linux::__NR_close,
        linux::__NR_fallocate,
        linux::__NR_lseek,
        linux::__NR_ftruncate,
        linux::__NR_socket,
        linux::__NR_listen,
        linux::__NR_shutdown,
        linux::__NR_dup,
        linux::__NR_dup2,
        linux::__NR_dup3,
        linux::__NR_fsync,
        linux::__NR_fdatasync,
        linux::__NR_sync_file_range,
        linux::__NR_fadvise64,
        linux::__NR_flock,
        linux::__NR_fchdir,
        linux::__NR_fchmod,
        linux::__NR_fchown,
        linux::__NR_sched_yield,
        linux::__NR_kill,
        linux::__NR_tkill,
        linux::__NR_tgkill,
        linux::__NR_getpid,
        linux::__NR_gettid,
        linux::__NR_getppid,
        linux::__NR_getuid,
        linux::__NR_geteuid,
        linux::__NR_getgid,
        linux::__NR_getegid,
        linux::__NR_setuid,
        linux::__NR_setgid,
        linux::__NR_setsid,
        linux::__NR_setpgid,
        linux::__NR_getpgid,
        linux::__NR_alarm,
        linux::__NR_pause,
        linux::__NR_umask,
        linux::__NR_epoll_create,
        linux::__NR_epoll_create1,
        linux::__NR_eventfd,
        linux::__NR_eventfd2,
        linux::__NR_inotify_init,
        linux::__NR_inotify_init1,
        linux::__NR_timerfd_create,
        linux::__NR_timer_delete,
        linux::__NR_timer_getoverrun,
        linux::__NR_semget,
        linux::__NR_shmget,
        linux::__NR_msgget,
        linux::__NR_readahead,
        linux::__NR_tee,
        linux::__NR_syncfs,
        linux::__NR_membarrier,
        linux::__NR_close_range,
        linux::__NR_pidfd_open,
        linux::__NR_userfaultfd,
        linux::__NR_getpriority,
        linux::__NR_setpriority,
    ],
    &[],
)];

const COUNT: usize = 512;

/// The address arguments of each call, indexed by the call's number. `None`: the call is not known.
static TABLE: [Option<&[Pointer]>; COUNT] = table();

const fn table() -> [Option<&'static [Pointer]>; COUNT] {
    let parts = [PATHS, FILES, SOCKETS_AND_MESSAGES, SIGNALS_AND_TIME, PROCESSES, MEMORY, NOTHING];
    let mut table = [None; COUNT];
    let mut part = 0;
    while part < parts.len() {
        let mut entry = 0;
        while entry < parts[part].len() {
            let (numbers, pointers) = parts[part][entry];
            let mut index = 0;
            while index < numbers.len() {
                assert!(table[numbers[index] as usize].is_none(), "each call is listed once");
                table[numbers[index] as usize] = Some(pointers);
                index += 1;
            }
            entry += 1;
        }
        part += 1;
    }
    table
}

/// Length that is assumed for the memory at each argument of an unknown call: no structure and no
/// path is longer.
const ASSUMED: Extent = Bytes(16 << 10);

/// The address arguments of a call that is not known: any argument may be an address.
const UNKNOWN: &[Pointer] = &[
    (0, ASSUMED, Write),
    (1, ASSUMED, Write),
    (2, ASSUMED, Write),
    (3, ASSUMED, Write),
    (4, ASSUMED, Write),
    (5, ASSUMED, Write),
];

pub fn is_known(number: u32) -> bool {
    TABLE.get(number as usize).is_some_and(Option::is_some)
}

/// Returns the arguments of a call that are addresses. If the call is not known, returns all of its
/// arguments.
pub fn pointers(number: u32) -> &'static [Pointer] {
    TABLE.get(number as usize).copied().flatten().unwrap_or(UNKNOWN)
}
