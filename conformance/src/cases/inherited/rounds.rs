//! Many requests of several processes on inherited rings. In some cases the processes run one after
//! another, in others at one time.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use usring_uapi::Sqe;

use crate::files;
use crate::process;
use crate::ring::Ring;
use crate::shared::{self, Kind, Shared};
use crate::sqe::{Change, nop, read, read_at};
use crate::transcript::Transcript;

/// A hundred children run one after another. Each inherits the ring, reads a file of its own, and
/// exits. The ring works throughout.
fn children_come_and_go(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let mut right = 0;
        for number in 0..100u8 {
            ring.catch_up();
            let child = shared::child(|| {
                let file = files::memory_file(&[number; 4]);
                let entry = ring.one(read_at(file.as_raw_fd(), shared.slot(0), 4, 0, u64::from(number)));
                i32::from(entry.res != 4)
            });
            let ending = process::ending(child);
            right += i32::from(ending == "exit 0" && shared.text(0).bytes().all(|byte| byte == number));
        }
        t.say(format_args!("right {right}"));
        ring.catch_up();
        t.entry(&ring.one(nop(1)));
    });
}
case!(children_come_and_go => "
    a mapped ring:
    right 100
    cqe 1: 0
    a ring in shared memory:
    right 100
    cqe 1: 0
");

/// Submits the request `sqe` while this process holds the lock that all processes share. Returns
/// the result of io_uring_enter(2).
fn submit(ring: &mut Ring, shared: &Shared, sqe: Sqe) -> i32 {
    shared.exclusively(|| {
        ring.catch_up();
        ring.push(sqe);
        ring.submit()
    })
}

const ROUNDS: u32 = 200;

/// Several processes write SQEs, each under a shared lock, and call io_uring_enter(2) without the
/// lock. So the calls overlap in time. Each call submits exactly one SQE.
fn enters_at_the_same_time(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let children: Vec<i32> = (0..3)
            .map(|_| {
                shared::child(|| {
                    let mut ones = 0;
                    for round in 0..ROUNDS {
                        shared.exclusively(|| {
                            ring.catch_up();
                            ring.push(nop(u64::from(round)));
                        });
                        ones += u32::from(ring.enter(1, 0, 0) == 1);
                        let entries = shared.exclusively(|| ring.reap());
                        shared.word(0).fetch_add(entries.len() as u32, Ordering::SeqCst);
                        let sum = entries.iter().map(|entry| entry.user_data as u32).sum();
                        shared.word(1).fetch_add(sum, Ordering::SeqCst);
                    }
                    i32::from(ones != ROUNDS)
                })
            })
            .collect();
        for child in children {
            shared::ended(t, child);
        }
        let count = shared.word(0).load(Ordering::SeqCst);
        let sum = shared.word(1).load(Ordering::SeqCst);
        t.say(format_args!("completions {count} of {}", 3 * ROUNDS));
        t.say(format_args!("sum right {}", sum == 3 * ROUNDS * (ROUNDS - 1) / 2));
    });
}
case!(enters_at_the_same_time => "
    a mapped ring:
    child: exit 0
    child: exit 0
    child: exit 0
    completions 600 of 600
    sum right true
    a ring in shared memory:
    child: exit 0
    child: exit 0
    child: exit 0
    completions 600 of 600
    sum right true
");

/// Reaps completions of all processes, and counts each in the shared word of its process. Returns
/// `true` once word `own`, that of this process, has reached `count`. Returns `false` if no
/// completion arrives for 30 seconds. The caller holds the shared lock, so no other process reaps.
fn complete(ring: &mut Ring, shared: &Shared, own: usize, count: u32) -> bool {
    while shared.word(own).load(Ordering::SeqCst) < count {
        let entries = ring.wait(1);
        if entries.is_empty() {
            return false;
        }
        for entry in entries.iter().filter(|entry| entry.res == 4) {
            shared.word(entry.user_data as usize).fetch_add(1, Ordering::SeqCst);
        }
    }
    true
}

/// Makes a file, and reads it `ROUNDS` times by requests on `ring`. Other processes reap
/// completions of this ring, too. Returns 0 if all reads returned the file's content.
fn reads(ring: &mut Ring, shared: &Shared, number: usize, force: bool) -> i32 {
    let content = [b'a' + number as u8; 4];
    let file = files::memory_file(&content);
    for round in 1..=ROUNDS {
        let mut buffer = [0u8; 4];
        let request = read(file.as_raw_fd(), &mut buffer, 0, number as u64);
        let request = if force { request.forced_async() } else { request };
        if submit(ring, shared, request) != 1 {
            return 1;
        }
        if !shared.exclusively(|| complete(ring, shared, number, round)) {
            return 2;
        }
        if buffer != content {
            return 3;
        }
    }
    0
}

/// Four processes each read a file of their own through one ring. Each process reaps all CQEs that
/// it finds, including those of the other processes' requests.
fn each_reaps_for_all(t: &mut Transcript) {
    for force in [false, true] {
        shared::each_kind(t, if force { reap_forced } else { reap_direct });
    }
}
case!(each_reaps_for_all => "
    a mapped ring:
    parent 0
    child: exit 0
    child: exit 0
    child: exit 0
    a ring in shared memory:
    parent 0
    child: exit 0
    child: exit 0
    child: exit 0
    a mapped ring:
    parent 0
    child: exit 0
    child: exit 0
    child: exit 0
    a ring in shared memory:
    parent 0
    child: exit 0
    child: exit 0
    child: exit 0
");

fn reap_direct(t: &mut Transcript, ring: &mut Ring, shared: &Shared) {
    reap_for_all(t, ring, shared, false);
}

fn reap_forced(t: &mut Transcript, ring: &mut Ring, shared: &Shared) {
    reap_for_all(t, ring, shared, true);
}

fn reap_for_all(t: &mut Transcript, ring: &mut Ring, shared: &Shared, force: bool) {
    let children: Vec<i32> = (0..3).map(|number| shared::child(|| reads(ring, shared, number, force))).collect();
    t.say(format_args!("parent {}", reads(ring, shared, 3, force)));
    for child in children {
        shared::ended(t, child);
    }
}

/// Four processes each submit to one ring and wait on the ring of the next process, as PostgreSQL's
/// processes may. All descriptors and rings were made before the fork.
fn each_waits_for_its_neighbour(t: &mut Transcript) {
    for kind in [Kind::Mapped, Kind::OwnMemory] {
        let mut rings: Vec<Ring> = (0..4).map(|_| kind.ring(8, 0)).collect();
        let pipes: Vec<_> = (0..4).map(|_| files::pipe()).collect();
        let shared = Shared::new();
        let children: Vec<i32> =
            (0..4).map(|number| shared::child(|| neighbour(&mut rings, &pipes, &shared, number))).collect();
        for child in children {
            shared::ended(t, child);
        }
    }
}
case!(each_waits_for_its_neighbour => "
    child: exit 0
    child: exit 0
    child: exit 0
    child: exit 0
    child: exit 0
    child: exit 0
    child: exit 0
    child: exit 0
");

/// The parent makes a hundred rings. Its children submit requests to three of these rings, and the
/// parent reaps the completions.
fn unused_rings(t: &mut Transcript) {
    for kind in [Kind::Mapped, Kind::OwnMemory] {
        let mut rings: Vec<Ring> = (0..100).map(|_| kind.ring(4, 0)).collect();
        for index in [99, 50, 0] {
            let ring = &mut rings[index];
            shared::run_child(t, |t| {
                ring.push(nop(index as u64));
                t.result("submit", ring.submit());
            });
            t.in_order(&ring.wait(1));
        }
    }
}
case!(unused_rings => "
    submit = 1
    child: exit 0
    cqe 99: 0
    submit = 1
    child: exit 0
    cqe 50: 0
    submit = 1
    child: exit 0
    cqe 0: 0
    submit = 1
    child: exit 0
    cqe 99: 0
    submit = 1
    child: exit 0
    cqe 50: 0
    submit = 1
    child: exit 0
    cqe 0: 0
");

type Pipe = (std::os::fd::OwnedFd, std::os::fd::OwnedFd);

/// Runs 50 rounds of process `number`. In each round, the process submits a read of its pipe to its
/// ring, writes to the pipe of the next process, and reaps that process's completion. Shared word 0
/// counts the submissions of all processes, word 1 the reaped completions. Returns 0 if all results
/// were right.
fn neighbour(rings: &mut [Ring], pipes: &[Pipe], shared: &Shared, number: usize) -> i32 {
    let next = (number + 1) % 4;
    for round in 1..=50 {
        rings[number].catch_up();
        rings[number].push(read_at(pipes[number].0.as_raw_fd(), shared.slot(number), 1, 0, u64::from(round)));
        if rings[number].submit() != 1 {
            return 1;
        }
        shared.word(0).fetch_add(1, Ordering::SeqCst);
        shared.until_word(0, round * 4);
        files::put(&pipes[next].1, &[b'a' + number as u8]);
        let entries = rings[next].wait(1);
        let right = entries.len() == 1 && entries[0].res == 1 && entries[0].user_data == u64::from(round);
        if !right || shared.text(next).as_bytes() != [b'a' + number as u8] {
            return 2;
        }
        shared.word(1).fetch_add(1, Ordering::SeqCst);
        shared.until_word(1, round * 4);
    }
    0
}
