//! The rights with which a request is carried out. A request never has more rights than the thread
//! that submits it. It also has that thread's root, directory, umask and namespaces.
//!
//! Linux hands all of these from a thread to the threads that it makes. So workers come in groups.
//! One thread of the program has made the group's *anchor*, and the anchor starts the workers. A
//! request names its group in its copy of the SQE, in place of the personality.
//!
//! - As long as all threads of the program have the same credentials (`sys::credentials`), there is
//!   only the common group, number 0. The ring watcher, which follows every change, starts its
//!   workers. Each change begins another generation of the group. A worker that starts in a later
//!   generation than the one that it was asked for takes no work.
//! - Just before the threads' credentials differ, the common group gets an anchor, for requests
//!   that were submitted until then. Afterwards each thread that submits has a group of its own,
//!   until its credentials change again. A group without submitters is retired: its idle workers
//!   and its anchor end. Its busy workers end when their queue is empty.
//! - A registered personality is a group, made by the thread that registers it.
//!
//! Order of a change: pending workers have started → anchor → the call → the service threads
//! follow. The changing thread waits at most a second for each step. A worker that starts too late
//! takes no work.
//!
//! Neighbours: `workers` runs the queues of all groups. `submission::issue` sends a request to its
//! group if a thread with other rights is about to issue it.

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

/// A group's number in its requests.
pub(crate) type GroupNumber = u16;
const COMMON: GroupNumber = 0;
/// Number of a driver that submits without a group.
const NO_GROUP: GroupNumber = u16::MAX;

/// A worker that the anchor is to start.
struct Spawn {
    life: Action,
    spawn_failed: Action,
}

/// State that a group's threads share. It lives longer than the [`Group`] if work is left.
pub(crate) struct GroupState {
    /// Names the group's queues. No other group ever has this number.
    pub serial: u32,
    /// For a common group, the generation whose rights its workers have; `None` for any other.
    generation: Option<u32>,
    /// Futex words of the idle workers, one per class; raised once per job.
    pub signals: [AtomicU32; 2],
    retired: AtomicBool,
    spawns: Mutex<Vec<Spawn>>,
    /// Futex word of the anchor.
    wake_word: AtomicU32,
}

impl GroupState {
    /// Returns whether the group has no submitters any more, so that its idle threads end.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Returns whether the calling thread, a new worker of the group, was started with the group's
    /// rights. If not, it must take no work.
    pub fn is_fit(&self) -> bool {
        self.generation.is_none_or(|generation| credentials::generation_of_birth() == Some(generation))
    }

    fn wake(&self) {
        self.wake_word.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.wake_word, 1);
    }

    /// The life of the group's anchor: starts workers, until the group is retired.
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

/// A group of requests with equal rights. Its submitters hold references to it. It retires when the
/// last of them is dropped.
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
            signals: Default::default(),
            retired: AtomicBool::new(false),
            spawns: Mutex::new(Vec::new()),
            wake_word: AtomicU32::new(0),
        };
        Group { number, state: Arc::new(state), has_anchor: Mutex::new(false) }
    }

    /// Gives the group an anchor with the rights of the calling thread. The new anchor begins by
    /// calling `begun`. Returns `false`, and calls nothing, if the group has one already.
    fn settle_and(&self, begun: impl FnOnce() + Send + 'static) -> Result<bool, Errno> {
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

    fn settle(&self) -> Result<bool, Errno> {
        self.settle_and(|| ())
    }

    /// Has the group's anchor start a worker (in the common group the ring watcher, if there is no
    /// anchor). Calls `spawn_failed` if the worker cannot be started.
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
        for signal in &self.state.signals {
            signal.fetch_add(1, Ordering::SeqCst);
            futex::wake(signal, u32::MAX);
        }
    }
}

/// A thread of the program and its group. It is valid until the thread's credentials change.
struct Member {
    id: u32,
    thread: ThreadId,
    life: ThreadLife,
    changes: u32,
    group: Arc<Group>,
}

impl Member {
    /// Returns whether this is the calling thread, with unchanged credentials. Takes two system
    /// calls. A later thread may have the same thread-local block, but then it has another id. A
    /// later thread with this id is recognised because the earlier one's life has ended.
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
    /// The common group from just before the threads' credentials differed. It has an anchor.
    last_alike: Option<Arc<Group>>,
    /// Threads with a group of their own, by thread id.
    members: BTreeMap<u32, Arc<Member>>,
    /// Generation and group of a personality that was registered while all threads had the same
    /// credentials. The group has the common rights until the next change. (If changes cannot be
    /// observed, the group is never taken for the common one.)
    personality: (u32, Weak<Group>),
    numbers: BTreeMap<GroupNumber, Weak<Group>>,
    last_number: GroupNumber,
}

