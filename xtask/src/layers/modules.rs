//! Checks the layers of the modules within a crate. `xtask/module-order` lists the groups of a
//! crate's modules, from the lowest to the highest.
//!
//! - An arrow leads from a group to each group that its files use. An arrow to a higher group runs
//!   upward.
//! - A circle is a set of files. Each file of the set uses all the others, directly or through
//!   other files.
//!
//! `xtask/arrow-limits` gives three limits for a crate: the number of upward arrows, the number of
//! pairs of files in these arrows, and the size of its largest circle. The numbers only fall.

use super::paths::{self, Path};
use crate::step;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const ORDER: &str = "xtask/module-order";
const LIMITS: &str = "xtask/arrow-limits";
const HEAD: &str = "# Upward arrows between the groups of xtask/module-order, pairs of files in these arrows, and\n\
    # files of the largest circle. The numbers only fall: `cargo xtask layers --tighten` lowers them\n\
    # to what is there.\n";
const NAMES: [&str; 3] = ["arrows", "files", "circle"];

/// Three numbers of a crate, in the order of [`NAMES`]: upward arrows, pairs of files in these
/// arrows, and files of the largest circle. An upward arrow is a use of a higher group of modules
/// by a lower one.
type Counts = [usize; NAMES.len()];

/// The groups of a crate's modules, as `xtask/module-order` declares them.
#[derive(Debug, Default, PartialEq)]
struct Order {
    /// The name and the modules of each group, from the lowest to the highest.
    groups: Vec<(String, Vec<Path>)>,
}

impl Order {
    /// Returns the index of a module's group: the group that names the longest prefix of the
    /// module's path. `None`: no group names the module.
    fn group_of(&self, module: &[String]) -> Option<usize> {
        let named = self.groups.iter().enumerate();
        let members = named.flat_map(|(index, (_, members))| members.iter().map(move |member| (member, index)));
        members.filter(|(member, _)| module.starts_with(member)).max_by_key(|(member, _)| member.len()).map(|it| it.1)
    }
}

/// For each file of a crate: the other files that it uses. Files are named by their module paths.
type Uses = BTreeMap<Path, BTreeSet<Path>>;

/// The arrows between the groups of one crate (which group uses which), and the circles of its
/// files.
#[derive(Default)]
struct Findings {
    /// The arrows: for each pair of a group and a group that it uses, the pairs of files that show
    /// the use.
    arrows: BTreeMap<(usize, usize), Vec<(Path, Path)>>,
    /// The circles of files, the largest first.
    circles: Vec<Vec<Path>>,
    unlisted: Vec<Path>,
}

impl Findings {
    fn upward(&self) -> impl Iterator<Item = (&(usize, usize), &Vec<(Path, Path)>)> {
        self.arrows.iter().filter(|((user, used), _)| user < used)
    }

    fn counts(&self) -> Counts {
        let pairs = self.upward().map(|(_, pairs)| pairs.len()).sum();
        [self.upward().count(), pairs, self.circles.first().map_or(0, Vec::len)]
    }
}

/// Checks every crate in `xtask/module-order`, and returns the number of breaches. `list` also
/// prints the pairs of files that make up each upward arrow, and the files of each circle.
/// `tighten` lowers the limits to the present counts.
pub fn check(list: bool, tighten: bool) -> Result<usize, String> {
    let orders = parse_orders(&read(ORDER)?)?;
    let limits = parse_limits(&read(LIMITS)?)?;
    let (mut breaches, mut counts) = (0, BTreeMap::new());
    for (name, order) in &orders {
        let findings = find(order, &uses_of(name)?);
        print(name, order, &findings, list);
        for module in &findings.unlisted {
            println!("layers: {name}: {ORDER} names no group for {}", module.join("::"));
        }
        let present = findings.counts();
        let allowed = limits.get(name).copied().unwrap_or_default();
        for (what, (count, most)) in NAMES.iter().zip(present.iter().zip(allowed)) {
            if *count > most {
                println!("layers: {name}: `{what}` is {count}, above its limit of {most}");
                breaches += 1;
            }
        }
        breaches += findings.unlisted.len();
        counts.insert(name.clone(), std::array::from_fn(|index| present[index].min(allowed[index])));
    }
    if tighten {
        std::fs::write(step::root().join(LIMITS), write(&counts)).map_err(|error| format!("{LIMITS}: {error}"))?;
    }
    Ok(breaches)
}

