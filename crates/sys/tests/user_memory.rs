//! Tests copies of the program's memory: from and to valid and invalid addresses that a program
//! could name.
#![cfg(not(loom))]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use usring_sys::mapping::{PAGE, private_pages, unmap};
use usring_sys::user_memory::{self, install_fault_handler};
use usring_sys::{Errno, SystemCall, UserAddress};
use usring_uapi::general as linux;
use usring_uapi::{Sqe, Timespec};

fn address<T: ?Sized>(of: &T) -> UserAddress {
    UserAddress((&raw const *of).cast::<u8>() as u64)
}

/// Two pages, the second with a chosen protection.
struct TwoPages(usize);

impl TwoPages {
    fn new(second: u32) -> TwoPages {
        install_fault_handler();
        let start = private_pages(2 * PAGE).unwrap();
        let arguments = [(start + PAGE) as u64, PAGE as u64, u64::from(second), 0, 0];
        SystemCall::new(linux::__NR_mprotect, arguments).run().unwrap();
        TwoPages(start)
    }

    /// Returns the address that lies `bytes` before the border between the two pages of this
    /// memory.
    fn before_border(&self, bytes: usize) -> UserAddress {
        UserAddress((self.0 + PAGE - bytes) as u64)
    }
}

impl Drop for TwoPages {
    fn drop(&mut self) {
        unmap(self.0, 2 * PAGE).unwrap();
    }
}

#[test]
fn values_of_every_size_are_copied_unchanged() {
    install_fault_handler();
    let sqe = Sqe { opcode: 7, user_data: 0x0123_4567_89ab_cdef, pad2: u64::MAX, ..Sqe::default() };
    assert_eq!(user_memory::read::<Sqe>(address(&sqe)), Ok(sqe));
    assert_eq!(user_memory::read::<u32>(address(&0xdead_beefu32)), Ok(0xdead_beef));
    assert_eq!(user_memory::read::<u16>(address(&0xbeefu16)), Ok(0xbeef));
    let time = Timespec { tv_sec: -1, tv_nsec: 999_999_999 };
    assert_eq!(user_memory::read::<Timespec>(address(&time)), Ok(time));
    let mut target = std::hint::black_box([0u64; 3]);
    user_memory::write(UserAddress(target.as_mut_ptr() as u64), [1u64, 2, 3]).unwrap();
    assert_eq!(std::hint::black_box(target), [1, 2, 3]);
}

#[test]
fn bytes_of_every_length_and_alignment_are_copied() {
    install_fault_handler();
    let source: Vec<u8> = (0..=255).collect();
    for start in 0..9 {
        for length in 0..200 {
            let mut target = vec![0xee; length + 1];
            user_memory::copy_in(&mut target[..length], UserAddress(source[start..].as_ptr() as u64)).unwrap();
            assert_eq!(target[..length], source[start..start + length]);
            assert_eq!(target[length], 0xee, "no byte after the end was written");
            target.fill(0);
            user_memory::copy_out(UserAddress(target.as_mut_ptr() as u64), &source[start..start + length]).unwrap();
            assert_eq!(target[..length], source[start..start + length]);
        }
    }
}

/// Tests lengths around 512 bytes and around multiples of the page size. From 512 bytes on, another
/// copy routine is used.
#[test]
fn a_long_copy_writes_exactly_its_length() {
    install_fault_handler();
    let source: Vec<u8> = (0..70_000u32).map(|index| (index * 7 + index / 251) as u8).collect();
    for length in [511, 512, 513, 1000, 4095, 4096, 4097, 65_536, 69_990] {
        for start in [0, 1, 9] {
            let mut target = vec![0xee; length + 1];
            user_memory::copy_in(&mut target[..length], UserAddress(source[start..].as_ptr() as u64)).unwrap();
            assert!(target[..length] == source[start..start + length] && target[length] == 0xee, "{length} in");
            target.fill(0xee);
            user_memory::copy_out(UserAddress(target.as_mut_ptr() as u64), &source[start..start + length]).unwrap();
            assert!(target[..length] == source[start..start + length] && target[length] == 0xee, "{length} out");
        }
    }
}

#[test]
fn a_long_copy_that_runs_into_a_bad_page_fails_with_efault() {
    let pages = TwoPages::new(linux::PROT_NONE);
    for length in [512, 1000, 4096] {
        let mut buffer = vec![0u8; length];
        assert_eq!(user_memory::copy_in(&mut buffer, pages.before_border(length)), Ok(()));
        for inside in [0, 1, 63, 64, 500, length - 1] {
            assert_eq!(user_memory::copy_in(&mut buffer, pages.before_border(inside)), Err(Errno::EFAULT));
            assert_eq!(user_memory::copy_out(pages.before_border(inside), &buffer), Err(Errno::EFAULT));
        }
    }
}

