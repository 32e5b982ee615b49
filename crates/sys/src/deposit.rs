//! Passes open files between related processes: a process and its forked descendants, which share a
//! table of process numbers ([`crate::process_number`]). A process *deposits* files. Each other
//! process can take duplicates of these files, even after the depositing process has ended.
//!
//! The files lie in the queue of a pair of Unix sockets, which all these processes inherit. The
//! kernel keeps the files of a message open until the message is received. A process that takes a
//! deposit only peeks at the messages (MSG_PEEK), so they stay in the queue.
//!
//! - A deposit has a [`Key`], which no later deposit has again, and up to [`MOST_PARTS`] messages.
//! - [`put`] appends a deposit. A deposit belongs to an object (in usring, a ring) and has a kind.
//!   [`keep_only`] removes the earlier deposits of an object and kind.
//! - A message can only be removed at the front of the queue. So each message before it first moves
//!   to the end: it is sent again, and then received. If a process dies between these two steps,
//!   the queue has two copies of that message, and [`take`] ignores the second.
//! - Each of these functions holds the pair's lock (`process_number::queue_lock`). If a process
//!   dies while it holds the lock, the queue still has only whole messages.

use crate::descriptor::OwnedDescriptor;
use crate::process_number::{self, QueueLock};
use crate::unix_socket::{AF_UNIX, Control, Header, MSG_CMSG_CLOEXEC, MSG_NOSIGNAL, SOCK_CLOEXEC, SOL_SOCKET};
use crate::{Errno, SystemCall, width};
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

// linux/socket.h.
const SOCK_DGRAM: u64 = 2;
const SO_SNDBUF: u64 = 7;
const SO_PEEK_OFF: u64 = 42;
const MSG_PEEK: u64 = 2;
const MSG_DONTWAIT: u64 = 0x40;

/// Maximum number of files in one message. The kernel's limit is 253 (SCM_MAX_FD).
const FILES_OF_PART: usize = 250;
/// Number of words that describe each file.
pub const WORDS_OF_FILE: usize = 2;
/// Number of words at the start of a message, in front of the words that describe its files: see
/// [`Head`].
const HEAD: usize = 8;
const MESSAGE: usize = HEAD + WORDS_OF_FILE * FILES_OF_PART;
/// Maximum number of messages of a deposit.
pub const MOST_PARTS: usize = 64;
/// Capacity that usring requests for the queue of deposits, in bytes (SO_SNDBUF). If
/// `net.core.wmem_max` is less, the kernel grants less.
const QUEUE_BYTES: u32 = 1 << 20;

/// Name of a deposit (a set of files that related processes may take).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The object that the deposited files belong to, such as a ring.
    pub object: [u32; 2],
    /// Kind of the deposit (a set of files). An object has at most one current deposit of each
    /// kind.
    pub kind: u32,
    pub number: u32,
}

/// A deposited file, and the words that describe it.
#[derive(Clone, Copy, Debug)]
pub struct DepositedFile {
    /// The file's number in this process.
    pub file: i32,
    pub words: [u64; WORDS_OF_FILE],
}

/// A file that was taken from a deposit.
pub struct TakenFile {
    pub file: OwnedDescriptor,
    pub words: [u64; WORDS_OF_FILE],
}

/// The result of [`take`]: duplicates of a deposit's files, and two words that the depositing
/// process stored for the deposit as a whole.
#[derive(Default)]
pub struct Contents {
    pub words: [u64; 2],
    pub files: Vec<TakenFile>,
}

/// The words in front of a message's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    key: Key,
    part: u32,
    parts: u32,
    files: u32,
    /// Words that the depositing process stored for all files of the deposit together.
    words: [u64; 2],
}

impl Head {
    fn encode(&self) -> [u64; HEAD] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let Key { object: [first, second], kind, number } = self.key;
        let [one, two] = self.words;
        [pair(first, second), pair(kind, number), pair(self.part, self.parts), pair(self.files, 0), one, two, 0, 0]
    }

    fn decode(words: &[u64]) -> Option<Head> {
        let &[object, key, parts, files, one, two, ..] = words else { return None };
        let halves = |word: u64| [width::low(word), (word >> 32) as u32];
        let ([kind, number], [part, parts]) = (halves(key), halves(parts));
        let key = Key { object: halves(object), kind, number };
        Some(Head { key, part, parts, files: width::low(files), words: [one, two] })
    }
}

