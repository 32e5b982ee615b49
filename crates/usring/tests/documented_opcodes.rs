//! Checks that docs/compatibility.md lists exactly the opcodes that REGISTER_PROBE reports.

use std::collections::BTreeSet;
use usring::{IoUring, Probe};
use usring_uapi::opcode::{COUNT, NAMES};

/// Returns the opcodes in the first column of the table under the heading "## Opcodes".
fn documented() -> BTreeSet<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compatibility.md");
    let page = std::fs::read_to_string(page).expect("docs/compatibility.md");
    let section = page.split("## Opcodes").nth(1).expect("a section on opcodes");
    let section = section.split("\n## ").next().expect("the text of the section");
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| opcode"));
    let names = rows.flat_map(|row| row.split('|').nth(1).expect("a first column").split(','));
    names.map(|name| name.trim().to_lowercase()).collect()
}

#[test]
fn documentation_lists_exactly_the_opcodes_that_probe_reports() {
    let ring = IoUring::new(4).expect("a ring");
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).expect("REGISTER_PROBE");
    let reported = (0..COUNT).filter(|&opcode| probe.is_supported(opcode as u8)).map(|opcode| NAMES[opcode].to_owned());
    assert_eq!(documented(), reported.collect::<BTreeSet<_>>());
}
