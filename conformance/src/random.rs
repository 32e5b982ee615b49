//! Random programs: short sequences of requests and plain system calls. A seed determines a
//! program. The program prints its results. Its output on the kernel and its output on usring must
//! agree. If they differ, either usring is wrong, or the kernel guarantees nothing in that
//! situation.
//!
//! The generator avoids situations in which the kernel guarantees nothing:
//!
//! - At any time, at most one request waits for each file, and at most one for the buffers of each
//!   group.
//! - A cancellation is the first request of its batch, and precedes any drain. So it meets requests
//!   that wait, and no request that a worker executes.
//! - No request is linked behind a request that a worker executes. If workers write to a file, a
//!   batch names that file only once.
//! - A shutdown is the last request of its batch, because a worker of the kernel executes it at
//!   some later time.
//! - If a request inside a chain sends, no other request of the batch sends to that pipe or pair of
//!   sockets. Otherwise the kernel could wake the request that waits for the data once or twice.
//! - A timeout either expires before the program checks for completions, or is far in the future.
//! - The completions of a step are sorted. The notifications of SEND_ZC are checked but not
//!   printed, because the step in which they arrive varies.
//! - Several wake-ups may come close together. A multishot poll reports them by one completion or
//!   by several. So equal completions of a poll in one step are printed once.
//! - After a plain call, the program waits for the completions that the call causes. A busy machine
//!   needs longer waits, so the wait factor multiplies their length.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use usring_uapi::io_uring as u;
use usring_uapi::{Sqe, Timespec, opcode, sqe_flags};

use crate::buffers::{self, Group};
use crate::cases::reg;
use crate::memory::Pages;
use crate::names;
use crate::net::{self, Family};
use crate::ring::{self, Entry, Ring};

mod compare;
mod requests;

pub use compare::{check, compare, record};

/// Number of steps of a program. In each step, the program makes some plain system calls and
/// submits one batch of requests.
const STEPS: u32 = 14;
/// Most requests in a batch.
const BATCH: u32 = 6;
/// Bytes of memory that belong to one request.
const ROOM: usize = 512;
/// Number of waits without a completion, in a row, after which a step ends.
const QUIET_WAITS: u32 = 4;
/// Length of one wait, if the wait factor is 1.
const WAIT_STEP: Duration = Duration::from_millis(2);
/// Result of a SEND_ZC's notification that says that the kernel has copied the data.
const COPIED: i32 = u::IORING_NOTIF_USAGE_ZC_COPIED as i32;
/// Offset in [`Program::memory`] of the number that requests write to the eventfd.
const COUNT_AT: usize = 8128;

/// A random number generator (xorshift64*), whose sequence depends only on the seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.next() % 100 < chance
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// The kind of a file in [`Program::files`]. Each file of the program has a fixed index there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    PipeOut,
    PipeIn,
    Stream,
    Packets,
    Datagrams,
    Tcp,
    Counter,
    Regular,
    Null,
    Listener,
    Closed,
}

struct File {
    kind: Kind,
    fd: OwnedFd,
}

/// A request from which another completion is expected.
struct Pending {
    user_data: u64,
    /// Index of the file from which the request reads or receives. `None` for other requests.
    reads: Option<usize>,
    /// Index of the file that the request polls. `None` if the request is no poll.
    polls: Option<usize>,
    /// Buffer group from which the request selects a buffer. `None` if it selects none.
    group: Option<u16>,
}

