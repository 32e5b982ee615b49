//! execve(2) and execveat(2): makes sure that the library is loaded into the next program.
//!
//! The seccomp filter survives exec, but the handler of SIGSYS does not. So the first trapped call
//! of a program without the library would kill the program by SIGSYS. Therefore:
//! - The new environment always names the library.
//! - A program into which no loader will load the library is refused, with a message on standard
//!   error and `ELIBBAD`. Such a program is of another machine, or it starts where the library
//!   cannot be read, or with effective ids that differ from the real ones.
//! - If the program is linked to a sanitizer's runtime, the environment names the runtime before
//!   the library. Otherwise the runtime would end the program.
//!
//! A static program runs without usring ([`crate::program::unserved`]), and a message says so once.
//! It is refused if the run has devices or swap, if `usring crash` records it, or if the process
//! cannot be traced.
//!
//! The caller is often a vfork child, which runs in its parent's memory. If it allocates a block
//! and then executes a program, the parent never gets the block back. So a new environment of usual
//! size is built on the stack. Only a larger one is allocated.

use crate::call::{Call, Outcome};
use crate::files::descriptors;
use crate::process::environment::{self, OwnVariables, PADDING, PRELOAD, RUNTIME};
use crate::process::{self, stacks};
use crate::program::exec_call;
use crate::program::executable::{self, Runtime, Verdict};
use crate::program::unserved::{self, named};
use crate::runtime::message;
use crate::signals::table;
use alloc::vec::Vec;
use usring_sys::syscall::PASS_MARK;
use usring_sys::{Errno, SystemCall, UserAddress, descriptor, own_numbers, user_memory, width};
use usring_uapi::general as linux;

/// The arguments of execve(2) or execveat(2).
struct Execution {
    call: SystemCall,
    directory: i32,
    path: UserAddress,
    flags: u32,
    /// Index of the argument that is the environment.
    environment: usize,
    /// Whether the program runs without usring.
    is_unserved: bool,
}

impl Execution {
    fn of(call: &Call) -> Execution {
        let mut arguments = call.arguments;
        arguments[5] = PASS_MARK;
        let at = width::low(call.number) == linux::__NR_execveat;
        let call = SystemCall::with_six(width::low(call.number), arguments);
        let [first, second, ..] = arguments;
        if at {
            let flags = width::low(arguments[4]);
            Execution {
                call,
                directory: width::int(first),
                path: UserAddress(second),
                flags,
                environment: 3,
                is_unserved: false,
            }
        } else {
            Execution {
                call,
                directory: linux::AT_FDCWD,
                path: UserAddress(first),
                flags: 0,
                environment: 2,
                is_unserved: false,
            }
        }
    }
}

/// Executes the next program, with the library. Returns only if the exec failed.
pub fn execute(call: &mut Call) -> Outcome {
    let mut execution = Execution::of(call);
    let runtime = match judge(&execution) {
        Verdict::Fine => None,
        Verdict::AfterRuntime(runtime) => Some(runtime),
        Verdict::Static => {
            execution.is_unserved = true;
            None
        }
        Verdict::Refused(why) => {
            explain(&execution, why);
            return Err::<u64, _>(Errno::ELIBBAD).into();
        }
    };
    let runtime = runtime.as_ref().map_or(&[][..], Runtime::name);
    with_library(&execution, runtime).into()
}

fn judge(execution: &Execution) -> Verdict {
    match executable::judge(execution.directory, execution.path, execution.flags) {
        refused @ Verdict::Refused(_) => refused,
        _ if !is_library_visible() => {
            Verdict::Refused("this process cannot read libusring.so; has it changed its root directory or user?")
        }
        _ if has_other_ids() => {
            Verdict::Refused("its effective user or group is not the real one, so the loader would ignore LD_PRELOAD")
        }
        Verdict::Static if environment::devices().is_some() => {
            Verdict::Refused("it is statically linked, and would not see the devices of the run")
        }
        Verdict::Static if environment::recording().is_some() => {
            Verdict::Refused("it is statically linked, and its changes of files would not be recorded")
        }
        Verdict::Static if environment::swap().is_some() => {
            Verdict::Refused("it is statically linked, and its memory would not be swapped")
        }
        // The caller may not execute the file. The kernel's error has the reason, so usring adds no
        // message of its own.
        Verdict::Static if !is_executable(execution) => Verdict::Fine,
        verdict => verdict,
    }
}

