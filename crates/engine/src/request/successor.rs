//! Requests whose start other requests have held back.

use crate::request::RequestEntry;

/// A request that may start: the next one of a chain, or one that waited for a drain.
pub(crate) struct Successor {
    pub request: RequestEntry,
    /// Number of the last time slice (attempt of a runnable request) that was due before this
    /// request. Slices are numbered in the order in which they become due. The driver begins the
    /// slices up to this number, and then starts the request. `None`: the driver begins no slice
    /// first.
    pub slices_before: Option<u32>,
}

impl From<RequestEntry> for Successor {
    fn from(request: RequestEntry) -> Successor {
        Successor { request, slices_before: None }
    }
}
