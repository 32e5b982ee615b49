//! Reads the list of this process's mappings (/proc/self/maps).

use crate::descriptor::OwnedDescriptor;
use crate::{Errno, SystemCall, width};
use alloc::vec::Vec;
use core::ops::Range;
use linux_raw_sys::general as linux;

/// `PROCMAP_QUERY`, from Linux 6.11 on: `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = 0xc068_6611;

/// Longest name of a mapping, in bytes.
const LONGEST_NAME: usize = 4096;

/// One mapping in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    pub range: Range<usize>,
    /// `PROT_READ`, `PROT_WRITE`, `PROT_EXEC`.
    pub protection: u32,
    /// Mapped with MAP_SHARED.
    pub is_shared: bool,
    /// Offset in the file, in bytes, at which the mapping begins.
    pub offset: u64,
    /// Major and minor number of the file system's device.
    pub device: (u32, u32),
    /// Inode number of the file; 0 for memory without a file.
    pub inode: u64,
}

/// The list of this process's mappings, opened.
pub struct Maps {
    file: OwnedDescriptor,
}

/// Determines whether memory is shared (MAP_SHARED). If it is, a forked child sees later writes of
/// its parent. Opens the list of mappings (/proc/self/maps) once, and queries each mapping once.
#[derive(Default)]
pub struct SharedCheck {
    /// The list of mappings. Outer `None`: not opened yet. Inner `None`: it cannot be opened.
    maps: Option<Option<Maps>>,
    /// Addresses of the last queried mapping that is shared.
    shared: Range<usize>,
}

impl SharedCheck {
    /// Returns whether all bytes of a range are shared. Returns `true`, too, if the list of
    /// mappings cannot be read.
    pub fn is_shared(&mut self, address: u64, length: u64) -> bool {
        let mut at = width::size(address);
        let end = at.saturating_add(width::size(length));
        while at < end {
            if !self.shared.contains(&at) {
                let Some(maps) = self.maps.get_or_insert_with(Maps::open) else { return true };
                match maps.area_of(at) {
                    Some(area) if area.is_shared => self.shared = area.range,
                    _ => return false,
                }
            }
            at = self.shared.end;
        }
        true
    }
}

impl Maps {
    /// Opens the list of mappings. `None` if there is no /proc, or no free descriptor.
    pub fn open() -> Option<Maps> {
        let path = c"/proc/self/maps".as_ptr() as u64;
        let flags = u64::from(linux::O_RDONLY | linux::O_CLOEXEC);
        let number =
            SystemCall::new(linux::__NR_openat, [width::word(linux::AT_FDCWD), path, flags, 0, 0]).run().ok()?;
        Some(Maps { file: OwnedDescriptor::from_raw(width::int(number)) })
    }

    /// Returns the mapping that contains an address. `None` if there is none, or if the kernel does
    /// not answer the query.
    pub fn area_of(&self, address: usize) -> Option<Area> {
        match self.query(address, &mut []) {
            Err(Errno::ENOTTY) => self.listed(address, |line| line.area.clone()),
            answer => answer.ok().map(|(area, _)| area),
        }
    }

