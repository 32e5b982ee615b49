//! Waiting requests under the limit RLIMIT_NOFILE. On usring, a waiting request occupies no more of
//! the program's descriptor numbers than on the kernel.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::reg;
use crate::files;
use crate::process;
use crate::ring::{Entry, Ring};
use crate::sqe::{poll, recv};
use crate::syscalls;
use crate::transcript::Transcript;

fn limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is a variable of this function.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit
}

/// Sets the soft limit of open files, as `ulimit -Sn` does.
fn set_limit(soft: u64) -> i32 {
    let limit = libc::rlimit { rlim_cur: soft, ..limit() };
    // SAFETY: the structure is a variable of this function.
    syscalls::answer(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })
}

/// Returns how many more descriptors the process can open. To count them, opens that many and
/// closes them again.
fn room() -> usize {
    let mut opened = Vec::new();
    loop {
        // SAFETY: the call touches no memory.
        let number = unsafe { libc::dup(2) };
        if number < 0 {
            break;
        }
        opened.push(number);
    }
    for number in &opened {
        syscalls::close(*number);
    }
    opened.len()
}

/// Makes up to `most` socket pairs, or fewer if the descriptor numbers run out. Submits a receive
/// on one socket of each pair.
fn wait_for_all(ring: &mut Ring, bytes: &mut [[u8; 1]], most: usize) -> Vec<(OwnedFd, OwnedFd)> {
    let mut pairs = Vec::new();
    while pairs.len() < most {
        let mut numbers = [0; 2];
        // SAFETY: the array has room for two numbers.
        if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, numbers.as_mut_ptr()) } != 0 {
            break;
        }
        // SAFETY: the descriptors are new, and nothing else owns them.
        let [here, there] = numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
        let index = pairs.len();
        ring.push(recv(there.as_raw_fd(), &mut bytes[index], index as u64));
        ring.submit();
        pairs.push((here, there));
    }
    pairs
}

/// Sends a byte to each waiting receive, and prints whether all receives got theirs. Also prints
/// how many had completed before.
fn finish(t: &mut Transcript, ring: &mut Ring, pairs: &[(OwnedFd, OwnedFd)]) {
    let early = ring.reap().len();
    for (here, _) in pairs {
        files::put(here, b"x");
    }
    let mut entries: Vec<Entry> = Vec::new();
    while entries.len() < pairs.len() {
        let more = ring.wait(1);
        if more.is_empty() {
            break;
        }
        entries.extend(more);
    }
    let right = entries.iter().filter(|entry| entry.res == 1).count();
    t.say(format_args!("before {early}, received by all {}", right == pairs.len()));
}

const MOST: usize = 1000;

fn waiting_files(t: &mut Transcript) {
    t.result("limit", set_limit(1024));
    let mut ring = Ring::new(8);
    let free = room();
    let mut bytes = [[0u8; 1]; MOST];
    let pairs = wait_for_all(&mut ring, &mut bytes, MOST);
    t.say(format_args!("as many pairs as fit {}, room left {}", pairs.len() == free / 2, room() == free % 2));
    finish(t, &mut ring, &pairs);
}
case!(waiting_files => "
    limit = 0
    as many pairs as fit true, room left true
    before 0, received by all true
");

fn waiting_files_of_a_low_limit(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    t.result("limit", set_limit(200));
    let free = room();
    let mut bytes = [[0u8; 1]; MOST];
    let pairs = wait_for_all(&mut ring, &mut bytes, MOST);
    t.say(format_args!("as many pairs as fit {}, room left {}", pairs.len() == free / 2, room() == free % 2));
    finish(t, &mut ring, &pairs);
}
case!(waiting_files_of_a_low_limit => "
    limit = 0
    as many pairs as fit true, room left true
    before 0, received by all true
");

/// Each socket has two waiting requests: a receive, and a poll for another event.
fn waiting_twice_for_each(t: &mut Transcript) {
    t.result("limit", set_limit(1024));
    let mut ring = Ring::new(8);
    let free = room();
    let mut bytes = [[0u8; 1]; MOST];
    let pairs = wait_for_all(&mut ring, &mut bytes, 200);
    for (index, (_, there)) in pairs.iter().enumerate() {
        ring.push(poll(there.as_raw_fd(), libc::POLLPRI, (MOST + index) as u64));
        ring.submit();
    }
    t.say(format_args!("pairs {}, room as before {}", pairs.len(), room() == free - 400));
    finish(t, &mut ring, &pairs);
}
case!(waiting_twice_for_each => "
    limit = 0
    pairs 200, room as before true
    before 0, received by all true
");

fn as_the_program_set_it(t: &mut Transcript) {
    let hard = limit().rlim_max;
    t.result("limit", set_limit(700));
    let mut ring = Ring::new(8);
    let mut bytes = [[0u8; 1]; MOST];
    let pairs = wait_for_all(&mut ring, &mut bytes, 100);
    t.say(format_args!("soft {}, hard as before {}", limit().rlim_cur, limit().rlim_max == hard));
    // SAFETY: the call touches no memory.
    let (open_max, table) = unsafe { (libc::sysconf(libc::_SC_OPEN_MAX), libc::getdtablesize()) };
    t.say(format_args!("sysconf {open_max}, table {table}"));
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let new = libc::rlimit { rlim_cur: 650, rlim_max: hard };
    // SAFETY: the structures are variables of this function.
    let answer = unsafe { libc::prlimit(0, libc::RLIMIT_NOFILE, &raw const new, &raw mut old) };
    t.result("prlimit", syscalls::answer(answer));
    t.say(format_args!("was {}, is {}", old.rlim_cur, limit().rlim_cur));
    // SAFETY: the structure is a variable of this function. The call does not change RLIMIT_NOFILE.
    t.result("another resource", syscalls::answer(unsafe { libc::getrlimit(libc::RLIMIT_CORE, &raw mut old) }));
    let above = libc::rlimit { rlim_cur: 700, rlim_max: 600 };
    // SAFETY: the structure is a variable of this function.
    t.result("soft above hard", syscalls::answer(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const above) }));
    t.result("no structure", no_structure());
    finish(t, &mut ring, &pairs);
}
case!(as_the_program_set_it => "
    limit = 0
    soft 700, hard as before true
    sysconf 700, table 700
    prlimit = 0
    was 700, is 650
    another resource = 0
    soft above hard = -EINVAL
    no structure = -EFAULT
    before 0, received by all true
");

fn no_structure() -> i32 {
    // SAFETY: the kernel refuses the bad address with EFAULT.
    syscalls::answer(unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 8, 0) } as i32)
}

