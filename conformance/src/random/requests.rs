//! Builds one request of a random program. Most requests are valid, and a few have a wrong field.

use std::os::fd::AsRawFd;

use usring_uapi::io_uring as u;
use usring_uapi::{Sqe, opcode, sqe_flags};

use super::{COUNT_AT, Kind, Pending, Program, ROOM};
use crate::memory::{BAD, zeroed};
use crate::sqe::{self, CURRENT, Change};

/// Indices of the files from which requests may receive.
const READABLE: [usize; 11] = [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13];
const SOCKETS: [usize; 8] = [2, 3, 4, 5, 6, 7, 8, 9];
/// Index of the eventfd. The kernel executes writes to the eventfd, and to the regular file, on
/// workers.
const COUNTER: usize = 10;
/// Index of the regular file.
const REGULAR: usize = 11;
const LISTENER: usize = 13;
/// Index of the first slot that requests may fill and empty. The slots before it have the program's
/// own files.
pub(super) const FIRST_FREE: usize = 14;
pub(super) const FREE: usize = 6;
/// Ids of the groups whose buffers are in buffer rings. Every second of these groups is incremental
/// (IOU_PBUF_RING_INC).
pub(super) const RINGS: [u16; 6] = [1, 2, 5, 6, 7, 8];
/// Ids of the groups of classic buffers, which PROVIDE_BUFFERS requests fill.
const CLASSIC: [u16; 2] = [3, 4];

impl Program {
    /// Returns the next request of a batch. Only the first request of a batch (`is_first`) may
    /// cancel or change requests of earlier steps.
    pub(super) fn request(&mut self, is_first: bool) -> Sqe {
        self.user_data += 1;
        self.group = None;
        if let Some(mut watcher) = self.watcher.take() {
            self.names_file = true;
            watcher.user_data = self.user_data;
            if self.random.percent(30) {
                watcher.flags |= sqe_flags::IO_LINK;
            }
            self.pending.push(Pending { user_data: self.user_data, reads: None, polls: None, group: None });
            return watcher;
        }
        let (mut sqe, reads) = match self.random.below(23) {
            _ if is_first && self.random.percent(35) => (self.change_earlier(), None),
            0..=2 => (sqe::nop(0), None),
            3..=5 => self.read(),
            6..=7 => (self.write_request(), None),
            8..=11 => self.receive(),
            12..=14 => (self.send(), None),
            15..=16 => (self.poll(), None),
            17 => (self.timeout(), None),
            18 => (self.provide(), None),
            19 => self.accept(),
            20 => (self.message_ring(), None),
            21 if is_first => (self.shutdown(), None),
            21 => (sqe::nop(0), None),
            _ => (self.files_update(), None),
        };
        sqe.user_data = self.user_data;
        let counts = matches!(sqe.opcode, opcode::REMOVE_BUFFERS | opcode::PROVIDE_BUFFERS);
        let indexes = sqe.opcode == opcode::ASYNC_CANCEL && sqe.op_flags & u::IORING_ASYNC_CANCEL_FD_FIXED != 0;
        self.names_file = !counts && !indexes;
        self.spoil_a_field(&mut sqe);
        self.flag(&mut sqe);
        if sqe.opcode == opcode::SEND_ZC {
            self.without_copy.insert(self.user_data);
        }
        let sends = matches!(sqe.opcode, opcode::SEND | opcode::SENDMSG);
        let group = self.group.filter(|_| !sends);
        let polls = self.polled.take();
        self.pending.push(Pending { user_data: self.user_data, reads, polls, group });
        sqe
    }

    /// Returns a request that cancels or changes a request of an earlier step.
    fn change_earlier(&mut self) -> Sqe {
        // A drain may hold back both this request and the request that it would cancel or change.
        // The kernel's workers would then issue both at one time, so the result would vary.
        if self.has_drained {
            return sqe::nop(0);
        }
        match self.random.below(6) {
            0..=1 => self.timeout_remove(),
            2 => self.poll_remove(),
            _ => self.cancel(),
        }
    }

    /// Returns whether this batch may use the file `index`. A batch may use the eventfd and the
    /// regular file only once, because workers of the kernel may write to them at any time.
    fn is_free(&mut self, index: usize) -> bool {
        !matches!(index, COUNTER | REGULAR) || self.used.insert(index)
    }

