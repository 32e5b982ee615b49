//! Valgrind's memcheck: notifies memcheck of the memory that requests use, and has it report
//! errors.
//!
//! - memcheck learns which bytes a completed request has read.
//! - A request may write bytes without a value, or use memory that is not the program's. Such a
//!   request is reported in the io_uring_enter call that submitted it. memcheck itself makes the
//!   report, so that the error counts as all other errors of memcheck do.
//! - Errors of usring's own code during that call are not reported. usring passes the program's
//!   bytes on, as a kernel does.

use crate::runtime::message;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use usring_engine::observers::{self, Completed, HeldBack, Identity, Observer, Submitted, Transfer};
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::plain::IoVector;
use usring_sys::{signals, valgrind};
use usring_uapi::opcode;

static OBSERVER: Observer = Observer { submitted, completed, stepped: None, opened: |_| {}, closed: |_| {} };

/// Memory of a request for which memcheck has to report an error.
struct Bad {
    thread: u32,
    opcode: u8,
    user_data: u64,
    memory: IoVector,
    /// Address of the first bad byte.
    address: u64,
    /// The request reads into the memory.
    is_target: bool,
}

#[derive(Default)]
struct State {
    /// The memory into which requests in flight read.
    targets: BTreeMap<Identity, Vec<IoVector>>,
    bad: Vec<Bad>,
}

static STATE: PerProcess<Mutex<State>> = PerProcess::new();

fn with_state<T>(work: impl FnOnce(&mut State) -> T) -> T {
    work(&mut STATE.get_or_make(|| Mutex::new(State::default())).lock())
}

/// Begins to notify Valgrind, if Valgrind runs this process. Returns whether it runs this process.
///
/// Errors: a message of one sentence.
pub fn connect() -> Result<bool, &'static str> {
    if valgrind::is_there() && !observers::add(&OBSERVER) {
        return Err("there are too many observers of requests");
    }
    Ok(valgrind::is_there())
}

/// Serves an io_uring_enter call by `serve`. Then has memcheck report the errors of the requests
/// that the call has submitted.
pub fn around<T>(serve: impl FnOnce() -> T) -> T {
    if !valgrind::is_there() {
        return serve();
    }
    let result = valgrind::without_errors(serve);
    let thread = signals::thread_id();
    let bad: Vec<Bad> = with_state(|state| state.bad.extract_if(.., |bad| bad.thread == thread).collect());
    for bad in &bad {
        bad.announce();
        // memcheck unwinds the stack from here.
        if !bad.is_target {
            valgrind::first_undefined(&bad.memory);
            continue;
        }
        // usring has carried out the read by a system call. At that call, memcheck has marked the
        // memory as accessible. So for the report, the first byte is marked as inaccessible again.
        let byte = IoVector { base: bad.address, length: 1 };
        let has_changed = valgrind::without_errors(|| valgrind::first_inaccessible(&byte).is_none());
        if has_changed {
            valgrind::make_inaccessible(&byte);
        }
        valgrind::first_inaccessible(&byte);
        if has_changed {
            valgrind::make_defined(&byte);
        }
    }
    result
}

impl Bad {
    /// Says which request the next report of memcheck is about.
    fn announce(&self) {
        let name = opcode::NAMES.get(usize::from(self.opcode)).copied().unwrap_or("?");
        let IoVector { base, length } = self.memory;
        message::say(format_args!(
            "bad memory in a request: {name}, user_data {:#x}, {length} bytes at {base:#x}; Valgrind's report follows",
            self.user_data
        ));
    }
}

fn submitted(submitted: &Submitted) {
    let (members, is_target) = match submitted.transfer {
        Transfer::Unknown => return,
        Transfer::Into(members) => (members, true),
        // The memory of a request that is held back is not checked. An earlier request may still
        // write a value to this memory before the held-back request starts.
        Transfer::From(_) if submitted.held_back != HeldBack::No => return,
        Transfer::From(members) => (members, false),
    };
    let first_bad = |memory: &IoVector| match is_target {
        true => valgrind::first_inaccessible(memory),
        false => valgrind::first_undefined(memory),
    };
    let found = members.iter().find_map(|memory| Some((*memory, first_bad(memory)?)));
    let bad = found.map(|(memory, address)| Bad {
        thread: signals::thread_id(),
        opcode: submitted.sqe.opcode,
        user_data: submitted.user_data,
        memory,
        address,
        is_target,
    });
    with_state(|state| {
        state.bad.extend(bad);
        if is_target {
            state.targets.insert(submitted.request, members.into());
        }
    });
}

fn completed(completed: &Completed) {
    let Some(members) = with_state(|state| state.targets.remove(&completed.request)) else { return };
    let mut left = u64::try_from(completed.result).unwrap_or(0);
    for member in &members {
        let length = member.length.min(left);
        valgrind::make_defined(&IoVector { length, ..*member });
        left -= length;
    }
}
