//! Two requests of a stopped process have one `user_data`, and a cancel selects only one of the
//! two.

use std::os::fd::AsRawFd;

use crate::cases::reg;
use crate::files::{self, Fifo};
use crate::shared::{self, Partner};
use crate::sqe::{cancel, poll};
use crate::time;
use crate::transcript::Transcript;

/// The stopped process has a poll and an open with one `user_data`. The cancel takes the poll. The
/// open waits in a queue behind another open, and is not cancelled. On the kernel, the stop ends
/// both opens with ERESTARTSYS, a result that programs see nowhere else.
fn worker_beside_a_marked_poll(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let (reader, _writer) = files::pipe();
        let (first, second) = (Fifo::new(), Fifo::new());
        let partner = Partner::start(ring, |ring| {
            let mut limits = [1u32; 2];
            ring.register(reg::IOWQ_MAX_WORKERS, limits.as_mut_ptr(), 2);
            ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
            ring.push(first.open(2));
            ring.submit();
            time::long_enough_to_begin();
            ring.push(second.open(1));
        });
        partner.stop();
        ring.push(cancel(1, 0, 11));
        ring.submit();
        let mut entries = ring.reap_in_memory(1);
        partner.resume();
        let is_over = time::until(|| {
            entries.extend(ring.reap_in_memory(0));
            entries.iter().any(|entry| entry.user_data == 1 && entry.res == -libc::ECANCELED)
        });
        t.say(format_args!("the poll is over: {is_over}"));
        entries.extend(ring.reap_in_memory(0));
        let _writers = [first.release(), second.release()];
        entries.extend(ring.wait(4 - entries.len()));
        entries.sort_by_key(|entry| (entry.user_data, entry.res != -libc::ECANCELED));
        for entry in entries {
            match entry.user_data {
                1 if entry.res != -libc::ECANCELED => t.say("cqe 1: not cancelled"),
                2 => t.say("cqe 2"),
                _ => t.entry(&entry),
            }
        }
        partner.leave(t);
    });
}
case!(worker_beside_a_marked_poll => "
    a mapped ring:
    the poll is over: true
    cqe 1: -ECANCELED
    cqe 1: not cancelled
    cqe 2
    cqe 11: 0
    child: exit 0
    a ring in shared memory:
    the poll is over: true
    cqe 1: -ECANCELED
    cqe 1: not cancelled
    cqe 2
    cqe 11: 0
    child: exit 0
");