    /// Returns whether the request under construction may send to the file `index`. If a request
    /// inside a chain sends, no other request of the batch may send to that pipe or pair of
    /// sockets. Otherwise the result would vary: the kernel wakes a waiting receive between the
    /// sends, or after both.
    fn may_send(&mut self, index: usize) -> bool {
        let pair = (index / 2, self.is_successor);
        let sent = self.sent.get(&pair.0).copied();
        let may = sent.is_none_or(|by_successor| !by_successor && !pair.1);
        if may {
            self.sent.insert(pair.0, pair.1);
        }
        may
    }

    /// Returns the address of this request's memory.
    fn request_memory(&self) -> u64 {
        self.memory.at(16384 + (self.user_data as usize % 256) * ROOM)
    }

    fn length(&mut self) -> u32 {
        self.random.of(&[1, 4, 8, 8, 16, 30, 100, 300, 0])
    }

    fn fd(&self, index: usize) -> i32 {
        self.files[index].fd.as_raw_fd()
    }

    /// Chooses a file to receive from. Returns `None` in three cases: a request already waits for
    /// that file, this batch uses it, or a poll waits for data that this batch sends. In the third
    /// case a receive could take the data before usring's poll sees it.
    fn choose_readable(&mut self, choices: &[usize]) -> Option<usize> {
        let index = self.random.of(choices);
        let sent = self.sent.contains_key(&(index / 2));
        let waits = |pending: &Pending| pending.reads == Some(index) || sent && pending.polls == Some(index);
        let taken = self.pending.iter().any(waits);
        (!taken && self.used.insert(index)).then_some(index)
    }

    fn read(&mut self) -> (Sqe, Option<usize>) {
        let regular = self.random.percent(30);
        let Some(index) = (if regular { Some(REGULAR) } else { self.choose_readable(&READABLE) }) else {
            return (sqe::nop(0), None);
        };
        if index == LISTENER || regular && !self.is_free(index) {
            return (sqe::nop(0), None);
        }
        let kind = self.random.below(5);
        let length = if index == COUNTER { self.random.of(&[8, 8, 16, 4]) } else { self.length() };
        let offset = if regular { self.random.of(&[0, 5, 1990, 4000, CURRENT]) } else { self.random.of(&[0, CURRENT]) };
        let request = sqe::read_at(self.fd(index), self.request_memory(), length, offset, 0);
        let request = match kind {
            0 => {
                let place = self.memory.at(self.random.below(2) * 8192 + self.random.below(4) * 64);
                let buffer = u16::from(place >= self.memory.at(8192));
                request.with(|sqe| (sqe.opcode, sqe.addr, sqe.buf_index) = (opcode::READ_FIXED, place, buffer))
            }
            1 => self.vectored(request, opcode::READV),
            2 => self.selecting(request),
            3 if !regular => self
                .selecting(request)
                .with(|sqe| (sqe.opcode, sqe.addr, sqe.len, sqe.off) = (opcode::READ_MULTISHOT, 0, 0, CURRENT)),
            _ => request,
        };
        (request, (!regular).then_some(index))
    }

    fn vectored(&mut self, request: Sqe, opcode: u8) -> Sqe {
        let first = self.random.of(&[1, 7, 40]);
        let vectors = Box::new([
            sqe::vector(request.addr, first),
            sqe::vector(request.addr + first as u64, request.len.saturating_sub(first as u32) as usize),
        ]);
        let count = self.random.of(&[2, 2, 1]);
        let request = Sqe { opcode, addr: vectors.as_ptr() as u64, len: count, ..request };
        self.vectors.push(vectors);
        request
    }

    /// Makes the request select a buffer from a group. At most one waiting request may use each
    /// group, because two requests would compete for the last buffer.
    fn selecting(&mut self, request: Sqe) -> Sqe {
        let keeps = self.random.percent(50);
        let is_taken = |group: u16| self.pending.iter().any(|pending| pending.group == Some(group));
        // A receive with MSG_WAITALL must not use an incremental group: on Linux 6.18, two receives
        // may write to one of its buffers.
        let waits_for_all = matches!(request.opcode, opcode::RECV | opcode::RECVMSG)
            && request.op_flags & libc::MSG_WAITALL as u32 != 0;
        let is_apt = |group: u16| !waits_for_all || !RINGS.contains(&group) || group % 2 == 1;
        let groups = RINGS.into_iter().chain(CLASSIC);
        let free: Vec<u16> = groups.filter(|group| !is_taken(*group) && is_apt(*group)).collect();
        if free.is_empty() {
            return request;
        }
        let group = self.random.of(&free);
        self.group = Some(group);
        request.flagged(sqe_flags::BUFFER_SELECT).with(|sqe| {
            sqe.buf_index = group;
            sqe.addr = 0;
            if !keeps {
                sqe.len = 0;
            }
        })
    }

