//! Tasks for the ring watcher: threads that it has to start, and actions that need a thread without
//! locks. If a call of the program needs a worker, the ring watcher starts the worker, because the
//! program may make the call in a signal handler or inside malloc. `driving::ring_watcher` is the
//! ring watcher's thread. It sleeps until the wake eventfd is readable.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use usring_sys::clock::Clock;
use usring_sys::descriptor::{self, OwnedDescriptor};
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::set_once::SetOnce;
use usring_sys::thread::Credentials;
use usring_sys::{Errno, credentials, eventfd, futex, thread};

/// A function that another thread runs once.
pub(crate) type Action = Box<dyn FnOnce() + Send>;

/// A task for the ring watcher.
enum Task {
    Spawn { name: &'static str, credentials: Credentials, life: Action, spawn_failed: Action },
    Run(Action),
}

/// The functions that prepare the ring watcher's thread, and undo the preparation if the thread
/// cannot be started.
pub(crate) struct Service {
    /// Makes the ring watcher's epoll set and state. Returns the function that its thread runs.
    pub prepare: fn(&Arc<Mailbox>) -> Result<Action, Errno>,
    /// Undoes `prepare`, because the thread could not be started.
    pub undo: fn(),
}

/// The functions that prepare the ring watcher. Set when the process makes its first ring: without
/// a ring there is nothing to watch.
static SERVICE: SetOnce<Service> = SetOnce::new();

/// Work that the ring watcher has to do before a thread changes its credentials. The fields are
/// atomic, because signal handlers read and write them.
#[derive(Default)]
struct Preparation {
    /// Number of requested workers and anchors (threads that start a group's workers) that have not
    /// started yet.
    spawns: AtomicU32,
    /// Whether the common group (`rights`: the group of all threads with equal credentials) needs
    /// an anchor, because the threads' credentials are about to differ.
    wants_anchor: AtomicBool,
    /// Futex word, raised when a requested thread has started or could not be started.
    done: AtomicU32,
}

impl Preparation {
    fn is_over(&self) -> bool {
        self.spawns.load(Ordering::Acquire) == 0 && !self.wants_anchor.load(Ordering::Acquire)
    }

    fn announce(&self) {
        self.done.fetch_add(1, Ordering::Release);
        futex::wake(&self.done, u32::MAX);
    }

    fn end_spawn(&self) {
        self.spawns.fetch_sub(1, Ordering::SeqCst);
        self.announce();
    }

    /// Waits until the ring watcher has started the requested threads, but for at most a second. A
    /// limit is needed, because the calling thread may hold a lock that the ring watcher needs.
    fn wait(&self) {
        let end = Clock::Monotonic.now() + credentials::ANSWER_TIMEOUT_NS;
        loop {
            let seen = self.done.load(Ordering::Acquire);
            let left = end.saturating_sub(Clock::Monotonic.now());
            if self.is_over() || left == 0 {
                return;
            }
            let _ = futex::wait(&self.done, seen, Some(left));
        }
    }
}

/// The tasks of this process's ring watcher.
#[derive(Default)]
pub(crate) struct Tasks {
    mailbox: Mutex<Option<Arc<Mailbox>>>,
    /// Descriptor number of the wake eventfd, plus 1; 0 while there is no ring watcher. A signal
    /// handler reads this word without taking `mailbox`'s lock ([`Tasks::note_change`]).
    wake_event: AtomicI32,
    /// Descriptor number of the wake eventfd, plus 1; a descendant of the process wakes this ring
    /// watcher by it. 0 if descendants do not inherit the eventfd.
    kept_event: AtomicI32,
    /// Whether a thread of the program has changed its credentials since [`Tasks::take_change`] was
    /// last called.
    has_changed: AtomicBool,
    preparation: Preparation,
    /// The ring watcher's thread, as [`thread::current`] names it.
    thread: AtomicUsize,
}

static TASKS: PerProcess<Tasks> = PerProcess::new();

/// Returns the tasks of this process's ring watcher; makes the list on first use.
pub(crate) fn tasks() -> &'static Tasks {
    TASKS.get_or_make(Tasks::default)
}