fn read(file: &str) -> Result<String, String> {
    std::fs::read_to_string(step::root().join(file)).map_err(|error| format!("{file}: {error}"))
}

/// Reads all source files of the crate in `crates/NAME`. Returns which other files each file uses.
fn uses_of(name: &str) -> Result<Uses, String> {
    let root = step::root().join("crates").join(name).join("src");
    let mut texts = BTreeMap::new();
    let mut folders = vec![(root, Path::new())];
    while let Some((folder, module)) = folders.pop() {
        let wrong = |error| format!("{}: {error}", folder.display());
        for entry in std::fs::read_dir(&folder).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            let Some(stem) = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()) else { continue };
            let mut inner = module.clone();
            if !matches!(stem.as_str(), "lib" | "main" | "mod") {
                inner.push(stem);
            }
            if path.is_dir() {
                folders.push((path, inner));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                texts.insert(inner, std::fs::read_to_string(&path).map_err(wrong)?);
            }
        }
    }
    uses(&texts)
}

/// Returns for each file which files it uses. `texts` has the files' contents by module path.
fn uses(texts: &BTreeMap<Path, String>) -> Result<Uses, String> {
    let mut uses = Uses::new();
    for (module, text) in texts {
        let paths = paths::used(module, text).map_err(|error| format!("{}: {error}", module.join("::")))?;
        let files = paths.iter().map(|path| {
            let lengths = (0..=path.len()).rev();
            lengths.map(|length| path[..length].to_vec()).find(|part| texts.contains_key(part)).unwrap_or_default()
        });
        uses.insert(module.clone(), files.filter(|file| file != module).collect());
    }
    Ok(uses)
}

fn find(order: &Order, uses: &Uses) -> Findings {
    let mut findings = Findings::default();
    for (user, used) in uses {
        // Ignores the files that the crate's root uses, because the root only declares modules and
        // public items.
        if user.is_empty() {
            continue;
        }
        let Some(of_user) = order.group_of(user) else {
            findings.unlisted.push(user.clone());
            continue;
        };
        for file in used {
            match order.group_of(file) {
                Some(of_file) if of_file != of_user => {
                    findings.arrows.entry((of_user, of_file)).or_default().push((user.clone(), file.clone()));
                }
                _ => {}
            }
        }
    }
    findings.circles = circles(uses);
    findings
}

