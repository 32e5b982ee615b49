//! SETXATTR, GETXATTR and their variants on descriptors. The answers depend on the file system. So
//! the cases compare each request's result with the result of the corresponding system call.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, opcode, sqe_flags};

use super::reg;
use crate::files::Scratch;
use crate::memory::BAD;
use crate::names;
use crate::ring::Ring;
use crate::sqe::{Change, nop, sqe};
use crate::transcript::Transcript;

const NAME: &CStr = c"user.conformance";

fn set(fd: i32, name: &CStr, value: &[u8], flags: u32, user_data: u64) -> Sqe {
    sqe(opcode::FSETXATTR, fd, user_data).op_flags(flags).with(|sqe| {
        (sqe.addr, sqe.off, sqe.len) = (name.as_ptr() as u64, value.as_ptr() as u64, value.len() as u32);
    })
}

fn get(fd: i32, name: &CStr, room: &mut [u8], user_data: u64) -> Sqe {
    set(fd, name, room, 0, user_data).with(|sqe| sqe.opcode = opcode::FGETXATTR)
}

fn on_path(request: Sqe, path: &CStr) -> Sqe {
    request.with(|sqe| {
        sqe.opcode += 1;
        (sqe.fd, sqe.addr3) = (0, path.as_ptr() as u64);
    })
}

