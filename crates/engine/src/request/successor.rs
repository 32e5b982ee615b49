//! Requests whose start other requests have held back.

use crate::request::RequestEntry;

/// A request that may start: the next one of a chain, or one that waited for a drain.
pub(crate) struct Successor {
    pub request: RequestEntry,
    /// The driver first begins the time slices that have become due before this request: slices up
    /// to this number, as `PollTable::slices_due` counts them. `None`: it begins none.
    pub slices_before: Option<u32>,
}

impl From<RequestEntry> for Successor {
    fn from(request: RequestEntry) -> Successor {
        Successor { request, slices_before: None }
    }
}
