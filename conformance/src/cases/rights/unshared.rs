//! Rights of a thread that has its own working directory, root or mounts, by unshare(2).

use super::{Place, alone, call, describe, open, opens, shut};
use crate::ring::Ring;
use crate::sqe::Change;
use crate::transcript::Transcript;
use std::ffi::CString;
use std::os::unix::fs::PermissionsExt;

fn change_directory(path: &CString) {
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::chdir(path.as_ptr()) }, 0);
}

fn unshare(t: &mut Transcript, what: i32) {
    // SAFETY: the call touches no memory.
    call(t, "unshare", i64::from(unsafe { libc::unshare(what) }));
}

/// Creates a file by a relative path. Prints in which directory the file is, and the file's mode.
fn makes(t: &mut Transcript, ring: &mut Ring, place: &Place, who: &str) {
    let sqe = open(libc::AT_FDCWD, c"here", libc::O_CREAT | libc::O_WRONLY).with(|sqe| sqe.len = 0o666);
    let entry = ring.one(sqe);
    shut(entry.res);
    t.say(format_args!("{who}: {}", describe(&entry)));
    for directory in ["", "one", "two"] {
        let path = place.scratch.path.join(directory).join("here");
        if let Ok(found) = std::fs::metadata(&path) {
            t.say(format_args!("  found in {directory:?}, mode {:o}", found.permissions().mode() & 0o777));
            let _ = std::fs::remove_file(path);
        }
    }
}

fn with_two_directories() -> Place {
    let place = Place::new();
    for name in ["one", "two"] {
        std::fs::create_dir(place.scratch.path.join(name)).expect("a directory");
    }
    place
}

/// All threads of a process share a working directory and a umask. A request uses both, even after
/// another thread has changed them.
fn shared_directory(t: &mut Transcript) {
    let place = with_two_directories();
    alone(t, |t| {
        let mut ring = Ring::new(8);
        change_directory(&place.scratch.path_of("one"));
        makes(t, &mut ring, &place, "first");
        let path = place.scratch.path_of("two");
        std::thread::spawn(move || {
            change_directory(&path);
            // SAFETY: the call only changes this process's umask.
            unsafe { libc::umask(0o077) };
        })
        .join()
        .expect("no panic");
        makes(t, &mut ring, &place, "second");
    });
}
case!(shared_directory => "
    first: done
      found in \"one\", mode 644
    second: done
      found in \"two\", mode 600
    exit 0
");

fn own_directory(t: &mut Transcript) {
    let place = with_two_directories();
    alone(t, |t| {
        let mut ring = Ring::new(8);
        change_directory(&place.scratch.path_of("one"));
        makes(t, &mut ring, &place, "before");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                unshare(t, libc::CLONE_FS);
                makes(t, &mut ring, &place, "unshared");
                change_directory(&place.scratch.path_of("two"));
                // SAFETY: the call only changes this process's umask.
                unsafe { libc::umask(0o077) };
                makes(t, &mut ring, &place, "elsewhere");
            });
        });
        makes(t, &mut ring, &place, "after");
    });
}
case!(own_directory => "
    before: done
      found in \"one\", mode 644
    unshare: 0
    unshared: done
      found in \"one\", mode 644
    elsewhere: done
      found in \"two\", mode 600
    after: done
      found in \"one\", mode 644
    exit 0
");

fn own_root(t: &mut Transcript) {
    let place = with_two_directories();
    place.scratch.file("one/file", b"");
    alone(t, |t| {
        let mut ring = Ring::new(8);
        opens(t, &mut ring, "before", libc::AT_FDCWD, c"/file");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                unshare(t, libc::CLONE_FS);
                opens(t, &mut ring, "unshared", libc::AT_FDCWD, c"/file");
                let root = place.scratch.path_of("one");
                // SAFETY: the path is a C string.
                call(t, "chroot", i64::from(unsafe { libc::chroot(root.as_ptr()) }));
                opens(t, &mut ring, "in it", libc::AT_FDCWD, c"/file");
            });
        });
        opens(t, &mut ring, "after", libc::AT_FDCWD, c"/file");
    });
}
case!(own_root => "
    before: -ENOENT
    before, forced async: -ENOENT
    unshare: 0
    unshared: -ENOENT
    unshared, forced async: -ENOENT
    chroot: 0
    in it: done
    in it, forced async: done
    after: -ENOENT
    after, forced async: -ENOENT
    exit 0
");

fn own_mounts(t: &mut Transcript) {
    let place = with_two_directories();
    place.scratch.file("one/file", b"");
    alone(t, |t| {
        let mut ring = Ring::new(8);
        let (file, target) = (place.scratch.path_of("one/file"), place.scratch.path_of("one"));
        opens(t, &mut ring, "before", libc::AT_FDCWD, &file);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                unshare(t, libc::CLONE_NEWNS);
                // SAFETY: the paths are C strings.
                let answer = unsafe {
                    let flags = libc::MS_REC | libc::MS_PRIVATE;
                    libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null());
                    libc::mount(c"none".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null())
                };
                call(t, "mount", i64::from(answer));
                opens(t, &mut ring, "behind the mount", libc::AT_FDCWD, &file);
            });
        });
        opens(t, &mut ring, "after", libc::AT_FDCWD, &file);
    });
}
case!(own_mounts => "
    before: done
    before, forced async: done
    unshare: 0
    mount: 0
    behind the mount: -ENOENT
    behind the mount, forced async: -ENOENT
    after: done
    after, forced async: done
    exit 0
");