/// The list of tasks, shared with the ring watcher.
pub(crate) struct Mailbox {
    /// The wake eventfd: readable while there are tasks to run.
    wake_event: OwnedDescriptor,
    tasks: Mutex<Vec<Task>>,
}

/// Wakes the ring watcher after usring has parked a duplicate of a program's file. A parked
/// duplicate stays open, because close(2) would drop the program's record locks on the file. The
/// ring watcher closes the duplicate when the program has no record locks on the file.
static WAKE: fn() = || tasks().wake();

static OBSERVER: credentials::Observer = credentials::Observer {
    before: |will_differ| {
        if let Some(tasks) = TASKS.get() {
            tasks.prepare_change(will_differ);
        }
    },
    after: || {
        if let Some(tasks) = TASKS.get() {
            tasks.note_change();
        }
    },
};

impl Tasks {
    /// Starts the ring watcher if it is not running; called when a ring is set up.
    pub fn start_for_ring(&'static self, service: &'static Service) -> Result<(), Errno> {
        SERVICE.set(service);
        self.start()
    }

    /// Starts the ring watcher if it is not running.
    ///
    /// Errors: `EAGAIN` if neither this process nor an ancestor has set up a ring; the errors of
    /// making the ring watcher's descriptors and of starting its thread.
    pub fn start(&'static self) -> Result<(), Errno> {
        self.mailbox().map(drop)
    }

    fn mailbox(&'static self) -> Result<Arc<Mailbox>, Errno> {
        let mut mailbox = self.mailbox.lock();
        if let Some(mailbox) = &*mailbox {
            return Ok(mailbox.clone());
        }
        let service = SERVICE.get().ok_or(Errno::EAGAIN)?;
        let wake_event = eventfd::create()?.into_private()?;
        let fresh = Arc::new(Mailbox { wake_event, tasks: Mutex::new(Vec::new()) });
        let watch = (service.prepare)(&fresh)?;
        self.wake_event.store(fresh.number() + 1, Ordering::Release);
        credentials::set_observer(&OBSERVER);
        descriptor::set_parked_hook(&WAKE);
        let life = move || {
            self.thread.store(thread::current().0, Ordering::Relaxed);
            watch();
        };
        if let Err(error) = thread::spawn("usring-watcher", Credentials::Following, Box::new(life)) {
            // The eventfd is about to be closed. Then the program may get a file under the
            // eventfd's number.
            self.wake_event.store(0, Ordering::Release);
            (service.undo)();
            return Err(error);
        }
        // A child that begins to use a ring of this process wakes the ring watcher by this eventfd.
        if descriptor::keep_in_children(fresh.number()) {
            self.kept_event.store(fresh.number() + 1, Ordering::Release);
        }
        *mailbox = Some(fresh.clone());
        Ok(fresh)
    }

    /// Makes the ring watcher start a thread; runs `spawn_failed` if the thread cannot be started.
    pub fn start_thread(
        &'static self,
        name: &'static str,
        credentials: Credentials,
        life: Action,
        spawn_failed: Action,
    ) {
        let Ok(mailbox) = self.mailbox() else { return spawn_failed() };
        mailbox.add(Task::Spawn { name, credentials, life, spawn_failed });
    }

    /// Makes the ring watcher start a worker of the common group (`rights`), with the credentials
    /// that all threads have now. Runs `spawn_failed` if the worker cannot be started.
    pub fn start_worker(&'static self, life: Action, spawn_failed: Action) {
        let preparation = &self.preparation;
        preparation.spawns.fetch_add(1, Ordering::SeqCst);
        // The worker reports its start from its own thread. By then the worker has its credentials,
        // so a change of the program's credentials no longer affects it.
        let life = move || (preparation.end_spawn(), life()).1;
        let spawn_failed = move || (preparation.end_spawn(), spawn_failed()).1;
        self.start_thread("iou-wrk", Credentials::OfSpawn, Box::new(life), Box::new(spawn_failed));
    }