struct Program {
    random: Random,
    ring: Ring,
    files: Vec<File>,
    address: net::Address,
    memory: Pages,
    _rings: Vec<Pages>,
    groups: Vec<Group>,
    #[expect(clippy::vec_box, reason = "requests name their addresses")]
    vectors: Vec<Box<[libc::iovec; 2]>>,
    #[expect(clippy::vec_box, reason = "requests name their addresses")]
    headers: Vec<Box<libc::msghdr>>,
    pending: Vec<Pending>,
    /// Completions that this step has not printed yet.
    entries: Vec<Entry>,
    /// The `user_data` of the zero-copy sends. `notified` has those of the sends whose notification
    /// has come.
    without_copy: BTreeSet<u64>,
    notified: BTreeSet<u64>,
    /// User data of all poll requests.
    polls: BTreeSet<u64>,
    /// Factor for the length of waits.
    wait_factor: u32,
    user_data: u64,
    soon: Timespec,
    never: Timespec,
    /// Whether the program uses IO_DRAIN. If not, it uses chains instead.
    drains: bool,
    /// Whether the program has submitted a request with IO_DRAIN.
    has_drained: bool,
    /// Buffer group that the request under construction uses.
    group: Option<u16>,
    /// Index of the file that the request under construction polls, if it is a poll.
    polled: Option<usize>,
    /// Indices of files that the rest of this batch may not use: the batch receives from them, or
    /// workers may write to them.
    used: BTreeSet<usize>,
    /// Pairs of files to which this batch sends. The value says whether the sending request is
    /// inside a chain.
    sent: BTreeMap<usize, bool>,
    /// Indices of stream sockets that receive nothing more after a shutdown. A socket's own
    /// shutdown has this effect (SHUT_RD), and for a Unix socket also the shutdown of its peer
    /// (SHUT_WR). A FIN from a TCP peer does not count.
    shut: BTreeSet<usize>,
    /// Whether the request under construction follows another request of its chain.
    is_successor: bool,
    /// A LINK_TIMEOUT for the request that was built last. It must be the next request of the
    /// batch.
    watcher: Option<Sqe>,
    /// Whether the field `fd` of the request under construction is a descriptor. For some opcodes
    /// it is a count. The SQE alone does not show that: its opcode may have been replaced by a
    /// wrong one, and a count may equal a descriptor.
    names_file: bool,
}

fn pipe() -> [OwnedFd; 2] {
    let (from, to) = std::io::pipe().expect("a pipe");
    [from.into(), to.into()]
}

fn pair(kind: i32) -> [OwnedFd; 2] {
    use std::os::fd::FromRawFd;
    let mut fds = [0; 2];
    // SAFETY: the array has room for two descriptors. They are new, and nothing else owns them.
    unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()), 0);
        fds.map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

fn counter() -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: the descriptor is new, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) }
}

fn regular() -> OwnedFd {
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(std::env::temp_dir())
        .expect("a file without a name");
    file.set_len(2000).expect("a file can grow");
    file.into()
}

fn files() -> (Vec<File>, net::Address) {
    let mut files = Vec::new();
    let mut add = |kind, fd| files.push(File { kind, fd });
    let [from, to] = pipe();
    add(Kind::PipeOut, from);
    add(Kind::PipeIn, to);
    for (kind, number) in
        [(Kind::Stream, libc::SOCK_STREAM), (Kind::Packets, libc::SOCK_SEQPACKET), (Kind::Datagrams, libc::SOCK_DGRAM)]
    {
        for fd in pair(number) {
            add(kind, fd);
        }
    }
    let (listener, address) = net::listener(Family::V4);
    let client = net::connected(Family::V4, &address);
    // SAFETY: accept(2) gets no address pointer. The descriptor is new, and nothing else owns it.
    let server = unsafe {
        use std::os::fd::FromRawFd;
        let fd = libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut());
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    };
    add(Kind::Tcp, client);
    add(Kind::Tcp, server);
    add(Kind::Counter, counter());
    add(Kind::Regular, regular());
    add(Kind::Null, std::fs::File::options().read(true).write(true).open("/dev/null").expect("it is there").into());
    add(Kind::Listener, listener);
    (files, address)
}

/// Runs the program of one seed, and prints its output.
pub fn run(seed: u64, wait_factor: u32) {
    let mut program = Program::new(seed, wait_factor);
    for step in 0..STEPS {
        println!("step {step}");
        program.make_plain_calls();
        program.submit();
        program.print_completions();
    }
    program.end();
}

