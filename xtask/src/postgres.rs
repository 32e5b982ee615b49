//! PostgreSQL 18 from Debian sid, for the tests of servers whose processes share rings. Debian's
//! releases up to 13 have older versions, which do not use io_uring.
//!
//! The packages are unpacked into a cache folder, with the libraries that they need, down to glibc.
//! Nothing is installed. patchelf makes each program name the folder's loader and libraries, so the
//! programs run on this machine without a chroot.

use crate::cached::{postgres_folder, postgres_programs};
use crate::{Outcome, debian, step};
use std::fs;
use std::path::Path;
use std::process::Command;

const PACKAGE: &str = "postgresql-18";
/// Folders of the unpacked packages that the programs use. All other files are deleted.
const KEPT: [&str; 3] = ["usr/lib/postgresql", "usr/lib/x86_64-linux-gnu", "usr/share/postgresql"];

/// Makes the cache folder if it does not exist. A failure is only printed, because some systems
/// cannot make the folder, or have no network. The tests then count as skipped.
pub fn provide() {
    let folder = postgres_folder();
    if folder.exists() {
        return println!("packages: PostgreSQL 18 is in {}", folder.display());
    }
    println!("packages: unpacking PostgreSQL 18 from Debian sid into {}", folder.display());
    let part = folder.with_extension(format!("{}.part", std::process::id()));
    let made = make(&part, &folder);
    let _ = fs::remove_dir_all(&part);
    if let Err(why) = made {
        println!("packages: no PostgreSQL 18, so its tests will be skipped: {why}");
    }
}

/// Fetches the packages and unpacks them in the folder `part`. Then makes `folder`, with those
/// folders of the packages that [`KEPT`] names.
fn make(part: &Path, folder: &Path) -> Outcome {
    let packages = debian::fetch(part, "sid", &[PACKAGE])?;
    let root = part.join("root");
    debian::unpack(&packages, &root)?;
    let kept = part.join("kept");
    for name in KEPT {
        let to = kept.join(name);
        fs::create_dir_all(to.parent().unwrap_or(&kept)).map_err(|error| error.to_string())?;
        fs::rename(root.join(name), to).map_err(|error| format!("the packages have no {name} ({error})"))?;
    }
    set_loader(&kept, folder)?;
    fs::rename(&kept, folder).map_err(|error| format!("cannot make {} ({error})", folder.display()))
}

/// Makes the programs in the folder `kept` use the loader and the libraries from `folder`, to which
/// `kept` is renamed later.
fn set_loader(kept: &Path, folder: &Path) -> Outcome {
    let libraries = folder.join("usr/lib/x86_64-linux-gnu");
    let programs = postgres_programs();
    let programs = kept.join(programs.strip_prefix(folder).unwrap_or(&programs));
    let entries = fs::read_dir(programs).map_err(|error| format!("the packages have no programs ({error})"))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if !fs::read(&path).is_ok_and(|content| content.starts_with(b"\x7fELF")) {
            continue;
        }
        let mut command = Command::new("patchelf");
        command.arg("--set-interpreter").arg(libraries.join("ld-linux-x86-64.so.2"));
        // DT_RPATH, unlike DT_RUNPATH, also holds for the libraries' own dependencies.
        step::run(command.arg("--force-rpath").arg("--set-rpath").arg(&libraries).arg(path))?;
    }
    Ok(())
}