    fn write_request(&mut self) -> Sqe {
        let index = self.random.of(&[1, 1, 2, 4, 6, 8, COUNTER, REGULAR, REGULAR, 12]);
        if !self.is_free(index) {
            return sqe::nop(0);
        }
        if !self.may_send(index) {
            return sqe::nop(0);
        }
        let length = if index == COUNTER { 8 } else { self.length() };
        let from = self.memory.at(if index == COUNTER { COUNT_AT } else { 40 });
        let offset =
            if index == REGULAR { self.random.of(&[0, 5, 1990, CURRENT]) } else { self.random.of(&[0, CURRENT]) };
        let request = sqe::write_at(self.fd(index), from, length, offset, 0);
        match self.random.below(4) {
            0 => request.with(|sqe| sqe.opcode = opcode::WRITE_FIXED),
            1 => self.vectored(request, opcode::WRITEV),
            _ => request,
        }
    }

    fn receive(&mut self) -> (Sqe, Option<usize>) {
        let Some(index) = self.choose_readable(&SOCKETS) else { return (sqe::nop(0), None) };
        let length = self.length();
        let flags = self.random.of(&[0, 0, 0, libc::MSG_WAITALL, libc::MSG_PEEK, libc::MSG_DONTWAIT, libc::MSG_TRUNC]);
        let mut request = Sqe {
            addr: self.request_memory(),
            len: length,
            op_flags: flags as u32,
            ..sqe::sqe(opcode::RECV, self.fd(index), 0)
        };
        if self.random.percent(25) {
            request = self.message(request, opcode::RECVMSG);
        }
        if self.random.percent(50) {
            let address = request.addr;
            request = self.selecting(request);
            if request.flags & sqe_flags::BUFFER_SELECT == 0 {
                return (request, Some(index));
            }
            if request.opcode == opcode::RECVMSG {
                (request.addr, request.len) = (address, 1);
            }
            if self.random.percent(60) && flags & libc::MSG_PEEK == 0 {
                request.ioprio |= u::IORING_RECV_MULTISHOT as u16;
            }
            // On the kernel, a multishot bundle may not notice the shutdown of its socket. A bundle
            // behind a drain uses up a buffer as soon as it begins to wait. So these requests are
            // no bundles.
            let is_shut = self.shut.contains(&index) && request.ioprio != 0;
            if self.random.percent(40) && !is_shut && !self.has_drained {
                // While a bundle with MSG_WAITALL waits, the kernel gives its buffers to other
                // receives, too. So a receive has MSG_WAITALL or is a bundle, but not both.
                if flags & libc::MSG_WAITALL == 0 {
                    request.ioprio |= u::IORING_RECVSEND_BUNDLE as u16;
                }
                if request.opcode == opcode::RECV && request.len == 0 {
                    // If a bundle had no length, the size of its first receive would depend on
                    // values that the kernel has kept from earlier requests.
                    request.len = 50;
                }
            }
        }
        // Programs with chains do not use POLL_FIRST: a worker of the kernel might execute the
        // request, and a worker returns EAGAIN without polling.
        if self.drains && self.random.percent(15) {
            request.ioprio |= u::IORING_RECVSEND_POLL_FIRST as u16;
        }
        (request, Some(index))
    }

    /// Turns the request into a SENDMSG or RECVMSG, and gives it a message header.
    fn message(&mut self, request: Sqe, opcode: u8) -> Sqe {
        let selects_none = self.vectored(request, opcode);
        let mut header: Box<libc::msghdr> = Box::new(zeroed());
        header.msg_iov = selects_none.addr as *mut libc::iovec;
        header.msg_iovlen = self.random.of(&[1, 1, 2, 0]);
        let request = Sqe { addr: &raw const *header as u64, len: 1, ..selects_none };
        self.headers.push(header);
        request
    }

