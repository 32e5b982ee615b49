//! Tests of a device in a file: with the kernel's AIO on a disk, on tmpfs and on a block device;
//! through the page cache; and without AIO.

mod common;
mod file {
    pub mod place;
}

#[path = "../../../xtask/src/skipped.rs"]
mod skipped;

use common::Subject;
use common::harness::{Memory, Rig, Traffic, WAIT_LIMIT, is_error, is_readable, transfer};
use file::place::{
    Place, answer_for_kernel, denied, in_child, loop_device, refuse_single_requests, with_small_file_system,
};
use skipped::skip;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;
use usring_device::driver::file::{FileDriver, FileOptions};
use usring_device::spec::parse;
use usring_device::{Completions, Driver, Operation, OwnSupply, QueueOptions, Submission};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, SystemCall};
use usring_uapi::general as linux;

const POLLED: QueueOptions = QueueOptions { depth: 32, interrupts: false };
const SIZE: u64 = 8 << 20;

fn try_open(text: &str) -> Result<Box<dyn Driver>, Errno> {
    parse(text).unwrap().open(Box::new(OwnSupply))
}

fn open(text: &str) -> Box<dyn Driver> {
    try_open(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns a device in a sparse file. The file is removed as soon as the device is open.
fn subject(place: fn() -> Place, options: &'static str) -> Subject {
    let open = move || {
        let file = place();
        file.make(SIZE);
        open(&file.text(options))
    };
    Subject { open: Box::new(open), keeps_data: true, touches_memory: true }
}

mod on_disk {
    use super::*;
    any_driver!(subject(Place::on_disk, ""));
}

mod on_tmpfs {
    use super::*;
    any_driver!(subject(Place::on_tmpfs, ""));
}

mod through_the_page_cache {
    use super::*;
    any_driver!(subject(Place::on_disk, ",direct=off"));
}

mod through_the_page_cache_of_tmpfs {
    use super::*;
    any_driver!(subject(Place::on_tmpfs, ",direct=off"));
}

mod without_contexts {
    use super::*;
    fn subject() -> Subject {
        let plain = super::subject(Place::on_disk, "");
        Subject { open: Box::new(move || denied((plain.open)())), ..plain }
    }
    any_driver!(subject());
}

#[test]
fn a_block_device_passes_the_tests_of_a_file() {
    let mut parts: Vec<fn(&Subject)> =
        vec![common::geometry_is_valid, common::discard_write_zeroes_and_flush_take_effect];
    parts.extend([common::polled_traffic_completes_once_and_correctly as fn(&Subject)]);
    parts.extend([common::traffic_with_interrupts_completes_once_and_correctly as fn(&Subject)]);
    for part in parts {
        let Some(device) = loop_device(SIZE) else {
            return skip("no loop device may be made here");
        };
        let text = format!("file:path={}", device.path);
        assert_eq!(open(&text).geometry().size, SIZE);
        assert_eq!(try_open(&format!("{text},size={}", 2 * SIZE)).err(), Some(Errno::ENOSPC));
        let open = move || open(&text);
        part(&Subject { open: Box::new(open), keeps_data: true, touches_memory: true });
        drop(device);
    }
}

#[test]
fn direct_io_is_the_default_where_the_file_supports_it() {
    let file = Place::on_disk();
    file.make(SIZE);
    // The geometry shows whether O_DIRECT is used, because it requires aligned memory.
    let geometry = |options| open(&file.text(options)).geometry();
    assert_eq!(geometry(",direct=off").alignment, 1);
    assert!(geometry(",direct=on").alignment > 1);
    assert_eq!(geometry(""), geometry(",direct=on"));
    let driver = open(&file.text(",direct=on"));
    let memory = Memory::new(8192);
    let mut rig = Rig::new(&*driver, POLLED);
    assert!(is_error(rig.transfer(Operation::Read, 0, &[memory.segment(1, 4096)]), Errno::EINVAL));
}

#[test]
fn writes_reach_the_file_and_reads_return_its_contents() {
    for options in ["", ",direct=off"] {
        let file = Place::on_disk();
        let disk = file.make(SIZE);
        let driver = open(&file.text(options));
        thread::scope(|scope| {
            for job in 0..4 {
                let (driver, disk) = (&*driver, &disk);
                scope.spawn(move || {
                    let mut rig = Rig::new(driver, POLLED);
                    let part = job * (SIZE / 4);
                    for block in 0..64u64 {
                        let data = vec![(1 + job * 64 + block) as u8; 4096];
                        rig.write(part + block * 8192, &data);
                        let mut found = vec![0; 4096];
                        disk.read_exact_at(&mut found, part + block * 8192).unwrap();
                        assert!(found == data, "job {job}, block {block}");
                        disk.write_all_at(&[0xab; 512], part + block * 8192 + 4096).unwrap();
                        assert!(rig.read(part + block * 8192 + 4096, 512) == [0xab; 512]);
                    }
                });
            }
        });
    }
}

#[test]
fn a_device_keeps_working_after_its_file_is_removed() {
    let file = Place::on_disk();
    let disk = file.make(SIZE);
    let driver = open(&file.text(""));
    let mut rig = Rig::new(&*driver, POLLED);
    rig.write(4096, &[1; 4096]);
    file.remove();
    rig.write(8192, &[2; 4096]);
    assert!(rig.read(4096, 4096) == [1; 4096]);
    // A queue pair also works if it is opened after the file was removed.
    assert!(Rig::new(&*driver, POLLED).read(8192, 4096) == [2; 4096]);
    let mut found = [0; 4096];
    disk.read_exact_at(&mut found, 8192).unwrap();
    assert!(found == [2; 4096]);
}

#[test]
fn reads_beyond_the_end_of_a_truncated_file_fail() {
    for options in ["", ",direct=off"] {
        let file = Place::on_disk();
        let disk = file.make(SIZE);
        let driver = open(&file.text(options));
        let mut rig = Rig::new(&*driver, POLLED);
        disk.set_len(8192).unwrap();
        let memory = Memory::new(8192);
        let result = rig.transfer(Operation::Read, 1 << 20, &[memory.segment(0, 4096)]);
        assert!(is_error(result, Errno::EIO), "{result}");
        assert_eq!(rig.transfer(Operation::Read, 4096, &[memory.segment(0, 8192)]), 4096, "bytes up to the file's end");
        assert_eq!(rig.read(0, 4096), [0; 4096]);
    }
}

#[test]
fn writes_to_a_full_file_system_fail_with_enospc() {
    let ran = with_small_file_system(1 << 20, |folder| {
        let path = format!("{folder}/image");
        fs::write(&path, []).unwrap();
        for options in ["", ",direct=off"] {
            let driver = open(&format!("file:path={path},size=8M,create=on{options}"));
            let mut rig = Rig::new(&*driver, POLLED);
            let memory = Memory::new(64 << 10);
            let mut write = |at: u64| rig.transfer(Operation::Write, at * (64 << 10), &[memory.segment(0, 64 << 10)]);
            let results: Vec<i32> = (0..32).map(&mut write).collect();
            assert!(results[0] == 64 << 10 && is_error(results[31], Errno::ENOSPC), "{results:?}");
            assert_eq!(write(0), 64 << 10, "allocated blocks can be written");
            assert_eq!(rig.range(Operation::Discard, 0, 8 << 20), 0);
            rig.write(7 << 20, &[7; 4096]);
        }
    });
    if !ran {
        skip("no file system may be mounted here");
    }
}

#[test]
fn the_device_size_is_that_of_the_file_or_of_the_size_option() {
    let file = Place::on_disk();
    let disk = file.make(10_000);
    let size = |options: &str| try_open(&file.text(options)).map(|driver| driver.geometry().size);
    assert_eq!(size(""), Ok(9728), "the size is rounded down to whole blocks");
    assert_eq!(size(",size=4096"), Ok(4096));
    assert_eq!(size(",size=1M,read-only=on"), Err(Errno::ENOSPC));
    assert_eq!(size(",size=1M"), Err(Errno::ENOSPC));
    assert_eq!(size(",size=1M,create=off"), Err(Errno::ENOSPC));
    assert_eq!(size(",size=4096,create=on"), Ok(4096));
    assert_eq!(disk.metadata().unwrap().len(), 10_000, "the file's length has not changed");
    assert_eq!(size(",size=1M,create=on"), Ok(1 << 20));
    assert_eq!(disk.metadata().unwrap().len(), 1 << 20);
    disk.set_len(511).unwrap();
    assert_eq!(size(""), Err(Errno::EINVAL), "the file is shorter than a block");
}

#[test]
fn a_size_that_is_refused_leaves_the_file_as_long_as_it_was() {
    let file = Place::on_disk();
    let disk = file.make(4096);
    let path = CString::new(file.path.as_str()).unwrap();
    let options = FileOptions { path, size: Some(10_000), create: true, ..FileOptions::default() };
    assert_eq!(FileDriver::open(&options).err(), Some(Errno::EINVAL), "half a block");
    assert_eq!(disk.metadata().unwrap().len(), 4096);
}

#[test]
fn a_device_on_part_of_a_file_leaves_the_rest_unchanged() {
    let file = Place::on_disk();
    let disk = file.make(0);
    disk.write_all_at(&[0x77; 16384], 0).unwrap();
    let driver = open(&file.text(",size=8K"));
    let mut rig = Rig::new(&*driver, POLLED);
    assert_eq!(rig.range(Operation::WriteZeroes, 0, 8192), 0);
    let mut rest = [0; 16384];
    disk.read_exact_at(&mut rest, 0).unwrap();
    assert!(rest[..8192] == [0; 8192] && rest[8192..] == [0x77; 8192]);
}

#[test]
fn paths_other_than_regular_files_and_block_devices_are_refused() {
    let file = Place::on_disk();
    let refused = |path: &str| try_open(&format!("file:path={path}")).err();
    assert_eq!(refused(&file.path), Some(Errno::ENOENT), "a missing file is not created");
    assert_eq!(refused(&format!("{},size=1M", file.path)), Some(Errno::ENOENT));
    assert_eq!(refused(&format!("{},size=1M,create=on", file.path)), None);
    let made = fs::metadata(&file.path).unwrap();
    assert_eq!((made.len(), made.permissions().mode() & 0o777), (1 << 20, 0o600));
    fs::remove_file(&file.path).unwrap();
    assert_eq!(refused("/dev/null"), Some(Errno::EINVAL));
    assert_eq!(refused(&std::env::temp_dir().display().to_string()), Some(Errno::EISDIR));
    // The path is a fifo without a writer. If opening the device waited for a writer, it would
    // never return.
    let path = std::ffi::CString::new(file.path.as_str()).unwrap();
    let mode = u64::from(linux::S_IFIFO | 0o600);
    let arguments = [linux::AT_FDCWD as u64, path.as_ptr() as u64, mode, 0, 0];
    SystemCall::new(linux::__NR_mknodat, arguments).run().unwrap();
    let (sender, receiver) = mpsc::channel();
    let texts = [file.text(""), file.text(",read-only=on")];
    thread::spawn(move || sender.send(texts.map(|text| try_open(&text).err())));
    let answers = receiver.recv_timeout(WAIT_LIMIT).expect("opening a fifo waits for a writer");
    assert_eq!(answers, [Some(Errno::EINVAL); 2]);
}

#[test]
fn a_read_only_device_refuses_every_change() {
    for options in [",read-only=on", ",read-only=on,direct=off"] {
        let file = Place::on_disk();
        let disk = file.make(0);
        disk.write_all_at(&[0x33; 65536], 0).unwrap();
        let driver = open(&file.text(options));
        let features = driver.geometry().features;
        assert!(features.read_only && !features.discard && !features.write_zeroes);
        let mut rig = Rig::new(&*driver, POLLED);
        let memory = Memory::new(4096);
        assert!(is_error(rig.transfer(Operation::Write, 0, &[memory.segment(0, 4096)]), Errno::EPERM));
        assert!(is_error(rig.range(Operation::Discard, 0, 4096), Errno::EPERM));
        assert!(is_error(rig.range(Operation::WriteZeroes, 0, 4096), Errno::EPERM));
        assert_eq!(rig.range(Operation::Flush, 0, 0), 0);
        assert!(rig.read(0, 65536) == [0x33; 65536]);
    }
}

#[test]
fn a_refused_request_does_not_stop_the_rest_of_its_batch() {
    let file = Place::on_disk();
    file.make(SIZE);
    let driver = open(&file.text(""));
    let mut rig = Rig::new(&*driver, POLLED);
    let memory = Memory::new(64 << 10);
    // The kernel notices the invalid vectors only within io_submit(2).
    let bad = [IoVector { base: 1 << 62, length: 4096 }; 2];
    for token in 0..16 {
        let good = [memory.segment(token as usize * 4096, 2048), memory.segment(token as usize * 4096 + 2048, 2048)];
        let segments = if token % 3 == 0 { &bad } else { &good };
        rig.submit(&transfer(token, Operation::Read, u64::from(token) * 8192, segments));
    }
    rig.queue.ring_doorbell();
    while rig.in_flight > 0 {
        for completion in rig.wait() {
            let expected = if completion.token % 3 == 0 { Errno::EFAULT.negative() } else { 4096 };
            assert_eq!(completion.result, expected, "{completion:?}");
        }
    }
}

#[test]
fn a_request_that_the_kernel_refuses_raises_the_interrupt() {
    let file = Place::on_disk();
    file.make(SIZE);
    let driver = open(&file.text(""));
    let mut rig = Rig::new(&*driver, QueueOptions { interrupts: true, ..POLLED });
    assert!(rig.queue.arm_interrupt());
    let segments = [IoVector { base: 1 << 62, length: 4096 }; 2];
    let request = transfer(0, Operation::Read, 0, &segments);
    rig.submit(&request);
    rig.queue.ring_doorbell();
    assert!(is_readable(rig.queue.interrupt().unwrap(), WAIT_LIMIT), "no interrupt");
    assert!(is_error(rig.wait()[0].result, Errno::EFAULT));
}

/// In a sandbox, a filter may answer io_submit(2) instead of the kernel, and may answer 0. The
/// kernel itself never returns 0 for this call.
#[test]
fn an_io_submit_that_returns_0_is_not_retried_for_ever() {
    let file = Place::on_disk();
    file.make(SIZE);
    let driver = open(&file.text(""));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let memory = Memory::new(4096);
        let mut rig = Rig::new(&*driver, POLLED);
        answer_for_kernel(libc::SYS_io_submit, 0);
        for token in 0..2 {
            rig.submit(&transfer(token, Operation::Read, 0, &[memory.segment(0, 4096)]));
        }
        rig.queue.ring_doorbell();
        sender.send(rig.wait().iter().map(|completion| completion.result).collect::<Vec<_>>())
    });
    assert_eq!(
        receiver.recv_timeout(WAIT_LIMIT).expect("io_submit is retried for ever"),
        [Errno::EAGAIN.negative(); 2]
    );
}

