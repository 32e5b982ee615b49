//! A time limit for exchanges of messages with a back end. A back end that is stopped, or that
//! serves another front end, accepts the connection but never answers. A timeout of the socket does
//! not help, because the `vhost` crate would then repeat the read. So a watching thread shuts the
//! socket down when an exchange has taken [`EXCHANGE_TIMEOUT`], and the exchange fails.

use super::connection::{Failure, duplicate};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use usring_sys::{Errno, socket, thread};

/// How long the back end may take for one exchange of messages.
pub const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two attempts to connect to a listener whose queue is full.
const RETRY: Duration = Duration::from_millis(20);

const UNANSWERED: &str =
    "does not answer within 5 s; it may be stopped, or serve another front end: it serves only one";

/// Connects to the socket at `path`. If the listener's queue is full, repeats the attempt for up to
/// [`EXCHANGE_TIMEOUT`].
pub fn connect(path: &Path) -> Result<UnixStream, Failure> {
    let unreachable = |error: std::io::Error| format!("cannot be reached ({})", words(&error));
    let of = |error: Errno| unreachable(std::io::Error::from_raw_os_error(-error.negative()));
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u32;
    let opened = socket::open(libc::AF_UNIX, kind, 0).map_err(of)?;
    let address = address(path).map_err(of)?;
    let start = Instant::now();
    loop {
        match socket::connect_now(opened.number(), &address) {
            Ok(()) => break,
            Err(Errno::EAGAIN) if start.elapsed() < EXCHANGE_TIMEOUT => std::thread::sleep(RETRY),
            Err(Errno::EAGAIN) => return Err(UNANSWERED.into()),
            Err(error) => return Err(of(error)),
        }
    }
    duplicate(opened.number()).map(|file| UnixStream::from(OwnedFd::from(file))).map_err(unreachable)
}

/// Returns the text of a system error in the form that the launcher's messages have: `ENOENT: no
/// such file or directory`. An error that does not come from a system call keeps its own text.
pub fn words(error: &std::io::Error) -> String {
    let Some(number) = error.raw_os_error() else { return error.to_string() };
    let name = Errno::new(number.cast_unsigned());
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or_default();
    let (first, rest) = text.split_at(text.len().min(1));
    format!("{name}: {}{rest}", first.to_lowercase())
}

/// Returns the bytes of a `struct sockaddr_un`. Error: `ENAMETOOLONG` if the path has more than 107
/// bytes.
fn address(path: &Path) -> Result<Vec<u8>, Errno> {
    const MOST_PATH_BYTES: usize = 107;
    let path = path.as_os_str().as_bytes();
    if path.len() > MOST_PATH_BYTES {
        return Err(Errno::ENAMETOOLONG);
    }
    let family = ((libc::AF_UNIX & 0xffff) as libc::sa_family_t).to_ne_bytes();
    Ok([&family[..], path, b"\0"].concat())
}

/// Limits how long each exchange of a connection takes. At most one exchange runs at a time.
pub struct ExchangeTimeout {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

struct Shared {
    socket: UnixStream,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Deadline of the exchange that runs now. `None` if none runs.
    deadline: Option<Instant>,
    has_expired: bool,
    is_over: bool,
}

impl ExchangeTimeout {
    pub fn with(socket: &UnixStream) -> Result<ExchangeTimeout, Failure> {
        let failed = |error: std::io::Error| format!("cannot be watched ({})", words(&error));
        let socket = socket.try_clone().map_err(failed)?;
        let shared = Arc::new(Shared { socket, state: Mutex::default(), changed: Condvar::new() });
        let watched = Arc::clone(&shared);
        let watcher = spawn("vhost-timeout", move || watched.watch()).map_err(failed)?;
        Ok(ExchangeTimeout { shared, watcher: Some(watcher) })
    }

    /// Runs an exchange of messages and returns its result. If the exchange fails because of the
    /// time limit, the error says that the back end does not answer.
    pub fn during<T>(&self, exchange: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        self.shared.set(Some(Instant::now() + EXCHANGE_TIMEOUT));
        let outcome = exchange();
        let has_expired = self.shared.set(None);
        outcome.map_err(|failure| if has_expired { UNANSWERED.into() } else { failure })
    }
}

impl Drop for ExchangeTimeout {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_one();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the deadline of an exchange, or removes the deadline. Returns whether a deadline of
    /// this connection has ever passed.
    fn set(&self, deadline: Option<Instant>) -> bool {
        let mut state = self.lock();
        state.deadline = deadline;
        self.changed.notify_one();
        state.has_expired
    }

    fn watch(&self) {
        let mut state = self.lock();
        while !state.is_over {
            let left = state.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            state = match left {
                Some(Duration::ZERO) => {
                    (state.deadline, state.has_expired) = (None, true);
                    let _ = self.socket.shutdown(Shutdown::Both);
                    state
                }
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// Starts a thread with all signals blocked, so that no signal handler of the program runs on it.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    let _closed = thread::close_signals();
    std::thread::Builder::new().name(name.into()).spawn(work)
}
