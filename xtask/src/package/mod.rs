//! `cargo xtask package`: makes what a release offers for download, in target/package.
//!
//! - a tarball, which is unpacked anywhere;
//! - a package for Debian (`.deb`) and one for Fedora and its like (`.rpm`);
//! - an OCI image of two files, from which other images copy them;
//! - the debug symbols, and the checksums of all files.
//!
//! The library needs no other library. The launcher is linked to glibc, because `doctor`, `demo`
//! and `bench` start it as a program that usring serves, and usring cannot serve static programs.
//! It is linked to Debian 11's glibc, so that it also runs on older systems.

mod formats;
mod oci;
mod root;

use crate::cached::glibc_folder;
use crate::{Outcome, debian, product, step};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum size of the launcher and the library together, in bytes. The goal is 4,000,000. A commit
/// that raises this limit says which feature needs the bytes.
const MOST_BYTES: u64 = 5_320_000;

/// A release that is being packaged.
pub struct Release {
    /// The folder target/package; for the debug build, target/package-debug.
    pub folder: PathBuf,
    pub version: &'static str,
    /// Date of the release, in seconds since 1970. All files in the packages have this time.
    pub epoch: String,
    /// The oldest glibc with which the launcher runs.
    pub glibc: String,
}

impl Release {
    /// Returns the folder whose content is installed below `/`.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// Returns the path of a file that users download. Its name is `usring-VERSION-ENDING`.
    pub fn file(&self, ending: &str) -> PathBuf {
        self.folder.join(format!("usring-{}-{ending}", self.version))
    }
}

/// Purpose of the packages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Users download the packages. The launcher must run on Debian 11.
    Download,
    /// Tests use the packages. If Debian 11's glibc cannot be fetched, the launcher is linked to
    /// this machine's glibc.
    Tests,
    /// Tests use the packages, which contain the debug build.
    DebugTests,
}

/// Builds and makes all files.
pub fn run(purpose: Purpose) -> Outcome {
    let debug = purpose == Purpose::DebugTests;
    let target = product::folder(!debug);
    let folder = target.with_file_name(if debug { "package-debug" } else { "package" });
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {} ({error})", folder.display()))?;
    check_glibc(purpose, debian::provide_glibc())?;
    build(debug)?;
    let epoch = epoch()?;
    let glibc = newest_symbol(&target.join("usring"))?;
    let release = Release { folder, version: env!("CARGO_PKG_VERSION"), epoch, glibc };
    let bytes = root::make(&release, &target)?;
    println!("package: launcher and library have {bytes} bytes; they run with glibc {} or newer", release.glibc);
    if !debug && bytes > MOST_BYTES {
        return Err(format!("launcher and library have {bytes} bytes, more than {MOST_BYTES}"));
    }
    formats::tarballs(&release)?;
    oci::image(&release)?;
    formats::deb(&release)?;
    formats::rpm(&release)?;
    formats::checksums(&release)
}

/// Builds the library and the launcher. The launcher is linked to Debian 11's glibc if that can be
/// fetched, and otherwise to this machine's glibc.
pub fn build(debug: bool) -> Outcome {
    let profile: &[&str] = if debug { &[] } else { &["--release"] };
    product::build_library(!debug)?;
    let mut command = step::cargo(&["rustc", "--package", "usring", "--bin", "usring"]);
    command.args(profile);
    match debian::provide_glibc() {
        Ok(()) => {
            command.args(["--", "-C", "link-arg=-static-libgcc"]);
            command.args(linked_to(&glibc_folder()).into_iter().flat_map(|argument| ["-C".to_owned(), argument]));
        }
        Err(why) => println!("package: linking to this machine's glibc, because Debian 11's cannot be had: {why}"),
    }
    step::run(&mut command)
}

/// Fails if users will download the packages and Debian 11's glibc was not fetched. `provided` is
/// the result of [`debian::provide_glibc`]. Packages for tests may use this machine's glibc.
fn check_glibc(purpose: Purpose, provided: Outcome) -> Outcome {
    provided.or_else(|why| match purpose {
        Purpose::Tests | Purpose::DebugTests => Ok(()),
        Purpose::Download => Err(format!(
            "a release must be linked to Debian 11's glibc, which cannot be had ({why}): install apt and \
             debian-archive-keyring, and let apt reach deb.debian.org"
        )),
    })
}

/// Returns the options of rustc by which gcc takes start files and libraries from the folder
/// `root`. With `--sysroot` alone, gcc would prefer the folders of this machine.
fn linked_to(root: &Path) -> Vec<String> {
    let root = root.display();
    let libraries = format!("{root}/usr/lib/x86_64-linux-gnu");
    let arguments = [
        format!("--sysroot={root}"),
        format!("-B{libraries}"),
        format!("-L{libraries}"),
        format!("-L{root}/lib/x86_64-linux-gnu"),
    ];
    arguments.map(|argument| format!("link-arg={argument}")).into()
}

/// Returns the newest version of glibc whose symbols the program uses.
fn newest_symbol(program: &Path) -> Result<String, String> {
    let text = output(Command::new("objdump").arg("-T").arg(program))?;
    let versions = text.split(['(', ')', ' ']).filter_map(|word| word.strip_prefix("GLIBC_"));
    let numbers = |version: &str| version.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>().ok();
    let newest = versions.filter_map(|version| Some((numbers(version)?, version))).max();
    newest.map(|(_, version)| version.to_owned()).ok_or_else(|| format!("{} uses no glibc", program.display()))
}

/// Returns the date of the sources in seconds since 1970: SOURCE_DATE_EPOCH, or the date of the
/// last commit.
fn epoch() -> Result<String, String> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => Ok(epoch),
        Err(_) => {
            let mut git = Command::new("git");
            git.args(["log", "-1", "--format=%ct"]).current_dir(step::root());
            output(&mut git).map(|text| text.trim().to_owned())
        }
    }
}

/// Runs a command and returns what it has written to standard output.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("cannot start {name} ({error})"))?;
    if !output.status.success() {
        return Err(format!("{name} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("the output of {name} is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_without_the_old_glibc_is_refused() {
        let error = check_glibc(Purpose::Download, Err("no network".into())).unwrap_err();
        assert!(error.contains("(no network)") && error.contains("debian-archive-keyring"), "{error}");
        assert_eq!(check_glibc(Purpose::Tests, Err("no network".into())), Ok(()));
        assert_eq!(check_glibc(Purpose::Download, Ok(())), Ok(()));
    }
}
