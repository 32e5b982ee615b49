//! Shortcuts that the engine takes after a program or a connection has long behaved in one way. If
//! the behaviour then changes, a completion may be late but not lost.

use crate::provided_buffers::{Buffers, GROUP};
use crate::ring::{IoUring, opcode, types};
use crate::support::*;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Number of consecutive waits in this test. The engine needs fewer waits before it expects that
/// the program will wait again.
const MANY: u64 = 3000;
/// Number of calls within which the engine must check files and timers, even if the program finds a
/// completion in every call.
const SOON: usize = 100;

/// Waits `MANY` times in a row, each time for a completion that is posted at once.
fn keep_waiting(ring: &mut IoUring) {
    for round in 0..MANY {
        push(ring, &[nop(round)]);
        assert_eq!(ring.submit_and_wait(1).unwrap(), 1);
        assert!(ring.completion().map(|done| done.user_data()).eq([round]));
    }
}

#[test]
fn a_program_that_stops_waiting_sees_completions_in_the_cqs_memory() {
    bounded(|| {
        let mut ring = IoUring::new(16).unwrap();
        let ((reader, writer), mut buffer) = (pipe(), [0; 4]);
        for _ in 0..3 {
            submit(&mut ring, &[read(&reader, &mut buffer).user_data(MANY)]);
            keep_waiting(&mut ring);
            put(&writer, b"data");
            eventually("the read is seen", || !ring.completion().is_empty());
            let done = collect(&mut ring, 1)[0];
            assert_eq!((done.user_data, done.result), (MANY, 4));
        }
    });
}

/// Submits a read, waits many times in a row for other completions, and then submits a timeout.
fn wait_for_both(ring: &mut IoUring, reader: &OwnedFd, buffer: &mut [u8; 4], time: &types::Timespec) {
    submit(ring, &[read(reader, buffer).user_data(MANY)]);
    keep_waiting(ring);
    submit(ring, &[opcode::Timeout::new(time).build().user_data(MANY)]);
}

#[test]
fn a_program_that_only_submits_sees_completions_of_files_and_timers() {
    bounded(|| {
        let mut ring = IoUring::new(16).unwrap();
        let ((reader, writer), mut buffer) = (pipe(), [0; 4]);
        let time = timespec(Duration::from_millis(1));
        for _ in 0..3 {
            wait_for_both(&mut ring, &reader, &mut buffer, &time);
            put(&writer, b"data");
            let mut ended = 0;
            // The program keeps submitting. The time limit ends this loop if the engine never
            // checks files and timers.
            let start = Instant::now();
            while ended < 2 && start.elapsed() < TIMEOUT / 2 {
                submit(&mut ring, &[nop(0)]);
                ended += ring.completion().filter(|done| done.user_data() == MANY).count();
            }
            assert_eq!(ended, 2);
        }
    });
}

#[test]
fn waits_with_enough_completions_still_see_those_of_files_and_timers() {
    bounded(|| {
        let mut ring = IoUring::new(16).unwrap();
        let ((reader, writer), mut buffer) = (pipe(), [0; 4]);
        let time = timespec(Duration::from_millis(1));
        for _ in 0..3 {
            wait_for_both(&mut ring, &reader, &mut buffer, &time);
            put(&writer, b"data");
            let mut ended = 0;
            eventually("both have ended", || {
                push(&mut ring, &[nop(0)]);
                ring.submit_and_wait(1).unwrap();
                ended += ring.completion().filter(|done| done.user_data() == MANY).count();
                ended == 2
            });
        }
    });
}

/// Connections that are kept busy: in each round the peers send a message, and the ring receives
/// it.
struct Crowd {
    theirs: Vec<UnixStream>,
    /// The ends of the connections on which the ring receives. They stay open.
    _ours: Vec<UnixStream>,
    buffers: Buffers,
    round: u8,
}

const CROWD: usize = 24;
const BUFFERS: u16 = 64;

impl Crowd {
    fn new(ring: &mut IoUring) -> Crowd {
        let mut buffers = Buffers::new(BUFFERS);
        buffers.register(ring).unwrap();
        (0..BUFFERS).for_each(|id| buffers.add(id));
        let (theirs, ours): (Vec<_>, Vec<_>) = (0..CROWD).map(|_| UnixStream::pair().unwrap()).unzip();
        for (place, socket) in ours.iter().enumerate() {
            let receive = opcode::RecvMulti::new(types::Fd(socket.as_raw_fd()), GROUP);
            submit(ring, &[receive.build().user_data(place as u64)]);
        }
        Crowd { theirs, _ours: ours, buffers, round: 0 }
    }

    /// Lets each peer except those in `silent` send one message, and receives these messages.
    /// Returns the completions of other requests that arrive meanwhile.
    fn speaks(&mut self, ring: &mut IoUring, silent: std::ops::Range<usize>) -> Vec<Done> {
        self.round = self.round.wrapping_add(1);
        for (place, socket) in self.theirs.iter_mut().enumerate() {
            if !silent.contains(&place) {
                socket.write_all(&[self.round]).unwrap();
            }
        }
        let (mut heard, mut others) = (vec![0; CROWD], Vec::new());
        while heard.iter().sum::<usize>() < CROWD - silent.len() {
            let done = collect(ring, 1)[0];
            let Some(count) = heard.get_mut(done.user_data as usize) else {
                others.push(done);
                continue;
            };
            *count += 1;
            let buffer = done.buffer().expect("a receive names its buffer");
            assert!(done.has_more() && done.result == 1);
            assert_eq!(self.buffers.content(buffer, 1), [self.round], "the connection's own message of this round");
            self.buffers.add(buffer);
        }
        let spoke = |place| usize::from(!silent.contains(&place));
        assert!(heard.iter().enumerate().all(|(place, &count)| count == spoke(place)), "{heard:?}");
        others
    }
}

/// Runs a test on connections that have been busy for many rounds: once on a ring that defers task
/// work, and once on a ring that does not.
fn busy(test: fn(IoUring, Crowd)) {
    bounded(move || {
        let rings =
            [IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(64), IoUring::builder().build(64)];
        for ring in rings {
            let mut ring = ring.unwrap();
            let mut crowd = Crowd::new(&mut ring);
            for _ in 0..200 {
                assert_eq!(crowd.speaks(&mut ring, 0..0), []);
            }
            test(ring, crowd);
        }
    });
}

#[test]
fn each_message_on_an_idle_connection_completes_once() {
    busy(|mut ring, mut crowd| {
        for round in 0..200 {
            let first = round * 7 % CROWD;
            assert_eq!(crowd.speaks(&mut ring, first..(first + round % 20).min(CROWD)), []);
        }
        stays_quiet(&mut ring);
        assert_eq!(crowd.speaks(&mut ring, 0..0), []);
    });
}

#[test]
fn busy_connections_do_not_starve_a_ready_file() {
    busy(|mut ring, mut crowd| {
        let ((reader, writer), mut buffer) = (pipe(), [0; 4]);
        submit(&mut ring, &[read(&reader, &mut buffer).user_data(1000)]);
        put(&writer, b"data");
        let others = (0..SOON).find_map(|_| Some(crowd.speaks(&mut ring, 0..0)).filter(|others| !others.is_empty()));
        assert_eq!(others.expect("it was read soon").len(), 1);
    });
}

#[test]
fn the_end_of_a_busy_connection_completes_its_request() {
    busy(|mut ring, mut crowd| {
        drop(crowd.theirs.pop());
        let done = collect(&mut ring, 1)[0];
        assert_eq!((done.user_data, done.result, done.has_more()), (CROWD as u64 - 1, 0, false));
    });
}
