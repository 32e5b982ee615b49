//! Answers the questions of the program's processes and of `usring ctl`, on a thread of the
//! launcher.

use super::RunDevice;
use super::policies::Policies;
use crate::storage::State;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, RecvMsg, accept, getsockopt, recv, recvmsg, send, sendmsg,
    setsockopt, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::getuid;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use usring_device::Supply;
use usring_device::control::{Answer, FALLBACK, QUESTION_LENGTH, Question, QuestionKind, SWAP};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::width;

/// Seconds that a client may take from connecting to sending its question.
const RECEIVE_TIMEOUT_SECONDS: i64 = 5;

pub struct Server {
    pub devices: Arc<Vec<Arc<RunDevice>>>,
    /// The interface to the back end of swapped memory, if the run has one.
    pub swap: Option<Arc<dyn Supply>>,
    pub policies: Arc<Policies>,
    pub listener: OwnedFd,
    pub fallback: bool,
    /// The memory file with the run's rules for faults, if the run has any.
    pub faults: Option<Arc<OwnedDescriptor>>,
}

/// The answer to a question that has succeeded.
#[derive(Default)]
struct Reply {
    values: [u64; 4],
    text: Vec<u8>,
    /// Descriptors to send. This process closes them after sending.
    owned: Vec<OwnedDescriptor>,
    /// Descriptors to send. They stay open in this process.
    kept: Vec<RawFd>,
    /// The queue, or the right to ask for queues, that the client holds from now on. `None` if the
    /// client's question asks for neither.
    lease: Option<Lease>,
}

/// A queue, or the right to ask for queues, that a client holds until its connection ends.
struct Lease {
    /// Number of the device, or `SWAP`.
    device: u32,
    supply: Arc<dyn Supply>,
    /// Index of the queue that the client holds. `None` stands for the right to ask for queues of
    /// swapped memory.
    queue: Option<u32>,
}

impl Lease {
    fn take_back(self) {
        if let Some(queue) = self.queue {
            self.supply.return_queue(queue, None);
        }
    }
}

/// A client that holds a queue, or the right to ask for queues, and its connection.
struct User {
    connection: OwnedFd,
    lease: Lease,
}

impl User {
    /// Takes back the client's queue, or its right to ask for queues. The client has sent a message
    /// to return it, or has closed its connection.
    fn leave(self) {
        // Reads the client's message, although its content is known. If this process closed the
        // socket with unread data, the client would get an error instead of the answer.
        let mut question = [0; QUESTION_LENGTH];
        let asked = recv(self.connection.as_raw_fd(), &mut question, MsgFlags::MSG_DONTWAIT);
        self.lease.take_back();
        if asked.is_ok_and(|length| length > 0) {
            let answer = Answer::default().to_bytes();
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            // An error means that the client has closed its connection and needs no answer.
            let _ = send(self.connection.as_raw_fd(), &answer, flags);
        }
    }
}

impl Server {
    /// Answers questions until the process ends.
    pub fn run(&self) {
        let mut users = Vec::new();
        loop {
            self.wait(&mut users);
            match accept(self.listener.as_raw_fd()) {
                Ok(number) => {
                    // SAFETY: accept has just made the descriptor, and no other code knows it.
                    let connection = unsafe { OwnedFd::from_raw_fd(number) };
                    // An error means that the client has closed its connection and needs no answer.
                    if let Ok(Some(lease)) = self.serve(&connection, &users) {
                        users.push(User { connection, lease });
                    }
                }
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                // Retries accept after a while, because the launcher may be out of descriptors for
                // a moment.
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
            }
        }
    }

    /// Waits until a new client connects. Meanwhile takes back the [`Lease`] of each client that
    /// returns it by a message or closes its connection.
    fn wait(&self, users: &mut Vec<User>) {
        loop {
            let mut watched = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
            watched.extend(users.iter().map(|user| PollFd::new(user.connection.as_fd(), PollFlags::POLLIN)));
            if poll(&mut watched, PollTimeout::NONE).is_err() {
                continue;
            }
            let events: Vec<bool> = watched.iter().map(|one| one.any().unwrap_or(true)).collect();
            for index in (0..users.len()).rev().filter(|index| events[index + 1]) {
                users.swap_remove(index).leave();
            }
            if events[0] {
                return;
            }
        }
    }

    /// Answers a client's question. Returns the client's new lease, if the question asks for one.
    /// A client that another user runs gets no answer.
    fn serve(&self, connection: &OwnedFd, users: &[User]) -> nix::Result<Option<Lease>> {
        if getsockopt(connection, PeerCredentials)?.uid() != getuid().as_raw() {
            return Ok(None);
        }
        setsockopt(connection, sockopt::ReceiveTimeout, &TimeVal::seconds(RECEIVE_TIMEOUT_SECONDS))?;
        let mut buffer = [0; QUESTION_LENGTH];
        let mut vectors = [IoSliceMut::new(&mut buffer)];
        let mut room = cmsg_space!([RawFd; 1]);
        let message: RecvMsg<()> =
            recvmsg(connection.as_raw_fd(), &mut vectors, Some(&mut room), MsgFlags::MSG_CMSG_CLOEXEC)?;
        let along = lent_descriptor(&message);
        let length = message.bytes;
        let question = Question::from_bytes(&buffer[..length]);
        let (error, reply) =
            match question.map_or(Err(Errno::EINVAL as i32), |question| self.answer(&question, along, users)) {
                Ok(reply) => (0, reply),
                Err(error) => (error, Reply::default()),
            };
        let head = Answer { error: error.cast_unsigned(), values: reply.values }.to_bytes();
        let vectors = [IoSlice::new(&head), IoSlice::new(&reply.text)];
        let numbers: Vec<RawFd> = reply.owned.iter().map(OwnedDescriptor::number).chain(reply.kept).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let along = if numbers.is_empty() { &[][..] } else { &rights[..] };
        let sent = sendmsg::<()>(connection.as_raw_fd(), &vectors, along, MsgFlags::MSG_NOSIGNAL, None);
        match sent {
            Ok(_) => Ok(reply.lease),
            Err(error) => {
                reply.lease.into_iter().for_each(Lease::take_back);
                Err(error)
            }
        }
    }

