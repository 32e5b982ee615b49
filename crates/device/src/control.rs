//! Messages between the processes of a `usring run` and the *starter*, the process that started
//! them. A process asks which devices there are, and for resources that its drivers need
//! ([`Supply`]). This file defines the messages for both sides.
//!
//! - A connection carries one question and its answer, and is then closed. Two kinds of connections
//!   stay open: that of a queue, and that of a claim ([`QuestionKind::Claim`]). So threads share no
//!   other connection, and a fork inherits no other one.
//! - A process that uses a back end's queue keeps open the connection on which it got the queue. If
//!   the process is killed, that connection ends, and the starter frees the queue.
//! - The process returns the queue on that connection, too. So no process can return a queue that
//!   meanwhile belongs to another process.

use crate::supply::{QueueGrant, SharedRegion, Supply};
use alloc::vec::Vec;
use usring_sys::Errno;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::unix_socket::Connection;
use usring_sys::width;

/// First word of every message. It is changed whenever a message of this file changes.
pub const MAGIC: u32 = 0x7573_0001;
/// Maximum length of a message in bytes: a header and a device's SPEC.
pub const MOST_MESSAGE_BYTES: usize = 8192;

/// The kind of a question. Each comment names the question's parameters and the content of the
/// answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QuestionKind {
    /// Asks for the devices of the `usring run`. Answer: `values[0]` is their number, and the
    /// descriptor is the page with their policies.
    List = 1,
    /// Asks about a device. Answer: `values` are st_dev and st_ino of the device's file, the flag
    /// [`FALLBACK`] or 0, and the device's size in bytes. The text is the device's SPEC, a NUL
    /// byte, and the path that `usring ctl` shows.
    Describe = 2,
    /// Asks for the memory that holds a device's blocks. `values[0]` is the size of the memory.
    /// Answer: the descriptor of the memory.
    Memory = 3,
    /// Asks for the memory that holds the queues of the device's back end. Answer: the descriptor
    /// of that memory.
    Arena = 4,
    /// Asks for a queue of the back end. Answer: `values[0]` is the queue's index, and the
    /// descriptors are kick, call and ready ([`QueueGrant`]). The process that started the run
    /// frees the queue when this connection ends for any reason.
    Queue = 5,
    /// Returns the queue that the process got on this connection. The answer is empty, and is sent
    /// after the back end has released the queue.
    ReturnQueue = 6,
    /// Shares memory with the back end. `values[0]` is the length, and the descriptor is a memory
    /// file. Answer: `values` are the slot (the number of this share) and the memory's address in
    /// the back end.
    Share = 7,
    /// Ends the sharing of memory. `values[0]` is the slot that the answer to
    /// [`QuestionKind::Share`] named. The answer is empty.
    Unshare = 8,
    /// Claims the device [`SWAP`]. The answer is empty. The device then belongs to the asking
    /// process, until this connection and the connections of the device's queues have ended. Error
    /// `EBUSY`: the device belongs to another process.
    Claim = 9,
    /// Asks for the rules by which the run makes faults (`--inject`). Answer: the descriptor of the
    /// memory file with the rules. Error `ENODEV`: there are no such rules.
    Faults = 10,
    /// Asks for the state of the storage daemon that serves a device. Answer: `values` are three
    /// numbers. The first is the daemon's process id, or 0 if the daemon does not run. The second
    /// is 1 if it serves the device, or else 0. The third says how often it was started again.
    /// Error `EOPNOTSUPP`: no daemon was started for this device.
    Health = 11,
}

/// Device number of the swap device, which holds the run's swapped memory. [`QuestionKind::List`]
/// does not count this device.
pub const SWAP: u32 = u32::MAX;

/// Flag in the answer to [`QuestionKind::Describe`]: a polled ring may wait for the device's
/// interrupts instead of polling.
pub const FALLBACK: u64 = 1;

/// Header of a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Question {
    pub kind: u32,
    /// Number of the device, counted from 0.
    pub device: u32,
    pub values: [u64; 4],
}

