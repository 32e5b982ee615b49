//! The terminal that `usring top` draws on. Its old content comes back at the end.

use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Switches to the terminal's second screen, and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// A terminal with `usring top` on it. All clones stand for the one terminal.
#[derive(Clone)]
pub struct Screen(Arc<Mutex<State>>);

/// Whether this process has the terminal. Its lock keeps the thread that draws and the one that
/// waits for signals apart.
enum State {
    /// The terminal's settings from before. `None`: standard input is no terminal.
    Taken(Option<Termios>),
    GivenBack,
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
            // Keys arrive at once and are not shown. ^C stays a signal. ^Z and ^\ are off, because
            // they would leave this screen to the shell.
            settings.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
            for key in [SpecialCharacterIndices::VSUSP, SpecialCharacterIndices::VQUIT] {
                settings.control_chars[key as usize] = nix::libc::_POSIX_VDISABLE;
            }
            let _ = tcsetattr(stdin().as_fd(), SetArg::TCSANOW, &settings);
        }
        write(ENTER);
        Some(Screen(Arc::new(Mutex::new(State::Taken(before)))))
    }

    /// Shows a text, unless the terminal was given back. Cuts the lines below the screen, and the
    /// ends of long lines.
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
        let state = self.lock();
        if matches!(*state, State::Taken(_)) {
            write(&(drawn + "\x1b[J"));
        }
    }

    /// Gives the terminal back. Further calls do nothing.
    pub fn restore(&self) {
        let state = std::mem::replace(&mut *self.lock(), State::GivenBack);
        let State::Taken(before) = state else { return };
        if let Some(before) = before {
            let _ = tcsetattr(stdin().as_fd(), SetArg::TCSANOW, &before);
        }
        write(LEAVE);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