    /// Returns the answer to a question, or an errno.
    fn answer(&self, question: &Question, along: Option<OwnedFd>, users: &[User]) -> Result<Reply, i32> {
        let kind = QuestionKind::from_number(question.kind).ok_or(Errno::EINVAL as i32)?;
        if kind == QuestionKind::List {
            let values = [self.devices.len() as u64, 0, 0, 0];
            return Ok(Reply { values, kept: vec![self.policies.as_raw_fd()], ..Default::default() });
        }
        if kind == QuestionKind::Faults {
            let file = self.faults.as_ref().ok_or(Errno::ENODEV as i32)?;
            return Ok(Reply { kept: vec![file.number()], ..Default::default() });
        }
        let number = question.device;
        let device = self.devices.get(number as usize);
        if kind == QuestionKind::Describe {
            return device.map(|device| self.describe(device)).ok_or(Errno::ENODEV as i32);
        }
        if kind == QuestionKind::Health {
            let health = device.ok_or(Errno::ENODEV as i32)?.health.as_ref().ok_or(Errno::EOPNOTSUPP as i32)?;
            let State { process, is_alive, restarts } = health.state();
            let values = [u64::from(process.unwrap_or(0)), u64::from(is_alive), restarts, 0];
            return Ok(Reply { values, ..Default::default() });
        }
        let swap = self.swap.as_ref().filter(|_| number == SWAP);
        let supply = device.map(|device| &device.supply).or(swap).ok_or(Errno::ENODEV as i32)?;
        if kind == QuestionKind::Claim {
            // One process at a time may use swapped memory's back end. It holds this right (the
            // claim), and each queue of the back end, by a connection of its own. When the process
            // ends, the kernel closes these connections in any order. Another process gets the
            // right only after all are closed, because a queue of the old process may be in use
            // until then.
            let is_taken = number != SWAP || users.iter().any(|user| user.lease.device == SWAP);
            let lease = Lease { device: number, supply: supply.clone(), queue: None };
            return if is_taken {
                Err(Errno::EBUSY as i32)
            } else {
                Ok(Reply { lease: Some(lease), ..Reply::default() })
            };
        }
        ask(supply, number, kind, question.values[0], along).map_err(|error| -error.negative())
    }

    fn describe(&self, device: &RunDevice) -> Reply {
        let (st_dev, st_ino) = device.placeholder.identity();
        let flags = if self.fallback { FALLBACK } else { 0 };
        // The answer's text is the device's SPEC, a NUL byte, and the path that `usring ctl` shows.
        let mut text = device.spec.to_string().into_bytes();
        text.push(0);
        text.extend_from_slice(device.path.as_os_str().as_bytes());
        Reply { values: [st_dev, st_ino, flags, device.geometry.size], text, ..Default::default() }
    }
}

/// Calls the function of the device's [`Supply`] that answers a driver's question.
fn ask(
    supply: &Arc<dyn Supply>,
    device: u32,
    kind: QuestionKind,
    value: u64,
    along: Option<OwnedFd>,
) -> Result<Reply, usring_sys::Errno> {
    match kind {
        QuestionKind::Memory => Ok(Reply { owned: vec![supply.memory(value)?], ..Default::default() }),
        QuestionKind::Arena => Ok(Reply { owned: vec![supply.arena()?], ..Default::default() }),
        QuestionKind::Queue => {
            let grant = supply.queue()?;
            let owned = vec![grant.kick, grant.call, grant.ready];
            let lease = Some(Lease { device, supply: supply.clone(), queue: Some(grant.index) });
            Ok(Reply { values: [u64::from(grant.index), 0, 0, 0], owned, lease, ..Default::default() })
        }
        QuestionKind::Share => {
            let file = along.ok_or(usring_sys::Errno::EBADF)?;
            let region = supply.share(file.as_raw_fd(), value)?;
            Ok(Reply { values: [u64::from(region.slot), region.address, 0, 0], ..Default::default() })
        }
        QuestionKind::Unshare => {
            supply.unshare(width::low(value));
            Ok(Reply::default())
        }
        // ReturnQueue is handled by `User::leave`, because it arrives on the connection that holds
        // the queue. List, Describe, Claim, Faults and Health are answered by `answer`.
        QuestionKind::ReturnQueue
        | QuestionKind::List
        | QuestionKind::Describe
        | QuestionKind::Claim
        | QuestionKind::Faults
        | QuestionKind::Health => Err(usring_sys::Errno::EINVAL),
    }
}

fn lent_descriptor(message: &RecvMsg<()>) -> Option<OwnedFd> {
    let mut lent = None;
    for control in message.cmsgs().ok()? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            for number in numbers {
                // SAFETY: recvmsg has just received the descriptor, and no other code knows it.
                lent = Some(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
    }
    lent
}
