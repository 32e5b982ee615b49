//! The control plane of a vhost-user device. It connects to the back end, allocates queues to
//! users, and reconnects. Requests do not pass through this crate.
//!
//! - One thread (`watcher`) watches the connection.
//! - A thread that asks for a queue, or that shares memory, sends the messages to the back end
//!   itself. Meanwhile it holds the lock of `State`.
//! - When a new back end has answered, the control plane raises the generation in the arena (the
//!   memory of all queues). The queues' users read the generation there, and so notice the new back
//!   end: see [`usring_device::driver::vhost_user::generation`].
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

mod connection;
mod exchange_timeout;
mod record;

use connection::{Connection, Failure, Region, Signals, duplicate};
use record::Record;
use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use usring_device::driver::vhost_user::arena::{Arena, BASE, Parameters};
use usring_device::driver::vhost_user::{Options, generation};
use usring_device::{QueueGrant, SharedRegion, Supply};
use usring_sys::Errno;
use usring_sys::descriptor::{OwnedDescriptor, duplicate_private};
use usring_sys::width;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Maximum number of queues that usring uses if the device's text has no `queues=`. Each queue
/// takes address space, and in some back ends a thread.
const USUAL_QUEUES: u32 = 16;

/// Milliseconds between two attempts to reconnect, or to free a returned queue.
const RETRY_MS: u16 = 100;

/// Maximum time that a thread that returns a queue waits for the queue's requests to complete.
/// After this time, the watcher thread waits for them instead. The queue stays allocated until they
/// have completed.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Maximum time that a user that asks for a queue waits for a queue that another user is returning.
const QUEUE_WAIT: Duration = Duration::from_secs(2);

/// First address of memory that is shared after the arena. It lies above the addresses of all
/// arenas.
const REGIONS: u64 = BASE * 2;

/// A function that receives messages for the user.
pub type Report = Box<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;

/// A connected device. Dropping it closes the connection. Requests that are in flight at that
/// moment fail with EIO.
pub struct VhostUser {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

struct Shared {
    socket: String,
    reconnect: bool,
    more_queues: &'static str,
    report: Report,
    arena: Arena,
    parameters: Parameters,
    /// Eventfd that wakes the watcher thread. A queue's user signals it after the user has laid out
    /// the queue's rings for a new back end. Threads of this process signal it for three reasons:
    /// the device is dropped, the connection is lost, or a returned queue cannot be freed yet.
    wake: EventFd,
    /// Eventfd that the back end signals when it finds a queue broken.
    error: EventFd,
    state: Mutex<State>,
}

struct State {
    connection: Option<Connection>,
    queues: Vec<Option<Queue>>,
    /// Memory that is shared with the back end: slot 0 holds the arena, the later slots hold memory
    /// that drivers have registered.
    regions: Vec<Option<Region>>,
    next_address: u64,
    record: Option<Record>,
    is_over: bool,
    has_reported_busy: bool,
    /// Reason why the last attempt to reconnect failed. The user gets a message only if the reason
    /// changes.
    last_failure: String,
}

/// A queue that is allocated to a user (a queue pair in some process).
struct Queue {
    kick: EventFd,
    call: EventFd,
    /// Whether the present back end has started this queue.
    is_started: bool,
    is_returned: bool,
}

impl fmt::Debug for VhostUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VhostUser").field("socket", &self.shared.socket).finish_non_exhaustive()
    }
}

impl VhostUser {
    /// Connects to the back end. `report` receives messages for the user.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the back end.
    pub fn connect(options: &Options<'_>, report: Report) -> Result<VhostUser, String> {
        let socket = options.socket.to_owned();
        let shared =
            Shared::connect(options, report).map_err(|failure| format!("the back end on {socket} {failure}"))?;
        let shared = Arc::new(shared);
        let watched = Arc::clone(&shared);
        let watcher = exchange_timeout::spawn("vhost-user", move || watched.watch_connection())
            .map_err(|error| exchange_timeout::words(&error))
            .map_err(|why| format!("cannot start a thread for the back end on {socket} ({why})"))?;
        Ok(VhostUser { shared, watcher: Some(watcher) })
    }

    /// Returns the interface through which this device's drivers get queues and memory.
    pub fn supply(&self) -> Box<dyn Supply> {
        Box::new(Handle(Arc::clone(&self.shared)))
    }

