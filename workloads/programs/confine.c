/*
 * Runs a program as in a container: as the user `nobody`, with no_new_privs, under a seccomp
 * filter. On x86-64 the filter answers like Docker's default profile for a container without added
 * capabilities.
 *
 * confine [--allow-io-uring] PROGRAM ARGS...
 *
 * Docker's profile lists the calls that are allowed, and this filter lists the calls that are
 * denied. So this filter also allows each call that is newer than both lists. Docker denies
 * io_uring since version 25; `--allow-io-uring` leaves that rule out.
 *
 * If the caller is not root, the program keeps the caller's user, which has no privilege to lose.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOBODY = 65534, LONGEST = 256 };

static const int denied[] = {
	SYS_acct, SYS_add_key, SYS_bpf, SYS_clock_settime, SYS_create_module,
	SYS_delete_module, SYS_fanotify_init, SYS_finit_module, SYS_fsconfig,
	SYS_fsmount, SYS_fsopen, SYS_fspick, SYS_get_kernel_syms,
	SYS_get_mempolicy, SYS_init_module, SYS_ioperm, SYS_iopl, SYS_kcmp,
	SYS_kexec_file_load, SYS_kexec_load, SYS_keyctl, SYS_lookup_dcookie,
	SYS_mbind, SYS_migrate_pages, SYS_mount, SYS_mount_setattr,
	SYS_move_mount, SYS_move_pages, SYS_nfsservctl, SYS_open_by_handle_at,
	SYS_open_tree, SYS_perf_event_open, SYS_pidfd_getfd, SYS_pivot_root,
	SYS_process_madvise, SYS_query_module, SYS_quotactl, SYS_quotactl_fd,
	SYS_reboot, SYS_request_key, SYS_set_mempolicy, SYS_setdomainname,
	SYS_sethostname, SYS_setns, SYS_settimeofday, SYS_swapoff, SYS_swapon,
	SYS_sysfs, SYS__sysctl, SYS_syslog, SYS_umount2, SYS_unshare,
	SYS_uselib, SYS_userfaultfd, SYS_ustat, SYS_vhangup,
};
static const int io_uring[] = { SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register };
static const unsigned personalities[] = { 0, 8, 0x20000, 0x20008, 0xffffffff };

static struct sock_filter program[LONGEST];
static unsigned short length;

static void emit(struct sock_filter instruction)
{
	if (length == LONGEST) {
		fprintf(stderr, "confine: the filter is too long\n");
		exit(125);
	}
	program[length++] = instruction;
}

static void load(size_t offset)
{
	emit((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset));
}

static void answer(unsigned what)
{
	emit((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, what));
}

static void answer_if_equal(unsigned value, unsigned what)
{
	emit((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
	answer(what);
}

/* Adds an instruction that skips the next `count` instructions unless the call is `number`. */
static void unless_call_skip(int number, unsigned char count)
{
	emit((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, count));
}

static void build(int allow_io_uring)
{
	const unsigned refuse = SECCOMP_RET_ERRNO | EPERM;
	const unsigned namespaces = CLONE_NEWCGROUP | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWNS |
				    CLONE_NEWPID | CLONE_NEWUSER | CLONE_NEWUTS;
	size_t index;

	load(offsetof(struct seccomp_data, arch));
	emit((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
	answer(SECCOMP_RET_ALLOW);
	load(offsetof(struct seccomp_data, nr));
	for (index = 0; index < sizeof denied / sizeof *denied; index++)
		answer_if_equal(denied[index], refuse);
	for (index = 0; !allow_io_uring && index < sizeof io_uring / sizeof *io_uring; index++)
		answer_if_equal(io_uring[index], refuse);
	/*
	 * A filter cannot read the flags of clone3, because they are in memory. ENOSYS makes libc
	 * use clone.
	 */
	answer_if_equal(SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);

	unless_call_skip(SYS_clone, 4);
	load(offsetof(struct seccomp_data, args[0]));
	emit((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, namespaces, 0, 1));
	answer(refuse);
	answer(SECCOMP_RET_ALLOW);

	unless_call_skip(SYS_socket, 4);
	load(offsetof(struct seccomp_data, args[0]));
	answer_if_equal(AF_VSOCK, refuse);
	answer(SECCOMP_RET_ALLOW);

	unless_call_skip(SYS_personality, 12);
	load(offsetof(struct seccomp_data, args[0]));
	for (index = 0; index < 5; index++)
		answer_if_equal(personalities[index], SECCOMP_RET_ALLOW);
	answer(refuse);
	answer(SECCOMP_RET_ALLOW);
}

static void check(int outcome, const char *what)
{
	if (outcome == 0)
		return;
	fprintf(stderr, "confine: %s: %s\n", what, strerror(errno));
	exit(125);
}

int main(int count, char **arguments)
{
	int allow_io_uring = count > 1 && strcmp(arguments[1], "--allow-io-uring") == 0;
	char **command = arguments + 1 + allow_io_uring;
	struct sock_fprog filter = { .filter = program };

	if (command[0] == NULL) {
		fprintf(stderr, "usage: confine [--allow-io-uring] PROGRAM ARGS...\n");
		return 125;
	}
	if (geteuid() == 0) {
		check(setgroups(0, NULL), "setgroups");
		check(setresgid(NOBODY, NOBODY, NOBODY), "setresgid");
		check(setresuid(NOBODY, NOBODY, NOBODY), "setresuid");
	}
	check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
	build(allow_io_uring);
	filter.len = length;
	check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), "seccomp");
	execvp(command[0], command);
	fprintf(stderr, "confine: %s: %s\n", command[0], strerror(errno));
	return 127;
}
