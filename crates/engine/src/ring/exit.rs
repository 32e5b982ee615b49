//! The ways in which a driver releases a ring. `driving::release` carries them out.

/// A driver's ways to release a ring ([`LockedRing::release`](super::LockedRing::release)). Each of
/// them wakes the sleepers for the CQEs that were published.
///
/// | exit | finishes the batch | deferred submits | hands waits to the ring watcher | runs work that arrived |
/// |---|---|---|---|---|
/// | `Leave` | yes | makes them | yes | yes |
/// | `Finished` | the caller did | makes them | yes | yes |
/// | `FinishedForOthers` | the caller did | makes them; the ring watcher leaves them to a submit helper | yes | no: the caller checks for it |
/// | `FinishedInside` | the caller did | leaves them to a submit helper | yes | no: the caller checks for it |
/// | `LeaveInside` | yes | leaves them to a submit helper | yes | yes, without waiting for other processes |
/// | `Pause` | the caller did | makes them | no: the driver comes back | no: the caller checks for it |
/// | `ToSubmit` | the caller did | the caller makes them next | no: the caller did | yes, without waiting for other processes |
/// | `Bare` | the caller did | stay pending | no | no |
///
/// A thread that drives another ring meanwhile, or that serves several rings, uses `FinishedInside`
/// or `LeaveInside`. If it made the deferred submits itself, it might sleep, and the other rings
/// would have to wait.
///
/// Dropping a [`LockedRing`](super::LockedRing) without an exit (after a read, on an error, when
/// the ring is closed) wakes no sleeper, and runs the work that arrived.
#[derive(Clone, Copy)]
pub(crate) enum Exit {
    Leave,
    Finished,
    /// For a driver that only runs other threads' task work. The driver may be the ring watcher.
    FinishedForOthers,
    FinishedInside,
    LeaveInside,
    Pause,
    /// For a driver that makes the deferred submits next, which may sleep.
    ToSubmit,
    Bare,
}
