//! Finds the module paths that a source file uses, in its imports and in its code. Comments,
//! visibilities and code for tests do not count.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;
use syn::visit::{self, Visit};

/// A path within its crate, from the crate's root: `["waiting", "workers"]`.
pub type Path = Vec<String>;

/// Returns every path of this crate that the module `module` uses. `text` is the module's source.
/// The last segments of a path may name an item, or a part of an item.
pub fn used(module: &[String], text: &str) -> syn::Result<BTreeSet<Path>> {
    let syntax = syn::parse_file(text)?;
    let children = syntax.items.iter().filter_map(|item| match item {
        syn::Item::Mod(child) if child.content.is_none() => Some(child.ident.to_string()),
        _ => None,
    });
    let mut paths = Paths { module: module.to_vec(), children: children.collect(), found: BTreeSet::new() };
    paths.visit_file(&syntax);
    Ok(paths.found)
}

struct Paths {
    /// Path of the module whose items are being visited.
    module: Path,
    /// Names of the file's child modules that have files of their own.
    children: BTreeSet<String>,
    found: BTreeSet<Path>,
}

impl Paths {
    /// Records a path, if it leads into this crate. `written` has its segments as they are in the
    /// source.
    fn note(&mut self, written: &[String]) {
        let Some(first) = written.first().filter(|_| written.len() > 1) else { return };
        let ups = written.iter().take_while(|segment| *segment == "super").count();
        let (mut path, rest) = match first.as_str() {
            "crate" => (Path::new(), &written[1..]),
            "self" => (self.module.clone(), &written[1..]),
            "super" => (self.module[..self.module.len().saturating_sub(ups)].to_vec(), &written[ups..]),
            child if self.children.contains(child) => (self.module.clone(), written),
            _ => return,
        };
        // A `self` at the end of an import names the module before it, so the path is complete
        // without `self`.
        path.extend(rest.iter().filter(|segment| *segment != "self").cloned());
        self.found.insert(path);
    }

    /// Records every path of an import. `before` has the segments before `tree`.
    fn note_tree(&mut self, before: &mut Vec<String>, tree: &syn::UseTree) {
        let depth = before.len();
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.note_tree(before, &path.tree);
            }
            syn::UseTree::Name(name) => {
                before.push(name.ident.to_string());
                self.note(before);
            }
            syn::UseTree::Rename(name) => {
                before.push(name.ident.to_string());
                self.note(before);
            }
            syn::UseTree::Glob(_) => self.note(before),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_tree(before, tree)),
        }
        before.truncate(depth);
    }

    /// Records every path among the tokens of a macro call.
    fn note_tokens(&mut self, tokens: TokenStream) {
        let mut written = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.note(&std::mem::take(&mut written));
                    }
                    written.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                other => {
                    self.note(&std::mem::take(&mut written));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.note_tokens(group.stream());
                    }
                }
            }
        }
        self.note(&written);
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => has_test(list.tokens.clone()),
        _ => false,
    })
}

/// Returns whether a `cfg` condition contains `test` outside of `not(…)`.
fn has_test(tokens: TokenStream) -> bool {
    let mut negated = false;
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(name) => {
            negated = name == "not";
            name == "test"
        }
        TokenTree::Group(group) => !negated && has_test(group.stream()),
        _ => false,
    })
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_for_tests(&item.attrs) {
            return;
        }
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.note_tree(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let written: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.note(&written);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.note_tokens(call.tokens.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(module: &[&str], text: &str) -> Vec<String> {
        let module: Vec<_> = module.iter().map(|name| (*name).to_owned()).collect();
        used(&module, text).unwrap().iter().map(|path| path.join("::")).collect()
    }

    #[test]
    fn imports_and_paths_in_code_are_found() {
        let text = "use crate::waiting::{workers, timeout::{self, Deadline}};\nfn f() { crate::op::nop::issue() }";
        let found = ["op::nop::issue", "waiting::timeout", "waiting::timeout::Deadline", "waiting::workers"];
        assert_eq!(paths(&["submission"], text), found);
    }

    #[test]
    fn relative_paths_are_resolved() {
        assert_eq!(paths(&["a", "b"], "use super::c::D; use self::e::F;"), ["a::b::e::F", "a::c::D"]);
        assert_eq!(paths(&["a"], "mod b; pub(crate) use b::C; fn f() { b::g() }"), ["a::b::C", "a::b::g"]);
        assert_eq!(paths(&["a"], "mod inside { use super::super::b::C; }"), ["b::C"]);
    }

    #[test]
    fn paths_in_macros_are_found() {
        assert_eq!(paths(&[], "const _: () = assert!(size_of::<crate::a::B>() == 8);"), ["a::B"]);
    }

    #[test]
    fn tests_and_visibilities_do_not_count() {
        assert!(paths(&["a"], "#[cfg(all(test, not(loom)))] mod tests { use crate::b::C; }").is_empty());
        assert!(paths(&["a"], "pub(in crate::a) fn f() {}").is_empty());
        assert_eq!(paths(&["a"], "#[cfg(not(test))] mod real { use crate::b::C; }"), ["b::C"]);
    }
}
