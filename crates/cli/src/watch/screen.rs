//! The terminal that `usring top` draws on. Its old content comes back at the end.

use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

/// Switches to the terminal's second screen, and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// A terminal with `usring top` on it.
#[derive(Clone)]
pub struct Screen {
    /// The terminal's settings before; `None` once they are restored, or if standard input is no
    /// terminal.
    before: Arc<Mutex<Option<Termios>>>,
}

impl Screen {
    /// Takes over the terminal of standard output. `None`: standard output is no terminal.
    pub fn take_over() -> Option<Screen> {
        if !stdout().is_terminal() {
            return None;
        }
        let before = tcgetattr(stdin().as_fd()).ok();
        if let Some(before) = &before {
            let mut settings = before.clone();
            // Keys arrive at once and are not shown. ^C stays a signal. ^Z is off, because a
            // stopped `top` would leave its screen to the shell.
            settings.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
            settings.control_chars[SpecialCharacterIndices::VSUSP as usize] = nix::libc::_POSIX_VDISABLE;
            let _ = tcsetattr(stdin().as_fd(), SetArg::TCSANOW, &settings);
        }
        write(ENTER);
        Some(Screen { before: Arc::new(Mutex::new(before)) })
    }

    /// Shows a text. Cuts what does not fit: lines below the screen, and the ends of long lines.
    pub fn show(&self, text: &str) {
        let (rows, columns) = size();
        let mut drawn = String::from("\x1b[H");
        for line in text.lines().take(rows) {
            let line: String = line.chars().take(columns).collect();
            let _ = write!(drawn, "{line}\x1b[K\r\n");
        }
        // The line break behind the last row would scroll the screen.
        if text.lines().count() >= rows {
            drawn.truncate(drawn.len() - 2);
        }
        write(&(drawn + "\x1b[J"));
    }

    /// Gives the terminal back. Further calls do nothing.
    pub fn restore(&self) {
        let mut before = self.before.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(before) = before.take() {
            let _ = tcsetattr(stdin().as_fd(), SetArg::TCSANOW, &before);
        }
        write(LEAVE);
    }
}

/// Writes to the terminal. A terminal that is gone is noticed by the signal SIGHUP.
fn write(text: &str) {
    let mut output = stdout();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

/// Returns the terminal's rows and columns; 24 and 80 if it does not say.
fn size() -> (usize, usize) {
    // A terminal of 0 rows does not know its size.
    let known = terminal_size::terminal_size().filter(|(_, rows)| rows.0 != 0);
    known.map_or((24, 80), |(columns, rows)| (rows.0.into(), columns.0.into()))
}
