//! By whose rights a request is carried out. A request never has more rights than the thread that
//! submits it, nor another root, directory, umask or namespace.
//!
//! Linux hands all of these from a thread to the threads that it makes. So workers come in groups:
//! the workers of a group come from one thread of the program, by way of an *anchor* that this
//! thread has made. A request names its group in its copy of the SQE, in place of the personality.
//!
//! - As long as no thread of the program differs from another (`sys::credentials`) there is the
//!   common group, number 0. Its anchor is the attendant, which follows every change.
//! - Afterwards each thread that submits has a group of its own, until it changes again. A group
//!   that nobody can submit to any more is retired: its idle workers and its anchor end, busy ones
//!   when their queue is empty.
//! - A registered personality is a group, made by the thread that registers it.
//!
//! Neighbours: `workers` runs the queues of all groups, `way_down::issue` sends a request to its
//! group that another thread is about to issue.

use crate::attendant::Attendant;
use crate::process::process;
use crate::request::Request;
use crate::ring::LockedRing;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use usring_sys::mutex::Mutex;
use usring_sys::thread::{self, Credentials, ThreadId};
use usring_sys::{Errno, credentials, futex, signals};

/// A group's number in its requests.
pub(crate) type GroupNumber = u16;
const COMMON: GroupNumber = 0;
/// Of a ring's driver that submits for nobody.
const NO_GROUP: GroupNumber = u16::MAX;

/// Marks a request, in its copy of the SQE's flags, whose group is not the common one.
pub(crate) const HAS_GROUP: u8 = 1 << 7;

type Action = Box<dyn FnOnce() + Send>;

/// A worker that is to be born.
struct Birth {
    life: Action,
    stillborn: Action,
}

/// What the threads of a group share. They outlive the group's [`Group`] by the work that is left.
pub(crate) struct GroupState {
    /// Names its queues; never used again.
    pub serial: u32,
    /// Futex words of the idle workers, one per class; counted up per job.
    pub signals: [AtomicU32; 2],
    retired: AtomicBool,
    births: Mutex<Vec<Birth>>,
    /// Futex word of the anchor.
    bell: AtomicU32,
}

impl GroupState {
    /// Nobody submits to the group any more.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    fn ring(&self) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.bell, 1);
    }

    /// The anchor's life.
    fn anchor(&self) {
        loop {
            let seen = self.bell.load(Ordering::SeqCst);
            let births = core::mem::take(&mut *self.births.lock());
            if births.is_empty() {
                if self.is_retired() {
                    return;
                }
                let _ = futex::wait(&self.bell, seen, None);
            }
            for Birth { life, stillborn } in births {
                if thread::spawn("iou-wrk", Credentials::OfBirth, life).is_err() {
                    stillborn();
                }
            }
        }
    }
}

/// A group, for those who submit to it; it retires with the last of them.
pub(crate) struct Group {
    number: GroupNumber,
    pub state: Arc<GroupState>,
    has_anchor: Mutex<bool>,
}

impl Group {
    fn new(number: GroupNumber) -> Group {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let state = GroupState {
            serial: LAST.fetch_add(1, Ordering::Relaxed),
            signals: Default::default(),
            retired: AtomicBool::new(false),
            births: Mutex::new(Vec::new()),
            bell: AtomicU32::new(0),
        };
        Group { number, state: Arc::new(state), has_anchor: Mutex::new(false) }
    }

    /// Gives the group its anchor, made by the calling thread, whose group it is.
    fn settle(&self) -> Result<(), Errno> {
        let mut has_anchor = self.has_anchor.lock();
        if !*has_anchor {
            let state = self.state.clone();
            thread::spawn("iou-anchor", Credentials::OfBirth, Box::new(move || state.anchor()))?;
            *has_anchor = true;
        }
        Ok(())
    }

    /// Has a worker born soon; `stillborn` runs if that is impossible.
    pub fn start_worker(&self, attendant: &'static Attendant, life: Action, stillborn: Action) {
        if self.number == COMMON {
            return attendant.start_thread("iou-wrk", Credentials::OfBirth, life, stillborn);
        }
        if !*self.has_anchor.lock() {
            return stillborn();
        }
        self.state.births.lock().push(Birth { life, stillborn });
        self.state.ring();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.state.retired.store(true, Ordering::Release);
        self.state.ring();
        for signal in &self.state.signals {
            signal.fetch_add(1, Ordering::SeqCst);
            futex::wake(signal, u32::MAX);
        }
    }
}

/// A thread's group, as long as the thread has not changed since.
struct Member {
    thread: ThreadId,
    changes: u32,
    group: Arc<Group>,
}

