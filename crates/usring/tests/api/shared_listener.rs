//! ACCEPT on a blocking listener on which other threads call accept(2), too. The ring does not
//! block if another thread takes a connection first.

use crate::ring::{IoUring, opcode, squeue, types};
use crate::support::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time for which a ring may block in this test before the test fails.
const LONG: Duration = Duration::from_secs(30);

/// Maximum number of connections of a contest. Only after many connections do the ring and the
/// rival thread try to accept the same connection. A contest also ends after `SPAN`.
const ROUNDS: usize = 5000;
const SPAN: Duration = Duration::from_secs(3);

/// Starts a thread that accepts connections by blocking calls until the listener is shut down. It
/// greets each connection with a byte, and returns their number.
fn rival(listener: &TcpListener) -> JoinHandle<usize> {
    let listener = listener.try_clone().unwrap();
    thread::spawn(move || {
        let mut count = 0;
        while let Ok((mut connection, _)) = listener.accept() {
            let _ = connection.write_all(b"o");
            count += 1;
        }
        count
    })
}

fn shut_down(listener: &TcpListener) {
    // SAFETY: the call names no memory.
    assert_eq!(unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) }, 0);
}

/// Connects a client. The ring or the rival thread accepts the connection and sends a byte.
fn client(address: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(address).unwrap();
    client.set_nonblocking(true).unwrap();
    client
}

fn is_greeted(client: &mut TcpStream) -> bool {
    match client.read(&mut [0]) {
        Ok(count) => count == 1,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    }
}

/// Offers connections to a ring and to a rival thread. `arm` makes the ACCEPT that must be in
/// flight for each connection. Returns how many connections the ring accepted.
fn contest(ring: &mut IoUring, listener: &TcpListener, arm: impl Fn() -> squeue::Entry) -> usize {
    let address = listener.local_addr().unwrap();
    let rival = rival(listener);
    let (mut armed, mut taken) = (false, 0);
    let end = Instant::now() + SPAN;
    let rounds = (0..ROUNDS).take_while(|_| Instant::now() < end);
    let mut offered = 0;
    for _ in rounds {
        offered += 1;
        if !armed {
            push(ring, &[arm().user_data(1)]);
            armed = true;
        }
        let mut client = client(address);
        eventually("somebody takes the connection", || {
            let start = Instant::now();
            push(ring, &[opcode::Nop::new().build().user_data(2)]);
            ring.submit_and_wait(1).unwrap();
            let entries: Vec<Done> = ring.completion().map(Done::from).collect();
            assert!(start.elapsed() < LONG, "the ring was blocked");
            for done in entries.iter().filter(|done| done.user_data == 1) {
                assert!(done.result >= 0, "{done:?}");
                armed = done.has_more();
                taken += 1;
                // SAFETY: the ACCEPT has just opened the descriptor, and no other code has it.
                let connection = unsafe { OwnedFd::from_raw_fd(done.result) };
                let _ = TcpStream::from(connection).write_all(b"r");
            }
            is_greeted(&mut client)
        });
        let _ = client.shutdown(Shutdown::Both);
    }
    shut_down(listener);
    let theirs = rival.join().unwrap();
    assert_eq!(taken + theirs, offered);
    taken
}

#[test]
fn a_rival_thread_does_not_block_single_shot_accept() {
    bounded(|| {
        let mut ring = IoUring::new(8).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = types::Fd(listener.as_raw_fd());
        contest(&mut ring, &listener, || {
            opcode::Accept::new(number, std::ptr::null_mut(), std::ptr::null_mut()).build()
        });
    });
}

#[test]
fn a_rival_thread_does_not_block_multishot_accept() {
    bounded(|| {
        let mut ring = IoUring::new(8).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = types::Fd(listener.as_raw_fd());
        contest(&mut ring, &listener, || opcode::AcceptMulti::new(number).build());
    });
}

/// Two rings accept on one listener. Each connection is accepted by one of them.
#[test]
fn each_connection_is_accepted_by_one_of_two_rings() {
    bounded(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = |listener: TcpListener| {
            thread::spawn(move || {
                let mut ring = IoUring::new(8).unwrap();
                let mut count = 0;
                push(&mut ring, &[opcode::AcceptMulti::new(types::Fd(listener.as_raw_fd())).build()]);
                loop {
                    ring.submit_and_wait(1).unwrap();
                    let entries: Vec<Done> = ring.completion().map(Done::from).collect();
                    for done in entries {
                        if done.result < 0 {
                            assert_eq!(done.result, negative(libc::EINVAL), "the listener was shut down");
                            return count;
                        }
                        assert!(done.has_more());
                        count += 1;
                        // SAFETY: the ACCEPT has just opened the descriptor, and no other code has
                        // it.
                        let connection = unsafe { OwnedFd::from_raw_fd(done.result) };
                        let _ = TcpStream::from(connection).write_all(b"r");
                    }
                }
            })
        };
        let servers = [serve(listener.try_clone().unwrap()), serve(listener.try_clone().unwrap())];
        for _ in 0..500 {
            let mut client = client(address);
            let start = Instant::now();
            eventually("somebody takes the connection", || is_greeted(&mut client));
            assert!(start.elapsed() < LONG, "both rings were held up");
        }
        shut_down(&listener);
        let counts = servers.map(|server| server.join().unwrap());
        assert_eq!(counts.iter().sum::<usize>(), 500);
    });
}

/// A cancelled ACCEPT takes no later connection, whether the ring polled the listener or a worker
/// waited in accept(2).
#[test]
fn a_cancelled_accept_takes_no_connection() {
    bounded(|| {
        let mut ring = IoUring::new(8).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = types::Fd(listener.as_raw_fd());
        contest(&mut ring, &listener, || opcode::AcceptMulti::new(number).build());
        let _end = ring.submit_and_wait(1).unwrap();
        while ring.completion().next().is_some() {}

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accept = opcode::AcceptMulti::new(types::Fd(listener.as_raw_fd())).build().user_data(3);
        push(&mut ring, &[accept]);
        ring.submit().unwrap();
        push(&mut ring, &[opcode::AsyncCancel::new(3).build().user_data(4)]);
        ring.submit_and_wait(2).unwrap();
        let entries: Vec<Done> = ring.completion().map(Done::from).collect();
        for done in &entries {
            match done.user_data {
                3 => assert_eq!(done.result, negative(libc::ECANCELED)),
                _ => assert!([0, negative(libc::EALREADY)].contains(&done.result), "{done:?}"),
            }
        }
        assert_eq!(entries.len(), 2);

        // An ACCEPT that was in flight when its ring was dropped takes no connection, either.
        push(&mut ring, &[opcode::AcceptMulti::new(types::Fd(listener.as_raw_fd())).build()]);
        ring.submit().unwrap();
        drop(ring);
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_ok(), "the connection is still queued");
    });
}