    /// Returns whether the calling thread is the ring watcher. The ring watcher must not wait for a
    /// task that it has added: that task runs only after the current one.
    pub fn is_current(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == thread::current().0
    }

    /// Waits until the threads that were requested under the present credentials have started, but
    /// for at most a second. Called by a thread that is about to change its credentials, perhaps in
    /// a signal handler.
    ///
    /// `will_differ`: this change is the first by which the credentials of the program's threads
    /// differ. The ring watcher then also starts an anchor: a thread that keeps the present
    /// credentials (see `rights`).
    fn prepare_change(&self, will_differ: bool) {
        if will_differ {
            self.preparation.wants_anchor.store(true, Ordering::SeqCst);
        }
        if !self.preparation.is_over() && self.signal() && !self.is_current() {
            self.preparation.wait();
        }
    }

    /// Makes the ring watcher retire the groups whose rights no thread has any more. Callable in a
    /// signal handler.
    fn note_change(&self) {
        self.has_changed.store(true, Ordering::Release);
        self.signal();
    }

    /// Returns whether a thread has changed its credentials since the last call.
    pub fn take_change(&self) -> bool {
        self.has_changed.swap(false, Ordering::Acquire)
    }

    /// If an anchor of the common group (`rights`) is wanted, clears `wants_anchor`, and returns a
    /// function to call once the anchor has started. `None`: no anchor is wanted.
    pub fn take_anchor_wish(&'static self) -> Option<impl Fn() + Send + Clone + 'static> {
        let preparation = &self.preparation;
        if !preparation.wants_anchor.load(Ordering::Acquire) {
            return None;
        }
        // The anchor is counted in `spawns` before `wants_anchor` is cleared. In the other order,
        // [`Preparation::wait`] could see neither of them, and return too early.
        preparation.spawns.fetch_add(1, Ordering::SeqCst);
        preparation.wants_anchor.store(false, Ordering::SeqCst);
        Some(|| preparation.end_spawn())
    }

    /// Wakes the ring watcher; callable in a signal handler. Returns `false` if there is no ring
    /// watcher.
    fn signal(&self) -> bool {
        let number = self.wake_event.load(Ordering::Acquire);
        if number > 0 {
            eventfd::signal(number - 1);
        }
        number > 0
    }

    /// Returns the descriptor number by which descendants of this process wake its ring watcher. −1
    /// if descendants cannot wake it.
    pub fn number_for_children(&self) -> i32 {
        self.kept_event.load(Ordering::Acquire) - 1
    }

    /// Wakes the ring watcher; starts it if there is none.
    pub fn wake(&'static self) {
        if let Ok(mailbox) = self.mailbox() {
            eventfd::signal(mailbox.number());
        }
    }

    /// Makes the ring watcher run an action soon. At that time, the ring watcher holds no lock.
    pub fn run(&'static self, action: Action) {
        if let Ok(mailbox) = self.mailbox() {
            mailbox.add(Task::Run(action));
        }
    }
}

impl Mailbox {
    /// Returns the number of the wake eventfd.
    pub fn number(&self) -> i32 {
        self.wake_event.number()
    }

    fn add(&self, task: Task) {
        self.tasks.lock().push(task);
        eventfd::signal(self.number());
    }

    /// Empties the wake eventfd. The ring watcher calls this function before it takes the tasks.
    pub fn drain(&self) {
        eventfd::drain(self.number());
    }

    /// Runs all tasks of the list. Only the ring watcher calls this function.
    pub fn run(&self) {
        let tasks = core::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            match task {
                Task::Run(action) => action(),
                Task::Spawn { name, credentials, life, spawn_failed } => {
                    if thread::spawn(name, credentials, life).is_err() {
                        spawn_failed();
                    }
                }
            }
        }
    }
}
