//! The folder of one test, gone when the test ends.

use super::{CC, Run, World, require};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Where the programs of our own lie, as source.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs");

/// Anyone may write here, for some of the programs run as nobody.
pub struct Stage {
    folder: TempDir,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(built_usring)
    }

    /// With usring as it is shipped, for what is measured: the release profile.
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
        }
        stage
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file of the stage, whole.
    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// A file that anyone may read and write.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, contents).unwrap_or_else(|error| panic!("{name}: {error}"));
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        path
    }

    /// A folder in which anyone may write.
    pub fn make_folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        path
    }

    /// A copy of a file of ours, where nobody can reach it. By another process: what
    /// this one has open for writing, a child that another test is just starting has
    /// open, too, and no such file can be executed.
    pub fn copy(&self, from: &Path, name: &str) -> PathBuf {
        let path = self.path(name);
        let output = Command::new("cp").arg(from).arg(&path).output().expect("cp");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Compiles `programs/SOURCE` with Debian's compiler. `flags` stand behind
    /// the source, so libraries may be named there.
    pub fn compile(&self, source: &str, flags: &[&str]) -> PathBuf {
        let result = self.path(source).with_extension("");
        self.compile_as(source, flags, &result);
        result
    }

    /// The same, with a name of its own for the result.
    pub fn compile_as(&self, source: &str, flags: &[&str], result: &Path) {
        compile(&["-O2", "-pthread", "-Wall", "-Werror"], &Path::new(PROGRAMS).join(source), flags, result);
    }

    /// A program on this stage, to be given its arguments and started.
    pub fn program(&self, world: World, program: impl AsRef<Path>) -> Run {
        Run::new(&self.path(""), world, &[], program.as_ref())
    }

    /// The same in a run that has these devices, each `PATH=SPEC`. A relative PATH
    /// is one of the stage.
    pub fn program_on_devices(&self, world: World, devices: &[&str], program: impl AsRef<Path>) -> Run {
        let options: Vec<_> = devices.iter().map(|device| format!("--device={device}")).collect();
        self.program_with(world, &options, program)
    }

    /// The same with other options of `usring run`.
    pub fn program_with(&self, world: World, options: &[String], program: impl AsRef<Path>) -> Run {
        assert!(!super::on_kernel(), "the kernel has no devices of usring's");
        Run::new(&self.path(""), world, options, program.as_ref())
    }

    /// What runs with devices have left in the folder of their sockets.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("usring")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// A file of `programs/` that needs no compiler.
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
    // For nobody, too, whatever umask(2) says.
    fs::set_permissions(result, Permissions::from_mode(0o755)).unwrap();
}

/// A folder on a file system that takes O_DIRECT (a tmpfs may not), reachable
/// for nobody.
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

/// `usring` as it was built: named by the environment, or beside this test.
fn built_usring() -> PathBuf {
    let named = std::env::var_os("USRING_BIN").map(PathBuf::from);
    let path = named.unwrap_or_else(|| {
        let test = std::env::current_exe().unwrap();
        // target/PROFILE/deps/TEST or target/PROFILE/PROGRAM
        let folder = test.ancestors().skip(1).find(|folder| folder.join("usring").is_file());
        folder.unwrap_or_else(|| test.parent().unwrap()).join("usring")
    });
    for file in [path.clone(), path.with_file_name("libusring.so")] {
        assert!(file.is_file(), "{} is missing; build it with `cargo xtask build`", file.display());
    }
    path
}
