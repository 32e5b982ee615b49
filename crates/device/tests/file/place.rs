//! Paths for the files of tests, and helpers that change a test's environment.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io, thread};
use usring_device::{DeviceRequest, Driver, Geometry, QueueOptions, QueuePair};
use usring_sys::Errno;

/// A unique path. The file at the path is removed when the value is dropped.
pub struct Place {
    pub path: String,
}

impl Place {
    pub fn on_disk() -> Place {
        Place::in_folder(&std::env::temp_dir().display().to_string())
    }

    pub fn on_tmpfs() -> Place {
        Place::in_folder("/dev/shm")
    }

    fn in_folder(folder: &str) -> Place {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Place { path: format!("{folder}/usring-file-{}-{number}", process::id()) }
    }

    /// Creates a sparse file of `size` bytes at the path.
    pub fn make(&self, size: u64) -> File {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&self.path).unwrap();
        file.set_len(size).unwrap();
        file
    }

    pub fn text(&self, options: &str) -> String {
        format!("file:path={}{options}", self.path)
    }

    pub fn remove(&self) {
        fs::remove_file(&self.path).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Runs `run` in a forked child. Returns the result of `run`, or 99 if it panicked.
pub fn in_child(run: impl FnOnce() -> i32) -> i32 {
    // SAFETY: libc's fork keeps the allocator usable in the child. The child has only this thread,
    // and `run` needs no lock of another thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A panic in usring aborts the process. This catches a panic in the test.
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(99);
        // SAFETY: the call passes only a number, and runs none of the parent's exit handlers.
        unsafe { libc::_exit(status) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: the call writes the exit status of `child`, which was forked above, to `status`.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1000 + libc::WTERMSIG(status) }
}

/// Locks the whole file with a record lock, by fcntl(2).
pub fn lock(file: &File, command: i32) -> io::Result<()> {
    // SAFETY: all fields are integers, for which zero is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    // SAFETY: the descriptor is open, and the kernel reads one `flock` from `lock`.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns a driver whose queue pairs are opened while io_setup(2) is denied, as in a sandbox.
pub fn denied(driver: Box<dyn Driver>) -> Box<dyn Driver> {
    Box::new(Denied(driver))
}

struct Denied(Box<dyn Driver>);

impl Driver for Denied {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno> {
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    answer_for_kernel(libc::SYS_io_setup, libc::EPERM);
                    self.0.open_queue(options)
                })
                .join()
                .unwrap()
        })
    }

    fn execute(&self, request: &DeviceRequest) -> Result<u32, Errno> {
        self.0.execute(request)
    }
}

/// Makes a system call return `error` in this thread. The kernel does not execute the call.
pub fn answer_for_kernel(number: libc::c_long, error: i32) {
    install(number, None, error);
    let mut context = 0u64;
    // SAFETY: the filter answers the call, and the kernel does not execute it. So no memory is
    // accessed.
    assert_eq!(unsafe { libc::syscall(number, 1, &mut context, 0) }, if error == 0 { 0 } else { -1 });
}

/// Makes io_submit(2) return `error` in this thread if it submits a single request.
pub fn refuse_single_requests(error: i32) {
    install(libc::SYS_io_submit, Some(1), error);
}

/// Installs a seccomp filter for this thread, which makes the system call `number` return `error`.
/// With `second`, it does so only for calls with this second argument.
fn install(number: libc::c_long, second: Option<u32>, error: i32) {
    let statement = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |place: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, place);
    let unless = |k: u32, skip: u8| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, k);
    // Without `second`, the filter's second comparison repeats the first one: it compares the
    // number of the system call.
    let (place, value) = second.map_or((0, number as u32), |value| (24, value));
    let mut filter = [
        load(0),
        unless(number as u32, 3),
        load(place),
        unless(value, 1),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `program` points to the instructions of `filter`, which the kernel copies during the
    // calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// Runs a test in a thread of its own, on a tmpfs of `size` bytes that only that thread sees.
/// Returns `false` if the system does not allow this.
pub fn with_small_file_system(size: u64, run: impl FnOnce(&str) + Send) -> bool {
    let place = Place::on_disk();
    fs::create_dir(&place.path).unwrap();
    let folder = std::ffi::CString::new(place.path.as_str()).unwrap();
    let options = std::ffi::CString::new(format!("size={size}")).unwrap();
    let ran = thread::scope(|scope| {
        let mount_and_run = || {
            let none = std::ptr::null();
            // SAFETY: all strings end with a NUL and live until the calls return. The calls change
            // only this thread's view of the mounts.
            let mounted = unsafe {
                libc::unshare(libc::CLONE_NEWNS) == 0
                    && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
                    && libc::mount(c"tmpfs".as_ptr(), folder.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast())
                        == 0
            };
            if mounted {
                run(&place.path);
            }
            mounted
        };
        scope.spawn(mount_and_run).join().unwrap()
    });
    fs::remove_dir(&place.path).unwrap();
    ran
}

/// A loop device. The kernel releases it when this value and all users of the device have closed
/// it.
pub struct LoopDevice {
    pub path: String,
    _device: File,
    _backing: Place,
}

/// Makes a loop device of `size` bytes; `None` if the system does not allow it.
pub fn loop_device(size: u64) -> Option<LoopDevice> {
    const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
    const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
    const LO_FLAGS_AUTOCLEAR: u32 = 4;
    /// `struct loop_config`: descriptor, block size, `struct loop_info64`, eight words.
    #[repr(C)]
    struct Configuration {
        fd: u32,
        block_size: u32,
        before_flags: [u8; 52],
        flags: u32,
        after_flags: [u8; 176],
        reserved: [u64; 8],
    }
    const _: () = assert!(size_of::<Configuration>() == 304);
    let backing = Place::on_disk();
    let file = backing.make(size);
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control").ok()?;
    // After LOOP_CTL_GET_FREE has returned the number of a free loop device, another process may
    // configure that device. LOOP_CONFIGURE then fails, and the attempt is repeated.
    for _ in 0..20 {
        // SAFETY: the call passes no memory.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return None;
        }
        let path = format!("/dev/loop{number}");
        let device = OpenOptions::new().read(true).write(true).open(&path).ok()?;
        let configuration = Configuration {
            fd: file.as_raw_fd() as u32,
            block_size: 512,
            before_flags: [0; 52],
            flags: LO_FLAGS_AUTOCLEAR,
            after_flags: [0; 176],
            reserved: [0; 8],
        };
        // SAFETY: `configuration` has the layout and the size of the structure that the call reads.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &configuration) } == 0 {
            return Some(LoopDevice { path, _device: device, _backing: backing });
        }
        if io::Error::last_os_error().raw_os_error() != Some(libc::EBUSY) {
            return None;
        }
    }
    None
}
