//! The interrupt of a device whose latency is only simulated: a timer that fires when the next
//! completion is due. Each setting of the timer is a system call. Only users that are about to
//! sleep set it; users that poll never do.

use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, timerfd};

/// The timer of a queue pair; none if the queue pair was opened without interrupts.
pub(crate) struct TimerInterrupt {
    timer: Option<OwnedDescriptor>,
    /// The time for which the timer is armed, if the user may be asleep. A completion that becomes
    /// due earlier must set the timer again.
    armed: Option<Ticks>,
    /// The timer is set or has fired: its descriptor is readable or will be.
    set: bool,
}

/// Value of `armed` if there is no completion to wait for.
const NEVER: Ticks = Ticks(u64::MAX);

impl TimerInterrupt {
    pub fn new(interrupts: bool) -> Result<TimerInterrupt, Errno> {
        let timer = if interrupts { Some(timerfd::create()?) } else { None };
        Ok(TimerInterrupt { timer, armed: None, set: false })
    }

    pub fn number(&self) -> Option<i32> {
        self.timer.as_ref().map(OwnedDescriptor::number)
    }

    /// Returns whether the user may be asleep on the timer.
    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// Arms the timer for the user's sleep until the next completion, due at `due`. `false` if it
    /// is due already.
    pub fn arm(&mut self, due: Option<Ticks>) -> bool {
        let Some(due) = due else {
            self.clear();
            self.armed = Some(NEVER);
            return true;
        };
        let span = left(due);
        span > 0 && self.set(due, span)
    }

    /// Sets the timer earlier if the next completion is due before the time for which it is armed.
    #[inline]
    pub fn advance(&mut self, due: Option<Ticks>) {
        if let (Some(armed), Some(due)) = (self.armed, due)
            && due < armed
        {
            self.set(due, left(due));
        }
    }

    /// Stops the timer after completions were found: the user is awake.
    #[inline]
    pub fn acknowledge(&mut self) {
        if self.armed.take().is_some() {
            self.clear();
        }
    }

    fn set(&mut self, due: Ticks, span: Nanoseconds) -> bool {
        let Some(timer) = &self.timer else { return false };
        self.armed = Some(due);
        self.set = timerfd::arm(timer.number(), span).is_ok();
        self.set
    }

    fn clear(&mut self) {
        if self.set
            && let Some(timer) = &self.timer
        {
            let _ = timerfd::disarm(timer.number());
            self.set = false;
        }
    }
}

fn left(due: Ticks) -> Nanoseconds {
    due.since(Ticks::now())
}
