//! `usring run --inject`: the rules of a run, the page by which its processes share them, and the
//! report at its end.

pub mod control;

use super::Failure;
use super::table::Table;
use crate::system_error::words;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use usring_inject::page::{Counter, Entry, Key, OrderSettings, Page};
use usring_inject::set::CallSet;
use usring_inject::{Rule, armed};
use usring_sys::clock::Clock;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::mapping;

/// A value of `--inject`.
#[derive(Clone, Debug)]
pub enum InjectOption {
    Rule(Box<Rule>),
    /// `@FILE`: rules, one per line, in the form in which `--inject-log` writes them.
    File(PathBuf),
    /// `none`: no rule yet.
    Nothing,
}

/// Parses a value of `--inject`.
pub fn parse(text: &str) -> Result<InjectOption, String> {
    if text == "none" {
        return Ok(InjectOption::Nothing);
    }
    if let Some(file) = text.strip_prefix('@') {
        return Ok(InjectOption::File(file.into()));
    }
    let rule = usring_inject::parse(text).map_err(|error| format!("{error}\n"))?;
    Ok(InjectOption::Rule(Box::new(rule)))
}

/// Parses the value of `--order`: `seed=N`, or `seed=N,overflow=on`.
pub fn parse_order(text: &str) -> Result<OrderSettings, String> {
    let (mut seed, mut overflows) = (None, false);
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("seed", _)) if seed.is_some() => return Err(format!("'{text}' has seed= twice")),
            Some(("seed", number)) => {
                let number = number.parse();
                seed = Some(number.map_err(|_| format!("'{part}' is not seed= with a number, such as seed=1"))?);
            }
            Some(("overflow", "on")) => overflows = true,
            Some(("overflow", "off")) => overflows = false,
            Some(("overflow", _)) => return Err(format!("'{part}' is neither overflow=on nor overflow=off")),
            _ => return Err(format!("'{part}' is neither seed=N, such as seed=1, nor overflow=on")),
        }
    }
    let seed = seed.ok_or("the number that chooses the order is missing: seed=N, such as seed=1")?;
    Ok(OrderSettings { seed, overflows })
}

/// Parses the rules in a file. Ignores empty lines, and in each line the text from ` #` on.
fn read_file(path: &Path) -> Result<Vec<Rule>, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::new(format!("cannot read the rules of {name} ({error})", error = words(&error))))?;
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, without_comment(line)));
    let rules = lines.filter(|(_, line)| !line.is_empty()).map(|(number, line)| {
        usring_inject::parse(line).map_err(|error| Failure::new(format!("{name}, line {number}: {error}")))
    });
    rules.collect()
}

fn without_comment(line: &str) -> &str {
    let rule = if line.starts_with('#') { "" } else { line.split(" #").next().unwrap_or("") };
    rule.trim()
}

/// The rules of a run, and the counts of the faults that they have made. Both are in a page that
/// the run's processes share.
pub struct Faults {
    file: Arc<OwnedDescriptor>,
    page: Page,
}

/// The options of `usring run` about faults.
pub struct Settings<'a> {
    pub options: &'a [InjectOption],
    pub seed: Option<u64>,
    pub log: Option<&'a Path>,
    pub order: Option<OrderSettings>,
}

impl Faults {
    /// Makes the page that the run's processes share, and adds the rules to the page. Empties the
    /// file of `--inject-log`, if the user has named one.
    pub fn create(settings: &Settings<'_>) -> Result<Faults, Failure> {
        let failed = |error| {
            Failure::new(format!("cannot make the memory that holds the rules ({error})", error = words(&error)))
        };
        let file = mapping::sealed_memory_file(c"usring-faults", usring_inject::page::LENGTH as u64).map_err(failed)?;
        let seed = settings.seed.unwrap_or_else(|| fastrand::u32(..).into());
        let page = Page::create(&file, seed, Clock::Monotonic.now()).map_err(failed)?;
        if let Some(order) = settings.order {
            page.set_order(order);
        }
        let mut trapped = CallSet::default();
        for option in settings.options {
            let rules = match option {
                InjectOption::Rule(rule) => vec![(**rule).clone()],
                InjectOption::File(path) => read_file(path)?,
                InjectOption::Nothing => {
                    trapped = CallSet::all();
                    Vec::new()
                }
            };
            for rule in rules {
                trapped = trapped.union(&rule.set);
                add_rule(&page, &rule)?;
            }
        }
        page.set_traps(trapped.calls());
        if let Some(log) = settings.log {
            begin_log(log, &page)?;
        }
        Ok(Faults { file: Arc::new(file), page })
    }

    /// Returns a path in /proc by which the program's processes open the page of rules.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.number())
    }

    /// Returns the page's memory file, for `usring ctl inject`.
    pub fn file(&self) -> Arc<OwnedDescriptor> {
        self.file.clone()
    }

    /// Prints what was injected, and how often.
    pub fn report(&self) {
        // A failed write must not change the exit status, which is the program's, so errors are
        // ignored.
        let _ = std::io::stderr().write_all(report(&self.page).as_bytes());
    }
}

