//! Descriptor numbers in the reserved range. The tables of rings and of devices share this range.

use usring_sys::descriptor::{OwnedDescriptor, RESERVED_BASE};
use usring_sys::{Errno, SystemCall, hazard, own_numbers, width};
use usring_uapi::general as linux;

/// Length of the tables of rings and of devices. A number beyond the tables belongs to no ring and
/// to no device.
pub const NUMBERS: usize = 65536;

/// Ends the use of an object of the tables of rings and devices. For a thread that holds the lock
/// of a ring: if this was the object's last use, the object is freed later, when the thread holds
/// no lock.
pub fn end_inside(held: hazard::Use) {
    if held.end_inside() {
        usring_engine::host::run_later(hazard::sweep);
    }
}

/// Duplicates a descriptor. The new number is in the reserved range. It is at least `lowest` if the
/// program's soft limit of open files allows such a number.
pub fn duplicate_reserved(number: i32, lowest: i32, close_on_exec: bool) -> Result<OwnedDescriptor, Errno> {
    let command = if close_on_exec { linux::F_DUPFD_CLOEXEC } else { linux::F_DUPFD };
    let lowest = lowest.max(RESERVED_BASE);
    let arguments = [width::word(number), u64::from(command), width::word(lowest), 0, 0];
    match SystemCall::new(linux::__NR_fcntl, arguments).run() {
        // The program's soft limit of open files allows no number in the reserved range.
        Err(Errno::EINVAL | Errno::EMFILE) => own_numbers::duplicate_for_program(number, close_on_exec),
        made => made.map(|new| OwnedDescriptor::from_raw(width::int(new))),
    }
}

/// Returns the id that /proc shows for an eventfd, plus 1. The eventfd has the descriptor `number`
/// in `process`; `None` stands for this process. Returns `None` if the file is no eventfd.
pub fn eventfd_id(process: Option<u32>, number: i32) -> Option<u64> {
    let mut path = PathTo { bytes: [0; 40], length: 0 };
    path.push(b"/proc/");
    match process {
        Some(process) => path.push_number(process),
        None => path.push(b"self"),
    }
    path.push(b"/fdinfo/");
    path.push_number(number.cast_unsigned());
    let flags = u64::from(linux::O_RDONLY | linux::O_CLOEXEC);
    let arguments = [width::word(linux::AT_FDCWD), path.bytes.as_ptr() as u64, flags, 0, 0];
    let file = OwnedDescriptor::from_raw(width::int(SystemCall::new(linux::__NR_openat, arguments).run().ok()?));
    let mut text = [0u8; 512];
    let arguments = [width::word(file.number()), text.as_mut_ptr() as u64, text.len() as u64, 0, 0];
    let length = width::size(SystemCall::new(linux::__NR_read, arguments).run().ok()?);
    let label = b"eventfd-id:";
    let start = text[..length].windows(label.len()).position(|window| window == label)? + label.len();
    let digits = text[start..length].iter().skip_while(|byte| **byte == b' ').take_while(|byte| byte.is_ascii_digit());
    // 1 is added, because 0 stands for an unknown id.
    Some(1 + digits.fold(0u64, |value, digit| value * 10 + u64::from(digit - b'0')))
}

struct PathTo {
    bytes: [u8; 40],
    length: usize,
}

impl PathTo {
    fn push(&mut self, text: &[u8]) {
        self.bytes[self.length..self.length + text.len()].copy_from_slice(text);
        self.length += text.len();
    }

    fn push_number(&mut self, number: u32) {
        if number >= 10 {
            self.push_number(number / 10);
        }
        self.push(&[b'0' + (number % 10) as u8]);
    }
}
