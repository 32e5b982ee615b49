//! Which kinds of mappings the kernel can pin. It has to pin registered buffers, buffer rings, and
//! the memory of NO_MMAP rings.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::io_uring as u;

use super::reg;
use crate::files::{self, Scratch};
use crate::memory::{PAGE, Pages, zeroed};
use crate::ring::{Params, Ring};
use crate::sqe::vector;
use crate::syscalls;
use crate::transcript::Transcript;

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Maps two pages of a file.
fn map(file: i32, protection: i32, flags: i32) -> Pages {
    // SAFETY: the mapping is new, at an address that the kernel chooses.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, flags, file, 0) };
    assert!(address != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    Pages { address: address.cast(), length: 2 * PAGE }
}

fn whole(pages: &Pages) -> libc::iovec {
    vector(pages.at(0), pages.length)
}

/// Makes a ring, registers `memory` as its only buffer, and prints the result after `name`.
fn attempt(t: &mut Transcript, name: &str, memory: libc::iovec) {
    let ring = Ring::new(4);
    t.result(name, ring.register(reg::BUFFERS, &raw const memory, 1));
}

fn on_disk(scratch: &Scratch) -> OwnedFd {
    scratch.file("data", &[0; 2 * PAGE])
}

fn of_a_file(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = on_disk(&scratch);
    let number = file.as_raw_fd();
    attempt(t, "shared", whole(&map(number, READ_WRITE, libc::MAP_SHARED)));
    attempt(t, "shared, to be read", whole(&map(number, libc::PROT_READ, libc::MAP_SHARED)));
    attempt(t, "private", whole(&map(number, READ_WRITE, libc::MAP_PRIVATE)));
    attempt(t, "private, to be read", whole(&map(number, libc::PROT_READ, libc::MAP_PRIVATE)));
    let mut written = map(number, READ_WRITE, libc::MAP_PRIVATE);
    written.bytes()[0] = 1;
    attempt(t, "private, written to", whole(&written));
    let protected = map(number, READ_WRITE, libc::MAP_SHARED);
    protected.protect_last(libc::PROT_READ);
    attempt(t, "shared, one byte", vector(protected.at(0), 1));
}
case!(of_a_file => "
    shared = -EFAULT
    shared, to be read = -EFAULT
    private = 0
    private, to be read = -EFAULT
    private, written to = 0
    shared, one byte = -EFAULT
");

fn of_files_in_memory(t: &mut Transcript) {
    let file = files::memory_file(&[0; 2 * PAGE]);
    for (name, flags) in [("memory file, shared", libc::MAP_SHARED), ("memory file, private", libc::MAP_PRIVATE)] {
        attempt(t, name, whole(&map(file.as_raw_fd(), READ_WRITE, flags)));
    }
    attempt(t, "shared, no file", whole(&map(-1, READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS)));
}
case!(of_files_in_memory => "
    memory file, shared = 0
    memory file, private = 0
    shared, no file = 0
");

fn of_secret_memory(t: &mut Transcript) {
    // SAFETY: the call touches no memory. The code below takes ownership of the descriptor.
    let secret = unsafe { libc::syscall(libc::SYS_memfd_secret, 0) } as i32;
    if secret < 0 {
        return t.say("this kernel has no memfd_secret(2)");
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let secret = unsafe { OwnedFd::from_raw_fd(secret) };
    // SAFETY: the call touches no memory.
    unsafe { libc::ftruncate(secret.as_raw_fd(), 2 * PAGE as i64) };
    attempt(t, "secret", whole(&map(secret.as_raw_fd(), READ_WRITE, libc::MAP_SHARED)));
}
case!(of_secret_memory => "secret = -EFAULT");

/// The kernel refuses a buffer that begins in an anonymous mapping and ends in a mapping of a file.
fn across_mappings(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = on_disk(&scratch);
    let pages = Pages::new(4);
    // SAFETY: the case owns the last two pages.
    let place = unsafe {
        let middle = pages.address.add(2 * PAGE).cast();
        libc::mmap(middle, 2 * PAGE, READ_WRITE, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd(), 0)
    };
    assert!(place != libc::MAP_FAILED);
    let border = 2 * PAGE;
    attempt(t, "before it", vector(pages.at(0), border));
    attempt(t, "the byte before it", vector(pages.at(border - 1), 1));
    attempt(t, "one byte of it", vector(pages.at(border - 1), 2));
    attempt(t, "both", vector(pages.at(0), 2 * border));
    attempt(t, "the last byte", vector(pages.at(2 * border - 1), 1));
}
case!(across_mappings => "
    before it = 0
    the byte before it = 0
    one byte of it = -EFAULT
    both = -EFAULT
    the last byte = -EFAULT
");

fn second_generation(t: &mut Transcript) {
    let scratch = Scratch::new();
    let bad = map(on_disk(&scratch).as_raw_fd(), READ_WRITE, libc::MAP_SHARED);
    let good = Pages::new(2);
    let ring = Ring::new(4);
    for vectors in [[whole(&good), whole(&bad)], [whole(&bad), whole(&good)], [whole(&good), whole(&good)]] {
        let mut registration: u::io_uring_rsrc_register = zeroed();
        (registration.nr, registration.data) = (2, vectors.as_ptr() as u64);
        let size = size_of_val(&registration) as u32;
        t.result("register", ring.register(reg::BUFFERS2, &raw const registration, size));
    }
}
case!(second_generation => "
    register = -EFAULT
    register = -EFAULT
    register = 0
");

fn update(t: &mut Transcript) {
    let scratch = Scratch::new();
    let bad = map(on_disk(&scratch).as_raw_fd(), READ_WRITE, libc::MAP_SHARED);
    let good = Pages::new(2);
    let ring = Ring::new(4);
    let vectors = [whole(&good), whole(&good)];
    t.result("register", ring.register(reg::BUFFERS, vectors.as_ptr(), 2));
    for vectors in [[whole(&good), whole(&bad)], [whole(&bad), whole(&good)]] {
        let mut update: u::io_uring_rsrc_update2 = zeroed();
        (update.nr, update.data) = (2, vectors.as_ptr() as u64);
        let size = size_of_val(&update) as u32;
        t.result("update", ring.register(reg::BUFFERS_UPDATE, &raw const update, size));
    }
}
case!(update => "
    register = 0
    update = 1
    update = -EFAULT
");

fn buffer_ring(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = on_disk(&scratch);
    let memory_file = files::memory_file(&[0; 2 * PAGE]);
    let ring = Ring::new(4);
    let memories = [
        ("file, shared", map(file.as_raw_fd(), READ_WRITE, libc::MAP_SHARED)),
        ("file, private", map(file.as_raw_fd(), READ_WRITE, libc::MAP_PRIVATE)),
        ("memory file", map(memory_file.as_raw_fd(), READ_WRITE, libc::MAP_SHARED)),
    ];
    for (group, (name, memory)) in memories.iter().enumerate() {
        let mut registration: u::io_uring_buf_reg = zeroed();
        (registration.ring_addr, registration.ring_entries) = (memory.at(0), 8);
        registration.bgid = group as u16;
        t.result(name, ring.register(reg::PBUF_RING, &raw const registration, 1));
    }
    drop(ring);
}
case!(buffer_ring => "
    file, shared = -EFAULT
    file, private = 0
    memory file = 0
");

fn ring_in_own_memory(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = on_disk(&scratch);
    let shared = || map(file.as_raw_fd(), READ_WRITE, libc::MAP_SHARED);
    let private = || map(file.as_raw_fd(), READ_WRITE, libc::MAP_PRIVATE);
    for (name, rings, entries) in [
        ("rings in a file", shared(), Pages::new(1)),
        ("entries in a file", Pages::new(1), shared()),
        ("private of a file", private(), private()),
    ] {
        let mut params: Params = zeroed();
        params.flags = u::IORING_SETUP_NO_MMAP;
        (params.cq_off.user_addr, params.sq_off.user_addr) = (rings.at(0), entries.at(0));
        let number = syscalls::setup(8, &mut params);
        t.outcome(name, number.min(0).into());
        if number >= 0 {
            syscalls::close(number);
        }
    }
}
case!(ring_in_own_memory => "
    rings in a file = -EFAULT
    entries in a file = -EFAULT
    private of a file = ok
");

/// A thousand buffers, each in its own mapping, can be registered. The registration fails if one
/// more buffer is added, which lies in a mapping of a file.
fn many(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = on_disk(&scratch);
    let ring = Ring::new(4);
    // An unused page follows each of these pages, so each page is a separate mapping.
    let pages: Vec<Pages> = (0..1000).map(|_| Pages::new(1)).collect();
    let mut vectors: Vec<libc::iovec> = pages.iter().map(whole).collect();
    let bad = map(file.as_raw_fd(), READ_WRITE, libc::MAP_SHARED);
    vectors.push(whole(&bad));
    t.result("with the file's", ring.register(reg::BUFFERS, vectors.as_ptr(), 1001));
    t.result("without", ring.register(reg::BUFFERS, vectors.as_ptr(), 1000));
}
case!(many => "
    with the file's = -EFAULT
    without = 0
");
