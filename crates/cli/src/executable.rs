//! Finds the file that a command names, and decides whether usring can serve it.
//!
//! The dynamic loader brings the library into a program. A program without a loader, or one whose
//! loader ignores LD_PRELOAD, is refused before it starts. Otherwise usring would not answer the
//! program's calls.

use super::{Failure, STATUS_NOT_EXECUTABLE, STATUS_NOT_FOUND};
use crate::system_error::words;
use nix::libc;
use nix::unistd::{AccessFlags, eaccess};
use object::elf::{self, EM_X86_64, FileHeader32, FileHeader64, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The search path that execvp(3) uses if PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Maximum number of interpreters to follow, each named in a `#!` line of the file before it. Linux
/// has the same limit.
const MOST_INTERPRETERS: usize = 5;
/// Bytes that Linux reads of a `#!` line.
const LONGEST_LINE: usize = 256;

/// A file that can be executed under usring.
#[derive(Debug, PartialEq, Eq)]
pub struct Executable {
    pub path: PathBuf,
    /// Whether /bin/sh runs the command's file, as with execvp(3): it is no ELF file and has no
    /// `#!` line.
    pub needs_shell: bool,
    /// The sanitizer's runtime that the program needs, which must be loaded before all other
    /// libraries.
    pub runtime: Option<OsString>,
}

/// Prefixes of the file names that GCC and LLVM give to the runtime libraries of sanitizers.
const RUNTIMES: [&str; 7] = [
    "libasan.so",
    "libtsan.so",
    "libhwasan.so",
    "liblsan.so",
    "libclang_rt.asan",
    "libclang_rt.tsan",
    "libclang_rt.hwasan",
];

/// Finds the command as execvp(3) would, and checks that usring can serve it. `new_privileges`:
/// whether execve(2) may grant privileges to the program, because no_new_privs is not set.
pub fn find(command: &OsStr, new_privileges: bool) -> Result<Executable, Failure> {
    if command.is_empty() {
        return Err(Failure::with_status(STATUS_NOT_FOUND, "the program's name is empty"));
    }
    let path = if command.as_bytes().contains(&b'/') {
        let path = PathBuf::from(command);
        executable_file(&path)?;
        path
    } else {
        search(command, &std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()))?
    };
    check_own_ids()?;
    let Started { needs_shell, runtime } = check(&path, new_privileges, MOST_INTERPRETERS)?;
    Ok(Executable { path, needs_shell, runtime })
}

/// Searches the folders of PATH. A file that this user may not execute does not end the search. If
/// the search finds no other file, returns the error of the first file that may not be executed.
fn search(command: &OsStr, path: &OsStr) -> Result<PathBuf, Failure> {
    let mut refusal = None;
    for folder in path.as_bytes().split(|byte| *byte == b':') {
        let folder = if folder.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(folder)) };
        let candidate = folder.join(command);
        match executable_file(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(failure) if failure.status == STATUS_NOT_EXECUTABLE => refusal = refusal.or(Some(failure)),
            Err(_) => {}
        }
    }
    Err(refusal.unwrap_or_else(|| {
        let sentence = format!("{} was not found in PATH", command.display());
        Failure::with_status(STATUS_NOT_FOUND, sentence)
    }))
}

fn executable_file(path: &Path) -> Result<(), Failure> {
    let not_executable = |why: &str| {
        Err(Failure::with_status(STATUS_NOT_EXECUTABLE, format!("cannot execute {} ({why})", path.display())))
    };
    match std::fs::metadata(path) {
        Err(error) if matches!(error.kind(), std::io::ErrorKind::PermissionDenied) => {
            not_executable("EACCES: permission denied")
        }
        Err(_) => Err(Failure::with_status(STATUS_NOT_FOUND, format!("{} was not found", path.display()))),
        Ok(found) if found.is_dir() => not_executable("it is a folder"),
        Ok(_) if eaccess(path, AccessFlags::X_OK).is_err() => not_executable("EACCES: permission denied"),
        Ok(_) => Ok(()),
    }
}

/// Facts about the ELF file that the kernel starts after following all `#!` lines. [`Executable`]
/// explains the fields.
struct Started {
    needs_shell: bool,
    runtime: Option<OsString>,
}

