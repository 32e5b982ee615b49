//! The constructor: prepares the entry points before any other code of the program runs.

use crate::entry::{breakpoints, own_signal, patch, symbols};
use crate::files::descriptors::{self, Found};
use crate::files::{devices, rings};
use crate::process::{self, counting, environment, stacks};
use crate::program::unserved::named;
use crate::runtime::ALLOCATOR;
use crate::runtime::{libc, message, text};
use crate::signals::calls;
use crate::swap::{self, guard, region};
use crate::{check, child, faults, filter, recording, trace};
use core::sync::atomic::Ordering;
use usring_engine::Host;
use usring_sys::{Errno, SystemCall, credentials, membarrier, memory_reserve, own_numbers, per_process, valgrind};
use usring_uapi::general as linux;

/// Exit status of a program that usring cannot serve.
const STATUS_NOT_SERVED: u64 = 125;

static HOST: Host = Host {
    ring_of: |number| match descriptors::with_inside(number, |file| file.ring.clone()) {
        Found::Ring(ring) => Some(ring),
        _ => None,
    },
    // SAFETY: this closure clones the ring at once, and removes none of the registered rings.
    ring_at_index: |index| unsafe { crate::files::registered::find(index) }.map(|file| file.ring.clone()),
    watch: |number| {
        descriptors::with_inside(number, |file| file.watch(number));
    },
    attach: descriptors::attach,
    // As in the kernel, a request on a ring cannot close a ring.
    close: |number| match descriptors::with_inside(number, |_| ()) {
        Found::Ring(()) => Some(Err(Errno::EBADF)),
        _ => crate::files::descriptor_calls::close_number(number),
    },
    device_of: devices::get,
};

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(i32, *const *const u8, *mut *mut u8) = start;

extern "C" fn start(_: i32, _: *const *const u8, variables: *mut *mut u8) {
    let variables = libc::environment(variables);
    let auxiliary = auxiliary_vector(variables);
    // SAFETY: the loader passes the environment to constructors. It calls this constructor first.
    unsafe { environment::read(variables) };
    text::find();
    // The symbols are resolved before usring decides whether it serves the program: a program that
    // runs without usring calls these symbols, too.
    symbols::resolve();
    if environment::is_of_valgrind() && !valgrind::is_there() {
        // This is a program that starts Valgrind, or a program that Valgrind does not follow.
        // usring does not serve it.
        return;
    }
    environment::log().into_iter().for_each(message::log_to);
    match prepare(auxiliary) {
        Ok(()) => {}
        Err(why) if !environment::is_strict() => {
            message::say(format_args!("not active in process {}, which runs without usring: {why}", process::id()));
            return;
        }
        Err(why) => refuse_program(why),
    }
    serve().unwrap_or_else(refuse_program);
    if !valgrind::is_there() {
        // SAFETY: the loader passes the environment to constructors. It calls this constructor
        // first.
        unsafe { environment::hide(variables) };
    }
    environment::report_probe();
}

/// Ends a program that usring cannot serve.
fn refuse_program(why: &str) {
    message::say(format_args!("cannot serve this program: {why}"));
    let _ = SystemCall::new(linux::__NR_exit_group, [STATUS_NOT_SERVED, 0, 0, 0, 0]).run_once();
}

/// Returns the address of the auxiliary vector, which follows the environment.
fn auxiliary_vector(variables: *mut *mut u8) -> *const [u64; 2] {
    let mut end = variables;
    // SAFETY: the environment ends with null. The loader passes it as the kernel laid it out.
    unsafe {
        while !end.is_null() && !(*end).is_null() {
            end = end.add(1);
        }
        if end.is_null() { core::ptr::null() } else { end.add(1).cast() }
    }
}

