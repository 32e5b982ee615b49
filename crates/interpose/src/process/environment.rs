//! The environment: reads the launcher's variables from it, and hides them and the library from the
//! program.
//!
//! The constructor takes usring's own variables, and the library's path in LD_PRELOAD, out of the
//! environment. So a program that prints, compares or empties its environment finds it as it would
//! be without usring. Each exec adds the variables and the path again ([`crate::program::exec`]),
//! whatever environment the program passes. If usring does not serve a program, it leaves the
//! environment unchanged, so that the programs that this program executes find the library.

use crate::runtime::libc;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};
use usring_sys::{descriptor, eventfd};

pub const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY: &[u8] = b"libusring.so";
const NO_PATCH: &[u8] = b"USRING_NO_PATCH=";
const POLLING_ENTER: &[u8] = b"USRING_POLLING_ENTER=";
const AIO_POLL: &[u8] = b"USRING_AIO_POLL=";
const SPIN: &[u8] = b"USRING_SPIN=";
const PROBE: &[u8] = b"USRING_PROBE_FD=";
/// A variable that usring adds if it would otherwise have an odd number of variables. [`hide`]
/// needs an even number.
const PAD: &[u8] = b"USRING_PAD=";
pub const PADDING: &[u8] = b"USRING_PAD=1\0";
const DEVICES: &[u8] = b"USRING_DEVICES=";
const STATISTICS: &[u8] = b"USRING_STATS=";
const FAULTS: &[u8] = b"USRING_FAULTS=";
const CRASH: &[u8] = b"USRING_CRASH=";
const CHECK: &[u8] = b"USRING_CHECK=";
const STACKS: &[u8] = b"USRING_CHECK_STACKS=";
const TRACE: &[u8] = b"USRING_TRACE=";
const SWAP: &[u8] = b"USRING_SWAP=";
const SWAP_SOCKET: &[u8] = b"USRING_SWAP_SOCKET=";
const SWAP_STATISTICS: &[u8] = b"USRING_SWAP_STATS=";
/// If set, only programs that Valgrind runs are served.
const VALGRIND: &[u8] = b"USRING_VALGRIND=";
const STRICT: &[u8] = b"USRING_STRICT=";
const LOG: &[u8] = b"USRING_LOG=";
/// Variable that names the sanitizer's runtime that usring has added to LD_PRELOAD. The runtime has
/// to be loaded before this library.
pub const RUNTIME: &[u8] = b"USRING_RUNTIME=";

/// Variables that apply only to the program in which this code runs. A program that this process
/// executes later does not get them.
const OF_ONE_PROGRAM: [&[u8]; 3] = [PROBE, PAD, RUNTIME];
/// Variables for every program that this process or its children execute.
const OF_ALL_PROGRAMS: [&[u8]; 17] = [
    NO_PATCH,
    POLLING_ENTER,
    AIO_POLL,
    SPIN,
    STATISTICS,
    DEVICES,
    FAULTS,
    CRASH,
    CHECK,
    STACKS,
    TRACE,
    SWAP,
    SWAP_SOCKET,
    SWAP_STATISTICS,
    STRICT,
    VALGRIND,
    LOG,
];

/// Copies of usring's own variables of the environment, for this process and its children. usring
/// does not use the original strings, because programs overwrite them to change their title.
#[derive(Default)]
pub struct OwnVariables {
    /// The library's path, with a NUL. It comes from LD_PRELOAD or, in a program that is linked to
    /// the library, from the loader's list. Empty if the path is not known.
    pub library: Vec<u8>,
    /// usring's variables for the next program, each as NAME=VALUE with its NUL.
    pub variables: Vec<Box<[u8]>>,
    /// The sanitizer's runtime that usring has added to LD_PRELOAD; empty if there is none.
    runtime: Vec<u8>,
    pub no_patch: bool,
    probe: Option<i32>,
}

impl OwnVariables {
    /// Returns the library's path without its NUL.
    pub fn path(&self) -> &[u8] {
        self.library.strip_suffix(b"\0").unwrap_or(&[])
    }
}

static OWN_VARIABLES: AtomicPtr<OwnVariables> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the variables that [`read`] found when the program started. `None` before that.
pub fn own_variables() -> Option<&'static OwnVariables> {
    // SAFETY: `read` stores a leaked box, once, which is never changed.
    unsafe { OWN_VARIABLES.load(Ordering::Acquire).as_ref() }
}

/// Tag of an ignored entry of the auxiliary vector (AT_IGNORE).
const IGNORED: usize = 1;