#[derive(Default)]
struct GroupsState {
    common: Option<(u32, Arc<Group>)>,
    /// By thread id.
    members: BTreeMap<u32, Member>,
    /// A personality that was registered while no thread differed has the common rights, until the
    /// next change. (Where changes go unseen it is never taken for that.)
    personality: (u32, Weak<Group>),
    numbers: BTreeMap<GroupNumber, Weak<Group>>,
    last_number: GroupNumber,
}

/// All groups of the process.
#[derive(Default)]
pub(crate) struct Groups {
    state: Mutex<GroupsState>,
}

/// With so many members, those whose threads are gone are looked for.
const MANY_MEMBERS: usize = 64;

impl Groups {
    /// The group of those who do not differ. A new one after each change: what is queued in the old
    /// one is carried out by the rights of before.
    pub fn common(&self) -> Arc<Group> {
        let generation = credentials::generation();
        let mut state = self.state.lock();
        if let Some((born, group)) = &state.common
            && *born == generation
        {
            return group.clone();
        }
        let fresh = Arc::new(Group::new(COMMON));
        let old = state.common.replace((generation, fresh.clone()));
        drop(state);
        drop(old);
        fresh
    }

    /// The calling thread's own group.
    ///
    /// Error: `EAGAIN` if there are too many.
    fn of_this_thread(&self) -> Result<Arc<Group>, Errno> {
        let (id, changes) = this_thread();
        let mut state = self.state.lock();
        if let Some(group) = state.group_of(id, changes) {
            return Ok(group);
        }
        let group = state.new_group()?;
        let member = Member { thread: thread::current(), changes, group: group.clone() };
        let before = state.members.insert(id, member);
        drop(state);
        drop(before);
        Ok(group)
    }

    /// Whether the calling thread's own group has this number.
    fn is_member(&self, number: GroupNumber) -> bool {
        let (id, changes) = this_thread();
        self.state.lock().group_of(id, changes).is_some_and(|group| group.number == number)
    }

    /// The group of a personality that the calling thread registers.
    fn of_personality(&self) -> Result<Arc<Group>, Errno> {
        if credentials::differ() {
            return self.of_this_thread();
        }
        let generation = credentials::generation();
        let mut state = self.state.lock();
        if credentials::are_alike()
            && state.personality.0 == generation
            && let Some(group) = state.personality.1.upgrade()
        {
            return Ok(group);
        }
        let group = state.new_group()?;
        state.personality = (generation, Arc::downgrade(&group));
        Ok(group)
    }

    /// Whether a personality has the rights that all threads have.
    fn is_common(&self, group: &Arc<Group>) -> bool {
        let (generation, state) = (credentials::generation(), self.state.lock());
        let (born, personality) = &state.personality;
        credentials::are_alike() && *born == generation && core::ptr::eq(personality.as_ptr(), Arc::as_ptr(group))
    }

    fn find(&self, number: GroupNumber) -> Option<Arc<Group>> {
        self.state.lock().numbers.get(&number).and_then(Weak::upgrade)
    }

    /// A thread has changed: groups of rights that it had are retired.
    pub fn sweep(&self) {
        let mut state = self.state.lock();
        let generation = credentials::generation();
        let common = state.common.take_if(|(born, _)| *born != generation);
        let left = state.take_stale(|id, member| credentials::changes_of(id) == member.changes);
        drop(state);
        drop((common, left));
    }
}

fn this_thread() -> (u32, u32) {
    let id = signals::thread_id();
    (id, credentials::changes_of(id))
}

impl GroupsState {
    fn group_of(&self, id: u32, changes: u32) -> Option<Arc<Group>> {
        let member = self.members.get(&id)?;
        let is_same = member.thread == thread::current() && member.changes == changes;
        is_same.then(|| member.group.clone())
    }

    fn new_group(&mut self) -> Result<Arc<Group>, Errno> {
        if self.members.len() >= MANY_MEMBERS && self.members.len().is_multiple_of(MANY_MEMBERS) {
            // Those that it drops have no thread, so nobody waits for their end.
            drop(self.take_stale(|id, _| signals::is_alive(id)));
        }
        self.numbers.retain(|_, group| group.strong_count() > 0);
        for _ in 0..NO_GROUP {
            self.last_number = if self.last_number + 1 == NO_GROUP { 1 } else { self.last_number + 1 };
            if !self.numbers.contains_key(&self.last_number) {
                let group = Arc::new(Group::new(self.last_number));
                self.numbers.insert(self.last_number, Arc::downgrade(&group));
                return Ok(group);
            }
        }
        Err(Errno::EAGAIN)
    }

    fn take_stale(&mut self, keeps: impl Fn(u32, &Member) -> bool) -> Vec<Member> {
        let stale: Vec<u32> =
            self.members.iter().filter(|(id, member)| !keeps(**id, member)).map(|(id, _)| *id).collect();
        stale.into_iter().filter_map(|id| self.members.remove(&id)).collect()
    }
}

