//! Posts CQEs that are not the result of a request of this process: messages (MSG_RING), tags of
//! released files and buffers, notifications of zero-copy sends, and the results of orphans.
//! `completion::complete` posts the results of requests.

use super::{LockedRing, Queues};
use crate::probes;
use usring_ring::JournalSlot;
use usring_sys::Errno;
use usring_uapi::Cqe;

impl LockedRing<'_> {
    /// Completes an orphan: a request of a process that has ended. The calling process has taken
    /// over the orphan's slot in the journal (a shared ring's list of requests in flight).
    pub fn complete_orphan(&mut self, slot: JournalSlot, user_data: u64, error: Errno) {
        let Queues { journal, cq, .. } = &mut self.queues;
        if let Some(journal) = journal {
            journal.end(slot, 1, cq);
        }
        self.post(Cqe { user_data, res: error.negative(), flags: 0 });
    }

    /// Posts a CQE that is not the result of a request of this process.
    pub fn post(&mut self, cqe: Cqe) {
        if probes::is_on(self.ring) {
            probes::posts(self, None, cqe);
        }
        self.queues.cq.post(cqe);
    }
}
