//! The terminal that `usring top` draws on. Its old content comes back at the end.

use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Switches to the terminal's second screen, and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The terminal that `usring top` draws on. All clones share one state.
#[derive(Clone)]
pub struct Screen(Arc<Mutex<State>>);

/// Whether `usring top` has taken over the terminal. One thread draws, and another thread restores
/// the terminal at a signal. The lock of this state lets only one of them write at a time.
enum State {
    NotTaken,
    /// The terminal's settings before `usring top` changed them. `None`: standard input is no
    /// terminal.
    Taken(Option<Termios>),
    GivenBack,
}

impl Screen {
    /// Returns the screen of standard output, as it is. `None`: standard output is no terminal.
    pub fn of_output() -> Option<Screen> {
        stdout().is_terminal().then(|| Screen(Arc::new(Mutex::new(State::NotTaken))))
    }

    /// Takes over the terminal, unless it was given back.
    pub fn take_over(&self) {
        let mut state = self.lock();
        if !matches!(*state, State::NotTaken) {
            return;
        }
        let before = tcgetattr(stdin().as_fd()).ok();
        if let Some(before) = &before {
            let mut settings = before.clone();
            // The terminal passes each key on at once and does not show it. ^C stays a signal. The
            // keys for suspending (^Z) and quitting (^\) are off, because they would leave this
            // screen to the shell.
            settings.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
            for key in [SpecialCharacterIndices::VSUSP, SpecialCharacterIndices::VQUIT] {
                settings.control_chars[key as usize] = nix::libc::_POSIX_VDISABLE;
            }
            let _ = tcsetattr(stdin().as_fd(), SetArg::TCSANOW, &settings);
        }
        let _ = write(ENTER);
        *state = State::Taken(before);
    }

    /// Shows a text while the terminal is taken over. Cuts the lines below the screen, and the ends
    /// of long lines. Fails if the terminal is gone.
    pub fn show(&self, text: &str) -> io::Result<()> {
        let (rows, columns) = size();
        let mut drawn = String::from("\x1b[H");
        for line in text.lines().take(rows) {
            let line: String = line.chars().take(columns).collect();
            // The escape sequence erases the screen's row before the line is written. If it came
            // after a line that fills the row, it would erase the line's last character.
            let _ = write!(drawn, "\x1b[K{line}\r\n");
        }
        // A line break after the screen's last row would scroll the screen, so it is removed.
        if text.lines().count() >= rows {
            drawn.truncate(drawn.len() - 2);
        } else {
            drawn.push_str("\x1b[J");
        }
        let state = self.lock();
        if matches!(*state, State::Taken(_)) { write(&drawn) } else { Ok(()) }
    }

    /// Gives the terminal back. Further calls do nothing.
    pub fn restore(&self) {
        let state = std::mem::replace(&mut *self.lock(), State::GivenBack);
        let State::Taken(before) = state else { return };
        if let Some(before) = before {
            let _ = tcsetattr(stdin().as_fd(), SetArg::TCSANOW, &before);
        }
        let _ = write(LEAVE);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut output = stdout();
    output.write_all(text.as_bytes()).and_then(|()| output.flush())
}

/// Returns the terminal's rows and columns; 24 and 80 if it does not say.
fn size() -> (usize, usize) {
    terminal_size::terminal_size().map_or((24, 80), |(columns, rows)| (rows.0.into(), columns.0.into()))
}