/// In a thread for which `refuse` changes io_submit(2), runs one read alone, and then two reads in
/// one batch. Returns the results of the reads. Also returns whether the two reads were left to
/// workers.
fn read_when(refuse: impl FnOnce() + Send + 'static) -> (i32, Vec<i32>, bool) {
    let file = Place::on_disk();
    file.make(SIZE);
    let driver = open(&file.text(""));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let memory = Memory::new(4096);
        let mut rig = Rig::new(&*driver, POLLED);
        refuse();
        let alone = rig.transfer(Operation::Read, 0, &[memory.segment(0, 4096)]);
        for token in 0..2 {
            rig.submit(&transfer(token, Operation::Read, 0, &[memory.segment(0, 4096)]));
        }
        let by_workers = rig.is_answered();
        rig.queue.ring_doorbell();
        let mut pair = Vec::new();
        while rig.in_flight > 0 {
            pair.extend(rig.wait().iter().map(|completion| completion.result));
        }
        sender.send((alone, pair, by_workers))
    });
    receiver.recv_timeout(WAIT_LIMIT).expect("a read does not complete")
}

/// EPERM may come from a security module, which refuses a request, or from a seccomp filter, which
/// refuses every io_submit(2).
#[test]
fn a_refused_request_leaves_the_others_to_the_kernel_and_a_refused_call_to_workers() {
    let refused = Errno::EPERM.negative();
    assert_eq!(read_when(|| refuse_single_requests(libc::EPERM)), (refused, vec![4096; 2], false));
    assert_eq!(read_when(|| answer_for_kernel(libc::SYS_io_submit, libc::EPERM)), (refused, vec![4096; 2], true));
}