/// What a ring knows of the rights of its requests.
#[derive(Default)]
pub(crate) struct RingRights {
    /// Groups that requests of the ring may be in.
    held: Vec<Arc<Group>>,
    /// By their numbers of the ring's.
    personalities: BTreeMap<u16, Arc<Group>>,
    last_personality: u16,
    /// Of a ring that another ring's SQ thread serves: for whom.
    creator: Option<Arc<Group>>,
    /// Whose requests are being submitted.
    submitter: Option<GroupNumber>,
}

impl RingRights {
    fn hold(&mut self, group: &Arc<Group>) {
        if !self.held.iter().any(|other| Arc::ptr_eq(other, group)) {
            self.held.push(group.clone());
        }
    }
}

/// A submission begins while threads differ: its requests are the calling thread's.
#[cold]
pub(crate) fn begin_submission(locked: &mut LockedRing) {
    if locked.drain.outstanding() == 0 {
        locked.rights.held.clear();
    }
    let creator = locked.rights.creator.clone();
    let group = match creator {
        Some(group) => Ok(group),
        None => process().groups.of_this_thread().and_then(|group| group.settle().map(|()| group)),
    };
    // Without a group nothing is carried out but what needs no right.
    locked.rights.submitter = Some(group.as_ref().map_or(NO_GROUP, |group| group.number));
    if let Ok(group) = group {
        locked.rights.hold(&group);
    }
}

/// The end of that submission.
#[cold]
pub(crate) fn end_submission(locked: &mut LockedRing) {
    locked.rights.submitter = None;
}

/// Puts a request that was prepared into its submitter's group, if that is not the common one.
#[inline(always)]
pub(crate) fn mark(locked: &LockedRing, request: &mut Request) {
    if let Some(number) = locked.rights.submitter
        && !request.has_flag(HAS_GROUP)
    {
        request.sqe.personality = number;
        request.sqe.flags |= HAS_GROUP;
    }
}

/// Puts a request into the group that its personality names.
///
/// Error: `EINVAL` if there is no such personality.
#[cold]
pub(crate) fn adopt(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let rights = &mut locked.rights;
    let group = rights.personalities.get(&request.sqe.personality).cloned().ok_or(Errno::EINVAL)?;
    request.sqe.flags |= HAS_GROUP;
    request.sqe.personality = if process().groups.is_common(&group) { COMMON } else { group.number };
    rights.hold(&group);
    Ok(())
}

/// Whether the calling thread lacks the rights of a request's group, or has others.
pub(crate) fn is_foreign(locked: &LockedRing, request: &Request) -> bool {
    let number = request.sqe.personality;
    if !request.has_flag(HAS_GROUP) || number == COMMON {
        return false;
    }
    // The SQ thread of another ring submits for a group that it does not belong to.
    let submits = locked.rights.submitter == Some(number) && locked.rights.creator.is_none();
    !submits && !process().groups.is_member(number)
}

/// The group whose workers are to carry a request out. `None`: it is gone.
pub(crate) fn group_of(request: &Request) -> Option<Arc<Group>> {
    if !request.has_flag(HAS_GROUP) || request.sqe.personality == COMMON {
        return Some(process().groups.common());
    }
    process().groups.find(request.sqe.personality)
}

/// The ring's requests are the calling thread's, whichever thread submits them.
pub(crate) fn submit_for_creator(locked: &mut LockedRing) -> Result<(), Errno> {
    if credentials::differ() {
        let group = process().groups.of_this_thread()?;
        group.settle()?;
        locked.rights.creator = Some(group);
    }
    Ok(())
}

/// Registers the calling thread's rights; answers their number in the ring.
///
/// Errors: those of a thread that cannot be started; `EBUSY` if there is no number left.
pub(crate) fn register(locked: &mut LockedRing) -> Result<u32, Errno> {
    let group = process().groups.of_personality()?;
    group.settle()?;
    let rights = &mut locked.rights;
    for _ in 0..u16::MAX {
        rights.last_personality = rights.last_personality.checked_add(1).unwrap_or(1);
        if !rights.personalities.contains_key(&rights.last_personality) {
            rights.personalities.insert(rights.last_personality, group);
            return Ok(u32::from(rights.last_personality));
        }
    }
    Err(Errno::EBUSY)
}

/// Takes a personality back. Requests that have it keep it.
///
/// Error: `EINVAL` if there is none of this number.
pub(crate) fn unregister(locked: &mut LockedRing, number: u32) -> Result<(), Errno> {
    let number = u16::try_from(number).map_err(|_| Errno::EINVAL)?;
    locked.rights.personalities.remove(&number).map(drop).ok_or(Errno::EINVAL)
}

/// The ring goes away.
pub(crate) fn forget(locked: &mut LockedRing) {
    locked.rights = RingRights::default();
}