/// Returns whether the effective user or group differs from the real one. If it differs, the kernel
/// makes the loader ignore libraries in the environment (AT_SECURE). Files with set-user-ID bits do
/// not matter: the filter requires no_new_privs.
fn has_other_ids() -> bool {
    [linux::__NR_getresuid, linux::__NR_getresgid].into_iter().any(|number| {
        let mut ids = [0u32; 3];
        let [real, effective, saved] = &mut ids;
        let arguments = [&raw mut *real as u64, &raw mut *effective as u64, &raw mut *saved as u64, 0, 0];
        SystemCall::new(number, arguments).run().is_ok() && ids[0] != ids[1]
    })
}

/// Returns whether the next program's loader will find the library. If the process has changed its
/// root directory or its user, the loader may not find it.
fn is_library_visible() -> bool {
    const READ: u64 = 4;
    let Some(own_variables) = environment::own_variables().filter(|own_variables| !own_variables.library.is_empty())
    else {
        return true;
    };
    let arguments = [width::word(linux::AT_FDCWD), own_variables.library.as_ptr() as u64, READ, 0, 0];
    SystemCall::new(linux::__NR_faccessat, arguments).run().is_ok()
}

/// Returns whether the caller may execute the file.
fn is_executable(execution: &Execution) -> bool {
    const EXECUTE: u64 = 1;
    let flags = u64::from(execution.flags & (linux::AT_EMPTY_PATH | linux::AT_SYMLINK_NOFOLLOW));
    let arguments = [width::word(execution.directory), execution.path.0, EXECUTE, flags, 0];
    SystemCall::new(linux::__NR_faccessat2, arguments).run() != Err(Errno::EACCES)
}

/// Prints why the program cannot be served.
fn explain(execution: &Execution, why: &str) {
    let name = user_memory::read_c_string(execution.path, linux::PATH_MAX as usize).unwrap_or_default();
    let name = name.strip_suffix(b"\0").unwrap_or(&name);
    usring_record::note_unknown(b"a program was refused, because usring cannot record it", name);
    match core::str::from_utf8(name) {
        // fexecve(3) passes an empty name.
        Ok(name) if !name.is_empty() => message::say(format_args!("cannot serve {name}: {why}")),
        _ => message::say(format_args!("cannot serve a program: {why}")),
    }
}

/// Executes the program with an environment that names the library. If `runtime` is not empty, the
/// environment names this sanitizer's runtime before the library.
fn with_library(execution: &Execution, runtime: &[u8]) -> Result<u64, Errno> {
    let Some(own_variables) = environment::own_variables().filter(|own_variables| !own_variables.library.is_empty())
    else {
        return run(execution, execution.call.arguments[execution.environment]);
    };
    // If the program passes a bad array of variables, the call fails here with the error that the
    // kernel would return.
    let size = measure(execution.call.arguments[execution.environment], own_variables, runtime)?;
    if size.variables <= 64 && size.bytes <= 512 {
        on_stack::<64, 512>(execution, own_variables, &size)
    } else if size.variables <= 512 && size.bytes <= 4096 {
        on_stack::<512, 4096>(execution, own_variables, &size)
    } else {
        let (mut variables, mut bytes) = (zeroes::<u64>(size.variables)?, zeroes::<u8>(size.bytes)?);
        build(execution, own_variables, &size, &mut variables, &mut bytes)
    }
}

/// Returns `count` zeroes. Errors: `ENOMEM`.
fn zeroes<T: Copy + Default>(count: usize) -> Result<Vec<T>, Errno> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    values.resize(count, T::default());
    Ok(values)
}

#[inline(never)]
fn on_stack<const VARIABLES: usize, const BYTES: usize>(
    execution: &Execution,
    own_variables: &OwnVariables,
    size: &Size<'_>,
) -> Result<u64, Errno> {
    let (mut variables, mut bytes) = ([0u64; VARIABLES], [0u8; BYTES]);
    build(execution, own_variables, size, &mut variables, &mut bytes)
}

/// The size of the new environment, and the parts of it that the program's own environment contains
/// already.
struct Size<'a> {
    /// Number of variables that the program passes.
    given: usize,
    /// Number of pointers in the new array, including the null at the end.
    variables: usize,
    /// Bytes of the new strings, including their NULs.
    bytes: usize,
    /// The sanitizer's runtime that the new LD_PRELOAD has to name first. Empty if the next program
    /// needs none, or if its LD_PRELOAD names the runtime already.
    runtime: &'a [u8],
    /// The first and the last LD_PRELOAD that the program passes. musl's loader uses the first one,
    /// and glibc's the last one.
    preloads: [Option<Preload>; 2],
    /// One bit for each of usring's variables ([`OwnVariables::variables`]), set if the program
    /// itself passes the variable.
    present: u32,
}