    /// Returns how many reads and writes the allocated queues have made: first those whose data was
    /// copied, then those whose data was not.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.shared.lock();
        let used = (0..).zip(&state.queues).filter(|(_, queue)| queue.is_some());
        used.fold((0, 0), |(copied, direct), (index, _)| {
            let more = self.shared.arena.queue(index).transfer_counts(self.shared.arena.memory());
            (copied + u64::from(more.0), direct + u64::from(more.1))
        })
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        let _ = self.shared.wake.write(1);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

impl Shared {
    fn connect(options: &Options<'_>, report: Report) -> Result<Shared, Failure> {
        let cannot = |what: &'static str| move |error: Errno| format!("cannot be given {what} ({error})");
        let eventfd =
            || EventFd::new(EFD_NONBLOCK).map_err(|error| format!("usring cannot give it an eventfd ({error})"));
        let mut connection = Connection::open(options.socket, options.reconnect)?;
        let queues = match options.queues {
            Some(queues) if queues > connection.queues => {
                return Err(format!(
                    "offers {} of {queues} queues; start it with num-queues={queues}",
                    connection.queues
                ));
            }
            Some(queues) => queues,
            None => connection.queues.min(USUAL_QUEUES),
        };
        let parameters = connection.accept_features(queues)?;
        let arena = Arena::create(&parameters).map_err(cannot("memory"))?;
        let file =
            duplicate(arena.file().unwrap_or(-1)).map_err(|error| format!("cannot be given memory ({error})"))?;
        let region = Region { file, length: Arena::length(queues) as u64, address: BASE };
        let record = match connection.begin_record(queues)? {
            Some((description, file)) => Some(Record::new(description, file).map_err(cannot("its record back"))?),
            None => None,
        };
        connection.set_memory(std::iter::once(&region))?;
        let state = State {
            connection: Some(connection),
            queues: (0..queues).map(|_| None).collect(),
            regions: vec![Some(region)],
            next_address: REGIONS,
            record,
            is_over: false,
            has_reported_busy: false,
            last_failure: String::new(),
        };
        Ok(Shared {
            socket: options.socket.to_owned(),
            reconnect: options.reconnect,
            more_queues: options.more_queues,
            report,
            arena,
            parameters,
            wake: eventfd()?,
            error: eventfd()?,
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, what: fmt::Arguments<'_>) {
        (self.report)(format_args!("the back end on {} {what}", self.socket));
    }

    /// Runs the watcher thread, until the device is dropped.
    fn watch_connection(&self) {
        loop {
            self.wait();
            let _ = self.wake.read();
            let mut state = self.lock();
            if state.is_over {
                state.connection = None;
                return self.end(&mut state);
            }
            if state.connection.as_ref().is_some_and(|connection| has_hung_up(connection.socket().as_raw_fd())) {
                self.lose(&mut state, "has gone");
            }
            if self.error.read().is_ok() && state.connection.is_some() {
                self.lose(&mut state, "found a broken queue");
            }
            if state.connection.is_none() && self.reconnect {
                self.reconnect(&mut state);
            }
            self.start_queues(&mut state);
            self.take_back_queues(&mut state);
        }
    }

    /// Sleeps until the socket or an eventfd is readable, or until it is time to reconnect or to
    /// free a queue.
    fn wait(&self) {
        let state = self.lock();
        let socket = state.connection.as_ref().map_or(-1, |connection| connection.socket().as_raw_fd());
        let is_alone = state.connection.is_none() && self.reconnect && !state.is_over;
        let is_parting = state.queues.iter().flatten().any(|queue| queue.is_returned);
        drop(state);
        let watch = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut watched = [
            watch(self.wake.as_raw_fd(), libc::POLLIN),
            watch(self.error.as_raw_fd(), libc::POLLIN),
            watch(socket, libc::POLLRDHUP),
        ];
        let timeout = if is_alone || is_parting { i32::from(RETRY_MS) } else { -1 };
        // SAFETY: the array has three entries, as its count says. If another thread closes the
        // socket meanwhile, poll(2) at worst watches another file once.
        unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, timeout) };
    }

    /// Closes the connection, and reports `why` to the user. With the option `reconnect=on`, the
    /// device then waits for a new back end. Without the option, the device ends.
    fn lose(&self, state: &mut State, why: &str) {
        state.connection = None;
        state.queues.iter_mut().flatten().for_each(|queue| queue.is_started = false);
        if self.reconnect {
            self.say(format_args!("{why}; its requests wait until it returns"));
        } else {
            self.say(format_args!("{why}: its requests fail with EIO from now on (with reconnect=on they would wait)"));
            self.end(state);
        }
    }

