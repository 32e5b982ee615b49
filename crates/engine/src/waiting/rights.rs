//! The rights with which a request is carried out. A request never has more rights than the thread
//! that submits it. A request also has the root, the working directory, the umask and the
//! namespaces of that thread.
//!
//! On Linux a new thread gets all of these from the thread that creates it. So workers come in
//! groups. A thread of the program creates the group's *anchor*, and the anchor creates the group's
//! workers. usring's copy of an SQE names the request's group in place of the personality.
//!
//! - As long as all threads of the program have equal credentials (`sys::credentials`), there is
//!   only the common group, number 0. The ring watcher creates the common group's workers. The ring
//!   watcher applies every change of credentials to itself. Each change begins a new generation of
//!   the common group. A worker requested in one generation that starts in a later one takes no
//!   jobs.
//! - Just before the threads' credentials begin to differ, the common group gets an anchor, for
//!   requests submitted until then. Afterwards each thread that submits has a group of its own,
//!   until the thread's credentials change again. A group is retired when no submitting thread, no
//!   job, and no ring refers to the group any more. The group's workers and anchor then end.
//! - A registered personality is a group, whose anchor the registering thread creates.
//!
//! Order of a change of credentials: pending workers have started → anchor has started → system
//! call → usring's service threads (such as the ring watcher) follow. The changing thread waits for
//! at most one second per step. A worker that starts too late takes no jobs.
//!
//! Neighbours: `workers` runs the jobs of all groups. `submission::issue` passes a request to a
//! worker of the request's group if the issuing thread has other rights.

use crate::request::{HAS_GROUP, Request};
use crate::waiting::tasks::{Action, Tasks};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::thread::{self, Credentials, ThreadId};
use usring_sys::thread_life::ThreadLife;
use usring_sys::{Errno, capability, credentials, futex, signals};

/// Number by which a request names its group.
pub(crate) type GroupNumber = u16;
const COMMON: GroupNumber = 0;
/// Group number of requests whose submitter could not be given a group.
const NO_GROUP: GroupNumber = u16::MAX;

/// A worker that the anchor (the thread that starts a group's workers) is about to start.
struct Spawn {
    life: Action,
    spawn_failed: Action,
}

/// State that a group's threads share. This state outlives the [`Group`] until the group's workers
/// and the group's anchor have ended.
pub(crate) struct GroupState {
    /// Number of the group's queues in the worker pool. No other group ever gets this number.
    pub serial: u32,
    /// The generation of a common group: the number of changes of credentials before the group was
    /// made. A worker that was started in another generation may have other rights, and takes no
    /// jobs. `None` for the group of a thread or of a personality.
    generation: Option<u32>,
    /// Futex words on which idle workers sleep: one for each of the group's two pools. Each queued
    /// job raises the word of its pool.
    pub job_futexes: [AtomicU32; 2],
    retired: AtomicBool,
    spawns: Mutex<Vec<Spawn>>,
    /// Futex word on which the anchor sleeps.
    wake_word: AtomicU32,
}

impl GroupState {
    /// Returns whether nothing refers to the [`Group`] any more, so that the group's threads have
    /// to end.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Returns whether the calling thread, a new worker of the group, was started with the group's
    /// rights. If not, the worker must take no jobs.
    pub fn has_group_rights(&self) -> bool {
        self.generation.is_none_or(|generation| credentials::generation_of_birth() == Some(generation))
    }

    fn wake(&self) {
        self.wake_word.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.wake_word, 1);
    }

    /// Runs the group's anchor, which starts workers until the group is retired.
    fn anchor(&self) {
        loop {
            let seen = self.wake_word.load(Ordering::SeqCst);
            let spawns = core::mem::take(&mut *self.spawns.lock());
            if spawns.is_empty() {
                if self.is_retired() {
                    return;
                }
                let _ = futex::wait(&self.wake_word, seen, None);
            }
            for Spawn { life, spawn_failed } in spawns {
                if thread::spawn("iou-wrk", Credentials::OfSpawn, life).is_err() {
                    spawn_failed();
                }
            }
        }
    }
}

/// A group of requests with equal rights. The threads that submit for the group refer to it. So do
/// the group's queued jobs, and the rings with the group's requests or personality. The group is
/// retired when the last reference is dropped.
pub(crate) struct Group {
    number: GroupNumber,
    pub state: Arc<GroupState>,
    has_anchor: Mutex<bool>,
}

