//! What the processes of a run ask the one that started it: which devices
//! there are, and what their drivers need ([`Supply`]). Both sides read the
//! messages by this file.
//!
//! One connection carries one question and its answer, so nothing is shared
//! between threads or inherited by a fork. Only who has a back end's queue keeps
//! the connection on which it came: by its end the starter learns of a process
//! that was killed. On it the queue is returned, too: it is lent once and comes back
//! once, so that nobody returns what is another's by then.

use crate::supply::{QueueGrant, SharedRegion, Supply};
use alloc::vec::Vec;
use usring_sys::Errno;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::unix_socket::Connection;

/// First word of every message; a change of this file changes it.
pub const MAGIC: u32 = 0x7573_0001;
/// Longest message, in bytes: a head and the text of a device.
pub const LONGEST: usize = 8192;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// → `values[0]`: how many devices; descriptor: the page of their policies.
    List = 1,
    /// Of a device → values: st_dev and st_ino of its file, [`FALLBACK`]; text: its SPEC.
    Describe = 2,
    /// `values[0]`: size → descriptor: the memory that holds the device's blocks.
    Memory = 3,
    /// → descriptor: the memory that a back end's queues lie in.
    Arena = 4,
    /// → `values[0]`: its index; descriptors: kick, call, settled. The queue is
    /// taken back when this connection ends, however that happens.
    Queue = 5,
    /// On the connection of a queue. → When it is answered, the back end has let go of the queue.
    ReturnQueue = 6,
    /// `values[0]`: length, with a file of memory → values: slot and address.
    Share = 7,
    /// `values[0]`: slot.
    Unshare = 8,
    /// Of [`SWAP`]. → It is the asker's until this connection has ended, and those of its queues.
    /// `EBUSY`: it is another's.
    Claim = 9,
}

/// In place of a device's number: where swapped memory of the run goes. No list has it.
pub const SWAP: u32 = u32::MAX;

/// A polled ring may wait for the device's interrupts.
pub const FALLBACK: u64 = 1;

/// The head of a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Question {
    pub kind: u32,
    /// Which device, counted from 0.
    pub device: u32,
    pub values: [u64; 4],
}

/// Bytes of the two heads.
pub const QUESTION_LENGTH: usize = 12 + 4 * 8;
pub const ANSWER_LENGTH: usize = 8 + 4 * 8;

/// The head of an answer; a text may follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0, or an errno.
    pub error: u32,
    pub values: [u64; 4],
}

impl Question {
    pub fn to_bytes(self) -> [u8; QUESTION_LENGTH] {
        let mut bytes = [0; QUESTION_LENGTH];
        write(&mut bytes, &[MAGIC, self.kind, self.device], self.values);
        bytes
    }

    /// `None`: not a question, or one of another build.
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

    /// `None`: not an answer, or one of another build.
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

impl Kind {
    pub fn from_number(number: u32) -> Option<Kind> {
        use Kind::*;
        let all = [List, Describe, Memory, Arena, Queue, ReturnQueue, Share, Unshare, Claim];
        all.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// An answer with all that came along.
pub struct Answered {
    pub values: [u64; 4],
    pub text: Vec<u8>,
    pub descriptors: Vec<OwnedDescriptor>,
}

/// Where the questions go: the path of the starter's socket.
#[derive(Clone, Debug)]
pub struct Control {
    path: Vec<u8>,
}

impl Control {
    pub fn at(path: &[u8]) -> Control {
        Control { path: path.into() }
    }

    /// Asks. Blocks until the answer is there.
    ///
    /// Errors: that of the answer; `ECONNREFUSED`, `ENOENT` or `EPIPE` where nobody answers;
    /// `EINVAL` for an answer of another build.
    pub fn ask(&self, kind: Kind, device: u32, values: [u64; 4], lent: Option<i32>) -> Result<Answered, Errno> {
        self.ask_on(&Connection::open(&self.path)?, kind, device, values, lent)
    }

    fn ask_on(
        &self,
        connection: &Connection,
        kind: Kind,
        device: u32,
        values: [u64; 4],
        lent: Option<i32>,
    ) -> Result<Answered, Errno> {
        let question = Question { kind: kind as u32, device, values };
        connection.send(&question.to_bytes(), lent)?;
        let mut buffer = alloc::vec![0u8; LONGEST];
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

/// A device's supplies, from the process that started the run.
pub struct RemoteSupply {
    control: Control,
    device: u32,
    /// By which the device is this process's alone.
    _claim: Option<Connection>,
}

impl RemoteSupply {
    pub fn new(control: Control, device: u32) -> Self {
        RemoteSupply { control, device, _claim: None }
    }

    /// Of the device where swapped memory goes, which is this process's alone for as long as this
    /// lives. Errors: `EBUSY` while another process has it; as [`Control::ask`].
    pub fn of_swap(control: Control) -> Result<Self, Errno> {
        let claim = Connection::open(&control.path)?;
        control.ask_on(&claim, Kind::Claim, SWAP, [0; 4], None)?;
        Ok(RemoteSupply { _claim: Some(claim), ..RemoteSupply::new(control, SWAP) })
    }

    fn ask(&self, kind: Kind, value: u64, lent: Option<i32>) -> Result<Answered, Errno> {
        self.control.ask(kind, self.device, [value, 0, 0, 0], lent)
    }
}

impl Supply for RemoteSupply {
    fn memory(&self, size: u64) -> Result<OwnedDescriptor, Errno> {
        self.ask(Kind::Memory, size, None)?.descriptors.into_iter().next().ok_or(Errno::EINVAL)
    }

    fn arena(&self) -> Result<OwnedDescriptor, Errno> {
        self.ask(Kind::Arena, 0, None)?.descriptors.into_iter().next().ok_or(Errno::EINVAL)
    }

    fn queue(&self) -> Result<QueueGrant, Errno> {
        let connection = Connection::open(&self.control.path)?;
        let answered = self.control.ask_on(&connection, Kind::Queue, self.device, [0; 4], None)?;
        let index = answered.values[0] as u32;
        let mut descriptors = answered.descriptors.into_iter();
        let (Some(kick), Some(call), Some(settled)) = (descriptors.next(), descriptors.next(), descriptors.next())
        else {
            return Err(Errno::EINVAL);
        };
        Ok(QueueGrant { index, kick, call, settled, connection: Some(connection) })
    }

    fn return_queue(&self, _: u32, connection: Option<&Connection>) {
        let Some(connection) = connection else { return };
        // If nobody answers, nobody serves the queue either.
        let _ = self.control.ask_on(connection, Kind::ReturnQueue, self.device, [0; 4], None);
    }

    fn share(&self, file: i32, length: u64) -> Result<SharedRegion, Errno> {
        let answered = self.ask(Kind::Share, length, Some(file))?;
        Ok(SharedRegion { slot: answered.values[0] as u32, address: answered.values[1] })
    }

    fn unshare(&self, slot: u32) {
        let _ = self.ask(Kind::Unshare, u64::from(slot), None);
    }
}