/// Stores usring's variables of the environment, and sets the options of the engine that they
/// contain. `variables` is an array that ends with null.
///
/// # Safety
/// `variables` must be the process's environment as the loader passes it to constructors. No other
/// thread may exist.
pub unsafe fn read(variables: *mut *mut u8) {
    let mut own_variables = Box::<OwnVariables>::default();
    let mut at = variables;
    // SAFETY: the array ends with null, and its strings end with NUL. Only this function uses the
    // array.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            own_variables.record(CStr::from_ptr((*at).cast()));
            at = at.add(1);
        }
    }
    if own_variables.library.is_empty() {
        own_variables.library = libc::own_path().map_or_else(Vec::new, |path| path.to_bytes_with_nul().into());
    }
    OWN_VARIABLES.store(Box::into_raw(own_variables), Ordering::Release);
}

/// Takes usring's variables out of the environment, an array that ends with null. Called after
/// [`read`].
///
/// The auxiliary vector lies after that array. Go's runtime finds the vector by reading the
/// environment to its end. So this function fills the gap that the variables leave with entries of
/// the auxiliary vector that readers ignore. Such entries are pairs of words, so the number of
/// usring's variables must be even ([`PAD`]).
///
/// # Safety
/// `variables` must be the process's environment as the loader passes it to constructors. No other
/// thread may exist.
pub unsafe fn hide(variables: *mut *mut u8) {
    let Some(own_variables) = own_variables() else { return };
    let (mut from, mut to) = (variables, variables);
    let mut last = core::ptr::null_mut();
    // SAFETY: only this function uses the array now. Its strings end with NUL and are writable, as
    // the kernel laid them out.
    unsafe {
        while !variables.is_null() && !(*from).is_null() {
            if is_visible_to_program(own_variables, *from) {
                *to = *from;
                to = to.add(1);
            } else {
                last = *from;
            }
            from = from.add(1);
        }
        // Only pairs of words can fill the gap. So if the number of removed variables is odd, the
        // last of them stays in the environment.
        if !from.offset_from(to).unsigned_abs().is_multiple_of(2) {
            *to = last;
            to = to.add(1);
        }
        let gap = from.offset_from(to).unsigned_abs();
        if gap > 0 {
            *to = core::ptr::null_mut();
            for place in 1..=gap {
                *to.add(place) = core::ptr::without_provenance_mut(IGNORED);
            }
        }
    }
}

impl OwnVariables {
    /// Records a variable, if it belongs to usring.
    fn record(&mut self, text: &CStr) {
        let name = name_of(text.to_bytes());
        let value = &text.to_bytes()[name.len()..];
        let is_on = value == b"1";
        match name {
            PROBE => self.probe = number_of(value),
            RUNTIME => self.runtime = value.into(),
            NO_PATCH => self.no_patch = value != b"" && value != b"0",
            POLLING_ENTER if is_on => usring_engine::have_enter_poll(),
            AIO_POLL if is_on => usring_aio::poll_devices_before_sleep(),
            SPIN => {
                let limit = core::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                limit.into_iter().for_each(usring_engine::set_spin_limit);
            }
            PRELOAD => {
                if let Some(library) = value.split(is_separator).find(|part| is_library(part)) {
                    self.library = [library, b"\0"].concat();
                }
            }
            _ => {}
        }
        if OF_ALL_PROGRAMS.contains(&name) {
            self.variables.push(text.to_bytes_with_nul().into());
        }
    }
}

/// Returns whether the program may see this variable. From the list of LD_PRELOAD, first removes
/// the library, and the sanitizer's runtime if usring has added it.
///
/// # Safety
/// `variable` must be a writable string that ends with NUL.
unsafe fn is_visible_to_program(own_variables: &OwnVariables, variable: *mut u8) -> bool {
    // SAFETY: the caller guarantees the string.
    let text = unsafe { CStr::from_ptr(variable.cast()) }.to_bytes();
    let name = name_of(text);
    if OF_ALL_PROGRAMS.contains(&name) || OF_ONE_PROGRAM.contains(&name) {
        return false;
    }
    let list = &text[name.len()..];
    if name != PRELOAD || !list.split(is_separator).any(is_library) {
        return true;
    }
    let ours = |part: &[u8]| part.is_empty() || part == own_variables.runtime || is_library(part);
    let rest: Vec<&[u8]> = list.split(is_separator).filter(|part| !ours(part)).collect();
    let rest = rest.join(&b':');
    // An empty part in the list of LD_PRELOAD shows that the program has set LD_PRELOAD to an empty
    // text. Then the variable stays, so that an exec appends the library to it.
    let has_own_list = list.split(is_separator).any(<[u8]>::is_empty);
    if rest.is_empty() && !has_own_list {
        return false;
    }
    // SAFETY: the caller guarantees a writable string. The list without usring's libraries is not
    // longer than the original list.
    unsafe {
        let start = variable.add(PRELOAD.len());
        start.copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        start.add(rest.len()).write(0);
    }
    true
}