impl Group {
    fn new(number: GroupNumber, generation: Option<u32>) -> Group {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let state = GroupState {
            serial: LAST.fetch_add(1, Ordering::Relaxed),
            generation,
            job_futexes: Default::default(),
            retired: AtomicBool::new(false),
            spawns: Mutex::new(Vec::new()),
            wake_word: AtomicU32::new(0),
        };
        Group { number, state: Arc::new(state), has_anchor: Mutex::new(false) }
    }

    /// Starts the group's anchor (the thread that starts its workers), with the rights of the
    /// calling thread. The new anchor first calls `begun`. Returns `false`, without calling
    /// `begun`, if the group already has an anchor.
    fn start_anchor_after(&self, begun: impl FnOnce() + Send + 'static) -> Result<bool, Errno> {
        let mut has_anchor = self.has_anchor.lock();
        if *has_anchor {
            return Ok(false);
        }
        let state = self.state.clone();
        let life = move || {
            begun();
            state.anchor();
        };
        thread::spawn("iou-anchor", Credentials::OfSpawn, Box::new(life))?;
        *has_anchor = true;
        Ok(true)
    }

    fn start_anchor(&self) -> Result<bool, Errno> {
        self.start_anchor_after(|| ())
    }

    /// Makes the group's anchor (the thread that starts its workers) start a worker. If the common
    /// group has no anchor, the ring watcher starts the worker. Calls `spawn_failed` if the worker
    /// cannot be started.
    pub fn start_worker(&self, tasks: &'static Tasks, life: Action, spawn_failed: Action) {
        if *self.has_anchor.lock() {
            self.state.spawns.lock().push(Spawn { life, spawn_failed });
            self.state.wake();
        } else if self.number == COMMON {
            tasks.start_worker(life, spawn_failed);
        } else {
            spawn_failed();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.state.retired.store(true, Ordering::Release);
        self.state.wake();
        for futex in &self.state.job_futexes {
            futex.fetch_add(1, Ordering::SeqCst);
            futex::wake(futex, u32::MAX);
        }
    }
}

/// A thread of the program with a group of its own. Valid until the thread's credentials change.
struct Member {
    id: u32,
    thread: ThreadId,
    life: ThreadLife,
    changes: u32,
    group: Arc<Group>,
}

impl Member {
    /// Returns whether the calling thread is this member, with unchanged credentials. If the
    /// member's thread has ended, another thread may have its thread-local block and thread ID by
    /// now. So `life` has to say whether the member's thread has ended. Makes two system calls.
    fn is_caller(&self) -> bool {
        self.thread == thread::current()
            && self.changes == credentials::changes_of(self.id)
            && self.id == signals::thread_id()
            && !self.life.has_ended()
    }
}

#[derive(Default)]
struct GroupsState {
    common: Option<Arc<Group>>,
    /// The common group from just before the threads' credentials began to differ. This group has
    /// an anchor: a thread that keeps the rights of that time, and starts the group's workers.
    last_alike: Option<Arc<Group>>,
    /// The threads that have a group of their own, by thread id.
    members: BTreeMap<u32, Arc<Member>>,
    /// Generation and group of the last personality that was registered while all threads had equal
    /// credentials. Until the next change of credentials, this group has the rights of the common
    /// group. (If usring cannot observe changes, it never treats the two groups as equal.)
    personality: (u32, Weak<Group>),
    numbers: BTreeMap<GroupNumber, Weak<Group>>,
    last_number: GroupNumber,
}

/// All groups of requests of the process.
#[derive(Default)]
pub(crate) struct Groups {
    state: Mutex<GroupsState>,
}

static GROUPS: PerProcess<Groups> = PerProcess::new();

/// Returns the groups of this process; creates them on first use.
pub(crate) fn groups() -> &'static Groups {
    GROUPS.get_or_make(Groups::default)
}

/// Whenever the number of members (threads with a group of their own) reaches a multiple of this,
/// the members whose threads have ended are dropped.
const MANY_MEMBERS: usize = 64;

impl Groups {
    /// Returns the common group, which all threads use while their credentials are equal. Each
    /// change of credentials makes a new common group: requests queued in the old group keep the
    /// old rights.
    ///
    /// If the threads' credentials differ now, returns the common group from just before they began
    /// to differ. `None`: there is no such group.
    pub fn common(&self) -> Option<Arc<Group>> {
        if credentials::may_differ() {
            let state = self.state.lock();
            let is_last = |group: &&Arc<Group>| group.state.generation == Some(credentials::last_alike());
            return state.last_alike.as_ref().filter(is_last).cloned();
        }
        Some(self.present_common())
    }

