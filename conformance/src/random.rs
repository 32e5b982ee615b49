//! Random programs: short sequences of requests and plain calls, made from a
//! seed, that say what came of each. Run on the kernel and on usring, the
//! transcripts of one seed must agree; where they do not, either is wrong, or
//! the kernel promises nothing there.
//!
//! What the kernel leaves open is kept out: of the requests that wait for one
//! file to give something there is only one at a time, times are either over
//! before anybody looks or far away, and completions of one step are sorted.
//! What a plain call has brought about is waited for before the next, for it is
//! done at once on the one and soon on the other.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use usring_uapi::io_uring as u;
use usring_uapi::{Sqe, Timespec, opcode, sqe_flags};

use crate::buffers::{self, Group};
use crate::cases::reg;
use crate::memory::Pages;
use crate::names;
use crate::net::{self, Family};
use crate::ring::{Entry, Ring};

mod compare;
mod requests;

pub use compare::compare;

/// Steps of a program.
const STEPS: u32 = 14;
/// Most requests of one step.
const BATCH: u32 = 6;
/// Bytes of memory that each request has for itself.
const ROOM: usize = 512;
/// So many looks in a row that find nothing, and a step is over.
const QUIET_LOOKS: u32 = 4;

/// A generator of random numbers that is the same everywhere (xorshift64*).
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

/// A file of the program, by what can be done with it.
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

/// A request that has not had its last completion.
struct Pending {
    user_data: u64,
    /// The file that it takes something from.
    reads: Option<usize>,
}

struct Program {
    random: Random,
    ring: Ring,
    files: Vec<File>,
    address: net::Address,
    memory: Pages,
    _rings: [Pages; 2],
    groups: [Group; 2],
    #[expect(clippy::vec_box, reason = "requests name their addresses")]
    vectors: Vec<Box<[libc::iovec; 2]>>,
    #[expect(clippy::vec_box, reason = "requests name their addresses")]
    headers: Vec<Box<libc::msghdr>>,
    pending: Vec<Pending>,
    /// Completions that have not been told of.
    entries: Vec<Entry>,
    user_data: u64,
    soon: Timespec,
    never: Timespec,
    /// Has requests that drain; others have chains.
    drains: bool,
    /// The batch ends an earlier request already.
    cancels: bool,
    /// A LINK_TIMEOUT that comes next.
    watcher: Option<Sqe>,
    /// Whether the last request's `fd` is a descriptor and no count. A spoiled opcode
    /// does not say, and a count that equals a descriptor's number says nothing.
    names_file: bool,
}

fn pipe() -> [OwnedFd; 2] {
    let (from, to) = std::io::pipe().expect("a pipe");
    [from.into(), to.into()]
}

fn pair(kind: i32) -> [OwnedFd; 2] {
    use std::os::fd::FromRawFd;
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors, which are then nobody else's.
    unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()), 0);
        fds.map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

fn counter() -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: a new descriptor of our own.
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
    // SAFETY: no address is asked for; the descriptor is nobody else's.
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