/// Prepares the process. At the end, installs the trap filter, or under Valgrind the breakpoints.
/// If a step fails, no call reaches usring yet, and the program can still run without usring.
///
/// Errors: a message of one sentence.
fn prepare(auxiliary: *const [u64; 2]) -> Result<(), &'static str> {
    check_settings()?;
    process::set_child_reset(&child::RESET);
    per_process::prepare().map_err(|_| "the kernel refuses madvise(MADV_WIPEONFORK), which usring needs")?;
    process::current();
    memory_reserve::set_refill(|| ALLOCATOR.refill());
    usring_engine::set_host(&HOST);
    libc::store_change_user_signal();
    libc::find_vdso_clock();
    own_numbers::allow_reserve();
    own_numbers::prepare_table();
    membarrier::prepare();
    calls::take_over(own_signal::install)
        .map_err(|_| "usring cannot wrap its signal handlers (rt_sigaction failed)")?;
    stacks::note_small_stacks(auxiliary);
    named::prepare();
    if valgrind::is_there() {
        own_signal::install(linux::SIGTRAP)
            .map_err(|_| "usring cannot handle its breakpoints (rt_sigaction failed)")?;
        breakpoints::set();
    } else if !rings::probe() {
        filter::install().map_err(
            |_| "the kernel refuses the seccomp filter that traps io_uring calls; does this sandbox forbid seccomp(2)?",
        )?;
    }
    Ok(())
}

/// Checks those settings in the environment that can be checked without another process.
///
/// Errors: a message of one sentence.
fn check_settings() -> Result<(), &'static str> {
    // Rings need descriptors from 600 on. Only processes without the launcher check the limit here.
    // The launcher checks the limit of its runs itself, and a program without rings may run there
    // with a lower limit.
    if !environment::is_strict() && own_numbers::is_limit_too_low() {
        return Err(
            "rings use descriptors from 600 on, but the hard limit of open files (ulimit -Hn) is below 608; raise it",
        );
    }
    if environment::devices().is_some_and(|socket| !socket.starts_with(b"/")) {
        return Err("only `usring run` may set USRING_DEVICES; use `usring run --device PATH=SPEC -- PROGRAM`");
    }
    region::read_environment()
}

/// Begins to serve the program, whose calls reach the library now.
///
/// Errors: a message of one sentence. After an error the program is served only in part, and must
/// not run.
fn serve() -> Result<(), &'static str> {
    if !valgrind::is_there() && !rings::probe() {
        return Err("io_uring_enter does not reach usring although the kernel accepted the seccomp filter");
    }
    credentials::note_all_changes_pass_here();
    counting::count_for(process::id());
    devices::connect()?;
    faults::connect()?;
    recording::connect()?;
    check::connect()?;
    trace::connect()?;
    prepare_swap()?;
    symbols::IS_PREPARED.store(1, Ordering::Relaxed);
    Ok(())
}

/// Prepares a program whose memory is to be swapped. From then on, its calls that concern swapped
/// memory reach usring.
///
/// Errors: a message of one sentence.
fn prepare_swap() -> Result<(), &'static str> {
    let Some(minimum) = region::wanted_minimum() else { return Ok(()) };
    if libc::has_sanitizer() || valgrind::is_there() {
        // TSan allows no mapping at the addresses that usring reserves for swapped memory. LSan
        // reads the program's memory from a process of its own. If this process touches an evicted
        // page, usring does not page it in.
        let process = process::id();
        message::say(format_args!(
            "swap: usring does not swap the memory of process {process}, because a sanitizer or Valgrind runs in it"
        ));
        return Ok(());
    }
    region::switch_on(minimum, &guard::PIN_HOOK);
    if !swap::filter::is_installed(minimum) {
        swap::filter::install(minimum)
            .map_err(|_| "the kernel refuses the seccomp filter that traps calls on swapped memory")?;
        if !swap::filter::is_installed(minimum) {
            return Err("calls on swapped memory do not reach usring although the kernel accepted the seccomp filter");
        }
    }
    libc::map_large_blocks(minimum);
    if let Some(writev) = symbols::libc_writev() {
        patch::rewrite_ahead(writev, linux::__NR_writev);
    }
    Ok(())
}
