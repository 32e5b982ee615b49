//! Decides whether the loader will load the library into a program. To do so, examines the file of
//! the exec as the kernel will. If the result is uncertain, the exec is made, and the kernel
//! decides.

use usring_sys::descriptor::{self, OwnedDescriptor};
use usring_sys::{SystemCall, UserAddress, user_memory, width};
use usring_uapi::general as linux;

/// Whether usring can serve the program of an exec.
pub enum Verdict {
    Fine,
    /// The program can be served if this sanitizer's runtime is loaded before usring's library.
    AfterRuntime(Runtime),
    /// The program is statically linked: it can run, but without usring.
    Static,
    /// The program cannot be served, for this reason.
    Refused(&'static str),
}

use Verdict::{AfterRuntime, Fine, Refused, Static};

/// The file name of a sanitizer's runtime. The runtime has to be the first of all libraries: ASan
/// ends the program if another library comes before its runtime.
pub struct Runtime {
    name: [u8; Runtime::MOST_NAME_BYTES],
    length: usize,
}

impl Runtime {
    /// Maximum length of the name, in bytes.
    const MOST_NAME_BYTES: usize = 64;
    /// GCC's names, then LLVM's.
    const BEGINNINGS: [&'static [u8]; 7] = [
        b"libasan.so",
        b"libtsan.so",
        b"libhwasan.so",
        b"liblsan.so",
        b"libclang_rt.asan",
        b"libclang_rt.tsan",
        b"libclang_rt.hwasan",
    ];