    fn send(&mut self) -> Sqe {
        let index = self.random.of(&SOCKETS);
        let is_first = !self.sent.contains_key(&(index / 2));
        if !self.may_send(index) {
            return sqe::nop(0);
        }
        let flags = self.random.of(&[0, 0, libc::MSG_WAITALL, libc::MSG_DONTWAIT]);
        let length = self.length();
        let mut request = Sqe {
            addr: self.memory.at(100),
            len: length,
            op_flags: flags as u32,
            ..sqe::sqe(opcode::SEND, self.fd(index), 0)
        };
        match self.random.below(8) {
            0 => request = self.message(request, opcode::SENDMSG),
            // Behind a drain, the kernel never posts the notification of a SEND_ZC.
            1 if !self.drains => request.opcode = opcode::SEND_ZC,
            2 => {
                request = self.selecting(request);
                // Behind a drain, a worker of the kernel may cancel a send with BUNDLE.
                let selects = request.flags & sqe_flags::BUFFER_SELECT != 0;
                if self.random.percent(50) && selects && !self.has_drained {
                    request.ioprio |= u::IORING_RECVSEND_BUNDLE as u16;
                }
            }
            _ => {}
        }
        if self.random.percent(10) && is_first {
            request.ioprio |= u::IORING_RECVSEND_POLL_FIRST as u16;
            // A send with POLL_FIRST runs only after its batch. So it counts like a send inside a
            // chain.
            self.sent.insert(index / 2, true);
        }
        request
    }

    fn poll(&mut self) -> Sqe {
        let index = self.random.of(&[0, 1, 2, 3, 4, 6, 8, 9, COUNTER, REGULAR, 12, LISTENER]);
        // Behind a request that receives from this file, a poll may find no event any more. Inside
        // a chain, a poll sees fewer wake-ups: the kernel wakes waiting requests before it
        // continues the chain.
        if self.is_successor || !self.used.insert(index) {
            return sqe::nop(0);
        }
        self.polls.insert(self.user_data);
        self.polled = Some(index);
        // No poll waits for POLLPRI alone, because the kernel does not wake such a poll when urgent
        // data arrives.
        let events = self.random.of(&[libc::POLLIN, libc::POLLIN, libc::POLLOUT, libc::POLLOUT, 0]);
        let mut request = sqe::poll(self.fd(index), events, 0);
        if self.random.percent(40) {
            request.len |= u::IORING_POLL_ADD_MULTI;
        }
        request
    }

    fn poll_remove(&mut self) -> Sqe {
        let target = self.earlier_user_data();
        let mut request = sqe::poll_remove(target, 0);
        if self.random.percent(50) {
            let new = 1_000 + self.user_data;
            request.len = self.random.of(&[
                u::IORING_POLL_UPDATE_EVENTS,
                u::IORING_POLL_UPDATE_USER_DATA,
                u::IORING_POLL_UPDATE_EVENTS | u::IORING_POLL_UPDATE_USER_DATA,
                u::IORING_POLL_UPDATE_EVENTS | u::IORING_POLL_ADD_MULTI,
            ]);
            request.off = new;
            self.polls.insert(new);
            request.op_flags = self.random.of(&[libc::POLLIN, libc::POLLOUT]) as u32;
        }
        request
    }

    /// Returns the user data of an earlier request.
    fn earlier_user_data(&mut self) -> u64 {
        if !self.pending.is_empty() && self.random.percent(70) {
            let index = self.random.below(self.pending.len());
            return self.pending[index].user_data;
        }
        self.user_data.saturating_sub(self.random.below(8) as u64)
    }

    fn timeout(&mut self) -> Sqe {
        // No timeout has a completion count: the moment at which it completed would depend on how
        // the kernel batches completions. The count of a multishot is something else: how often it
        // expires.
        let time = if self.random.percent(50) { self.soon } else { self.never };
        let kept = Box::leak(Box::new(time));
        let repeats = self.random.percent(20) && kept.tv_sec == 0;
        let flags = if repeats {
            u::IORING_TIMEOUT_MULTISHOT
        } else {
            self.random.of(&[
                0,
                u::IORING_TIMEOUT_ETIME_SUCCESS,
                u::IORING_TIMEOUT_BOOTTIME,
                u::IORING_TIMEOUT_REALTIME,
            ])
        };
        sqe::timeout(kept, if repeats { self.random.of(&[1, 2, 3]) } else { 0 }, flags, 0)
    }

