//! Writes messages to standard error. [`say`] allocates nothing and makes one write(2), so a signal
//! handler can use it.

use core::fmt::{self, Write};
use usring_sys::SystemCall;

/// Maximum length of a line, in bytes.
const MOST_LINE_BYTES: usize = 256;
const WRITE: u32 = 1;

struct Line {
    bytes: [u8; MOST_LINE_BYTES],
    length: usize,
}

impl Write for Line {
    /// Appends text, and drops what does not fit.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MOST_LINE_BYTES - 1 - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

/// Writes one line to standard error. Cuts the line to [`MOST_LINE_BYTES`] bytes.
pub fn say(text: fmt::Arguments) {
    let mut line = Line { bytes: [0; MOST_LINE_BYTES], length: 0 };
    let _ = line.write_str("usring: ");
    let _ = line.write_fmt(text);
    line.bytes[line.length] = b'\n';
    let (address, length) = (line.bytes.as_ptr() as u64, line.length as u64 + 1);
    let _ = SystemCall::new(WRITE, [2, address, length, 0, 0]).run();
}
