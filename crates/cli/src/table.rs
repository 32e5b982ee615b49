//! Tables of the command's output. On a terminal, long cells wrap so that the table fits its width.
//! A file or a pipe gets each row on one line, unless the table is limited to 80 columns.

use comfy_table::{Cell, CellAlignment, ContentArrangement};
use std::fmt;

/// Width of a table that a user may paste into a document or a bug report.
const COLUMNS: u16 = 80;

/// A table without ruled lines. Its columns are two spaces apart.
pub struct Table(comfy_table::Table);

impl Table {
    /// Makes a table. The first `names` columns align left, the others right.
    pub fn new<T: Into<Cell>>(head: impl IntoIterator<Item = T>, names: usize) -> Table {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(head.into_iter().map(Into::<Cell>::into).collect::<Vec<_>>());
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            column.set_cell_alignment(if index < names { CellAlignment::Left } else { CellAlignment::Right });
        }
        Table(table)
    }

    /// Keeps each row on one line, however narrow the terminal is.
    pub fn without_wrapping(mut self) -> Table {
        self.0.set_content_arrangement(ContentArrangement::Disabled);
        self
    }

    /// Wraps long cells so that the table fits 80 columns, also in a file or a pipe.
    pub fn within_columns(mut self) -> Table {
        self.0.set_width(self.0.width().map_or(COLUMNS, |width| width.min(COLUMNS)));
        self
    }

    pub fn add<T: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.0.add_row(cells.into_iter().map(Into::<Cell>::into).collect::<Vec<_>>());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lines().try_for_each(|line| writeln!(f, "{}", line.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_under_their_heads() {
        let mut table = Table::new(["opcode", "submitted", "errors"], 1);
        table.add(["read", "12345678901", "0"]);
        table.add(["(unknown)", "0", "7"]);
        let expected = "\
opcode       submitted  errors
read       12345678901       0
(unknown)            0       7
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn long_cells_wrap_to_the_width_of_the_terminal() {
        let mut table = Table::new(["workload", "system", "against the kernel's io_uring"], 2);
        table.add(["random reads of a file in the page cache, one at a time", "usring with an SQ thread", "1.05 ×"]);
        table.0.set_width(60);
        let text = table.to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(text.lines().count() > 2, "{text}");
    }
}