impl Program {
    fn new(seed: u64, wait_factor: u32) -> Program {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            random.next();
        }
        let deferred = ring::DEFER;
        let flags = random.of(&[0, 0, u::IORING_SETUP_COOP_TASKRUN, deferred, u::IORING_SETUP_SINGLE_ISSUER])
            | random.of(&[0, u::IORING_SETUP_SUBMIT_ALL, u::IORING_SETUP_NO_SQARRAY]);
        let drains = seed.is_multiple_of(5);
        // With SUBMIT_ALL, one call submits a whole batch, even if a request is refused. With two
        // calls, the timing of the kernel's task work would decide whether a drain (IO_DRAIN) of
        // the first call still holds back the requests of the second.
        let flags = flags | if drains { u::IORING_SETUP_SUBMIT_ALL } else { 0 };
        let entries = 64;
        println!("flags {flags:#x} cq {entries}");
        let ring = Ring::with(8, |params| {
            params.flags = flags | u::IORING_SETUP_CQSIZE;
            params.cq_entries = entries;
        })
        .expect("a ring");
        let (files, address) = files();
        let (rings, groups) = buffer_rings(&ring);
        let mut memory = Pages::new(64);
        let parts = [crate::sqe::vector(memory.at(0), 8192), crate::sqe::vector(memory.at(8192), 8192)];
        assert_eq!(ring.register(reg::BUFFERS, parts.as_ptr(), 2), 0);
        memory.bytes()[COUNT_AT..][..8].copy_from_slice(&3u64.to_le_bytes());
        let numbers: Vec<i32> = files.iter().map(|file| file.fd.as_raw_fd()).chain([-1; requests::FREE]).collect();
        assert_eq!(numbers.len(), requests::FIRST_FREE + requests::FREE);
        assert_eq!(ring.register(reg::FILES, numbers.as_ptr(), numbers.len() as u32), 0);
        Program {
            random,
            ring,
            files,
            address,
            memory,
            _rings: rings,
            groups,
            vectors: Vec::new(),
            headers: Vec::new(),
            pending: Vec::new(),
            entries: Vec::new(),
            without_copy: BTreeSet::new(),
            notified: BTreeSet::new(),
            polls: BTreeSet::new(),
            wait_factor,
            user_data: 0,
            soon: Timespec { tv_sec: 0, tv_nsec: 300_000 },
            never: Timespec { tv_sec: 1000, tv_nsec: 0 },
            drains,
            has_drained: false,
            group: None,
            polled: None,
            used: BTreeSet::new(),
            sent: BTreeMap::new(),
            shut: BTreeSet::new(),
            is_successor: false,
            watcher: None,
            names_file: false,
        }
    }

    /// Makes up to two plain system calls, such as a write to a file.
    fn make_plain_calls(&mut self) {
        for _ in 0..self.random.below(3) {
            let index = self.random.below(self.files.len());
            let fd = self.files[index].fd.as_raw_fd();
            let kind = self.files[index].kind;
            match (kind, self.random.below(8)) {
                (Kind::Closed | Kind::Null | Kind::PipeOut | Kind::Regular, _) => {}
                (Kind::PipeIn | Kind::Counter, _) => self.write(index, fd),
                (Kind::Listener, _) => {
                    let client = net::connected(Family::V4, &self.address);
                    println!("  connect");
                    // The client's end of the connection stays open until the program ends.
                    self.files.push(File { kind: Kind::Closed, fd: client });
                }
                (_, 0) if kind != Kind::Datagrams && self.random.percent(30) => {
                    // SAFETY: the call touches no memory.
                    let answer = unsafe { libc::shutdown(fd, libc::SHUT_WR) };
                    println!("  shutdown {index} = {answer}");
                    self.note_shutdown(index, libc::SHUT_WR);
                }
                (_, 1) => self.receive_plainly(index, fd),
                _ => self.write(index, fd),
            }
            self.collect();
        }
        for index in 0..self.groups.len() {
            if self.random.percent(30) && self.has_room(index) {
                let slot = self.random.below(8) as u16;
                let length = self.random.of(&[16, 16, 5, 1]);
                println!("  add to group {} slot {slot} length {length}", requests::RINGS[index]);
                self.groups[index].add(slot, length, slot);
            }
        }
    }

    /// Adds to `shut` the stream sockets that receive nothing more after this shutdown. These are
    /// the socket itself for SHUT_RD, and the peer of a Unix socket for SHUT_WR.
    fn note_shutdown(&mut self, index: usize, how: i32) {
        let (is_unix, peer) = (self.files[index].kind != Kind::Tcp, index ^ 1);
        if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
            self.shut.insert(index);
        }
        if is_unix && matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
            self.shut.insert(peer);
        }
    }

    /// Returns whether the buffer ring of the group with the index `index` has room for one more
    /// buffer.
    fn has_room(&self, index: usize) -> bool {
        let mut status: u::io_uring_buf_status = crate::memory::zeroed();
        status.buf_group = u32::from(requests::RINGS[index]);
        assert_eq!(self.ring.register(reg::PBUF_STATUS, &raw mut status, 1), 0);
        self.groups[index].added().wrapping_sub(status.head as u16) < 8
    }

    fn write(&mut self, index: usize, fd: i32) {
        let length = if self.files[index].kind == Kind::Counter { 8 } else { self.random.of(&[1, 3, 8, 20, 40, 100]) };
        let bytes: Vec<u8> = (0..length).map(|at| b'a' + ((at + index) % 26) as u8).collect();
        let bytes = if length == 8 { 3u64.to_le_bytes().to_vec() } else { bytes };
        let answer = match self.files[index].kind {
            Kind::PipeIn => {
                // The pipe may be full.
                let bytes = crate::sqe::vector(bytes.as_ptr() as u64, bytes.len());
                // SAFETY: the vector's bytes are readable.
                unsafe { libc::pwritev2(fd, &raw const bytes, 1, -1, libc::RWF_NOWAIT) }
            }
            // SAFETY: the bytes are readable for their length.
            Kind::Counter => unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) },
            // SAFETY: the bytes are readable for their length.
            _ => unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) },
        };
        println!("  write {index} {} = {answer}", bytes.len());
    }

    fn receive_plainly(&mut self, index: usize, fd: i32) {
        let mut bytes = [0u8; 64];
        // SAFETY: the bytes are writable for their length.
        let answer = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        println!("  recv {index} = {answer} {}", digest(&bytes));
    }

    fn submit(&mut self) {
        let mut count = 1 + self.random.below(BATCH as usize) as u32;
        self.used.clear();
        self.sent.clear();
        self.is_successor = false;
        for place in 1..=count {
            let mut sqe = self.request(place == 1);
            if place == count || sqe.opcode == opcode::SHUTDOWN {
                // The last request of a batch must have no link flag. Otherwise the kernel would
                // leave its chain to a worker.
                sqe.flags &= !(sqe_flags::IO_LINK | sqe_flags::IO_HARDLINK);
                self.watcher = None;
            }
            println!("  {}", self.describe(&sqe));
            let last = sqe.opcode == opcode::SHUTDOWN;
            self.ring.push(sqe);
            self.is_successor = sqe.flags & (sqe_flags::IO_LINK | sqe_flags::IO_HARDLINK) != 0;
            if last {
                // A worker of the kernel executes a shutdown, so the shutdown must be the last
                // request of its batch.
                count = place;
                break;
            }
        }
        let mut answer = self.ring.submit();
        println!("  submit {count} = {}", names::result(answer));
        // A submission ends at a refused request. Each further call submits the requests behind
        // that one.
        while answer > 0 && (answer as u32) < count {
            count -= answer as u32;
            answer = self.ring.enter(count, 0, 0);
            println!("  submit {count} = {}", names::result(answer));
        }
    }

    /// Reaps completions until several waits in a row have found none.
    fn collect(&mut self) {
        let mut quiet = 0;
        while quiet < QUIET_WAITS {
            // The program must wait in the kernel: with deferred task work, the kernel starts no
            // workers before such a wait.
            self.ring.enter_for(0, 1, WAIT_STEP * self.wait_factor);
            let new = self.ring.reap();
            quiet = if new.is_empty() { quiet + 1 } else { 0 };
            self.entries.extend(new);
        }
    }

    /// Reaps this step's completions and prints them, without the bits that the kernel does not
    /// guarantee.
    fn print_completions(&mut self) {
        self.collect();
        let mut entries = std::mem::take(&mut self.entries);
        entries.retain(|entry| !self.is_notification(entry));
        entries.sort_by_key(|entry| entry.user_data);
        let mut last_of_poll = None;
        for entry in &mut entries {
            // When a cancel interrupts a worker, the kernel does not guarantee which errors result.
            // The request gets EINTR or ECANCELED, and the cancel gets EALREADY or ENOENT.
            match -entry.res {
                libc::EINTR => entry.res = -libc::ECANCELED,
                libc::EALREADY => entry.res = -libc::ENOENT,
                _ => {}
            }
            let is_more = entry.flags & u::IORING_CQE_F_MORE != 0;
            if !is_more {
                // SOCK_NONEMPTY also reports the end of the stream. The timing decides whether a
                // receive already knows that end. So the flag of a last completion is not printed.
                entry.flags &= !u::IORING_CQE_F_SOCK_NONEMPTY;
            }
            if self.polls.contains(&entry.user_data) && entry.res & i32::from(libc::POLLOUT) != 0 {
                // The CQE of a poll has the events of all wake-ups before the kernel's check of the
                // file. The timing decides whether a hang-up comes before that check, so its bits
                // are not printed.
                entry.res &= !i32::from(libc::POLLRDHUP | libc::POLLHUP);
            }
            let of_poll = (self.polls.contains(&entry.user_data) && is_more).then_some((entry.user_data, entry.res));
            if of_poll.is_none() || of_poll != last_of_poll {
                println!("  cqe {entry}");
            }
            last_of_poll = of_poll;
            if !is_more || self.without_copy.contains(&entry.user_data) {
                self.pending.retain(|pending| pending.user_data != entry.user_data);
            }
        }
        println!("  memory {} {}", digest(self.memory.bytes()), digest_groups(&mut self.groups));
        // Counts the SQEs that are still in the SQ, because the kernel has not taken them.
        let mine = self.ring.sq_tail().wrapping_sub(self.ring.sq_head());
        if mine != 0 {
            println!("  left in the queue {mine}");
        }
    }

    fn end(&mut self) {
        println!("end");
        let all = u::IORING_ASYNC_CANCEL_ANY | u::IORING_ASYNC_CANCEL_ALL;
        self.ring.push(crate::sqe::cancel(0, all, 1_000_000));
        println!("  cancel = {}", names::result(self.ring.submit()));
        self.print_completions();
        println!("  pending {:?}", self.pending.iter().map(|pending| pending.user_data).collect::<Vec<_>>());
        for group in &self.groups {
            println!("  group {}", group_state(group));
        }
    }

    /// Returns whether `entry` is the notification of a SEND_ZC. The kernel posts it once the
    /// receiver has taken the data. Prints the notification if no request expects it.
    fn is_notification(&mut self, entry: &Entry) -> bool {
        if entry.flags & u::IORING_CQE_F_NOTIF == 0 {
            return false;
        }
        let is_due = self.without_copy.contains(&entry.user_data) && self.notified.insert(entry.user_data);
        if !is_due || !matches!(entry.res, 0 | COPIED) {
            println!("  unexpected notification {entry}");
        }
        true
    }
}