/// Follows `#!` lines to the ELF file that the kernel would start, and checks each file on the way.
/// `new_privileges`: whether execve(2) may grant privileges to the program.
fn check(path: &Path, new_privileges: bool, interpreters_left: usize) -> Result<Started, Failure> {
    check_capabilities(path, new_privileges)?;
    if new_privileges {
        check_user_and_group(path)?;
    }
    let refuse = |why: String| Err(Failure::new(format!("{} {why}", path.display())));
    let unreadable = |error: std::io::Error| {
        Failure::new(format!(
            "cannot read {}, so usring cannot know whether it can serve the program ({error})",
            path.display(),
            error = words(&error)
        ))
    };
    let mut file = File::open(path).map_err(unreadable)?;
    let mut start = Vec::new();
    (&mut file).take(LONGEST_LINE as u64).read_to_end(&mut start).map_err(unreadable)?;
    if start.starts_with(b"\x7fELF") {
        return match inspect(&file, path) {
            Ok(runtime) => Ok(Started { needs_shell: false, runtime }),
            Err(why) => refuse(why),
        };
    }
    match interpreter(&start) {
        Some(_) if interpreters_left == 0 => refuse("is a script whose chain of interpreters is too long".into()),
        Some(named) => {
            let named = PathBuf::from(named);
            executable_file(&named).map_err(|failure| Failure {
                sentence: format!(
                    "usring cannot run the interpreter of the script {}: {}",
                    path.display(),
                    failure.sentence
                ),
                ..failure
            })?;
            check(&named, new_privileges, interpreters_left - 1)
        }
        None => check(Path::new("/bin/sh"), new_privileges, 0).map(|shell| Started { needs_shell: true, ..shell }),
    }
}

/// Returns the interpreter that a `#!` line names. `None` if `start` has no such line.
fn interpreter(start: &[u8]) -> Option<OsString> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii_start();
    let name = line.split(|byte| matches!(byte, b' ' | b'\t')).next()?;
    (!name.is_empty()).then(|| OsString::from_vec(name.to_vec()))
}

/// Fails if this process's effective ids differ from its real ones. The kernel then sets AT_SECURE
/// for every program that this process executes, so that the program's loader ignores LD_PRELOAD.
fn check_own_ids() -> Result<(), Failure> {
    use nix::unistd::{getegid, geteuid, getgid, getuid};
    if getuid() == geteuid() && getgid() == getegid() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "usring runs with other effective ids ({}:{}) than real ones ({}:{}), and the loader ignores LD_PRELOAD then; start \
         usring by `setpriv --reuid UID --regid GID --clear-groups`",
        geteuid(),
        getegid(),
        getuid(),
        getgid()
    )))
}

/// Capabilities of a file (setcap(8)).
#[derive(PartialEq)]
enum FileCapabilities {
    None,
    /// The program gets the capabilities as permitted ones, and may make them effective itself.
    Permitted,
    /// The program gets the capabilities as effective ones.
    Effective,
}

/// Reads a file's capabilities from its attribute `security.capability`, which linux/capability.h
/// defines. If the user is root, returns [`FileCapabilities::None`], because the kernel does not
/// set AT_SECURE for programs that root executes.
fn capabilities_of(path: &Path) -> FileCapabilities {
    const EFFECTIVE: u8 = 1;
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return FileCapabilities::None };
    let mut value = [0u8; 64];
    let buffer = value.as_mut_ptr().cast();
    // SAFETY: both names end with NUL, and the call writes at most the buffer's length.
    let size = unsafe { libc::getxattr(name.as_ptr(), c"security.capability".as_ptr(), buffer, value.len()) };
    match size {
        ..1 => FileCapabilities::None,
        _ if nix::unistd::geteuid().is_root() => FileCapabilities::None,
        _ if value[0] & EFFECTIVE != 0 => FileCapabilities::Effective,
        _ => FileCapabilities::Permitted,
    }
}

/// Refuses a program with capabilities for which the kernel sets AT_SECURE, because the loader of
/// such a program ignores LD_PRELOAD. For effective capabilities of the file, the kernel sets
/// AT_SECURE even if no_new_privs keeps the program from gaining them.
fn check_capabilities(path: &Path, new_privileges: bool) -> Result<(), Failure> {
    let advice = match capabilities_of(path) {
        FileCapabilities::Effective => "run a copy of it without capabilities",
        FileCapabilities::Permitted if new_privileges => "add --deny-kernel, with which it gains none",
        _ => return Ok(()),
    };
    Err(Failure::new(format!(
        "{} would gain capabilities when it starts (setcap), and the loader ignores LD_PRELOAD then; {advice}",
        path.display()
    )))
}