/// Lengths of the headers of questions and answers, in bytes.
pub const QUESTION_LENGTH: usize = 12 + 4 * 8;
pub const ANSWER_LENGTH: usize = 8 + 4 * 8;

/// Header of an answer; a text may follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0 for success, or an errno.
    pub error: u32,
    pub values: [u64; 4],
}

impl Question {
    pub fn to_bytes(self) -> [u8; QUESTION_LENGTH] {
        let mut bytes = [0; QUESTION_LENGTH];
        write(&mut bytes, &[MAGIC, self.kind, self.device], self.values);
        bytes
    }

    /// Parses a question. `None` if the bytes are no question, or come from another build of
    /// usring.
    pub fn from_bytes(bytes: &[u8]) -> Option<Question> {
        let ([magic, kind, device], values) = read::<3>(bytes)?;
        (magic == MAGIC).then_some(Question { kind, device, values })
    }
}

impl Answer {
    pub fn to_bytes(self) -> [u8; ANSWER_LENGTH] {
        let mut bytes = [0; ANSWER_LENGTH];
        write(&mut bytes, &[MAGIC, self.error], self.values);
        bytes
    }

    /// Parses an answer. `None` if the bytes are no answer, or come from another build of usring.
    pub fn from_bytes(bytes: &[u8]) -> Option<Answer> {
        let ([magic, error], values) = read::<2>(bytes)?;
        (magic == MAGIC).then_some(Answer { error, values })
    }
}

fn write(bytes: &mut [u8], words: &[u32], values: [u64; 4]) {
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    let values = values.into_iter().flat_map(u64::to_le_bytes);
    bytes.iter_mut().zip(words.chain(values)).for_each(|(to, from)| *to = from);
}

fn read<const WORDS: usize>(bytes: &[u8]) -> Option<([u32; WORDS], [u64; 4])> {
    let mut words = [0; WORDS];
    let (mut chunks, rest) = (bytes.get(..4 * WORDS)?.chunks_exact(4), bytes.get(4 * WORDS..4 * WORDS + 32)?);
    words.fill_with(|| chunks.next().and_then(|chunk| chunk.try_into().ok()).map_or(0, u32::from_le_bytes));
    let mut values = [0; 4];
    let mut chunks = rest.chunks_exact(8);
    values.fill_with(|| chunks.next().and_then(|chunk| chunk.try_into().ok()).map_or(0, u64::from_le_bytes));
    Some((words, values))
}