/// An address at which nothing is ever mapped. It is far below this position-independent program,
/// and far above the first pages. A page that was just unmapped would not do, because another test
/// of this process could map memory there.
const NEVER_MAPPED: u64 = 1 << 30;

#[test]
fn an_unmapped_address_fails_with_efault() {
    install_fault_handler();
    for bad in [UserAddress::NULL, UserAddress(8), UserAddress(NEVER_MAPPED)] {
        assert_eq!(user_memory::read::<u64>(bad), Err(Errno::EFAULT));
        assert_eq!(user_memory::read::<u8>(bad), Err(Errno::EFAULT));
        assert_eq!(user_memory::write::<Sqe>(bad, Sqe::default()), Err(Errno::EFAULT));
        assert_eq!(user_memory::read_array::<[u64; 2]>(bad, 3), Err(Errno::EFAULT));
        assert_eq!(user_memory::read_c_string(bad, 100), Err(Errno::EFAULT));
        assert_eq!(user_memory::probe_writable(bad, 1), Err(Errno::EFAULT));
    }
}

#[test]
fn an_address_outside_user_space_fails_with_efault_without_an_access() {
    let not_canonical = 0x8000_0000_0000_0000u64;
    let last_page = 0x7fff_ffff_f000u64;
    let vsyscall = 0xffff_ffff_ff60_0000u64;
    for bad in [not_canonical, last_page, last_page - 7, vsyscall, u64::MAX, u64::MAX - 7, 1 << 47] {
        assert_eq!(user_memory::read::<u64>(UserAddress(bad)), Err(Errno::EFAULT));
        assert_eq!(user_memory::copy_out(UserAddress(bad), &[0; 8]), Err(Errno::EFAULT));
    }
    assert_eq!(user_memory::read_array::<u64>(UserAddress(8), usize::MAX / 4), Err(Errno::EFAULT));
}

#[test]
fn a_copy_fails_with_efault_wherever_the_bad_page_begins() {
    let pages = TwoPages::new(linux::PROT_NONE);
    for length in 1..150 {
        let mut buffer = vec![0u8; length];
        assert_eq!(user_memory::copy_in(&mut buffer, pages.before_border(length)), Ok(()));
        for inside in 0..length {
            assert_eq!(user_memory::copy_in(&mut buffer, pages.before_border(inside)), Err(Errno::EFAULT));
            assert_eq!(user_memory::copy_out(pages.before_border(inside), &buffer), Err(Errno::EFAULT));
        }
    }
    assert_eq!(user_memory::read::<Sqe>(pages.before_border(63)), Err(Errno::EFAULT));
    assert_eq!(user_memory::read::<Timespec>(pages.before_border(15)), Err(Errno::EFAULT));
    assert_eq!(user_memory::read::<u32>(pages.before_border(3)), Err(Errno::EFAULT));
}

#[test]
fn a_read_only_page_can_be_read_and_not_written() {
    let pages = TwoPages::new(linux::PROT_READ);
    let at = pages.before_border(0);
    assert_eq!(user_memory::read::<u64>(at), Ok(0));
    assert_eq!(user_memory::write::<u64>(at, 1), Err(Errno::EFAULT));
    assert_eq!(user_memory::probe_writable(pages.before_border(PAGE), PAGE), Ok(()));
    assert_eq!(user_memory::probe_writable(pages.before_border(1), 2), Err(Errno::EFAULT));
    assert_eq!(user_memory::probe_writable(pages.before_border(PAGE), 2 * PAGE), Err(Errno::EFAULT));
}

#[test]
fn a_mapping_beyond_the_end_of_its_file_fails_with_efault() {
    install_fault_handler();
    let name = c"empty".as_ptr() as u64;
    let file = SystemCall::new(linux::__NR_memfd_create, [name, 0, 0, 0, 0]).run().unwrap();
    let arguments = [0, PAGE as u64, u64::from(linux::PROT_READ), u64::from(linux::MAP_SHARED), file, 0];
    let at = SystemCall::with_six(linux::__NR_mmap, arguments).run().unwrap();
    // This access raises SIGBUS instead of SIGSEGV.
    assert_eq!(user_memory::read::<u64>(UserAddress(at)), Err(Errno::EFAULT));
    unmap(at as usize, PAGE).unwrap();
    SystemCall::new(linux::__NR_close, [file, 0, 0, 0, 0]).run().unwrap();
}

