//! Reads /proc/self/maps: the mapping that holds a call site, other mappings of its file, and free
//! room near by. Uses a small buffer on the stack, and allocates nothing.

use core::ops::Range;
use usring_sys::SystemCall;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::mapping::PAGE;
use usring_uapi::general as linux;

/// A mapping, from /proc/self/maps.
pub struct Area {
    /// The mapping, and readable code of its file that lies directly before it: a page that was
    /// written to is a mapping of its own.
    pub code: Range<usize>,
    pub protection: u32,
    /// Whether it is a private mapping of a file.
    is_private_file: bool,
    /// Address of the file's beginning: the nearest mapping below of its first page.
    pub image: Option<usize>,
    /// End of the nearest free room below.
    pub room_below: usize,
}

impl Area {
    /// Whether it is ordinary code: read-only, of a file, and copied on write. (Code of a run-time
    /// compiler is left to the compiler.)
    pub fn may_be_rewritten(&self) -> bool {
        self.is_private_file && self.protection == linux::PROT_READ | linux::PROT_EXEC
    }
}

/// Returns the mapping that holds an address.
pub fn area_of(address: usize) -> Option<Area> {
    let path = c"/proc/self/maps";
    let flags = u64::from(linux::O_RDONLY | linux::O_CLOEXEC);
    let arguments = [linux::AT_FDCWD as u64, path.as_ptr() as u64, flags, 0, 0];
    let file = OwnedDescriptor::from_raw(SystemCall::new(linux::__NR_openat, arguments).run().ok()? as i32);
    let mut lines = Lines { file, buffer: [0; 1024], start: 0, end: 0 };
    let (mut end_before, mut room_below) = (0, 0);
    let mut first_page = None;
    let (mut code_start, mut code_of) = (0, None);
    loop {
        let line = Line::parse(lines.next()?)?;
        let is_code = line.is_private_file && line.protection == linux::PROT_READ | linux::PROT_EXEC;
        if !is_code || line.start != end_before || code_of != Some(line.file) {
            code_start = line.start;
        }
        code_of = is_code.then_some(line.file);
        // The kernel lists mappings in order. The room must have two pages: the lower one stays
        // free, so that no mapping grows into the stubs.
        if line.start >= end_before + 2 * PAGE && line.start <= address {
            room_below = line.start;
        }
        end_before = line.end;
        if line.offset == 0 {
            first_page = Some((line.file, line.start));
        }
        if (line.start..line.end).contains(&address) {
            let image = first_page.filter(|(file, _)| line.is_private_file && *file == line.file);
            return Some(Area {
                code: code_start..line.end,
                protection: line.protection,
                is_private_file: line.is_private_file,
                image: image.map(|(_, start)| start),
                room_below,
            });
        }
    }
}

/// The lines of a file, each cut at the buffer's size.
struct Lines {
    file: OwnedDescriptor,
    buffer: [u8; 1024],
    start: usize,
    end: usize,
}

impl Lines {
    fn next(&mut self) -> Option<&[u8]> {
        loop {
            let rest = &self.buffer[self.start..self.end];
            if let Some(length) = rest.iter().position(|byte| *byte == b'\n') {
                let line = self.start..self.start + length;
                self.start += length + 1;
                return Some(&self.buffer[line]);
            }
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.buffer.len() {
                // A path longer than the buffer: the fields that are needed come before it.
                self.end = 128;
            }
            let room = &mut self.buffer[self.end..];
            let arguments = [self.file.number() as u64, room.as_mut_ptr() as u64, room.len() as u64, 0, 0];
            match SystemCall::new(linux::__NR_read, arguments).run() {
                Ok(0) | Err(_) => return None,
                Ok(length) => self.end += length as usize,
            }
        }
    }
}

struct Line {
    start: usize,
    end: usize,
    protection: u32,
    offset: usize,
    /// Number of the inode.
    file: u64,
    is_private_file: bool,
}

impl Line {
    /// Parses a line: `7f00-7f10 r-xp 00001000 08:01 1234   /usr/lib/x.so`.
    fn parse(line: &[u8]) -> Option<Line> {
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let range = words.next()?;
        let dash = range.iter().position(|byte| *byte == b'-')?;
        let flags = words.next()?;
        let offset = hexadecimal(words.next()?)?;
        let file = words.nth(1).and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok())?;
        let is_file = words.next().is_some_and(|path| path.first() == Some(&b'/'));
        let protection = [linux::PROT_READ, linux::PROT_WRITE, linux::PROT_EXEC];
        let granted = protection.iter().zip(flags).filter(|(_, flag)| **flag != b'-');
        Some(Line {
            start: hexadecimal(&range[..dash])?,
            end: hexadecimal(&range[dash + 1..])?,
            protection: granted.map(|(bit, _)| bit).sum(),
            offset,
            file,
            is_private_file: is_file && flags.get(3) == Some(&b'p'),
        })
    }
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    usize::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}
