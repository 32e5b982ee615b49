//! The interrupt of a device whose latency is only simulated: a timer that fires when the next
//! completion is due. Each change of the timer is a system call. So the timer is set only when the
//! thread that uses the queue pair is about to sleep, and never when that thread polls.

use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, timerfd};

/// The timer of a queue pair. There is none if the queue pair was opened without interrupts.
pub(crate) struct TimerInterrupt {
    timer: Option<OwnedDescriptor>,
    /// The time for which the timer is set, while the thread that uses the queue pair may be
    /// asleep. [`NEVER`] if no completion is held back. `None` if that thread is awake. If a
    /// completion is added that is due before this time, the timer must be set again.
    armed: Option<Ticks>,
    /// Whether the timer's descriptor is readable or will become readable: the timer runs or has
    /// fired.
    set: bool,
}

/// Value of `armed` if a thread sleeps and no completion is held back.
const NEVER: Ticks = Ticks(u64::MAX);

impl TimerInterrupt {
    pub fn new(interrupts: bool) -> Result<TimerInterrupt, Errno> {
        let timer = if interrupts { Some(timerfd::create()?) } else { None };
        Ok(TimerInterrupt { timer, armed: None, set: false })
    }

    pub fn number(&self) -> Option<i32> {
        self.timer.as_ref().map(OwnedDescriptor::number)
    }

    /// Returns whether a thread may be asleep until the timer fires.
    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// Sets the timer for a thread that is about to sleep. `due` is the due time of the next
    /// completion. Returns `false` if the completion is due already, or the timer cannot be set.
    pub fn arm(&mut self, due: Option<Ticks>) -> bool {
        let Some(due) = due else {
            self.clear();
            self.armed = Some(NEVER);
            return true;
        };
        let span = time_until(due);
        span > 0 && self.set(due, span)
    }

    /// Sets the timer to an earlier time if `due`, the due time of the next completion, is before
    /// the time for which the timer is set.
    #[inline]
    pub fn advance(&mut self, due: Option<Ticks>) {
        if let (Some(armed), Some(due)) = (self.armed, due)
            && due < armed
        {
            self.set(due, time_until(due));
        }
    }

    /// Stops the timer, if it is set. Called after a poll has found completions: the polling thread
    /// is awake, and needs no interrupt.
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

fn time_until(due: Ticks) -> Nanoseconds {
    due.since(Ticks::now())
}