    fn present_common(&self) -> Arc<Group> {
        let generation = Some(credentials::generation());
        let mut state = self.state.lock();
        if let Some(group) = &state.common
            && group.state.generation == generation
        {
            return group.clone();
        }
        let fresh = Arc::new(Group::new(COMMON, generation));
        let old = state.common.replace(fresh.clone());
        drop(state);
        drop(old);
        fresh
    }

    /// Gives the common group an anchor (a thread that starts its workers), because the threads'
    /// credentials are about to differ. The ring watcher calls this function while it still has the
    /// rights that all threads share. So the workers of requests submitted until now get these
    /// rights. Calls `done` when the anchor has started, or if no anchor can be started.
    pub fn anchor_common(&self, done: impl Fn() + Send + Clone + 'static) {
        if credentials::may_differ() {
            // Another thread has already changed its credentials. `last_alike` is not changed: it
            // is the common group from before that change.
            return done();
        }
        let group = self.present_common();
        let begun = {
            let done = done.clone();
            move || {
                // The anchor drops all capabilities that are not effective, so that it cannot make
                // them effective later.
                let _ = capability::keep_effective_only();
                done();
            }
        };
        let started = group.start_anchor_after(begun);
        if started.is_ok() {
            let old = self.state.lock().last_alike.replace(group);
            drop(old);
        }
        if started != Ok(true) {
            done();
        }
    }

    /// Returns the calling thread's [`Member`] entry. If the thread has none, makes one, with a new
    /// group that has an anchor.
    ///
    /// Errors: `EAGAIN` if there are too many groups or threads; `ENOMEM`.
    fn of_this_thread(&self) -> Result<Arc<Member>, Errno> {
        loop {
            let member = match self.caller() {
                Some(member) => member,
                None => self.enter()?,
            };
            // The anchor, a new thread, gets the credentials that this thread has now. These
            // credentials may have changed since the `Member` entry was made: libc's setuid(2)
            // sends a signal to all threads, and its handler changes their credentials. The entry
            // is then out of date, and the loop makes another one.
            if !member.group.start_anchor()? || credentials::changes_of(member.id) == member.changes {
                return Ok(member);
            }
        }
    }

    /// Returns the calling thread's [`Member`] entry. `None`: there is none, or the thread's
    /// credentials have changed since the entry was made.
    fn caller(&self) -> Option<Arc<Member>> {
        let id = signals::thread_id();
        let member = self.state.lock().members.get(&id).cloned()?;
        member.is_caller().then_some(member)
    }

    /// Creates a new group, and the calling thread's [`Member`] entry with that group.
    fn enter(&self) -> Result<Arc<Member>, Errno> {
        let id = signals::thread_id();
        let changes = credentials::changes_of(id);
        let life = ThreadLife::of_this_thread();
        let mut state = self.state.lock();
        let group = state.new_group()?;
        let member = Arc::new(Member { id, thread: thread::current(), life, changes, group });
        let before = state.members.insert(id, member.clone());
        drop(state);
        drop(before);
        Ok(member)
    }

    /// Returns whether the calling thread has the rights of the group with this number. `true` for
    /// the thread's own group. Also `true` for the group of a personality, if the personality has
    /// the rights that all threads share.
    fn has_rights_of(&self, number: GroupNumber) -> bool {
        if self.caller().is_some_and(|member| member.group.number == number) {
            return true;
        }
        let state = self.state.lock();
        let (generation, personality) = &state.personality;
        credentials::are_alike()
            && *generation == credentials::generation()
            && personality.upgrade().is_some_and(|group| group.number == number)
            && credentials::has_common()
    }

    /// Returns the group for a personality that the calling thread registers.
    fn of_personality(&self) -> Result<Arc<Group>, Errno> {
        if credentials::may_differ() {
            return Ok(self.of_this_thread()?.group.clone());
        }
        let generation = credentials::generation();
        let mut state = self.state.lock();
        if credentials::are_alike()
            && state.personality.0 == generation
            && let Some(group) = state.personality.1.upgrade()
        {
            drop(state);
            group.start_anchor()?;
            return Ok(group);
        }
        let group = state.new_group()?;
        state.personality = (generation, Arc::downgrade(&group));
        drop(state);
        group.start_anchor()?;
        Ok(group)
    }

