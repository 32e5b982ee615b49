//! Findings in the file that the launcher reads.

use crate::format::{BadByte, CopiedStack, Finding, Kind, Record};
use crate::requests::InFlight;
use crate::stack::Stack;
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use usring_sys::clock::Clock;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::own_threads::{self, Owner};
use usring_sys::per_process::PerProcess;
use usring_sys::plain::IoVector;
use usring_sys::process_maps::{Line, Maps};
use usring_sys::set_once::SetOnce;
use usring_sys::{Errno, SystemCall, signals, width};
use usring_uapi::general as linux;

/// Effect of a finding on the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The program goes on.
    Report,
    /// The program gets SIGABRT.
    Abort,
}

static PATH: SetOnce<CString> = SetOnce::new();
/// Whether all requests in flight of a ring must have different user_data.
static UNIQUE_USER_DATA: AtomicBool = AtomicBool::new(false);
static ABORTS: AtomicBool = AtomicBool::new(false);
static FILE: PerProcess<Option<OwnedDescriptor>> = PerProcess::new();

/// Maximum number of different findings of a process. Further findings are not recorded.
const MOST: usize = 256;

/// Begins to record findings in the file at this path. `unique_user_data`: the program promises
/// that all requests in flight of a ring have different user_data.
///
/// Error: `ENOENT` if the file cannot be opened.
pub fn start(path: &CStr, mode: Mode, unique_user_data: bool) -> Result<(), Errno> {
    UNIQUE_USER_DATA.store(unique_user_data, Ordering::Relaxed);
    PATH.set(Box::leak(Box::new(path.to_owned())));
    ABORTS.store(mode == Mode::Abort, Ordering::Relaxed);
    file().map(drop).ok_or(Errno::ENOENT)
}

/// Returns whether the program is checked.
pub fn is_started() -> bool {
    PATH.get().is_some()
}

/// Returns whether all requests in flight of a ring must have different user_data.
pub(crate) fn is_user_data_unique() -> bool {
    UNIQUE_USER_DATA.load(Ordering::Relaxed)
}

/// Returns the descriptor number of the file of findings. Each process opens the file for itself.
/// `None` if the file cannot be opened.
fn file() -> Option<i32> {
    let file = FILE.get_or_make(|| {
        let path = PATH.get()?.as_ptr() as u64;
        let flags = u64::from(linux::O_WRONLY | linux::O_APPEND | linux::O_CLOEXEC);
        let opened =
            SystemCall::new(linux::__NR_openat, [width::word(linux::AT_FDCWD), path, flags, 0, 0]).run().ok()?;
        OwnedDescriptor::from_raw(width::int(opened)).into_private().ok()
    });
    file.as_ref().map(OwnedDescriptor::number)
}

fn append(record: &Record) {
    let Some(file) = file() else { return };
    let bytes = record.encode();
    let _ =
        SystemCall::new(linux::__NR_write, [width::word(file), bytes.as_ptr() as u64, bytes.len() as u64, 0, 0]).run();
}

/// How often this process has made each finding, by the finding's key (`key_of`).
#[derive(Default)]
pub(crate) struct Findings(BTreeMap<u64, u64>);

/// One misuse of a request.
pub(crate) struct Found<'a> {
    pub kind: Kind,
    pub request: &'a InFlight,
    pub result: i32,
    pub memory: IoVector,
    /// The call that is the misuse, or in which the misuse was noticed.
    pub misdeed: Option<&'a Stack>,
    pub bad: Option<BadByte>,
    /// A stack that AddressSanitizer has recorded ([`Finding::recorded`]).
    pub recorded: &'a [u8],
}