fn raised_while_files_wait(t: &mut Transcript) {
    t.result("limit", set_limit(300));
    let mut ring = Ring::new(8);
    let mut bytes = [[0u8; 1]; MOST];
    let mut pairs = wait_for_all(&mut ring, &mut bytes, 100);
    t.result("limit", set_limit(1200));
    let mut more = [[0u8; 1]; MOST];
    let free = room();
    let later = wait_for_all(&mut ring, &mut more, 400);
    t.say(format_args!("more pairs {}, room {}", later.len(), room() == free - 800));
    finish(t, &mut ring, &pairs.drain(..).chain(later).collect::<Vec<_>>());
}
case!(raised_while_files_wait => "
    limit = 0
    limit = 0
    more pairs 400, room true
    before 0, received by all true
");

fn lowered_while_files_wait(t: &mut Transcript) {
    t.result("limit", set_limit(1100));
    let mut ring = Ring::new(8);
    let mut bytes = [[0u8; 1]; MOST];
    let mut pairs = wait_for_all(&mut ring, &mut bytes, 100);
    t.result("limit", set_limit(400));
    let free = room();
    let mut more = [[0u8; 1]; MOST];
    let later = wait_for_all(&mut ring, &mut more, MOST);
    t.say(format_args!("as many pairs as fit {}, room left {}", later.len() == free / 2, room() == free % 2));
    finish(t, &mut ring, &pairs.drain(..).chain(later).collect::<Vec<_>>());
}
case!(lowered_while_files_wait => "
    limit = 0
    limit = 0
    as many pairs as fit true, room left true
    before 0, received by all true
");

/// This process executes a shell as its child. Prints the limits of open files that the shell
/// reports.
fn of_an_executed_program(t: &mut Transcript) {
    let hard = limit().rlim_max;
    t.result("limit", set_limit(700));
    let mut ring = Ring::new(8);
    let mut bytes = [[0u8; 1]; MOST];
    let pairs = wait_for_all(&mut ring, &mut bytes, 100);
    let said = |command: &str| {
        let output = std::process::Command::new("sh").args(["-c", command]).output().expect("a shell");
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    };
    t.say(format_args!("a child has {}", said("ulimit -Sn")));
    t.say(format_args!("hard as before {}", said("ulimit -Hn") == hard.to_string()));
    t.say(format_args!("and sets it to {}", said("ulimit -Sn 500; ulimit -Sn")));
    finish(t, &mut ring, &pairs);
}
case!(of_an_executed_program => "
    limit = 0
    a child has 700
    hard as before true
    and sets it to 500
    before 0, received by all true
");

fn of_a_forked_child(t: &mut Transcript) {
    t.result("limit", set_limit(700));
    let mut ring = Ring::new(8);
    let mut bytes = [[0u8; 1]; MOST];
    let pairs = wait_for_all(&mut ring, &mut bytes, 100);
    let free = room();
    let ending = process::forked(|| {
        let same = limit().rlim_cur == 700 && room() == free;
        let mut own = Ring::new(8);
        // `own` occupies a descriptor number if the ring's number is one of the program's. So the
        // count is repeated.
        let free = free.min(room());
        let mut bytes = [[0u8; 1]; MOST];
        let pairs = wait_for_all(&mut own, &mut bytes, MOST);
        i32::from(!same) + 2 * i32::from(pairs.len() != free / 2)
    });
    t.say(format_args!("child: {ending}"));
    t.say(format_args!("parent's limit {}, room as before {}", limit().rlim_cur, room() == free));
    finish(t, &mut ring, &pairs);
}
case!(of_a_forked_child => "
    limit = 0
    child: exit 0
    parent's limit 700, room as before true
    before 0, received by all true
");

/// Registered files occupy none of the program's descriptor numbers.
fn registered_files(t: &mut Transcript) {
    t.result("limit", set_limit(700));
    let ring = Ring::new(8);
    let free = room();
    let (here, _there) = files::sockets();
    let numbers = [here.as_raw_fd(); 600];
    t.result("register", ring.register(reg::FILES, numbers.as_ptr(), 600));
    t.say(format_args!("room as before {}", room() == free - 2));
}
case!(registered_files => "
    limit = 0
    register = 0
    room as before true
");