/// A variable LD_PRELOAD that the program passes.
#[derive(Clone, Copy)]
struct Preload {
    index: usize,
    length: usize,
    /// Whether the variable names the library, as the LD_PRELOAD of the launcher does.
    names_library: bool,
}

/// Maximum number of variables that are counted. No program passes more. (The kernel limits only
/// the number of their bytes.)
const MOST_VARIABLES: usize = 1 << 20;

fn variable(array: u64, index: usize) -> Result<u64, Errno> {
    user_memory::read(UserAddress(array).offset(index as u64 * 8))
}

fn measure<'a>(array: u64, own_variables: &OwnVariables, mut runtime: &'a [u8]) -> Result<Size<'a>, Errno> {
    let (mut given, mut present) = (0, 0);
    let mut preloads: [Option<Preload>; 2] = [None; 2];
    loop {
        // A null pointer counts as an empty array, as in the kernel.
        let address = if array == 0 { 0 } else { variable(array, given)? };
        if address == 0 {
            break;
        }
        if starts_with(address, PRELOAD) {
            let length = length_of(address)?;
            let names_library = names(address, length, own_variables.path());
            if names_library || names(address, length, runtime) {
                runtime = &[];
            }
            let place = usize::from(preloads[0].is_some());
            preloads[place] = Some(Preload { index: given, length, names_library });
        }
        for (index, ours) in own_variables.variables.iter().enumerate() {
            present |= u32::from(starts_with(address, environment::name_of(ours))) << index;
        }
        given += 1;
        if given > MOST_VARIABLES {
            return Err(Errno::E2BIG);
        }
    }
    let own: usize = preloads.iter().map(|preload| preload.map_or(PRELOAD.len(), |preload| preload.length) + 1).sum();
    // The first and the last LD_PRELOAD get the library and the sanitizer's runtime. `own` has one
    // byte for the colon before the library. The runtime also has a variable of its own. The last 3
    // bytes are a colon after the runtime in each of the two LD_PRELOADs, and the NUL of the
    // runtime's variable.
    let bytes = own + 2 * own_variables.library.len() + 3 * runtime.len() + RUNTIME.len() + 3;
    // The 4 pointers are for LD_PRELOAD, the runtime's variable, the padding, and the null at the
    // end.
    let variables = given + own_variables.variables.len() + 4;
    Ok(Size { given, variables, bytes, runtime, preloads, present })
}

fn starts_with(address: u64, prefix: &[u8]) -> bool {
    prefix.iter().enumerate().all(|(index, byte)| user_memory::read(UserAddress(address + index as u64)) == Ok(*byte))
}

/// Returns whether the LD_PRELOAD at `address`, of `length` bytes, contains the path `library`.
fn names(address: u64, length: usize, library: &[u8]) -> bool {
    let byte = |at: usize| user_memory::read::<u8>(UserAddress(address + at as u64)).unwrap_or(0);
    let ends = |at: usize| matches!(byte(at), 0 | b':' | b' ');
    (PRELOAD.len()..length).any(|at| {
        (at == PRELOAD.len() || ends(at - 1)) && starts_with(address + at as u64, library) && ends(at + library.len())
    })
}

fn length_of(address: u64) -> Result<usize, Errno> {
    let mut length = 0;
    while user_memory::read::<u8>(UserAddress(address).offset(length))? != 0 {
        length += 1;
    }
    Ok(width::size(length))
}

/// Builds the new environment in `variables` and `bytes`, and executes the program with it.
fn build(
    execution: &Execution,
    own_variables: &OwnVariables,
    size: &Size<'_>,
    variables: &mut [u64],
    bytes: &mut [u8],
) -> Result<u64, Errno> {
    let array = execution.call.arguments[execution.environment];
    for (index, place) in variables[..size.given].iter_mut().enumerate() {
        *place = variable(array, index)?;
    }
    let end = name_library(own_variables, size, variables, bytes)?;
    finish_array(own_variables, size, variables, end);
    run(execution, variables.as_ptr() as u64)
}

