//! `cargo xtask toolchain`: checks the two releases of Rust that the project names.
//!
//! - The pinned release (`scripts/toolchain.sh`): `./check` uses it where it is available, because
//!   a later release may have new lints, which would fail an unchanged tree.
//! - The oldest release that builds usring (`rust-version` in Cargo.toml). clippy refuses functions
//!   of a newer standard library, by its lint `incompatible_msrv`.

use crate::{Outcome, step};
use std::process::Command;

const SCRIPT: &str = "scripts/toolchain.sh";

pub fn run() -> Outcome {
    let script = step::text(SCRIPT)?;
    let compiler = Command::new("rustc").arg("--version").current_dir(step::root()).output();
    let compiler = compiler.map_err(|error| format!("cannot run rustc ({error})"))?;
    let compiler = String::from_utf8_lossy(&compiler.stdout).into_owned();
    let manifest = step::text("Cargo.toml")?;
    let oldest = oldest(&manifest).ok_or("Cargo.toml has no rust-version")?;
    let mut breaches: Vec<String> = disagreement(&script, &oldest).into_iter().collect();
    breaches.extend(breaches_of_members(&manifest, |member| step::text(&format!("{member}/Cargo.toml")))?);
    for breach in &breaches {
        println!("toolchain: {breach}");
    }
    if breaches.is_empty() {
        let note = if is_pinned(&script, &compiler) { "" } else { " (not the pinned release: its lints may differ)" };
        println!("toolchain: {}{note}, and {oldest} at least", compiler.trim());
        return Ok(());
    }
    Err(format!("{} breaches of the toolchain", breaches.len()))
}

/// Returns the `rust-version` of the workspace.
fn oldest(manifest: &str) -> Option<String> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""))?;
    Some(line.trim_end_matches('"').to_owned())
}

/// Returns a message for each member of the workspace whose manifest does not inherit the
/// workspace's `rust-version`. `read` returns the manifest of a member.
fn breaches_of_members(manifest: &str, read: impl Fn(&str) -> Result<String, String>) -> Result<Vec<String>, String> {
    let members = members(manifest);
    if members.is_empty() {
        return Err("Cargo.toml has no line `members = [\"…\"]`, so no member was checked".into());
    }
    let mut breaches = Vec::new();
    for member in members {
        if !read(member)?.contains("\nrust-version.workspace = true\n") {
            breaches.push(format!("{member}/Cargo.toml lacks `rust-version.workspace = true`"));
        }
    }
    Ok(breaches)
}

/// Returns the folders of the workspace's members.
fn members(manifest: &str) -> Vec<&str> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("members = ["));
    line.unwrap_or_default().split('"').skip(1).step_by(2).collect()
}

fn value<'a>(script: &'a str, name: &str) -> Option<&'a str> {
    script.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

fn is_pinned(script: &str, compiler: &str) -> bool {
    compiler.split_whitespace().nth(1) == value(script, "pinned")
}

/// Returns a message if the script and Cargo.toml name different oldest releases.
fn disagreement(script: &str, oldest: &str) -> Option<String> {
    let needed = value(script, "needed_minor").unwrap_or("none");
    let differs = oldest.strip_prefix("1.") != Some(needed);
    differs.then(|| format!("Cargo.toml says that Rust {oldest} is enough, and {SCRIPT} says 1.{needed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "# Text.\nneeded_minor=90\npinned=1.95.0\n";

    #[test]
    fn the_pinned_compiler_is_recognised() {
        assert!(is_pinned(SCRIPT, "rustc 1.95.0 (59807616e 2026-04-14)\n"));
        assert!(!is_pinned(SCRIPT, "rustc 1.96.0 (0 2026-05-28)\n"));
    }

    #[test]
    fn the_script_and_the_manifest_name_one_oldest_release() {
        assert_eq!(disagreement(SCRIPT, "1.90"), None);
        assert!(disagreement(SCRIPT, "1.91").is_some());
    }

    #[test]
    fn the_members_and_the_oldest_release_are_read_from_the_manifest() {
        let manifest = "members = [\"crates/a\", \"b\"]\n[workspace.package]\nrust-version = \"1.90\"\n";
        assert_eq!(oldest(manifest).as_deref(), Some("1.90"));
        assert_eq!(members(manifest), ["crates/a", "b"]);
    }

    #[test]
    fn a_manifest_whose_members_are_not_found_is_refused() {
        let takes_over = |_: &str| Ok("[package]\nrust-version.workspace = true\n".to_owned());
        assert!(breaches_of_members("members = [\n    \"crates/a\",\n]\n", takes_over).is_err());
        assert_eq!(breaches_of_members("members = [\"a\"]\n", takes_over), Ok(vec![]));
        assert_eq!(breaches_of_members("members = [\"a\"]\n", |_| Ok(String::new())).unwrap().len(), 1);
    }
}
