//! The files of a release (`cargo xtask package`). The Debian package must work, for a user without
//! rights, in a Debian in which nothing else is installed. The other packages must be complete.

#[path = "../../xtask/src/cached.rs"]
mod cached;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tempfile::TempDir;
use workloads::harness::skipped::skip;

/// Returns the folder that `cargo xtask package` or `cargo xtask package --debug` has made. If
/// there is none, reports that the test is skipped, and returns `None`.
fn packages() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let folders = ["package", "package-debug"].map(|name| target.join(name));
    let found = folders.into_iter().find(|folder| folder.join("SHA256SUMS").is_file());
    if found.is_none() {
        skip("no packages; `cargo xtask package` makes them");
    }
    found
}

/// Returns the file of the release with this ending.
fn file(folder: &Path, ending: &str) -> PathBuf {
    let entries = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let mut found = entries.filter(|path| path.to_string_lossy().ends_with(ending));
    found.next().unwrap_or_else(|| panic!("{} has no file *{ending}", folder.display()))
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn text(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A copy of a fresh Debian in which the package is installed.
struct Debian(TempDir);

impl Debian {
    /// Returns the Debian that all tests share. `None` if that Debian cannot be made on this
    /// machine; the test then counts as skipped.
    fn shared() -> Option<&'static Debian> {
        static SHARED: OnceLock<Option<Debian>> = OnceLock::new();
        SHARED.get_or_init(|| Debian::install(12)).as_ref()
    }

    fn install(release: u32) -> Option<Debian> {
        let folder = packages()?;
        if !cached::is_root() {
            skip("only root can change its root folder");
            return None;
        }
        let root = cached::debian_root(release);
        if !root.is_dir() {
            skip(&format!("no root folder with Debian {release}; `cargo xtask packages` makes it"));
            return None;
        }
        if release < 12 && !cached::glibc_folder().is_dir() {
            skip("the package is linked to this machine's glibc; `cargo xtask package` fetches Debian 11's");
            return None;
        }
        let debian = Debian(TempDir::with_prefix("usring-debian-").unwrap());
        text(Command::new("chmod").arg("755").arg(debian.0.path()));
        text(Command::new("cp").arg("-a").arg(root.join(".")).arg(debian.0.path()));
        text(Command::new("cp").arg(file(&folder, ".deb")).arg(debian.0.path().join("usring.deb")));
        text(Command::new("chroot").arg(debian.0.path()).args(["dpkg", "--install", "/usring.deb"]));
        Some(debian)
    }

    /// Runs a shell script in the root folder of this Debian, as user 65534, in a new mount
    /// namespace. Before that, runs the script `prepare` outside of the root folder, whose path is
    /// in `$ROOT`.
    fn run(&self, prepare: &str, script: &str) -> (i32, String) {
        let inside = r#"exec timeout 60 chroot --userspec=65534:65534 "$ROOT" sh -c "$SCRIPT" 2>&1"#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec"]).arg(format!("{prepare}\n{inside}"));
        command.env("ROOT", self.0.path()).env("SCRIPT", script).env("TMPDIR", "/tmp");
        let output = output(&mut command);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code().unwrap_or(-1), said)
    }
}

const WITH_PROC: &str = "mount -t proc proc \"$ROOT/proc\"";
/// A program that makes a ring and submits a request. `usring doctor` runs this program, too.
const RING_PROGRAM: &str = "usring run --deny-kernel --stats -- /usr/bin/usring probe";

#[track_caller]
fn assert_served((status, said): (i32, String)) {
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("{\"Works\":") && said.contains("usring: 1 ring"), "{said}");
}

#[test]
fn the_installed_debian_package_serves_a_ring_program_of_nobody() {
    Debian::shared().into_iter().for_each(works_for_nobody);
}

/// Debian 11 is the oldest Debian whose glibc the release supports.
#[test]
fn the_debian_package_works_on_debian_11() {
    Debian::install(11).iter().for_each(works_for_nobody);
}

#[test]
fn the_debian_package_works_on_debian_13() {
    Debian::install(13).iter().for_each(works_for_nobody);
}

fn works_for_nobody(debian: &Debian) {
    assert_served(debian.run(WITH_PROC, RING_PROGRAM));
    let (status, said) = debian.run(WITH_PROC, "usring doctor");
    assert!(status == 0 && said.contains("verdict             usring works here"), "{said}");
    // A device needs a folder for its path and one for the run's socket.
    let device = "cd /tmp && usring run --device disk=ram:size=1M -- dd if=disk of=/dev/null bs=64k";
    assert_eq!(debian.run(WITH_PROC, device).0, 0);
}

#[test]
fn the_package_works_in_a_read_only_root() {
    let Some(debian) = Debian::shared() else { return };
    let read_only = format!("mount --bind \"$ROOT\" \"$ROOT\"\nmount -o remount,bind,ro \"$ROOT\"\n{WITH_PROC}");
    assert_served(debian.run(&read_only, RING_PROGRAM));
    let (status, said) = debian.run(&read_only, "usring run --device /tmp/disk=ram:size=1M -- true");
    assert_eq!(status, 125);
    assert!(said.starts_with("usring run: cannot make /tmp/disk") && said.lines().count() == 1, "{said}");
}

#[test]
fn without_dev_shm_the_package_works() {
    let Some(debian) = Debian::shared() else { return };
    let bare = format!("{WITH_PROC}\nmount -t tmpfs none \"$ROOT/dev\"\nmknod -m 666 \"$ROOT/dev/null\" c 1 3");
    assert_served(debian.run(&bare, &format!("test ! -e /dev/shm && {RING_PROGRAM}")));
}