#[test]
fn a_batch_holds_the_largest_number_of_segments_of_a_request() {
    let file = Place::on_disk();
    file.make(SIZE);
    let driver = open(&file.text(""));
    let most = driver.geometry().segments as usize;
    let memory = Memory::new(most * 512);
    let segments: Vec<_> = (0..most).rev().map(|index| memory.segment(index * 512, 512)).collect();
    let mut rig = Rig::new(&*driver, QueueOptions { depth: 8, interrupts: false });
    let length = most as u64 * 512;
    for token in 0..8 {
        rig.submit(&transfer(token, Operation::Read, u64::from(token) * length, &segments));
    }
    rig.queue.ring_doorbell();
    while rig.in_flight > 0 {
        rig.wait().iter().for_each(|completion| assert_eq!(completion.result, length as i32));
    }
}

/// A misaligned request follows requests that fill a batch. It needs no room in a batch, because it
/// is refused at once.
#[test]
fn a_refused_request_behind_a_full_batch_does_not_block_it() {
    let file = Place::on_disk();
    file.make(SIZE);
    let driver = open(&file.text(""));
    let most = driver.geometry().segments as usize;
    let memory = Memory::new(most * 512);
    let segments: Vec<_> = (0..most).map(|index| memory.segment(index * 512, 512)).collect();
    let mut rig = Rig::new(&*driver, QueueOptions { depth: 8, interrupts: false });
    let length = most as u64 * 512;
    for token in 0..2 {
        rig.submit(&transfer(token, Operation::Read, u64::from(token) * length, &segments));
    }
    let odd: Vec<_> = segments.iter().map(|segment| IoVector { base: segment.base + 1, ..*segment }).collect();
    let refused = rig.queue.submit(&transfer(2, Operation::Read, 0, &odd));
    assert_eq!(refused, Submission::Refused(Errno::EINVAL));
    rig.queue.ring_doorbell();
    while rig.in_flight > 0 {
        rig.wait().iter().for_each(|completion| assert_eq!(completion.result, length as i32));
    }
}