    /// Ends the device: from now on every request fails with EIO.
    fn end(&self, state: &mut State) {
        self.arena.end();
        state.call_all();
    }

    /// Tries to connect to a new back end. Passes it the memory and the record of requests in
    /// flight that the previous back end had.
    fn reconnect(&self, state: &mut State) {
        let mut attempt = || {
            let mut connection = Connection::open(&self.socket, true)?;
            connection.accept_features_again(&self.parameters)?;
            if let Some(record) = &state.record
                && !connection.go_on_with_record(&record.description, &record.file)?
            {
                state.record = None;
            }
            connection.set_memory(state.regions.iter().flatten())?;
            Ok(connection)
        };
        match attempt() {
            Ok(connection) => {
                state.connection = Some(connection);
                state.last_failure.clear();
                self.arena.begin_generation();
                state.call_all();
                self.say(format_args!("is back"));
            }
            Err(failure) => {
                let failure: Failure = failure;
                // The user already has a message that the connection to the back end is lost. A
                // message that the back end cannot be reached would say nothing new.
                if failure != state.last_failure && !failure.starts_with("cannot be reached") {
                    self.say(format_args!("{failure}"));
                }
                state.last_failure = failure;
            }
        }
    }

    /// Starts the queues whose users have laid out the rings for the present back end.
    fn start_queues(&self, state: &mut State) {
        let State { connection: Some(connection), queues, .. } = state else { return };
        let generation = self.arena.generation();
        let mut outcome = Ok(());
        for (index, queue) in (0..).zip(queues.iter_mut()) {
            let area = self.arena.queue(index);
            if let Some(queue) = queue
                && !queue.is_started
                && !queue.is_returned
                && area.ready_generation(self.arena.memory()) == generation
            {
                let signals = Signals { kick: &queue.kick, call: &queue.call, error: &self.error };
                outcome = outcome.and_then(|()| connection.start_queue(index, &self.arena, area, &signals));
                queue.is_started = outcome.is_ok();
            }
        }
        if let Err(failure) = outcome {
            self.lose(state, &failure);
            let _ = self.wake.write(1);
        }
    }

    /// Frees the queues that their users have returned. A returned queue stays allocated while the
    /// back end still serves its requests.
    fn take_back_queues(&self, state: &mut State) {
        let State { connection, queues, record, .. } = state;
        let mut outcome = Ok(());
        for (index, place) in (0..).zip(queues.iter_mut()) {
            let Some(queue) = place else { continue };
            if !queue.is_returned {
                continue;
            }
            if let (Some(connection), true) = (connection.as_mut(), queue.is_started) {
                let (published, used) = self.arena.progress(self.arena.queue(index));
                if published != used {
                    continue;
                }
                outcome = outcome.and_then(|()| connection.stop_queue(index));
            }
            if let Some(record) = record {
                record.clear(index);
            }
            *place = None;
        }
        if let Err(failure) = outcome {
            self.lose(state, &failure);
            let _ = self.wake.write(1);
        }
    }

