//! The OCI image: one layer with launcher and library, and nothing else. Other images copy from it:
//!
//!     COPY --from=usring /usr/bin/usring /usr/bin/
//!     COPY --from=usring /usr/lib/usring/libusring.so /usr/lib/usring/

use super::formats::tar;
use super::{Release, output};
use crate::{Outcome, step};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIGURATION: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A file of the image, named by its checksum.
struct Blob {
    kind: &'static str,
    digest: String,
    size: u64,
}

impl Blob {
    fn described(&self) -> String {
        let Blob { kind, digest, size } = self;
        format!(r#"{{"mediaType":"{kind}","digest":"sha256:{digest}","size":{size}}}"#)
    }

    /// Returns the OCI description of this blob, which must be the image's manifest. The
    /// description has the image's platform, its tag, and the name that containerd and podman give
    /// to the loaded image (`usring:VERSION`).
    fn named(&self, version: &str) -> String {
        let Blob { kind, digest, size } = self;
        format!(
            r#"{{"mediaType":"{kind}","digest":"sha256:{digest}","size":{size},"platform":{{"architecture":"amd64","os":"linux"}},"annotations":{{"io.containerd.image.name":"docker.io/library/usring:{version}","org.opencontainers.image.ref.name":"{version}"}}}}"#
        )
    }
}

/// Makes the image, as a tarball in OCI's image layout.
pub fn image(release: &Release) -> Outcome {
    let failed = |error: std::io::Error| format!("cannot make the OCI image ({error})");
    let folder = release.folder.join("oci");
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs).map_err(failed)?;
    let files = release.folder.join("layer");
    let (programs, library) = (files.join("usr/bin"), files.join("usr/lib/usring"));
    for (name, to) in [("bin/usring", &programs), ("lib/usring/libusring.so", &library)] {
        fs::create_dir_all(to).map_err(failed)?;
        // `-L` copies the library itself and not the symbolic link to it, so that the image has two
        // files and no link.
        step::run(Command::new("cp").arg("-L").arg(release.root().join("usr").join(name)).arg(to))?;
    }
    let packed = release.folder.join("layer.tar.gz");
    tar(release, &files, &[], &packed)?;
    let unpacked = release.folder.join("layer.tar");
    step::run(Command::new("gzip").args(["-dk"]).arg(&packed))?;
    let content = digest(&unpacked)?;
    fs::remove_file(&unpacked).map_err(failed)?;
    let layer = store(&blobs, packed, LAYER)?;
    let configuration = format!(
        r#"{{"architecture":"amd64","os":"linux","config":{{}},"rootfs":{{"type":"layers","diff_ids":["sha256:{content}"]}}}}"#
    );
    let configuration = store_text(release, &blobs, &configuration, CONFIGURATION)?;
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{},"layers":[{}]}}"#,
        configuration.described(),
        layer.described()
    );
    let manifest = store_text(release, &blobs, &manifest, MANIFEST)?;
    let index = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, manifest.named(release.version));
    fs::write(folder.join("index.json"), index).map_err(failed)?;
    fs::write(folder.join("oci-layout"), LAYOUT).map_err(failed)?;
    tar(release, &folder, &[], &release.file("oci.tar.gz"))
}

fn store_text(release: &Release, blobs: &Path, text: &str, kind: &'static str) -> Result<Blob, String> {
    let path = release.folder.join("blob");
    fs::write(&path, text).map_err(|error| error.to_string())?;
    store(blobs, path, kind)
}

/// Moves a file among the blobs.
fn store(blobs: &Path, path: PathBuf, kind: &'static str) -> Result<Blob, String> {
    let digest = digest(&path)?;
    let size = fs::metadata(&path).map_err(|error| error.to_string())?.len();
    fs::rename(&path, blobs.join(&digest)).map_err(|error| error.to_string())?;
    Ok(Blob { kind, digest, size })
}

fn digest(path: &Path) -> Result<String, String> {
    let sum = output(Command::new("sha256sum").arg(path))?;
    Ok(sum.split_whitespace().next().unwrap_or_default().to_owned())
}