    pub fn name(&self) -> &[u8] {
        &self.name[..self.length]
    }
}

const FOREIGN: &str = "it is not a 64-bit x86-64 program";

/// Maximum number of scripts that lead to a program, if each script's interpreter is the next
/// script. Linux has this limit, too.
const MOST_INTERPRETERS: usize = 5;
/// Bytes that Linux reads of a file to recognise its format (BINPRM_BUF_SIZE).
const HEAD: usize = 256;

/// Returns whether usring can serve the program that execveat(2) would start with these arguments.
/// If the result is uncertain, returns `Fine`: the kernel then decides.
pub fn judge(directory: i32, path: UserAddress, flags: u32) -> Verdict {
    let names_descriptor = flags & linux::AT_EMPTY_PATH != 0 && user_memory::read::<u8>(path) == Ok(0);
    if names_descriptor {
        return judge_file(directory);
    }
    let follow = if flags & linux::AT_SYMLINK_NOFOLLOW != 0 { linux::O_NOFOLLOW } else { 0 };
    match open(directory, path, follow) {
        Some(file) => judge_file(file.number()),
        None => Fine,
    }
}

fn open(directory: i32, path: UserAddress, flags: u32) -> Option<OwnedDescriptor> {
    let flags = flags | linux::O_RDONLY | linux::O_CLOEXEC | linux::O_NONBLOCK | linux::O_NOCTTY;
    let arguments = [width::word(directory), path.0, u64::from(flags), 0, 0];
    let opened = SystemCall::new(linux::__NR_openat, arguments).run().ok()?;
    Some(OwnedDescriptor::from_raw(width::int(opened)))
}

fn read_at(file: i32, buffer: &mut [u8], offset: u64) -> usize {
    let arguments = [width::word(file), buffer.as_mut_ptr() as u64, buffer.len() as u64, offset, 0];
    width::size(SystemCall::new(linux::__NR_pread64, arguments).run().unwrap_or(0))
}

fn judge_file(file: i32) -> Verdict {
    let mut head = [0u8; HEAD];
    let Some(mut length) = read_head(file, &mut head) else { return Fine };
    let mut script: Option<OwnedDescriptor> = None;
    for _ in 0..MOST_INTERPRETERS {
        let file = script.as_ref().map_or(file, OwnedDescriptor::number);
        if head[..length].starts_with(b"\x7fELF") {
            return judge_elf(file, &head[..length]);
        }
        let Some(end) = isolate_interpreter(&mut head, length) else { return Fine };
        let path = UserAddress(head[end.start..].as_ptr() as u64);
        let Some(next) = open(linux::AT_FDCWD, path, 0) else { return Fine };
        let Some(next_length) = read_head(next.number(), &mut head) else { return Fine };
        script = Some(next);
        length = next_length;
    }
    Fine
}

/// Reads the first bytes of a file, and returns their number. `None`: the file is no regular file.
fn read_head(file: i32, head: &mut [u8; HEAD]) -> Option<usize> {
    if !descriptor::identity(file).ok()?.is_regular() {
        return None;
    }
    Some(read_at(file, head, 0))
}

/// Ends the interpreter's name in a `#!` line with a NUL. Returns the range of the name in `head`.
/// `None`: the file is no script, or `head` is too short for the whole name.
fn isolate_interpreter(head: &mut [u8; HEAD], length: usize) -> Option<core::ops::Range<usize>> {
    if !head[..length].starts_with(b"#!") {
        return None;
    }
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = 2 + head[2..length].iter().position(|byte| !blank(byte))?;
    let ends = |byte: &u8| blank(byte) || matches!(byte, b'\n' | 0);
    let end = start + head[start..length].iter().position(ends)?;
    head[end] = 0;
    (end > start).then_some(start..end)
}

// ELF64, in the byte order of x86-64.
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const MACHINE_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;
/// Bytes of a program header. At most [`MOST_HEADERS`] headers are examined.
const PROGRAM_HEADER: usize = 56;
const MOST_HEADERS: u16 = 64;
/// Bytes of an entry of the dynamic section. At most [`MOST_DYNAMIC`] bytes of the section are
/// examined. They are read in parts of [`DYNAMIC_PART`] bytes.
const DYNAMIC_ENTRY: usize = 16;
const MOST_DYNAMIC: u64 = 4096;
const DYNAMIC_PART: usize = 1024;

fn word16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn judge_elf(file: i32, head: &[u8]) -> Verdict {
    if head.len() < 64 {
        return Fine;
    }
    if head[4] != CLASS_64 || head[5] != LITTLE_ENDIAN || word16(head, 18) != MACHINE_X86_64 {
        return Refused(FOREIGN);
    }
    let (mut has_loader, mut dynamic) = (false, Dynamic::default());
    for segment in segments(file, head) {
        match segment {
            None => return Fine,
            Some(segment) if segment.kind == PT_INTERP => has_loader = true,
            Some(segment) if segment.kind == PT_DYNAMIC => dynamic = Dynamic::read(file, &segment),
            Some(_) => {}
        }
    }
    if has_loader {
        dynamic.runtime(file, head).map_or(Fine, AfterRuntime)
    } else if dynamic.names_itself {
        // The file is the loader itself. It has no interpreter, but it is a library with a name.
        // The loader will start the program that its arguments name.
        Fine
    } else {
        Static
    }
}

/// A program header.
struct Segment {
    kind: u32,
    /// Offset of the segment in the file.
    offset: u64,
    address: u64,
    /// Bytes of the segment in the file.
    size: u64,
}

/// Returns the program headers. An item is `None` if that header cannot be read.
fn segments(file: i32, head: &[u8]) -> impl Iterator<Item = Option<Segment>> {
    let (offset, size, count) = (word64(head, 32), word16(head, 54), word16(head, 56));
    (0..count.min(MOST_HEADERS)).map(move |index| {
        let mut header = [0u8; PROGRAM_HEADER];
        let at = offset.wrapping_add(u64::from(index) * u64::from(size));
        let kind = |header: &[u8]| u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        (read_at(file, &mut header, at) == PROGRAM_HEADER).then(|| Segment {
            kind: kind(&header),
            offset: word64(&header, 8),
            address: word64(&header, 16),
            size: word64(&header, 32),
        })
    })
}

/// The relevant entries of the dynamic section.
#[derive(Default)]
struct Dynamic {
    /// Whether an entry of the dynamic section names the file as a library (DT_SONAME).
    names_itself: bool,
    /// Offset in the string table of the name of the first library that the program needs.
    needed: Option<u64>,
    /// Address of the string table.
    strings: u64,
}

impl Dynamic {
    fn read(file: i32, segment: &Segment) -> Dynamic {
        let mut dynamic = Dynamic::default();
        let mut part = [0u8; DYNAMIC_PART];
        for at in (0..segment.size.min(MOST_DYNAMIC)).step_by(DYNAMIC_PART) {
            let length = read_at(file, &mut part, segment.offset.wrapping_add(at));
            for entry in part[..length].chunks_exact(DYNAMIC_ENTRY) {
                match word64(entry, 0) {
                    DT_NULL => return dynamic,
                    DT_SONAME => dynamic.names_itself = true,
                    DT_NEEDED => dynamic.needed = dynamic.needed.or(Some(word64(entry, 8))),
                    DT_STRTAB => dynamic.strings = word64(entry, 8),
                    _ => {}
                }
            }
        }
        dynamic
    }

    /// Returns the first library that the program needs, if this library is a sanitizer's runtime.
    /// Later libraries need no check, because a runtime has to be loaded first.
    fn runtime(&self, file: i32, head: &[u8]) -> Option<Runtime> {
        let address = self.strings.checked_add(self.needed?)?;
        let holds = |segment: &Segment| {
            segment.kind == PT_LOAD && address.checked_sub(segment.address).is_some_and(|at| at < segment.size)
        };
        let segment = segments(file, head).flatten().find(holds)?;
        let mut name = [0u8; Runtime::MOST_NAME_BYTES];
        let read = read_at(file, &mut name, segment.offset.checked_add(address - segment.address)?);
        let length = name[..read].iter().position(|byte| *byte == 0)?;
        let is_one = Runtime::BEGINNINGS.iter().any(|beginning| name[..length].starts_with(beginning));
        is_one.then_some(Runtime { name, length })
    }
}
