//! Parser for the table that `usring run --stats` prints on standard error when the program has
//! ended.

use std::collections::BTreeMap;

/// The engine's counters by opcode.
#[derive(Debug, Default)]
pub struct Statistics {
    rows: BTreeMap<String, BTreeMap<&'static str, u64>>,
}

/// The columns, in the order of the table.
const COLUMNS: [&str; 6] = ["submitted", "completed", "errors", "inline", "polled", "by worker"];

impl Statistics {
    /// Splits `stderr` into the table and the other text (the program's own output and other
    /// messages of usring). The table is `None` if `stderr` contains no table. The table has no
    /// rows if the program made no requests.
    pub fn split(stderr: &str) -> (Option<Statistics>, String) {
        let mut begins = stderr.rmatch_indices("usring: ").map(|(begin, _)| begin);
        let Some(begin) = begins.find(|begin| is_summary(&stderr[*begin..])) else {
            return (None, stderr.to_owned());
        };
        let end = stderr[begin..].find("\nusring: ").map_or(stderr.len(), |end| begin + end + 1);
        let mut rows = BTreeMap::new();
        for line in stderr[begin..end].lines().skip(2) {
            let mut words = line.split_whitespace();
            let Some(opcode) = words.next() else { continue };
            let counts: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
            if opcode != "total" && counts.len() == COLUMNS.len() {
                rows.insert(opcode.to_owned(), COLUMNS.into_iter().zip(counts).collect());
            }
        }
        (Some(Statistics { rows }), stderr[..begin].to_owned() + &stderr[end..])
    }

    /// Returns the sum of a column over `opcodes`, or over all opcodes if the list is empty.
    pub fn sum(&self, column: &'static str, opcodes: &[&str]) -> u64 {
        assert!(COLUMNS.contains(&column), "the table has no column {column}");
        let wanted = |opcode: &String| opcodes.is_empty() || opcodes.contains(&opcode.as_str());
        self.rows.iter().filter(|(opcode, _)| wanted(opcode)).map(|(_, row)| row[column]).sum()
    }
}

/// Returns whether a text begins with the first line of the `--stats` table: `usring: N rings` or
/// `usring: no ring was created`.
fn is_summary(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    let words: Vec<_> = first.split_whitespace().collect();
    first == "usring: no ring was created" || words.get(2).is_some_and(|word| word.starts_with("ring"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
the program's own words
usring: 2 rings
opcode       submitted    completed  errors  inline  polled  by worker
read       12345678901  12345678900       0       1       2          3
writev               5            5       1       0       0          0
total      12345678906  12345678905       1       1       2          3
";

    #[test]
    fn the_table_is_separated_from_the_programs_output() {
        let (statistics, words) = Statistics::split(TABLE);
        let statistics = statistics.unwrap();
        assert_eq!(words, "the program's own words\n");
        assert_eq!(statistics.sum("completed", &["read"]), 12_345_678_900);
        assert_eq!(statistics.sum("submitted", &[]), 12_345_678_906);
        assert_eq!(statistics.sum("by worker", &["read", "nop"]), 3);
    }

    #[test]
    fn usrings_lines_after_the_table_are_not_part_of_it() {
        let (statistics, words) = Statistics::split(&format!("{TABLE}usring: swap: limit 1 2 3 4 5 6\n"));
        assert_eq!(statistics.unwrap().sum("submitted", &[]), 12_345_678_906);
        assert_eq!(words, "the program's own words\nusring: swap: limit 1 2 3 4 5 6\n");
    }

    #[test]
    fn a_table_without_requests_counts_nothing() {
        for text in ["usring: no ring was created\n", "usring: 1 ring, no request was submitted\n"] {
            let (statistics, words) = Statistics::split(text);
            assert_eq!((statistics.unwrap().sum("submitted", &[]), words.as_str()), (0, ""));
        }
    }

    #[test]
    fn output_without_a_table_belongs_to_the_program() {
        for text in ["", "usring: cannot read the counts of --stats\n", "a ring\n"] {
            let (statistics, words) = Statistics::split(text);
            assert!(statistics.is_none());
            assert_eq!(words, text);
        }
    }
}
