//! Checks the limits of size: 600 lines per file, 60 lines per function. For C sources only the
//! limit per file is checked. `size-exceptions` lists longer files and functions with their
//! lengths. That list may only shrink.

use crate::Outcome;
use crate::step;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use syn::visit::{self, Visit};

const FILE_LIMIT: usize = 600;
const FUNCTION_LIMIT: usize = 60;
const EXCEPTIONS: &str = "xtask/size-exceptions";

/// Lengths in lines, by `PATH` or `PATH::FUNCTION`.
type Lengths = BTreeMap<String, usize>;

pub fn run() -> Outcome {
    let root = step::root();
    let files = source_files(root)?;
    let mut long = Lengths::new();
    for file in &files {
        // A file that git lists may be missing, because it was deleted without a commit.
        let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
        measure(file, &text, &mut long)?;
    }
    let listed = std::fs::read_to_string(root.join(EXCEPTIONS)).map_err(|error| format!("{EXCEPTIONS}: {error}"))?;
    let listed = parse(&listed)?;
    let mut breaches = compare(&long, &listed);
    for version in ["HEAD", "HEAD^"] {
        if let Some(earlier) = committed(root, version) {
            breaches.extend(grown(&listed, &earlier));
        }
    }
    breaches.dedup();
    for breach in &breaches {
        println!("size: {breach}");
    }
    if breaches.is_empty() {
        println!("size: {} files within {FILE_LIMIT} lines, functions within {FUNCTION_LIMIT}", files.len());
        Ok(())
    } else {
        Err(format!("{} breaches of the size limits", breaches.len()))
    }
}

