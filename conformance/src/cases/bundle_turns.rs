//! Multishot receives on several sockets: how many CQEs each posts before it is another's turn.

use usring_uapi::io_uring as u;

use super::bundle::{BUNDLE, GROUP, MANY, receiving};
use crate::buffers::group_of;
use crate::files;
use crate::memory::Pages;
use crate::ring::{self, Ring};
use crate::sqe::Change;
use crate::transcript::Transcript;

/// Two sockets are full of data, and each has a multishot. The kernel lets one multishot post CQEs
/// up to a limit of bytes or CQEs, and then switches to the other multishot.
fn two_sockets(t: &mut Transcript) {
    let rows = [(true, 32, 600), (true, 1, 40), (true, 20, 300), (true, 0, 600), (false, 0, 600), (false, 5, 200)];
    for (bundle, length, amount) in rows {
        t.say(format_args!("bundle {bundle} length {length}"));
        let memory = Pages::new(1);
        let mut ring = Ring::with(64, |params| {
            params.flags = ring::DEFER | u::IORING_SETUP_CQSIZE;
            params.cq_entries = 256;
        })
        .expect("a ring");
        let mut group = group_of(&ring, &memory, 128, GROUP);
        for slot in 0..100 {
            group.add_at(memory.at(0), 16, slot);
        }
        let pairs = [files::sockets(), files::sockets()];
        for (user_data, (reader, _)) in pairs.iter().enumerate() {
            ring.push(receiving(reader, length, user_data as u64).with(|sqe| {
                sqe.ioprio = MANY | if bundle { BUNDLE } else { 0 };
            }));
        }
        t.result("submit", ring.submit());
        for (_, writer) in &pairs {
            files::put(writer, &vec![b'x'; amount as usize]);
        }
        let mut entries = Vec::new();
        let mut left = [amount; 2];
        while left.iter().any(|left| *left > 0) {
            let more = ring.wait(1);
            if more.is_empty() {
                break;
            }
            for entry in &more {
                left[entry.user_data as usize] -= entry.res.max(1);
            }
            entries.extend(more);
        }
        // Groups consecutive completions of one socket into runs.
        let mut runs: Vec<(u64, Vec<i32>)> = Vec::new();
        for entry in entries {
            match runs.last_mut() {
                Some((user_data, results)) if *user_data == entry.user_data => results.push(entry.res),
                _ => runs.push((entry.user_data, vec![entry.res])),
            }
        }
        for (user_data, results) in runs {
            t.say(format_args!("{user_data}: {} times, first {}", results.len(), results[0]));
        }
    }
}
case!(two_sockets => include_str!("bundle_turns/two_sockets.txt"));
