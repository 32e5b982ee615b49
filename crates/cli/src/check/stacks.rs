//! Finds the callers in a copied stack, and names them: function, file and line.

use addr2line::Loader;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use object::{Object, ObjectSection, ObjectSegment};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use usring_check::format::CopiedStack;

/// Maximum number of callers that are found in one stack.
const MOST_CALLERS: usize = 24;

/// A program or library that a process has mapped.
struct Mapped {
    path: PathBuf,
    /// The addresses at which the file's code is mapped.
    range: Range<u64>,
    /// Difference between a symbol's address in memory and its address in the file.
    bias: u64,
}

/// One function in a stack, the innermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    pub function: String,
    /// Source file and line of the caller's call. If they are unknown: the file name of the program
    /// or library. If the function is unknown, too, the address in that file follows.
    pub place: String,
}

/// Writes a line for each caller.
pub fn write_callers(text: &mut String, callers: &[Caller]) {
    let width = callers.iter().map(|caller| caller.function.len()).max().unwrap_or(0).min(40);
    for Caller { function, place } in callers {
        let _ = writeln!(text, "    {function:width$}  {place}");
    }
}

/// Symbols of programs and libraries, read once.
#[derive(Default)]
pub struct Symbols {
    loaders: HashMap<PathBuf, Option<Rc<Loader>>>,
}

impl Symbols {
    /// Returns the callers in a stack. `maps`: the lines of the process's /proc/PID/maps.
    pub fn callers(&mut self, stack: &CopiedStack, maps: &[u8]) -> Vec<Caller> {
        if stack.registers.instruction == 0 {
            return Vec::new();
        }
        let mapped = Mapped::all(maps);
        let mut callers = Vec::new();
        for frame in frames(stack, &mapped) {
            if is_of_usring(frame.address, &mapped) {
                continue;
            }
            let found = self.name(frame.address, &mapped);
            let is_last = found.iter().any(|caller| caller.function == "main");
            callers.extend(found);
            if is_last || callers.len() >= MOST_CALLERS {
                break;
            }
        }
        callers
    }

    /// Names the callers in a stack that a sanitizer has recorded. The stack consists of return
    /// addresses of 8 bytes each.
    pub fn named(&mut self, recorded: &[u8], maps: &[u8]) -> Vec<Caller> {
        let mapped = Mapped::all(maps);
        let mut callers = Vec::new();
        for address in recorded.as_chunks::<8>().0 {
            // The return address less one byte lies inside the call instruction, and so in the
            // source line of the call.
            let found = self.name(u64::from_le_bytes(*address).saturating_sub(1), &mapped);
            let is_last = found.iter().any(|caller| caller.function == "main");
            // The innermost function of a recorded stack is the sanitizer's own, such as its
            // `free`, which replaces libc's.
            callers.extend(found.into_iter().filter(|caller| !caller.function.starts_with("__interceptor_")));
            if is_last {
                break;
            }
        }
        callers
    }

    /// Returns whether a stack frame has ended between two calls of its thread. The frame is the
    /// one that held `buffer` at the earlier call `then`. `now` is the later call. Returns `false`
    /// if the frame still exists, or if the copied stacks are too short to tell.
    pub fn has_frame_ended(&mut self, buffer: u64, then: &CopiedStack, now: &CopiedStack, maps: &[u8]) -> bool {
        let mapped = Mapped::all(maps);
        let Some(home) = frames(then, &mapped).into_iter().find(|frame| frame.end > buffer) else { return false };
        let frames = frames(now, &mapped);
        // The later stack is conclusive only if it was copied and unwound beyond the buffer's
        // frame. Otherwise it does not show whether that frame has ended.
        let is_known = frames.iter().any(|frame| frame.end > home.end);
        let same = frames.iter().filter(|frame| frame.end == home.end);
        is_known && same.map(|frame| frame.address).all(|other| self.are_different(home.address, other, &mapped))
    }

    /// Returns whether two addresses are certainly in different functions.
    fn are_different(&mut self, one: u64, other: u64, mapped: &[Mapped]) -> bool {
        let module = |address| mapped.iter().find(|module| module.range.contains(&address));
        let (Some(module_of_one), Some(module_of_other)) = (module(one), module(other)) else { return false };
        if module_of_one.path != module_of_other.path {
            return true;
        }
        let Some(loader) = self.loader(&module_of_one.path) else { return false };
        let function = |address| Some(loader.find_symbol_info(address - module_of_one.bias)?.address());
        function(one).is_some_and(|one| function(other).is_some_and(|other| one != other))
    }

    fn loader(&mut self, path: &Path) -> Option<Rc<Loader>> {
        let load = || Loader::new(path).ok().map(Rc::new);
        self.loaders.entry(path.to_owned()).or_insert_with(load).clone()
    }