    fn timeout_remove(&mut self) -> Sqe {
        let mut request = sqe::timeout_remove(self.earlier_user_data(), 0);
        if self.random.percent(40) {
            let time = if self.random.percent(50) { self.soon } else { self.never };
            request.off = &raw const *Box::leak(Box::new(time)) as u64;
            request.op_flags =
                self.random.of(&[u::IORING_TIMEOUT_UPDATE, u::IORING_LINK_TIMEOUT_UPDATE | u::IORING_TIMEOUT_UPDATE]);
        }
        request
    }

    fn cancel(&mut self) -> Sqe {
        // If several requests match, the kernel does not guarantee which one it cancels. So the
        // cancel gets the flag ALL.
        let all = u::IORING_ASYNC_CANCEL_ALL;
        match self.random.below(8) {
            0 => {
                let index = self.random.below(FIRST_FREE);
                Sqe { fd: self.fd(index), ..sqe::cancel(0, u::IORING_ASYNC_CANCEL_FD | all, 0) }
            }
            1 => {
                let index = self.random.below(FIRST_FREE) as i32;
                let flags = u::IORING_ASYNC_CANCEL_FD | u::IORING_ASYNC_CANCEL_FD_FIXED | all;
                Sqe { fd: index, ..sqe::cancel(0, flags, 0) }
            }
            2 => Sqe {
                len: u32::from(self.random.of(&[opcode::RECV, opcode::POLL_ADD, opcode::READ, opcode::TIMEOUT])),
                ..sqe::cancel(0, u::IORING_ASYNC_CANCEL_OP | u::IORING_ASYNC_CANCEL_ALL, 0)
            },
            _ => sqe::cancel(self.earlier_user_data(), self.random.of(&[0, all]), 0),
        }
    }

    fn provide(&mut self) -> Sqe {
        let group = self.random.of(&[CLASSIC[0], CLASSIC[0], CLASSIC[0], CLASSIC[1], RINGS[0]]);
        let count = 1 + self.random.below(3) as i32;
        if self.random.percent(20) {
            return Sqe { buf_index: group, ..sqe::sqe(opcode::REMOVE_BUFFERS, count, 0) };
        }
        let first = self.random.below(16) as u64;
        Sqe {
            addr: self.memory.at(150_000 + first as usize * 64),
            len: self.random.of(&[16, 5, 40]),
            off: first,
            buf_index: group,
            ..sqe::sqe(opcode::PROVIDE_BUFFERS, count, 0)
        }
    }

    fn accept(&mut self) -> (Sqe, Option<usize>) {
        let Some(index) = self.choose_readable(&[LISTENER]) else { return (sqe::nop(0), None) };
        // The kernel does not guarantee the number of a new descriptor. So the ACCEPT puts the file
        // into a slot of the registered files instead.
        let mut request =
            Sqe { file_index: u::IORING_FILE_INDEX_ALLOC as u32, ..sqe::sqe(opcode::ACCEPT, self.fd(index), 0) };
        request.ioprio = self.random.of(&[0, 0, u::IORING_ACCEPT_DONTWAIT, u::IORING_ACCEPT_MULTISHOT]) as u16;
        (request, Some(index))
    }

    fn message_ring(&mut self) -> Sqe {
        Sqe { len: 77, off: 2_000 + self.user_data, ..sqe::sqe(opcode::MSG_RING, self.ring.fd, 0) }
    }

    fn shutdown(&mut self) -> Sqe {
        if self.random.percent(70) {
            return sqe::nop(0);
        }
        // Datagram sockets are left out: after their shutdown, the kernel would retry a receive for
        // ever.
        let index = self.random.of(&[2, 3, 4, 5, 8, 9]);
        let how = self.random.of(&[libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR, 7]);
        self.note_shutdown(index, how);
        Sqe { len: how as u32, ..sqe::sqe(opcode::SHUTDOWN, self.fd(index), 0) }
    }

