//! The folder of one test, removed when the test ends.

use super::soname::soname;
use super::{CC, Run, World, require};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Folder with the sources of the test programs.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs");

/// A test's folder. Every user may write to it, because some programs run as the user `nobody`.
pub struct Stage {
    folder: TempDir,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(built_usring)
    }

    /// Makes a stage with the release build of usring, for measurements. If `USRING_BIN` is set,
    /// uses the build that it names. If there is no release build, uses the debug build.
    pub fn with_release() -> Stage {
        Stage::with(|| {
            let built = built_usring();
            let beside = built.parent().and_then(Path::parent).map(|target| target.join("release/usring"));
            let release = beside.filter(|path| path.is_file() && std::env::var_os("USRING_BIN").is_none());
            release.unwrap_or(built)
        })
    }

    fn with(built: fn() -> PathBuf) -> Stage {
        let stage = Stage { folder: new_folder() };
        stage.make_folder("tools");
        let confine = stage.path("tools/confine");
        compile(&["-O2"], &Path::new(PROGRAMS).join("confine.c"), &[], &confine);
        if !super::on_kernel() {
            let built = built();
            stage.copy(&built, "tools/usring");
            stage.copy(&built.with_file_name("libusring.so"), "tools/libusring.so");
            let versioned = stage.path("tools").join(soname(env!("CARGO_PKG_VERSION")));
            std::os::unix::fs::symlink("libusring.so", versioned).unwrap();
        }
        stage
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the whole content of the file `name` of the stage.
    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Writes a file that any user may read and write.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, contents).unwrap_or_else(|error| panic!("{name}: {error}"));
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        path
    }

    /// Makes a folder to which any user may write.
    pub fn make_folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        path
    }

    /// Copies a file to the stage, where the user `nobody` can read it.
    ///
    /// cp(1) makes the copy. If this process wrote it, a child that another test forks could
    /// inherit the descriptor that is open for writing. The kernel executes no file that is open
    /// for writing.
    pub fn copy(&self, from: &Path, name: &str) -> PathBuf {
        let path = self.path(name);
        let output = Command::new("cp").arg(from).arg(&path).output().expect("cp");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Compiles `programs/SOURCE` with Debian's compiler. `flags` follow the source on the command
    /// line, so they may name libraries.
    pub fn compile(&self, source: &str, flags: &[&str]) -> PathBuf {
        let result = self.path(source).with_extension("");
        self.compile_as(source, flags, &result);
        result
    }

    /// Compiles `programs/SOURCE` to the path `result`.
    pub fn compile_as(&self, source: &str, flags: &[&str], result: &Path) {
        compile(&["-O2", "-pthread", "-Wall", "-Werror"], &Path::new(PROGRAMS).join(source), flags, result);
    }

    /// Prepares a program that runs in this stage's folder, in the given world (with or without
    /// usring).
    pub fn program(&self, world: World, program: impl AsRef<Path>) -> Run {
        Run::new(&self.path(""), world, &[], program.as_ref())
    }

    /// Prepares a program without usring, confined as in a container whose rules allow the kernel's
    /// io_uring.
    pub fn program_on_kernel(&self, program: impl AsRef<Path>) -> Run {
        let confine = self.path("tools/confine");
        Run::new(&self.path(""), World::Bare, &[], &confine).arg("--allow-io-uring").arg(program.as_ref())
    }

    /// Prepares a program in a run with the given devices. Each is a `PATH=SPEC`, whose PATH may be
    /// relative to the stage.
    pub fn program_on_devices(&self, world: World, devices: &[&str], program: impl AsRef<Path>) -> Run {
        let options: Vec<_> = devices.iter().map(|device| format!("--device={device}")).collect();
        self.program_with(world, &options, program)
    }

    /// Prepares a program with additional options of `usring run`.
    pub fn program_with(&self, world: World, options: &[String], program: impl AsRef<Path>) -> Run {
        assert!(!super::on_kernel(), "the kernel has no devices of usring's");
        Run::new(&self.path(""), world, options, program.as_ref())
    }

    /// Returns the paths of the Unix sockets that earlier runs of `usring run` on this stage have
    /// left behind.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("usring")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Returns the path of a script in `programs/`.
    pub fn script(name: &str) -> PathBuf {
        Path::new(PROGRAMS).join(name)
    }
}

impl Default for Stage {
    fn default() -> Stage {
        Stage::new()
    }
}

fn compile(before: &[&str], source: &Path, behind: &[&str], result: &Path) {
    require(&CC);
    let mut command = Command::new(CC.path);
    let output = command.args(before).arg(source).args(behind).arg("-o").arg(result).output().unwrap();
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    // The mode is set explicitly, so that the user `nobody` can run the file whatever the umask is.
    fs::set_permissions(result, Permissions::from_mode(0o755)).unwrap();
}

/// Makes a folder that the user `nobody` can reach, on a file system that supports O_DIRECT (a
/// tmpfs may not).
fn new_folder() -> TempDir {
    let candidates = [PathBuf::from("/var/tmp"), std::env::temp_dir()];
    let folder = candidates.iter().find_map(|parent| {
        let folder = TempDir::with_prefix_in("usring-stage-", parent).ok()?;
        takes_direct_io(folder.path()).then_some(folder)
    });
    let folder =
        folder.unwrap_or_else(|| panic!("no folder of {candidates:?} takes O_DIRECT; set TMPDIR to one that does"));
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    folder
}

fn takes_direct_io(folder: &Path) -> bool {
    let probe = folder.join("probe");
    let opened = open(&probe, OFlag::O_CREAT | OFlag::O_RDWR | OFlag::O_DIRECT, Mode::S_IRUSR).is_ok();
    let _ = fs::remove_file(probe);
    opened
}

/// Returns the path of the built `usring`: `USRING_BIN`, or the `usring` in the nearest folder
/// above this test's executable.
fn built_usring() -> PathBuf {
    let named = std::env::var_os("USRING_BIN").map(PathBuf::from);
    let path = named.unwrap_or_else(|| {
        let test = std::env::current_exe().unwrap();
        // This test's path is target/PROFILE/deps/TEST or target/PROFILE/PROGRAM.
        let folder = test.ancestors().skip(1).find(|folder| folder.join("usring").is_file());
        folder.unwrap_or_else(|| test.parent().unwrap()).join("usring")
    });
    for file in [path.clone(), path.with_file_name("libusring.so")] {
        assert!(file.is_file(), "{} is missing; build it with `cargo xtask build`", file.display());
    }
    path
}
