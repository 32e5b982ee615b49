//! Records the program's plain system calls (`usring crash`). The requests of rings are recorded at
//! the places where usring makes their system calls (see [`usring_record`]).

use crate::call::{Call, Outcome};
use crate::filter;
use crate::process::environment;
use crate::runtime::message;
use usring_record::calls;
use usring_sys::SystemCall;

/// Returns whether this process records.
#[inline(always)]
pub fn is_on() -> bool {
    usring_record::is_on()
}

/// The system calls that trap in a recorded program. Bit n of the array stands for the system call
/// with the number n.
const TRAPS: [u64; 8] = {
    let mut traps = [0; 8];
    let mut index = 0;
    while index < calls::TRAPPED.len() {
        let number = calls::TRAPPED[index] as usize;
        traps[number / 64] |= 1 << (number % 64);
        index += 1;
    }
    traps
};

/// Begins to record when a program starts, if it runs under `usring crash`.
///
/// Errors: a message of one sentence.
pub fn connect() -> Result<(), &'static str> {
    let Some(log) = environment::recording() else { return Ok(()) };
    usring_record::start(log).map_err(|error| {
        message::say(format_args!("cannot open the log of `usring crash` ({error})"));
        "the log of `usring crash` cannot be opened; has that command ended, or the user changed?"
    })?;
    filter::install_for_calls(
        &TRAPS,
        "calls on files do not reach usring although the kernel accepted the seccomp filter",
    )
}

/// Makes and records a call that may change something below the recorded folder. `None`: the
/// recorder has not made the call, and the program's thread has to make it.
pub fn serve(call: &mut Call) -> Option<Outcome> {
    let number = u32::try_from(call.number).ok().filter(|number| calls::TRAPPED.contains(number))?;
    let system_call = SystemCall::with_six(number, call.marked());
    calls::concerns(&system_call).then(|| system_call.run_once().into())
}