/// Registers the program's buffer rings, with six buffers in each. Returns the memory of the buffer
/// rings, and the groups.
fn buffer_rings(ring: &Ring) -> (Vec<Pages>, Vec<Group>) {
    let make = |(index, number): (usize, u16)| {
        let memory = Pages::new(1);
        let make = if index % 2 == 0 { buffers::group_of } else { buffers::incremental_group_of };
        let mut group = make(ring, &memory, 8, number);
        group.add_slots(0..6);
        (memory, group)
    };
    requests::RINGS.into_iter().enumerate().map(make).unzip()
}

fn group_state(group: &Group) -> String {
    (0..8).map(|slot| group.state(slot)).collect::<Vec<_>>().join(", ")
}

fn digest(bytes: &[u8]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{:08x}", hash as u32)
}

fn digest_groups(groups: &mut [Group]) -> String {
    groups.iter_mut().map(|group| digest(group.buffers.bytes())).collect::<Vec<_>>().join(" ")
}

impl Program {
    fn describe(&self, sqe: &Sqe) -> String {
        let name = opcode::NAMES.get(usize::from(sqe.opcode)).copied().unwrap_or("?");
        let place = self.files.iter().position(|file| file.fd.as_raw_fd() == sqe.fd);
        let fixed = sqe.flags & sqe_flags::FIXED_FILE != 0;
        let by_file = sqe.opcode != opcode::ASYNC_CANCEL || sqe.op_flags & u::IORING_ASYNC_CANCEL_FD != 0;
        let indexed = sqe.opcode == opcode::ASYNC_CANCEL && sqe.op_flags & u::IORING_ASYNC_CANCEL_FD_FIXED != 0;
        let on = if fixed || indexed || !self.names_file {
            Some(sqe.fd as usize)
        } else if by_file {
            place
        } else {
            None
        };
        let mut text = format!("{}: {name}", sqe.user_data);
        if let Some(index) = on {
            text += &format!(" on {index}");
        }
        let flags = [
            (u32::from(sqe_flags::FIXED_FILE), "FIXED"),
            (u32::from(sqe_flags::IO_DRAIN), "DRAIN"),
            (u32::from(sqe_flags::IO_LINK), "LINK"),
            (u32::from(sqe_flags::IO_HARDLINK), "HARDLINK"),
            (u32::from(sqe_flags::ASYNC), "ASYNC"),
            (u32::from(sqe_flags::BUFFER_SELECT), "SELECT"),
            (u32::from(sqe_flags::CQE_SKIP_SUCCESS), "SKIP"),
        ];
        if sqe.flags != 0 {
            text += &format!(" {}", names::bits(u32::from(sqe.flags), &flags));
        }
        let fields = [
            ("ioprio", u64::from(sqe.ioprio)),
            ("len", u64::from(sqe.len)),
            ("op_flags", u64::from(sqe.op_flags)),
            ("group", u64::from(sqe.buf_index)),
            ("index", u64::from(sqe.file_index)),
            ("addr3", sqe.addr3),
            ("off", if sqe.off < 5_000 || sqe.off == u64::MAX { sqe.off } else { 0 }),
            ("addr", if sqe.addr < 5_000 { sqe.addr } else { 0 }),
        ];
        for (field, value) in fields {
            if value != 0 {
                text += &format!(" {field} {value:#x}");
            }
        }
        text
    }
}
