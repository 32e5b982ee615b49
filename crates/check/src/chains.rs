//! Finds chains of linked requests that a short transfer broke. The engine cancelled the rest of
//! each such chain. A program that notices this submits the cancelled requests again. If the
//! program never does, the work of these requests is lost.

use crate::requests::InFlight;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use usring_uapi::opcode;

/// Maximum number of chains that are remembered. Further broken chains are not reported.
const MOST: usize = 256;

/// A chain that a short transfer has broken.
struct Broken {
    /// The short transfer, and its result.
    request: InFlight,
    result: i32,
    /// Opcode and file number of the cancelled requests that were not submitted again.
    cancelled: Vec<(u8, i32)>,
}

#[derive(Default)]
pub(crate) struct Chains {
    broken: BTreeMap<u64, Broken>,
}

impl Chains {
    /// Notes that a request has broken its chain.
    pub fn break_by(&mut self, request: InFlight, result: i32) {
        if self.broken.len() < MOST {
            let cancelled = Vec::new();
            self.broken.insert(request.chain, Broken { request, result, cancelled });
        }
    }

    /// Notes that a request was cancelled because an earlier request of its chain made a short
    /// transfer.
    pub fn cancel(&mut self, request: &InFlight) {
        if request.opcode != opcode::LINK_TIMEOUT
            && let Some(broken) = self.broken.get_mut(&request.chain)
        {
            broken.cancelled.push((request.opcode, request.number));
        }
    }

    /// Notes that the program submits a request. If a cancelled request had this opcode and file
    /// number, the program has noticed the short transfer. The checker then forgets the broken
    /// chain.
    pub fn submit(&mut self, opcode: u8, number: i32) {
        if !self.broken.is_empty() {
            self.broken.retain(|_, broken| !broken.cancelled.contains(&(opcode, number)));
        }
    }

    /// Removes and returns the short transfers whose broken chains the program never continued.
    pub fn take_unnoticed(&mut self) -> impl Iterator<Item = (InFlight, i32)> + use<> {
        let broken = core::mem::take(&mut self.broken);
        broken.into_values().filter(|broken| !broken.cancelled.is_empty()).map(|it| (it.request, it.result))
    }
}