#[test]
fn a_string_ends_at_its_nul_even_at_the_end_of_memory() {
    let pages = TwoPages::new(linux::PROT_NONE);
    user_memory::copy_out(pages.before_border(6), b"hello\0").unwrap();
    assert_eq!(user_memory::read_c_string(pages.before_border(6), 4096).unwrap(), b"hello\0");
    assert_eq!(user_memory::read_c_string(pages.before_border(6), 6).unwrap(), b"hello\0");
    assert_eq!(user_memory::read_c_string(pages.before_border(1), 4096).unwrap(), b"\0");
    assert_eq!(user_memory::read_c_string(pages.before_border(6), 5), Err(Errno::ENAMETOOLONG));
    user_memory::copy_out(pages.before_border(1), b"x").unwrap();
    assert_eq!(user_memory::read_c_string(pages.before_border(6), 4096), Err(Errno::EFAULT));
    let long = [vec![b'a'; 3000], vec![0]].concat();
    assert_eq!(user_memory::read_c_string(address(&long[..]), 4096).unwrap(), long);
    assert_eq!(user_memory::read_c_string(address(&long[..]), 3000), Err(Errno::ENAMETOOLONG));
}

#[test]
fn an_array_is_copied_whole_or_not_at_all() {
    let pages = TwoPages::new(linux::PROT_NONE);
    let bytes: Vec<u8> = (0..32).collect();
    user_memory::copy_out(pages.before_border(32), &bytes).unwrap();
    let array = user_memory::read_array::<[u64; 2]>(pages.before_border(32), 2).unwrap();
    assert_eq!(array, [[0x0706050403020100, 0x0f0e0d0c0b0a0908], [0x1716151413121110, 0x1f1e1d1c1b1a1918]]);
    assert_eq!(user_memory::read_array::<[u64; 2]>(pages.before_border(32), 3), Err(Errno::EFAULT));
    assert_eq!(user_memory::read_array::<u64>(pages.before_border(0), 0), Ok(Vec::new()));
}

#[test]
fn threads_that_fault_at_the_same_time_do_not_disturb_each_other() {
    let pages = TwoPages::new(linux::PROT_NONE);
    let border = pages.before_border(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    assert_eq!(user_memory::read::<u64>(border), Err(Errno::EFAULT));
                    assert_eq!(user_memory::read::<u32>(border), Ok(0));
                }
            });
        }
    });
}

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
    fn raise(number: i32) -> i32;
    fn _exit(status: i32) -> !;
}

const SIGSEGV: i32 = 11;

extern "C" fn exit_with_42(_: i32) {
    // SAFETY: `_exit` has no requirement. It ends the process.
    unsafe { _exit(42) }
}

fn touch_null() {
    // SAFETY: the write is invalid on purpose. It faults, and changes no memory.
    unsafe { std::hint::black_box(std::ptr::null_mut::<u8>()).write_volatile(1) };
}

/// Acts as the child process of a test. `role` selects the handler that the process installs first,
/// and the way in which it gets a SIGSEGV.
fn play(role: &str) {
    let before = match role {
        "with_handler" => exit_with_42 as *const () as usize,
        "ignored" => 1,
        _ => 0,
    };
    if role != "with_runtime" {
        // SAFETY: the handler only ends the process.
        unsafe { signal(SIGSEGV, before) };
    }
    install_fault_handler();
    assert_eq!(user_memory::read::<u64>(UserAddress::NULL), Err(Errno::EFAULT));
    if role == "sent" || role == "ignored" {
        // SAFETY: raise(3) accesses no memory.
        unsafe { raise(SIGSEGV) };
    } else {
        touch_null();
    }
    std::process::exit(0);
}

/// Runs `play(role)` in a process of its own. Returns the exit code of the process, and the signal
/// that killed it.
fn child(role: &str) -> (Option<i32>, Option<i32>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "body_of_the_child_process", "--test-threads=1"]).env("USRING_TEST_ROLE", role);
    let status = command.output().unwrap().status;
    (status.code(), status.signal())
}

#[test]
fn body_of_the_child_process() {
    if let Ok(role) = std::env::var("USRING_TEST_ROLE") {
        play(&role);
    }
}

#[test]
fn a_fault_of_the_program_kills_it_as_without_the_handler() {
    assert_eq!(child("default"), (None, Some(SIGSEGV)));
    assert_eq!(child("with_runtime"), (None, Some(SIGSEGV)));
}

#[test]
fn a_fault_of_the_program_reaches_the_earlier_handler() {
    assert_eq!(child("with_handler"), (Some(42), None));
}

#[test]
fn a_sent_sigsegv_keeps_its_earlier_disposition() {
    assert_eq!(child("sent"), (None, Some(SIGSEGV)));
    assert_eq!(child("ignored"), (Some(0), None));
}
