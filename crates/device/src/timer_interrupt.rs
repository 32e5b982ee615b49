//! The interrupt of a device that is made of time alone: a timer, set to when
//! the next completion is due. Each setting is a system call, as it must be:
//! somebody is going to sleep. Who only polls never comes here.

use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, timerfd};

/// A queue pair's timer, if it has interrupts at all.
pub(crate) struct TimerInterrupt {
    timer: Option<OwnedDescriptor>,
    /// Somebody may be asleep on it: what becomes due earlier than this has to set it anew.
    armed: Option<Ticks>,
    /// It is set, or has fired: it is, or will be, readable.
    set: bool,
}

/// Armed with nothing to wait for.
const NEVER: Ticks = Ticks(u64::MAX);

impl TimerInterrupt {
    pub fn new(interrupts: bool) -> Result<TimerInterrupt, Errno> {
        let timer = if interrupts { Some(timerfd::create()?) } else { None };
        Ok(TimerInterrupt { timer, armed: None, set: false })
    }

    pub fn number(&self) -> Option<i32> {
        self.timer.as_ref().map(OwnedDescriptor::number)
    }

    /// Somebody may be asleep on it.
    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// Somebody is going to sleep until the next completion, due then. `false`
    /// if it is due already.
    pub fn arm(&mut self, due: Option<Ticks>) -> bool {
        let Some(due) = due else {
            self.clear();
            self.armed = Some(NEVER);
            return true;
        };
        let span = left(due);
        span > 0 && self.set(due, span)
    }

    /// The next completion is due then, perhaps earlier than what a sleeper was told.
    #[inline]
    pub fn advance(&mut self, due: Option<Ticks>) {
        if let (Some(armed), Some(due)) = (self.armed, due)
            && due < armed
        {
            self.set(due, left(due));
        }
    }

    /// Completions were found: nobody sleeps, and the timer falls silent.
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