    /// Returns the name of the mapping that contains an address. The name is the path of the
    /// mapping's file, or a name that the kernel has chosen, such as `[heap]`.
    pub fn name_of(&self, address: usize) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        name.try_reserve_exact(LONGEST_NAME).ok()?;
        name.resize(LONGEST_NAME, 0);
        match self.query(address, &mut name) {
            Err(Errno::ENOTTY) => {
                name.clear();
                let fits = |line: &Line| line.name.len() <= LONGEST_NAME;
                self.listed(address, |line| fits(line).then(|| name.extend_from_slice(line.name)))??;
            }
            // The length counts the terminating zero; a mapping without a name has length 0.
            Ok((_, length)) => name.truncate(length.saturating_sub(1)),
            Err(_) => return None,
        }
        Some(name)
    }

    /// Returns whether two addresses refer to one byte of one shared file.
    pub fn are_same(&self, first: usize, second: usize) -> bool {
        let place = |address: usize| {
            let area = self.area_of(address)?;
            let offset = area.offset + (address - area.range.start) as u64;
            area.is_shared.then_some((area.device, area.inode, offset))
        };
        place(first).is_some_and(|place_of_first| place(second) == Some(place_of_first))
    }

    /// Asks the kernel for the mapping that contains `address`. Writes the mapping's name to
    /// `name`, unless `name` is empty, and returns the name's length. Error: `ENOTTY` before Linux
    /// 6.11.
    fn query(&self, address: usize, name: &mut [u8]) -> Result<(Area, usize), Errno> {
        let mut query = linux::procmap_query {
            size: size_of::<linux::procmap_query>() as u64,
            query_flags: 0,
            query_addr: address as u64,
            vma_start: 0,
            vma_end: 0,
            vma_flags: 0,
            vma_page_size: 0,
            vma_offset: 0,
            inode: 0,
            dev_major: 0,
            dev_minor: 0,
            vma_name_size: width::count(name.len()),
            build_id_size: 0,
            vma_name_addr: if name.is_empty() { 0 } else { name.as_mut_ptr() as u64 },
            build_id_addr: 0,
        };
        let arguments = [width::word(self.file.number()), PROCMAP_QUERY, &raw mut query as u64, 0, 0];
        SystemCall::new(linux::__NR_ioctl, arguments).run()?;
        const SHARED: u64 = linux::procmap_query_flags::PROCMAP_QUERY_VMA_SHARED as u64;
        let area = Area {
            range: width::size(query.vma_start)..width::size(query.vma_end),
            // The kernel's first three flags of a mapping have the values of PROT_READ, PROT_WRITE
            // and PROT_EXEC.
            protection: (query.vma_flags & 7) as u32,
            is_shared: query.vma_flags & SHARED != 0,
            offset: query.vma_offset,
            device: (query.dev_major, query.dev_minor),
            inode: query.inode,
        };
        Ok((area, query.vma_name_size as usize))
    }

    /// Finds the line of the mapping that contains an address, by reading the list from its start.
    /// Returns what `examine` returns for that line.
    fn listed<T>(&self, address: usize, examine: impl FnOnce(&Line) -> T) -> Option<T> {
        let rewind = [width::word(self.file.number()), 0, u64::from(linux::SEEK_SET), 0, 0];
        SystemCall::new(linux::__NR_lseek, rewind).run().ok()?;
        let mut lines = self.lines();
        loop {
            let line = Line::parse(lines.next()?)?;
            if line.area.range.contains(&address) {
                return Some(examine(&line));
            }
        }
    }

    /// Reads the lines of the list of mappings (/proc/self/maps), from the file position on.
    pub fn lines(&self) -> Lines<'_> {
        Lines { file: &self.file, buffer: [0; 1024], start: 0, end: 0 }
    }
}

/// The lines of the list of mappings. A line that is longer than `buffer` is cut.
pub struct Lines<'a> {
    file: &'a OwnedDescriptor,
    buffer: [u8; 1024],
    start: usize,
    end: usize,
}

impl Lines<'_> {
    /// Returns the next line, without its newline. This type is no iterator, because a line lies in
    /// the buffer only until the next call.
    #[expect(clippy::should_implement_trait, reason = "an iterator's items outlive its next step")]
    pub fn next(&mut self) -> Option<&[u8]> {
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
                // The line is longer than the buffer. Its first 128 bytes stay in the buffer: they
                // contain all fields before the path. Then the buffer is filled with later bytes of
                // the line, so the path lacks its middle.
                self.end = 128;
            }
            let room = &mut self.buffer[self.end..];
            let arguments = [width::word(self.file.number()), room.as_mut_ptr() as u64, room.len() as u64, 0, 0];
            match SystemCall::new(linux::__NR_read, arguments).run() {
                Ok(0) | Err(_) => return None,
                Ok(length) => self.end += width::size(length),
            }
        }
    }
}

/// One line of the list of mappings.
pub struct Line<'a> {
    pub area: Area,
    pub name: &'a [u8],
}

impl<'a> Line<'a> {
    /// Reads the fields of a line: `7f00-7f10 r-xp 00001000 08:01 1234   /usr/lib/x.so`.
    pub fn parse(line: &'a [u8]) -> Option<Line<'a>> {
        let mut rest = line;
        let (start, end) = pair(word(&mut rest), b'-')?;
        let flags = word(&mut rest);
        let offset = hexadecimal(word(&mut rest))?;
        let (major, minor) = pair(word(&mut rest), b':')?;
        let inode = core::str::from_utf8(word(&mut rest)).ok()?.parse().ok()?;
        let protection = [linux::PROT_READ, linux::PROT_WRITE, linux::PROT_EXEC];
        let granted = protection.iter().zip(flags).filter(|(_, flag)| **flag != b'-');
        let area = Area {
            range: start..end,
            protection: granted.map(|(bit, _)| bit).sum(),
            is_shared: flags.get(3) == Some(&b's'),
            offset: offset as u64,
            device: (width::count(major), width::count(minor)),
            inode,
        };
        Some(Line { area, name: rest.trim_ascii_start() })
    }

    /// Returns whether this is a private mapping of a file. The pages of such a mapping are copied
    /// on write.
    pub fn is_private_file(&self) -> bool {
        !self.area.is_shared && self.name.first() == Some(&b'/')
    }
}

/// Removes the next word from the start of `rest` and returns it.
fn word<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let line = rest.trim_ascii_start();
    let end = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
    let (word, after) = line.split_at(end);
    *rest = after;
    word
}

fn pair(word: &[u8], between: u8) -> Option<(usize, usize)> {
    let at = word.iter().position(|byte| *byte == between)?;
    Some((hexadecimal(&word[..at])?, hexadecimal(&word[at + 1..])?))
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    usize::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}
