//! The library's own messages: one line each on standard error, written without libc and without
//! allocating.

use core::fmt::{self, Write};
use usring_sys::SystemCall;
use usring_uapi::general as linux;

/// A line under construction; text that does not fit is cut off.
pub struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

/// Writes `usring: …` and a newline to standard error.
pub fn say(text: fmt::Arguments) {
    let mut line = Line { bytes: [0; 512], length: 0 };
    let _ = writeln!(line, "usring: {text}");
    let arguments = [2, line.bytes.as_ptr() as u64, line.length as u64, 0, 0];
    let _ = SystemCall::new(linux::__NR_write, arguments).run_once();
}

/// Ends the process, because usring's own state is broken.
pub fn abort() -> ! {
    let kill = |signal: u32| {
        let _ = usring_sys::signals::send_to_thread(usring_sys::signals::thread_id(), signal);
    };
    kill(linux::SIGABRT);
    // The first signal was blocked or ignored, or a handler returned.
    kill(linux::SIGKILL);
    loop {
        let _ = SystemCall::new(linux::__NR_exit_group, [134, 0, 0, 0, 0]).run_once();
    }
}

#[cfg_attr(not(clippy), panic_handler)]
#[cfg_attr(clippy, expect(dead_code, reason = "std has the handler, see the crate's root"))]
fn panic(information: &core::panic::PanicInfo) -> ! {
    match information.location() {
        Some(at) => say(format_args!("internal error at {}:{}: {}", at.file(), at.line(), information.message())),
        None => say(format_args!("internal error: {}", information.message())),
    }
    abort()
}