    fn files_update(&mut self) -> Sqe {
        if self.random.percent(50) {
            // Closes a registered file by its slot.
            let slot = FIRST_FREE + self.random.below(FREE + 1);
            return Sqe { file_index: 1 + slot as u32, ..sqe::sqe(opcode::CLOSE, 0, 0) };
        }
        let index = self.random.below(FIRST_FREE);
        let numbers = Box::leak(Box::new([self.fd(index), -1]));
        Sqe {
            addr: numbers.as_ptr() as u64,
            len: 1 + self.random.below(2) as u32,
            off: (FIRST_FREE + self.random.below(FREE + 1)) as u64,
            ..sqe::sqe(opcode::FILES_UPDATE, -1, 0)
        }
    }

    /// Sets one field of the request to a wrong value, in 6 % of the calls.
    fn spoil_a_field(&mut self, sqe: &mut Sqe) {
        if !self.random.percent(6) {
            return;
        }
        match self.random.below(9) {
            0 => sqe.ioprio ^= 1 << self.random.below(16),
            1 => sqe.addr = BAD,
            2 => {
                let flag = self.random.of(&[1, 0x80, 0x1000, 0x8000_0000]);
                // A poll for several events of a socket has different results on the kernel and on
                // usring. usring's poll reports the events that hold when it checks the file. The
                // kernel's poll reports the events of one wake-up.
                let is_event = matches!(sqe.opcode, opcode::POLL_ADD | opcode::POLL_REMOVE) && flag < 0x1000;
                let is_all = sqe.opcode == opcode::ASYNC_CANCEL && flag == u::IORING_ASYNC_CANCEL_ALL;
                sqe.op_flags ^= if is_event || is_all { 0 } else { flag };
            }
            3 => sqe.buf_index ^= 1,
            4 => sqe.file_index ^= self.random.of(&[1, 0x7000_0000]),
            5 => sqe.fd = self.random.of(&[-1, 5000]),
            6 => sqe.addr3 = 1,
            7 => sqe.opcode = self.random.of(&[63, 200]),
            // These requests keep their length. A TCP socket takes a part of 2 GiB that depends on
            // its buffers. A write of 2 GiB to the file takes a time that depends on the machine.
            _ if sqe.opcode == opcode::SEND_ZC || sqe.fd == self.fd(REGULAR) => {}
            _ => sqe.len ^= 0x8000_0000,
        }
    }

    fn flag(&mut self, sqe: &mut Sqe) {
        if self.drains {
            let is_bundle = sqe.ioprio & u::IORING_RECVSEND_BUNDLE as u16 != 0;
            if self.random.percent(6) && sqe.opcode != opcode::ASYNC_CANCEL && !is_bundle {
                sqe.flags |= sqe_flags::IO_DRAIN;
                self.has_drained = true;
            }
        } else {
            let link = self.random.percent(18);
            let hardlink = self.random.percent(4);
            if !self.has_worker(sqe) {
                sqe.flags |= if link { sqe_flags::IO_LINK } else { 0 };
                sqe.flags |= if hardlink { sqe_flags::IO_HARDLINK } else { 0 };
            }
            if self.random.percent(5) {
                sqe.flags |= sqe_flags::CQE_SKIP_SUCCESS;
            }
        }
        let number = self.files.iter().position(|file| file.kind != Kind::Closed && file.fd.as_raw_fd() == sqe.fd);
        if let Some(index) = number
            && self.names_file
            && sqe.opcode != opcode::ASYNC_CANCEL
            && self.random.percent(25)
        {
            sqe.fd = index as i32;
            sqe.flags |= sqe_flags::FIXED_FILE;
        }
        let of_chain = sqe.flags & (sqe_flags::IO_LINK | sqe_flags::IO_HARDLINK) != 0;
        // A TIMEOUT gets no LINK_TIMEOUT: both may be short, and then either could expire first.
        if of_chain && sqe.opcode != opcode::TIMEOUT && self.random.percent(10) {
            let time = Box::leak(Box::new(if self.random.percent(50) { self.soon } else { self.never }));
            // A LINK_TIMEOUT limits the request before it. So it must be the next request of the
            // batch.
            self.watcher = Some(sqe::link_timeout(time, 0, 0));
        }
    }

    /// Returns whether a worker of the kernel may execute the request. Such a request must not
    /// begin a chain: the worker would also execute the requests behind it, at an unknown time.
    fn has_worker(&self, sqe: &Sqe) -> bool {
        let is = |index: usize| self.names_file && sqe.fd == self.fd(index);
        is(COUNTER) || is(REGULAR) || sqe.opcode == opcode::SHUTDOWN
    }
}
