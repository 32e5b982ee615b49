//! The table of `usring trace -c`: a line for each opcode.

use super::print::{Span, opcode_name};
use super::requests::Request;
use crate::table::Table;
use std::collections::BTreeMap;

/// The requests of one opcode.
#[derive(Default)]
struct Row {
    calls: u64,
    errors: u64,
    in_flight: u64,
    latencies: Vec<u64>,
}

impl Row {
    fn total(&self) -> u64 {
        self.latencies.iter().fold(0, |sum, latency| sum.saturating_add(*latency))
    }
}

/// Returns the table of these requests.
pub fn table<'a>(requests: impl Iterator<Item = &'a Request>) -> Table {
    let mut rows: BTreeMap<u8, Row> = BTreeMap::new();
    for request in requests {
        let row = rows.entry(request.first.opcode).or_default();
        row.calls += 1;
        match &request.completed {
            Some(cqe) => row.errors += u64::from(cqe.result < 0),
            None => row.in_flight += 1,
        }
        row.latencies.extend(request.latency());
    }
    let mut rows: Vec<(u8, Row)> = rows.into_iter().collect();
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.total()));
    let mut table = Table::new(["opcode", "calls", "errors", "in flight", "p50", "p99", "max", "total"], 1);
    for (opcode, mut row) in rows {
        row.latencies.sort_unstable();
        let span = |share| at(&row.latencies, share).map_or("-".into(), |span| Span(span).to_string());
        let total = row.total();
        table.add([
            opcode_name(opcode).to_owned(),
            row.calls.to_string(),
            row.errors.to_string(),
            row.in_flight.to_string(),
            span(50),
            span(99),
            span(100),
            Span(total).to_string(),
        ]);
    }
    table
}

/// Returns the smallest value that `percent` of the sorted values do not exceed.
fn at(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!([50, 99, 100].map(|percent| at(&hundred, percent).unwrap()), [50, 99, 100]);
        assert_eq!([50, 99, 100].map(|percent| at(&[7], percent).unwrap()), [7, 7, 7]);
        assert_eq!(at(&[], 50), None);
    }
}