/// Makes each LD_PRELOAD that a loader uses name the library. If the program passes no LD_PRELOAD,
/// adds one. Returns the number of variables that the new environment then has.
fn name_library(
    own_variables: &OwnVariables,
    size: &Size<'_>,
    variables: &mut [u64],
    bytes: &mut [u8],
) -> Result<usize, Errno> {
    let mut end = size.given;
    let (mut bytes, runtime) = bytes.split_at_mut(bytes.len() - size.runtime.len() - RUNTIME.len() - 1);
    let given = size.preloads.iter().flatten().copied().map(Some);
    let none = size.preloads[0].is_none().then_some(None);
    for preload in given.chain(none).filter(|preload| !preload.is_some_and(|preload| preload.names_library)) {
        let own = preload.map(|preload| (variables[preload.index], preload.length));
        let length = write_preload(own_variables, size, own, bytes)?;
        let (written, rest) = bytes.split_at_mut(length);
        variables[preload.map_or(end, |preload| preload.index)] = written.as_ptr() as u64;
        end += usize::from(preload.is_none());
        bytes = rest;
    }
    if !size.runtime.is_empty() {
        write(runtime, &[RUNTIME, size.runtime, b"\0"]);
        variables[end] = runtime.as_ptr() as u64;
        end += 1;
    }
    Ok(end)
}

/// Appends those of usring's variables that the program does not pass itself, and the null at the
/// end.
fn finish_array(own_variables: &OwnVariables, size: &Size<'_>, variables: &mut [u64], mut end: usize) {
    for (index, variable) in own_variables.variables.iter().enumerate() {
        if size.present & 1 << index == 0 {
            variables[end] = variable.as_ptr() as u64;
            end += 1;
        }
    }
    // The number of usring's variables must be even: see `environment::hide`.
    if !(end - size.given).is_multiple_of(2) {
        variables[end] = PADDING.as_ptr() as u64;
        end += 1;
    }
    variables[end] = 0;
}

/// Writes an LD_PRELOAD: the sanitizer's runtime, the program's own list, then the library. `own`:
/// the address and length of the program's own LD_PRELOAD, whose list is kept even if it is empty.
/// Returns the length of the new LD_PRELOAD, including its NUL.
fn write_preload(
    own_variables: &OwnVariables,
    size: &Size<'_>,
    own: Option<(u64, usize)>,
    bytes: &mut [u8],
) -> Result<usize, Errno> {
    let separator = |length: usize| if length > PRELOAD.len() { &b":"[..] } else { b"" };
    let mut length = write(bytes, &[PRELOAD, size.runtime]);
    if let Some((address, whole)) = own {
        let given = whole - PRELOAD.len();
        length += write(&mut bytes[length..], &[separator(length)]);
        user_memory::copy_in(&mut bytes[length..length + given], UserAddress(address).offset(PRELOAD.len() as u64))?;
        length += given;
        length += write(&mut bytes[length..], &[b":"]);
    } else {
        length += write(&mut bytes[length..], &[separator(length)]);
    }
    Ok(length + write(&mut bytes[length..], &[&own_variables.library]))
}

/// Writes `parts` to `bytes`, one after another. Returns the sum of their lengths.
fn write(bytes: &mut [u8], parts: &[&[u8]]) -> usize {
    parts.iter().fold(0, |at, part| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at + part.len()
    })
}

/// Makes the exec, with the environment at the address `environment`. Returns only if the exec
/// failed.
fn run(execution: &Execution, environment: u64) -> Result<u64, Errno> {
    let mut call = execution.call;
    call.arguments[execution.environment] = environment;
    if process::is_own() {
        for number in descriptors::in_use() {
            descriptors::with(number, |file| file.ring.note_exec());
        }
    }
    let make = || if execution.is_unserved { make_unserved(execution, &call) } else { exec_call::call(&call) };
    table::with_ignored(|| stacks::released_by(|| own_numbers::with_program_limit(make)))
}

/// Returns `true` if no message has named this unserved program yet ([`named`]).
fn is_named_first(execution: &Execution) -> bool {
    // fexecve(3) passes the program as `directory`, with an empty path.
    let file = descriptor::identity_of_path(execution.directory, execution.path)
        .or_else(|_| descriptor::identity(execution.directory));
    file.map_or(true, |file| named::is_new(&file))
}

/// Makes the exec of a program that runs without usring. Error: `ELIBBAD` if no handler of SIGSYS
/// can be installed in the new program.
fn make_unserved(execution: &Execution, call: &SystemCall) -> Result<u64, Errno> {
    let make = || {
        if is_named_first(execution) {
            explain(execution, "it is statically linked; it runs without usring");
        }
        call.run_once()
    };
    exec_call::with_signals_blocked(|mask| unserved::attended(mask, make)).unwrap_or_else(|| {
        explain(
            execution,
            "it is statically linked, and this process cannot be traced, so it cannot run without usring",
        );
        Err(Errno::ELIBBAD)
    })
}