/// A message received from the queue of deposits: its words, and duplicates of its files.
struct Message {
    words: Vec<u64>,
    files: Vec<OwnedDescriptor>,
}

/// Makes the pair of Unix sockets whose queue holds deposited files: the receiving end and the
/// sending end.
pub(crate) fn queue() -> Result<[OwnedDescriptor; 2], Errno> {
    let mut numbers = [0i32; 2];
    let arguments = [AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, &raw mut numbers as u64, 0];
    SystemCall::new(linux::__NR_socketpair, arguments).run()?;
    let [receiver, sender] = numbers.map(OwnedDescriptor::from_raw);
    let (receiver, sender) = (receiver.into_private()?, sender.into_private()?);
    set_option(sender.number(), SO_SNDBUF, QUEUE_BYTES);
    Ok([receiver, sender])
}

fn set_option(socket: i32, option: u64, value: u32) {
    let arguments = [width::word(socket), SOL_SOCKET as u64, option, &raw const value as u64, 4];
    let _ = SystemCall::new(linux::__NR_setsockopt, arguments).run();
}

fn send(queue: &QueueLock, words: &[u64], files: &[i32]) -> Result<(), Errno> {
    let vector = [words.as_ptr() as u64, size_of_val(words) as u64];
    let control = Control::<FILES_OF_PART>::of(files);
    let header = Header {
        name: 0,
        name_length: 0,
        vectors: vector.as_ptr() as u64,
        vector_count: 1,
        control: if files.is_empty() { 0 } else { &raw const control as u64 },
        control_length: if files.is_empty() { 0 } else { control.sent_length() },
        flags: 0,
    };
    let arguments = [width::word(queue.sender()), &raw const header as u64, MSG_NOSIGNAL | MSG_DONTWAIT, 0, 0];
    SystemCall::new(linux::__NR_sendmsg, arguments).run().map(drop)
}

/// How a call that receives a message treats the message and its files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Leaves the message in the queue, and takes duplicates of its files.
    Peek,
    /// Leaves the message in the queue, and takes none of its files.
    PeekWords,
    /// Removes the message, and takes none of its files.
    Drop,
}

/// Receives the next message; `None`: there is none.
fn receive(queue: &QueueLock, mode: Mode) -> Option<Message> {
    let mut words = Vec::new();
    words.try_reserve_exact(MESSAGE).ok()?;
    words.resize(MESSAGE, 0u64);
    let vector = [words.as_mut_ptr() as u64, (MESSAGE * size_of::<u64>()) as u64];
    let mut control = Control::<FILES_OF_PART>::empty();
    let takes_files = mode == Mode::Peek;
    let mut header = Header {
        name: 0,
        name_length: 0,
        vectors: vector.as_ptr() as u64,
        vector_count: 1,
        control: if takes_files { &raw mut control as u64 } else { 0 },
        control_length: if takes_files { size_of::<Control<FILES_OF_PART>>() as u64 } else { 0 },
        flags: 0,
    };
    let peek = if mode == Mode::Drop { 0 } else { MSG_PEEK };
    let flags = MSG_CMSG_CLOEXEC | MSG_DONTWAIT | peek;
    let arguments = [width::word(queue.receiver()), &raw mut header as u64, flags, 0, 0];
    let length = width::size(SystemCall::new(linux::__NR_recvmsg, arguments).run().ok()?);
    words.truncate(length / size_of::<u64>());
    Some(Message { words, files: control.received(header.control_length) })
}

/// Sets the queue's peek offset to the first message. After that, each peek moves the offset to the
/// next message.
fn rewind(queue: &QueueLock) {
    set_option(queue.receiver(), SO_PEEK_OFF, 0);
}

/// Stops the movement of the peek offset. Later peeks and removals all take the first message of
/// the queue.
fn stay_at_first(queue: &QueueLock) {
    set_option(queue.receiver(), SO_PEEK_OFF, u32::MAX);
}

