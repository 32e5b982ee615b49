//! Tests usring's replacements of libc's functions: the memory routines and the allocator. The
//! expected results come from simple implementations. (This program is linked with usring's memory
//! routines instead of libc's.)

#[path = "../src/runtime/allocator.rs"]
mod allocator;
#[path = "../src/runtime/routines.rs"]
mod routines;

use allocator::Allocator;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn memcpy(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void;
    fn memmove(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void;
    fn memset(to: *mut c_void, byte: c_int, count: usize) -> *mut c_void;
    fn memcmp(one: *const c_void, other: *const c_void, count: usize) -> c_int;
    fn bcmp(one: *const c_void, other: *const c_void, count: usize) -> c_int;
    fn strlen(text: *const i8) -> usize;
}

/// Lengths for the tests: each length at which a routine changes its method, and some longer ones.
fn lengths() -> impl Iterator<Item = usize> {
    (0..200).chain([255, 256, 257, 511, 1000, 1023, 1024, 1025, 1040, 4095, 5000])
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251 + seed * 13) as u8).collect()
}

const BUFFER_LENGTH: usize = 6000;

/// Returns what `bytes` must hold after a copy from one part of it to another. Does not use the
/// routines that are tested.
fn copied(bytes: &[u8], to: usize, from: usize, count: usize) -> Vec<u8> {
    let moved: Vec<u8> = bytes.iter().skip(from).take(count).copied().collect();
    let place = |index: usize| index.checked_sub(to).and_then(|at| moved.get(at)).copied();
    bytes.iter().enumerate().map(|(index, byte)| place(index).unwrap_or(*byte)).collect()
}

#[test]
fn memmove_copies_overlapping_ranges() {
    for count in lengths() {
        for (to, from) in
            [(0, 1), (1, 0), (3, 19), (19, 3), (40, 8), (8, 40), (64, 0), (0, 64), (500, 17), (17, 500), (9, 9)]
        {
            let mut bytes = pattern(BUFFER_LENGTH, count);
            let expected = copied(&bytes, to, from, count);
            let start = bytes.as_mut_ptr();
            // SAFETY: both ranges lie within the array.
            let answer = unsafe { memmove(start.add(to).cast(), start.add(from).cast(), count) };
            assert_eq!(answer, start.wrapping_add(to).cast());
            assert!(bytes == expected, "{count} bytes from {from} to {to}");
        }
    }
}

#[test]
fn memcpy_copies_every_length_at_every_alignment() {
    let source = pattern(BUFFER_LENGTH, 5);
    for count in lengths() {
        for (to, from) in [(0, 0), (1, 0), (0, 1), (7, 3), (15, 8), (8, 15)] {
            let mut target = pattern(BUFFER_LENGTH, 9);
            let mut both = target.clone();
            both.extend_from_slice(&source);
            let expected = copied(&both, to, BUFFER_LENGTH + from, count);
            // SAFETY: the allocations are separate, and each has `count` bytes from its offset on.
            unsafe { memcpy(target.as_mut_ptr().add(to).cast(), source.as_ptr().add(from).cast(), count) };
            assert!(target[..] == expected[..BUFFER_LENGTH], "{count} bytes from {from} to {to}");
        }
    }
}

#[test]
fn memset_sets_exactly_its_range() {
    for count in lengths() {
        for to in [0, 1, 9, 16] {
            let mut bytes = pattern(BUFFER_LENGTH, 1);
            let before = bytes.clone();
            // SAFETY: the range lies within the array. memset uses only the low byte of the number.
            let answer = unsafe { memset(bytes.as_mut_ptr().add(to).cast(), 0x1_5a, count) };
            assert_eq!(answer, bytes.as_mut_ptr().wrapping_add(to).cast());
            let right = |(index, byte): (usize, &u8)| {
                *byte == if (to..to + count).contains(&index) { 0x5a } else { before[index] }
            };
            assert!(bytes.iter().enumerate().all(right), "{count} bytes at {to}");
        }
    }
}

#[test]
fn memcmp_finds_the_first_difference_and_its_sign() {
    for count in lengths() {
        let one = pattern(BUFFER_LENGTH, 3);
        // SAFETY: the range lies within the array.
        assert_eq!(unsafe { memcmp(one.as_ptr().cast(), one.as_ptr().cast(), count) }, 0);
        for at in [0, 1, 6, 7, 8, 9, 15, 100, count.saturating_sub(1), count] {
            let mut other = one.clone();
            other[at] = other[at].wrapping_add(1);
            // The byte after the first difference differs in the opposite direction. memcmp must
            // ignore this second difference.
            other[at + 1] = other[at + 1].wrapping_sub(1);
            let expected = if at < count { one[at].cmp(&other[at]) as i32 } else { 0 };
            // SAFETY: the ranges lie within their arrays.
            let answer = unsafe { memcmp(one.as_ptr().cast(), other.as_ptr().cast(), count) };
            assert_eq!(answer.signum(), expected, "{count} bytes, different at {at}");
            // SAFETY: the ranges lie within their arrays.
            let differs = unsafe { bcmp(one.as_ptr().cast(), other.as_ptr().cast(), count) } != 0;
            assert_eq!(differs, expected != 0);
        }
    }
}