#[test]
fn a_forked_child_does_not_disturb_its_parents_requests() {
    let file = Place::on_disk();
    file.make(SIZE);
    let driver = open(&file.text(""));
    let memory = Memory::new(64 << 10);
    let mut queue = driver.open_queue(POLLED).unwrap();
    for token in 0..16 {
        let segments = [memory.segment(token as usize * 4096, 4096)];
        let request = transfer(token, Operation::Read, u64::from(token) * 8192, &segments);
        assert_eq!(queue.submit(&request), Submission::Accepted);
    }
    queue.ring_doorbell();
    let mut queue = Some(queue);
    let status = in_child(|| {
        let mut completions = Completions::new();
        queue.as_mut().unwrap().poll(&mut completions);
        let sees_nothing = completions.as_slice().is_empty();
        // The child opens a queue pair of its own. The address of the child's AIO context may be
        // that of a context of the parent.
        let mut own = Rig::new(&*driver, POLLED);
        drop(queue.take());
        let works = own.read(0, 4096) == [0; 4096];
        i32::from(!(sees_nothing && works))
    });
    assert_eq!(status, 0);
    let mut completions = Completions::new();
    let start = Instant::now();
    while completions.as_slice().len() < 16 {
        queue.as_mut().unwrap().poll(&mut completions);
        assert!(start.elapsed() < WAIT_LIMIT, "{} of 16", completions.as_slice().len());
    }
    assert!(completions.as_slice().iter().all(|completion| completion.result == 4096));
}