/// Returns the Rust and C files that git tracks, or that it would list as untracked.
fn source_files(root: &Path) -> Result<Vec<String>, String> {
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard", "--", "*.rs", "*.c", "*.h"];
    let output = Command::new("git").args(arguments).current_dir(root).output();
    let output = output.map_err(|error| format!("cannot list the files with git ({error})"))?;
    if !output.status.success() {
        return Err(format!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Records the length of the file, and of each function of a Rust file, if that length exceeds its
/// limit.
fn measure(file: &str, text: &str, long: &mut Lengths) -> Outcome {
    let lines = text.lines().count();
    if lines > FILE_LIMIT {
        long.insert(file.to_owned(), lines);
    }
    if !file.ends_with(".rs") {
        return Ok(());
    }
    let syntax = syn::parse_file(text).map_err(|error| format!("{file}: {error}"))?;
    Functions { file, long, within: Vec::new() }.visit_file(&syntax);
    Ok(())
}

struct Functions<'a> {
    file: &'a str,
    long: &'a mut Lengths,
    /// Names of the functions around the visited position, the outermost first.
    within: Vec<String>,
}

impl Functions<'_> {
    /// Measures a function from the line of `fn` to that of its closing brace.
    fn note(&mut self, signature: &syn::Signature, block: &syn::Block) {
        self.within.push(signature.ident.to_string());
        let lines = block.brace_token.span.close().end().line - signature.fn_token.span.start().line + 1;
        if lines > FUNCTION_LIMIT {
            self.long.insert(format!("{}::{}", self.file, self.within.join("::")), lines);
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.note(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
        self.within.pop();
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.note(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
        self.within.pop();
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.note(&item.sig, block);
            visit::visit_trait_item_fn(self, item);
            self.within.pop();
        }
    }
}

fn parse(text: &str) -> Result<Lengths, String> {
    let entries = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &str| {
        let (name, lines) = line.rsplit_once(' ')?;
        Some((name.to_owned(), lines.parse().ok()?))
    };
    entries.map(|line| entry(line).ok_or_else(|| format!("{EXCEPTIONS}: cannot parse `{line}`"))).collect()
}

/// Returns the list of exceptions as it is in a git version. `None` if git does not have that
/// version.
fn committed(root: &Path, version: &str) -> Option<Lengths> {
    let arguments = ["show", &format!("{version}:{EXCEPTIONS}")];
    let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
    output.status.success().then(|| parse(&String::from_utf8_lossy(&output.stdout)).ok())?
}

/// Compares the long files and functions with the list. Returns a message for each one that is not
/// listed, for each wrong length, and for each entry that is not needed any more.
fn compare(long: &Lengths, listed: &Lengths) -> Vec<String> {
    let mut breaches = Vec::new();
    for (name, lines) in long {
        let limit = if name.contains("::") { FUNCTION_LIMIT } else { FILE_LIMIT };
        match listed.get(name) {
            None => breaches.push(format!("{name} has {lines} lines, {} more than allowed", lines - limit)),
            Some(allowed) if allowed < lines => {
                breaches.push(format!("{name} has grown from {allowed} lines to {lines}"));
            }
            Some(allowed) if allowed > lines => {
                breaches.push(format!("{name} has shrunk: write {lines} for {allowed} in {EXCEPTIONS}"));
            }
            Some(_) => {}
        }
    }
    let done = listed.keys().filter(|name| !long.contains_key(*name));
    breaches.extend(done.map(|name| format!("{name} is within its limit now: remove it from {EXCEPTIONS}")));
    breaches
}

/// Returns a message for each entry of the list that an earlier version of the list lacks, or has
/// with fewer lines.
fn grown(listed: &Lengths, earlier: &Lengths) -> Vec<String> {
    let newer = listed.iter().filter(|(name, lines)| earlier.get(*name).is_none_or(|before| before < lines));
    newer.map(|(name, _)| format!("{name} was added to {EXCEPTIONS}, which may only shrink")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(entries: &[(&str, usize)]) -> Lengths {
        entries.iter().map(|(name, lines)| ((*name).to_owned(), *lines)).collect()
    }

    #[test]
    fn a_long_function_is_found_wherever_it_stands() {
        let body = "let _ = 0;\n".repeat(FUNCTION_LIMIT);
        let text = format!("impl T {{\nfn short() {{}}\nfn outer() {{\nfn long() {{\n{body}}}\n}}\n}}\n");
        let mut long = Lengths::new();
        measure("a.rs", &text, &mut long).unwrap();
        assert_eq!(long, lengths(&[("a.rs::outer", FUNCTION_LIMIT + 4), ("a.rs::outer::long", FUNCTION_LIMIT + 2)]));
    }

    #[test]
    fn a_function_at_the_limit_is_allowed() {
        let body = "let _ = 0;\n".repeat(FUNCTION_LIMIT - 2);
        let mut long = Lengths::new();
        measure("a.rs", &format!("/// Text.\nfn full() {{\n{body}}}\n"), &mut long).unwrap();
        assert_eq!(long, Lengths::new());
    }

    #[test]
    fn a_long_c_file_is_found() {
        let mut long = Lengths::new();
        measure("a.c", &"int x;\n".repeat(FILE_LIMIT), &mut long).unwrap();
        assert_eq!(long, Lengths::new());
        measure("a.c", &"int x;\n".repeat(FILE_LIMIT + 1), &mut long).unwrap();
        assert_eq!(long, lengths(&[("a.c", FILE_LIMIT + 1)]));
    }

    #[test]
    fn the_list_must_match_the_long_functions_exactly() {
        let listed = lengths(&[("a.rs", 700), ("b.rs::f", 80)]);
        assert!(compare(&listed, &listed).is_empty());
        assert_eq!(compare(&lengths(&[("a.rs", 701), ("b.rs::f", 80)]), &listed).len(), 1);
        assert_eq!(compare(&lengths(&[("a.rs", 699), ("b.rs::f", 80)]), &listed).len(), 1);
        assert_eq!(compare(&lengths(&[("a.rs", 700)]), &listed).len(), 1);
    }

    #[test]
    fn the_list_may_only_shrink() {
        let earlier = lengths(&[("a.rs", 700)]);
        assert!(grown(&lengths(&[]), &earlier).is_empty());
        assert!(grown(&lengths(&[("a.rs", 650)]), &earlier).is_empty());
        assert_eq!(grown(&lengths(&[("a.rs", 701)]), &earlier).len(), 1);
        assert_eq!(grown(&lengths(&[("c.rs", 601)]), &earlier).len(), 1);
    }
}