impl Findings {
    /// Records a finding. In [`Mode::Abort`] the program then gets SIGABRT, unless the finding is
    /// uncertain ([`Kind::PerhapsDeadFrame`]). For a repeated finding, records only the count, each
    /// time that the count has doubled.
    pub fn add(&mut self, found: &Found) {
        let key = key_of(found);
        let is_new = !self.0.contains_key(&key);
        if is_new && self.0.len() >= MOST {
            return;
        }
        let count = self.0.entry(key).or_default();
        *count += 1;
        let process = process();
        if is_new {
            append(&Record::Finding(Box::new(finding(found, key, process))));
        } else if count.is_power_of_two() {
            append(&Record::Again { process, key, count: *count });
        }
        if ABORTS.load(Ordering::Relaxed) && found.kind != Kind::PerhapsDeadFrame {
            abort();
        }
    }

    /// Records the count of each repeated finding, unless [`Self::add`] has just recorded this
    /// count. Called at the end of the process.
    pub fn record_counts(&self) {
        let process = process();
        let repeated = self.0.iter().filter(|(_, count)| **count > 1 && !count.is_power_of_two());
        repeated.for_each(|(key, count)| append(&Record::Again { process, key: *key, count: *count }));
    }
}

pub(crate) fn process() -> u32 {
    width::low(SystemCall::new(linux::__NR_getpid, [0; 5]).run().unwrap_or(0))
}

/// Returns a hash that identifies a misuse. The hash is made from the misuse's kind, the request's
/// opcode, the call that submitted the request, and [`Found::misdeed`].
fn key_of(found: &Found) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let call = |stack: Option<&Stack>| {
        let registers = stack.map(|stack| stack.0.registers).unwrap_or_default();
        [registers.instruction, registers.stack]
    };
    let words = [[found.kind as u64, found.request.opcode.into()]]
        .into_iter()
        .chain([call(found.request.submission.as_deref()), call(found.misdeed)]);
    words.flatten().fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(PRIME).rotate_left(23))
}

fn finding(found: &Found, key: u64, process: u32) -> Finding {
    let request = found.request;
    let stack = |stack: Option<&Stack>| stack.map(|stack| stack.0.clone()).unwrap_or_default();
    let (submission, misdeed): (CopiedStack, CopiedStack) =
        (stack(request.submission.as_deref()), stack(found.misdeed));
    Finding {
        kind: found.kind,
        process,
        ring: request.ring,
        user_data: request.user_data,
        opcode: request.opcode,
        descriptor: if request.has_descriptor { request.number } else { -1 },
        result: found.result,
        address: found.memory.base,
        length: found.memory.length,
        age_ns: Clock::Monotonic.now().saturating_sub(request.submitted_at),
        key,
        submission,
        misdeed,
        bad: found.bad,
        recorded: found.recorded.to_vec(),
        maps: maps(),
        program: program(),
    }
}

/// Returns the lines of /proc/self/maps for mappings that hold code.
fn maps() -> Vec<u8> {
    let mut text = Vec::new();
    let Some(maps) = Maps::open() else { return text };
    let mut lines = maps.lines();
    while let Some(bytes) = lines.next() {
        let is_code = Line::parse(bytes)
            .is_some_and(|line| line.area.protection & linux::PROT_EXEC != 0 && line.name.first() == Some(&b'/'));
        if is_code {
            text.extend_from_slice(bytes);
            text.push(b'\n');
        }
    }
    text
}

fn program() -> Vec<u8> {
    let mut path = alloc::vec![0; 4096];
    let link = c"/proc/self/exe".as_ptr() as u64;
    let length = SystemCall::new(linux::__NR_readlink, [link, path.as_mut_ptr() as u64, path.len() as u64, 0, 0]).run();
    path.truncate(length.map_or(0, width::size));
    path
}

/// Sends SIGABRT to the calling thread. If the thread is usring's, or cannot get the signal, sends
/// SIGABRT to the process.
fn abort() {
    let thread = signals::thread_id();
    let is_own = matches!(own_threads::owner_of(thread), Owner::Usring | Owner::Submitter);
    if is_own || signals::send_to_thread(thread, linux::SIGABRT).is_err() {
        signals::send_to_process(linux::SIGABRT);
    }
}