/// Refuses a set-user-ID or set-group-ID program, because the loader of such a program ignores
/// LD_PRELOAD.
fn check_user_and_group(path: &Path) -> Result<(), Failure> {
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    let mode = found.permissions().mode();
    let gains_user = mode & 0o4000 != 0 && found.uid() != nix::unistd::geteuid().as_raw();
    let gains_group = mode & 0o2010 == 0o2010 && found.gid() != nix::unistd::getegid().as_raw();
    if gains_user || gains_group {
        return Err(Failure::new(format!(
            "{} would gain privileges when it starts (it is set-user-ID or set-group-ID), and the loader ignores LD_PRELOAD \
             then; have it start usring, as in `sudo usring run -- PROGRAM`",
            path.display()
        )));
    }
    Ok(())
}

/// Checks an ELF file, and returns the sanitizer's runtime that it needs, if any. The error says
/// why usring cannot serve the file.
fn inspect(file: &File, path: &Path) -> Result<Option<OsString>, String> {
    let cache = ReadCache::new(file);
    match FileKind::parse(&cache) {
        Ok(FileKind::Elf64) => inspect_elf64(&cache, path),
        Ok(FileKind::Elf32) => Err(inspect_elf32(&cache)),
        _ => Err("is a damaged ELF file".into()),
    }
}

fn inspect_elf32<'data>(data: impl ReadRef<'data>) -> String {
    let machine = FileHeader32::<Endianness>::parse(data)
        .and_then(|header| Ok(header.e_machine(header.endian()?)))
        .map_or("an unknown machine", machine_name);
    format!("is a 32-bit program ({machine}), and usring serves 64-bit x86-64 programs only")
}

fn inspect_elf64<'data>(data: impl ReadRef<'data>, path: &Path) -> Result<Option<OsString>, String> {
    let damaged = |_| "is a damaged ELF file".to_string();
    let header = FileHeader64::<Endianness>::parse(data).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    if header.e_machine(endian) != EM_X86_64 {
        let machine = machine_name(header.e_machine(endian));
        return Err(format!("is built for {machine}, and usring serves x86-64 programs only"));
    }
    let segments = header.program_headers(endian, data).map_err(damaged)?;
    match loader_of(segments, endian, data).map_err(damaged)? {
        Some(loader) if Path::new(&loader).exists() => {
            // A damaged dynamic table counts as "no runtime": the loader will report the damage.
            Ok(runtime_of(header, endian, data).unwrap_or_default())
        }
        Some(loader) => Err(format!("needs the loader {}, which does not exist", loader.display())),
        None if is_loader(path) => Ok(None),
        None => Err(format!(
            "is statically linked, so libusring.so cannot be loaded into it; {}",
            remedy(segments, endian, data)
        )),
    }
}

/// Name and type of the note that the Go tool chain writes into each program.
const GO_NOTE: (&[u8], u32) = (b"Go", 4);

/// Returns advice for the user: how to link this static program dynamically.
fn remedy<'data>(
    segments: &[ProgramHeader64<Endianness>],
    endian: Endianness,
    data: impl ReadRef<'data>,
) -> &'static str {
    let is_go = segments.iter().any(|segment| {
        let Ok(Some(mut notes)) = segment.notes(endian, data) else { return false };
        std::iter::from_fn(|| notes.next().ok().flatten()).any(|note| (note.name(), note.n_type(endian).0) == GO_NOTE)
    });
    if is_go {
        "build the Go program with `CGO_ENABLED=1 go build -ldflags=-linkmode=external`"
    } else {
        "link it dynamically (C: without -static; Rust: a -gnu target)"
    }
}