/// Returns the circles: sets of at least two files in which each file reaches all the others. The
/// largest set comes first.
fn circles(uses: &Uses) -> Vec<Vec<Path>> {
    let reached: BTreeMap<&Path, BTreeSet<&Path>> = uses.keys().map(|file| (file, reach(uses, file))).collect();
    let mut left: BTreeSet<&Path> = uses.keys().collect();
    let mut circles = Vec::new();
    while let Some(file) = left.pop_first() {
        let together = |other: &&&Path| reached[file].contains(**other) && reached[**other].contains(file);
        let mut circle: Vec<Path> = left.iter().filter(together).map(|other| (*other).clone()).collect();
        left.retain(|other| !circle.contains(other));
        if !circle.is_empty() {
            circle.insert(0, file.clone());
            circles.push(circle);
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

fn reach<'a>(uses: &'a Uses, file: &'a Path) -> BTreeSet<&'a Path> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![file]);
    while let Some(file) = next.pop() {
        for used in uses.get(file).into_iter().flatten() {
            if reached.insert(used) {
                next.push(used);
            }
        }
    }
    reached
}

fn print(name: &str, order: &Order, findings: &Findings, list: bool) {
    let group = |index: usize| order.groups[index].0.as_str();
    let [upward, pairs, circle] = findings.counts();
    let all = findings.arrows.len();
    println!("layers: {name}: {upward} of {all} arrows run upward ({pairs} pairs of files), largest circle {circle}");
    for ((user, used), pairs) in findings.upward() {
        println!("layers:   {} -> {}: {} pairs", group(*user), group(*used), pairs.len());
        for (file, other) in pairs.iter().filter(|_| list) {
            println!("layers:     {} -> {}", file.join("::"), other.join("::"));
        }
    }
    for circle in &findings.circles {
        let files: Vec<_> = circle.iter().map(|file| file.join("::")).collect();
        match list {
            true => println!("layers:   circle of {}: {}", files.len(), files.join(" ")),
            false => println!("layers:   circle of {} files", files.len()),
        }
    }
}

/// Parses lines of the form `CRATE GROUP: MODULE …`.
fn parse_orders(text: &str) -> Result<BTreeMap<String, Order>, String> {
    let mut orders: BTreeMap<String, Order> = BTreeMap::new();
    for line in lines(text) {
        let parts = line.split_once(':').and_then(|(head, members)| Some((head.split_once(' ')?, members)));
        let ((name, group), members) = parts.ok_or_else(|| format!("{ORDER}: cannot parse `{line}`"))?;
        let path = |member: &str| member.split("::").map(str::to_owned).collect();
        let members = members.split_whitespace().map(path).collect();
        orders.entry(name.to_owned()).or_default().groups.push((group.trim().to_owned(), members));
    }
    Ok(orders)
}

/// Parses lines of the form `CRATE arrows=N files=N circle=N`.
fn parse_limits(text: &str) -> Result<BTreeMap<String, Counts>, String> {
    let mut limits = BTreeMap::new();
    for line in lines(text) {
        let wrong = || format!("{LIMITS}: cannot parse `{line}`");
        let mut words = line.split_whitespace();
        let name = words.next().ok_or_else(wrong)?;
        let mut counts = Counts::default();
        for (what, count) in NAMES.iter().zip(&mut counts) {
            let word = words.next().and_then(|word| word.strip_prefix(what)).and_then(|word| word.strip_prefix('='));
            *count = word.and_then(|number| number.parse().ok()).ok_or_else(wrong)?;
        }
        limits.insert(name.to_owned(), counts);
    }
    Ok(limits)
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn write(limits: &BTreeMap<String, Counts>) -> String {
    let mut text = HEAD.to_owned();
    for (name, counts) in limits {
        text.push_str(name);
        for (what, count) in NAMES.iter().zip(counts) {
            let _ = write!(text, " {what}={count}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: &str = "# lowest first\nengine state: ring request\nengine waiting: waiting\nengine calls: calls\n";

    fn module(path: &str) -> Path {
        path.split("::").map(str::to_owned).collect()
    }

    fn findings(files: &[(&str, &str)]) -> Findings {
        let texts = files.iter().map(|(path, text)| (module(path), (*text).to_owned())).collect();
        find(&parse_orders(ORDERS).unwrap()["engine"], &uses(&texts).unwrap())
    }

    #[test]
    fn an_arrow_to_a_higher_group_runs_upward() {
        let found = findings(&[
            ("ring", "use crate::waiting::workers::Pool; use crate::request::Request;"),
            ("request", ""),
            ("waiting::workers", "use crate::ring::Ring;"),
            ("calls", "use crate::ring::Ring; use crate::waiting::workers;"),
        ]);
        assert_eq!(found.arrows.len(), 4);
        assert_eq!(found.counts(), [1, 1, 2]);
        assert_eq!(found.upward().next().unwrap().0, &(0, 1));
    }

    #[test]
    fn files_that_reach_each_other_are_a_circle() {
        let found = findings(&[
            ("waiting::a", "use super::b::B;"),
            ("waiting::b", "use super::c::C;"),
            ("waiting::c", "use super::a::A;"),
            ("waiting::d", "use super::a::A;"),
        ]);
        assert_eq!(found.circles, [["waiting::a", "waiting::b", "waiting::c"].map(module)]);
        assert_eq!(found.counts(), [0, 0, 3]);
    }

    #[test]
    fn a_file_without_a_group_is_reported() {
        assert_eq!(findings(&[("new_file", "")]).unlisted, [module("new_file")]);
    }

    #[test]
    fn limits_are_read_as_they_are_written() {
        let limits = BTreeMap::from([("engine".to_owned(), [4, 9, 3])]);
        assert_eq!(parse_limits(&write(&limits)).unwrap(), limits);
        assert!(parse_limits("engine arrows=1 circle=2 files=3\n").is_err());
        assert!(parse_orders("engine state ring\n").is_err());
    }
}