/// Deposits files, so that related processes can take duplicates of them. `words` are stored for
/// the deposit as a whole. The files also stay open in this process.
///
/// Errors: `EAGAIN` if the queue is full; `ETOOMANYREFS` if the user has too many files in flight
/// (RLIMIT_NOFILE); `EMFILE` for too many files; `ENXIO` without a queue.
pub fn put(key: Key, words: [u64; 2], items: &[DepositedFile]) -> Result<(), Errno> {
    let parts = items.len().div_ceil(FILES_OF_PART).max(1);
    if parts > MOST_PARTS {
        return Err(Errno::EMFILE);
    }
    let queue = process_number::queue_lock()?;
    for part in 0..parts {
        let first = part * FILES_OF_PART;
        let items = &items[first..items.len().min(first + FILES_OF_PART)];
        let files: Vec<i32> = items.iter().map(|item| item.file).collect();
        let (part, parts) = (width::count(part), width::count(parts));
        let head = Head { key, part, parts, files: width::count(files.len()), words };
        let mut message = Vec::from(head.encode());
        items.iter().for_each(|item| message.extend(item.words));
        if let Err(error) = send(&queue, &message, &files) {
            remove(&queue, |head| head.key == key);
            return Err(error);
        }
    }
    Ok(())
}

/// Makes duplicates of the files of the deposit `key`, at descriptor numbers that are private to
/// usring. Returns `None` if no deposit has this key, or if a message of the deposit is missing.
///
/// Errors: `EMFILE`; `ENXIO` without a queue.
pub fn take(key: Key) -> Result<Option<Contents>, Errno> {
    let queue = process_number::queue_lock()?;
    let heads = heads(&queue);
    let (mut found, mut words, mut wanted) = (Vec::new(), None, 1);
    rewind(&queue);
    for head in heads {
        let is_next = head.key == key && head.part == found_parts(&words);
        let message = receive(&queue, if is_next { Mode::Peek } else { Mode::PeekWords });
        let Some(message) = message else { break };
        if !is_next {
            continue;
        }
        wanted = head.parts;
        words = Some((head.words, head.part + 1));
        if message.files.len() != head.files as usize {
            return Err(Errno::EMFILE);
        }
        let described = message.words.get(HEAD..).unwrap_or_default().chunks_exact(WORDS_OF_FILE);
        for (file, words) in message.files.into_iter().zip(described) {
            found.push(TakenFile { file: file.into_private()?, words: [words[0], words[1]] });
        }
    }
    let is_whole = words.filter(|(_, parts)| *parts == wanted);
    Ok(is_whole.map(|(words, _)| Contents { words, files: found }))
}

fn found_parts(words: &Option<([u64; 2], u32)>) -> u32 {
    words.map_or(0, |(_, parts)| parts)
}

/// Removes all deposits of `object` and `kind`, except the deposit `number`. The kernel closes the
/// files of a removed deposit, unless a process has taken duplicates.
pub fn keep_only(Key { object, kind, number }: Key) {
    if let Ok(queue) = process_number::queue_lock() {
        remove(&queue, |head| head.key.object == object && head.key.kind == kind && head.key.number != number);
    }
}

/// Returns the heads of all messages, in order.
fn heads(queue: &QueueLock) -> Vec<Head> {
    rewind(queue);
    let next = || receive(queue, Mode::PeekWords).map(|message| Head::decode(&message.words));
    core::iter::from_fn(next).flatten().collect()
}

/// Removes the messages for which `is_stale` returns `true`.
fn remove(queue: &QueueLock, is_stale: impl Fn(&Head) -> bool) {
    let heads = heads(queue);
    let Some(last) = heads.iter().rposition(&is_stale) else { return };
    stay_at_first(queue);
    for head in &heads[..=last] {
        if !is_stale(head) {
            let Some(Message { words, files }) = receive(queue, Mode::Peek) else { return };
            let files: Vec<i32> = files.iter().map(OwnedDescriptor::number).collect();
            // The message cannot be moved to the end if the queue is full. Then the stale messages
            // stay in the queue, and the next call of this function removes them.
            if files.len() != head.files as usize || send(queue, &words, &files).is_err() {
                return;
            }
        }
        receive(queue, Mode::Drop);
    }
}