/// Returns whether the file is a complete shared object for x86-64. Returns `false` for a truncated
/// file, because its dynamic segment cannot be read.
pub fn is_library(file: &File) -> bool {
    let cache = ReadCache::new(file);
    let inspect = || -> object::Result<bool> {
        let header = FileHeader64::<Endianness>::parse(&cache)?;
        let endian = header.endian()?;
        let segments = header.program_headers(endian, &cache)?;
        let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, &cache).transpose()).transpose()?;
        Ok(dynamic.is_some() && header.e_machine(endian) == EM_X86_64)
    };
    inspect().unwrap_or(false)
}

/// Returns the content of the file's ELF note with this name and type. `None` if the file has none.
pub fn note(file: &File, name: &[u8], kind: u32) -> Option<Vec<u8>> {
    let cache = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    for segment in header.program_headers(endian, &cache).ok()? {
        let Ok(Some(mut notes)) = segment.notes(endian, &cache) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == name && note.n_type(endian).0 == kind {
                return Some(note.desc().to_vec());
            }
        }
    }
    None
}

/// Returns the first library that a program needs, if that is a sanitizer's runtime. Compilers link
/// a runtime first because it must be loaded first.
fn runtime_of<'data>(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    data: impl ReadRef<'data>,
) -> object::Result<Option<OsString>> {
    let table = header.sections(endian, data)?.dynamic_table(endian, data)?;
    let Some(first) = table.iter().find(|entry| entry.tag == elf::DT_NEEDED) else { return Ok(None) };
    let name = table.string(first)?;
    let is_one = RUNTIMES.iter().any(|beginning| name.starts_with(beginning.as_bytes()));
    Ok(is_one.then(|| OsStr::from_bytes(name).to_owned()))
}

/// Returns the loader that PT_INTERP names. `None` if the file has no loader.
fn loader_of<'data>(
    segments: &[ProgramHeader64<Endianness>],
    endian: Endianness,
    data: impl ReadRef<'data>,
) -> object::Result<Option<OsString>> {
    for segment in segments {
        if let Some(name) = segment.interpreter(endian, data)? {
            return Ok(Some(OsString::from_vec(name.to_vec())));
        }
    }
    Ok(None)
}

/// Returns whether the file is the dynamic loader itself, which a user can run with a program as
/// its argument. The loader needs no loader, but honours LD_PRELOAD.
fn is_loader(path: &Path) -> bool {
    let name = path.canonicalize().ok().and_then(|path| path.file_name().map(OsStr::to_owned)).unwrap_or_default();
    let name = name.to_string_lossy();
    ["ld-linux", "ld-musl", "ld-2.", "ld.so"].iter().any(|prefix| name.starts_with(prefix))
}

fn machine_name(machine: elf::Machine) -> &'static str {
    match machine {
        elf::EM_386 => "i386",
        elf::EM_X86_64 => "x32",
        elf::EM_AARCH64 => "aarch64",
        elf::EM_ARM => "arm",
        elf::EM_RISCV => "riscv",
        elf::EM_PPC64 => "powerpc64",
        elf::EM_S390 => "s390x",
        elf::EM_LOONGARCH => "loongarch64",
        elf::EM_MIPS => "mips",
        _ => "another machine",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_names_its_interpreter() {
        let named = |text: &str| interpreter(text.as_bytes()).map(|name| name.into_string().unwrap());
        assert_eq!(named("#!/bin/sh\necho").as_deref(), Some("/bin/sh"));
        assert_eq!(named("#! /usr/bin/env -S python3 -u\n").as_deref(), Some("/usr/bin/env"));
        assert_eq!(named("#!\n"), None);
        assert_eq!(named("echo hello\n"), None);
    }

    #[test]
    fn an_ordinary_program_is_found_and_can_be_served() {
        let found = find(OsStr::new("sh"), true).unwrap();
        assert!(found.path.ends_with("sh") && !found.needs_shell);
    }

    #[test]
    fn a_missing_program_exits_with_127_and_a_folder_with_126() {
        assert_eq!(find(OsStr::new("no-such-program"), true).unwrap_err().status, STATUS_NOT_FOUND);
        assert_eq!(find(OsStr::new("/no/such/program"), true).unwrap_err().status, STATUS_NOT_FOUND);
        assert_eq!(find(OsStr::new("/usr"), true).unwrap_err().status, STATUS_NOT_EXECUTABLE);
        assert_eq!(find(OsStr::new("/etc/passwd"), true).unwrap_err().status, STATUS_NOT_EXECUTABLE);
    }
}