/// Runs the program of one seed.
pub fn run(seed: u64) {
    let mut program = Program::new(seed);
    for step in 0..STEPS {
        println!("step {step}");
        program.act();
        program.submit();
        program.settle();
    }
    program.end();
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            random.next();
        }
        let deferred = u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN;
        let flags = random.of(&[0, 0, u::IORING_SETUP_COOP_TASKRUN, deferred, u::IORING_SETUP_SINGLE_ISSUER])
            | random.of(&[0, u::IORING_SETUP_SUBMIT_ALL, u::IORING_SETUP_NO_SQARRAY]);
        let entries = 64;
        println!("flags {flags:#x} cq {entries}");
        let ring = Ring::with(8, |params| {
            params.flags = flags | u::IORING_SETUP_CQSIZE;
            params.cq_entries = entries;
        })
        .expect("a ring");
        let (files, address) = files();
        let rings = [Pages::new(1), Pages::new(1)];
        let mut groups =
            [buffers::group_of(&ring, &rings[0], 8, 1), buffers::incremental_group_of(&ring, &rings[1], 8, 2)];
        for group in &mut groups {
            group.add_slots(0..6);
        }
        let memory = Pages::new(64);
        let parts = [crate::sqe::vector(memory.at(0), 8192), crate::sqe::vector(memory.at(8192), 8192)];
        assert_eq!(ring.register(reg::BUFFERS, parts.as_ptr(), 2), 0);
        let numbers: Vec<i32> = files.iter().map(|file| file.fd.as_raw_fd()).chain([-1]).collect();
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
            user_data: 0,
            soon: Timespec { tv_sec: 0, tv_nsec: 300_000 },
            never: Timespec { tv_sec: 1000, tv_nsec: 0 },
            drains: seed.is_multiple_of(5),
            cancels: false,
            watcher: None,
            names_file: false,
        }
    }

    /// Something that is done by ordinary calls.
    fn act(&mut self) {
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
                    // It stays for as long as the program.
                    self.files.push(File { kind: Kind::Closed, fd: client });
                }
                (_, 0) if self.random.percent(30) => {
                    // SAFETY: no memory is involved.
                    let answer = unsafe { libc::shutdown(fd, libc::SHUT_WR) };
                    println!("  shutdown {index} = {answer}");
                }
                (_, 1) => self.drain(index, fd),
                _ => self.write(index, fd),
            }
            self.collect();
        }
        for index in 0..2 {
            if self.random.percent(30) && self.has_room(index) {
                let slot = self.random.below(8) as u16;
                let length = self.random.of(&[16, 16, 5, 1]);
                println!("  add to group {} slot {slot} length {length}", index + 1);
                self.groups[index].add(slot, length, slot);
            }
        }
    }

    /// Whether a buffer ring can take one more.
    fn has_room(&self, index: usize) -> bool {
        let mut status: u::io_uring_buf_status = crate::memory::zeroed();
        status.buf_group = index as u32 + 1;
        assert_eq!(self.ring.register(reg::PBUF_STATUS, &raw mut status, 1), 0);
        self.groups[index].added().wrapping_sub(status.head as u16) < 8
    }

    fn write(&mut self, index: usize, fd: i32) {
        let length = if self.files[index].kind == Kind::Counter { 8 } else { self.random.of(&[1, 3, 8, 20, 40, 100]) };
        let bytes: Vec<u8> = (0..length).map(|at| b'a' + ((at + index) % 26) as u8).collect();
        let bytes = if length == 8 { 3u64.to_le_bytes().to_vec() } else { bytes };
        let answer = match self.files[index].kind {
            // SAFETY: readable for its length.
            Kind::PipeIn | Kind::Counter => unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) },
            // SAFETY: as above.
            _ => unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) },
        };
        println!("  write {index} {} = {answer}", bytes.len());
    }

    fn drain(&mut self, index: usize, fd: i32) {
        let mut bytes = [0u8; 64];
        // SAFETY: writable for its length.
        let answer = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        println!("  recv {index} = {answer} {}", digest(&bytes));
    }

    fn submit(&mut self) {
        let mut count = 1 + self.random.below(BATCH as usize) as u32;
        self.cancels = false;
        for place in 1..=count {
            let mut sqe = self.request();
            if place == count || sqe.opcode == opcode::SHUTDOWN {
                // A chain that the batch's end cuts off goes to a worker in the kernel.
                sqe.flags &= !(sqe_flags::IO_LINK | sqe_flags::IO_HARDLINK);
                self.watcher = None;
            }
            println!("  {}", self.describe(&sqe));
            let last = sqe.opcode == opcode::SHUTDOWN;
            self.ring.push(sqe);
            if last {
                // A worker of the kernel's does it, whatever comes behind.
                count = place;
                break;
            }
        }
        let answer = self.ring.submit();
        println!("  submit {count} = {}", names::result(answer));
        // What stands behind a refused one is of the next step.
        if answer >= 0 && (answer as u32) < count {
            let left = count - answer as u32;
            println!("  submit {left} = {}", names::result(self.ring.enter(left, 0, 0)));
        }
    }

    /// Takes completions until there are none for some time.
    fn collect(&mut self) {
        let mut quiet = 0;
        while quiet < QUIET_LOOKS {
            // A real wait: the kernel starts no workers for a ring that defers before that.
            self.ring.enter_for(0, 1, Duration::from_micros(2000));
            let new = self.ring.reap();
            quiet = if new.is_empty() { quiet + 1 } else { 0 };
            self.entries.extend(new);
        }
    }

    /// The same, and tells of them.
    fn settle(&mut self) {
        self.collect();
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_by_key(|entry| entry.user_data);
        for entry in &mut entries {
            // How a worker that is broken off says so is left open.
            match -entry.res {
                libc::EINTR => entry.res = -libc::ECANCELED,
                libc::EALREADY => entry.res = -libc::ENOENT,
                _ => {}
            }
            println!("  cqe {entry}");
            if entry.flags & u::IORING_CQE_F_MORE == 0 {
                self.pending.retain(|pending| pending.user_data != entry.user_data);
            }
        }
        println!("  memory {} {}", digest(self.memory.bytes()), digest_groups(&mut self.groups));
        // Requests that the batch's end has cut off are not under way.
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
        self.settle();
        println!("  pending {:?}", self.pending.iter().map(|pending| pending.user_data).collect::<Vec<_>>());
        println!("  groups {} {}", group_state(&self.groups[0]), group_state(&self.groups[1]));
    }
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

fn digest_groups(groups: &mut [Group; 2]) -> String {
    let [first, second] = groups;
    format!("{} {}", digest(first.buffers.bytes()), digest(second.buffers.bytes()))
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