/// All groups of the process.
#[derive(Default)]
pub(crate) struct Groups {
    state: Mutex<GroupsState>,
}

static GROUPS: PerProcess<Groups> = PerProcess::new();

/// Returns the groups of this process; makes them on first use.
pub(crate) fn groups() -> &'static Groups {
    GROUPS.get_or_make(Groups::default)
}

/// Each time the members reach a multiple of this number, those whose threads have ended are
/// dropped.
const MANY_MEMBERS: usize = 64;

impl Groups {
    /// Returns the group of all threads, while their credentials do not differ. It is a new group
    /// after each change: requests queued in the old group keep the rights from before.
    ///
    /// `None`: the threads' credentials differ, and no group has the earlier rights.
    pub fn common(&self) -> Option<Arc<Group>> {
        if credentials::differ() {
            let state = self.state.lock();
            let is_last = |group: &&Arc<Group>| group.state.generation == Some(credentials::last_alike());
            return state.last_alike.as_ref().filter(is_last).cloned();
        }
        Some(self.common_of_now())
    }

    fn common_of_now(&self) -> Arc<Group> {
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

    /// Gives the common group an anchor, because the threads' credentials are going to differ. The
    /// ring watcher calls this while it still has the rights that all threads have. So requests
    /// submitted until now keep them. `done` is called when the anchor has started, or when none
    /// can be made.
    pub fn anchor_common(&self, done: impl Fn() + Send + Clone + 'static) {
        if credentials::differ() {
            // Another thread has changed its credentials first, and the group from before that
            // change stays.
            return done();
        }
        let group = self.common_of_now();
        let begun = {
            let done = done.clone();
            move || {
                // The anchor must not be able to raise its rights.
                let _ = capability::keep_effective_only();
                done();
            }
        };
        let settled = group.settle_and(begun);
        if settled.is_ok() {
            let old = self.state.lock().last_alike.replace(group);
            drop(old);
        }
        if settled != Ok(true) {
            done();
        }
    }

    /// Returns the calling thread's entry. Gives the thread its own group with an anchor, if it has
    /// none.
    ///
    /// Errors: `EAGAIN` if there are too many groups or threads; `ENOMEM`.
    fn of_this_thread(&self) -> Result<Arc<Member>, Errno> {
        loop {
            let member = match self.caller() {
                Some(member) => member,
                None => self.enter()?,
            };
            // A signal of libc's may have changed the thread's credentials before the anchor was
            // made. Then the entry is looked up anew.
            if !member.group.settle()? || credentials::changes_of(member.id) == member.changes {
                return Ok(member);
            }
        }
    }

    /// Returns the calling thread's entry; `None`: there is none, or the credentials have changed
    /// since.
    fn caller(&self) -> Option<Arc<Member>> {
        let id = signals::thread_id();
        let member = self.state.lock().members.get(&id).cloned()?;
        member.is_caller().then_some(member)
    }

    /// Makes a new group and enters the calling thread with it.
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

    /// Returns whether the calling thread has the rights of the group with this number. The group
    /// is either its own, or a personality with the rights of all threads.
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

    /// Returns the group of a personality that the calling thread registers.
    fn of_personality(&self) -> Result<Arc<Group>, Errno> {
        if credentials::differ() {
            return Ok(self.of_this_thread()?.group.clone());
        }
        let generation = credentials::generation();
        let mut state = self.state.lock();
        if credentials::are_alike()
            && state.personality.0 == generation
            && let Some(group) = state.personality.1.upgrade()
        {
            drop(state);
            group.settle()?;
            return Ok(group);
        }
        let group = state.new_group()?;
        state.personality = (generation, Arc::downgrade(&group));
        drop(state);
        group.settle()?;
        Ok(group)
    }

    fn find(&self, number: GroupNumber) -> Option<Arc<Group>> {
        self.state.lock().numbers.get(&number).and_then(Weak::upgrade)
    }

    /// Retires groups whose rights no thread has any more. Called after a thread has changed its
    /// credentials.
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
            // The threads of these members have ended, so no thread waits in a destructor for its
            // group to end.
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

/// The rights of a ring's requests.
#[derive(Default)]
pub(crate) struct RingRights {
    /// The groups that requests of the ring are in, each with the number of these requests.
    held: BTreeMap<GroupNumber, (Arc<Group>, u64)>,
    /// Registered personalities, by their numbers in the ring.
    personalities: BTreeMap<u16, Arc<Group>>,
    last_personality: u16,
    /// Group of the ring's creator, if the SQ thread of another ring serves this ring.
    creator: Option<Arc<Group>>,
    /// The thread that last submitted while the threads' credentials differed. Weak, so that the
    /// ring keeps no group alive.
    last: Weak<Member>,
    /// Group of the submission under way. `None`: the threads' credentials do not differ.
    /// `Some(None)`: the submitting thread could not be given a group.
    submitter: Option<Option<Arc<Group>>>,
}

impl RingRights {
    /// Returns whether requests are counted by their groups.
    #[inline(always)]
    pub fn count_requests(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the calling thread's group, if this thread was the last to submit. Does not take the
    /// lock of all groups.
    fn of_last(&self) -> Option<Arc<Group>> {
        let last = self.last.upgrade()?;
        last.is_caller().then(|| last.group.clone())
    }

    fn join(&mut self, group: &Arc<Group>) {
        self.held.entry(group.number).or_insert_with(|| (group.clone(), 0)).1 += 1;
    }

    /// Begins a submission while the threads' credentials differ: its requests get the calling
    /// thread's group. `outstanding`: number of the ring's requests that have not completed yet.
    #[cold]
    pub fn begin_submission(&mut self, outstanding: u64) {
        if outstanding == 0 {
            self.held.clear();
        }
        let mut group = self.creator.clone().or_else(|| self.of_last());
        if group.is_none()
            && let Ok(member) = groups().of_this_thread()
        {
            self.last = Arc::downgrade(&member);
            group = Some(member.group.clone());
        }
        // Without a group, workers carry out only work that needs no rights.
        self.submitter = Some(group);
    }

    /// Ends a submission that was begun while the threads' credentials differed.
    #[cold]
    pub fn end_submission(&mut self) {
        self.submitter = None;
    }

    /// Puts a prepared request into its submitter's group, unless that is the common group.
    #[inline(always)]
    pub fn mark(&mut self, request: &mut Request) {
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

    /// Puts a request into the group that its personality names.
    ///
    /// Error: `EINVAL` if there is no such personality.
    #[cold]
    pub fn adopt(&mut self, request: &mut Request) -> Result<(), Errno> {
        let group = self.personalities.get(&request.sqe.personality).cloned().ok_or(Errno::EINVAL)?;
        request.sqe.flags |= HAS_GROUP;
        request.sqe.personality = group.number;
        self.join(&group);
        Ok(())
    }

    /// Takes an ended request out of its group. The ring drops its reference to the group with its
    /// last request there.
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

    /// Returns whether the calling thread's rights differ from those of the request's group, so
    /// that the thread must not issue the request.
    pub fn is_foreign(&self, request: &Request) -> bool {
        let number = request.sqe.personality;
        if !request.has_flag(HAS_GROUP) {
            return false;
        }
        if number == COMMON {
            return credentials::differ() || !credentials::has_common();
        }
        // An SQ thread of another ring submits for a group that it does not belong to.
        let submitter = self.submitter.as_ref().and_then(Option::as_ref);
        let submits = submitter.is_some_and(|group| group.number == number) && self.creator.is_none();
        let is_own = || self.of_last().is_some_and(|group| group.number == number);
        !submits && !is_own() && !groups().has_rights_of(number)
    }

    /// Gives all requests of the ring the calling thread's rights, whichever thread submits them.
    pub fn submit_for_creator(&mut self) -> Result<(), Errno> {
        if credentials::differ() {
            self.creator = Some(groups().of_this_thread()?.group.clone());
        }
        Ok(())
    }

    /// Registers the calling thread's rights; returns their number in the ring.
    ///
    /// Errors: those of a thread that cannot be started; `EBUSY` if no number is left.
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

    /// Removes a personality. Requests that were submitted with it keep its rights.
    ///
    /// Error: `EINVAL` if there is none with this number.
    pub fn unregister(&mut self, number: u32) -> Result<(), Errno> {
        let number = u16::try_from(number).map_err(|_| Errno::EINVAL)?;
        self.personalities.remove(&number).map(drop).ok_or(Errno::EINVAL)
    }

    /// Drops the ring's groups, for a ring that goes away.
    pub fn forget(&mut self) {
        *self = RingRights::default();
    }
}

/// Returns the group whose workers are to carry out a request; `None`: the group is gone.
pub(crate) fn group_of(request: &Request) -> Option<Arc<Group>> {
    if !request.has_flag(HAS_GROUP) || request.sqe.personality == COMMON {
        return groups().common();
    }
    groups().find(request.sqe.personality)
}