    fn find(&self, number: GroupNumber) -> Option<Arc<Group>> {
        self.state.lock().numbers.get(&number).and_then(Weak::upgrade)
    }

    /// Retires the groups whose rights no thread of the program has any more. The ring watcher
    /// calls this function after a thread has changed its credentials.
    pub fn sweep(&self) {
        let mut state = self.state.lock();
        let generation = Some(credentials::generation());
        let common = state.common.take_if(|group| group.state.generation != generation);
        let left = state.take_stale(|id, member| credentials::changes_of(id) == member.changes);
        drop(state);
        drop((common, left));
    }
}

impl GroupsState {
    fn new_group(&mut self) -> Result<Arc<Group>, Errno> {
        if self.members.len() >= MANY_MEMBERS && self.members.len().is_multiple_of(MANY_MEMBERS) {
            // The threads of the members taken here have ended. Their groups can be dropped under
            // the lock, because dropping a group only wakes its anchor and idle workers.
            drop(self.take_stale(|_, member| !member.life.has_ended()));
        }
        self.numbers.retain(|_, group| group.strong_count() > 0);
        for _ in 0..NO_GROUP {
            self.last_number = if self.last_number + 1 == NO_GROUP { 1 } else { self.last_number + 1 };
            if !self.numbers.contains_key(&self.last_number) {
                let group = Arc::new(Group::new(self.last_number, None));
                self.numbers.insert(self.last_number, Arc::downgrade(&group));
                return Ok(group);
            }
        }
        Err(Errno::EAGAIN)
    }

    fn take_stale(&mut self, keeps: impl Fn(u32, &Member) -> bool) -> Vec<Arc<Member>> {
        let stale: Vec<u32> =
            self.members.iter().filter(|(id, member)| !keeps(**id, member)).map(|(id, _)| *id).collect();
        stale.into_iter().filter_map(|id| self.members.remove(&id)).collect()
    }
}

/// The groups of a ring's requests and personalities.
#[derive(Default)]
pub(crate) struct RingRights {
    /// The groups of the ring's requests, and how many of the requests each group has.
    held: BTreeMap<GroupNumber, (Arc<Group>, u64)>,
    /// Registered personalities, by their numbers on this ring.
    personalities: BTreeMap<u16, Arc<Group>>,
    last_personality: u16,
    /// Group of the ring's creator, if this ring uses the SQ thread of another ring.
    creator: Option<Arc<Group>>,
    /// The thread that last submitted while the threads' credentials differed. A weak reference, so
    /// that the ring keeps no group alive.
    last: Weak<Member>,
    /// Group of the submission that is under way. `None`: no submission is under way, or the
    /// threads' credentials do not differ. `Some(None)`: the submitting thread could not be given a
    /// group.
    submitter: Option<Option<Arc<Group>>>,
}

