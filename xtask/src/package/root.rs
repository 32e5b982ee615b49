//! The folder whose content is installed below `/`.

use super::{Release, output};
use crate::soname::soname;
use crate::{Outcome, step};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

const HEADERS: [&str; 4] = ["usring.h", "usring_aio.h", "usring_inject.h", "usring_swap.h"];
/// Files that are installed beside `docs`. README.md links to ARCHITECTURE.md and the pages of docs
/// by relative paths.
const DOCUMENTS: [&str; 5] = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Makes the release's root folder from the build results in `target`. Returns the size of launcher
/// and library together, in bytes.
pub fn make(release: &Release, target: &Path) -> Result<u64, String> {
    let usr = release.root().join("usr");
    let bytes = programs(release, target, &usr)?;
    for header in HEADERS {
        copy(&step::root().join("include").join(header), &usr.join("include").join(header))?;
    }
    // pkg-config searches share/pkgconfig in every distribution. The path of lib/pkgconfig differs
    // between distributions.
    copy(&step::root().join("pkgconfig/usring.pc"), &usr.join("share/pkgconfig/usring.pc"))?;
    for document in DOCUMENTS {
        copy(&step::root().join(document), &usr.join("share/doc/usring").join(document))?;
    }
    copy(&step::root().join("LICENSE-MIT"), &usr.join("share/doc/usring/copyright"))?;
    copy_pages(&step::root().join("docs"), &usr.join("share/doc/usring/docs"))?;
    pages(release, &usr)?;
    Ok(bytes)
}

/// Copies launcher and library without their debug symbols, which go to a folder of their own.
fn programs(release: &Release, target: &Path, usr: &Path) -> Result<u64, String> {
    let library = soname(release.version);
    let folder = usr.join("lib/usring");
    let mut bytes = 0;
    for (from, to) in [("usring", usr.join("bin/usring")), ("libusring.so", folder.join(&library))] {
        let from = target.join(from);
        copy(&from, &to)?;
        let name = to.file_name().ok_or("no name")?.to_string_lossy().into_owned();
        let symbols = release.folder.join("debug").join(format!("{name}.debug"));
        make_parent(&symbols)?;
        step::run(Command::new("objcopy").arg("--only-keep-debug").arg(&from).arg(&symbols))?;
        step::run(Command::new("strip").arg("--strip-all").arg(&to))?;
        let link = format!("--add-gnu-debuglink={}", symbols.display());
        step::run(Command::new("objcopy").arg(link).arg(&to))?;
        set_mode(&to, 0o755)?;
        bytes += fs::metadata(&to).map_err(|error| error.to_string())?.len();
    }
    symlink(&library, folder.join("libusring.so")).map_err(|error| format!("cannot link the library ({error})"))?;
    Ok(bytes)
}

/// Copies the pages (`*.md`) of the folder `from`, and of the folders in it.
fn copy_pages(from: &Path, to: &Path) -> Outcome {
    let entries = fs::read_dir(from).map_err(|error| format!("cannot read {} ({error})", from.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let to = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_pages(&path, &to)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            copy(&path, &to)?;
        }
    }
    Ok(())
}

/// Makes the manual pages and completions.
fn pages(release: &Release, usr: &Path) -> Outcome {
    let folder = release.folder.join("pages");
    let date = output(Command::new("date").args(["-u", "+%F", "-d", &format!("@{}", release.epoch)]))?;
    let mut command = step::cargo(&["run", "--quiet", "--package", "usring-cli", "--example", "pages", "--"]);
    step::run(command.arg(&folder).arg(date.trim()))?;
    for section in ["man1", "man3"] {
        for entry in fs::read_dir(folder.join(section)).map_err(|error| error.to_string())?.flatten() {
            let page = usr.join("share/man").join(section).join(entry.file_name());
            copy(&entry.path(), &page)?;
            step::run(Command::new("gzip").args(["-9", "-n"]).arg(&page))?;
        }
    }
    let completions = folder.join("completions");
    copy(&completions.join("usring.bash"), &usr.join("share/bash-completion/completions/usring"))?;
    copy(&completions.join("_usring"), &usr.join("share/zsh/site-functions/_usring"))?;
    copy(&completions.join("usring.fish"), &usr.join("share/fish/vendor_completions.d/usring.fish"))
}

/// Copies a file that every user may read, and makes its folder.
pub fn copy(from: &Path, to: &Path) -> Outcome {
    make_parent(to)?;
    fs::copy(from, to).map_err(|error| format!("cannot copy {} to {} ({error})", from.display(), to.display()))?;
    set_mode(to, 0o644)
}

fn make_parent(path: &Path) -> Outcome {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {} ({error})", folder.display()))
}

fn set_mode(path: &Path, mode: u32) -> Outcome {
    let set = fs::set_permissions(path, Permissions::from_mode(mode));
    set.map_err(|error| format!("cannot set the mode of {} ({error})", path.display()))
}