#[test]
fn without_proc_one_sentence_says_why() {
    let Some(debian) = Debian::shared() else { return };
    for (command, status) in [("usring doctor", 1), (RING_PROGRAM, 125)] {
        let (found, said) = debian.run("true", command);
        assert_eq!(found, status, "{said}");
        assert!(said.contains("/proc") && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn a_c_program_finds_header_and_library_by_pkg_config() {
    let Some(folder) = packages() else { return };
    let stage = TempDir::new().unwrap();
    text(Command::new("tar").arg("-xf").arg(file(&folder, "x86_64.tar.gz")).arg("-C").arg(stage.path()));
    let unpacked = std::fs::read_dir(stage.path()).unwrap().next().unwrap().unwrap().path();
    let source = stage.path().join("program.c");
    std::fs::write(
        &source,
        "#include <usring.h>\nint main(void) { return usring_swap_error(0, 0) + (int)usring_injected(); }\n",
    )
    .unwrap();
    let flags = text(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "usring"])
            .env("PKG_CONFIG_PATH", unpacked.join("share/pkgconfig")),
    );
    let program = stage.path().join("program");
    text(Command::new("cc").arg(source).args(flags.split_whitespace()).arg("-o").arg(&program));
    let needed = text(Command::new("objdump").arg("-p").arg(&program));
    assert!(needed.contains("NEEDED               libusring.so.0.1\n"), "{needed}");
    text(&mut Command::new(program));
}

#[test]
fn every_kind_of_package_has_its_files() {
    let Some(folder) = packages() else { return };
    let lines = |command: &mut Command| text(command).lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let of_tarball = lines(Command::new("tar").arg("-tf").arg(file(&folder, "x86_64.tar.gz")));
    let of_deb = text(Command::new("dpkg-deb").arg("--contents").arg(file(&folder, ".deb")));
    assert!(of_deb.contains("./usr/share/man/man1/usring.1.gz") && of_deb.contains("root/root"), "{of_deb}");
    for ending in [
        "bin/usring",
        "lib/usring/libusring.so",
        "lib/usring/libusring.so.0.1",
        "include/usring.h",
        "share/pkgconfig/usring.pc",
        "share/doc/usring/README.md",
        "share/doc/usring/docs/running.md",
        "share/doc/usring/docs/internals/launcher.md",
    ] {
        assert!(of_tarball.iter().any(|name| name.ends_with(ending)), "{ending}: {of_tarball:?}");
    }
    let rpm = || {
        let mut command = Command::new("rpm");
        command.args(["--query", "--nosignature", "--package"]).arg(file(&folder, ".x86_64.rpm"));
        command
    };
    let listed = lines(rpm().arg("--list"));
    assert!(listed.contains("/usr/bin/usring") && listed.contains("/usr/lib/usring/libusring.so"), "{listed:?}");
    // Every time in the package is the time of the release, so that the same sources make the same
    // package.
    let times = lines(rpm().args(["--queryformat", "%{BUILDTIME}\n[%{FILEMTIMES}\n]"]));
    assert_eq!(times.len(), 1, "{times:?}");
    text(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&folder));
}

#[test]
fn the_image_has_a_name_and_two_files() {
    let Some(folder) = packages() else { return };
    let layout = TempDir::new().unwrap();
    text(Command::new("tar").arg("-xf").arg(file(&folder, "oci.tar.gz")).arg("-C").arg(layout.path()));
    let read = |name: &str| -> serde_json::Value {
        let path = layout.path().join(name.replace("sha256:", "blobs/sha256/"));
        serde_json::from_slice(&std::fs::read(&path).unwrap_or_else(|_| panic!("{}", path.display()))).unwrap()
    };
    let described = read("index.json")["manifests"][0].take();
    let annotations = &described["annotations"];
    assert_eq!(annotations["org.opencontainers.image.ref.name"], "0.1.0");
    assert_eq!(annotations["io.containerd.image.name"], "docker.io/library/usring:0.1.0");
    let manifest = read(described["digest"].as_str().unwrap());
    let layer = manifest["layers"][0]["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/");
    let in_layer = text(Command::new("tar").arg("-tzf").arg(layout.path().join(layer)));
    let files: Vec<_> = in_layer.lines().filter(|name| !name.ends_with('/')).collect();
    assert_eq!(files, ["./usr/bin/usring", "./usr/lib/usring/libusring.so"]);
    let config = read(manifest["config"]["digest"].as_str().unwrap());
    assert_eq!(config["rootfs"]["diff_ids"].as_array().unwrap().len(), 1);
}

#[test]
fn the_manual_pages_have_no_warnings() {
    let Some(folder) = packages() else { return };
    let mut names = BTreeSet::new();
    for section in ["man1", "man3"] {
        for entry in std::fs::read_dir(folder.join("pages").join(section)).unwrap().flatten() {
            let found = output(Command::new("mandoc").args(["-Tlint", "-Wwarning"]).arg(entry.path()));
            assert!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));
            names.insert(entry.file_name().into_string().unwrap());
        }
    }
    for name in [
        "usring.1",
        "usring-run.1",
        "usring-doctor.1",
        "usring-ctl.1",
        "usring-swap.3",
        "usring-inject.3",
        "io_setup2.3",
    ] {
        assert!(names.contains(name), "{names:?}");
    }
    let page = text(Command::new("mandoc").args(["-Tutf8"]).arg(folder.join("pages/man3/usring-swap.3")));
    assert!(page.contains("ENOSPC"), "{page}");
}
