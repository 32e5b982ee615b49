//! Chains in the batch of a multishot READ. The pipe has more data than one buffer can take. The
//! multishot's second read and the second requests of the chains run in the order in which they
//! became due.

use super::{multishot, ring_of};
use crate::buffers::SIZE;
use crate::files;
use crate::memory::Pages;
use crate::ring;
use crate::sqe::{CURRENT, Change, nop, write};
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;

/// Submits a multishot READ (user_data 1) of a pipe with 20 bytes. The batch also has `before`
/// chains before the multishot and `behind` chains behind it. A chain is a NOP and a WRITE of 8
/// bytes to that pipe. Prints the first `completions` CQEs.
fn beside_chains(t: &mut Transcript, before: u64, behind: u64, completions: usize) {
    for flags in ring::BOTH {
        let memory = Pages::new(1);
        let (mut ring, _group) = ring_of(&memory, 8, flags);
        let (reader, writer) = files::pipe();
        files::put(&writer, &[b'0'; SIZE as usize + 4]);
        let chain =
            |number: u64| [nop(10 * number).linked(), write(writer.as_raw_fd(), b"12345678", CURRENT, 10 * number + 1)];
        (1..=before).flat_map(chain).for_each(|sqe| ring.push(sqe));
        ring.push(multishot(reader.as_raw_fd(), 1));
        (before + 1..=before + behind).flat_map(chain).for_each(|sqe| ring.push(sqe));
        ring.submit();
        t.in_order(&ring.wait(completions));
    }
}

fn chain_comes_first(t: &mut Transcript) {
    beside_chains(t, 1, 0, 4);
}
case!(chain_comes_first => "
    cqe 10: 0
    cqe 1: 16 MORE|BUFFER(0)
    cqe 11: 8
    cqe 1: 12 MORE|BUFFER(1)
    cqe 10: 0
    cqe 1: 16 MORE|BUFFER(0)
    cqe 11: 8
    cqe 1: 12 MORE|BUFFER(1)
");

fn chain_comes_last(t: &mut Transcript) {
    beside_chains(t, 0, 1, 5);
}
case!(chain_comes_last => "
    cqe 1: 16 MORE|BUFFER(0)
    cqe 10: 0
    cqe 1: 4 MORE|BUFFER(1)
    cqe 11: 8
    cqe 1: 8 MORE|BUFFER(2)
    cqe 1: 16 MORE|BUFFER(0)
    cqe 10: 0
    cqe 1: 4 MORE|BUFFER(1)
    cqe 11: 8
    cqe 1: 8 MORE|BUFFER(2)
");

fn chains_on_both_sides(t: &mut Transcript) {
    beside_chains(t, 1, 1, 7);
}
case!(chains_on_both_sides => "
    cqe 10: 0
    cqe 1: 16 MORE|BUFFER(0)
    cqe 20: 0
    cqe 11: 8
    cqe 1: 12 MORE|BUFFER(1)
    cqe 21: 8
    cqe 1: 8 MORE|BUFFER(2)
    cqe 10: 0
    cqe 1: 16 MORE|BUFFER(0)
    cqe 20: 0
    cqe 11: 8
    cqe 1: 12 MORE|BUFFER(1)
    cqe 21: 8
    cqe 1: 8 MORE|BUFFER(2)
");

fn two_chains_come_first(t: &mut Transcript) {
    beside_chains(t, 2, 0, 7);
}
case!(two_chains_come_first => "
    cqe 10: 0
    cqe 20: 0
    cqe 1: 16 MORE|BUFFER(0)
    cqe 11: 8
    cqe 21: 8
    cqe 1: 16 MORE|BUFFER(1)
    cqe 1: 4 MORE|BUFFER(2)
    cqe 10: 0
    cqe 20: 0
    cqe 1: 16 MORE|BUFFER(0)
    cqe 11: 8
    cqe 21: 8
    cqe 1: 16 MORE|BUFFER(1)
    cqe 1: 4 MORE|BUFFER(2)
");