fn begin_log(path: &Path, page: &Page) -> Result<(), Failure> {
    let failed =
        |error| Failure::new(format!("cannot write the log {} ({error})", path.display(), error = words(&error)));
    let absolute = std::path::absolute(path).map_err(failed)?;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path).map_err(failed)?;
    writeln!(file, "# The faults of a run with seed {}. `usring run --inject @FILE` repeats them.", page.seed())
        .map_err(failed)?;
    if page.set_log(absolute.as_os_str().as_bytes()) {
        Ok(())
    } else {
        Err(Failure::new(format!(
            "the path {} of the log is too long; name another file by --inject-log",
            path.display()
        )))
    }
}

/// Enters a rule and returns its index.
fn add_rule(page: &Page, rule: &Rule) -> Result<u16, Failure> {
    page.add(rule)
        .ok_or_else(|| Failure::new("the rules of --inject are too many or too long; use fewer or shorter ones"))
}

/// Counts of the faults of a run. The key has a rule's index and a call in words. The value says
/// how many such calls the rule matched, and how many faults it made.
type Counts = BTreeMap<(u16, String), [u64; 2]>;

fn counts_of(page: &Page) -> Counts {
    let mut counts = Counts::new();
    let mut add = |key: &Key, column: usize, count| {
        counts.entry((key.rule, armed::describe(key))).or_default()[column] += count;
    };
    for (key, count) in page.counters() {
        match key.counter {
            Counter::Matched => add(&key, 0, count),
            Counter::Faults => add(&key, 1, count),
            Counter::Calls | Counter::Process => {}
        }
    }
    counts
}

fn report(page: &Page) -> String {
    match page.order() {
        Some(order) if page.rules().is_empty() => order_report(page, order.seed),
        Some(order) => faults_report(page) + &order_report(page, order.seed),
        None => faults_report(page),
    }
}

/// Returns sentences on what `--order` did, and on whether another run with the seed may complete
/// its requests in another order.
fn order_report(page: &Page, seed: u64) -> String {
    let [ordered, late, bursts, shuffled, signalled, slept, overflowed] = page.order_counts();
    let parts = [
        (ordered, "completion was moved", "completions were moved"),
        (late, "request also ran late", "requests also ran late"),
        (bursts, "time all came at once", "times all came at once"),
        (shuffled, "time sockets were served in another order", "times sockets were served in another order"),
        (signalled, "signal came without a completion", "signals came without a completion"),
        (slept, "time an SQ thread slept early", "times an SQ thread slept early"),
        (overflowed, "time a CQ overflowed", "times a CQ overflowed"),
    ];
    let mut done = Vec::new();
    for (count, one, many) in parts {
        match count {
            0 => {}
            1 => done.push(format!("1 {one}")),
            _ => done.push(format!("{count} {many}")),
        }
    }
    let done = if done.is_empty() { "there was nothing to reorder".to_owned() } else { done.join(", ") };
    let mut text = format!("usring: order by seed {seed}: {done}\n");
    if page.has_unsure_order() {
        text.push_str(
            "usring: several threads or processes use rings, so another run with this seed may have another order\n",
        );
    }
    text
}

fn faults_report(page: &Page) -> String {
    let counts = counts_of(page);
    let faults: u64 = counts.values().map(|[_, faults]| faults).sum();
    let seed = page.seed();
    let mut text = match (faults, counts.is_empty()) {
        (0, true) => format!("usring: no fault was injected: no rule matched a call of the program (seed {seed})\n"),
        (0, false) => format!("usring: no fault was injected (seed {seed})\n"),
        (1, _) => format!("usring: 1 fault was injected (seed {seed})\n"),
        (count, _) => format!("usring: {count} faults were injected (seed {seed})\n"),
    };
    if !counts.is_empty() {
        let _ = write!(text, "{}", table(&counts, &page.rules()));
    }
    if page.uncounted() != 0 {
        text.push_str("usring: some calls got no fault, because there was no memory left to count them\n");
    }
    text
}

fn table(counts: &Counts, rules: &[Entry]) -> Table {
    let mut table = Table::new(["rule", "call", "calls", "faults"], 2);
    for ((rule, call), [calls, faults]) in counts {
        let text = rules.get(usize::from(*rule)).map_or("", |entry| entry.text.as_str());
        table.add([format!("{} {text}", u32::from(*rule) + 1), call.clone(), calls.to_string(), faults.to_string()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use usring_inject::Kind;

    #[test]
    fn the_report_names_rules_calls_and_the_seed() {
        let page = Page::of_process(7, 0).unwrap();
        assert!(report(&page).contains("no rule matched a call of the program (seed 7)"));
        page.add(&usring_inject::parse("read:error=EIO:when=2").unwrap()).unwrap();
        let key = |counter, process| Key { counter, process, rule: 0, kind: Kind::Ring, number: 22 };
        for process in [1, 2, 2] {
            page.count(key(Counter::Matched, process));
        }
        page.count(key(Counter::Faults, 0));
        let expected = "\
usring: 1 fault was injected (seed 7)
rule                     call       calls  faults
1 read:error=EIO:when=2  ring read      3       1
";
        assert_eq!(report(&page), expected);
    }

    #[test]
    fn comments_and_empty_lines_of_a_file_are_left_out() {
        assert_eq!(without_comment("read:error=EIO # rule 1, fd 5"), "read:error=EIO");
        assert_eq!(without_comment("# nothing"), "");
        assert_eq!(without_comment("read:path=/a#b:error=EIO"), "read:path=/a#b:error=EIO");
    }
}
