//! Tests deposits: files that a process and its forked children pass on to each other.
#![cfg(not(loom))]

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use usring_sys::deposit::{self, Contents, DepositedFile, Key, TakenFile};
use usring_sys::{Errno, per_process};

/// Lets one test run at a time. All tests of this process use one queue, and some tests check the
/// whole content of the queue.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn key(object: u32, number: u32) -> Key {
    Key { object: [object, 1], kind: 0, number }
}

/// Makes a memory file with this content.
fn file(content: &str) -> OwnedFd {
    // SAFETY: the name is a C string, and the call makes a new descriptor.
    let mut file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) };
    file.write_all(content.as_bytes()).unwrap();
    file.into()
}

fn text(taken: &TakenFile) -> String {
    let mut bytes = [0u8; 16];
    // SAFETY: the buffer has this length.
    let count = unsafe { libc::pread(taken.file.number(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    String::from_utf8_lossy(&bytes[..usize::try_from(count).unwrap()]).into_owned()
}

fn put(key: Key, files: &[&str]) -> Result<(), Errno> {
    let files: Vec<OwnedFd> = files.iter().map(|content| file(content)).collect();
    let item = |(index, file): (usize, &OwnedFd)| DepositedFile { file: file.as_raw_fd(), words: [index as u64, 9] };
    let items: Vec<DepositedFile> = files.iter().enumerate().map(item).collect();
    deposit::put(key, [u64::from(key.number), 5], &items)
}

/// Returns the contents of a deposit's files; `None`: there is no such deposit.
fn taken(key: Key) -> Option<Vec<String>> {
    let Contents { words, files } = deposit::take(key).unwrap()?;
    assert_eq!(words, [u64::from(key.number), 5]);
    for (index, file) in files.iter().enumerate() {
        assert_eq!(file.words, [index as u64, 9]);
    }
    Some(files.iter().map(text).collect())
}

/// Runs `work` in a forked child. The child must succeed.
fn in_child(work: impl FnOnce()) {
    // SAFETY: this test binary's other threads hold no lock that `work` needs: see `ONE_AT_A_TIME`.
    // The child ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    let mut status = 0;
    // SAFETY: the status is a local variable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
}

fn begin() -> std::sync::MutexGuard<'static, ()> {
    per_process::prepare().unwrap();
    usring_sys::process_number::own().unwrap();
    ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[test]
fn a_deposit_outlives_the_process_that_made_it() {
    let _alone = begin();
    in_child(|| put(key(1, 1), &["one", "two"]).unwrap());
    let contents = Some(vec!["one".to_owned(), "two".to_owned()]);
    assert_eq!(taken(key(1, 1)), contents);
    in_child(|| assert_eq!(taken(key(1, 1)).unwrap(), ["one", "two"]));
    assert_eq!(taken(key(1, 1)), contents, "taking a deposit leaves it where it is");
    assert_eq!(taken(key(1, 2)), None);
    deposit::keep_only(key(1, 0));
}

#[test]
fn removing_a_deposit_leaves_those_of_others_in_order() {
    let _alone = begin();
    for (object, number) in [(11, 1), (12, 2), (11, 3), (13, 4)] {
        put(key(object, number), &[&format!("{object}.{number}")]).unwrap();
    }
    in_child(|| deposit::keep_only(key(11, 3)));
    assert_eq!(taken(key(11, 1)), None);
    for (object, number) in [(12, 2), (11, 3), (13, 4)] {
        assert_eq!(taken(key(object, number)).unwrap(), [format!("{object}.{number}")]);
        deposit::keep_only(key(object, 0));
        assert_eq!(taken(key(object, number)), None);
    }
}

#[test]
fn a_removed_deposit_keeps_no_file_open() {
    let _alone = begin();
    let (mut reader, writer) = std::io::pipe().unwrap();
    deposit::put(key(21, 1), [1, 5], &[DepositedFile { file: writer.as_raw_fd(), words: [0, 9] }]).unwrap();
    drop(writer);
    deposit::keep_only(key(21, 0));
    // Without a writer the pipe has ended.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_deposit_may_have_many_files_or_none() {
    let _alone = begin();
    put(key(31, 1), &[]).unwrap();
    assert_eq!(taken(key(31, 1)), Some(vec![]));
    let contents: Vec<String> = (0..600).map(|number| format!("file {number}")).collect();
    let contents: Vec<&str> = contents.iter().map(String::as_str).collect();
    put(key(31, 2), &contents).unwrap();
    assert_eq!(taken(key(31, 2)).unwrap(), contents);
    deposit::keep_only(key(31, 0));
}

#[test]
fn a_deposit_for_which_there_is_no_room_leaves_nothing() {
    let _alone = begin();
    let null = std::fs::File::open("/dev/null").unwrap();
    let items = vec![DepositedFile { file: null.as_raw_fd(), words: [0, 9] }; 250];
    let number = (1..100_000).find(|number| deposit::put(key(41, *number), [0; 2], &items).is_err());
    let number = number.expect("the queue is bounded");
    assert!(deposit::take(key(41, number)).unwrap().is_none());
    assert!(deposit::take(key(41, number - 1)).unwrap().is_some());
    deposit::keep_only(key(41, 0));
    put(key(41, 0), &["room"]).unwrap();
    assert_eq!(taken(key(41, 0)).unwrap(), ["room"]);
}