#[test]
fn strlen_stops_at_the_nul() {
    for length in 0..40 {
        let mut text = vec![b'x'; length];
        text.extend_from_slice(b"\0y");
        // SAFETY: the text ends with a NUL.
        assert_eq!(unsafe { strlen(text.as_ptr().cast()) }, length);
    }
}

/// A block of the allocator that the test owns. Each of its bytes is `mark`.
struct Owned {
    start: *mut u8,
    layout: Layout,
    mark: u8,
}

impl Owned {
    fn new(allocator: &Allocator, size: usize, alignment: usize, mark: u8) -> Owned {
        let layout = Layout::from_size_align(size, alignment).unwrap();
        // SAFETY: the size of the layout is not 0.
        let start = unsafe { allocator.alloc_zeroed(layout) };
        assert!(!start.is_null() && start.addr().is_multiple_of(alignment), "{layout:?} at {start:?}");
        let mut owned = Owned { start, layout, mark: 0 };
        owned.check();
        owned.mark = mark;
        // SAFETY: the block has this size, and belongs to this test alone.
        unsafe { start.write_bytes(mark, size) };
        owned
    }

    fn check(&self) {
        // SAFETY: the block has this size, and all of it was written.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, self.layout.size()) };
        assert!(bytes.iter().all(|byte| *byte == self.mark), "{:?} was written over", self.layout);
    }

    fn grow(&mut self, allocator: &Allocator, size: usize) {
        let kept = size.min(self.layout.size());
        // SAFETY: the block comes from this allocator, with this layout.
        self.start = unsafe { allocator.realloc(self.start, self.layout, size) };
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        assert!(self.start.addr().is_multiple_of(self.layout.align()));
        // SAFETY: realloc kept the first `kept` bytes, and the block now has `size` bytes.
        unsafe {
            assert!(std::slice::from_raw_parts(self.start, kept).iter().all(|byte| *byte == self.mark));
            self.start.write_bytes(self.mark, size);
        }
    }

    fn free(self, allocator: &Allocator) {
        self.check();
        // SAFETY: the block comes from this allocator with this layout, and is freed once.
        unsafe { allocator.dealloc(self.start, self.layout) };
    }
}

#[test]
fn blocks_of_several_threads_never_overlap() {
    static ALLOCATOR: Allocator = Allocator::new();
    let work = |seed: u64| {
        let mut random = seed;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        let mut owned: Vec<Owned> = Vec::new();
        for round in 0..30_000u32 {
            let size = match next(8) {
                0 => 1 + next(200_000),
                1 | 2 => 1 + next(5000),
                _ => 1 + next(300),
            } as usize;
            if owned.len() > 200 || (next(2) == 0 && !owned.is_empty()) {
                let index = next(owned.len() as u64) as usize;
                match next(3) {
                    0 => owned[index].grow(&ALLOCATOR, size),
                    _ => owned.swap_remove(index).free(&ALLOCATOR),
                }
            } else {
                let alignment = 1 << next(if size < 10_000 { 13 } else { 7 });
                owned.push(Owned::new(&ALLOCATOR, size, alignment, round as u8 | 1));
            }
        }
        owned.into_iter().for_each(|one| one.free(&ALLOCATOR));
    };
    std::thread::scope(|scope| {
        for seed in 1..=3 {
            scope.spawn(move || work(seed));
        }
    });
}

#[test]
fn alignment_beyond_a_page_is_refused() {
    static ALLOCATOR: Allocator = Allocator::new();
    let layout = Layout::from_size_align(100, 8192).unwrap();
    // SAFETY: the size of the layout is not 0.
    assert!(unsafe { ALLOCATOR.alloc(layout) }.is_null());
}

/// Makes a system call; returns `u64::MAX` if it fails.
fn call(number: u32, arguments: [u64; 5]) -> u64 {
    usring_sys::SystemCall::new(number, arguments).run().unwrap_or(u64::MAX)
}

#[test]
fn a_block_comes_from_the_reserve_when_the_kernel_refuses_memory() {
    use usring_uapi::general as linux;
    let allocator = Allocator::new();
    allocator.keep_reserve().unwrap();
    let child = call(linux::__NR_fork, [0; 5]);
    if child == 0 {
        // Only the soft limit of address space is changed, so the child can raise it again.
        let limit = |soft: u64| {
            let limits = [soft, u64::MAX];
            call(linux::__NR_prlimit64, [0, linux::RLIMIT_AS.into(), &raw const limits as u64, 0, 0])
        };
        limit(0);
        let layout = Layout::from_size_align(100_000, 16).unwrap();
        // SAFETY: the size of the layout is not 0.
        let block = unsafe { allocator.alloc_zeroed(layout) };
        let is_served = !block.is_null() && !allocator.refill();
        limit(u64::MAX);
        // SAFETY: the block was just allocated, with this layout.
        let is_zero = is_served && (0..layout.size()).all(|at| unsafe { block.add(at).read() } == 0);
        call(linux::__NR_exit_group, [u64::from(!(is_zero && allocator.refill())), 0, 0, 0, 0]);
    }
    let mut status = 1u32;
    assert_eq!(call(linux::__NR_wait4, [child, &raw mut status as u64, 0, 0, 0]), child);
    assert_eq!(status, 0);
}
