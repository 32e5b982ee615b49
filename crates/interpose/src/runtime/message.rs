//! The library's own messages, of one line each. They go to standard error, or to the file that
//! `USRING_LOG` names. The code that writes them uses no libc and allocates nothing.

use core::ffi::{CStr, c_char};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicPtr, Ordering};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::{Errno, SystemCall, width};
use usring_uapi::general as linux;

const STANDARD_ERROR: i32 = 2;

/// A line under construction; text that does not fit is cut off.
pub struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Line {
    fn write_to(&self, number: i32) -> Result<u64, Errno> {
        let arguments = [width::word(number), self.bytes.as_ptr() as u64, self.length as u64, 0, 0];
        SystemCall::new(linux::__NR_write, arguments).run_once()
    }
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

/// Path of the file for messages. Null: messages go to standard error.
static LOG: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Appends all further messages to a file. The file is opened for each message, so the process
/// keeps no descriptor.
pub fn log_to(path: &'static CStr) {
    LOG.store(path.as_ptr().cast_mut(), Ordering::Relaxed);
}

/// Writes a line `usring: …` to the log. If there is no log, writes it to standard error.
pub fn say(text: fmt::Arguments) {
    let mut line = Line { bytes: [0; 512], length: 0 };
    let _ = writeln!(line, "usring: {text}");
    if write_to_log(&line).is_err() {
        let _ = line.write_to(STANDARD_ERROR);
    }
}

/// Writes a line to the log file. Errors: those of opening and writing the file; `ENOENT` if there
/// is no log file.
fn write_to_log(line: &Line) -> Result<u64, Errno> {
    let path = LOG.load(Ordering::Relaxed);
    if path.is_null() {
        return Err(Errno::ENOENT);
    }
    let flags = linux::O_WRONLY | linux::O_APPEND | linux::O_CREAT | linux::O_CLOEXEC | linux::O_NOCTTY;
    let arguments = [width::word(linux::AT_FDCWD), path as u64, u64::from(flags), 0o644, 0];
    let log = OwnedDescriptor::from_raw(width::int(SystemCall::new(linux::__NR_openat, arguments).run_once()?));
    line.write_to(log.number())
}

/// Ends the process, because usring's own state is broken.
pub fn abort() -> ! {
    let kill = |signal: u32| {
        let _ = usring_sys::signals::send_to_thread(usring_sys::signals::thread_id(), signal);
    };
    kill(linux::SIGABRT);
    // The process still runs: SIGABRT was blocked or ignored, or its handler returned.
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