fn answer(value: isize) -> i32 {
    if value < 0 { -std::io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { value as i32 }
}

fn set_now(fd: &OwnedFd, name: &CStr, value: &[u8], flags: i32) -> i32 {
    // SAFETY: the name is a C string, and the value is a readable slice.
    let value = unsafe { libc::fsetxattr(fd.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) };
    answer(value as isize)
}

fn get_now(fd: &OwnedFd, name: &CStr, room: &mut [u8]) -> i32 {
    // SAFETY: the name is a C string, and the value is a writable slice.
    let value = unsafe { libc::fgetxattr(fd.as_raw_fd(), name.as_ptr(), room.as_mut_ptr().cast(), room.len()) };
    answer(value)
}

fn file() -> (Scratch, OwnedFd) {
    let scratch = Scratch::new();
    let file = scratch.file("file", b"");
    (scratch, file)
}

fn same(t: &mut Transcript, what: &str, ring: i32, call: i32) {
    t.say(format_args!("{what}: as the call {}", ring == call));
    if ring != call {
        t.say(format_args!("{} and not {}", names::result(ring), names::result(call)));
    }
}

fn round_trip(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let ((_one, by_ring), (_two, by_call)) = (file(), file());
    let result = ring.one(set(by_ring.as_raw_fd(), NAME, b"value", 0, 1)).res;
    same(t, "set", result, set_now(&by_call, NAME, b"value", 0));
    let (mut here, mut there) = ([0; 16], [0; 16]);
    let result = ring.one(get(by_ring.as_raw_fd(), NAME, &mut here, 2)).res;
    same(t, "get", result, get_now(&by_call, NAME, &mut there));
    t.say(format_args!("same value {}", here == there));
}
case!(round_trip => "
    set: as the call true
    get: as the call true
    same value true
");

fn of_path(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let ((scratch, by_ring), (_two, by_call)) = (file(), file());
    let path = scratch.path_of("file");
    let result = ring.one(on_path(set(0, NAME, b"value", 0, 1), &path)).res;
    same(t, "set", result, set_now(&by_call, NAME, b"value", 0));
    let (mut here, mut there) = ([0; 16], [0; 16]);
    let result = ring.one(on_path(get(0, NAME, &mut here, 2), &path)).res;
    same(t, "get", result, get_now(&by_call, NAME, &mut there));
    same(t, "get by descriptor", result, get_now(&by_ring, NAME, &mut there));
    t.say(format_args!("same value {}", here == there));
    let missing = scratch.path_of("missing");
    t.entry(&ring.one(on_path(set(0, NAME, b"value", 0, 3), &missing)));
    t.entry(&ring.one(on_path(get(0, NAME, &mut here, 4), &missing)));
    t.entry(&ring.one(on_path(get(0, NAME, &mut here, 5), c"")));
    t.entry(&ring.one(on_path(get(0, NAME, &mut here, 6), c"").with(|sqe| sqe.addr3 = BAD)));
    let long = CString::new(vec![b'a'; 5000]).expect("no zero byte");
    t.entry(&ring.one(on_path(get(0, NAME, &mut here, 7), &long)));
}
case!(of_path => "
    set: as the call true
    get: as the call true
    get by descriptor: as the call true
    same value true
    cqe 3: -ENOENT
    cqe 4: -ENOENT
    cqe 5: -ENOENT
    cqe 6: -EFAULT
    cqe 7: -ENAMETOOLONG
");

fn sizes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_scratch, file) = file();
    set_now(&file, NAME, b"0123456789", 0);
    for length in [0, 5, 10, 11] {
        let (mut here, mut there) = ([0; 16], [0; 16]);
        let result = ring.one(get(file.as_raw_fd(), NAME, &mut here[..length], 1)).res;
        same(t, "get", result, get_now(&file, NAME, &mut there[..length]));
        t.say(format_args!("same value {}", here == there));
    }
    let large = vec![b'x'; 70_000];
    t.entry(&ring.one(set(file.as_raw_fd(), NAME, &large, 0, 2)));
    let mut room = vec![0; 70_000];
    let result = ring.one(get(file.as_raw_fd(), NAME, &mut room, 3)).res;
    same(t, "get", result, get_now(&file, NAME, &mut vec![0; 70_000]));
    let empty = ring.one(set(file.as_raw_fd(), NAME, b"", 0, 4)).res;
    same(t, "set to nothing", empty, set_now(&file, NAME, b"", 0));
}
case!(sizes => "
    get: as the call true
    same value true
    get: as the call true
    same value true
    get: as the call true
    same value true
    get: as the call true
    same value true
    cqe 2: -E2BIG
    get: as the call true
    set to nothing: as the call true
");

fn flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let ((_one, by_ring), (_two, by_call)) = (file(), file());
    for flags in [libc::XATTR_REPLACE, libc::XATTR_CREATE, libc::XATTR_CREATE, libc::XATTR_REPLACE, 3] {
        let result = ring.one(set(by_ring.as_raw_fd(), NAME, b"value", flags as u32, 1)).res;
        same(t, "set", result, set_now(&by_call, NAME, b"value", flags));
    }
    for flags in [4, 1 << 31] {
        t.entry(&ring.one(set(by_ring.as_raw_fd(), NAME, b"value", flags, 2)));
    }
    let mut room = [0; 4];
    t.entry(&ring.one(get(by_ring.as_raw_fd(), NAME, &mut room, 3).op_flags(1)));
}
case!(flags => "
    set: as the call true
    set: as the call true
    set: as the call true
    set: as the call true
    set: as the call true
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 3: -EINVAL
");

fn bad_names(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_scratch, file) = file();
    let fd = file.as_raw_fd();
    let mut room = [0; 4];
    let exact = CString::new([b"user.".to_vec(), vec![b'a'; 251]].concat()).expect("no zero byte");
    for name in [c"", exact.as_c_str()] {
        t.entry(&ring.one(set(fd, name, b"value", 0, 1)));
        t.entry(&ring.one(get(fd, name, &mut room, 2)));
    }
    for address in [0, BAD] {
        t.entry(&ring.one(set(fd, NAME, b"value", 0, 3).with(|sqe| sqe.addr = address)));
        t.entry(&ring.one(get(fd, NAME, &mut room, 4).with(|sqe| sqe.addr = address)));
    }
    for name in [c"nothing", c"user.", c"user.missing"] {
        let result = ring.one(get(fd, name, &mut room, 5)).res;
        same(t, "get", result, get_now(&file, name, &mut room));
    }
}
case!(bad_names => "
    cqe 1: -ERANGE
    cqe 2: -ERANGE
    cqe 1: -ERANGE
    cqe 2: -ERANGE
    cqe 3: -EFAULT
    cqe 4: -EFAULT
    cqe 3: -EFAULT
    cqe 4: -EFAULT
    get: as the call true
    get: as the call true
    get: as the call true
");

fn bad_values(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_scratch, file) = file();
    let fd = file.as_raw_fd();
    for address in [0, BAD] {
        t.entry(&ring.one(set(fd, NAME, b"value", 0, 1).with(|sqe| sqe.off = address)));
    }
    let empty = ring.one(set(fd, NAME, b"", 0, 2).with(|sqe| sqe.off = BAD)).res;
    same(t, "set to nothing", empty, set_now(&file, NAME, b"", 0));
}
case!(bad_values => "
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    set to nothing: as the call true
");

fn bad_files(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut room = [0; 4];
    t.entry(&ring.one(set(-1, NAME, b"value", 0, 1)));
    t.entry(&ring.one(get(-1, NAME, &mut room, 2)));
    // Here the name is empty and the descriptor is bad. The request gets the error for the name.
    t.entry(&ring.one(set(-1, c"", b"value", 0, 3)));
    t.entry(&ring.one(get(-1, c"", &mut room, 4)));
}
case!(bad_files => "
    cqe 1: -EBADF
    cqe 2: -EBADF
    cqe 3: -ERANGE
    cqe 4: -ERANGE
");

fn copied_by_submit(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let ((_one, by_ring), (_two, by_call)) = (file(), file());
    let mut name = NAME.to_bytes_with_nul().to_vec();
    let mut value = b"value".to_vec();
    ring.push(set(by_ring.as_raw_fd(), CStr::from_bytes_with_nul(&name).expect("one zero byte"), &value, 0, 1));
    ring.submit();
    name.fill(0);
    value.fill(0);
    let entries = ring.wait(1);
    same(t, "set", entries[0].res, set_now(&by_call, NAME, b"value", 0));
    let (mut here, mut there) = ([0; 16], [0; 16]);
    same(t, "get", get_now(&by_ring, NAME, &mut here), get_now(&by_call, NAME, &mut there));
    t.say(format_args!("same value {}", here == there));
}
case!(copied_by_submit => "
    set: as the call true
    get: as the call true
    same value true
");

fn breaks_no_chain(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_scratch, file) = file();
    let mut room = [0; 4];
    let missing = get(file.as_raw_fd(), c"user.missing", &mut room, 1);
    let entries = ring.run(&[missing.linked(), nop(2)]);
    t.entry(&entries[1]);
    let entries = ring.run(&[on_path(missing, c"/missing").linked(), nop(2)]);
    t.in_order(&entries);
    let replace = set(file.as_raw_fd(), NAME, b"", libc::XATTR_REPLACE as u32, 3);
    let entries = ring.run(&[replace.linked(), nop(4)]);
    t.entry(&entries[1]);
    t.in_order(&ring.run(&[set(-1, NAME, b"", 0, 5).linked(), nop(6)]));
}
case!(breaks_no_chain => "
    cqe 2: 0
    cqe 1: -ENOENT
    cqe 2: 0
    cqe 4: 0
    cqe 5: -EBADF
    cqe 6: -ECANCELED
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (scratch, file) = file();
    let path = scratch.path_of("file");
    let fd = file.as_raw_fd();
    let mut room = [0; 4];
    let all = [
        set(fd, NAME, b"value", 0, 1),
        get(fd, NAME, &mut room, 2),
        on_path(set(fd, NAME, b"value", 0, 3), &path),
        on_path(get(fd, NAME, &mut room, 4), &path),
    ];
    for request in all {
        let expected = ring.one(request).res;
        t.entry(&ring.one(request.with(|sqe| sqe.ioprio = 1)));
        t.entry(&ring.one(request.flagged(sqe_flags::BUFFER_SELECT)));
        let others: [fn(&mut Sqe); 3] = [|sqe| sqe.buf_index = 1, |sqe| sqe.file_index = 1, |sqe| sqe.pad2 = 1];
        for other in others {
            same(t, "nobody looks", ring.one(request.with(other)).res, expected);
        }
    }
}
case!(reserved_fields => "
    cqe 1: -EINVAL
    cqe 1: -EOPNOTSUPP
    nobody looks: as the call true
    nobody looks: as the call true
    nobody looks: as the call true
    cqe 2: -EINVAL
    cqe 2: -EOPNOTSUPP
    nobody looks: as the call true
    nobody looks: as the call true
    nobody looks: as the call true
    cqe 3: -EINVAL
    cqe 3: -EOPNOTSUPP
    nobody looks: as the call true
    nobody looks: as the call true
    nobody looks: as the call true
    cqe 4: -EINVAL
    cqe 4: -EOPNOTSUPP
    nobody looks: as the call true
    nobody looks: as the call true
    nobody looks: as the call true
");

fn registered_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (scratch, file) = file();
    let numbers = [file.as_raw_fd()];
    assert_eq!(ring.register(reg::FILES, numbers.as_ptr(), 1), 0);
    let path = scratch.path_of("file");
    let mut room = [0; 16];
    let result = ring.one(set(0, NAME, b"value", 0, 1).fixed()).res;
    same(t, "set", result, set_now(&file, NAME, b"value", 0));
    let result = ring.one(get(0, NAME, &mut room, 2).fixed()).res;
    same(t, "get", result, get_now(&file, NAME, &mut [0; 16]));
    t.entry(&ring.one(on_path(set(0, NAME, b"value", 0, 3), &path).fixed()));
    t.entry(&ring.one(on_path(get(0, NAME, &mut room, 4), &path).fixed()));
}
case!(registered_file => "
    set: as the call true
    get: as the call true
    cqe 3: -EBADF
    cqe 4: -EBADF
");
