//! Fetches packages from Debian's archive and unpacks them without installing them. Also makes
//! whole root folders of a Debian.

use crate::cached::{debian_root, glibc_folder};
use crate::{Outcome, step};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const ARCHIVE: &str = "http://deb.debian.org/debian";

/// Downloads `packages` of the Debian release `release`, and everything that they depend on.
/// Returns the paths of the .deb files. apt checks the archive's signature. apt keeps its state in
/// the folder `part`, where no package counts as installed. So it downloads every dependency.
pub fn fetch(part: &Path, release: &str, packages: &[&str]) -> Result<Vec<PathBuf>, String> {
    if !Path::new(KEYS).exists() {
        return Err(format!("{KEYS} is missing"));
    }
    let failed = |error: std::io::Error| format!("cannot write to {} ({error})", part.display());
    for folder in ["state/lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(part.join(folder)).map_err(failed)?;
    }
    let part_text = part.display();
    fs::write(part.join("status"), "").map_err(failed)?;
    fs::write(part.join("sources"), format!("deb [signed-by={KEYS}] {ARCHIVE} {release} main\n")).map_err(failed)?;
    // A mirror may be some days behind, so that its index has expired (Valid-Until). The settings
    // below make apt accept such an index.
    let settings = format!(
        r#"Dir::Etc::sourcelist "{part_text}/sources"; Dir::Etc::sourceparts "/dev/null";
        Dir::Etc::preferences "/dev/null"; Dir::Etc::preferencesparts "/dev/null";
        Dir::State "{part_text}/state"; Dir::State::status "{part_text}/status"; Dir::Cache "{part_text}/cache";
        APT::Architecture "amd64"; APT::Architectures {{ "amd64"; }}; APT::Install-Recommends "false";
        Acquire::Languages "none"; Acquire::Check-Valid-Until "false"; Acquire::Retries "1";
        Acquire::http::Timeout "20";"#
    );
    let path = part.join("apt.conf");
    fs::write(&path, settings).map_err(failed)?;
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        step::run(command.args(arguments).env("APT_CONFIG", &path).stdout(Stdio::null()))
    };
    apt_get(&["update", "-qq"])?;
    apt_get(&[&["install", "-qq", "-y", "--download-only"], packages].concat())?;
    let entries = fs::read_dir(part.join("cache/archives")).map_err(failed)?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect())
}

/// Unpacks the packages into the folder `root`.
pub fn unpack(packages: &[PathBuf], root: &Path) -> Outcome {
    for package in packages {
        step::run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(root))?;
    }
    Ok(())
}

/// Makes the folder with Debian 11's glibc, unless it exists. Programs that are linked to it also
/// run on systems with a newer glibc.
pub fn provide_glibc() -> Outcome {
    provide(&glibc_folder(), "Debian 11's glibc", |part| {
        let root = part.join("root");
        unpack(&fetch(part, "bullseye", &["libc6-dev", "libgcc-s1"])?, &root)?;
        make_links_relative(&root, 0)
            .map_err(|error| format!("cannot change links in {} ({error})", root.display()))?;
        Ok(root)
    })
}

/// Makes absolute links below `folder` relative. The linker would follow an absolute link to this
/// machine's libraries. A relative link stays within the root folder, which is `depth` folders
/// above `folder`.
fn make_links_relative(folder: &Path, depth: usize) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            make_links_relative(&path, depth + 1)?;
        } else if kind.is_symlink()
            && let Ok(below) = fs::read_link(&path)?.strip_prefix("/")
        {
            fs::remove_file(&path)?;
            symlink(Path::new(&"../".repeat(depth)).join(below), &path)?;
        }
    }
    Ok(())
}

/// Makes the root folder of a release of Debian, unless it exists. Tests install packages in it.
pub fn provide_root(release: u32, name: &str) -> Outcome {
    provide(&debian_root(release), &format!("a root folder with Debian {release}"), |part| {
        let root = part.join("root");
        let mut command = Command::new("debootstrap");
        command.args(["--variant=minbase", name]).arg(&root).arg(ARCHIVE).stdout(Stdio::null());
        step::run(&mut command)?;
        Ok(root)
    })
}

/// Makes `folder`, unless it exists. `make` fills a temporary folder, and returns the folder that
/// this function then renames to `folder`.
fn provide(folder: &Path, what: &str, make: impl FnOnce(&Path) -> Result<PathBuf, String>) -> Outcome {
    if folder.exists() {
        return Ok(());
    }
    println!("packages: fetching {what} into {}", folder.display());
    let part = folder.with_extension(format!("{}.part", std::process::id()));
    fs::create_dir_all(&part).map_err(|error| format!("cannot make {} ({error})", part.display()))?;
    let made = make(&part).and_then(|root| {
        fs::rename(root, folder).map_err(|error| format!("cannot make {} ({error})", folder.display()))
    });
    let _ = fs::remove_dir_all(&part);
    made
}