#[test]
fn opening_a_device_without_free_descriptors_fails_with_emfile() {
    let file = Place::on_disk();
    file.make(SIZE);
    let text = file.text("");
    let status = in_child(|| {
        let limit = libc::rlimit { rlim_cur: 3, rlim_max: 1024 };
        // SAFETY: the call reads `limit`, and changes only the child's limit.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } == 0;
        let refused = try_open(&text).err() == Some(Errno::EMFILE);
        let limit = libc::rlimit { rlim_cur: 64, rlim_max: 1024 };
        // SAFETY: the call reads `limit`, and changes only the child's limit.
        let raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } == 0;
        let works = try_open(&text).is_ok();
        i32::from(!(set && refused && raised && works))
    });
    assert_eq!(status, 0);
}

#[test]
fn closing_a_device_keeps_the_programs_record_locks_on_its_file() {
    let file = Place::on_disk();
    let disk = file.make(SIZE);
    let locked = |pid_sees: bool| in_child(|| i32::from(file::place::lock(&disk, libc::F_SETLK).is_ok() != pid_sees));
    file::place::lock(&disk, libc::F_SETLK).unwrap();
    assert_eq!(locked(false), 0, "another process finds the file locked");
    drop(open(&file.text("")));
    assert_eq!(locked(false), 0, "the device's own close has dropped the program's lock");
}

