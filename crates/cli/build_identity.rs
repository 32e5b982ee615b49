// The identity of a build, by which `usring` (the launcher) and `libusring.so` recognise that they
// were built together. The build scripts of both include this file. The identity is the version and
// a hash. The hash covers the library's sources, and the two files of the launcher that write the
// variables of the environment which the library reads.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// Files and folders that are hashed, below `crates/`.
const SOURCES: [&str; 14] = [
    "uapi/src",
    "sys/src",
    "device/src",
    "inject/src",
    "record/src",
    "ring/src",
    "engine/src",
    "check/src",
    "aio/src",
    "swap/src",
    "call-memory/src",
    "interpose/src",
    "cli/src/environment.rs",
    "cli/src/swap.rs",
];

/// Sets `USRING_BUILD_IDENTITY` for the crate that is being built.
fn provide_identity() {
    let crates = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs build scripts")).join("..");
    let mut hasher = DefaultHasher::new();
    for source in SOURCES {
        let path = crates.join(source);
        println!("cargo:rerun-if-changed={}", path.display());
        hash(&path, &mut hasher);
    }
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo runs build scripts");
    println!("cargo:rustc-env=USRING_BUILD_IDENTITY={version}-{:016x}", hasher.finish());
}

/// Hashes a file, or all files of a folder in the order of their names. A missing path adds nothing
/// to the hash, because a crate that is built outside the workspace lacks some of these paths.
fn hash(path: &Path, hasher: &mut impl Hasher) {
    let Ok(entries) = std::fs::read_dir(path) else {
        path.file_name().hash(hasher);
        std::fs::read(path).ok().hash(hasher);
        return;
    };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths.iter().for_each(|path| hash(path, hasher));
}
