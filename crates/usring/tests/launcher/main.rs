//! Tests of what `usring run` does around a program: which programs it refuses, what a program
//! inherits, and how programs end. A stub replaces libusring.so, so only the launcher is tested.

/// The back end that the vhost-user tests use. The tests here use only a part of this module.
#[allow(dead_code)]
#[path = "../vhost_user/backend.rs"]
mod backend;
mod denial;
mod devices;
mod ending;
mod inheritance;
mod refusal;
#[path = "../../../../xtask/src/skipped.rs"]
mod skipped;
mod stores;
mod tools;

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tempfile::TempDir;

/// A folder that every user may enter, with the launcher and the stub library.
struct Installation(TempDir);

fn installation() -> &'static Installation {
    static INSTALLATION: OnceLock<Installation> = OnceLock::new();
    INSTALLATION.get_or_init(|| {
        let folder = TempDir::with_prefix("usring-launcher-").unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        copy(Path::new(env!("CARGO_BIN_EXE_usring")), &folder.path().join("usring"));
        let installation = Installation(folder);
        installation.compile(&stub(IDENTITY), "libusring.so");
        installation
    })
}

/// The build identity of the launcher, which refuses a library with another identity.
const IDENTITY: &str = env!("USRING_BUILD_IDENTITY");
const STUB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/launcher/stub.c");

/// Returns the C compiler's arguments for a stub with the build identity `identity`.
fn stub(identity: &str) -> [String; 4] {
    ["-shared".into(), "-fPIC".into(), format!("-DIDENTITY=\"{identity}\""), STUB.into()]
}

impl Installation {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles a C program or library into the launcher's folder, under the name `name`.
    fn compile(&self, arguments: &[impl AsRef<OsStr> + std::fmt::Debug], name: &str) -> PathBuf {
        let result = self.path(name);
        let status = Command::new("cc").args(arguments).arg("-o").arg(&result).status().expect("a C compiler");
        assert!(status.success(), "cc {arguments:?}");
        // Every user may execute the result, whatever the umask is.
        std::fs::set_permissions(&result, std::fs::Permissions::from_mode(0o755)).unwrap();
        result
    }

    /// Writes a file with these contents and this mode into the launcher's folder.
    fn write(&self, name: &str, contents: &[u8], mode: u32) -> PathBuf {
        let path = self.path(name);
        let draft = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&draft, contents).unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        copy(draft.path(), &path);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

/// Copies a file by cp(1). If this process wrote the copy, a child that another test forks could
/// inherit the open descriptor. The kernel does not execute a file that is open for writing.
fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("--preserve=mode").arg(from).arg(to).status().expect("cp");
    assert!(status.success(), "{} cannot be copied", from.display());
}

/// Returns a command that runs `usring` with these arguments.
fn usring(arguments: &[&str]) -> Command {
    let mut command = Command::new(installation().path("usring"));
    command.args(arguments);
    command
}

/// Runs `usring run` with these arguments, and returns the output.
fn run(arguments: &[&str]) -> Output {
    usring(&["run"]).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn utf8(path: &Path) -> &str {
    path.to_str().unwrap()
}