/// Returns a variable's name with its `=`.
pub fn name_of(variable: &[u8]) -> &[u8] {
    let end = variable.iter().position(|byte| *byte == b'=').map_or(variable.len(), |at| at + 1);
    &variable[..end]
}

fn is_separator(byte: &u8) -> bool {
    matches!(byte, b' ' | b':')
}

/// Returns whether a path names this library: its file is `libusring.so`, or that name and a
/// version.
fn is_library(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    name.strip_prefix(LIBRARY).is_some_and(|version| version.is_empty() || version.starts_with(b"."))
}

fn number_of(digits: &[u8]) -> Option<i32> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns whether call sites must not be rewritten.
pub fn forbids_patching() -> bool {
    own_variables().is_some_and(|own_variables| own_variables.no_patch)
}

/// Notifies the launcher that calls reach usring.
pub fn report_probe() {
    if let Some(probe) = own_variables().and_then(|own_variables| own_variables.probe) {
        eventfd::signal(probe);
        let _ = descriptor::close(probe);
    }
}

/// Returns the path of the file in which the process counts its rings, if there is one.
pub fn statistics() -> Option<&'static CStr> {
    path(STATISTICS)
}

/// Returns the path of the launcher's socket, if the run has devices.
pub fn devices() -> Option<&'static [u8]> {
    value_of(DEVICES)
}

/// How the program's rings are checked (`--check`).
pub struct Checking {
    /// Path of the file of findings.
    pub path: &'static CStr,
    /// A finding aborts the program.
    pub aborts: bool,
    /// The program promises that two requests in flight of one ring never have equal user_data.
    pub unique_user_data: bool,
}

/// Returns how the program is checked. `None`: it is not checked. The variable's value is
/// `MODE:PATH`. MODE is `report` or `abort`, perhaps with `+user-data`.
pub fn checking() -> Option<Checking> {
    let value = &variable(CHECK)?[CHECK.len()..];
    let colon = value.iter().position(|byte| *byte == b':')?;
    let (mode, path) = (&value[..colon], CStr::from_bytes_with_nul(&value[colon + 1..]).ok()?);
    let unique_user_data = mode.ends_with(b"+user-data");
    Some(Checking { path, aborts: mode.starts_with(b"abort"), unique_user_data })
}

/// Returns the path of the file in whose memory the stacks of requests in flight are shared, if the
/// run shares them.
pub fn stacks() -> Option<&'static CStr> {
    path(STACKS)
}

/// Returns the path of the file in whose memory the program's requests are recorded, if the program
/// is traced.
pub fn trace() -> Option<&'static CStr> {
    path(TRACE)
}

/// Returns the path of the recorder's log, if `usring crash` records the program's changes.
pub fn recording() -> Option<&'static CStr> {
    path(CRASH)
}

/// Returns the path of the file with the rules of `--inject`, if the run has any.
pub fn faults() -> Option<&'static CStr> {
    path(FAULTS)
}

/// Returns the path of the launcher's socket, if the run's swapped memory is on a vhost-user back
/// end.
pub fn swap_socket() -> Option<&'static [u8]> {
    value_of(SWAP_SOCKET)
}

/// Returns the path of the file for the counters of swapped memory, if there is one.
pub fn swap_statistics() -> Option<&'static CStr> {
    path(SWAP_STATISTICS)
}

/// Returns whether usring must end a program that it cannot serve. The launcher requires this, by
/// the variable `STRICT`.
pub fn is_strict() -> bool {
    value_of(STRICT).is_some_and(|value| !matches!(value, b"" | b"0"))
}

/// Returns whether only programs that Valgrind runs are served. The launcher sets the variable
/// `VALGRIND` if it runs Valgrind: before the program, other programs start Valgrind, and they load
/// this library, too.
pub fn is_of_valgrind() -> bool {
    value_of(VALGRIND).is_some_and(|value| !matches!(value, b"" | b"0"))
}

/// Returns the path of the file for usring's messages, if there is one.
pub fn log() -> Option<&'static CStr> {
    path(LOG)
}

/// Returns the options for swapped memory, as text ([`usring_swap::text`]). `None`: no memory is
/// swapped.
pub fn swap() -> Option<&'static [u8]> {
    value_of(SWAP)
}

fn path(name: &[u8]) -> Option<&'static CStr> {
    let variable = variable(name)?;
    CStr::from_bytes_with_nul(&variable[name.len()..]).ok().filter(|path| !path.is_empty())
}

fn value_of(name: &[u8]) -> Option<&'static [u8]> {
    variable(name)?.strip_suffix(b"\0").map(|variable| &variable[name.len()..])
}

/// Returns one of usring's variables, with its name and its NUL. `None`: the environment did not
/// have it.
fn variable(name: &[u8]) -> Option<&'static [u8]> {
    own_variables()?.variables.iter().find(|variable| variable.starts_with(name)).map(|variable| &**variable)
}
