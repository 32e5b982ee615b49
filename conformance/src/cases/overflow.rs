//! More completions than the CQ has room for. Their CQEs go to the backlog, and none is lost.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::io_uring as u;

use super::message_ring::message;
use super::reg;
use crate::files;
use crate::names;
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop, poll};
use crate::transcript::Transcript;

fn state(t: &mut Transcript, ring: &Ring) {
    t.say(format_args!(
        "ready {} flags {} koverflow {}",
        ring.ready(),
        names::sq_flags(ring.sq_flags()),
        ring.cq_overflow()
    ));
}

/// Makes a ring with a CQ of four entries. Completes `count` NOPs on it and reaps none.
fn overflown(count: u64) -> Ring {
    let mut ring = Ring::with(4, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 4;
    })
    .expect("a ring with a small CQ");
    for user_data in 1..=count {
        ring.push(nop(user_data));
        ring.submit();
    }
    ring
}

fn nothing_is_lost(t: &mut Transcript) {
    let mut ring = overflown(10);
    state(t, &ring);
    let mut all = ring.reap();
    while all.len() < 10 {
        let answer = ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        t.result("get events", answer);
        let more = ring.reap();
        t.say(format_args!("{} more", more.len()));
        if more.is_empty() {
            break;
        }
        all.extend(more);
    }
    t.in_order(&all);
    state(t, &ring);
}
case!(nothing_is_lost => "
    ready 4 flags CQ_OVERFLOW koverflow 0
    get events = 0
    4 more
    get events = 0
    2 more
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
    cqe 8: 0
    cqe 9: 0
    cqe 10: 0
    ready 0 flags - koverflow 0
");

fn flag_comes_and_goes(t: &mut Transcript) {
    let mut ring = overflown(4);
    state(t, &ring);
    ring.push(nop(5));
    t.result("submit", ring.submit());
    state(t, &ring);
    t.in_order(&ring.reap());
    state(t, &ring);
    t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    state(t, &ring);
    t.in_order(&ring.reap());
}
case!(flag_comes_and_goes => "
    ready 4 flags - koverflow 0
    submit = 1
    ready 4 flags CQ_OVERFLOW koverflow 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    ready 0 flags CQ_OVERFLOW koverflow 0
    get events = 0
    ready 1 flags - koverflow 0
    cqe 5: 0
");

fn order_is_kept(t: &mut Transcript) {
    let mut ring = overflown(9);
    let mut all = Vec::new();
    for _ in 0..3 {
        all.extend(ring.peek());
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    }
    all.extend(ring.reap());
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    all.extend(ring.reap());
    t.in_order(&all);
}
case!(order_is_kept => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
    cqe 8: 0
    cqe 9: 0
");

/// As long as the backlog is not empty, a new CQE goes to the backlog's end, even if the CQ has
/// room.
fn new_completions_queue_behind(t: &mut Transcript) {
    let mut ring = overflown(6);
    let mut all = ring.reap();
    ring.push(nop(7));
    t.result("submit", ring.submit());
    state(t, &ring);
    all.extend(ring.reap());
    t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    all.extend(ring.reap());
    t.in_order(&all);
}
case!(new_completions_queue_behind => "
    submit = 1
    ready 0 flags CQ_OVERFLOW koverflow 0
    get events = 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
");

fn flushed_only_by_getevents(t: &mut Transcript) {
    let mut ring = overflown(6);
    t.in_order(&ring.reap());
    t.result("enter(0, 0, 0)", ring.enter(0, 0, 0));
    state(t, &ring);
    ring.push(nop(7));
    t.result("submit", ring.submit());
    state(t, &ring);
    t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    state(t, &ring);
    t.in_order(&ring.reap());
}
case!(flushed_only_by_getevents => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    enter(0, 0, 0) = 0
    ready 0 flags CQ_OVERFLOW koverflow 0
    submit = 1
    ready 0 flags CQ_OVERFLOW koverflow 0
    get events = 0
    ready 3 flags - koverflow 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
");

fn wait_counts_the_backlog(t: &mut Transcript) {
    let mut ring = overflown(7);
    t.in_order(&ring.reap());
    t.result("wait for 3", ring.enter(0, 3, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
    // The call waits for more completions than the CQ has entries. The wait ends when the CQ is
    // full.
    let mut ring = overflown(7);
    t.result("wait for 7", ring.enter(0, 7, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
    t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}
case!(wait_counts_the_backlog => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    wait for 3 = 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
    wait for 7 = 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    get events = 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
");

/// A multishot's CQE finds the CQ full. It has no F_MORE and goes to the backlog, and the multishot
/// ends.
fn multishot_ends(t: &mut Transcript) {
    let (reader, writer) = files::sockets();
    let mut ring = Ring::with(4, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 4;
    })
    .expect("a ring with a small CQ");
    let multishot = poll(reader.as_raw_fd(), libc::POLLIN, 1);
    ring.push(multishot.with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI));
    ring.submit();
    let mut seen = 0;
    for _ in 0..7 {
        // Waits for each completion before the next write: otherwise two wake-ups of the socket may
        // become one completion.
        let tail = ring.cq_tail();
        files::put(&writer, b"x");
        seen +=
            u32::from(crate::time::until(|| ring.cq_tail() != tail || ring.sq_flags() & u::IORING_SQ_CQ_OVERFLOW != 0));
    }
    t.say(format_args!("{seen} wakes seen"));
    let mut all = ring.reap();
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    all.extend(ring.reap());
    t.in_order(&all);
    // The multishot no longer exists.
    t.entry(&ring.one(crate::sqe::poll_remove(1, 9)));
}
case!(multishot_ends => "
    7 wakes seen
    cqe 1: 1 MORE
    cqe 1: 1 MORE
    cqe 1: 1 MORE
    cqe 1: 1 MORE
    cqe 1: 1
    cqe 9: -ENOENT
");

/// While the backlog is not empty, a multishot's CQE goes to the backlog, even if the CQ has room.
/// So this CQE ends the multishot.
fn multishot_ends_behind_a_backlog(t: &mut Transcript) {
    let (reader, writer) = files::sockets();
    let mut ring = tiny(0);
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 9).with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI));
    ring.submit();
    for user_data in 1..=5 {
        ring.push(nop(user_data));
        ring.submit();
    }
    let mut all = ring.reap();
    state(t, &ring);
    files::put(&writer, b"x");
    // Without GETEVENTS, io_uring_enter(2) does not move the backlog to the CQ.
    ring.enter(0, 0, 0);
    crate::time::long_enough_to_notice();
    state(t, &ring);
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    all.extend(ring.reap());
    t.in_order(&all);
    t.entry(&ring.one(crate::sqe::poll_remove(9, 10)));
}
case!(multishot_ends_behind_a_backlog => "
    ready 0 flags CQ_OVERFLOW koverflow 0
    ready 0 flags CQ_OVERFLOW koverflow 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 9: 1
    cqe 10: -ENOENT
");

fn large(t: &mut Transcript) {
    let mut ring = overflown(1000);
    state(t, &ring);
    let mut next = 1;
    let mut wrong = 0;
    loop {
        let entries = ring.reap();
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            wrong += u32::from(entry.user_data != next);
            next += 1;
        }
        if next > 1000 {
            break;
        }
        ring.enter(0, 1, u::IORING_ENTER_GETEVENTS);
    }
    t.say(format_args!("last {} out of order {wrong}", next - 1));
    state(t, &ring);
}
case!(large => "
    ready 4 flags CQ_OVERFLOW koverflow 0
    last 1000 out of order 0
    ready 0 flags - koverflow 0
");

fn wide_entries(t: &mut Transcript) {
    let mut ring = Ring::with(4, |params| {
        params.flags = u::IORING_SETUP_CQSIZE | u::IORING_SETUP_CQE32;
        params.cq_entries = 4;
    })
    .expect("a ring with a small CQ");
    for user_data in 1..=7 {
        ring.push(nop(user_data));
        ring.submit();
    }
    state(t, &ring);
    let mut all = ring.reap();
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    all.extend(ring.reap());
    t.in_order(&all);
    t.say(format_args!("second halves zero {}", all.iter().all(|entry| entry.extra == [0, 0])));
}
case!(wide_entries => "
    ready 4 flags CQ_OVERFLOW koverflow 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
    second halves zero true
");

fn ring_goes_away(t: &mut Transcript) {
    let ring = overflown(100);
    state(t, &ring);
    drop(ring);
    t.entry(&Ring::new(4).one(nop(1)));
}
case!(ring_goes_away => "
    ready 4 flags CQ_OVERFLOW koverflow 0
    cqe 1: 0
");

fn smallest_ring(t: &mut Transcript) {
    let mut ring = Ring::with(1, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 1;
    })
    .expect("a ring with a CQ of one");
    for user_data in 1..=3 {
        ring.push(nop(user_data));
        t.result("submit", ring.submit());
    }
    for _ in 0..4 {
        state(t, &ring);
        t.in_order(&ring.reap());
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    }
}
case!(smallest_ring => "
    submit = 1
    submit = 1
    submit = 1
    ready 1 flags CQ_OVERFLOW koverflow 0
    cqe 1: 0
    ready 1 flags CQ_OVERFLOW koverflow 0
    cqe 2: 0
    ready 1 flags - koverflow 0
    cqe 3: 0
    ready 0 flags - koverflow 0
    no cqe
");

/// An epoll set that watches one descriptor, edge-triggered.
struct Edges {
    set: OwnedFd,
}

impl Edges {
    fn of(fd: i32) -> Edges {
        // SAFETY: the descriptor is new, and nothing else owns it.
        let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: the event is a variable of this function.
        let answer = unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        assert_eq!(answer, 0, "the set takes the descriptor");
        Edges { set }
    }

    /// Returns whether an edge-triggered event of the descriptor arrives within `timeout`
    /// milliseconds.
    fn comes(&self, timeout: i32) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: the event is a variable of this function.
        unsafe { libc::epoll_wait(self.set.as_raw_fd(), &mut event, 1, timeout) == 1 }
    }
}

/// Makes a ring with an SQ of two entries and a CQ of four.
fn tiny(flags: u32) -> Ring {
    Ring::with(2, |params| {
        params.flags = flags | u::IORING_SETUP_CQSIZE;
        params.cq_entries = 4;
    })
    .expect("a ring with a small CQ")
}

/// Runs an event loop on the ring's descriptor. A round waits for an edge-triggered event, reaps,
/// and moves the backlog to the CQ. The loop ends after `count` CQEs, or if no event arrives.
/// Prints the number of reaped CQEs.
fn reap_by_edges(t: &mut Transcript, ring: &mut Ring, count: usize) {
    let edges = Edges::of(ring.fd);
    let mut all = Vec::new();
    while all.len() < count && edges.comes(5_000) {
        all.extend(ring.reap());
        if ring.sq_flags() & u::IORING_SQ_CQ_OVERFLOW != 0 {
            ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        }
    }
    t.say(format_args!("{} of {count}", all.len()));
    state(t, ring);
}

fn flush_is_an_edge(t: &mut Transcript) {
    let mut ring = tiny(0);
    for user_data in 0..50 {
        ring.push(nop(user_data));
        ring.submit();
    }
    reap_by_edges(t, &mut ring, 50);
}
case!(flush_is_an_edge => "
    50 of 50
    ready 0 flags - koverflow 0
");

/// A CQE that goes to the backlog causes an edge-triggered event on the ring's descriptor. A call
/// that can move no CQE from the backlog to the CQ causes no event.
fn growth_is_an_edge(t: &mut Transcript) {
    let mut ring = tiny(0);
    let edges = Edges::of(ring.fd);
    let edge = |t: &mut Transcript, what: &str| t.say(format_args!("{what}: {}", edges.comes(0)));
    for user_data in 1..=6 {
        ring.push(nop(user_data));
        ring.submit();
        edge(t, "completion");
    }
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    edge(t, "flush without room");
    t.in_order(&ring.reap());
    edge(t, "reaped");
    ring.push(nop(7));
    ring.submit();
    edge(t, "behind the backlog");
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    edge(t, "flush");
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    edge(t, "nothing to flush");
    t.in_order(&ring.reap());
}
case!(growth_is_an_edge => "
    completion: true
    completion: true
    completion: true
    completion: true
    completion: true
    completion: true
    flush without room: false
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    reaped: false
    behind the backlog: true
    flush: true
    nothing to flush: false
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
");

fn flush_is_an_edge_beside_an_sq_thread(t: &mut Transcript) {
    let mut ring = tiny(u::IORING_SETUP_SQPOLL);
    for user_data in 0..50 {
        ring.push(nop(user_data));
        ring.forget_pending();
        ring.enter(0, 0, u::IORING_ENTER_SQ_WAKEUP | u::IORING_ENTER_SQ_WAIT);
    }
    crate::time::until(|| ring.sq_head() == ring.sq_tail());
    reap_by_edges(t, &mut ring, 50);
}
case!(flush_is_an_edge_beside_an_sq_thread => "
    50 of 50
    ready 0 flags - koverflow 0
");

/// Moving CQEs from the backlog to the CQ signals the registered eventfd, except with
/// EVENTFD_ASYNC. The kernel guarantees one signal and sometimes makes more, so the case does not
/// print the count.
fn flush_counts_an_eventfd(t: &mut Transcript) {
    for opcode in [reg::EVENTFD, reg::EVENTFD_ASYNC] {
        let mut ring = tiny(0);
        let event = files::eventfd(0);
        let number = event.as_raw_fd();
        t.result("register", ring.register(opcode, &raw const number, 1));
        for user_data in 1..=10 {
            ring.push(nop(user_data));
            ring.submit();
        }
        t.say(format_args!("counted {}", files::event_count(&event) > 0));
        for _ in 0..4 {
            t.say(format_args!("ready {}", ring.reap().len()));
            ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
            t.say(format_args!("flushed: counted {}", files::event_count(&event) > 0));
        }
    }
}
case!(flush_counts_an_eventfd => "
    register = 0
    counted true
    ready 4
    flushed: counted true
    ready 4
    flushed: counted true
    ready 2
    flushed: counted false
    ready 0
    flushed: counted false
    register = 0
    counted false
    ready 4
    flushed: counted false
    ready 4
    flushed: counted false
    ready 2
    flushed: counted false
    ready 0
    flushed: counted false
");

/// Another ring has sent CQEs, which went to the backlog. Moving them to the CQ causes an
/// edge-triggered event on the ring's descriptor.
fn flush_of_messages_is_an_edge(t: &mut Transcript) {
    for flags in ring::BOTH {
        let mut ring = tiny(flags);
        let mut sender = Ring::new(4);
        let event = files::eventfd(0);
        let number = event.as_raw_fd();
        t.result("register", ring.register(reg::EVENTFD, &raw const number, 1));
        let mut sent = 0;
        for user_data in 0..20 {
            sent += i32::from(sender.one(message(ring.fd, 0, user_data, 1)).res == 0);
        }
        t.say(format_args!("sent {sent}"));
        let mut all = Vec::new();
        if flags != 0 {
            ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        }
        while all.len() < 20 && crate::time::until(|| files::event_count(&event) > 0) {
            all.extend(ring.reap());
            ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        }
        t.say(format_args!("by the eventfd {}", all.len()));
    }
}
case!(flush_of_messages_is_an_edge => "
    register = 0
    sent 20
    by the eventfd 20
    register = 0
    sent 20
    by the eventfd 20
");

fn flush_is_an_edge_where_work_is_deferred(t: &mut Transcript) {
    let mut ring = tiny(ring::DEFER);
    for user_data in 0..50 {
        ring.push(nop(user_data));
        ring.submit();
    }
    reap_by_edges(t, &mut ring, 50);
}
case!(flush_is_an_edge_where_work_is_deferred => "
    50 of 50
    ready 0 flags - koverflow 0
");