    fn grant(&self) -> Result<QueueGrant, Errno> {
        let start = Instant::now();
        loop {
            let mut state = self.lock();
            if generation::is_last(self.arena.generation()) {
                return Err(Errno::EIO);
            }
            self.take_back_queues(&mut state);
            if let Some(index) = state.queues.iter().position(Option::is_none) {
                return self.hand_out(&mut state, width::count(index));
            }
            let is_hopeless = !state.queues.iter().flatten().any(|queue| queue.is_returned);
            if is_hopeless || start.elapsed() > QUEUE_WAIT {
                if !std::mem::replace(&mut state.has_reported_busy, true) {
                    let count = state.queues.len();
                    self.say(format_args!(
                        "offers {count} queue{}, all in use; {}",
                        if count == 1 { "" } else { "s" },
                        self.more_queues
                    ));
                }
                return Err(Errno::EBUSY);
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn hand_out(&self, state: &mut State, index: u32) -> Result<QueueGrant, Errno> {
        let eventfd = || EventFd::new(EFD_NONBLOCK).map_err(|_| Errno::EMFILE);
        let queue = Queue { kick: eventfd()?, call: eventfd()?, is_started: false, is_returned: false };
        let grant = QueueGrant {
            index,
            kick: duplicate_private(queue.kick.as_raw_fd())?,
            call: duplicate_private(queue.call.as_raw_fd())?,
            ready: duplicate_private(self.wake.as_raw_fd())?,
            connection: None,
        };
        self.arena.reset_queue(self.arena.queue(index));
        state.queues[index as usize] = Some(queue);
        self.start_queues(state);
        Ok(grant)
    }

    fn take_back(&self, index: u32) {
        let start = Instant::now();
        loop {
            let mut state = self.lock();
            let Some(Some(queue)) = state.queues.get_mut(index as usize) else { return };
            queue.is_returned = true;
            self.take_back_queues(&mut state);
            if state.queues[index as usize].is_none() {
                return;
            }
            drop(state);
            if start.elapsed() > CLOSE_LIMIT {
                // The watcher continues to wait for the queue's requests.
                let _ = self.wake.write(1);
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn share(&self, file: i32, length: u64) -> Result<SharedRegion, Errno> {
        let mut state = self.lock();
        let state = &mut *state;
        let is_at_work = state.queues.iter().any(Option::is_some);
        let Some(connection) = &mut state.connection else { return Err(Errno::EAGAIN) };
        let count = state.regions.iter().flatten().count();
        // To share one more region with a back end without memory slots (CONFIGURE_MEM_SLOTS),
        // usring must send it all regions again. The protocol forbids that while a queue is
        // started.
        if count >= connection.most_regions() || (is_at_work && !connection.has_memory_slots()) {
            return Err(Errno::ENOSPC);
        }
        let address = state.next_address;
        let region = Region { file: duplicate(file).map_err(|_| Errno::EBADF)?, length, address };
        let outcome = if connection.has_memory_slots() {
            connection.add_memory(&region)
        } else {
            connection.set_memory(state.regions.iter().flatten().chain(std::iter::once(&region)))
        };
        if let Err(failure) = outcome {
            self.lose(state, &failure);
            let _ = self.wake.write(1);
            return Err(Errno::EIO);
        }
        state.next_address += length.next_multiple_of(1 << 21) + (1 << 21);
        let slot = state.regions.iter().position(Option::is_none).unwrap_or(state.regions.len());
        if slot == state.regions.len() {
            state.regions.push(None);
        }
        state.regions[slot] = Some(region);
        Ok(SharedRegion { slot: width::count(slot), address })
    }

    fn unshare(&self, slot: u32) {
        let mut state = self.lock();
        let state = &mut *state;
        // Slot 0 is the arena, which stays shared.
        let Some(place) = state.regions.get_mut(slot as usize).filter(|_| slot > 0) else { return };
        let (Some(region), Some(connection)) = (place.take(), &mut state.connection) else { return };
        // A back end without memory slots (CONFIGURE_MEM_SLOTS) keeps the memory until the
        // connection ends.
        if connection.has_memory_slots()
            && let Err(failure) = connection.remove_memory(&region)
        {
            self.lose(state, &failure);
            let _ = self.wake.write(1);
        }
    }
}

impl State {
    /// Signals the `call` eventfd of every queue. So each thread that waits for a completion wakes.
    fn call_all(&self) {
        self.queues.iter().flatten().for_each(|queue| {
            let _ = queue.call.write(1);
        });
    }
}

fn has_hung_up(socket: i32) -> bool {
    let mut watched = libc::pollfd { fd: socket, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: the kernel reads and writes one `pollfd`, as the count says.
    let count = unsafe { libc::poll(&mut watched, 1, 0) };
    count > 0 && watched.revents != 0
}

/// The [`Supply`] of drivers in the control plane's own process: gives them queues and memory
/// without messages between processes.
struct Handle(Arc<Shared>);

impl Supply for Handle {
    fn memory(&self, _: u64) -> Result<OwnedDescriptor, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn arena(&self) -> Result<OwnedDescriptor, Errno> {
        duplicate_private(self.0.arena.file().ok_or(Errno::EBADF)?)
    }

    fn queue(&self) -> Result<QueueGrant, Errno> {
        self.0.grant()
    }

    fn return_queue(&self, index: u32, _: Option<&usring_sys::unix_socket::Connection>) {
        self.0.take_back(index);
    }

    fn share(&self, file: i32, length: u64) -> Result<SharedRegion, Errno> {
        self.0.share(file, length)
    }

    fn unshare(&self, slot: u32) {
        self.0.unshare(slot);
    }
}