impl QuestionKind {
    pub fn from_number(number: u32) -> Option<QuestionKind> {
        use QuestionKind::*;
        let all = [List, Describe, Memory, Arena, Queue, ReturnQueue, Share, Unshare, Claim, Faults, Health];
        all.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// An answer with its text and descriptors.
pub struct Answered {
    pub values: [u64; 4],
    pub text: Vec<u8>,
    pub descriptors: Vec<OwnedDescriptor>,
}

/// The address of the starter's socket.
#[derive(Clone, Debug)]
pub struct Control {
    path: Vec<u8>,
    limit_seconds: Option<u64>,
}

impl Control {
    pub fn at(path: &[u8]) -> Control {
        Control { path: path.into(), limit_seconds: None }
    }

    /// Limits the wait for each answer to `seconds`. If the process that started the run has not
    /// answered by then, [`Control::ask`] fails with `EAGAIN`.
    pub fn within(self, seconds: u64) -> Control {
        Control { limit_seconds: Some(seconds), ..self }
    }

    fn connect(&self) -> Result<Connection, Errno> {
        Connection::open(&self.path, self.limit_seconds)
    }

    /// Sends a question, with the descriptor `lent` if there is one, and waits for the answer.
    ///
    /// Errors: the error in the answer; `ECONNREFUSED`, `ENOENT` or `EPIPE` if the process that
    /// started the run does not answer; `EINVAL` for an answer of another build.
    pub fn ask(&self, kind: QuestionKind, device: u32, values: [u64; 4], lent: Option<i32>) -> Result<Answered, Errno> {
        self.ask_on(&self.connect()?, kind, device, values, lent)
    }

    fn ask_on(
        &self,
        connection: &Connection,
        kind: QuestionKind,
        device: u32,
        values: [u64; 4],
        lent: Option<i32>,
    ) -> Result<Answered, Errno> {
        let question = Question { kind: kind as u32, device, values };
        connection.send(&question.to_bytes(), lent)?;
        let mut buffer = alloc::vec![0u8; MOST_MESSAGE_BYTES];
        let (length, descriptors) = connection.receive(&mut buffer)?;
        buffer.truncate(length);
        let answer = Answer::from_bytes(&buffer).ok_or(Errno::EINVAL)?;
        if answer.error != 0 {
            return Err(Errno::new(answer.error));
        }
        let text = buffer.split_off(ANSWER_LENGTH);
        Ok(Answered { values: answer.values, text, descriptors })
    }
}

/// The resources of one device, which the starter supplies.
pub struct RemoteSupply {
    control: Control,
    device: u32,
    /// The connection on which this process has claimed the swap device. `None` for any other
    /// device.
    _claim: Option<Connection>,
}

impl RemoteSupply {
    pub fn new(control: Control, device: u32) -> Self {
        RemoteSupply { control, device, _claim: None }
    }

    /// Claims the run's swap device for this process until the returned value is dropped. Errors:
    /// `EBUSY` if another process has claimed the device; those of [`Control::ask`].
    pub fn of_swap(control: Control) -> Result<Self, Errno> {
        let claim = control.connect()?;
        control.ask_on(&claim, QuestionKind::Claim, SWAP, [0; 4], None)?;
        Ok(RemoteSupply { _claim: Some(claim), ..RemoteSupply::new(control, SWAP) })
    }

    fn ask(&self, kind: QuestionKind, value: u64, lent: Option<i32>) -> Result<Answered, Errno> {
        self.control.ask(kind, self.device, [value, 0, 0, 0], lent)
    }
}

impl Supply for RemoteSupply {
    fn memory(&self, size: u64) -> Result<OwnedDescriptor, Errno> {
        self.ask(QuestionKind::Memory, size, None)?.descriptors.into_iter().next().ok_or(Errno::EINVAL)
    }

    fn arena(&self) -> Result<OwnedDescriptor, Errno> {
        self.ask(QuestionKind::Arena, 0, None)?.descriptors.into_iter().next().ok_or(Errno::EINVAL)
    }

    fn queue(&self) -> Result<QueueGrant, Errno> {
        let connection = self.control.connect()?;
        let answered = self.control.ask_on(&connection, QuestionKind::Queue, self.device, [0; 4], None)?;
        let index = width::low(answered.values[0]);
        let mut descriptors = answered.descriptors.into_iter();
        let (Some(kick), Some(call), Some(ready)) = (descriptors.next(), descriptors.next(), descriptors.next()) else {
            return Err(Errno::EINVAL);
        };
        Ok(QueueGrant { index, kick, call, ready, connection: Some(connection) })
    }

    fn return_queue(&self, _: u32, connection: Option<&Connection>) {
        let Some(connection) = connection else { return };
        // The error is ignored: if the process that started the run does not answer, it has ended,
        // and no back end serves its queues any more.
        let _ = self.control.ask_on(connection, QuestionKind::ReturnQueue, self.device, [0; 4], None);
    }

    fn share(&self, file: i32, length: u64) -> Result<SharedRegion, Errno> {
        let answered = self.ask(QuestionKind::Share, length, Some(file))?;
        Ok(SharedRegion { slot: width::low(answered.values[0]), address: answered.values[1] })
    }

    fn unshare(&self, slot: u32) {
        let _ = self.ask(QuestionKind::Unshare, u64::from(slot), None);
    }
}
