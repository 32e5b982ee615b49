//! Colour, for standard output on a terminal. The variable NO_COLOR turns it off
//! (<https://no-color.org>).

use std::io::IsTerminal;

const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// Returns the text of a verdict: green if it is good, red if it is bad.
pub fn verdict(is_good: bool, text: &str) -> String {
    let is_coloured = wants_colour(std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()));
    if !is_coloured {
        return text.to_owned();
    }
    let colour = if is_good { GREEN } else { RED };
    format!("{colour}{text}{PLAIN}")
}

fn wants_colour(is_forbidden: bool) -> bool {
    !is_forbidden && std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}
