//! What `usring run` does around a program: which ones it refuses, what they
//! inherit, how they end. A stub stands in for libusring.so, so that only the
//! launcher is under test.

mod denial;
mod devices;
mod ending;
mod inheritance;
mod refusal;
mod tools;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tempfile::TempDir;

/// The launcher and the stub side by side in a folder that anyone may enter.
struct Installation(TempDir);

fn installation() -> &'static Installation {
    static INSTALLATION: OnceLock<Installation> = OnceLock::new();
    INSTALLATION.get_or_init(|| {
        let folder = TempDir::with_prefix("usring-launcher-").unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_usring"), folder.path().join("usring")).unwrap();
        let installation = Installation(folder);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/launcher/stub.c");
        installation.compile(&["-shared", "-fPIC", source], "libusring.so");
        installation
    })
}

impl Installation {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the C compiler; the result lies beside the launcher.
    fn compile(&self, arguments: &[&str], name: &str) -> PathBuf {
        let result = self.path(name);
        let status = Command::new("cc").args(arguments).arg("-o").arg(&result).status().expect("a C compiler");
        assert!(status.success(), "cc {arguments:?}");
        result
    }

    /// A file with these contents and this mode.
    fn write(&self, name: &str, contents: &[u8], mode: u32) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, contents).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

/// `usring` with these arguments.
fn usring(arguments: &[&str]) -> Command {
    let mut command = Command::new(installation().path("usring"));
    command.args(arguments);
    command
}

/// `usring run`, to its end.
fn run(arguments: &[&str]) -> Output {
    usring(&["run"]).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn utf8(path: &Path) -> &str {
    path.to_str().unwrap()
}
