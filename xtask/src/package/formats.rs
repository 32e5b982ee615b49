//! Tarballs, packages for Debian and Fedora, and checksums. Each package is made by its
//! distribution's own tool. Unchanged sources give files with unchanged content.

use super::{Release, output, root};
use crate::{Outcome, step};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const SUMMARY: &str = "io_uring in user space, for programs that were written for the kernel's";
const DESCRIPTION: [&str; 3] = [
    "usring answers a program's io_uring and libaio calls inside the program's own process. It needs",
    "no kernel with io_uring, no root and no capability. It also gives programs block devices that",
    "poll, delay or fail, faults on demand, and memory larger than its limit.",
];

/// Makes two tarballs: one with a folder that holds `bin`, `lib`, `include` and `share`, and one of
/// the debug symbols.
pub fn tarballs(release: &Release) -> Outcome {
    let name = format!("s,^\\.,usring-{},", release.version);
    tar(release, &release.root().join("usr"), &["--transform", &name], &release.file("x86_64.tar.gz"))?;
    tar(release, &release.folder.join("debug"), &[], &release.file("x86_64-debug.tar.gz"))
}

/// Packs the content of a folder. Owner, order and times of the files are fixed.
pub fn tar(release: &Release, folder: &Path, options: &[&str], to: &Path) -> Outcome {
    let mut command = Command::new("tar");
    command.args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--format=gnu",
        "--use-compress-program",
    ]);
    command.arg("gzip -9n").arg(format!("--mtime=@{}", release.epoch)).args(options).arg("-C").arg(folder);
    step::run(command.arg("-cf").arg(to).arg("."))
}

pub fn deb(release: &Release) -> Outcome {
    let folder = release.folder.join("deb");
    step::run(Command::new("cp").arg("-a").arg(release.root()).arg(&folder))?;
    // Debian's zsh looks for completions of packages in `vendor-completions`.
    let share = folder.join("usr/share/zsh");
    fs::rename(share.join("site-functions"), share.join("vendor-completions")).map_err(|error| error.to_string())?;
    let control = folder.join("DEBIAN");
    fs::create_dir_all(&control).map_err(|error| error.to_string())?;
    let size = output(Command::new("du").args(["-sk", "--apparent-size"]).arg(&folder))?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    let text = format!(
        "Package: usring\nVersion: {}\nArchitecture: amd64\nMaintainer: usring developers <usring@localhost>\n\
         Installed-Size: {size}\nDepends: libc6 (>= {})\nSection: utils\nPriority: optional\nDescription: {SUMMARY}\n {}\n",
        release.version,
        release.glibc,
        DESCRIPTION.join("\n ")
    );
    fs::write(control.join("control"), text).map_err(|error| error.to_string())?;
    let to = release.folder.join(format!("usring_{}_amd64.deb", release.version));
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group", "-Zxz", "--build"]).arg(&folder).arg(to);
    step::run(command.env("SOURCE_DATE_EPOCH", &release.epoch).stdout(Stdio::null()))
}

/// Makes the .rpm, if the machine has rpmbuild.
pub fn rpm(release: &Release) -> Outcome {
    let has = Command::new("rpmbuild").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has {
        println!("package: no .rpm, because rpmbuild is missing (Debian's package rpm)");
        return Ok(());
    }
    let folder = release.folder.join("rpm");
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let root = release.root();
    let files = output(Command::new("find").arg(&root).args(["-not", "-type", "d", "-printf", "/%P\n"]))?;
    let spec = format!(
        "Name: usring\nVersion: {}\nRelease: 1\nSummary: {SUMMARY}\nLicense: MIT OR Apache-2.0\n\
         %global debug_package %{{nil}}\n%global __strip /bin/true\n%global _build_id_links none\n\
         %global __provides_exclude_from ^/usr/lib/usring/.*$\n%global source_date_epoch_from_changelog 0\n\
         %description\n{}\n%install\ncp -a {}/. %{{buildroot}}\n%files\n{files}",
        release.version,
        DESCRIPTION.join("\n"),
        root.display()
    );
    let path = folder.join("usring.spec");
    fs::write(&path, spec).map_err(|error| error.to_string())?;
    let mut command = Command::new("rpmbuild");
    command.args(["-bb", "--quiet", "--target", "x86_64", "--define"]).arg(format!("_topdir {}", folder.display()));
    // Sets every time in the package to the release's date, so that the same sources make the same
    // package.
    for definition in
        ["_buildhost localhost", "use_source_date_epoch_as_buildtime 1", "clamp_mtime_to_source_date_epoch 1"]
    {
        command.args(["--define", definition]);
    }
    // rpmbuild reports its steps on standard error. `output` shows them only if rpmbuild fails.
    output(command.arg(path).env("SOURCE_DATE_EPOCH", &release.epoch))?;
    let name = format!("usring-{}-1.x86_64.rpm", release.version);
    root::copy(&folder.join("RPMS/x86_64").join(&name), &release.folder.join(&name))
}

/// Writes SHA256SUMS of all files to download.
pub fn checksums(release: &Release) -> Outcome {
    let entries = fs::read_dir(&release.folder).map_err(|error| error.to_string())?;
    let files = entries.flatten().filter(|entry| entry.path().is_file());
    let mut names: Vec<_> = files.map(|entry| entry.file_name()).collect();
    names.sort();
    let sums = output(Command::new("sha256sum").args(&names).current_dir(&release.folder))?;
    print!("{sums}");
    fs::write(release.folder.join("SHA256SUMS"), sums).map_err(|error| error.to_string())
}