    /// Names the function at an address, and the functions that it was inlined into.
    fn name(&mut self, address: u64, mapped: &[Mapped]) -> Vec<Caller> {
        let Some(module) = mapped.iter().find(|module| module.range.contains(&address)) else {
            return vec![Caller { function: format!("{address:#x}"), place: String::new() }];
        };
        let library = module.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let at = address - module.bias;
        let unknown = || vec![Caller { function: "?".into(), place: format!("{library}+{at:#x}") }];
        let Some(loader) = self.loader(&module.path) else { return unknown() };
        let mut callers = Vec::new();
        if let Ok(mut frames) = loader.find_frames(at) {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame.function.as_ref().and_then(|name| name.demangle().ok().map(|name| name.into_owned()));
                let place = frame.location.and_then(|it| Some(format!("{}:{}", shorten(it.file?), it.line?)));
                if let Some(function) = name {
                    callers.push(Caller { function, place: place.unwrap_or_else(|| library.clone()) });
                }
            }
        }
        if callers.is_empty()
            && let Some(name) = loader.find_symbol(at)
        {
            let function = addr2line::demangle_auto(name.into(), None).into_owned();
            callers.push(Caller { function, place: library.clone() });
        }
        if callers.is_empty() { unknown() } else { callers }
    }
}

/// Returns whether an address is in usring's library, whose functions replace some of liburing's.
fn is_of_usring(address: u64, mapped: &[Mapped]) -> bool {
    let module = mapped.iter().find(|module| module.range.contains(&address));
    let name = module.and_then(|module| module.path.file_name());
    name.is_some_and(|name| name.as_bytes().starts_with(b"libusring.so"))
}

/// Shortens a path below the current folder.
fn shorten(path: &str) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    Path::new(path).strip_prefix(here).map_or_else(|_| path.to_owned(), |below| below.display().to_string())
}

/// A function's frame in a copied stack.
struct Frame {
    /// An address in the function.
    address: u64,
    /// The stack pointer of the caller (the canonical frame address); 0 if it is not known.
    end: u64,
}

/// Returns the frames of a stack, the innermost first.
fn frames(stack: &CopiedStack, mapped: &[Mapped]) -> Vec<Frame> {
    let mut unwinder = UnwinderX86_64::<Vec<u8>>::new();
    mapped.iter().filter_map(Mapped::module).for_each(|module| unwinder.add_module(module));
    let mut cache = CacheX86_64::new();
    let mut read = |address: u64| {
        let at = usize::try_from(address.checked_sub(stack.registers.stack).ok_or(())?).map_err(|_| ())?;
        let bytes = stack.bytes.get(at..at.saturating_add(8)).ok_or(())?;
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| ())?))
    };
    // The saved instruction pointer is the address after the call instruction. This address less
    // one byte lies inside the call instruction, and so in the source line of the call.
    let start = stack.registers.instruction - 1;
    let mut address = FrameAddress::InstructionPointer(start);
    let mut registers = UnwindRegsX86_64::new(start, stack.registers.stack, stack.registers.frame);
    let mut frames = Vec::new();
    while frames.len() < MOST_CALLERS {
        let here = address.address_for_lookup();
        let caller = unwinder.unwind_frame(address, &mut registers, &mut cache, &mut read);
        match caller.ok().flatten().and_then(FrameAddress::from_return_address) {
            Some(caller) => {
                frames.push(Frame { address: here, end: registers.sp() });
                address = caller;
            }
            None => {
                frames.push(Frame { address: here, end: 0 });
                break;
            }
        }
    }
    frames
}

impl Mapped {
    fn all(maps: &[u8]) -> Vec<Mapped> {
        maps.split(|byte| *byte == b'\n').filter_map(Mapped::of_line).collect()
    }

    /// Reads a line of /proc/PID/maps, such as `7f00-7f10 r-xp 00001000 08:01 1234 /usr/lib/x.so`,
    /// and the file that the line names. `None` if the line names no file, or the file cannot be
    /// parsed.
    fn of_line(line: &[u8]) -> Option<Mapped> {
        let text = String::from_utf8_lossy(line);
        let mut words = text.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let offset = number(words.nth(1)?)?;
        let name = line.iter().position(|byte| *byte == b'/')?;
        let path = PathBuf::from(OsStr::from_bytes(&line[name..]));
        let bytes = std::fs::read(&path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        let holds = |it: &object::Segment| {
            let (from, size) = it.file_range();
            (from & !0xfff..from + size).contains(&offset)
        };
        let segment = file.segments().find(holds)?;
        let bias = (start - offset).wrapping_sub(segment.address().wrapping_sub(segment.file_range().0));
        Some(Mapped { path, range: start..end, bias })
    }

    /// Returns the unwind information of the file.
    fn module(&self) -> Option<Module<Vec<u8>>> {
        let bytes = std::fs::read(&self.path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        let range = |name: &str| {
            let section = file.section_by_name(name)?;
            Some(section.address()..section.address() + section.size())
        };
        let data = |name: &str| file.section_by_name(name)?.uncompressed_data().ok().map(|data| data.into_owned());
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: range(".text"),
            text: data(".text"),
            stubs_svma: None,
            stub_helper_svma: None,
            got_svma: range(".got"),
            unwind_info: None,
            eh_frame_svma: range(".eh_frame"),
            eh_frame: data(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            debug_frame: data(".debug_frame"),
            text_segment_svma: None,
            text_segment: None,
        };
        Some(Module::new(self.path.display().to_string(), self.range.clone(), self.bias, sections))
    }
}