#[test]
fn many_jobs_on_many_queues_keep_their_data_apart() {
    let file = Place::on_disk();
    file.make(SIZE);
    let driver = open(&file.text(""));
    thread::scope(|scope| {
        for job in 0..4u64 {
            let driver = &*driver;
            let options = QueueOptions { depth: 1 << (job * 2), interrupts: job % 2 == 1 };
            let part = job * (SIZE / 4)..(job + 1) * (SIZE / 4);
            scope.spawn(move || Traffic { part, options, requests: 1000, keeps_data: true, seed: job }.run(driver));
        }
    });
}

/// Returns the number of AIO contexts of this process: each has its ring mapped in the process.
fn contexts() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("[aio]")).count()
}

/// The kernel takes tens of milliseconds to destroy an AIO context, so usring keeps unused
/// contexts.
#[test]
fn an_idle_aio_context_is_reused_by_the_next_queue_but_not_by_a_child() {
    let file = Place::on_disk();
    file.make(SIZE).write_all_at(&[7; 4096], 0).unwrap();
    let driver = open(&file.text(""));
    let used = |depth| Rig::new(&*driver, QueueOptions { depth, interrupts: false }).read(0, 4096) == [7; 4096];
    // This runs in a child, where no other test has AIO contexts.
    let status = in_child(|| {
        let first = contexts();
        let one = (0..8).all(|_| used(64)) && contexts() == first + 1;
        let few = (0..20).all(|more| used(65 + more)) && contexts() == first + 4;
        let status = in_child(|| {
            let inherited = contexts();
            i32::from(!(used(84) && used(84) && contexts() == inherited + 1))
        });
        i32::from(!one) + 2 * i32::from(!few) + 4 * i32::from(status != 0) + 8 * i32::from(!used(84))
    });
    assert_eq!(status, 0);
}