impl RingRights {
    /// Returns whether the ring counts its requests by group.
    #[inline(always)]
    pub fn count_requests(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the calling thread's group, if this thread was also the last to submit. Unlike a
    /// search of [`Groups`], takes no lock.
    fn group_of_last_submitter(&self) -> Option<Arc<Group>> {
        let last = self.last.upgrade()?;
        last.is_caller().then(|| last.group.clone())
    }

    fn join(&mut self, group: &Arc<Group>) {
        self.held.entry(group.number).or_insert_with(|| (group.clone(), 0)).1 += 1;
    }

    /// Begins a submission while the threads' credentials differ. The submitted requests join the
    /// calling thread's group, or that of the ring's creator ([`Self::submit_for_creator`]).
    /// `outstanding`: number of the ring's requests that have not completed yet.
    #[cold]
    pub fn begin_submission(&mut self, outstanding: u64) {
        if outstanding == 0 {
            self.held.clear();
        }
        let mut group = self.creator.clone().or_else(|| self.group_of_last_submitter());
        if group.is_none()
            && let Ok(member) = groups().of_this_thread()
        {
            self.last = Arc::downgrade(&member);
            group = Some(member.group.clone());
        }
        // If the thread has no group, requests of this submission that need a worker fail with
        // `EAGAIN`.
        self.submitter = Some(group);
    }

    /// Ends a submission that [`Self::begin_submission`] began.
    #[cold]
    pub fn end_submission(&mut self) {
        self.submitter = None;
    }

    /// Puts a prepared request into the group (requests with equal rights) of the submitting
    /// thread, unless [`Self::join_personality`] has put it into a personality's group.
    #[inline(always)]
    pub fn join_submitters_group(&mut self, request: &mut Request) {
        if let Some(group) = &self.submitter
            && !request.has_flag(HAS_GROUP)
        {
            let group = group.clone();
            request.sqe.personality = group.as_ref().map_or(NO_GROUP, |group| group.number);
            request.sqe.flags |= HAS_GROUP;
            if let Some(group) = group {
                self.join(&group);
            }
        }
    }

    /// Puts a request into the group of the personality that its SQE names.
    ///
    /// Error: `EINVAL` if the ring has no such personality.
    #[cold]
    pub fn join_personality(&mut self, request: &mut Request) -> Result<(), Errno> {
        let group = self.personalities.get(&request.sqe.personality).cloned().ok_or(Errno::EINVAL)?;
        request.sqe.flags |= HAS_GROUP;
        request.sqe.personality = group.number;
        self.join(&group);
        Ok(())
    }

    /// Removes a completed request from its group. After the group's last request on this ring, the
    /// ring drops its reference to the group.
    #[cold]
    pub fn leave(&mut self, request: &Request) {
        let number = request.sqe.personality;
        if !request.has_flag(HAS_GROUP) || number == COMMON {
            return;
        }
        if let Some((_, count)) = self.held.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&number);
            }
        }
    }

    /// Returns whether the calling thread's rights differ from those of the request's group. If
    /// they do, the thread must not issue the request.
    pub fn is_foreign(&self, request: &Request) -> bool {
        let number = request.sqe.personality;
        if !request.has_flag(HAS_GROUP) {
            return false;
        }
        if number == COMMON {
            return credentials::may_differ() || !credentials::has_common();
        }
        // If this ring uses another ring's SQ thread, the SQ thread submits for the group of this
        // ring's creator. The SQ thread itself has other rights.
        let submitter = self.submitter.as_ref().and_then(Option::as_ref);
        let submits = submitter.is_some_and(|group| group.number == number) && self.creator.is_none();
        let is_own = || self.group_of_last_submitter().is_some_and(|group| group.number == number);
        !submits && !is_own() && !groups().has_rights_of(number)
    }

    /// Makes all requests of the ring run with the calling thread's rights, no matter which thread
    /// submits them.
    pub fn submit_for_creator(&mut self) -> Result<(), Errno> {
        if credentials::may_differ() {
            self.creator = Some(groups().of_this_thread()?.group.clone());
        }
        Ok(())
    }

    /// Registers the calling thread's credentials as a personality. Returns the personality's
    /// number on this ring.
    ///
    /// Errors: `EBUSY` if no number is free; `EAGAIN` if there are too many groups; `EAGAIN` or
    /// `ENOMEM` if the thread that keeps the credentials (the group's anchor) cannot be started.
    pub fn register(&mut self) -> Result<u32, Errno> {
        let group = groups().of_personality()?;
        for _ in 0..u16::MAX {
            self.last_personality = self.last_personality.checked_add(1).unwrap_or(1);
            if !self.personalities.contains_key(&self.last_personality) {
                self.personalities.insert(self.last_personality, group);
                return Ok(u32::from(self.last_personality));
            }
        }
        Err(Errno::EBUSY)
    }

    /// Removes a personality. Requests that were submitted with the personality keep its rights.
    ///
    /// Error: `EINVAL` if the ring has no personality with this number.
    pub fn unregister(&mut self, number: u32) -> Result<(), Errno> {
        let number = u16::try_from(number).map_err(|_| Errno::EINVAL)?;
        self.personalities.remove(&number).map(drop).ok_or(Errno::EINVAL)
    }

    /// Drops the references to all groups, because the ring is closed.
    pub fn forget(&mut self) {
        *self = RingRights::default();
    }
}

/// Returns the group whose workers have to run a request; `None`: the group no longer exists.
pub(crate) fn group_of(request: &Request) -> Option<Arc<Group>> {
    if !request.has_flag(HAS_GROUP) || request.sqe.personality == COMMON {
        return groups().common();
    }
    groups().find(request.sqe.personality)
}
