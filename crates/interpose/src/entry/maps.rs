//! Reads /proc/self/maps: the mapping that contains a call site, other mappings of that mapping's
//! file, and the free space below the mapping. Uses a small buffer on the stack, and allocates
//! nothing.

use core::ops::Range;
use usring_sys::mapping::PAGE;
use usring_sys::process_maps::{Area, Line, Maps};
use usring_uapi::general as linux;

/// The mapping that contains a call site, from /proc/self/maps.
pub struct CodeArea {
    /// The address range of the mapping that contains the call site. If readable code of the mapped
    /// file ends directly before that mapping, the range begins with that code. (A page that was
    /// written to is a mapping of its own.)
    pub code: Range<usize>,
    pub protection: u32,
    /// Whether the mapping is private and of a file.
    is_private_file: bool,
    /// Address at which the beginning of the mapping's file is mapped: the nearest such mapping
    /// below the call site. `None`: the beginning is not mapped there.
    pub image: Option<usize>,
    /// Address at which the nearest free space below the mapping ends. The stub of a call site is
    /// made at the end of this space.
    pub room_below: usize,
}

impl CodeArea {
    /// Returns whether the mapping holds ordinary code: it is not writable, and is a private
    /// mapping of a file. So code that a run-time compiler makes is never rewritten.
    pub fn may_be_rewritten(&self) -> bool {
        self.is_private_file && self.protection == linux::PROT_READ | linux::PROT_EXEC
    }
}

/// Returns the mapping that contains an address.
pub fn area_of(address: usize) -> Option<CodeArea> {
    let maps = Maps::open()?;
    let mut lines = maps.lines();
    let (mut end_before, mut room_below) = (0, 0);
    let mut first_page = None;
    let (mut code_start, mut code_of) = (0, None);
    loop {
        let line = Line::parse(lines.next()?)?;
        let is_private_file = line.is_private_file();
        let Area { range, protection, offset, inode, .. } = line.area;
        let is_code = is_private_file && protection == linux::PROT_READ | linux::PROT_EXEC;
        if !is_code || range.start != end_before || code_of != Some(inode) {
            code_start = range.start;
        }
        code_of = is_code.then_some(inode);
        // The kernel lists mappings in order of address. Stubs are made in the last page of the
        // free space between two mappings. The space must have at least two pages: one page below
        // the stubs stays free, so that the lower mapping cannot grow into them.
        if range.start >= end_before + 2 * PAGE && range.start <= address {
            room_below = range.start;
        }
        end_before = range.end;
        if offset == 0 {
            first_page = Some((inode, range.start));
        }
        if range.contains(&address) {
            let image = first_page.filter(|(file, _)| is_private_file && *file == inode);
            return Some(CodeArea {
                code: code_start..range.end,
                protection,
                is_private_file,
                image: image.map(|(_, start)| start),
                room_below,
            });
        }
    }
}
