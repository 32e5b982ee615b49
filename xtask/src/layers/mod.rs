//! Checks the layers of the crates: a crate may depend only on lower layers. ARCHITECTURE.md
//! explains the table below. A new crate needs a row in this table and in that of ARCHITECTURE.md.
//! [`modules`] checks the layers within a crate.

mod modules;
mod paths;

use crate::Outcome;
use crate::step;
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use std::collections::BTreeMap;

/// A crate of the product, and its layer.
struct Layer {
    crate_name: &'static str,
    level: u8,
    /// Crates of lower layers on which this crate nevertheless may not depend.
    hidden: &'static [&'static str],
    /// Whether the crate's code runs inside the calls of a served program. Such a crate and its
    /// dependencies may not use libc.
    freestanding: bool,
}

const fn layer(level: u8, crate_name: &'static str, hidden: &'static [&'static str], freestanding: bool) -> Layer {
    Layer { crate_name, level, hidden, freestanding }
}

const LAYERS: [Layer; 18] = [
    layer(0, "usring-uapi", &[], true),
    layer(1, "usring-sys", &[], true),
    layer(2, "usring-ring", &[], true),
    layer(2, "usring-std-threads", &[], false),
    layer(2, "usring-device", &[], true),
    layer(2, "usring-record", &[], true),
    layer(3, "usring-inject", &[], true),
    layer(3, "usring-vhost-user", &["usring-ring"], false),
    layer(4, "usring-engine", &[], true),
    layer(4, "usring-crash", &["usring-ring"], false),
    layer(5, "usring-check", &["usring-ring", "usring-device", "usring-inject"], true),
    layer(5, "usring-trace", &["usring-ring", "usring-device", "usring-inject"], true),
    layer(5, "usring-aio", &["usring-ring", "usring-device", "usring-inject"], true),
    layer(5, "usring-swap", &["usring-ring", "usring-engine", "usring-inject"], true),
    layer(
        6,
        "usring-call-memory",
        &["usring-ring", "usring-device", "usring-inject", "usring-engine", "usring-aio"],
        true,
    ),
    layer(7, "usring-interpose", &["usring-ring", "usring-device"], true),
    layer(8, "usring-cli", &["usring-interpose", "usring-ring", "usring-aio"], false),
    layer(9, "usring", &["usring-interpose"], false),
];

/// Crates that may depend on every crate, and on which no crate of the product may depend.
const BESIDE: [&str; 3] = ["conformance", "workloads", "xtask"];

/// Freestanding crates in which `unsafe` is allowed. All other freestanding crates forbid it by an
/// attribute.
const WITH_UNSAFE: [&str; 2] = ["usring-sys", "usring-interpose"];

/// External crates that a freestanding crate may use, because they do not call libc.
const FREESTANDING_DEPENDENCIES: [&str; 4] = ["linux-raw-sys", "loom", "yaxpeax-arch", "yaxpeax-x86"];

/// Checks crates and modules. `list` also prints the pairs of files of each upward arrow, and the
/// files of each circle ([`modules`] explains these words). `tighten` lowers the limits in
/// `xtask/arrow-limits` to the present counts.
pub fn run(list: bool, tighten: bool) -> Outcome {
    let metadata = MetadataCommand::new()
        .current_dir(step::root())
        .no_deps()
        .exec()
        .map_err(|error| format!("cannot read cargo's metadata ({error})"))?;
    let breaches = breaches(&metadata);
    for breach in &breaches {
        println!("layers: {breach}");
    }
    if breaches.is_empty() {
        println!("layers: {} crates, each sees only lower layers", metadata.packages.len());
    }
    match breaches.len() + modules::check(list, tighten)? {
        0 => Ok(()),
        count => Err(format!("{count} breaches of the layers")),
    }
}

fn breaches(metadata: &Metadata) -> Vec<String> {
    let rows: BTreeMap<_, _> = LAYERS.iter().map(|row| (row.crate_name, row)).collect();
    let mut breaches = Vec::new();
    for package in &metadata.packages {
        let name = package.name.as_str();
        match rows.get(name) {
            Some(row) => breaches.extend(breaches_of(package, row, &rows)),
            None if BESIDE.contains(&name) => {}
            None => {
                breaches.push(format!("{name} has no row in xtask/src/layers/mod.rs and in ARCHITECTURE.md; add both"))
            }
        }
    }
    breaches
}

fn breaches_of(package: &Package, row: &Layer, rows: &BTreeMap<&str, &Layer>) -> Vec<String> {
    let of_product = package.dependencies.iter().filter(|dependency| dependency.kind != DependencyKind::Development);
    let dependencies = of_product.filter_map(|dependency| breach(row, &dependency.name, rows));
    dependencies.chain(allows_unsafe(package, row)).collect()
}

/// Returns a message if the crate must forbid unsafe code and does not. `None` otherwise.
fn allows_unsafe(package: &Package, row: &Layer) -> Option<String> {
    if !row.freestanding || WITH_UNSAFE.contains(&row.crate_name) {
        return None;
    }
    let root = package.manifest_path.with_file_name("src").join("lib.rs");
    let forbids = std::fs::read_to_string(&root).is_ok_and(|text| text.contains("#![forbid(unsafe_code)]"));
    (!forbids).then(|| format!("{} does not forbid unsafe code; add #![forbid(unsafe_code)] to {root}", row.crate_name))
}

/// Returns a message if the crate of `row` may not depend on the crate `used`. `None` if it may.
fn breach(row: &Layer, used: &str, rows: &BTreeMap<&str, &Layer>) -> Option<String> {
    let user = row.crate_name;
    match rows.get(used) {
        Some(lower) if lower.level >= row.level => Some(format!(
            "{user} (layer {}) uses {used} (layer {}); a crate uses only lower layers",
            row.level, lower.level
        )),
        Some(_) if row.hidden.contains(&used) => Some(format!("{user} must not use {used}")),
        Some(_) => None,
        None if BESIDE.contains(&used) => {
            Some(format!("{user} is part of the product and uses {used}, which is for development only"))
        }
        None if row.freestanding && !FREESTANDING_DEPENDENCIES.contains(&used) => Some(format!(
            "{user} is freestanding and uses {used}; if that calls no libc, add it to FREESTANDING_DEPENDENCIES"
        )),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_breach(user: &str, used: &str) -> bool {
        let rows: BTreeMap<_, _> = LAYERS.iter().map(|row| (row.crate_name, row)).collect();
        breach(rows[user], used, &rows).is_some()
    }

    #[test]
    fn a_crate_may_use_only_lower_layers() {
        assert!(!is_breach("usring-engine", "usring-sys"));
        assert!(is_breach("usring-sys", "usring-engine"));
        assert!(is_breach("usring-ring", "usring-device"));
    }

    #[test]
    fn a_higher_crate_may_use_only_some_lower_crates() {
        assert!(is_breach("usring-swap", "usring-ring"));
        assert!(!is_breach("usring-swap", "usring-device"));
        assert!(is_breach("usring", "usring-interpose"));
    }

    #[test]
    fn the_product_uses_no_crate_that_is_for_development_only() {
        assert!(is_breach("usring", "workloads"));
    }

    #[test]
    fn freestanding_crates_use_no_crate_that_calls_libc() {
        assert!(is_breach("usring-engine", "libc"));
        assert!(!is_breach("usring", "clap"));
        assert!(!is_breach("usring-sys", "linux-raw-sys"));
    }
}
